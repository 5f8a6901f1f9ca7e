#ifndef MP_POLICY_COSTS_H
#define MP_POLICY_COSTS_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Who computes experts on a machine and what work costs there: facts that policies are given and
 * that the engine, the simulator and a replay fill in. Part of the contract in policy/policy.h.
 * Nothing here measures.
 */

/* From where an executor reads the bytes of an expert. */
enum mp_reads {
    MP_READS_DEVICE, /* the device tier: what is absent is loaded first */
    MP_READS_LINK,   /* the host tier, over the link that loads take; nothing is loaded */
    MP_READS_HOST,   /* the host tier, not over that link; nothing is loaded */
    MP_READS_COUNT
};

/*
 * Somebody who computes experts: an instance, known by its place in a list. Policies choose by
 * properties; names are for people. An expert on n tokens costs fixed + n * token ns; both 0: not
 * known.
 */
struct mp_executor {
    const char *name; /* outlives the list */
    uint64_t fixed_ns, token_ns;
    uint64_t handoff_ns; /* activations there and back, once for a layer that it works on */
    enum mp_reads reads;
    uint32_t processor; /* executors with the same number take turns; < MP_EXECUTORS_MAX */
};

#define MP_EXECUTORS_MAX 8u

/* The first of every list: it reads the device tier, and computes what nobody else can have. */
#define MP_EXECUTOR_HOME 0u

/*
 * Who computes on this machine, and what work costs there, in ns; 0: not known. Measured costs may
 * change while running, except with --deterministic; the list stays.
 */
struct mp_costs {
    uint64_t load_ns;    /* bring one expert into the device tier, nothing else on the link */
    uint64_t predict_ns; /* one prediction of a layer, if it takes time of its own */
    uint64_t layer_ns;   /* everything of a layer but its routed experts, for the usual batch */
    /* Experts that the device tier can take beside the residents that the layer uses; 0: no bound.
     * Not measured: what the step says of the layer to be assigned. */
    uint32_t transient;
    uint32_t executor_count; /* 1..MP_EXECUTORS_MAX */
    struct mp_executor executors[MP_EXECUTORS_MAX];
};

/* Is an expert loaded for it, if it is absent? */
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

/* The first executor that computes beside the home executor and the link: the CPU of a machine with
 * a GPU. MP_EXECUTOR_HOME: there is none. */
static inline uint32_t mp_costs_helper(const struct mp_costs *costs)
{
    for (uint32_t x = 0; x < costs->executor_count; x++) {
        if (costs->executors[x].reads == MP_READS_HOST)
            return x;
    }
    return MP_EXECUTOR_HOME;
}

#endif
