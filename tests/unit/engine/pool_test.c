/* Parts are counted per part and per thread; allocations and thread starts fail on demand. */
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "engine/pool/pool.h"
#include "tests/support/fault/wrap.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

#define PARTS_MAX 1000

static struct mp_pool *make(unsigned threads, uint64_t spin_us)
{
    const struct mp_pool_config config = { .threads = threads, .spin_us = spin_us };
    struct mp_pool *pool = NULL;

    CHECK_EQ(mp_pool_create(&config, NULL, MP_TOPOLOGY_ANY_NODE, &pool), MP_OK);
    CHECK_EQ(mp_pool_threads(pool), threads);
    return pool;
}

static unsigned count_threads(void)
{
    DIR *directory = opendir("/proc/self/task");
    unsigned count = 0;

    CHECK(directory != NULL);
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(directory);
    return count;
}

static unsigned threads_at_start;

static void *note_tid(void *arg)
{
    *(pid_t *)arg = gettid();
    return NULL;
}

/* A sanitizer may have a thread of its own, which it starts with the first of the program's. */
static void count_threads_at_start(void)
{
    char path[64];
    pthread_t thread;
    pid_t tid;

    CHECK_EQ(pthread_create(&thread, NULL, note_tid, &tid), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    snprintf(path, sizeof(path), "/proc/self/task/%d", (int)tid);
    while (access(path, F_OK) == 0)
        usleep(1000);
    threads_at_start = count_threads();
}

/* A joined thread may still be listed for a moment. */
static void check_no_thread_is_left(void)
{
    while (count_threads() != threads_at_start)
        usleep(1000);
}

struct tally {
    unsigned runs[PARTS_MAX]; /* plain: each part belongs to one thread */
    unsigned by[PARTS_MAX];
    uint64_t input;
};

static void tally_part(void *ctx, uint64_t part, unsigned thread)
{
    struct tally *tally = ctx;

    tally->runs[part] += (unsigned)tally->input;
    tally->by[part] = thread;
}

static void every_part_runs_once_per_job(void)
{
    static const uint64_t parts[] = { 0, 1, 2, 3, 4, 5, 7, 64, PARTS_MAX };
    static const uint64_t spins_us[] = { 0, 20 };

    for (unsigned threads = 1; threads <= 5; threads++) {
        for (size_t i = 0; i < MP_ARRAY_LEN(parts) * 2; i++) {
            struct mp_pool *pool = make(threads, spins_us[i & 1]);
            struct tally tally = { .input = 1 };

            for (int job = 0; job < 10; job++) {
                if (job & 1)
                    mp_pool_run_dynamic(pool, tally_part, &tally, parts[i / 2]);
                else
                    mp_pool_run(pool, tally_part, &tally, parts[i / 2]);
            }
            for (uint64_t part = 0; part < PARTS_MAX; part++)
                CHECK_EQ(tally.runs[part], part < parts[i / 2] ? 10 : 0);
            mp_pool_destroy(pool);
        }
    }
}

struct held_up {
    _Atomic uint32_t done;
    unsigned by[64];
};

/* Part 32, the first of the second thread, ends after all others. */
static void hold_up_part(void *ctx, uint64_t part, unsigned thread)
{
    struct held_up *held = ctx;

    held->by[part] = thread;
    while (part == 32 && atomic_load(&held->done) < 63)
        sched_yield();
    atomic_fetch_add(&held->done, 1);
}

static void others_take_the_parts_of_one_that_is_held_up(void)
{
    struct mp_pool *pool = make(2, 0);

    for (int i = 0; i < 100; i++) {
        struct held_up held = { .done = 0 };

        mp_pool_run_dynamic(pool, hold_up_part, &held, 64);
        CHECK_EQ(held.done, 64);
        for (uint64_t part = 33; part < 64; part++)
            CHECK(held.by[part] != held.by[32] || held.by[32] == 0);
    }
    mp_pool_destroy(pool);
}

static void static_shares_are_even_and_always_the_same(void)
{
    struct mp_pool *pool = make(4, 0);

    for (uint64_t parts = 1; parts < 30; parts++) {
        unsigned shares[4] = { 0 }, before = 0;
        struct tally first = { .input = 1 }, again = { .input = 1 };

        mp_pool_run(pool, tally_part, &first, parts);
        mp_pool_run(pool, tally_part, &again, parts);
        CHECK_EQ(memcmp(first.by, again.by, sizeof(first.by)), 0);
        for (uint64_t part = 0; part < parts; part++) {
            CHECK(first.by[part] >= before && first.by[part] < 4);
            before = first.by[part];
            shares[before]++;
        }
        for (int thread = 0; thread < 4; thread++)
            CHECK(shares[thread] == parts / 4 || shares[thread] == parts / 4 + 1);
    }
    mp_pool_destroy(pool);
}

/* What one job writes, other threads of the next job read: TSan sees any missing order. */
static void shift_part(void *ctx, uint64_t part, unsigned thread)
{
    uint64_t *rows = ctx;
    const uint64_t step = rows[0];

    (void)thread;
    rows[1 + (step & 1) * 64 + part] = rows[1 + (1 - (step & 1)) * 64 + (part + 17) % 64] + 1;
}

static void jobs_see_what_earlier_jobs_wrote(void)
{
    for (unsigned threads = 1; threads <= 3; threads++) {
        struct mp_pool *pool = make(threads, threads == 2 ? 50 : 0);
        uint64_t rows[1 + 128] = { 0 };

        for (rows[0] = 0; rows[0] < 2000; rows[0]++) {
            if (rows[0] % 3 == 0)
                mp_pool_run_dynamic(pool, shift_part, rows, 64);
            else
                mp_pool_run(pool, shift_part, rows, 64);
        }
        for (int i = 0; i < 64; i++)
            CHECK_EQ(rows[1 + 64 + i], 2000);
        mp_pool_destroy(pool);
    }
}

struct meeting {
    _Atomic unsigned here;
    unsigned all;
};

static void meet(void *ctx, uint64_t part, unsigned thread)
{
    struct meeting *meeting = ctx;

    (void)part, (void)thread;
    atomic_fetch_add(&meeting->here, 1);
    while (atomic_load(&meeting->here) < meeting->all)
        sched_yield();
}

/* Ends only if the parts run at the same time; sleeping threads are woken for it. */
static void parts_run_at_the_same_time(void)
{
    struct mp_pool *pool = make(4, 0);

    for (int i = 0; i < 3; i++) {
        struct meeting meeting = { .all = 4 };

        usleep(2000);
        mp_pool_run(pool, meet, &meeting, 4);
        CHECK_EQ(meeting.here, 4);
    }
    mp_pool_destroy(pool);
}

static void note_thread(void *ctx, uint64_t part, unsigned thread)
{
    pthread_t *threads = ctx;

    CHECK_EQ(part, thread);
    threads[thread] = pthread_self();
}

static void one_thread_runs_inline(void)
{
    struct mp_pool *pool = make(1, 100);
    pthread_t self = 0;

    check_no_thread_is_left(); /* nor made */
    mp_pool_run(pool, note_thread, &self, 1);
    CHECK(pthread_equal(self, pthread_self()));
    CHECK_EQ(count_threads(), threads_at_start);
    mp_pool_destroy(pool);
    mp_pool_destroy(NULL);
}

static void check_signals(void *ctx, uint64_t part, unsigned thread)
{
    sigset_t blocked;

    (void)ctx, (void)part;
    CHECK_EQ(pthread_sigmask(SIG_SETMASK, NULL, &blocked), 0);
    CHECK_EQ(sigismember(&blocked, SIGINT), thread != 0);
    CHECK_EQ(sigismember(&blocked, SIGTERM), thread != 0);
    CHECK_EQ(sigismember(&blocked, SIGUSR1), thread != 0);
}

static void helpers_block_signals_and_the_caller_does_not(void)
{
    struct mp_pool *pool = make(3, 0);

    mp_pool_run(pool, check_signals, NULL, 3);
    mp_pool_destroy(pool);
}

static void every_start_may_fail(void)
{
    const struct mp_pool_config config = { .threads = 4 };
    uint64_t n;

    for (n = 0;; n++) {
        struct mp_pool *pool = NULL;
        enum mp_status status;

        fault_nth(FAULT_ALLOCATIONS, n);
        status = mp_pool_create(&config, NULL, MP_TOPOLOGY_ANY_NODE, &pool);
        if (fault_end() == 0) {
            CHECK_EQ(status, MP_OK);
            mp_pool_destroy(pool);
            break;
        }
        CHECK_EQ(status, MP_ERR_NO_MEMORY);
        CHECK(pool == NULL);
        if (n == 4)
            CHECK(strstr(mp_error_last()->text, "cannot start compute thread 2 of 4: ") != NULL);
        check_no_thread_is_left();
    }
    CHECK_EQ(n, 6); /* the pool, its two lists, three threads */
}

/* A machine may have more cores than a pool has threads. */
static void there_are_1024_threads_at_most(void)
{
    const struct mp_pool_config config = { .threads = 0 };
    const struct mp_topology large = { .core_count = MP_POOL_THREADS_MAX + 1 };
    struct mp_pool *pool = NULL;

    fault_nth(FAULT_BIT(pthread_create), 0);
    CHECK_EQ(mp_pool_create(&config, &large, MP_TOPOLOGY_ANY_NODE, &pool), MP_ERR_NO_MEMORY);
    CHECK_EQ(fault_end(), 1);
    CHECK(strstr(mp_error_last()->text, "cannot start compute thread 1 of 1024: ") != NULL);
}

struct places {
    unsigned cpus[4];
    unsigned cpu_counts[4];
};

static void note_place(void *ctx, uint64_t part, unsigned thread)
{
    struct places *places = ctx;
    cpu_set_t set;

    (void)part;
    CHECK_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
    places->cpus[thread] = (unsigned)sched_getcpu();
    places->cpu_counts[thread] = (unsigned)CPU_COUNT(&set);
}

static void helpers_are_bound_and_the_caller_is_not(void)
{
    struct mp_pool_config config = { .threads = 4, .bind = MP_POOL_BIND_CORE };
    struct mp_topology *topology = NULL;
    struct places places;
    struct mp_pool *pool = NULL;
    unsigned pus[4], count;

    CHECK_EQ(mp_topology_load(NULL, &topology), MP_OK);
    count = mp_topology_compute_pus(topology, MP_TOPOLOGY_ANY_NODE, pus, 4);
    count = count < 4 ? count : 4;
    CHECK_EQ(mp_pool_create(&config, topology, MP_TOPOLOGY_ANY_NODE, &pool), MP_OK);
    mp_pool_run(pool, note_place, &places, 4);
    CHECK_EQ(places.cpu_counts[0], topology->pu_count);
    for (unsigned i = 1; i < 4; i++) {
        CHECK_EQ(places.cpu_counts[i], 1);
        if (topology->pu_count <= 4)
            CHECK_EQ(places.cpus[i], pus[i % count]);
    }
    mp_pool_destroy(pool);

    config.bind = MP_POOL_BIND_NODE;
    CHECK_EQ(mp_pool_create(&config, topology, 0, &pool), MP_OK);
    mp_pool_run(pool, note_place, &places, 4);
    CHECK_EQ(places.cpu_counts[3], topology->nodes[0].pu_count);
    mp_pool_destroy(pool);

    /* One node: auto leaves the scheduler free. */
    config.bind = MP_POOL_BIND_AUTO;
    config.threads = 0;
    CHECK_EQ(mp_pool_create(&config, topology, 0, &pool), MP_OK);
    CHECK_EQ(mp_pool_threads(pool), topology->nodes[0].core_count);
    mp_pool_destroy(pool);
    CHECK_EQ(mp_pool_create(&config, NULL, 0, &pool), MP_OK);
    CHECK_EQ(mp_pool_threads(pool), topology->pu_count);
    mp_pool_destroy(pool);
    mp_topology_destroy(topology);
}

/* Another machine's topology cannot be bound to: said once, and everything still runs. */
static void what_cannot_be_bound_runs_unbound(void)
{
    const struct mp_topology_source source = { .synthetic = "node:2 core:2 pu:1" };
    const struct mp_pool_config config = { .bind = MP_POOL_BIND_AUTO };
    struct mp_topology *topology = NULL;
    struct tally tally = { .input = 1 };
    struct mp_pool *pool = NULL;

    CHECK_EQ(mp_topology_load(&source, &topology), MP_OK);
    CHECK_EQ(mp_pool_create(&config, topology, 1, &pool), MP_OK);
    CHECK_EQ(mp_pool_threads(pool), 2);
    mp_pool_run(pool, tally_part, &tally, 100);
    CHECK_EQ(tally.runs[99], 1);
    mp_pool_destroy(pool);
    CHECK_EQ(mp_pool_create(&config, topology, MP_TOPOLOGY_ANY_NODE, &pool), MP_OK);
    CHECK_EQ(mp_pool_threads(pool), 4);
    mp_pool_destroy(pool);
    mp_topology_destroy(topology);
}

static void options_choose_threads_and_binding(void)
{
    struct mp_pool_config config;

    CHECK_EQ(mp_opt_load(mp_pool_opts, "MOEPAGER_", &config), 0);
    CHECK_EQ(config.bind, MP_POOL_BIND_AUTO);
    CHECK_EQ(mp_opt_set_one(mp_pool_opts, "MOEPAGER_", &config, "BIND", "core"), MP_OK);
    CHECK_EQ(config.bind, MP_POOL_BIND_CORE);
    CHECK_EQ(mp_opt_set_one(mp_pool_opts, "MOEPAGER_", &config, "THREADS", "1025"), MP_ERR_CONFIG);
}

/* ---- threads beside it */

static bool spared;

static void note_spared(void *ctx, uint64_t part, unsigned thread)
{
    const struct mp_spin *spin = ctx;

    (void)part;
    (void)thread;
    spared = spin->spares(spin->ctx);
}

/* Two of them, by the same setting; beside a pool at work only if there are processors for all. */
static void threads_beside_a_pool_wait_awake_where_a_processor_is_left(void)
{
    const struct mp_spin *spin;
    struct mp_pool *pool;
    cpu_set_t set;
    unsigned cpus;

    CHECK_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
    cpus = (unsigned)CPU_COUNT(&set);
    for (unsigned threads = 1; threads <= cpus && threads <= 4; threads++) {
        pool = make(threads, 20);
        spin = mp_pool_spin(pool);
        CHECK_EQ(spin->ns, 20000);
        for (unsigned i = 0; i < 2; i++) {
            CHECK_EQ(spin->spares(spin->ctx), cpus >= 2);
            mp_pool_run(pool, note_spared, (void *)(uintptr_t)spin, 1);
            CHECK_EQ(spared, threads + 2 <= cpus);
        }
        mp_pool_destroy(pool);
    }
    pool = make(cpus + 1, 20);
    CHECK_EQ(mp_pool_spin(pool)->ns, 0);
    mp_pool_destroy(pool);
}

int main(void)
{
    count_threads_at_start();
    RUN(every_part_runs_once_per_job);
    RUN(others_take_the_parts_of_one_that_is_held_up);
    RUN(static_shares_are_even_and_always_the_same);
    RUN(jobs_see_what_earlier_jobs_wrote);
    RUN(parts_run_at_the_same_time);
    RUN(one_thread_runs_inline);
    RUN(helpers_block_signals_and_the_caller_does_not);
    RUN(every_start_may_fail);
    RUN(there_are_1024_threads_at_most);
    RUN(helpers_are_bound_and_the_caller_is_not);
    RUN(what_cannot_be_bound_runs_unbound);
    RUN(options_choose_threads_and_binding);
    RUN(threads_beside_a_pool_wait_awake_where_a_processor_is_left);
    return 0;
}
