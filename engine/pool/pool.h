#ifndef MP_ENGINE_POOL_H
#define MP_ENGINE_POOL_H

#include <stdint.h>

#include "vmm/base/spin.h"
#include "vmm/base/status.h"
#include "vmm/options/opt.h"
#include "vmm/topo/topology.h"

/*
 * A fixed pool of compute threads.
 *
 * The caller divides a job into parts. What a part does must not depend on the thread that runs it,
 * so results do not depend on the number of threads or on timing. The calling thread runs its
 * share. Starting and ending a job costs a few atomic operations: nothing is allocated and no lock
 * is taken. Idle threads spin for a short time, then sleep.
 *
 * Helper threads block all signals and are named mp-compute. They only run parts: a part must not
 * start a job on the same pool.
 *
 * Thread safety: one job at a time; mp_pool_run() and destroy are called by one thread.
 */
struct mp_pool;

enum mp_pool_bind { MP_POOL_BIND_AUTO, MP_POOL_BIND_NONE, MP_POOL_BIND_NODE, MP_POOL_BIND_CORE };

/* MOEPAGER_THREADS, MOEPAGER_SPIN_US, MOEPAGER_BIND; list them with the prefix "MOEPAGER_". */
struct mp_pool_config {
    uint64_t threads; /* with the caller; 0: one per core of the node */
    uint64_t spin_us; /* before a waiting thread sleeps; 0 if there are more threads than CPUs */
    uint64_t bind;    /* enum mp_pool_bind; auto: to the node if there are several */
};

extern const struct mp_opt mp_pool_opts[];

#define MP_POOL_THREADS_MAX 1024

/*
 * Start config->threads - 1 helpers.
 *
 * topology  may be NULL: then nothing is bound and 0 threads means one per CPU of this process
 * node      index into topology->nodes, or MP_TOPOLOGY_ANY_NODE
 *
 * The caller is thread 0 and is not bound. A binding that the system refuses is logged once and
 * ignored. MP_ERR_NO_MEMORY with a text: not all threads could be started, and none is left.
 */
enum mp_status mp_pool_create(const struct mp_pool_config *config,
                              const struct mp_topology *topology, unsigned node,
                              struct mp_pool **pool_p) MP_MUST_CHECK;

/* No job may be running. NULL is ignored. */
void mp_pool_destroy(struct mp_pool *pool);

/* At least 1; `thread` below is smaller than this. */
unsigned mp_pool_threads(const struct mp_pool *pool);

/*
 * How long threads beside the pool wait awake, by the same setting: two of them, the engine's
 * and a link's, beside them for a moment one that brings a CPU's results to a device, and not while
 * the pool has work and there are not as many processors as all of them. Lives as long as the pool.
 */
const struct mp_spin *mp_pool_spin(const struct mp_pool *pool);

/*
 * Call fn(ctx, part, thread) once for each part below `parts`, on all threads, and return when all
 * have returned. At most UINT32_MAX parts. Consecutive parts go to one thread and the same parts to
 * the same thread each time, which keeps caches and NUMA nodes warm. Everything written before the
 * call is visible to the parts; everything they write is visible after it.
 */
void mp_pool_run(struct mp_pool *pool, void (*fn)(void *ctx, uint64_t part, unsigned thread),
                 void *ctx, uint64_t parts);

/*
 * As above, but with work stealing: a thread that has done its parts takes the last parts that
 * others have not begun. For parts of unequal length, and for threads that the system delays. Each
 * thread runs its own parts in order, so that data that a part prefetches beyond its end are cached
 * for the next one.
 */
void mp_pool_run_dynamic(struct mp_pool *pool,
                         void (*fn)(void *ctx, uint64_t part, unsigned thread), void *ctx,
                         uint64_t parts);

#endif
