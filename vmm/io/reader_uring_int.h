#ifndef MP_READER_URING_INT_H
#define MP_READER_URING_INT_H

#include <liburing.h>

#include "vmm/io/reader_int.h"

/* Shared by reader_uring.c (reads and completions) and reader_uring_start.c (start and end). */

struct uring_state {
    struct mp_reader *reader;
    struct io_uring ring;
    pthread_t thread;
    int event_fd;
    void *arrays; /* the block of all arrays */

    /* Under the reader's lock: the thread may sleep although it could take a chunk. */
    bool wake_wanted;

    /* The thread's own. */
    uint64_t event_value;
    bool event_armed; /* the read of the eventfd is in flight */
    uint32_t event_failures;

    /* The side of the ring where reads are handed over, and all below. */
    struct mp_mutex lock;
    uint32_t enter_failures MP_GUARDED_BY(lock); /* in a row */
    bool broken MP_GUARDED_BY(lock);             /* set by the thread only */
    bool no_event MP_GUARDED_BY(lock); /* no eventfd: nobody would look for what a caller pushed */

    uint32_t in_flight MP_GUARDED_BY(lock); /* chunks in use */
    uint32_t free_count MP_GUARDED_BY(lock);
    uint16_t *free_chunks;   /* indexes */
    struct mp_chunk *chunks; /* (depth): those in use are the thread's, once the kernel has them */

    /* What was put into the ring and not yet taken by the kernel, oldest first: indexes of chunks,
     * or event_index(). */
    uint32_t pushed_count MP_GUARDED_BY(lock);
    uint16_t *pushed;
};

/* The engine's start and stop (reader_int.h). */
enum mp_status mp_uring_start(struct mp_reader *reader, void **state_p) MP_MUST_CHECK;
void mp_uring_stop(struct mp_reader *reader);

/* The ring's thread. */
void *mp_uring_run(void *state);

#endif
