/*
 * The threads that compute: started once, handed one job at a time, bound to cores. What
 * they compute is the caller's.
 */
#include "engine/pool/pool.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vmm/base/assert.h"
#include "vmm/base/clock.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

#define CACHE_LINE 64
#define SPINS_PER_LOOK 64 /* loads between two looks at the clock */
#define BESIDE 2          /* threads that may wait awake for something else than the pool */

static const char *const bind_names[] = { "auto", "none", "node", "core", NULL };

const struct mp_opt mp_pool_opts[] = {
    MP_OPT(MP_OPT_U64, "THREADS", struct mp_pool_config, threads, "0", 0, MP_POOL_THREADS_MAX,
           "Threads that compute; 0 is one per core of the node that holds the experts."),
    MP_OPT(MP_OPT_U64, "SPIN_US", struct mp_pool_config, spin_us, "100", 0, 1000000,
           "Microseconds that a compute thread waits awake for work, or the engine for a device, "
           "before it sleeps."),
    MP_OPT_ENUM("BIND", struct mp_pool_config, bind, "auto", bind_names,
                "Bind compute threads to the NUMA node or each to a core; auto binds to the node "
                "where there are several."),
    MP_OPT_END
};

struct job {
    void (*fn)(void *ctx, uint64_t part, unsigned thread);
    void *ctx;
    uint64_t parts;
    bool dynamic;
    bool stop;
};

struct worker {
    struct mp_pool *pool;
    pthread_t thread;
    unsigned index;
};

/* Parts of a dynamic job that nobody has taken yet: the first in the upper half of the word, the
 * end in the lower one. Relaxed: the job itself is published by `epoch`. */
struct share {
    _Alignas(CACHE_LINE) _Atomic uint64_t left;
};

struct mp_pool {
    /* Published by `epoch`: written before it is raised, read after it was seen to rise. */
    _Alignas(CACHE_LINE) struct job job;
    /* Raised (seq_cst) for each job. The futex on which idle threads sleep. */
    _Alignas(CACHE_LINE) _Atomic uint32_t epoch;
    /* Threads in the futex. seq_cst with `epoch`: either the caller sees the sleeper, or the
     * sleeper sees the new epoch. */
    _Atomic uint32_t sleepers;
    /* Helpers still at the job; each takes 1 off (seq_cst) when it is done. The futex on which the
     * caller sleeps. `caller_sleeps` pairs with it as `sleepers` does with `epoch`. */
    _Alignas(CACHE_LINE) _Atomic uint32_t busy;
    _Atomic uint32_t caller_sleeps;
    _Alignas(CACHE_LINE) unsigned thread_count;
    unsigned cpu_count; /* that its threads may use */
    struct mp_spin spin;
    _Atomic bool running; /* a job; written by its caller, relaxed */
    struct worker *workers;
    struct share *shares; /* one for each thread */
};

static _Thread_local const struct mp_pool *inside; /* the pool whose part this thread runs */

static void futex_wait(_Atomic uint32_t *word, uint32_t old)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int count)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

/* Waits awake until *word differs from `old` or the time is over; returns the last value seen. */
static uint32_t spin_while(_Atomic uint32_t *word, uint32_t old, uint64_t spin_ns)
{
    struct mp_clock *clock = mp_clock_monotonic();
    uint32_t value = atomic_load_explicit(word, memory_order_acquire);
    uint64_t start_ns;

    if (value != old || spin_ns == 0)
        return value;
    start_ns = mp_clock_now_ns(clock);
    do {
        for (int i = 0; i < SPINS_PER_LOOK; i++) {
            value = atomic_load_explicit(word, memory_order_acquire);
            if (value != old)
                return value;
            mp_spin_pause();
        }
    } while (mp_clock_now_ns(clock) - start_ns < spin_ns);
    return value;
}

/* The first part of a thread's share, which ends where the next one's begins. Shares differ by one
 * part at most, and depend on nothing but the two counts. */
static uint64_t share_begin(const struct mp_pool *pool, unsigned thread)
{
    const uint64_t each = pool->job.parts / pool->thread_count;
    const uint64_t extra = pool->job.parts % pool->thread_count;

    return thread * each + (thread < extra ? thread : extra);
}

static void set_shares(struct mp_pool *pool)
{
    for (unsigned t = 0; t < pool->thread_count; t++)
        atomic_store_explicit(&pool->shares[t].left,
                              share_begin(pool, t) << 32 | share_begin(pool, t + 1),
                              memory_order_relaxed);
}

/* Takes the first part that is left, or the last one; false: none is left. */
static bool take_part(struct share *share, bool first, uint64_t *part_p)
{
    uint64_t left = atomic_load_explicit(&share->left, memory_order_relaxed);

    do {
        if (left >> 32 == (uint32_t)left)
            return false;
        *part_p = first ? left >> 32 : (uint32_t)left - 1;
    } while (!atomic_compare_exchange_weak_explicit(&share->left, &left,
                                                    first ? left + (UINT64_C(1) << 32) : left - 1,
                                                    memory_order_relaxed, memory_order_relaxed));
    return true;
}

/* What is left of the shares of others is taken from their ends, far from where they are. */
static void run_dynamic(struct mp_pool *pool, unsigned thread)
{
    const struct job *job = &pool->job;

    for (unsigned i = 0; i < pool->thread_count; i++) {
        struct share *share = &pool->shares[(thread + i) % pool->thread_count];
        uint64_t part;

        while (take_part(share, i == 0, &part))
            job->fn(job->ctx, part, thread);
    }
}

static void run_share(struct mp_pool *pool, unsigned thread)
{
    const struct job *job = &pool->job;

    inside = pool;
    if (job->dynamic) {
        run_dynamic(pool, thread);
    } else {
        const uint64_t end = share_begin(pool, thread + 1);

        for (uint64_t part = share_begin(pool, thread); part < end; part++)
            job->fn(job->ctx, part, thread);
    }
    inside = NULL;
}

static uint32_t wait_for_job(struct mp_pool *pool, uint32_t seen)
{
    uint32_t epoch = spin_while(&pool->epoch, seen, pool->spin.ns);

    while (epoch == seen) {
        atomic_fetch_add(&pool->sleepers, 1);
        futex_wait(&pool->epoch, seen);
        atomic_fetch_sub(&pool->sleepers, 1);
        epoch = atomic_load(&pool->epoch);
    }
    return epoch;
}

static void *worker_main(void *arg)
{
    struct worker *worker = arg;
    struct mp_pool *pool = worker->pool;
    uint32_t epoch = 0;

    pthread_setname_np(pthread_self(), "mp-compute");
    for (;;) {
        epoch = wait_for_job(pool, epoch);
        if (pool->job.stop)
            return NULL;
        run_share(pool, worker->index);
        if (atomic_fetch_sub(&pool->busy, 1) == 1 && atomic_load(&pool->caller_sleeps) != 0)
            futex_wake(&pool->busy, 1);
    }
}

static void publish(struct mp_pool *pool)
{
    atomic_store_explicit(&pool->busy, pool->thread_count - 1, memory_order_relaxed);
    atomic_fetch_add(&pool->epoch, 1);
    if (atomic_load(&pool->sleepers) > 0)
        futex_wake(&pool->epoch, INT32_MAX);
}

static void wait_until_done(struct mp_pool *pool)
{
    uint32_t busy = atomic_load_explicit(&pool->busy, memory_order_acquire);
    struct mp_clock *clock = mp_clock_monotonic();
    const uint64_t start_ns = busy != 0 ? mp_clock_now_ns(clock) : 0;

    /* The count may go down several times within the time to spin. */
    while (busy != 0) {
        const uint64_t spent_ns = mp_clock_now_ns(clock) - start_ns;

        if (spent_ns >= pool->spin.ns)
            break;
        busy = spin_while(&pool->busy, busy, pool->spin.ns - spent_ns);
    }
    if (busy == 0)
        return;
    atomic_store(&pool->caller_sleeps, 1);
    while ((busy = atomic_load(&pool->busy)) != 0)
        futex_wait(&pool->busy, busy);
    atomic_store_explicit(&pool->caller_sleeps, 0, memory_order_relaxed);
}

static void run(struct mp_pool *pool, const struct job *job)
{
    mp_assert(inside != pool);
    mp_assert(!pool->running);
    mp_assert(job->parts <= UINT32_MAX);
    if (job->parts == 0)
        return;
    atomic_store_explicit(&pool->running, true, memory_order_relaxed);
    pool->job = *job;
    if (job->dynamic)
        set_shares(pool);
    if (pool->thread_count == 1 || job->parts == 1) {
        /* The caller takes a single part anyway; the others need not wake up for it. */
        run_share(pool, 0);
    } else {
        publish(pool);
        run_share(pool, 0);
        wait_until_done(pool);
    }
    atomic_store_explicit(&pool->running, false, memory_order_relaxed);
}

void mp_pool_run(struct mp_pool *pool, void (*fn)(void *ctx, uint64_t part, unsigned thread),
                 void *ctx, uint64_t parts)
{
    const struct job job = { .fn = fn, .ctx = ctx, .parts = parts };

    run(pool, &job);
}

void mp_pool_run_dynamic(struct mp_pool *pool,
                         void (*fn)(void *ctx, uint64_t part, unsigned thread), void *ctx,
                         uint64_t parts)
{
    const struct job job = { .fn = fn, .ctx = ctx, .parts = parts, .dynamic = true };

    run(pool, &job);
}

unsigned mp_pool_threads(const struct mp_pool *pool)
{
    return pool->thread_count;
}

const struct mp_spin *mp_pool_spin(const struct mp_pool *pool)
{
    return &pool->spin;
}

/* A processor for each thread beside the pool, while the pool has as many as it wants now? */
static bool spares(void *ctx)
{
    const struct mp_pool *pool = ctx;
    const bool running = atomic_load_explicit(&pool->running, memory_order_relaxed);

    return (running ? pool->thread_count : 0) + BESIDE <= pool->cpu_count;
}

/* CPUs that the calling thread may run on. */
static unsigned usable_cpus(void)
{
    cpu_set_t set;
    long online;

    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        return (unsigned)CPU_COUNT(&set);
    online = sysconf(_SC_NPROCESSORS_ONLN); /* more CPUs than a cpu_set_t holds */
    return online > 0 ? (unsigned)online : 1;
}

static unsigned choose_threads(const struct mp_pool_config *config,
                               const struct mp_topology *topology, unsigned node)
{
    unsigned count = (unsigned)config->threads;

    if (count == 0 && topology != NULL && node != MP_TOPOLOGY_ANY_NODE)
        count = topology->nodes[node].core_count;
    if (count == 0 && topology != NULL)
        count = topology->core_count;
    if (count == 0)
        count = usable_cpus();
    return count < MP_POOL_THREADS_MAX ? count : MP_POOL_THREADS_MAX;
}

struct binding {
    const struct mp_topology *topology;
    unsigned node;
    bool to_core;
    unsigned pu_count;
    unsigned pus[MP_POOL_THREADS_MAX];
};

/* Part n runs on thread n; 0 is the caller, which is not ours to bind. */
static void bind_part(void *ctx, uint64_t part, unsigned thread)
{
    const struct binding *binding = ctx;
    enum mp_status status = MP_OK;

    mp_assert(part == thread);
    (void)part;
    if (thread == 0)
        return;
    if (!binding->to_core)
        status = mp_topology_bind_thread_to_node(binding->topology, binding->node);
    else
        status =
            mp_topology_bind_thread(binding->topology, binding->pus[thread % binding->pu_count]);
    if (status != MP_OK)
        mp_log_once(MP_LOG_WARN, "pool", "compute threads cannot be bound here; running unbound");
}

static void bind_workers(struct mp_pool *pool, enum mp_pool_bind bind,
                         const struct mp_topology *topology, unsigned node)
{
    struct binding binding = { .topology = topology, .node = node };

    if (topology == NULL || pool->thread_count == 1)
        return;
    if (bind == MP_POOL_BIND_AUTO)
        bind = topology->node_count > 1 ? MP_POOL_BIND_NODE : MP_POOL_BIND_NONE;
    if (bind == MP_POOL_BIND_NONE)
        return;
    binding.to_core = bind == MP_POOL_BIND_CORE;
    binding.pu_count = mp_topology_compute_pus(topology, node, binding.pus, MP_POOL_THREADS_MAX);
    if (binding.pu_count > MP_POOL_THREADS_MAX)
        binding.pu_count = MP_POOL_THREADS_MAX;
    if (binding.pu_count > 0)
        mp_pool_run(pool, bind_part, &binding, pool->thread_count);
}

/* All signals are blocked before the thread exists: none can be delivered to it in between. */
static enum mp_status start_workers(struct mp_pool *pool)
{
    const unsigned count = pool->thread_count;
    sigset_t all, before;
    int error = 0;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pool->thread_count = 1; /* counts those that run, for destroy */
    while (pool->thread_count < count && error == 0) {
        struct worker *worker = &pool->workers[pool->thread_count];

        worker->pool = pool;
        worker->index = pool->thread_count;
        error = pthread_create(&worker->thread, NULL, worker_main, worker);
        if (error == 0)
            pool->thread_count++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0)
        return MP_OK;
    return mp_fail(MP_ERR_NO_MEMORY, "E_THREADS",
                   "cannot start compute thread %u of %u: %s; lower --threads, or raise the limit "
                   "on %s",
                   pool->thread_count, count, strerror(error), mp_thread_limit());
}

enum mp_status mp_pool_create(const struct mp_pool_config *config,
                              const struct mp_topology *topology, unsigned node,
                              struct mp_pool **pool_p)
{
    const unsigned count = choose_threads(config, topology, node);
    struct mp_pool *pool = aligned_alloc(CACHE_LINE, sizeof(*pool));
    enum mp_status status;

    mp_assert(config->threads <= MP_POOL_THREADS_MAX);
    if (pool == NULL)
        return mp_fail_no_memory("the compute threads", sizeof(*pool));
    memset(pool, 0, sizeof(*pool));
    pool->workers = calloc(count, sizeof(*pool->workers));
    pool->shares = aligned_alloc(CACHE_LINE, count * sizeof(*pool->shares));
    if (pool->workers == NULL || pool->shares == NULL) {
        free(pool->workers);
        free(pool->shares);
        free(pool);
        return mp_fail_no_memory("the compute threads",
                                 count * (sizeof(*pool->workers) + sizeof(*pool->shares)));
    }
    pool->thread_count = count;
    pool->cpu_count = usable_cpus();
    pool->spin = (struct mp_spin){ .ns = count > pool->cpu_count ? 0 : config->spin_us * 1000,
                                   .spares = spares,
                                   .ctx = pool };
    status = start_workers(pool);
    if (status != MP_OK) {
        mp_pool_destroy(pool);
        return status;
    }
    bind_workers(pool, (enum mp_pool_bind)config->bind, topology, node);
    *pool_p = pool;
    return MP_OK;
}

void mp_pool_destroy(struct mp_pool *pool)
{
    if (pool == NULL)
        return;
    mp_assert(!pool->running);
    pool->job.stop = true;
    publish(pool);
    for (unsigned i = 1; i < pool->thread_count; i++)
        pthread_join(pool->workers[i].thread, NULL);
    free(pool->workers);
    free(pool->shares);
    free(pool);
}
