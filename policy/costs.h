#ifndef MP_POLICY_COSTS_H
#define MP_POLICY_COSTS_H

#include <stdbool.h>
#include <stdint.h>

/*
 * The executors of a machine and the costs of work: facts for policies, provided by the engine, the
 * simulator or a replay. Part of the contract in policy/policy.h. Nothing is measured here.
 */

/* Where an executor reads the bytes of an expert. */
enum mp_reads {
    MP_READS_DEVICE, /* the device tier: an absent expert is loaded first */
    MP_READS_LINK,   /* the host tier, over the link that loads use; nothing is loaded */
    MP_READS_HOST,   /* the host tier, without that link; nothing is loaded */
    MP_READS_PEER,   /* memory of another machine, which computes; nothing is loaded here */
    MP_READS_COUNT
};

/*
 * An executor computes experts. It is identified by its index in a list. Policies choose by
 * properties; names are for people. An expert with n tokens costs fixed_ns + n * token_ns; both 0:
 * unknown.
 */
struct mp_executor {
    const char *name; /* must outlive the list */
    uint64_t fixed_ns, token_ns;
    uint64_t
        handoff_ns; /* transfer of activations there and back, once per layer that it works on */
    enum mp_reads reads;
    uint32_t processor; /* executors with the same number run one at a time; < MP_EXECUTORS_MAX */
};

#define MP_EXECUTORS_MAX 8u

/* Index of the home executor, the first of every list: it reads the device tier and can compute
 * every expert. */
#define MP_EXECUTOR_HOME 0u

/*
 * The executors of this machine and the costs of work, in ns; 0: unknown. Measured costs may change
 * during a run, except with --deterministic; the list does not change.
 */
struct mp_costs {
    uint64_t load_ns;    /* load one expert into the device tier, with an idle link */
    uint64_t predict_ns; /* one prediction of a layer, if it takes extra time */
    uint64_t layer_ns;   /* a layer without its routed experts, for the usual batch */
    /* Experts that the device tier has room for in addition to the residents that the layer uses;
     * 0: no bound. Not measured: set by the step for the layer to be assigned. */
    uint32_t transient;
    uint32_t executor_count; /* 1..MP_EXECUTORS_MAX */
    struct mp_executor executors[MP_EXECUTORS_MAX];
};

/* True if an absent expert is loaded for it. */
static inline bool mp_executor_loads(const struct mp_executor *executor)
{
    return executor->reads == MP_READS_DEVICE;
}

static inline bool mp_executor_is_known(const struct mp_executor *executor)
{
    return executor->fixed_ns > 0 || executor->token_ns > 0;
}

static inline uint64_t mp_executor_ns(const struct mp_executor *executor, uint32_t tokens)
{
    return executor->fixed_ns + executor->token_ns * tokens;
}

/* The helper: the first executor that works in parallel with the home executor and the link, such
 * as the CPU of a machine with a GPU. MP_EXECUTOR_HOME: there is none. */
static inline uint32_t mp_costs_helper(const struct mp_costs *costs)
{
    for (uint32_t x = 0; x < costs->executor_count; x++) {
        if (costs->executors[x].reads == MP_READS_HOST)
            return x;
    }
    return MP_EXECUTOR_HOME;
}

#endif
