/*
 * A reader with a memory link: tickets that are copies to and from a device, on the CUDA backend
 * over the driver without one.
 */
#include <inttypes.h>

#include "tests/device/vmm/cuda_world.h"
#include "tests/support/spins.h"

#define CHUNK 65536
#define TICKETS 6
#define BYTES (4 * CHUNK + 1000) /* of a ticket: five chunks */

struct link_world {
    struct mp_backend *backend;
    struct mp_frame device, host;
    struct mp_memory_link memory;
    struct mp_reader *reader;
    struct mp_ticket tickets[TICKETS];
    uint64_t order[64]; /* tags in the order of their ends; the link's thread writes */
    unsigned started, finished, failed;
    bool refuse_start, refuse_finish;
};

static enum mp_status start(void *ctx, const struct mp_ticket *ticket)
{
    struct link_world *w = ctx;

    CHECK_EQ(ticket->chunks_in_flight, 0);
    w->started++;
    return w->refuse_start ? mp_fail(MP_ERR_BUSY, "E_TEST", "not started") : MP_OK;
}

static enum mp_status finish(void *ctx, const struct mp_ticket *ticket)
{
    struct link_world *w = ctx;

    CHECK_EQ(ticket->chunks_in_flight, 0);
    w->order[w->finished++ % 64] = ticket->tag;
    w->failed += ticket->error.status != MP_OK;
    return w->refuse_finish ? mp_fail(MP_ERR_BUSY, "E_TEST", "not finished") : MP_OK;
}

static const struct mp_spin *spin = &spin_asleep; /* of links that are opened */

static void open_link(struct link_world *w)
{
    struct mp_reader_config config = {
        .clock = mp_clock_monotonic(),
        .depth = 3,
        .prefetch_depth = 1,
        .threads = 1,
        .chunk_bytes = CHUNK,
        .spin = spin,
        .memory = &w->memory,
    };

    memset(w, 0, sizeof(*w));
    CHECK_EQ(mp_backend_open("cuda", &test_backend_config, &w->backend), MP_OK);
    CHECK_EQ(w->backend->ops->frame_create(w->backend, MP_TIER_DEVICE, 2 * MIB, &w->device), MP_OK);
    CHECK_EQ(w->backend->ops->frame_create(w->backend, MP_TIER_HOST, 4 * MIB, &w->host), MP_OK);
    w->memory = (struct mp_memory_link){
        .backend = w->backend, .start = start, .finish = finish, .ctx = w
    };
    CHECK_EQ(mp_reader_create(&config, &w->reader), MP_OK);
    CHECK_STR(mp_reader_engine(w->reader), "link");
    for (uint64_t i = 0; i < 2 * MIB; i++)
        ((unsigned char *)w->host.alias)[i] = test_byte(1, i);
}

static void close_link(struct link_world *w)
{
    mp_reader_destroy(w->reader);
    CHECK_EQ(w->started, w->finished);
    w->backend->ops->frame_destroy(w->backend, &w->device);
    w->backend->ops->frame_destroy(w->backend, &w->host);
    mp_backend_close(w->backend);
    check_nothing_lives();
}

/* Ticket `index` copies its part of the host's first half down or, in two extents, up again to the
 * second half. */
static struct mp_ticket *prepare(struct link_world *w, uint32_t index, bool up,
                                 enum mp_priority priority)
{
    struct mp_ticket *t = &w->tickets[index];
    char *device = (char *)w->device.alias + (uint64_t)index * BYTES;
    char *host = (char *)w->host.alias + (uint64_t)index * BYTES;
    const uint64_t first = up ? CHUNK + 77 : BYTES;

    host += up ? 2 * MIB : 0;
    t->copy = up ? MP_COPY_TO_HOST : MP_COPY_TO_DEVICE;
    t->extents[0] = (struct mp_extent){ .bytes = first, .need_bytes = first };
    t->extents[1] = (struct mp_extent){ .bytes = BYTES - first, .need_bytes = BYTES - first };
    t->extents[0].dst = up ? host : device;
    t->extents[0].src = up ? device : host;
    t->extents[1].dst = (char *)t->extents[0].dst + first;
    t->extents[1].src = (const char *)t->extents[0].src + first;
    t->extent_count = 2;
    t->priority = priority;
    t->tag = index;
    return t;
}

static bool came_back(const struct link_world *w, uint32_t index)
{
    const unsigned char *up = (const unsigned char *)w->host.alias + 2 * MIB;
    bool right = true;

    for (uint64_t i = (uint64_t)index * BYTES; i < (uint64_t)(index + 1) * BYTES; i++)
        right &= up[i] == test_byte(1, i);
    return right;
}

static enum mp_ticket_state run(struct link_world *w, uint32_t index, bool up)
{
    struct mp_ticket *t = prepare(w, index, up, MP_PRIORITY_DEMAND);

    mp_reader_submit(w->reader, t);
    mp_reader_wait(w->reader, t);
    return mp_ticket_state(t);
}

static void bytes_go_there_and_back(void)
{
    struct mp_reader_stats stats;
    struct link_world w;

    open_link(&w);
    for (uint32_t i = 0; i < TICKETS; i++)
        mp_reader_submit(w.reader, prepare(&w, i, false, MP_PRIORITY_DEMAND));
    for (uint32_t i = 0; i < TICKETS; i++) {
        mp_reader_wait(w.reader, &w.tickets[i]);
        CHECK_EQ(mp_ticket_state(&w.tickets[i]), MP_TICKET_DONE);
        CHECK_EQ(w.tickets[i].read_bytes, BYTES);
        CHECK_EQ(w.order[i], i);
    }
    for (uint32_t i = 0; i < TICKETS; i++) {
        CHECK_EQ(run(&w, i, true), MP_TICKET_DONE);
        CHECK(came_back(&w, i));
    }
    mp_reader_get_stats(w.reader, &stats);
    CHECK_EQ(stats.read_bytes, 2 * TICKETS * BYTES);
    CHECK_EQ(stats.requests, TICKETS * 5 + TICKETS * 6);
    CHECK(mp_reader_idle(w.reader));
    close_link(&w);
}

/* What empties a slot is done before what fills it, if it was submitted before. */
static void a_slot_is_emptied_before_it_is_filled(void)
{
    struct link_world w;

    open_link(&w);
    fake_api.timing(3, 0);
    CHECK_EQ(run(&w, 0, false), MP_TICKET_DONE);
    for (unsigned round = 0; round < 20; round++) {
        struct mp_ticket *up = prepare(&w, 0, true, MP_PRIORITY_DEMAND);
        struct mp_ticket *down = prepare(&w, 1, false, MP_PRIORITY_DEMAND);

        memset((char *)w.host.alias + 2 * MIB, 0, BYTES);
        down->extents[0].dst = w.device.alias; /* where ticket 0 is read from */
        down->extents[1].dst = (char *)w.device.alias + BYTES;
        mp_reader_submit(w.reader, up);
        mp_reader_submit(w.reader, down);
        mp_reader_wait(w.reader, down);
        CHECK_EQ(mp_ticket_state(up), MP_TICKET_DONE);
        CHECK(came_back(&w, 0));
        CHECK_EQ(run(&w, 0, false), MP_TICKET_DONE);
    }
    fake_api.timing(0, 0);
    close_link(&w);
}

static void demand_goes_before_prefetch(void)
{
    struct link_world w;

    open_link(&w);
    fake_api.stall(true);
    mp_reader_submit(w.reader, prepare(&w, 0, false, MP_PRIORITY_DEMAND));
    while (mp_ticket_state(&w.tickets[0]) != MP_TICKET_STARTED)
        ;
    mp_reader_submit(w.reader, prepare(&w, 1, false, MP_PRIORITY_PREFETCH));
    mp_reader_submit(w.reader, prepare(&w, 2, false, MP_PRIORITY_PREFETCH));
    mp_reader_submit(w.reader, prepare(&w, 3, false, MP_PRIORITY_DEMAND));
    mp_reader_submit(w.reader, prepare(&w, 4, false, MP_PRIORITY_PREFETCH));
    mp_reader_promote(w.reader, &w.tickets[2]);
    CHECK(mp_reader_cancel(w.reader, &w.tickets[4]));
    CHECK(!mp_reader_cancel(w.reader, &w.tickets[0]));
    CHECK(!mp_reader_idle(w.reader));
    fake_api.stall(false);
    mp_reader_wait(w.reader, &w.tickets[1]);
    CHECK_EQ(w.finished, 4);
    CHECK_EQ(w.order[0], 0);
    CHECK_EQ(w.order[1], 3);
    CHECK_EQ(w.order[2], 2);
    CHECK_EQ(w.order[3], 1);
    close_link(&w);
}

static void held_tickets_wait_to_be_let_go(void)
{
    const struct mp_error error = { .status = MP_ERR_IO, .code = "E_TEST", .text = "no bytes" };
    struct mp_ticket *two[2];
    struct link_world w;

    open_link(&w);
    for (uint32_t i = 0; i < 4; i++)
        mp_reader_submit_held(w.reader, prepare(&w, i, false, MP_PRIORITY_PREFETCH));
    CHECK_EQ(run(&w, 5, false), MP_TICKET_DONE); /* they stand in nobody's way */
    CHECK(!mp_reader_idle(w.reader));
    CHECK_EQ(mp_ticket_state(&w.tickets[0]), MP_TICKET_QUEUED);
    CHECK(mp_reader_cancel(w.reader, &w.tickets[0]));
    CHECK_EQ(mp_ticket_state(&w.tickets[0]), MP_TICKET_IDLE);
    mp_reader_promote(w.reader, &w.tickets[1]);
    CHECK_EQ(w.tickets[1].priority, MP_PRIORITY_DEMAND);
    mp_reader_fail_held(w.reader, &w.tickets[2], &error);
    mp_reader_wait(w.reader, &w.tickets[2]);
    CHECK_EQ(mp_ticket_state(&w.tickets[2]), MP_TICKET_FAILED);
    CHECK_STR(w.tickets[2].error.text, "no bytes");
    mp_reader_let_go(w.reader, &w.tickets[1]);
    two[0] = &w.tickets[3];
    two[1] = &w.tickets[1];
    CHECK_EQ(mp_reader_wait_any(w.reader, two, 2), 1);
    mp_reader_let_go(w.reader, &w.tickets[3]);
    mp_reader_wait(w.reader, &w.tickets[3]);
    CHECK_EQ(mp_ticket_state(&w.tickets[3]), MP_TICKET_DONE);
    CHECK_EQ(w.started, 3);
    close_link(&w);
}

static void hooks_can_refuse(void)
{
    struct link_world w;

    open_link(&w);
    w.refuse_start = true;
    CHECK_EQ(run(&w, 0, false), MP_TICKET_FAILED);
    CHECK_STR(w.tickets[0].error.text, "not started");
    w.refuse_start = false;
    w.refuse_finish = true;
    CHECK_EQ(run(&w, 0, false), MP_TICKET_FAILED);
    CHECK_STR(w.tickets[0].error.text, "not finished");
    w.refuse_finish = false;
    CHECK_EQ(run(&w, 0, false), MP_TICKET_DONE);
    CHECK_EQ(run(&w, 0, true), MP_TICKET_DONE);
    CHECK(came_back(&w, 0));
    close_link(&w);
}

/* Each call of the stream fails, at once or later: the ticket fails, whatever shares the stream
 * with it fails or is whole, and afterwards all is as before. */
static void calls_that_fail_fail_their_tickets(void)
{
    const char *const calls[] = { "cuMemcpyHtoDAsync_v2", "cuEventRecord",
                                  spin == &spin_awake ? "cuEventQuery" : "cuEventSynchronize",
                                  "later:cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2" };
    struct link_world w;

    for (size_t i = 0; i < MP_ARRAY_LEN(calls); i++) {
        for (uint64_t nth = 0; nth < 7; nth += 3) {
            const bool up = strstr(calls[i], "DtoH") != NULL;
            unsigned failed = 0;

            open_link(&w);
            for (uint32_t k = 0; up && k < 3; k++)
                CHECK_EQ(run(&w, k, false), MP_TICKET_DONE);
            fake_api.fail(calls[i], nth, 1, false);
            for (uint32_t k = 0; k < 3; k++)
                mp_reader_submit(w.reader, prepare(&w, k, up, MP_PRIORITY_DEMAND));
            for (uint32_t k = 0; k < 3; k++) {
                mp_reader_wait(w.reader, &w.tickets[k]);
                failed += mp_ticket_state(&w.tickets[k]) == MP_TICKET_FAILED;
            }
            CHECK(failed >= 1 && failed == w.failed);
            fake_api.reset();
            for (uint32_t k = 0; k < 3; k++) {
                CHECK_EQ(run(&w, k, false), MP_TICKET_DONE);
                CHECK_EQ(run(&w, k, true), MP_TICKET_DONE);
                CHECK(came_back(&w, k));
            }
            close_link(&w);
        }
    }
}

/* A ticket of one chunk, down. */
static struct mp_ticket *prepare_chunk(struct link_world *w, uint32_t index)
{
    struct mp_ticket *t = prepare(w, index, false, MP_PRIORITY_DEMAND);

    t->extents[0].bytes = t->extents[0].need_bytes = CHUNK;
    t->extent_count = 1;
    return t;
}

static void wait_for_calls(const char *name, uint64_t count)
{
    while (fake_api.calls(name) < count)
        usleep(1000);
}

/* Awake a copy costs no wait in the driver, asleep each chunk costs one. When nothing is in flight,
 * nobody asks. */
static void copies_are_waited_for_awake(void)
{
    const uint64_t chunks = (BYTES + CHUNK - 1) / CHUNK;
    struct link_world w;
    uint64_t asked;

    for (int is_awake = 0; is_awake < 2; is_awake++) {
        spin = is_awake ? &spin_awake : &spin_asleep;
        open_link(&w);
        fake_api.reset();
        CHECK_EQ(run(&w, 0, false), MP_TICKET_DONE);
        CHECK_EQ(fake_api.calls("cuEventSynchronize"), is_awake ? 0 : chunks);
        asked = fake_api.calls("cuEventQuery");
        CHECK(is_awake ? asked >= chunks : asked == 0);
        usleep(5000);
        CHECK_EQ(fake_api.calls("cuEventQuery"), asked);
        CHECK_EQ(run(&w, 0, true), MP_TICKET_DONE);
        CHECK(came_back(&w, 0));
        close_link(&w);
    }
    spin = &spin_asleep;
}

/* A chunk that does not end in time is slept for. The next one is, too, at once; it turns out to be
 * quick, so the ones behind it are waited for awake again. */
static void a_slow_link_is_waited_for_asleep(void)
{
    static const struct mp_spin short_while = { .ns = 50000000 }; /* four times that */
    struct link_world w;
    uint64_t asked;

    spin = &short_while;
    open_link(&w);
    fake_api.reset();
    fake_api.stall(true);
    mp_reader_submit(w.reader, prepare_chunk(&w, 0));
    wait_for_calls("cuEventSynchronize", 1);
    asked = fake_api.calls("cuEventQuery");
    CHECK(asked > 1);
    fake_api.stall(false);
    mp_reader_wait(w.reader, &w.tickets[0]);
    mp_reader_submit(w.reader, prepare_chunk(&w, 1));
    mp_reader_wait(w.reader, &w.tickets[1]);
    CHECK_EQ(fake_api.calls("cuEventSynchronize"), 2);
    CHECK_EQ(fake_api.calls("cuEventQuery"), asked);
    mp_reader_submit(w.reader, prepare_chunk(&w, 2));
    mp_reader_wait(w.reader, &w.tickets[2]);
    CHECK_EQ(fake_api.calls("cuEventSynchronize"), 2);
    CHECK(fake_api.calls("cuEventQuery") > asked);
    close_link(&w);
    spin = &spin_asleep;
}

/* What comes while a copy is in flight is queued behind it at once. */
static void a_ticket_is_taken_while_another_is_copied(void)
{
    struct link_world w;

    spin = &spin_awake;
    open_link(&w);
    fake_api.reset();
    fake_api.stall(true);
    mp_reader_submit(w.reader, prepare_chunk(&w, 0));
    wait_for_calls("cuEventQuery", 2);
    mp_reader_submit(w.reader, prepare(&w, 1, false, MP_PRIORITY_DEMAND));
    wait_for_calls("cuMemcpyHtoDAsync_v2", 3); /* as many as may be in flight */
    CHECK_EQ(mp_ticket_state(&w.tickets[0]), MP_TICKET_STARTED);
    fake_api.stall(false);
    mp_reader_wait(w.reader, &w.tickets[1]);
    CHECK_EQ(mp_ticket_state(&w.tickets[0]), MP_TICKET_DONE);
    CHECK_EQ(mp_ticket_state(&w.tickets[1]), MP_TICKET_DONE);
    close_link(&w);
    spin = &spin_asleep;
}

/* Each chunk takes what the device's clock says between the events around it, whatever is in flight
 * before it, and however long the host waited. */
static void copies_are_timed_by_the_device(void)
{
    const uint64_t chunks = (BYTES + CHUNK - 1) / CHUNK;
    struct link_world w;

    open_link(&w);
    fake_api.elapsed(3);
    for (uint32_t k = 0; k < 2; k++)
        mp_reader_submit(w.reader, prepare(&w, k, false, MP_PRIORITY_DEMAND));
    for (uint32_t k = 0; k < 2; k++) {
        mp_reader_wait(w.reader, &w.tickets[k]);
        CHECK_EQ(w.tickets[k].copy_ns, 3000000 * chunks);
    }
    fake_api.elapsed(0);
    for (uint32_t k = 0; k < 3; k++) {
        CHECK_EQ(run(&w, k, true), MP_TICKET_DONE);
        CHECK(w.tickets[k].copy_ns > 0);
        CHECK(w.tickets[k].copy_ns <= w.tickets[k].done_ns - w.tickets[k].started_ns);
    }
    fake_api.fail("cuEventElapsedTime", 0, 1, true);
    CHECK_EQ(run(&w, 0, false), MP_TICKET_DONE);
    CHECK_EQ(w.tickets[0].copy_ns, 0);
    fake_api.reset();
    close_link(&w);
}

struct looker {
    struct link_world *w;
    unsigned looks;
    bool slept, is_ready;
};

static bool looker_ready(void *ctx)
{
    return ((struct looker *)ctx)->is_ready;
}

static void looker_look(void *ctx, bool sleeps)
{
    struct looker *looker = ctx;

    CHECK(!looker->slept);
    looker->slept = sleeps;
    looker->looks++;
    if (looker->looks == 5)
        looker->is_ready = true;
}

/* Who waits awake is asked to look, and told before he sleeps. */
static void a_wait_looks_at_its_interrupt(void)
{
    struct link_world w;
    struct mp_ticket *ticket;

    for (int is_awake = 0; is_awake < 2; is_awake++) {
        struct looker looker = { .w = &w, .is_ready = !is_awake };
        const struct mp_interrupt interrupt = { .ready = looker_ready,
                                                .look = looker_look,
                                                .ctx = &looker };

        spin = is_awake ? &spin_awake : &spin_asleep;
        open_link(&w);
        fake_api.stall(true);
        ticket = prepare(&w, 0, false, MP_PRIORITY_DEMAND);
        mp_reader_submit(w.reader, ticket);
        CHECK_EQ(mp_reader_wait_any_or(w.reader, &ticket, 1, &interrupt), 1);
        CHECK_EQ(looker.looks, is_awake ? 5 : 1);
        CHECK_EQ(looker.slept, !is_awake);
        fake_api.stall(false);
        CHECK_EQ(mp_reader_wait_any_or(w.reader, &ticket, 1, NULL), 0);
        close_link(&w);
    }
    spin = &spin_asleep;
}

static void calls_that_fail_fail_their_tickets_awake(void)
{
    spin = &spin_awake;
    calls_that_fail_fail_their_tickets();
    spin = &spin_asleep;
}

int main(void)
{
    setenv("FAKECUDA_GRANULE", "65536", 1);
    find_fake();
    RUN(bytes_go_there_and_back);
    RUN(a_slot_is_emptied_before_it_is_filled);
    RUN(demand_goes_before_prefetch);
    RUN(held_tickets_wait_to_be_let_go);
    RUN(hooks_can_refuse);
    RUN(calls_that_fail_fail_their_tickets);
    RUN(calls_that_fail_fail_their_tickets_awake);
    RUN(copies_are_waited_for_awake);
    RUN(a_slow_link_is_waited_for_asleep);
    RUN(a_ticket_is_taken_while_another_is_copied);
    RUN(copies_are_timed_by_the_device);
    RUN(a_wait_looks_at_its_interrupt);
    return 0;
}
