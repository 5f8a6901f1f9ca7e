/*
 * Engine: copies between tiers. One thread queues them on a stream of a backend. Reads no files.
 *
 * A few chunks are queued at a time, so that the link is never idle and a demand waits for little.
 * Copies of one stream are executed in order, and the space relies on that: a slot may be filled by
 * a ticket that was submitted after the one that empties it.
 *
 * While chunks are in flight the thread looks at the event of the oldest again and again, for a
 * bounded time, and takes up tickets that come meanwhile: it would be told of the end late, and a
 * link is idle as long. Then, or where chunks take longer anyway, it sleeps in the driver. It also
 * sleeps when nothing is in flight.
 *
 * If an event cannot be recorded or waited for, it is unknown what was copied: everything in flight
 * fails, and the stream is closed, which waits for it, before another ticket may use the memory.
 * The next chunk opens a new stream.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/base/assert.h"
#include "vmm/base/log.h"
#include "vmm/base/spin.h"
#include "vmm/base/thread.h"
#include "vmm/io/reader_int.h"

/* A chunk takes as long as the link needs, so the thread waits awake for longer than others do. */
#define SPINS 4
/* One event stands before the oldest chunk. */
#define DEPTH_MAX (MP_STREAM_EVENTS - 1)

struct flight {
    struct mp_ticket *ticket;
    uint64_t bytes;
    bool prefetch; /* counted as one when it was taken */
};

struct link_state {
    pthread_t thread;
    struct mp_stream *stream; /* NULL: to be opened */
    /* Chunks in flight, oldest at `first`; a chunk's index is its event's too. */
    struct flight flights[MP_STREAM_EVENTS];
    uint32_t first, count;
    struct mp_spin spin;
    struct mp_spin_wait wait; /* for the oldest chunk */
    bool slow;                /* the last chunk took longer than anybody waits awake */
    _Atomic bool woken;       /* relaxed: a ticket came, which the lock publishes */
};

static const struct mp_memory_link *memory_of(const struct mp_reader *reader)
{
    mp_assert(reader->config.memory != NULL);
    return reader->config.memory;
}

static void note_error(struct mp_ticket *ticket)
{
    mp_assert(mp_error_last()->status != MP_OK);
    if (ticket->error.status == MP_OK)
        ticket->error = *mp_error_last();
    mp_error_clear();
}

/* Nothing of the ticket is in flight or left to queue. The lock is dropped on the way. */
static void end_locked(struct mp_reader *reader, struct mp_ticket *ticket)
{
    enum mp_status status;

    mp_assert_held(&reader->lock);
    mp_assert(ticket->chunks_in_flight == 0 && !ticket->linked);
    mp_unlock(&reader->lock);
    status = memory_of(reader)->finish(memory_of(reader)->ctx, ticket);
    if (status != MP_OK)
        note_error(ticket);
    mp_lock(&reader->lock);
    mp_reader_finish_locked(reader, ticket);
}

/* Step over extents that are queued whole or empty. False: none is left. */
static bool advance(struct mp_ticket *ticket)
{
    mp_assert(ticket->extent_count <= MP_TICKET_EXTENTS_MAX);
    while (ticket->next_extent < ticket->extent_count &&
           ticket->next_offset >= ticket->extents[ticket->next_extent].need_bytes) {
        ticket->next_extent++;
        ticket->next_offset = 0;
    }
    return ticket->next_extent < ticket->extent_count;
}

static void start_locked(struct mp_reader *reader, struct mp_ticket *ticket)
{
    enum mp_status status;

    mp_assert_held(&reader->lock);
    mp_assert(mp_ticket_state(ticket) == MP_TICKET_QUEUED);
    mp_reader_unlink_locked(reader, ticket);
    mp_unlock(&reader->lock);
    ticket->started_ns = mp_clock_now_ns(reader->config.clock);
    status = memory_of(reader)->start(memory_of(reader)->ctx, ticket);
    if (status != MP_OK)
        note_error(ticket);
    mp_lock(&reader->lock);
    if (status != MP_OK || !advance(ticket))
        end_locked(reader, ticket);
    else
        mp_ticket_list_push_front(&reader->lists[ticket->priority], ticket);
}

static void complete_locked(struct mp_reader *reader, const struct flight *flight, bool failed)
{
    struct mp_ticket *ticket = flight->ticket;

    mp_assert_held(&reader->lock);
    mp_assert(ticket->chunks_in_flight > 0);
    ticket->chunks_in_flight--;
    reader->in_flight[flight->prefetch ? MP_PRIORITY_PREFETCH : MP_PRIORITY_DEMAND]--;
    if (failed) {
        note_error(ticket);
        if (ticket->linked)
            mp_ticket_list_remove(&reader->lists[ticket->priority], ticket);
    } else {
        ticket->read_bytes += flight->bytes;
        atomic_fetch_add_explicit(&reader->read_bytes, flight->bytes, memory_order_relaxed);
    }
    if (ticket->chunks_in_flight == 0 && !ticket->linked)
        end_locked(reader, ticket);
}

/* Everything in flight has failed with the thread's error; wait until nothing of it runs. */
static void reset_locked(struct mp_reader *reader, struct link_state *state)
{
    const struct mp_error error = *mp_error_last();
    struct mp_backend *backend = memory_of(reader)->backend;

    mp_assert_held(&reader->lock);
    mp_assert(error.status != MP_OK);
    mp_unlock(&reader->lock);
    if (state->stream != NULL)
        backend->ops->stream_close(backend, state->stream);
    state->stream = NULL;
    mp_lock(&reader->lock);
    while (state->count > 0) {
        const struct flight flight = state->flights[state->first];

        state->first = (state->first + 1) % MP_STREAM_EVENTS;
        state->count--;
        mp_error_set(&error);
        complete_locked(reader, &flight, true);
    }
    mp_error_clear();
}

struct piece {
    void *dst;
    const void *src;
    enum mp_copy copy;
};

static void cut_locked(struct mp_reader *reader, struct mp_ticket *ticket, struct flight *flight,
                       struct piece *piece)
{
    const struct mp_extent *extent = &ticket->extents[ticket->next_extent];
    const uint64_t left = extent->need_bytes - ticket->next_offset;

    mp_assert(ticket->next_extent < ticket->extent_count && left > 0);
    *flight = (struct flight){
        .ticket = ticket,
        .bytes = left < reader->config.chunk_bytes ? left : reader->config.chunk_bytes,
        .prefetch = ticket->priority == MP_PRIORITY_PREFETCH,
    };
    *piece = (struct piece){
        .dst = (char *)extent->dst + ticket->next_offset,
        .src = (const char *)extent->src + ticket->next_offset,
        .copy = ticket->copy,
    };
    ticket->next_offset += flight->bytes;
    ticket->chunks_in_flight++;
    reader->in_flight[ticket->priority]++;
    if (!advance(ticket))
        mp_ticket_list_remove(&reader->lists[ticket->priority], ticket);
}

/* A chunk has become the oldest. */
static void begin_wait(struct link_state *state)
{
    state->wait = mp_spin_begin(&state->spin);
    state->wait.start_ns = mp_clock_now_ns(mp_clock_monotonic());
}

/* The event before chunk `event`: behind the chunk before it, or recorded for it. */
static uint32_t event_before(uint32_t event)
{
    return (event + MP_STREAM_EVENTS - 1) % MP_STREAM_EVENTS;
}

/* Queue one chunk of a ticket that has started. */
static void queue_locked(struct mp_reader *reader, struct link_state *state,
                         struct mp_ticket *ticket)
{
    struct mp_backend *backend = memory_of(reader)->backend;
    const uint32_t event = (state->first + state->count) % MP_STREAM_EVENTS;
    struct flight flight;
    struct piece piece;
    enum mp_status status = MP_OK;

    mp_assert(state->count < DEPTH_MAX);
    cut_locked(reader, ticket, &flight, &piece);
    mp_unlock(&reader->lock);
    atomic_fetch_add_explicit(&reader->requests, 1, memory_order_relaxed);
    if (state->stream == NULL)
        status = backend->ops->stream_open(backend, &state->stream);
    if (status == MP_OK && state->count == 0)
        status = backend->ops->event_record(backend, state->stream, event_before(event));
    if (status == MP_OK)
        status = backend->ops->stream_copy(backend, state->stream, piece.copy, piece.dst, piece.src,
                                           flight.bytes);
    if (status != MP_OK) { /* nothing was queued */
        mp_lock(&reader->lock);
        complete_locked(reader, &flight, true);
        return;
    }
    if (state->count == 0)
        begin_wait(state);
    state->flights[event] = flight;
    state->count++;
    status = backend->ops->event_record(backend, state->stream, event);
    mp_lock(&reader->lock);
    if (status != MP_OK)
        reset_locked(reader, state);
}

static bool was_slow(const struct link_state *state)
{
    return mp_clock_now_ns(mp_clock_monotonic()) - state->wait.start_ns >= state->spin.ns;
}

/* Wait for the oldest chunk. Without an error *reached_p stays false if a ticket has come. */
static enum mp_status await_oldest(struct mp_backend *backend, struct link_state *state,
                                   bool *reached_p)
{
    enum mp_status status;

    while (!state->slow && mp_spin_again(&state->wait)) {
        status = backend->ops->event_query(backend, state->stream, state->first, reached_p);
        if (status != MP_OK || *reached_p ||
            atomic_exchange_explicit(&state->woken, false, memory_order_relaxed))
            return status;
    }
    status = backend->ops->event_wait(backend, state->stream, state->first);
    *reached_p = true;
    state->slow = was_slow(state);
    return status;
}

/* What the link needed for the oldest chunk. That nobody can say is no error. */
static uint64_t copy_ns(struct mp_backend *backend, struct link_state *state)
{
    uint64_t ns = 0;

    if (backend->ops->event_elapsed(backend, state->stream, event_before(state->first),
                                    state->first, &ns) != MP_OK)
        mp_error_clear();
    return ns;
}

static void wait_oldest_locked(struct mp_reader *reader, struct link_state *state)
{
    struct mp_backend *backend = memory_of(reader)->backend;
    const struct flight flight = state->flights[state->first];
    bool reached = false;
    uint64_t ns = 0;
    enum mp_status status;

    mp_assert(state->count > 0);
    mp_unlock(&reader->lock);
    status = await_oldest(backend, state, &reached);
    if (status == MP_OK && reached)
        ns = copy_ns(backend, state);
    mp_lock(&reader->lock);
    if (status != MP_OK)
        reset_locked(reader, state);
    if (status != MP_OK || !reached)
        return;
    begin_wait(state);
    flight.ticket->copy_ns += ns;
    state->first = (state->first + 1) % MP_STREAM_EVENTS;
    state->count--;
    complete_locked(reader, &flight, false);
}

static void *run(void *arg)
{
    struct mp_reader *reader = arg;
    struct link_state *state;
    uint32_t depth;

    mp_lock(&reader->lock);
    state = reader->engine_state;
    depth = reader->config.depth < DEPTH_MAX ? reader->config.depth : DEPTH_MAX;
    for (;;) {
        struct mp_ticket *ticket = state->count < depth ? mp_reader_first_locked(reader) : NULL;

        if (ticket != NULL && mp_ticket_state(ticket) == MP_TICKET_QUEUED)
            start_locked(reader, ticket);
        else if (ticket != NULL)
            queue_locked(reader, state, ticket);
        else if (state->count > 0)
            wait_oldest_locked(reader, state);
        else if (reader->stopping)
            break;
        else
            mp_cond_wait(&reader->work, &reader->lock);
    }
    mp_unlock(&reader->lock);
    return NULL;
}

static enum mp_status link_start(struct mp_reader *reader, void **state_p)
{
    struct mp_backend *backend = memory_of(reader)->backend;
    struct link_state *state = calloc(1, sizeof(*state));
    enum mp_status status;
    char number[32];
    int error_number;

    mp_assert(backend->ops->stream_open != NULL);
    if (state == NULL)
        return mp_fail_no_memory("the link", sizeof(*state));
    if (reader->config.spin != NULL) {
        state->spin = *reader->config.spin;
        state->spin.ns *= SPINS;
    }
    status = backend->ops->stream_open(backend, &state->stream);
    if (status != MP_OK) {
        free(state);
        return status;
    }
    /* The thread looks for it under the lock. */
    mp_lock(&reader->lock);
    *state_p = state;
    error_number = mp_thread_start(&state->thread, "mp-link", run, reader);
    mp_unlock(&reader->lock);
    if (error_number == 0)
        return MP_OK;
    backend->ops->stream_close(backend, state->stream);
    free(state);
    return mp_fail(MP_ERR_NO_MEMORY, "E_THREADS",
                   "cannot start the link's thread: %s; raise the limit on %s",
                   mp_errno_name(number, error_number), mp_thread_limit());
}

static void link_wake_locked(struct mp_reader *reader)
{
    struct link_state *state = reader->engine_state;

    mp_assert_held(&reader->lock);
    atomic_store_explicit(&state->woken, true, memory_order_relaxed);
    mp_cond_signal(&reader->work);
}

static void link_stop(struct mp_reader *reader)
{
    struct mp_backend *backend = memory_of(reader)->backend;
    struct link_state *state = reader->engine_state;

    pthread_join(state->thread, NULL);
    mp_assert(state->count == 0);
    if (state->stream != NULL)
        backend->ops->stream_close(backend, state->stream);
    free(state);
}

const struct mp_reader_engine mp_reader_engine_link = {
    .name = "link",
    .start = link_start,
    .wake_locked = link_wake_locked,
    .stop = link_stop,
};
