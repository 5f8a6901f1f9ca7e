#ifndef MP_FAKECUDA_STATE_H
#define MP_FAKECUDA_STATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "tests/device/fakecuda/fakecuda.h"
#include "vmm/backend/cuda/cuda_abi.h"

/*
 * The inside of the fake driver: what all its files share. One lock over everything but the work of
 * kernels and copies: what counts here is what is allowed, not how fast it is.
 */
#define FAKE_EXPORT __attribute__((visibility("default")))

#define FAKE_DEVICES_MAX 4
#define FAKE_TABLE_MAX 16384
#define FAKE_RUBBISH 0xdb /* what memory holds that nobody has written */

/* FAKE_CALL_cuInit, ...: places in MP_CU_CALL_MAP. */
enum fake_call {
#define X(member, name, parameters, arguments) FAKE_CALL_##name,
    MP_CU_CALL_MAP(X)
#undef X
        FAKE_CALL_COUNT
};

struct fake_reservation {
    bool used;
    unsigned long long address;
    size_t bytes;
};

struct fake_memory { /* behind a handle */
    bool used, released;
    struct mp_cu_location location;
    size_t bytes;
    int fd;
    unsigned mappings;
    uint64_t physical;
};

/*
 * Addresses with memory behind them: a mapping of a handle, memory of cuMemAlloc, or pinned memory
 * of the host. `physical` names the memory itself, also where it is mapped twice, and is never used
 * again; `born` is the time (fake.now) at which these addresses got it.
 */
struct fake_region {
    enum { FAKE_MAPPING, FAKE_ALLOCATED, FAKE_PINNED } kind;
    unsigned long long address;
    size_t bytes;
    uint64_t physical, born;
    unsigned memory; /* of a mapping: index */
    unsigned device; /* of allocated memory */
    bool host_memory;
    bool registered;                /* pinned memory that is the program's own */
    int device_access, host_access; /* MP_CU_ACCESS_* */
};

/* Of fakecuda_begin(). */
struct fake_operation {
    bool used, write;
    unsigned long long address;
    size_t bytes;
};

struct fake_plan {
    bool used, forever;
    char name[64];
    const void *site; /* return address; NULL: any */
    uint64_t nth;
    int result;
};

/* A place in the program that calls the driver. */
struct fake_site {
    const void *address;
    enum fake_call call;
    uint64_t calls, failed;
};

struct fake_state {
    pthread_mutex_t lock;
    bool configured, initialised;
    int init_result;
    unsigned devices;                   /* that the process sees */
    unsigned visible[FAKE_DEVICES_MAX]; /* which of the machine's they are */
    bool hidden;                        /* CUDA_VISIBLE_DEVICES says which */
    bool mig;
    size_t memory_bytes, context_bytes; /* of a device; what a context takes of it */
    size_t node_bytes;                  /* and each operation of a graph */
    size_t granule, host_granule;
    unsigned capability; /* 10 times the compute capability */
    unsigned version;    /* of the driver */
    size_t registered_max, registered_bytes;
    bool host_numa, host_numa_breaks;
    unsigned host_nodes; /* that have memory */
    int numa_id[FAKE_DEVICES_MAX];
    bool verbose;
    char wrong_kernel[64]; /* whose results are wrong; "": none */
    unsigned wrong_bit;    /* of its results, from the first of the last range on */
    uint64_t seed;         /* of random delays; 0: none */
    uint64_t lazy_ns;      /* what nobody waits for is done after so long; 0: at once */
    float elapsed_ms;      /* between any two events, as is said; 0: the truth */
    bool stalled;          /* streams stand still */
    bool failed_calls;     /* a plan has made a call fail */
    int undo_result;       /* then, of calls that give something back; or 0 */
    int lost;              /* sticky result, or 0 */
    bool lost_by_plan;     /* ends with a reset */
    uint64_t found;        /* how often a device that was lost may have come back */
    uint64_t calls_too_many;
    int forked;
    unsigned retained[FAKE_DEVICES_MAX];
    size_t device_bytes[FAKE_DEVICES_MAX], host_bytes[FAKECUDA_NODES_MAX];
    uint64_t now;           /* grows with every mapping, so that what is older is known */
    uint64_t last_physical; /* names given so far */

    struct fake_reservation reservations[256];
    struct fake_memory memories[FAKE_TABLE_MAX];
    struct fake_operation operations[256];

    struct fake_plan plans[8];
    struct fake_site sites[1024];
    unsigned site_count;
    uint64_t calls_total;
    uint64_t calls[FAKE_CALL_COUNT];
    struct fakecuda_work work;
    unsigned violations;
    char violation[256];
};

extern struct fake_state fake;

/* The thread's current context: 1 + device, or 0. */
extern __thread uintptr_t fake_current;

/* Enter a driver call: takes the lock, counts, asks the plans. False: return *result_p at once (the
 * lock is not held). */
bool fake_enter(enum fake_call call, const void *site, int *result_p);
int fake_leave(int result);

/* Read FAKECUDA_* and set up. With the lock held. */
void fake_configure(void);
unsigned long long fake_setting(const char *variable, unsigned long long missing);

/* The result that a plan wants for an operation that was queued by call `name`, or 0. */
int fake_planned_later(const char *name);

/* Record that a law was broken. With the lock held. */
void fake_violation(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- visible.c: of the devices that the process sees. With the lock held. */
void fake_choose_visible(unsigned devices);
void fake_uuid(unsigned physical, struct mp_cu_uuid *uuid);
size_t fake_memory_of_device(void);

/* ---- regions.c: what lies where. With the lock held. */

/* The region that holds an address, or NULL. */
struct fake_region *fake_region_at(unsigned long long address);
/* The first region that touches [address, +bytes), or NULL. */
struct fake_region *fake_region_in(unsigned long long address, size_t bytes);
/* The one after it, or NULL. */
struct fake_region *fake_region_after(const struct fake_region *region);
/* A copy of *region enters the map; NULL: no memory. */
struct fake_region *fake_region_add(const struct fake_region *region);
void fake_region_remove(struct fake_region *region);
unsigned fake_region_count(int kind);
/* Set the rights of the CPU to what the region's accesses say; false: the system refused. */
bool fake_region_protect(const struct fake_region *region);
/* The calling thread is the device: it may touch device memory. */
void fake_become_device(void);

const char *fake_call_name(enum fake_call call);
/* Everything ends: regions, handles, reservations; with the lock held. */
void fake_clear_memory(void);
void fake_clear_memory_of(unsigned device); /* of cuMemAlloc */
/* Is the device lost after an operation failed so? */
bool fake_is_fatal(int result);

/* Take bytes of a device's memory; false: there are not so many. */
bool fake_take(unsigned device, size_t bytes);
void fake_give(unsigned device, size_t bytes);
size_t fake_taken(unsigned device); /* by everybody who shares the device */

/* What the library exports has the types by which moepager calls it. */
#define X(member, name, parameters, arguments) mp_cu_result name parameters;
MP_CU_CALL_MAP(X)
#undef X
mp_cu_result cuGetExportTable(const void **table, const struct mp_cu_uuid *id);

/* Bodies of driver calls begin and end with these. */
#define FAKE_BEGIN(name)                                                              \
    do {                                                                              \
        int fake_result;                                                              \
        if (!fake_enter(FAKE_CALL_##name, __builtin_return_address(0), &fake_result)) \
            return fake_result;                                                       \
    } while (0)

/* Every call but those before cuInit() needs it. */
#define FAKE_NEED_INIT()                                    \
    do {                                                    \
        if (!fake.initialised || fake.forked)               \
            return fake_leave(MP_CU_ERROR_NOT_INITIALIZED); \
        if (fake.lost != 0)                                 \
            return fake_leave(fake.lost);                   \
    } while (0)

#define FAKE_NEED_CONTEXT()                                            \
    do {                                                               \
        FAKE_NEED_INIT();                                              \
        if (fake_current == 0 || fake.retained[fake_current - 1] == 0) \
            return fake_leave(MP_CU_ERROR_INVALID_CONTEXT);            \
    } while (0)

#endif
