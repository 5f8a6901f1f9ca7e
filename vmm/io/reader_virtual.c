/*
 * Engine: a virtual link. The ticket in flight is an event of the link's clock; when it ends, the
 * next one starts at the same time. All calls come from the thread that uses the clock.
 */
#include <errno.h>
#include <stddef.h>

#include "vmm/base/assert.h"
#include "vmm/io/reader_int.h"

static struct mp_virtual_link *link_of(struct mp_event_source *source)
{
    return (struct mp_virtual_link *)((char *)source - offsetof(struct mp_virtual_link, source));
}

static uint64_t need_bytes(const struct mp_ticket *ticket)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < ticket->extent_count; i++)
        bytes += ticket->extents[i].need_bytes;
    return bytes;
}

static void start_next_locked(struct mp_reader *reader)
{
    struct mp_virtual_link *link = reader->config.link;
    struct mp_ticket *ticket = reader->lists[MP_PRIORITY_DEMAND].first;
    uint64_t cost_ns, first_ns;

    mp_assert_held(&reader->lock);
    if (link->ticket != NULL)
        return;
    if (ticket == NULL)
        ticket = reader->lists[MP_PRIORITY_PREFETCH].first;
    if (ticket == NULL)
        return;
    mp_reader_unlink_locked(reader, ticket);
    ticket->started_ns = mp_clock_now_ns(reader->config.clock);
    cost_ns = link->cost_ns(link->ctx, ticket);
    link->fails = cost_ns == MP_LINK_FAILS;
    if (link->fails)
        cost_ns = 0;
    link->ticket = ticket;
    first_ns = ticket->submitted_ns + link->latency_ns;
    link->end_ns = (first_ns > ticket->started_ns ? first_ns : ticket->started_ns) + cost_ns;
    link->busy_ns += cost_ns;
}

static uint64_t link_next_ns(struct mp_event_source *source)
{
    const struct mp_virtual_link *link = link_of(source);

    return link->ticket != NULL ? link->end_ns : UINT64_MAX;
}

static void link_fire(struct mp_event_source *source)
{
    struct mp_virtual_link *link = link_of(source);
    struct mp_reader *reader = link->reader;
    struct mp_ticket *ticket = link->ticket;

    mp_assert(ticket != NULL);
    mp_lock(&reader->lock);
    link->ticket = NULL;
    if (link->fails) {
        mp_files_fail_read(reader->config.files, ticket->extents[0].file, ticket->extents[0].offset,
                           EIO);
        ticket->error = *mp_error_last();
        mp_error_clear();
    } else {
        ticket->read_bytes = need_bytes(ticket);
        atomic_fetch_add_explicit(&reader->read_bytes, ticket->read_bytes, memory_order_relaxed);
    }
    atomic_fetch_add_explicit(&reader->requests, 1, memory_order_relaxed);
    mp_reader_finish_locked(reader, ticket);
    start_next_locked(reader);
    mp_unlock(&reader->lock);
}

static enum mp_status virtual_start(struct mp_reader *reader, void **state_p)
{
    struct mp_virtual_link *link = reader->config.link;

    mp_assert(reader->config.clock == &link->clock->super);
    link->reader = reader;
    link->ticket = NULL;
    link->source = (struct mp_event_source){ .next_ns = link_next_ns, .fire = link_fire };
    mp_clock_virtual_add(link->clock, &link->source);
    *state_p = link;
    return MP_OK;
}

static void virtual_wake_locked(struct mp_reader *reader)
{
    mp_assert(reader->config.link != NULL);
    start_next_locked(reader);
}

static void virtual_pass_locked(struct mp_reader *reader)
{
    bool moved;

    mp_unlock(&reader->lock);
    moved = mp_clock_virtual_next(reader->config.link->clock);
    mp_assert(moved);
    (void)moved;
    mp_lock(&reader->lock);
}

static void virtual_stop(struct mp_reader *reader)
{
    struct mp_virtual_link *link = reader->config.link;

    while (link->ticket != NULL)
        (void)mp_clock_virtual_next(link->clock);
    mp_assert(link->ticket == NULL);
    mp_clock_virtual_remove(link->clock, &link->source);
}

const struct mp_reader_engine mp_reader_engine_virtual = {
    .name = "virtual",
    .start = virtual_start,
    .wake_locked = virtual_wake_locked,
    .pass_locked = virtual_pass_locked,
    .stop = virtual_stop,
};
