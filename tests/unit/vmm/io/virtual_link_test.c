/*
 * The virtual clock, and a space whose reader has a virtual link: times are exact, so they are
 * compared with equality.
 */
#include "tests/support/test.h"
#include "vmm/base/compiler.h"
#include "vmm/base/error.h"
#include "vmm/space/space.h"

#define UNITS 4
#define UNIT_BYTES 4096
#define COST_NS 100

struct alarm {
    struct mp_event_source source;
    struct mp_clock_virtual *clock;
    uint64_t at_ns[3];
    unsigned next, count;
    uint64_t seen_ns[3];
};

static uint64_t alarm_next(struct mp_event_source *source)
{
    const struct alarm *a = (const struct alarm *)source;

    return a->next < a->count ? a->at_ns[a->next] : UINT64_MAX;
}

static void alarm_fire(struct mp_event_source *source)
{
    struct alarm *a = (struct alarm *)source;

    a->seen_ns[a->next++] = a->clock->time_ns;
}

static void events_happen_in_order_at_their_times(void)
{
    struct mp_clock_virtual clock;
    struct alarm one = { .at_ns = { 10, 30, 60 }, .count = 3 },
                 two = { .at_ns = { 30 }, .count = 1 };

    mp_clock_virtual_init(&clock);
    CHECK(!mp_clock_virtual_next(&clock));
    one.source = two.source = (struct mp_event_source){ alarm_next, alarm_fire, NULL };
    one.clock = two.clock = &clock;
    mp_clock_virtual_add(&clock, &one.source);
    mp_clock_virtual_add(&clock, &two.source);
    mp_clock_virtual_advance(&clock, 10);
    CHECK_EQ(clock.time_ns, 10);
    CHECK_EQ(one.next, 1);
    CHECK_EQ(one.seen_ns[0], 10); /* the last moment counts */
    CHECK(mp_clock_virtual_next(&clock));
    CHECK_EQ(one.next, 2); /* due at the same time as the other's, and added first */
    CHECK_EQ(two.next, 0);
    CHECK(mp_clock_virtual_next(&clock));
    CHECK_EQ(two.seen_ns[0], 30);
    mp_clock_virtual_remove(&clock, &one.source);
    CHECK(!mp_clock_virtual_next(&clock));
    mp_clock_virtual_advance(&clock, 70);
    CHECK_EQ(mp_clock_now_ns(&clock.super), 100);
    CHECK_EQ(one.next, 2);
}

struct world {
    struct mp_clock_virtual clock;
    struct mp_virtual_link link;
    struct mp_files *files;
    struct mp_space *space;
    struct mp_counters counters;
    bool fail;
};

static uint64_t cost(void *ctx, const struct mp_ticket *ticket)
{
    const struct world *w = ctx;

    CHECK(ticket->extents[0].need_bytes == UNIT_BYTES);
    return w->fail ? MP_LINK_FAILS : COST_NS;
}

static void open_world(struct world *w)
{
    struct mp_unit units[UNITS];
    struct mp_space_config config = {
        .backend = mp_backend_sim(),
        .units = units,
        .unit_count = UNITS,
        .budget_bytes = 3 * UNIT_BYTES,
        .io_mode = MP_IO_BUFFERED,
        .reader = { .depth = 1, .threads = 1, .chunk_bytes = 4096, .link = &w->link },
        .clock = &w->clock.super,
        .counters = &w->counters,
    };
    uint32_t file;

    memset(w, 0, sizeof(*w));
    mp_clock_virtual_init(&w->clock);
    mp_counters_reset(&w->counters);
    w->link = (struct mp_virtual_link){ .clock = &w->clock, .cost_ns = cost, .ctx = w };
    for (uint32_t u = 0; u < UNITS; u++)
        units[u] =
            (struct mp_unit){ .pieces = { { 0, u * UNIT_BYTES, UNIT_BYTES } }, .piece_count = 1 };
    CHECK_EQ(mp_files_create(&w->files), MP_OK);
    CHECK_EQ(mp_files_add_virtual(w->files, "nowhere", UNITS * UNIT_BYTES, &file), MP_OK);
    config.files = w->files;
    CHECK_EQ(mp_space_create(&config, &w->space), MP_OK);
}

static void close_world(struct world *w)
{
    mp_space_destroy(w->space);
    mp_files_destroy(w->files);
}

static void transfers_take_their_time_demands_first(void)
{
    struct world w;
    char byte;

    open_world(&w);
    CHECK_STR(mp_space_reader_engine(w.space), "virtual");
    CHECK_EQ(mp_files_read(w.files, 0, 0, 1, &byte), MP_ERR_IO);
    CHECK_EQ(mp_space_load(w.space, 0, MP_PRIORITY_PREFETCH), MP_OK); /* starts at once */
    CHECK_EQ(mp_space_load(w.space, 1, MP_PRIORITY_PREFETCH), MP_OK);
    CHECK_EQ(mp_space_load(w.space, 2, MP_PRIORITY_DEMAND), MP_OK);
    CHECK_EQ(mp_space_load(w.space, 3, MP_PRIORITY_DEMAND), MP_ERR_NO_SPACE);
    CHECK_EQ(mp_space_cancel(w.space, 0), MP_ERR_BUSY);
    CHECK_EQ(mp_space_wait(w.space, 2), MP_OK);
    CHECK_EQ(w.clock.time_ns, 2 * COST_NS);
    CHECK_EQ(mp_space_poll(w.space, 0), MP_RES_VALID);
    CHECK_EQ(mp_space_poll(w.space, 1), MP_RES_FILLING);
    mp_clock_virtual_advance(&w.clock, COST_NS - 1);
    CHECK_EQ(mp_space_poll(w.space, 1), MP_RES_FILLING);
    mp_clock_virtual_advance(&w.clock, 1);
    CHECK_EQ(mp_space_poll(w.space, 1), MP_RES_VALID);
    CHECK_EQ(w.link.busy_ns, 3 * COST_NS);
    CHECK(mp_space_check(w.space));
    close_world(&w);
    CHECK_EQ(w.counters.read_bytes, 3 * UNIT_BYTES);
}

static void a_failing_transfer_frees_its_slot(void)
{
    struct world w;

    open_world(&w);
    w.fail = true;
    CHECK_EQ(mp_space_load(w.space, 0, MP_PRIORITY_DEMAND), MP_OK);
    CHECK_EQ(mp_space_wait(w.space, 0), MP_ERR_IO);
    CHECK_STR(mp_error_last()->code, "E_READ");
    CHECK_EQ(mp_space_class_free(w.space, 0), 3);
    w.fail = false;
    CHECK_EQ(mp_space_load(w.space, 0, MP_PRIORITY_DEMAND), MP_OK);
    CHECK_EQ(mp_space_wait(w.space, 0), MP_OK);
    close_world(&w);
}

static bool is_ready(void *ctx)
{
    return ((const struct alarm *)ctx)->next > 0;
}

static void a_wait_ends_with_whatever_comes_first(void)
{
    struct alarm alarm = { .at_ns = { COST_NS / 2 }, .count = 1 };
    const struct mp_interrupt interrupt = { .ready = is_ready, .ctx = &alarm };
    const uint32_t unit = 1;
    struct world w;

    open_world(&w);
    alarm.source = (struct mp_event_source){ alarm_next, alarm_fire, NULL };
    alarm.clock = &w.clock;
    mp_clock_virtual_add(&w.clock, &alarm.source);
    CHECK_EQ(mp_space_load(w.space, unit, MP_PRIORITY_DEMAND), MP_OK);
    CHECK_EQ(mp_space_wait_any(w.space, &unit, 1, &interrupt), 1);
    CHECK_EQ(w.clock.time_ns, COST_NS / 2);
    CHECK_EQ(mp_space_state(w.space, unit), MP_RES_FILLING);
    alarm.next = 0;
    alarm.count = 0;
    CHECK_EQ(mp_space_wait_any(w.space, &unit, 1, &interrupt), 0);
    CHECK_EQ(w.clock.time_ns, COST_NS);
    CHECK_EQ(mp_space_state(w.space, unit), MP_RES_VALID);
    close_world(&w);
}

int main(void)
{
    RUN(events_happen_in_order_at_their_times);
    RUN(transfers_take_their_time_demands_first);
    RUN(a_failing_transfer_frees_its_slot);
    RUN(a_wait_ends_with_whatever_comes_first);
    return 0;
}
