/*
 * libmoepager in a host engine: event loops, several pagers, statistics, layouts that stay.
 */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/support/test.h"
#include "tests/unit/policy/moepager_model.h"

/* As an event loop does: never a call that waits, but poll() until something has been read. */
static void an_event_loop_never_waits_in_a_call(void)
{
    static const uint32_t experts[] = { 0, 2, 3, 5 };
    struct moepager *pager = open_model(make_config(MOEPAGER_BUDGET_ALL));
    struct moepager_ready ready;
    struct pollfd polled = { .fd = -1, .events = POLLIN };
    unsigned seen = 0, pending = 0, same = 0;
    uint64_t count;

    CHECK_EQ(moepager_event_fd(pager, &polled.fd), MOEPAGER_OK);
    CHECK_EQ(moepager_event_fd(pager, (int *)&same), MOEPAGER_OK);
    CHECK_EQ(same, (unsigned)polled.fd);
    CHECK(fcntl(polled.fd, F_GETFD) & FD_CLOEXEC);
    CHECK_EQ(poll(&polled, 1, 0), 0);
    CHECK_EQ(moepager_begin(pager, 1, experts, NULL, 4), MOEPAGER_OK);
    for (;;) {
        CHECK_EQ(moepager_try_next(pager, &ready), MOEPAGER_OK);
        if (ready.index == MOEPAGER_NONE)
            break;
        if (ready.index == MOEPAGER_PENDING) {
            CHECK_EQ(poll(&polled, 1, 10000), 1);
            CHECK_EQ(read(polled.fd, &count, sizeof(count)), sizeof(count));
            CHECK(++pending <= 4 && count <= 4);
            continue;
        }
        seen |= 1u << ready.index;
        check_bytes(EXPERTS + experts[ready.index], &ready);
        CHECK_EQ(moepager_done(pager, ready.index), MOEPAGER_OK);
    }
    CHECK_EQ(seen, 15);
    CHECK_EQ(moepager_end(pager), MOEPAGER_OK);
    moepager_prefetch(pager, 2, experts, 1);
    CHECK_EQ(poll(&polled, 1, 10000), 1);
    moepager_close(pager);
    CHECK_EQ(poll(&polled, 1, 0), 1); /* closed with the pager */
    CHECK(polled.revents & POLLNVAL);
}

static void without_descriptors_waiting_still_works(void)
{
    static const uint32_t experts[] = { 1, 4 };
    struct moepager *pager = open_model(make_config(MOEPAGER_BUDGET_ALL));
    struct rlimit before, none;
    int fd = -7;

    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    CHECK_EQ(moepager_event_fd(pager, &fd), MOEPAGER_ERR_IO);
    CHECK_STR(moepager_error_code(), "E_EVENT_FD");
    CHECK_EQ(fd, -7);
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    run_layer(pager, 0, experts, 2);
    CHECK_EQ(moepager_event_fd(pager, &fd), MOEPAGER_OK);
    moepager_close(pager);
}

/* Waiting for what only moepager_done() can give is no wait. */
static void leases_that_take_all_room_are_pending(void)
{
    static const uint32_t experts[] = { 0, 1, 2 };
    struct moepager *pager = open_model(make_config(plan_of(0).smallest_bytes));
    struct moepager_ready ready[2], next;

    CHECK_EQ(moepager_begin(pager, 0, experts, NULL, 3), MOEPAGER_OK);
    CHECK_EQ(moepager_next(pager, &ready[0]), MOEPAGER_OK);
    CHECK_EQ(moepager_next(pager, &ready[1]), MOEPAGER_OK);
    CHECK_EQ(moepager_try_next(pager, &next), MOEPAGER_OK);
    CHECK_EQ(next.index, MOEPAGER_PENDING);
    CHECK_EQ(moepager_done(pager, ready[0].index), MOEPAGER_OK);
    CHECK_EQ(moepager_next(pager, &next), MOEPAGER_OK);
    check_bytes(experts[next.index], &next);
    moepager_abort(pager);
    CHECK_EQ(moepager_try_next(pager, &next), MOEPAGER_ERR_INVALID);
    moepager_close(pager);
}

static void *run_alone(void *pager)
{
    static const uint32_t experts[] = { 0, 2, 4 };

    for (uint32_t i = 0; i < 40; i++)
        run_layer(pager, i % LAYERS, experts, 3);
    return NULL;
}

/* Three pagers of the same files, with budgets of their own, at the same time. */
static void pagers_do_not_know_each_other(void)
{
    const uint64_t least = plan_of(0).smallest_bytes;
    struct moepager *pagers[3];
    pthread_t threads[3];

    for (unsigned i = 0; i < 3; i++)
        pagers[i] = open_model(make_config(i == 2 ? MOEPAGER_BUDGET_ALL : (i + 1) * least));
    for (unsigned i = 0; i < 3; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, run_alone, pagers[i]), 0);
    for (unsigned i = 0; i < 3; i++) {
        struct moepager_statistics s = MOEPAGER_STATISTICS_INIT;

        CHECK_EQ(pthread_join(threads[i], NULL), 0);
        CHECK_EQ(moepager_get_statistics(pagers[i], &s), MOEPAGER_OK);
        CHECK_EQ(s.hits + s.misses, 40 * 3);
        CHECK(s.resident_peak_bytes <= s.slots * (2 * 4096 + GATE + DOWN));
        moepager_close(pagers[i]);
    }
}

static void statistics_say_what_happened(void)
{
    static const uint32_t experts[] = { 1, 4 };
    const uint64_t budget = plan_of(0).smallest_bytes;
    struct moepager *pager = open_model(make_config(budget));
    struct moepager_statistics s = MOEPAGER_STATISTICS_INIT, old = MOEPAGER_STATISTICS_INIT;

    run_layer(pager, 0, experts, 2);
    run_layer(pager, 0, experts, 2);
    run_layer(pager, 1, experts, 2);
    CHECK_EQ(moepager_get_statistics(pager, &s), MOEPAGER_OK);
    CHECK_EQ(s.size, sizeof(s));
    CHECK(s.hits == 2 && s.misses == 4 && s.loads == 4 && s.evictions == 2);
    CHECK(s.load_bytes == 4 * (GATE + DOWN) && s.prefetches == 0 && s.reading == 0);
    CHECK_EQ(s.budget_bytes, budget);
    CHECK_EQ(s.slots, 2);
    CHECK(strcmp(s.reader, "io_uring") == 0 || strcmp(s.reader, "threads") == 0);
    CHECK_EQ(moepager_set_budget(pager, MOEPAGER_BUDGET_ALL), MOEPAGER_OK);
    CHECK_EQ(moepager_get_statistics(pager, &s), MOEPAGER_OK);
    CHECK_EQ(s.budget_bytes, MOEPAGER_BUDGET_ALL);
    CHECK_EQ(s.slots, COUNT);

    /* A program that knows fewer members than the library, and one that knows more. */
    old.size = offsetof(struct moepager_statistics, loads);
    CHECK_EQ(moepager_get_statistics(pager, &old), MOEPAGER_OK);
    CHECK(old.hits == 2 && old.misses == 4 && old.loads == 0);
    old.size = sizeof(old) + 8;
    CHECK_EQ(moepager_get_statistics(pager, &old), MOEPAGER_ERR_INVALID);
    moepager_close(pager);
}

/* What programs were compiled with; only statistics may grow. */
static void layouts_stay(void)
{
    CHECK_EQ(sizeof(struct moepager_piece), 24);
    CHECK_EQ(sizeof(struct moepager_config), 104);
    CHECK_EQ(offsetof(struct moepager_config, slices), 100);
    CHECK_EQ(sizeof(struct moepager_plan), 32);
    CHECK_EQ(sizeof(struct moepager_ready), 40);
    CHECK_EQ(sizeof(struct moepager_counters), 72);
    CHECK_EQ(offsetof(struct moepager_statistics, reader), 136);
}

int main(void)
{
    make_model();
    RUN(an_event_loop_never_waits_in_a_call);
    RUN(without_descriptors_waiting_still_works);
    RUN(leases_that_take_all_room_are_pending);
    RUN(pagers_do_not_know_each_other);
    RUN(statistics_say_what_happened);
    RUN(layouts_stay);
    return 0;
}
