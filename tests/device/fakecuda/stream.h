#ifndef MP_FAKECUDA_STREAM_H
#define MP_FAKECUDA_STREAM_H

#include "tests/device/fakecuda/simt.h"
#include "tests/device/fakecuda/state.h"

/*
 * Streams, what is queued on them, and what it touches.
 *
 * A stream is a thread that does its operations in order. Every operation has a number on its
 * stream and a clock: for each stream, the last operation there that is ordered before it, by its
 * own stream, by events, or because the host had seen its end when this one was queued. Two
 * operations that touch the same memory, one of them writing, must be ordered by their clocks; that
 * the race showed is not needed. The host is one more clock: what it has not waited for is in use,
 * even if it happens to be finished.
 */
#define FAKE_STREAMS_MAX 64

struct fake_clock {
    uint64_t seen[FAKE_STREAMS_MAX];
};

struct fake_access {
    unsigned long long address;
    size_t bytes;
    uint64_t physical, offset; /* of the memory behind it */
    bool write, host_memory;
};

/* Where an operation stands in its graph: its stream there, its number, and what was before it. */
struct fake_branch {
    unsigned stream;
    uint64_t number; /* 0: in no graph */
    struct fake_clock clock;
};

enum fake_op_kind { FAKE_COPY, FAKE_FILL, FAKE_KERNEL, FAKE_RECORD, FAKE_WAIT };

struct fake_function {
    const struct mp_simt_kernel *kernel;
    struct fake_module *module;
    char name[64];
    size_t param_bytes, param_offsets[4], param_sizes[4];
    unsigned param_count, shared_bytes_max;
    bool loaded; /* it has been launched */
    /* Its text has griddepcontrol.wait, and a touch of memory before that. */
    bool waits, touches_early;
};

struct fake_op {
    struct fake_op *next;
    void *touched; /* of its run: reachable, also if the process ends meanwhile */
    enum fake_op_kind kind;
    const char *name;
    unsigned stream;
    uint64_t number;
    struct fake_clock clock;
    uint64_t queued; /* fake.now then */
    uint64_t queued_ns;
    bool finished, raced; /* a race was recorded */
    int failure;          /* planned result of its execution */
    uint64_t reported;    /* the last failure of the stream that its thread had got */

    struct fake_branch branch;
    uint64_t launch; /* of a graph, counted over all; 0: none */

    struct fake_access *accesses;
    size_t access_count, access_max;
    bool counted; /* it is queued: its accesses count as uses of their memory */
    uint64_t sum; /* of the source when it was queued */
    bool has_sum;

    /* copy, fill */
    unsigned long long dst, src;
    size_t bytes;
    unsigned char value;
    /* kernel */
    const struct fake_function *function;
    struct mp_simt_dim grid, block;
    unsigned shared_bytes;
    bool early; /* it may begin before the kernel before it has ended */
    void *params;
    /* record: the event and which of its recordings; wait: what for */
    uint64_t event, record;
    unsigned wait_stream;
    uint64_t wait_number;
};

struct fake_graph;

struct fake_stream {
    bool used, has_thread, retired;
    unsigned index, device;
    pthread_t thread;
    pthread_cond_t work;
    uint64_t queued, done; /* numbers; they go on when the place is used again */
    uint64_t wanted;       /* somebody waits for so much */
    struct fake_clock clock;
    struct fake_op *first, *last, *next; /* what the host has not seen end; next to run */
    /* The result of an operation that failed, which one it was, and the last that was not done
     * because of it. `failure` counts the failures of all streams; 0: none of this one. */
    int error;
    uint64_t failure, failed, skipped;
    uint64_t random;
    struct fake_graph *capture; /* or NULL */
    /* What was queued last, or captured, is a kernel, which waits for those before it. */
    bool behind_waiting;
    uint64_t handle;
};

struct fake_event {
    unsigned flags;
    uint64_t records; /* times recorded; 0: never */
    unsigned stream;
    uint64_t number;
    struct fake_clock clock;
    int error;
    uint64_t time_ns;
    struct fake_graph *capture; /* recorded while capturing */
};

/* ---- module.c. With the lock held. */
/* A launch was queued, or done: */
void fake_module_launched(const struct fake_op *op);

/* ---- graph.c. With the lock held. */
/* Takes the operation, also where it fails. */
int fake_graph_add(struct fake_graph *graph, struct fake_op *op, unsigned stream);
void fake_capture_record(struct fake_stream *stream, struct fake_event *event);
int fake_capture_join(struct fake_stream *stream, const struct fake_event *event);
/* All graphs end, whole or not. */
void fake_graphs_clear(void);
/* A call that a captured stream does not stand: recorded, and the capture is invalid. */
int fake_capture_break(struct fake_stream *stream, const char *what);

/* ---- profile.c: how long things take. */
void fake_profile_choose(const char *name); /* NULL, or an unknown one: none */
/* Sleeps as long as a call takes; without the lock. */
void fake_profile_call(enum fake_call call);
/* Gives the lock up until an operation that began then would have ended. */
void fake_profile_wait(const struct fake_op *op, uint64_t began_ns);

/* ---- objects.c: handles that are never used twice. With the lock held. */
enum fake_object_kind {
    FAKE_STREAM,
    FAKE_EVENT,
    FAKE_MODULE,
    FAKE_FUNCTION,
    FAKE_GRAPH,
    FAKE_EXEC,
    FAKE_OBJECT_KINDS
};
uint64_t fake_object_add(enum fake_object_kind kind, void *object); /* 0: no memory */
/* NULL where there is none; use after the end is a violation. */
void *fake_object(enum fake_object_kind kind, uint64_t handle);
void *fake_object_quietly(enum fake_object_kind kind, uint64_t handle);
void fake_object_remove(uint64_t handle);
unsigned fake_object_count(enum fake_object_kind kind);
/* All handles end. */
void fake_objects_clear(void);
/* Call for each that lives. */
void fake_object_each(enum fake_object_kind kind, void (*visit)(void *object));

/* ---- streams.c. With the lock held. */
extern struct fake_stream fake_streams[FAKE_STREAMS_MAX];
extern struct fake_clock fake_host; /* what the host has seen end */

void fake_clock_join(struct fake_clock *clock, const struct fake_clock *other);
struct fake_op *fake_op_new(enum fake_op_kind kind, const char *name);
void fake_op_free(struct fake_op *op);
/* Put an operation behind what its stream has, or into the graph that is captured. Takes it, also
 * where it fails. */
int fake_queue(struct fake_stream *stream, struct fake_op *op);
/* The same past captures. */
int fake_queue_now(struct fake_stream *stream, struct fake_op *op);
/* Something has moved: wake whoever waits. */
void fake_moved(void);
void fake_wake_all(void);
void fake_wait_moved(void);
/* Is a capture open that forbids what this thread wants to do? Records the violation. */
bool fake_capture_forbids(enum fake_call call);
struct fake_stream *fake_stream_of(mp_cu_stream stream);
/* Was it queued behind a failure, by a thread that had not got its error? Then it is skipped: a
 * stream must not begin again, because another thread got the error, between an operation that was
 * skipped and one that needs it. */
bool fake_is_spoilt(const struct fake_op *op);
/* The result that the thread gets for number `number` of a stream, which has ended. Each thread
 * gets a failure once. */
int fake_report(struct fake_stream *stream, uint64_t number);
/* The host asks for the end of an operation, or waits for it: CUDA_SUCCESS when it has seen it,
 * NOT_READY, or the result by which the device was lost. */
int fake_see_end(const struct fake_clock *clock, unsigned stream, uint64_t number, bool block);
/* All streams, events, modules and graphs end; waits until the streams stand still. */
void fake_clear_streams(void);
void fake_clear_streams_of(unsigned device);
/* Objects of a context that ends. */
void fake_end_context(void);

#define FAKE_NO_CAPTURE()                              \
    do {                                               \
        if (fake_capture_forbids(fake_this_call))      \
            return fake_leave(FAKE_CAPTURE_FORBIDDEN); \
    } while (0)
#define FAKE_CAPTURE_FORBIDDEN 900 /* CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED */
#define FAKE_CAPTURE_INVALID 901
#define FAKE_CAPTURE_UNJOINED 904

/* ---- worker.c */
/* Begins the thread of a stream; false: no thread. With the lock held. */
bool fake_worker_start(struct fake_stream *stream);
uint64_t fake_time_ns(void);
/* Sum of some of the words of a range, quick also for large ones. */
uint64_t fake_sum(const void *data, size_t bytes);

/* ---- access.c. With the lock held. */
/* Add what it touches, by the memory that lies there now; false: a hole, or no access (recorded).
 */
bool fake_declare(struct fake_op *op, unsigned long long address, size_t bytes, bool write);
/* It is queued; from now on fake_is_used() knows what it declares. */
void fake_count(struct fake_op *op);
/* Forget what was declared. */
void fake_undeclare(struct fake_op *op);
/* Violation if an operation that is not ordered with this one touches the same. */
void fake_check_order(struct fake_op *op);
/* Does anything that the host has not seen end touch this memory? */
bool fake_is_used(unsigned long long address, size_t bytes, bool only_writes);
/* Violation if so. */
void fake_check_unused(const char *what, unsigned long long address, size_t bytes);

/* ---- fault.c: faults of the CPU in the work of the device. */
/* Runs work(ctx); false: it touched what it must not, at *address_p. */
bool fake_guarded(void (*work)(void *ctx), void *ctx, uintptr_t *address_p);
void fake_faults_begin(void); /* with the lock held; again does nothing */

/* The call that the thread is in. */
extern __thread enum fake_call fake_this_call;

#endif
