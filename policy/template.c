/*
 * A policy to copy: evict the expert that was loaded first (first in, first out).
 *
 * The head of a policy file says what it decides, by which rule (paper and equation, if there is
 * one), where it departs from that, and what a call costs. This one: on_insert and on_remove O(1),
 * pick O(experts).
 *
 * This file is compiled and run by tests/unit/policy/template_test.c, but it is not in the list of
 * built-ins. To make a policy of yours from it: copy it to policy/evict/<name>.c, rename what is
 * called fifo, declare the table in policy/builtins.h, add it to the list in policy/policy.c and
 * the file to CMakeLists.txt.
 */
#include "policy/template.h"

#include "policy/builtins.h"

/*
 * 1. Options. Each becomes a variable MOEPAGER_FIFO_<NAME>, a line of `moepager env` and a row of
 * docs/options.md. Without options leave .opts and .config_size out of the table at the end.
 */
struct fifo_config {
    uint64_t newest_first;
};

static const struct mp_opt fifo_opts[] = {
    MP_OPT(MP_OPT_BOOL, "NEWEST_FIRST", struct fifo_config, newest_first, "0", 0, 1,
           "Evict the expert that was loaded last instead."),
    MP_OPT_END,
};

/*
 * 2. The instance. struct mp_policy comes first, so that a pointer to one is a pointer to the
 * other. All state is here: there may be several instances at once.
 */
struct fifo {
    struct mp_policy super;
    uint32_t ids;
    bool newest_first;
    uint64_t inserted; // experts so far
    uint64_t *order;   // (ids): number of the insertion; 0: not resident
};

/*
 * 3. create() is the only place that may allocate. `config` is filled from the options and gone
 * afterwards; `shape` says how large the model and the device tier are. The instance and its arrays
 * are one block: fifo_take() is called once to add up sizes and once to get the addresses
 * (vmm/base/arena.h).
 */
static void fifo_take(struct mp_policy *policy, const struct mp_shape *shape,
                      struct mp_arena *arena)
{
    struct fifo *fifo = (struct fifo *)policy;

    (void)shape;
    fifo->order = mp_arena_take(arena, fifo->ids, sizeof(*fifo->order));
}

static enum mp_status fifo_create(const void *config, const struct mp_shape *shape,
                                  struct mp_policy **policy_p)
{
    struct fifo draft = {
        .super.info = &mp_evict_template.info,
        .ids = shape->layers * shape->experts,
        .newest_first = ((const struct fifo_config *)config)->newest_first != 0,
    };

    return mp_policy_make(&draft.super, sizeof(draft), fifo_take, shape, policy_p);
}

/*
 * 4. Facts. An expert takes its slot when its load starts, whether on demand or ahead, and
 * on_insert is called then, not when the bytes have come. It leaves by any policy's choice, or
 * because its load failed or was taken back.
 */
static void fifo_on_insert(struct mp_policy *policy, uint32_t id, uint64_t now)
{
    struct fifo *fifo = (struct fifo *)policy;

    (void)now; /* the number of the layer that is being run, since the start */
    fifo->order[id] = ++fifo->inserted;
}

static void fifo_on_remove(struct mp_policy *policy, uint32_t id, uint64_t now)
{
    (void)now;
    ((struct fifo *)policy)->order[id] = 0;
}

/*
 * 5. The decision. Only experts for which mp_evict_allows() holds may be named: the pager leaves
 * out what is leased, needed by the open layer or too small, and respects the layer's share of the
 * slots. Nothing may change here, because the pager can ask again; an invalid decision is counted
 * and replaced.
 */
static uint32_t fifo_pick(struct mp_policy *policy, const struct mp_evict_query *query)
{
    const struct fifo *fifo = (const struct fifo *)policy;
    uint32_t best = MP_EXPERT_NONE;

    for (uint32_t u = 0; u < fifo->ids; u++) {
        if (fifo->order[u] == 0 || !mp_evict_allows(query, u))
            continue;
        if (best == MP_EXPERT_NONE || (fifo->order[u] < fifo->order[best]) != fifo->newest_first)
            best = u;
    }
    return best;
}

/*
 * 6. The table. What is left out is NULL or false: on_access (which experts are needed, resident or
 * not; lru and lfu live on it) and per_layer (the policy keeps the layers apart by itself).
 */
const struct mp_evict_ops mp_evict_template = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "fifo",
              .summary = "first loaded, first evicted",
              .opts = fifo_opts,
              .config_size = sizeof(struct fifo_config) },
    .create = fifo_create,
    .destroy = mp_policy_free,
    .on_insert = fifo_on_insert,
    .on_remove = fifo_on_remove,
    .pick = fifo_pick,
};
