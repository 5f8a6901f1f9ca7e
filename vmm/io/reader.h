#ifndef MP_READER_H
#define MP_READER_H

#include <stdbool.h>
#include <stdint.h>

#include "vmm/backend/backend.h"
#include "vmm/base/clock.h"
#include "vmm/base/error.h"
#include "vmm/base/spin.h"
#include "vmm/io/file.h"
#include "vmm/output/timeline.h"

/*
 * Asynchronous reads from the file tier into memory, and copies between tiers over a link.
 *
 * A ticket is one transfer, in the caller's memory (zeroed before its first use; it can be
 * submitted repeatedly): the extents to read, a priority, and later the result. Demand has priority
 * over prefetch; within a priority tickets are served in order of submission. Prefetches are read
 * only while no demand is, a few chunks at a time, so that a new demand waits for little. Extents
 * are cut into as few chunks as possible, of equal size except the last; several are in flight at
 * once, also of different tickets. A ticket can be cancelled until its first chunk has been
 * submitted to the kernel.
 *
 * Two engines read files: io_uring (one thread, and callers of mp_reader_push()), and a pool of
 * threads with pread() where io_uring is missing or forbidden. The log and mp_reader_engine() name
 * the engine in use. A reader with a memory link copies instead: one thread, on a stream of a
 * backend, one ticket after the other.
 *
 * A short read is continued, end of file is an error, EIO is tried three times, and a ticket is
 * DONE only when every byte of every extent has arrived. The file's identity is checked when a
 * ticket starts.
 *
 * Of a ticket in flight it is known which extents have arrived (mp_ticket_has()), so that the first
 * can be used while the others are read. With config.by_extent demands are read extent by extent:
 * the first ones of all tickets come before the second ones.
 *
 * Thread safety: all functions may be called from any thread. The reader owns a ticket from
 * submission until its state is final. Reader threads make no callbacks except those of struct
 * mp_memory_link.
 */
enum mp_ticket_state {
    MP_TICKET_IDLE,    /* not submitted, or cancelled */
    MP_TICKET_QUEUED,  /* submitted, nothing in flight yet: can be cancelled */
    MP_TICKET_STARTED, /* in flight */
    MP_TICKET_DONE,    /* final: all bytes are in memory */
    MP_TICKET_FAILED,  /* final: see error; contents of the memory are undefined */
    MP_TICKET_STATE_COUNT
};

enum mp_priority { MP_PRIORITY_DEMAND, MP_PRIORITY_PREFETCH, MP_PRIORITY_COUNT };

/* With `direct` in the ticket, offset, bytes and dst are multiples of the file's alignment, except
 * that the last extent may reach beyond the end of the file; `need_bytes` is how many bytes of the
 * extent must arrive. Where a file has no direct descriptor, or refuses a range, it is read
 * buffered into the same place. */
struct mp_extent {
    uint32_t file;
    uint64_t offset;
    uint64_t bytes;
    uint64_t need_bytes; /* <= bytes */
    void *dst;
    const void *src; /* over a memory link: the source; file and offset are then ignored */
};

#define MP_TICKET_EXTENTS_MAX 8

struct mp_ticket {
    /* Set by the caller before submit. */
    struct mp_extent extents[MP_TICKET_EXTENTS_MAX];
    uint32_t extent_count;
    bool direct;
    enum mp_copy copy; /* over a memory link */
    enum mp_priority priority;
    uint64_t tag; /* for log and timeline: the unit */

    /* Set by the reader; read them after mp_ticket_state() returned a final state. */
    struct mp_error error;
    uint64_t submitted_ns, started_ns, done_ns;
    uint64_t copy_ns; /* over a memory link: of its chunks, by the device's clock; 0: not known */
    uint64_t
        read_bytes; /* bytes returned by the kernel; with `direct` up to a block more per read */

    /* Private to the reader. */
    _Atomic(uint32_t) arrived; /* bits of extents, released when all bytes are in memory; not of
                                * the last one, which comes with the state */
    _Atomic(int) state;        /* release store by the reader, acquire load by everybody else */
    struct mp_ticket *prev, *next;
    bool linked;    /* in a list of the reader: some chunks are not submitted yet */
    bool held;      /* QUEUED, but in no list until mp_reader_let_go() */
    uint32_t track; /* of the timeline */
    uint32_t next_extent;
    uint64_t next_offset;
    uint32_t chunks_in_flight, extent_chunks[MP_TICKET_EXTENTS_MAX]; /* of them, by extent */
};

struct mp_reader;

/*
 * A simulated link: it moves no bytes but takes time on a virtual clock, one whole ticket at a
 * time, as long as cost_ns() returns. No thread is started, and a wait advances the clock. In the
 * caller's memory; must outlive the reader.
 */
struct mp_virtual_link {
    struct mp_clock_virtual *clock;
    /* Duration of the ticket; MP_LINK_FAILS: it ends at once with an error. */
    uint64_t (*cost_ns)(void *ctx, const struct mp_ticket *ticket);
    void *ctx;
    uint64_t
        latency_ns; /* from submission to the first byte; latencies of several tickets overlap */

    uint64_t busy_ns; /* of all tickets that have started */

    /* Private to the reader. */
    struct mp_event_source source;
    struct mp_reader *reader;
    struct mp_ticket *ticket; /* in flight, or NULL */
    uint64_t end_ns;
    bool fails;
};

#define MP_LINK_FAILS UINT64_MAX

/*
 * The link between the memory of a host and of a device, over which a reader copies instead of
 * reading files. In the caller's memory; outlives the reader.
 *
 * start() is called before the first chunk of a ticket is queued, finish() after the last one has
 * arrived or after something failed (ticket->error), once for each ticket that was started. Both
 * run on the link's thread, without its lock; an error makes the ticket FAILED. They may wait for
 * the device, but not for the reader.
 */
struct mp_memory_link {
    struct mp_backend *backend; /* with streams */
    enum mp_status (*start)(void *ctx, const struct mp_ticket *ticket);
    enum mp_status (*finish)(void *ctx, const struct mp_ticket *ticket);
    void *ctx;
};

/*
 * Ends a wait for reads early: `ready` is evaluated before the wait, after every read that ends and
 * after mp_reader_wake(), with config.by_extent also after every extent that arrives. It is called
 * with the reader's lock held, or without it while the caller waits awake, and must not block.
 */
struct mp_interrupt {
    bool (*ready)(void *ctx);
    /* Optional, called without the lock: look at what could make it ready. With `sleeps` the caller
     * does not look again before it sleeps: from now on mp_reader_wake() has to be called when it
     * becomes ready. */
    void (*look)(void *ctx, bool sleeps);
    void *ctx;
    bool exposed; /* the caller has nothing else to do: the pager counts the wait as exposed */
};

#define MP_CHUNK_ALIGN_BYTES 4096

struct mp_reader_config {
    struct mp_files *files; /* must outlive the reader; NULL with a memory link */
    struct mp_clock *clock;
    struct mp_timeline *timeline; /* or NULL */
    bool uring;                   /* try io_uring first */
    uint32_t depth;               /* chunks in flight, 1..256 */
    uint32_t prefetch_depth; /* of them at most so many of prefetches, up to 256; 0: no limit */
    uint32_t threads;        /* of the fallback, 1..64 */
    bool by_extent;          /* demands: extent by extent, not ticket by ticket */
    uint64_t chunk_bytes;    /* at most; a multiple of MP_CHUNK_ALIGN_BYTES, up to 1 GiB */

    const struct mp_spin *spin; /* of who waits for a ticket; NULL: asleep */

    struct mp_virtual_link *link;        /* NULL: real reads. Else its clock is `clock` */
    const struct mp_memory_link *memory; /* NULL: files are read */
};

/*
 * MP_ERR_INVALID: a number is out of range. MP_ERR_NO_MEMORY: no memory, or not one thread. That
 * io_uring is missing, forbidden or out of resources is no failure.
 */
enum mp_status mp_reader_create(const struct mp_reader_config *config,
                                struct mp_reader **reader_p) MP_MUST_CHECK;

/* Cancels queued tickets, waits for those in flight, ends the threads. NULL is allowed. No ticket
 * may be held, and no other thread may be in a call of this reader. */
void mp_reader_destroy(struct mp_reader *reader);

/* "io_uring", "threads", "virtual" or "link". */
const char *mp_reader_engine(const struct mp_reader *reader);

/* Never fails and never blocks: submission allocates nothing. */
void mp_reader_submit(struct mp_reader *reader, struct mp_ticket *ticket);

/*
 * Submit a ticket that cannot start yet: it is QUEUED, can be waited for, promoted and cancelled,
 * but does not start before mp_reader_let_go(); until then its extents may be changed. A caller
 * that cancels it must ensure that it is not released or failed afterwards.
 */
void mp_reader_submit_held(struct mp_reader *reader, struct mp_ticket *ticket);
void mp_reader_let_go(struct mp_reader *reader, struct mp_ticket *ticket);
void mp_reader_fail_held(struct mp_reader *reader, struct mp_ticket *ticket,
                         const struct mp_error *error);

/*
 * For a caller that is about to compute before it waits for demands. With io_uring it submits their
 * reads to the kernel on the calling thread: as many as may be in flight, for at most half a
 * millisecond. Otherwise they would start when the reader's thread is scheduled, which can be
 * milliseconds later. No lock may be held. Clears the calling thread's error record if a ticket
 * fails at once.
 */
void mp_reader_push(struct mp_reader *reader);

/* Turn a prefetch that is not completely in flight into a demand; no effect on other tickets. */
void mp_reader_promote(struct mp_reader *reader, struct mp_ticket *ticket);

/* True: it had not started and is IDLE again. False: it is in flight or final. */
bool mp_reader_cancel(struct mp_reader *reader, struct mp_ticket *ticket);

enum mp_ticket_state mp_ticket_state(const struct mp_ticket *ticket);

/* Are all bytes of this extent in memory? Only for reads of files. They stay when the ticket fails
 * later. True of all extents only when the ticket is final. */
bool mp_ticket_has(const struct mp_ticket *ticket, uint32_t extent);

/* Block until the ticket is final, or IDLE because it was cancelled. A warning is logged if nothing
 * ends within 10 s. A FAILED ticket's error is not copied to the caller's error record; see
 * mp_error_set(). */
void mp_reader_wait(struct mp_reader *reader, struct mp_ticket *ticket);

/* Block until at least one of the tickets is final or IDLE; return the lowest index of such a
 * ticket. count >= 1. */
uint32_t mp_reader_wait_any(struct mp_reader *reader, struct mp_ticket *const *tickets,
                            uint32_t count);

/* The same, but also returns, with `count`, when the interrupt is ready. NULL: no interrupt. */
uint32_t mp_reader_wait_any_or(struct mp_reader *reader, struct mp_ticket *const *tickets,
                               uint32_t count, const struct mp_interrupt *interrupt);

/* Make a wait with an interrupt evaluate it again. Any thread. */
void mp_reader_wake(struct mp_reader *reader);

/* From now on, write to this eventfd whenever a ticket becomes DONE or FAILED, after its state can
 * be seen. It does not block, and outlives the reader. -1: none. */
void mp_reader_tell(struct mp_reader *reader, int event_fd);

/* True if nothing is queued or in flight; for prefetches that must not delay demands. */
bool mp_reader_idle(const struct mp_reader *reader);

struct mp_reader_stats {
    uint64_t requests, read_bytes, retries, errors, short_reads;
};
void mp_reader_get_stats(const struct mp_reader *reader, struct mp_reader_stats *stats_p);

#endif
