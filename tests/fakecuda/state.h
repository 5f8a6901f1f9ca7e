#ifndef MP_FAKECUDA_STATE_H
#define MP_FAKECUDA_STATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "tests/fakecuda/fakecuda.h"
#include "vmm/cuda_abi.h"

/*
 * The inside of the fake driver. One lock over everything: what counts here is what is allowed, not
 * how fast it is.
 */
#define FAKE_EXPORT __attribute__((visibility("default")))

#define FAKE_DEVICES_MAX 4
#define FAKE_TABLE_MAX 16384

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
};

struct fake_mapping {
    bool used;
    unsigned long long address;
    size_t bytes;
    unsigned memory; /* index */
    bool device_access, host_access;
};

struct fake_operation {
    bool used, write;
    unsigned long long address;
    size_t bytes;
};

struct fake_pinned {
    bool used;
    void *address;
    size_t bytes;
};

struct fake_plan {
    bool used, forever;
    char name[48];
    uint64_t nth;
    int result;
};

struct fake_state {
    pthread_mutex_t lock;
    bool configured, initialised;
    int init_result;
    unsigned devices;
    size_t memory_bytes, granule;
    bool host_numa;
    int numa_id;
    int lost; /* sticky result, or 0 */
    int forked;
    unsigned retained[FAKE_DEVICES_MAX];
    size_t device_bytes[FAKE_DEVICES_MAX], host_bytes;

    struct fake_reservation reservations[256];
    struct fake_memory memories[FAKE_TABLE_MAX];
    struct fake_mapping mappings[FAKE_TABLE_MAX];
    struct fake_operation operations[256];
    struct fake_pinned pinned[256];

    struct fake_plan plans[8];
    uint64_t calls_total;
    uint64_t calls[128]; /* by place in MP_CU_CALL_MAP */
    unsigned violations;
    char violation[256];
};

extern struct fake_state fake;

/* The thread's current context: 1 + device, or 0. */
extern __thread uintptr_t fake_current;

/* Enter a driver call: takes the lock, counts, asks the plans. False: return *result_p at once (the
 * lock is not held). */
bool fake_enter(const char *name, int *result_p);
int fake_leave(int result);

/* Read FAKECUDA_* and set up. With the lock held. */
void fake_configure(void);

/* Record that a law was broken. With the lock held. */
void fake_violation(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Violation if an unfinished operation touches the range. */
void fake_check_operations(const char *what, unsigned long long address, size_t bytes);

/* What the library exports has the types by which moepager calls it. */
#define X(member, name, parameters) mp_cu_result name parameters;
MP_CU_CALL_MAP(X)
#undef X
mp_cu_result cuGetExportTable(const void **table, const struct mp_cu_uuid *id);

/* Bodies of driver calls begin and end with these. */
#define FAKE_BEGIN(name)                     \
    do {                                     \
        int fake_result;                     \
        if (!fake_enter(name, &fake_result)) \
            return fake_result;              \
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
