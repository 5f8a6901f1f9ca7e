/*
 * In which order reads go: demands first, promoted and cancelled prefetches. Every test runs with
 * both engines, behind a clock that lets one read pass at a time.
 */
#include "tests/unit/vmm/io/reader_either.h"
#include "vmm/io/reader_int.h"

#include <pthread.h>
#include <unistd.h>

#include "tests/support/test.h"
#include "tests/unit/vmm/io/reader_files.h"

/*
 * A clock that counts calls, so that all times differ, and that stops whoever is not the test's own
 * thread until the gate is open. The reader asks for the time when it starts a ticket: with the
 * gate closed, the first ticket is STARTED, all later ones are QUEUED, and nothing moves.
 */
struct gate_clock {
    struct mp_clock super;
    pthread_t owner;
    pthread_mutex_t lock;
    pthread_cond_t opened;
    bool open;
    unsigned passes;  /* calls that go through the closed gate */
    unsigned waiting; /* threads */
    uint64_t time_ns;
};

static uint64_t gate_now_ns(struct mp_clock *clock)
{
    struct gate_clock *gate = (struct gate_clock *)clock;
    uint64_t time_ns;

    pthread_mutex_lock(&gate->lock);
    gate->waiting++;
    while (!gate->open && gate->passes == 0 && !pthread_equal(pthread_self(), gate->owner))
        pthread_cond_wait(&gate->opened, &gate->lock);
    gate->waiting--;
    if (!gate->open && !pthread_equal(pthread_self(), gate->owner))
        gate->passes--;
    time_ns = ++gate->time_ns;
    pthread_mutex_unlock(&gate->lock);
    return time_ns;
}

static void gate_set(struct gate_clock *gate, bool open)
{
    pthread_mutex_lock(&gate->lock);
    gate->open = open;
    pthread_cond_broadcast(&gate->opened);
    pthread_mutex_unlock(&gate->lock);
}

static void gate_let_one_pass(struct gate_clock *gate)
{
    pthread_mutex_lock(&gate->lock);
    gate->passes++;
    pthread_cond_broadcast(&gate->opened);
    pthread_mutex_unlock(&gate->lock);
}

/* Until all passes are used, and somebody waits for the next. */
static void gate_wait(struct gate_clock *gate)
{
    bool done = false;

    while (!done) {
        pthread_mutex_lock(&gate->lock);
        done = gate->passes == 0 && gate->waiting > 0;
        pthread_mutex_unlock(&gate->lock);
        usleep(100);
    }
}

#define GATED 6

/* A reader for one chunk at a time, and tickets over four chunks each; the first is a plug. */
struct gated {
    struct gate_clock gate;
    struct mp_files *files;
    struct mp_reader *reader;
    struct mp_ticket tickets[GATED];
    unsigned char memory[GATED][4 * 4096];
};

static bool by_extent;

static void gated_init_with(struct gated *g, enum mp_priority plug, uint32_t threads)
{
    struct mp_reader_config config = { .clock = &g->gate.super,
                                       .uring = with_uring,
                                       .depth = 1,
                                       .threads = threads,
                                       .by_extent = by_extent,
                                       .chunk_bytes = 4096 };

    memset(g, 0, sizeof(*g));
    memset(g->memory, 0x77, sizeof(g->memory));
    g->gate.super.now_ns = gate_now_ns;
    g->gate.owner = pthread_self();
    pthread_mutex_init(&g->gate.lock, NULL);
    pthread_cond_init(&g->gate.opened, NULL);
    g->files = test_files_open();
    config.files = g->files;
    CHECK_EQ(mp_reader_create(&config, &g->reader), MP_OK);
    for (uint32_t i = 0; i < GATED; i++)
        one_extent(&g->tickets[i], 2, 4096 * i, sizeof(g->memory[i]), g->memory[i]);
    g->tickets[0].priority = plug;
    mp_reader_submit(g->reader, &g->tickets[0]);
    while (mp_ticket_state(&g->tickets[0]) != MP_TICKET_STARTED)
        usleep(1000);
}

static void gated_init(struct gated *g, enum mp_priority plug)
{
    gated_init_with(g, plug, 1);
}

static void gated_finish(struct gated *g)
{
    gate_set(&g->gate, true);
    for (int i = 0; i < GATED; i++) {
        mp_reader_wait(g->reader, &g->tickets[i]);
        if (mp_ticket_state(&g->tickets[i]) == MP_TICKET_DONE)
            test_check_ticket(&g->tickets[i]);
    }
}

static void gated_fini(struct gated *g)
{
    mp_reader_destroy(g->reader);
    mp_files_destroy(g->files);
    pthread_cond_destroy(&g->gate.opened);
    pthread_mutex_destroy(&g->gate.lock);
}

static void submit_as(struct gated *g, int i, enum mp_priority priority)
{
    g->tickets[i].priority = priority;
    mp_reader_submit(g->reader, &g->tickets[i]);
}

static void demand_goes_first_and_then_the_order_of_submission(void)
{
    static struct gated g;

    gated_init(&g, MP_PRIORITY_DEMAND);
    submit_as(&g, 1, MP_PRIORITY_PREFETCH);
    submit_as(&g, 2, MP_PRIORITY_DEMAND);
    submit_as(&g, 3, MP_PRIORITY_PREFETCH);
    submit_as(&g, 4, MP_PRIORITY_DEMAND);
    submit_as(&g, 5, MP_PRIORITY_DEMAND);
    gated_finish(&g);
    CHECK(g.tickets[0].done_ns < g.tickets[2].started_ns);
    CHECK(g.tickets[2].done_ns < g.tickets[4].started_ns);
    CHECK(g.tickets[4].done_ns < g.tickets[5].started_ns);
    CHECK(g.tickets[5].done_ns < g.tickets[1].started_ns);
    CHECK(g.tickets[1].done_ns < g.tickets[3].started_ns);
    gated_fini(&g);
}

/* The plug has started, as a prefetch: its chunks give way to those of a demand all the same. */
static void demand_overtakes_the_rest_of_a_started_prefetch(void)
{
    static struct gated g;

    gated_init(&g, MP_PRIORITY_DEMAND);
    gate_set(&g.gate, true);
    mp_reader_wait(g.reader, &g.tickets[0]);
    gate_set(&g.gate, false);
    submit_as(&g, 0, MP_PRIORITY_PREFETCH);
    while (mp_ticket_state(&g.tickets[0]) != MP_TICKET_STARTED)
        usleep(1000);
    for (int i = 1; i < GATED; i++)
        submit_as(&g, i, i < 3 ? MP_PRIORITY_DEMAND : MP_PRIORITY_PREFETCH);
    gated_finish(&g);
    CHECK(g.tickets[0].started_ns < g.tickets[1].started_ns);
    CHECK(g.tickets[1].done_ns < g.tickets[2].started_ns);
    CHECK(g.tickets[2].done_ns < g.tickets[0].done_ns);
    CHECK(g.tickets[0].done_ns < g.tickets[3].started_ns);
    gated_fini(&g);
}

static void promoted_prefetch_goes_after_the_demands_before_it(void)
{
    static struct gated g;

    gated_init(&g, MP_PRIORITY_DEMAND);
    submit_as(&g, 1, MP_PRIORITY_PREFETCH);
    submit_as(&g, 2, MP_PRIORITY_PREFETCH);
    submit_as(&g, 3, MP_PRIORITY_DEMAND);
    mp_reader_promote(g.reader, &g.tickets[2]);
    submit_as(&g, 4, MP_PRIORITY_DEMAND);
    submit_as(&g, 5, MP_PRIORITY_PREFETCH);
    mp_reader_promote(g.reader, &g.tickets[3]); /* is a demand: keeps its place */
    mp_reader_promote(g.reader, &g.tickets[0]); /* has started */
    gated_finish(&g);
    mp_reader_promote(g.reader, &g.tickets[1]); /* is final */
    CHECK_EQ(g.tickets[2].priority, MP_PRIORITY_DEMAND);
    CHECK_EQ(g.tickets[1].priority, MP_PRIORITY_PREFETCH);
    CHECK(g.tickets[3].done_ns < g.tickets[2].started_ns);
    CHECK(g.tickets[2].done_ns < g.tickets[4].started_ns);
    CHECK(g.tickets[4].done_ns < g.tickets[1].started_ns);
    CHECK(g.tickets[1].done_ns < g.tickets[5].started_ns);
    gated_fini(&g);
}

/* A thread that has nothing to do, because nothing is read ahead beside a demand, is notified.
 * (With io_uring there is one thread, and the gate holds it.) */
static void promoted_prefetch_is_taken_at_once(void)
{
    static struct gated g;

    if (with_uring)
        return;
    gated_init_with(&g, MP_PRIORITY_DEMAND, 2);
    submit_as(&g, 1, MP_PRIORITY_PREFETCH);
    usleep(100000); /* the second thread has looked at it and sleeps */
    CHECK_EQ(mp_ticket_state(&g.tickets[1]), MP_TICKET_QUEUED);
    mp_reader_promote(g.reader, &g.tickets[1]);
    for (int i = 0; i < 10000 && mp_ticket_state(&g.tickets[1]) == MP_TICKET_QUEUED; i++)
        usleep(1000);
    CHECK_EQ(mp_ticket_state(&g.tickets[1]), MP_TICKET_STARTED);
    gated_finish(&g);
    gated_fini(&g);
}

/* Whatever the timing: a prefetch starts when no demand is in flight, and with one of their chunks
 * in flight at a time the second when the first has ended. */
static void prefetches_wait_for_demands_and_for_each_other(void)
{
    static unsigned char memory[3][16 * 4096];
    struct mp_files *files = test_files_open();
    const struct mp_reader_config config = {
        .files = files,
        .clock = mp_clock_monotonic(),
        .uring = with_uring,
        .depth = 8,
        .prefetch_depth = 1,
        .threads = 4,
        .chunk_bytes = 4096,
    };
    struct mp_reader *reader = NULL;
    struct mp_ticket tickets[3];

    CHECK_EQ(mp_reader_create(&config, &reader), MP_OK);
    for (int round = 0; round < 20; round++) {
        for (uint32_t i = 0; i < 3; i++) {
            one_extent(&tickets[i], 2, 4096 * i, sizeof(memory[i]), memory[i]);
            tickets[i].priority = i == 0 ? MP_PRIORITY_DEMAND : MP_PRIORITY_PREFETCH;
            mp_reader_submit(reader, &tickets[i]);
        }
        for (uint32_t i = 0; i < 3; i++) {
            mp_reader_wait(reader, &tickets[i]);
            CHECK_EQ(mp_ticket_state(&tickets[i]), MP_TICKET_DONE);
            test_check_ticket(&tickets[i]);
        }
        CHECK(tickets[0].done_ns <= tickets[1].started_ns);
        CHECK(tickets[1].done_ns <= tickets[2].started_ns);
    }
    mp_reader_destroy(reader);
    mp_files_destroy(files);
}

static void cancelled_ticket_is_idle_and_untouched(void)
{
    static struct gated g;

    gated_init(&g, MP_PRIORITY_DEMAND);
    for (int i = 1; i < GATED; i++)
        submit_as(&g, i, i % 2 == 0 ? MP_PRIORITY_DEMAND : MP_PRIORITY_PREFETCH);
    CHECK(!mp_reader_idle(g.reader));
    CHECK(!mp_reader_cancel(g.reader, &g.tickets[0]));
    for (int i = 1; i < GATED - 1; i++) {
        CHECK_EQ(mp_ticket_state(&g.tickets[i]), MP_TICKET_QUEUED);
        CHECK(mp_reader_cancel(g.reader, &g.tickets[i]));
        CHECK_EQ(mp_ticket_state(&g.tickets[i]), MP_TICKET_IDLE);
    }
    gated_finish(&g);
    CHECK(!mp_reader_cancel(g.reader, &g.tickets[0]));
    CHECK(mp_reader_idle(g.reader));
    for (int i = 1; i < GATED; i++) {
        CHECK_EQ(mp_ticket_state(&g.tickets[i]), i < GATED - 1 ? MP_TICKET_IDLE : MP_TICKET_DONE);
        CHECK_EQ(g.memory[i][0], i < GATED - 1 ? 0x77 : test_byte(2, 4096u * (unsigned)i));
    }
    /* A cancelled ticket can be submitted again. */
    submit_as(&g, 1, MP_PRIORITY_DEMAND);
    mp_reader_wait(g.reader, &g.tickets[1]);
    CHECK_EQ(mp_ticket_state(&g.tickets[1]), MP_TICKET_DONE);
    test_check_ticket(&g.tickets[1]);
    gated_fini(&g);
}

/* Opens the gate once destroy has taken the last ticket back. */
static void *open_when_idle(void *arg)
{
    struct gated *g = arg;

    while (mp_ticket_state(&g->tickets[GATED - 1]) != MP_TICKET_IDLE)
        usleep(1000);
    gate_set(&g->gate, true);
    return NULL;
}

static void destroy_cancels_what_is_queued_and_finishes_what_started(void)
{
    static struct gated g;
    pthread_t opener;

    gated_init(&g, MP_PRIORITY_PREFETCH);
    for (int i = 1; i < GATED; i++)
        submit_as(&g, i, i == 1 ? MP_PRIORITY_DEMAND : MP_PRIORITY_PREFETCH);
    mp_reader_promote(g.reader, &g.tickets[2]);
    /* The plug has chunks left to hand out when the demand starts and is held. */
    gate_let_one_pass(&g.gate);
    while (mp_ticket_state(&g.tickets[1]) != MP_TICKET_STARTED)
        usleep(1000);
    CHECK_EQ(pthread_create(&opener, NULL, open_when_idle, &g), 0);
    mp_reader_destroy(g.reader);
    pthread_join(opener, NULL);
    g.reader = NULL;
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(mp_ticket_state(&g.tickets[i]), MP_TICKET_DONE);
        test_check_ticket(&g.tickets[i]);
    }
    for (int i = 2; i < GATED; i++)
        CHECK_EQ(mp_ticket_state(&g.tickets[i]), MP_TICKET_IDLE);
    gated_fini(&g);
}

/* In two extents of two chunks each. */
static void cut_in_two(struct mp_ticket *ticket)
{
    ticket->extents[0].bytes = ticket->extents[0].need_bytes = 2 * 4096;
    ticket->extents[1] = ticket->extents[0];
    ticket->extents[1].offset += 2 * 4096;
    ticket->extents[1].dst = (char *)ticket->extents[0].dst + 2 * 4096;
    ticket->extent_count = 2;
}

static bool is_first_there(void *ctx)
{
    return mp_ticket_has(ctx, 0);
}

/* With by_extent the first extent of a ticket is there, and known to be, while the second one waits
 * for the first one of the next ticket. Whose last one is there is final. */
static void first_extents_come_first(void)
{
    static struct gated g;

    by_extent = true;
    gated_init(&g, MP_PRIORITY_DEMAND);
    by_extent = false;
    for (int i = 1; i <= 3; i++) {
        struct mp_ticket *const ticket = &g.tickets[i];

        cut_in_two(ticket);
        submit_as(&g, i, i == 3 ? MP_PRIORITY_PREFETCH : MP_PRIORITY_DEMAND);
        CHECK(!mp_ticket_has(ticket, 0) && !mp_ticket_has(ticket, 1));
    }
    /* The start and the end of the plug, and the start of the first one. */
    for (int pass = 0; pass < 3; pass++)
        gate_let_one_pass(&g.gate);
    {
        struct mp_ticket *const first = &g.tickets[1];
        const struct mp_interrupt interrupt = { .ready = is_first_there, .ctx = first };

        CHECK_EQ(
            mp_reader_wait_any_or(g.reader, (struct mp_ticket *const[]){ first }, 1, &interrupt),
            1);
        CHECK(mp_ticket_has(first, 0) && !mp_ticket_has(first, 1));
        CHECK_EQ(mp_ticket_state(first), MP_TICKET_STARTED);
        /* The start of the second one. Then the last chunk of the first one has come, which is
         * about to end. */
        gate_wait(&g.gate);
        gate_let_one_pass(&g.gate);
        gate_wait(&g.gate);
        CHECK(mp_ticket_has(first, 0) && !mp_ticket_has(first, 1));
        CHECK_EQ(mp_ticket_state(first), MP_TICKET_STARTED);
    }
    gated_finish(&g);
    CHECK(g.tickets[2].started_ns < g.tickets[1].done_ns);
    CHECK(g.tickets[1].done_ns < g.tickets[2].done_ns);
    CHECK(g.tickets[2].done_ns < g.tickets[3].started_ns);
    for (int i = 1; i <= 3; i++)
        CHECK(mp_ticket_has(&g.tickets[i], 0) && mp_ticket_has(&g.tickets[i], 1));
    /* Submitted again, nothing of it has come. */
    mp_reader_submit_held(g.reader, &g.tickets[1]);
    CHECK(!mp_ticket_has(&g.tickets[1], 0));
    CHECK(mp_reader_cancel(g.reader, &g.tickets[1]));
    gated_fini(&g);
}

/* A disk that works off its queue before it says that anything has come gets little at once. */
static void little_is_in_flight_by_extent(void)
{
    static struct gated g;

    for (int by = 0; by < 2; by++) {
        by_extent = by == 1;
        gated_init(&g, MP_PRIORITY_DEMAND);
        submit_as(&g, 1, MP_PRIORITY_DEMAND);
        mp_lock(&g.reader->lock);
        CHECK_EQ(g.reader->flight_bytes, 0);
        g.reader->flight_bytes = (2 << 20) - 1;
        CHECK(mp_reader_first_locked(g.reader) == &g.tickets[1]);
        g.reader->flight_bytes++;
        CHECK(mp_reader_first_locked(g.reader) == (by_extent ? NULL : &g.tickets[1]));
        g.reader->flight_bytes = 0;
        mp_unlock(&g.reader->lock);
        for (int i = 2; i < GATED; i++)
            submit_as(&g, i, MP_PRIORITY_DEMAND);
        gated_finish(&g);
        mp_lock(&g.reader->lock);
        CHECK_EQ(g.reader->flight_bytes, 0);
        mp_unlock(&g.reader->lock);
        gated_fini(&g);
    }
    by_extent = false;
}

static void wait_any_returns_a_final_ticket(void)
{
    struct mp_files *files = test_files_open();
    struct mp_reader *reader = reader_new(files, 4, 4096);
    struct mp_ticket tickets[8], *left[8];
    static unsigned char memory[8][65536];
    uint32_t count = 8;

    for (uint32_t i = 0; i < 8; i++) {
        one_extent(&tickets[i], 2, i, 65536, memory[i]);
        left[i] = &tickets[i];
        mp_reader_submit(reader, &tickets[i]);
    }
    while (count > 0) {
        uint32_t i = mp_reader_wait_any(reader, left, count);

        CHECK(i < count);
        CHECK_EQ(mp_ticket_state(left[i]), MP_TICKET_DONE);
        test_check_ticket(left[i]);
        left[i] = left[--count];
    }
    mp_reader_destroy(reader);
    mp_files_destroy(files);
}

static void run_all(void)
{
    RUN(demand_goes_first_and_then_the_order_of_submission);
    RUN(demand_overtakes_the_rest_of_a_started_prefetch);
    RUN(promoted_prefetch_goes_after_the_demands_before_it);
    RUN(promoted_prefetch_is_taken_at_once);
    RUN(prefetches_wait_for_demands_and_for_each_other);
    RUN(cancelled_ticket_is_idle_and_untouched);
    RUN(first_extents_come_first);
    RUN(little_is_in_flight_by_extent);
    RUN(wait_any_returns_a_final_ticket);
    RUN(destroy_cancels_what_is_queued_and_finishes_what_started);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    with_uring = strcmp(argv[1], "io_uring") == 0;
    test_files_write();
    if (with_uring && !test_uring_works())
        SKIP("io_uring cannot be used here");
    run_all();
    return 0;
}
