#ifndef MP_READER_INT_H
#define MP_READER_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "vmm/base/lock.h"
#include "vmm/io/file_int.h"
#include "vmm/io/reader.h"

/*
 * What the engines of the reader share.
 *
 *   reader.c          tickets as callers see them: submit, cancel, wait
 *   reader_queue.c    from tickets to chunks and back; the same for both engines
 *   reader_threads.c  engine: threads with pread
 *   reader_uring*.c   engine: io_uring
 *   reader_virtual.c  engine: a virtual link, without threads and without bytes
 *   reader_link.c     engine: copies over a memory link
 *
 * An engine takes chunks, reads them, passes each result to mp_chunk_result() until that reports
 * the end of the chunk, and completes it. Order, retries, errors and final states are handled in
 * reader_queue.c.
 */

/* One read in flight. Private to the engine between take and complete. */
struct mp_chunk {
    struct mp_ticket *ticket;
    uint32_t extent;
    uint32_t file;
    int fd;
    uint32_t align_bytes; /* 1: buffered, else `fd` is the direct descriptor */

    /* The rest to read: `bytes` at `offset` to `dst`; complete once the bytes before need_end have
     * arrived. */
    uint64_t offset, bytes, need_end;
    char *dst;

    uint64_t cut_bytes; /* when it was taken; 0: the disk has done its part */

    struct mp_read_tries tries;
    uint64_t read_bytes; /* arrived so far */
    bool prefetch;       /* counted as one when it was taken */
    bool failed;         /* the thread's error record says why */
};

struct mp_reader_engine {
    const char *name;

    /* Start taking chunks. On failure nothing is left and the error record is set. */
    enum mp_status (*start)(struct mp_reader *reader, void **state_p);

    /* A ticket was queued, or `stopping` was set. The lock is held. */
    void (*wake_locked)(struct mp_reader *reader);

    /* Optional: what mp_reader_push() does. No lock is held. */
    void (*push)(struct mp_reader *reader);

    /* Optional, for an engine without threads: advance the clock until a ticket ends. The lock is
     * held; it is released and taken again inside. */
    void (*pass_locked)(struct mp_reader *reader);

    /* `stopping` is set: wait until all chunks are read, end the threads, free the state. */
    void (*stop)(struct mp_reader *reader);
};

extern const struct mp_reader_engine mp_reader_engine_uring;
extern const struct mp_reader_engine mp_reader_engine_threads;
extern const struct mp_reader_engine mp_reader_engine_virtual;
extern const struct mp_reader_engine mp_reader_engine_link;

/* Tracks of the timeline: transfers that overlap in time are on different tracks. */
#define MP_READER_TRACKS 8

struct mp_ticket_list {
    struct mp_ticket *first, *last;
};

struct mp_reader {
    struct mp_reader_config config;
    const struct mp_reader_engine *engine;
    void *engine_state;
    unsigned tracks[MP_READER_TRACKS];

    struct mp_mutex lock;
    struct mp_cond final; /* a ticket left the reader */
    struct mp_cond work;  /* for the engines: a list is not empty, or `stopping` was set */

    /* Tickets with chunks to submit. The private fields of all tickets are guarded by the lock too.
     */
    struct mp_ticket_list lists[MP_PRIORITY_COUNT] MP_GUARDED_BY(lock);
    uint64_t tickets MP_GUARDED_BY(lock); /* queued or started */
    /* Chunks in flight, by the priority with which they were taken, and tickets that are about to
     * start. */
    uint32_t in_flight[MP_PRIORITY_COUNT] MP_GUARDED_BY(lock);
    uint64_t flight_bytes MP_GUARDED_BY(lock); /* of chunks in flight, as they were taken */
    uint32_t tracks_used MP_GUARDED_BY(lock);
    bool stopping MP_GUARDED_BY(lock);
    int told_fd MP_GUARDED_BY(lock); /* -1: nobody is told */

    /* Counters; relaxed. */
    _Atomic(uint64_t) requests, read_bytes, retries, errors, short_reads;
};

void mp_ticket_list_push_back(struct mp_ticket_list *list, struct mp_ticket *ticket);
void mp_ticket_list_push_front(struct mp_ticket_list *list, struct mp_ticket *ticket);
void mp_ticket_list_remove(struct mp_ticket_list *list, struct mp_ticket *ticket);

/* The ticket leaves the reader with a final state or IDLE; the caller owns its memory again. */
void mp_reader_release_locked(struct mp_reader *reader, struct mp_ticket *ticket,
                              enum mp_ticket_state state);

/* All chunks have ended: add the transfer to the timeline and release the ticket. */
void mp_reader_finish_locked(struct mp_reader *reader, struct mp_ticket *ticket);

/* Remove the ticket from its list; it has started. */
void mp_reader_unlink_locked(struct mp_reader *reader, struct mp_ticket *ticket);

/* The ticket to take a chunk from, in order of priority, or NULL. */
struct mp_ticket *mp_reader_first_locked(const struct mp_reader *reader);

/* True if a chunk can be taken. */
bool mp_reader_has_work_locked(const struct mp_reader *reader);

/*
 * Take the next chunk in order of priority; false if there is none. A prefetch waits until no
 * demand is in flight, and then only a few of its chunks are, because they delay the next demand.
 * The lock is released and taken again to start a ticket; tickets that fail to start are finished
 * here.
 */
bool mp_reader_take_locked(struct mp_reader *reader, struct mp_chunk *chunk);

/*
 * Process the result of one read, as of pread() but -errno instead of -1. True: the chunk now
 * describes the rest to read. False: it has ended, see `failed`.
 */
bool mp_chunk_result(struct mp_reader *reader, struct mp_chunk *chunk, int64_t result);

/* Read the chunk to its end on the calling thread. */
void mp_chunk_read(struct mp_reader *reader, struct mp_chunk *chunk);

/* A chunk that has ended is no longer in flight, so that the next one can be taken before it is
 * completed. */
void mp_reader_landed_locked(struct mp_reader *reader, struct mp_chunk *chunk);

/* Complete a chunk that has ended, on the thread that has its error record. */
void mp_reader_complete_locked(struct mp_reader *reader, struct mp_chunk *chunk);

/* Read chunks until stopping is set and nothing is left. */
void mp_reader_work(struct mp_reader *reader);

/*
 * Ask for a short time slice for the calling thread, which mostly sleeps. Since Linux 6.12 a thread
 * with a shorter slice preempts a compute thread when it wakes; otherwise it waits up to 3 ms for
 * the end of that thread's slice, while the disk is idle. Only a hint.
 */
void mp_reader_shorten_slice(void);

#endif
