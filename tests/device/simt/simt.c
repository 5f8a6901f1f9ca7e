/*
 * The threads of a block as coroutines. One warp runs at a time: a lane goes on until it waits for
 * the others of its warp (a shuffle, a vote), waits for the block, or ends; then the next lane that
 * can run does. When no lane of the warp can, the next warp runs; when none can, all that have not
 * ended stand at the barrier, which opens.
 *
 * A coroutine ("worker") is not tied to a thread of the block: one whose thread has ended takes the
 * next that has not begun, so a kernel without shuffles and barriers is a plain loop.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/device/simt/context.h"
#include "tests/device/simt/simt_thread.h"

#define LANES 32
#define THREADS_MAX 1024
#define SHARED_MAX (227 << 10)  /* of compute capability 9.0; less is the driver's to refuse */
#define ENDED_VALUE 0x7fa5a5a5u /* what lanes that have ended seem to give: a NaN */
#define SHARED_BYTE 0xa5        /* what shared memory holds before it is written */

struct warp {
    uint32_t live;    /* have not ended */
    uint32_t ready;   /* can run */
    uint32_t arrived; /* wait for the others of the warp */
    unsigned turn;    /* of the two values: one is read while the next is written */
    uint32_t value[2][LANES], vote[2];
    uint32_t words[2][LANES][MP_SIMT_WORDS];
};

struct worker {
    struct mp_context *context;
    struct worker *idle_next, *all_next;
};

struct machine {
    struct mp_simt_view view;
    void (*enter)(const void *params);
    const void *params;
    struct mp_context *host;
    struct worker *of_thread[THREADS_MAX], *idle, *all, *now;
    struct warp warps[THREADS_MAX / LANES];
    uint32_t warp_count, warp; /* the one that runs */
    uint32_t live;             /* threads of the block that have not ended */
    enum mp_simt_order order;
    uint64_t random;
    bool failed;
    char error[160];
};

SIMT_THREAD_LOCAL struct mp_simt_view *mp_simt_now;
SIMT_THREAD_LOCAL uint64_t mp_simt_loaded_bytes;
SIMT_THREAD_LOCAL uint64_t mp_simt_asks;
static SIMT_THREAD_LOCAL struct machine *machine_now;
static pthread_key_t key;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;

static void close_workers(struct machine *m)
{
    while (m->all != NULL) {
        struct worker *worker = m->all;

        m->all = worker->all_next;
        mp_context_close(worker->context);
        free(worker);
    }
    m->idle = NULL;
}

static void close_machine(void *at)
{
    struct machine *m = at;

    close_workers(m);
    mp_context_close(m->host);
    free(m);
    machine_now = NULL;
    mp_simt_now = NULL;
}

static void make_key(void)
{
    if (pthread_key_create(&key, close_machine) != 0)
        abort(); /* the process has no key left: nothing can be tested */
}

static struct machine *get_machine(void)
{
    struct machine *m = machine_now;

    if (m != NULL)
        return m;
    pthread_once(&key_once, make_key);
    m = calloc(1, sizeof(*m));
    if (m == NULL)
        return NULL;
    m->host = mp_context_open_own();
    if (m->host == NULL || pthread_setspecific(key, m) != 0) {
        mp_context_close(m->host);
        free(m);
        return NULL;
    }
    machine_now = m;
    mp_simt_now = &m->view;
    return m;
}

void mp_simt_set_order(enum mp_simt_order order)
{
    struct machine *m = get_machine();

    if (m != NULL)
        m->order = order;
}

/* The launch ends here and now; never returns to the kernel. */
static void fail(struct machine *m, const char *what)
{
    const struct mp_simt_view *v = &m->view;

    snprintf(m->error, sizeof(m->error), "block (%u, %u, %u), thread %u: %s", v->block.x,
             v->block.y, v->block.z, v->thread, what);
    m->failed = true;
    mp_context_switch(m->now->context, m->host);
}

static uint32_t random_below(struct machine *m, uint32_t count)
{
    m->random = m->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((m->random >> 33) % count);
}

/* One of the set bits, in the order wanted. */
static uint32_t pick(struct machine *m, uint32_t bits)
{
    if (m->order == MP_SIMT_FORWARD)
        return (uint32_t)__builtin_ctz(bits);
    if (m->order == MP_SIMT_BACKWARD)
        return 31 - (uint32_t)__builtin_clz(bits);
    for (uint32_t skip = random_below(m, (uint32_t)__builtin_popcount(bits)); skip > 0; skip--)
        bits &= bits - 1;
    return (uint32_t)__builtin_ctz(bits);
}

/* Make a warp with a thread that can run the current one. */
static bool find_warp(struct machine *m)
{
    const uint32_t count = m->warp_count;
    const uint32_t from = m->order == MP_SIMT_MIXED ? random_below(m, count) : 0;

    for (uint32_t i = 0; i < count; i++) {
        const uint32_t at = m->order == MP_SIMT_BACKWARD ? count - 1 - i : (from + i) % count;

        if (m->warps[at].ready != 0) {
            m->warp = at;
            return true;
        }
    }
    return false;
}

/* The next thread that can run, opening the barrier if that is what all wait for; false: the block
 * has ended. */
static bool next_thread(struct machine *m)
{
    struct warp *warp = &m->warps[m->warp];
    uint32_t lane;

    if (warp->ready == 0) {
        if (warp->arrived != 0)
            fail(m, "some lanes of a warp wait for the warp, others for the block");
        if (m->live == 0)
            return false;
        if (!find_warp(m)) {
            for (uint32_t i = 0; i < m->warp_count; i++)
                m->warps[i].ready = m->warps[i].live;
            (void)find_warp(m);
        }
        warp = &m->warps[m->warp];
    }
    lane = pick(m, warp->ready);
    warp->ready &= ~(1u << lane);
    m->view.thread = m->warp * LANES + lane;
    return true;
}

static void worker_run(void *arg);

/* A worker for a thread that has not begun. */
static struct worker *take_worker(struct machine *m)
{
    struct worker *worker = m->idle;

    if (worker != NULL) {
        m->idle = worker->idle_next;
        return worker;
    }
    worker = calloc(1, sizeof(*worker));
    if (worker == NULL)
        return NULL;
    worker->context = mp_context_open(worker_run, m);
    if (worker->context == NULL) {
        free(worker);
        return NULL;
    }
    worker->all_next = m->all;
    m->all = worker;
    return worker;
}

/* Everything that the block's threads wait for goes on elsewhere until this thread can run. */
static void wait_turn(struct machine *m)
{
    struct worker *self = m->now, *next;

    (void)next_thread(m); /* this thread has not ended, so neither has the block */
    next = m->of_thread[m->view.thread];
    if (next == NULL) {
        next = take_worker(m);
        if (next == NULL)
            fail(m, "no memory for the threads of a block");
        m->of_thread[m->view.thread] = next;
    }
    if (next == self)
        return;
    m->now = next;
    mp_context_switch(self->context, next->context);
}

/* All live lanes of the warp have arrived: they can go on. */
static void open_warp(struct warp *warp)
{
    uint32_t vote = 0;

    for (uint32_t lane = 0; lane < LANES; lane++) {
        if ((warp->arrived >> lane & 1) == 0)
            warp->value[warp->turn][lane] = ENDED_VALUE;
        else if (warp->value[warp->turn][lane] != 0)
            vote |= 1u << lane;
    }
    warp->vote[warp->turn] = vote;
    warp->ready |= warp->arrived;
    warp->arrived = 0;
    warp->turn = 1 - warp->turn;
}

static void end_thread(struct machine *m)
{
    struct warp *warp = &m->warps[m->view.thread / LANES];
    const uint32_t lane = m->view.thread % LANES;

    m->of_thread[m->view.thread] = NULL;
    m->live--;
    warp->live &= ~(1u << lane);
    if (warp->arrived != 0 && warp->arrived == warp->live)
        open_warp(warp);
}

/* Runs the current thread of the block, then the next that has not begun, and so on. */
static void worker_run(void *arg)
{
    struct machine *m = arg;

    for (;;) {
        struct worker *self = m->now, *next;

        m->enter(m->params);
        end_thread(m);
        if (!next_thread(m)) {
            self->idle_next = m->idle;
            m->idle = self;
            mp_context_switch(self->context, m->host);
            continue;
        }
        next = m->of_thread[m->view.thread];
        if (next == NULL) {
            m->of_thread[m->view.thread] = self;
            continue;
        }
        self->idle_next = m->idle;
        m->idle = self;
        m->now = next;
        mp_context_switch(self->context, next->context);
    }
}

void mp_simt_barrier(void)
{
    wait_turn(machine_now);
}

/* The turn whose values can be read now. */
static unsigned meet_warp(struct machine *m, struct warp *warp, uint32_t value)
{
    const uint32_t lane = m->view.thread % LANES;
    const unsigned turn = warp->turn;

    warp->value[turn][lane] = value;
    warp->arrived |= 1u << lane;
    if (warp->arrived == warp->live) {
        open_warp(warp);
        warp->ready &= ~(1u << lane);
    } else {
        wait_turn(m);
    }
    return turn;
}

uint32_t mp_simt_exchange(uint32_t value, uint32_t lane)
{
    struct warp *warp = &machine_now->warps[machine_now->view.thread / LANES];

    return warp->value[meet_warp(machine_now, warp, value)][lane];
}

uint32_t mp_simt_vote(uint32_t value)
{
    struct warp *warp = &machine_now->warps[machine_now->view.thread / LANES];

    return warp->vote[meet_warp(machine_now, warp, value)];
}

const uint32_t (*mp_simt_gather(const uint32_t *words))[MP_SIMT_WORDS]
{
    struct warp *warp = &machine_now->warps[machine_now->view.thread / LANES];

    if (warp->live != 0xffffffffu)
        fail(machine_now, "a whole warp is needed");
    memcpy(warp->words[warp->turn][machine_now->view.thread % LANES], words,
           sizeof(warp->words[0][0]));
    return (const uint32_t(*)[MP_SIMT_WORDS])warp->words[meet_warp(machine_now, warp, 0)];
}

void mp_simt_fail(const char *what)
{
    fail(machine_now, what);
}

uint64_t mp_simt_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

void mp_simt_pause(void)
{
    const struct timespec time = { .tv_nsec = 50000 };

    nanosleep(&time, NULL);
}

static bool run_block(struct machine *m, struct mp_simt_dim at, uint32_t shared_bytes)
{
    const uint32_t threads = m->view.threads;

    m->view.block = at;
    memset(m->view.shared, SHARED_BYTE, shared_bytes);
    m->live = threads;
    for (uint32_t i = 0; i < m->warp_count; i++) {
        const uint32_t left = threads - i * LANES;
        struct warp *warp = &m->warps[i];

        warp->live = warp->ready = left >= LANES ? 0xffffffffu : (1u << left) - 1;
        warp->arrived = 0;
    }
    m->warp = 0;
    (void)find_warp(m);
    (void)next_thread(m);
    m->now = take_worker(m);
    if (m->now == NULL) {
        snprintf(m->error, sizeof(m->error), "no memory for the threads of a block");
        return false;
    }
    m->of_thread[m->view.thread] = m->now;
    mp_context_switch(m->host, m->now->context);
    return !m->failed;
}

/* After a failed launch: its threads are stuck in the middle of the kernel. */
static void clean_up(struct machine *m)
{
    close_workers(m);
    memset(m->of_thread, 0, sizeof(m->of_thread));
}

const char *mp_simt_run(void (*enter)(const void *params), const void *params, uint32_t threads_max,
                        struct mp_simt_dim grid, struct mp_simt_dim block, uint32_t shared_bytes)
{
    struct machine *m = get_machine();
    bool good = true;

    if (m == NULL)
        return "no memory for a launch";
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffff || grid.y > 65535 ||
        grid.z > 65535 || block.x == 0 || block.x > threads_max || block.y != 1 || block.z != 1 ||
        shared_bytes > SHARED_MAX) {
        snprintf(m->error, sizeof(m->error),
                 "bad launch: grid (%u, %u, %u), block (%u, %u, %u), %u bytes shared", grid.x,
                 grid.y, grid.z, block.x, block.y, block.z, shared_bytes);
        return m->error;
    }
    m->view = (struct mp_simt_view){ .threads = block.x, .grid = grid };
    m->view.shared = aligned_alloc(64, (shared_bytes + 127) / 64 * 64);
    if (m->view.shared == NULL)
        return "no memory for a launch";
    m->enter = enter;
    m->params = params;
    m->failed = false;
    m->random = 1;
    m->warp_count = (block.x + LANES - 1) / LANES;
    for (uint32_t z = 0; good && z < grid.z; z++) {
        for (uint32_t y = 0; good && y < grid.y; y++) {
            for (uint32_t x = 0; good && x < grid.x; x++)
                good = run_block(m, (struct mp_simt_dim){ x, y, z }, shared_bytes);
        }
    }
    free(m->view.shared);
    if (good)
        return NULL;
    clean_up(m);
    return m->error;
}
