/*
 * Tickets as callers see them: submit, promote, cancel, wait. Their processing is in reader_queue.c
 * and the engines.
 */
#include "vmm/io/reader.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vmm/base/assert.h"
#include "vmm/base/log.h"
#include "vmm/io/reader_int.h"

#define DEPTH_MAX 256
#define THREADS_MAX 64
#define CHUNK_BYTES_MAX (UINT64_C(1) << 30)

/* A transfer that takes longer is worth a line. */
#define STALL_NS UINT64_C(10000000000)

/* The shortest time slice that the kernel can be asked for. */
#define SLICE_NS 100000

/* As the kernel has it; older C libraries do not know it. */
struct sched_attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
};

void mp_reader_shorten_slice(void)
{
    struct sched_attributes attributes = { .size = sizeof(attributes) };

    if (syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) != 0 ||
        attributes.policy != SCHED_OTHER)
        return;
    attributes.size = sizeof(attributes);
    attributes.runtime_ns = SLICE_NS;
    (void)syscall(SYS_sched_setattr, 0, &attributes, 0);
}

static enum mp_status start_engine(struct mp_reader *reader)
{
    enum mp_status status;

    mp_assert(reader->config.link == NULL || reader->config.memory == NULL);
    if (reader->config.link != NULL) {
        reader->engine = &mp_reader_engine_virtual;
        return reader->engine->start(reader, &reader->engine_state);
    }
    if (reader->config.memory != NULL) {
        reader->engine = &mp_reader_engine_link;
        return reader->engine->start(reader, &reader->engine_state);
    }
    if (reader->config.uring) {
        reader->engine = &mp_reader_engine_uring;
        status = reader->engine->start(reader, &reader->engine_state);
        if (status == MP_OK) {
            mp_log_info("reader", "reading with io_uring");
            return MP_OK;
        }
        mp_log_info("reader", "%s; reading with threads instead", mp_error_last()->text);
        mp_error_clear();
    }
    reader->engine = &mp_reader_engine_threads;
    status = reader->engine->start(reader, &reader->engine_state);
    if (status == MP_OK && !reader->config.uring)
        mp_log_info("reader", "reading with threads");
    return status;
}

enum mp_status mp_reader_create(const struct mp_reader_config *config, struct mp_reader **reader_p)
{
    struct mp_reader *reader;
    enum mp_status status;

    if (config->depth < 1 || config->depth > DEPTH_MAX || config->prefetch_depth > DEPTH_MAX ||
        config->threads < 1 || config->threads > THREADS_MAX || config->chunk_bytes == 0 ||
        config->chunk_bytes > CHUNK_BYTES_MAX || config->chunk_bytes % MP_CHUNK_ALIGN_BYTES != 0)
        return mp_fail(MP_ERR_INVALID, "E_READER_CONFIG",
                       "reader with depth %" PRIu32 " (%" PRIu32 " ahead), %" PRIu32
                       " threads, chunks of %" PRIu64
                       " bytes: need 1 to %d, 1 to %d, and a multiple of %d up to 1 GiB",
                       config->depth, config->prefetch_depth, config->threads, config->chunk_bytes,
                       DEPTH_MAX, THREADS_MAX, MP_CHUNK_ALIGN_BYTES);
    reader = calloc(1, sizeof(*reader));
    if (reader == NULL)
        return mp_fail_no_memory("the reader", sizeof(*reader));
    reader->config = *config;
    reader->told_fd = -1;
    if (config->prefetch_depth == 0)
        reader->config.prefetch_depth = DEPTH_MAX;
    mp_mutex_init(&reader->lock, MP_LOCK_LEAF, "reader");
    mp_cond_init(&reader->final);
    mp_cond_init(&reader->work);
    if (config->timeline != NULL) {
        for (unsigned i = 0; i < MP_READER_TRACKS; i++)
            reader->tracks[i] = mp_timeline_add_track(
                config->timeline, config->memory != NULL ? "link" : "transfers");
    }
    status = start_engine(reader);
    if (status != MP_OK) {
        mp_cond_fini(&reader->work);
        mp_cond_fini(&reader->final);
        mp_mutex_fini(&reader->lock);
        free(reader);
        return status;
    }
    mp_assert(reader->engine != NULL);
    *reader_p = reader;
    return MP_OK;
}

void mp_reader_destroy(struct mp_reader *reader)
{
    mp_assert_none_held();
    if (reader == NULL)
        return;
    mp_lock(&reader->lock);
    for (int p = 0; p < MP_PRIORITY_COUNT; p++) {
        struct mp_ticket *next;

        for (struct mp_ticket *ticket = reader->lists[p].first; ticket != NULL; ticket = next) {
            next = ticket->next;
            if (mp_ticket_state(ticket) != MP_TICKET_QUEUED)
                continue;
            mp_ticket_list_remove(&reader->lists[p], ticket);
            mp_reader_release_locked(reader, ticket, MP_TICKET_IDLE);
        }
    }
    reader->stopping = true;
    reader->engine->wake_locked(reader);
    mp_unlock(&reader->lock);

    reader->engine->stop(reader);
    mp_assert(reader->tickets == 0);
    mp_cond_fini(&reader->work);
    mp_cond_fini(&reader->final);
    mp_mutex_fini(&reader->lock);
    free(reader);
}

const char *mp_reader_engine(const struct mp_reader *reader)
{
    return reader->engine->name;
}

static void assert_extents(const struct mp_reader *reader, const struct mp_ticket *ticket)
{
    mp_assert(ticket->extent_count <= MP_TICKET_EXTENTS_MAX);
    mp_assert(ticket->priority < MP_PRIORITY_COUNT);
    for (uint32_t i = 0; i < ticket->extent_count; i++) {
        mp_assert(reader->config.memory != NULL ||
                  ticket->extents[i].file < mp_files_count(reader->config.files));
        mp_assert(ticket->extents[i].need_bytes <= ticket->extents[i].bytes);
        mp_assert(ticket->extents[i].bytes <= INT64_MAX);
        mp_assert(ticket->extents[i].offset <= INT64_MAX - ticket->extents[i].bytes);
    }
}

/* Fields of the reader that say how far a ticket has come; there is none to wake for a held one. */
static void submit(struct mp_reader *reader, struct mp_ticket *ticket, bool held)
{
    mp_assert(mp_ticket_state(ticket) != MP_TICKET_QUEUED);
    mp_assert(mp_ticket_state(ticket) != MP_TICKET_STARTED);
    assert_extents(reader, ticket);
    memset(&ticket->error, 0, sizeof(ticket->error));
    ticket->submitted_ns = mp_clock_now_ns(reader->config.clock);
    ticket->started_ns = ticket->done_ns = ticket->copy_ns = ticket->read_bytes = 0;
    ticket->next_extent = ticket->chunks_in_flight = 0;
    ticket->next_offset = 0;
    memset(ticket->extent_chunks, 0, sizeof(ticket->extent_chunks));
    atomic_store_explicit(&ticket->arrived, 0, memory_order_relaxed);
    ticket->held = held;

    mp_lock(&reader->lock);
    mp_assert(!reader->stopping);
    atomic_store_explicit(&ticket->state, MP_TICKET_QUEUED, memory_order_release);
    reader->tickets++;
    if (!held) {
        mp_ticket_list_push_back(&reader->lists[ticket->priority], ticket);
        reader->engine->wake_locked(reader);
    }
    mp_unlock(&reader->lock);
}

void mp_reader_submit(struct mp_reader *reader, struct mp_ticket *ticket)
{
    submit(reader, ticket, false);
}

void mp_reader_push(struct mp_reader *reader)
{
    mp_assert_none_held();
    if (reader->engine->push != NULL)
        reader->engine->push(reader);
}

void mp_reader_submit_held(struct mp_reader *reader, struct mp_ticket *ticket)
{
    submit(reader, ticket, true);
}

void mp_reader_let_go(struct mp_reader *reader, struct mp_ticket *ticket)
{
    mp_lock(&reader->lock);
    mp_assert(ticket->held && mp_ticket_state(ticket) == MP_TICKET_QUEUED);
    ticket->held = false;
    mp_ticket_list_push_back(&reader->lists[ticket->priority], ticket);
    reader->engine->wake_locked(reader);
    mp_unlock(&reader->lock);
}

void mp_reader_fail_held(struct mp_reader *reader, struct mp_ticket *ticket,
                         const struct mp_error *error)
{
    mp_lock(&reader->lock);
    mp_assert(ticket->held && mp_ticket_state(ticket) == MP_TICKET_QUEUED);
    ticket->held = false;
    ticket->error = *error;
    ticket->done_ns = mp_clock_now_ns(reader->config.clock);
    mp_reader_release_locked(reader, ticket, MP_TICKET_FAILED);
    mp_unlock(&reader->lock);
}

void mp_reader_promote(struct mp_reader *reader, struct mp_ticket *ticket)
{
    enum mp_ticket_state state;

    mp_lock(&reader->lock);
    state = mp_ticket_state(ticket);
    if ((state == MP_TICKET_QUEUED || state == MP_TICKET_STARTED) &&
        ticket->priority == MP_PRIORITY_PREFETCH) {
        const bool linked = ticket->linked;

        if (linked)
            mp_ticket_list_remove(&reader->lists[MP_PRIORITY_PREFETCH], ticket);
        ticket->priority = MP_PRIORITY_DEMAND;
        if (linked) {
            mp_ticket_list_push_back(&reader->lists[MP_PRIORITY_DEMAND], ticket);
            reader->engine->wake_locked(reader); /* it no longer waits for demands to end */
        }
    }
    mp_unlock(&reader->lock);
}

bool mp_reader_cancel(struct mp_reader *reader, struct mp_ticket *ticket)
{
    enum mp_ticket_state state;

    mp_lock(&reader->lock);
    state = mp_ticket_state(ticket);
    if (state == MP_TICKET_QUEUED) {
        if (!ticket->held)
            mp_ticket_list_remove(&reader->lists[ticket->priority], ticket);
        ticket->held = false;
        mp_reader_release_locked(reader, ticket, MP_TICKET_IDLE);
        state = MP_TICKET_IDLE;
    }
    mp_unlock(&reader->lock);
    return state == MP_TICKET_IDLE;
}

enum mp_ticket_state mp_ticket_state(const struct mp_ticket *ticket)
{
    return (enum mp_ticket_state)atomic_load_explicit(&ticket->state, memory_order_acquire);
}

bool mp_ticket_has(const struct mp_ticket *ticket, uint32_t extent)
{
    mp_assert(extent < ticket->extent_count);
    return mp_ticket_state(ticket) == MP_TICKET_DONE ||
           (atomic_load_explicit(&ticket->arrived, memory_order_acquire) & 1u << extent) != 0;
}

static bool has_left(const struct mp_ticket *ticket)
{
    const enum mp_ticket_state state = mp_ticket_state(ticket);

    return state != MP_TICKET_QUEUED && state != MP_TICKET_STARTED;
}

static uint32_t find_left(struct mp_ticket *const *tickets, uint32_t count)
{
    uint32_t i = 0;

    mp_assert(count > 0);
    while (i < count && !has_left(tickets[i]))
        i++;
    return i;
}

static void warn_stall(const struct mp_reader *reader, const struct mp_ticket *ticket,
                       unsigned periods)
{
    const struct mp_extent *extent = &ticket->extents[0];

    mp_assert(periods > 0);
    if (reader->config.memory != NULL) {
        mp_log_warn("reader",
                    "waiting for unit %" PRIu64 " for more than %" PRIu64
                    " s: the device does not respond, or the disk behind it is stalled",
                    ticket->tag, periods * (STALL_NS / 1000000000u));
        return;
    }
    mp_log_warn("reader",
                "waiting for unit %" PRIu64 " from '%s' at byte %" PRIu64 " for more than %" PRIu64
                " s: the disk is slow or stalled",
                ticket->tag, mp_files_name(reader->config.files, extent->file), extent->offset,
                periods * (STALL_NS / 1000000000u));
}

void mp_reader_wait(struct mp_reader *reader, struct mp_ticket *ticket)
{
    (void)mp_reader_wait_any(reader, &ticket, 1);
}

uint32_t mp_reader_wait_any(struct mp_reader *reader, struct mp_ticket *const *tickets,
                            uint32_t count)
{
    return mp_reader_wait_any_or(reader, tickets, count, NULL);
}

static void look(const struct mp_interrupt *interrupt, bool sleeps)
{
    if (interrupt != NULL && interrupt->look != NULL)
        interrupt->look(interrupt->ctx, sleeps);
}

static bool is_ready(const struct mp_interrupt *interrupt)
{
    return interrupt != NULL && interrupt->ready(interrupt->ctx);
}

/* Wait awake. False: neither has a ticket left, *i_p, nor is the interrupt ready, *i_p == count. */
static bool wait_awake(const struct mp_reader *reader, struct mp_ticket *const *tickets,
                       uint32_t count, const struct mp_interrupt *interrupt, uint32_t *i_p)
{
    struct mp_spin_wait wait = mp_spin_begin(reader->config.spin);

    while (mp_spin_again(&wait)) {
        *i_p = find_left(tickets, count);
        if (*i_p < count)
            return true;
        look(interrupt, false);
        if (is_ready(interrupt))
            return true;
    }
    return false;
}

uint32_t mp_reader_wait_any_or(struct mp_reader *reader, struct mp_ticket *const *tickets,
                               uint32_t count, const struct mp_interrupt *interrupt)
{
    unsigned periods = 0;
    uint32_t i;

    mp_assert_none_held();
    mp_assert(count > 0);
    i = find_left(tickets, count);
    if (i < count || wait_awake(reader, tickets, count, interrupt, &i))
        return i;
    look(interrupt, true);
    mp_lock(&reader->lock);
    while ((i = find_left(tickets, count)) == count && !is_ready(interrupt)) {
        if (reader->engine->pass_locked != NULL)
            reader->engine->pass_locked(reader);
        else if (!mp_cond_wait_for(&reader->final, &reader->lock, STALL_NS) &&
                 find_left(tickets, count) == count)
            warn_stall(reader, tickets[0], ++periods);
    }
    mp_unlock(&reader->lock);
    return i;
}

void mp_reader_wake(struct mp_reader *reader)
{
    mp_lock(&reader->lock);
    mp_cond_broadcast(&reader->final);
    mp_unlock(&reader->lock);
}

void mp_reader_tell(struct mp_reader *reader, int event_fd)
{
    mp_lock(&reader->lock);
    reader->told_fd = event_fd;
    mp_unlock(&reader->lock);
}

bool mp_reader_idle(const struct mp_reader *reader)
{
    struct mp_mutex *lock = &((struct mp_reader *)reader)->lock;
    bool idle;

    mp_lock(lock);
    idle = reader->tickets == 0;
    mp_unlock(lock);
    return idle;
}

void mp_reader_get_stats(const struct mp_reader *reader, struct mp_reader_stats *stats_p)
{
    stats_p->requests = atomic_load_explicit(&reader->requests, memory_order_relaxed);
    stats_p->read_bytes = atomic_load_explicit(&reader->read_bytes, memory_order_relaxed);
    stats_p->retries = atomic_load_explicit(&reader->retries, memory_order_relaxed);
    stats_p->errors = atomic_load_explicit(&reader->errors, memory_order_relaxed);
    stats_p->short_reads = atomic_load_explicit(&reader->short_reads, memory_order_relaxed);
}
