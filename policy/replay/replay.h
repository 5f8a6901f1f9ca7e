#ifndef MP_REPLAY_H
#define MP_REPLAY_H

#include "policy/policy.h"

/*
 * Replays an evict policy on a recorded trace and counts hits and bytes, without a device. The two
 * accountings and the bound are explained in docs/replay.md.
 *
 * Thread safety: one thread builds a trace; mp_replay() only reads it, so several threads may
 * replay it.
 */
#define MP_REPLAY_NEVER UINT32_MAX
#define MP_REPLAY_EXPERT_BYTES_MAX (UINT64_C(1) << 32)

/* One expert that a batch needs in one layer. */
struct mp_replay_use {
    uint32_t id;
    uint32_t tokens; /* of the batch that chose it */
    uint32_t next;   /* the group that needs it next, or MP_REPLAY_NEVER */
};

/* One batch in one layer: uses first .. first + count, in the order of their last token. */
struct mp_replay_group {
    uint32_t layer, first, count;
    uint32_t first_row, tokens; /* rows of the batch in the trace */
    bool decode;                /* else part of a prompt */
};

struct mp_replay_trace {
    uint32_t layers, experts, top_k;
    void *block;           /* layer_bytes and place */
    uint64_t *layer_bytes; // (layers): of one expert
    uint64_t total_bytes;  /* of all experts */
    uint64_t expert_bytes; /* of the largest expert */
    uint64_t cycle_bytes;  /* what one token touches over all layers */
    struct mp_replay_group *groups;
    struct mp_replay_use *uses;
    uint32_t *place; // (layers * experts): while building, 1 + the last use of the expert
    size_t group_count, group_room, use_count, use_room;
    uint32_t choices;
    uint32_t tokens_max; /* of one batch */

    uint32_t *chosen; // (rows, top_k)
    float *scores;    // (rows, experts): the router's scores, if the trace has them; else NULL
    size_t scored, score_room, chosen_room;
};

/* Begin an empty trace; the caller then fills layer_bytes. The numbers are within the limits of
 * docs/trace-format.md. On failure nothing is left. */
enum mp_status mp_replay_trace_init(struct mp_replay_trace *trace, uint32_t layers,
                                    uint32_t experts, uint32_t top_k) MP_MUST_CHECK;
/* A batch arrives at a layer; MP_ERR_UNSUPPORTED E_REPLAY: more than can be counted. */
enum mp_status mp_replay_trace_begin(struct mp_replay_trace *trace, uint32_t layer,
                                     bool decode) MP_MUST_CHECK;
/* One token of it chose `expert`; top_k of them in a row are one token. */
enum mp_status mp_replay_trace_choose(struct mp_replay_trace *trace, uint32_t expert) MP_MUST_CHECK;
/* Before the choices of a token, for all tokens or for none: scores(experts). */
enum mp_status mp_replay_trace_score(struct mp_replay_trace *trace,
                                     const float *scores) MP_MUST_CHECK;
/* Complete the trace: links the uses. MP_ERR_UNSUPPORTED E_REPLAY: an expert of no bytes or too
 * many. */
enum mp_status mp_replay_trace_end(struct mp_replay_trace *trace) MP_MUST_CHECK;
/* Safe on a zeroed trace. */
void mp_replay_trace_fini(struct mp_replay_trace *trace);

/* Read a file: ours, or `route_trace v1`, distinguished by the first line. E_TRACE_READ,
 * E_TRACE_LINE as in policy/record/trace.h, or E_REPLAY. */
enum mp_status mp_replay_trace_read(const char *path, struct mp_replay_trace *trace) MP_MUST_CHECK;

enum mp_replay_accounting { MP_REPLAY_PAGER, MP_REPLAY_CURVE };

struct mp_replay_config {
    const char *evict;     /* "belady", or an evict policy; "layer" and "layerlfu" are aliases */
    const char *partition; /* "global", ...; with MP_REPLAY_CURVE the policy determines it */
    const char *admit;     /* NULL: "always" */
    const char *predict;   /* NULL: "none"; for partitions that use predictions */
    const struct mp_calibration *calibration; /* or NULL; of the trace's shape */
    const struct mp_costs *costs;             /* passed to the policies; or NULL: unknown */
    const char *assign; /* with costs: chooses executors; experts that the device does not compute
                           are not loaded. NULL: all are loaded */
    enum mp_replay_accounting accounting;
    uint64_t budget_bytes;
    uint32_t slices; /* of an expert, 0 or 1: whole; the curves have whole ones */
    uint64_t seed;
    const struct mp_opt_group *groups; /* options of the policies; may be NULL */
};

struct mp_replay_result {
    const char *evict, *partition; /* proper names, static */
    uint64_t lookups, hits, decode_lookups, decode_hits, bytes_read;
    uint64_t partial_hits;            /* misses of which some slices were resident */
    uint64_t bound_decode_hits;       /* of the same partition */
    uint64_t time_ns, decode_time_ns; /* modelled by policy/assign/plan.h; 0 without costs */
};

/* MP_ERR_CONFIG E_POLICY, E_REPLAY: the configuration cannot be replayed, and why.
 * MP_ERR_UNSUPPORTED E_REPLAY_NA: the policy needs more than this trace or this accounting has. */
enum mp_status mp_replay(const struct mp_replay_trace *trace, const struct mp_replay_config *config,
                         struct mp_replay_result *result_p) MP_MUST_CHECK;

#endif
