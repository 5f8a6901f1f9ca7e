#ifndef MP_REPLAY_INT_H
#define MP_REPLAY_INT_H

#include "policy/replay/replay.h"

/*
 * Shared by the accountings: the experts resident in each scope. A scope is one layer, or all
 * layers as scope 0.
 */
struct mp_replay_set {
    const struct mp_replay_trace *trace;
    bool per_layer;
    void *block;       /* of the arrays */
    uint32_t *id;      // (layers * experts): scope s has those from base(s), count[s] of them
    uint32_t *place;   // (layers * experts): in `id`, MP_EXPERT_NONE if not resident
    uint32_t *count;   // (scopes)
    uint64_t *key;     // (layers * experts): smallest leaves first
    uint64_t *second;  // (layers * experts): decides between equal keys
    uint32_t *touched; // (layers * experts): 1 + the group that used it last
};

enum mp_status mp_replay_set_init(struct mp_replay_set *set, const struct mp_replay_trace *trace,
                                  bool per_layer) MP_MUST_CHECK;
void mp_replay_set_fini(struct mp_replay_set *set);
uint32_t mp_replay_scope(const struct mp_replay_set *set, uint32_t id);
bool mp_replay_holds(const struct mp_replay_set *set, uint32_t id);
void mp_replay_add(struct mp_replay_set *set, uint32_t id);
void mp_replay_remove(struct mp_replay_set *set, uint32_t id);
/* The resident expert of a scope that leaves first and was not touched by the group with the mark
 * `except` (0: any), or MP_EXPERT_NONE. */
uint32_t mp_replay_first(const struct mp_replay_set *set, uint32_t scope, uint32_t except);

/* A replay with its policies. */
struct mp_replay_run {
    const struct mp_replay_trace *trace;
    struct mp_policies policies;
    struct mp_shape shape;
    struct mp_replay_set set;
    void *block;     /* all arrays below */
    uint32_t *slots; // (layers): of each scope, in whole experts

    /* Slices: of an expert the first part[id] are held. Those of them within retained[layer]
     * count for the slots of a scope, used[scope] of them; the others are surplus and live in
     * `room`. */
    uint32_t slices;    /* >= 1 */
    uint8_t *part;      // (layers * experts)
    uint32_t *retained; // (layers)
    uint32_t *used;     // (layers): of each scope
    uint32_t surplus, room;
    uint8_t *evictable;          // (layers * experts)
    uint8_t *candidates;         // (layers * experts): scratch
    struct mp_replay_use *needs; // (experts): of one batch, ascending
    uint32_t *scratch;           // (layers * experts): results of the partition policy
    struct mp_swap *swaps;       // (experts)
    float *predicted;            // (tokens_max, experts), if anything is predicted
    bool timed;                  /* costs are known */
    uint64_t debt_ns;            /* of the link: loads that no need waits for */
    struct mp_assign_facts facts;
    uint32_t *need_experts, *need_tokens; // (experts)
    float *need_scores;                   // (experts)
    uint8_t *need_resident;               // (experts)
    uint32_t *executors;                  // (experts)
    bool per_layer;                       /* of the partition as asked for */
    uint64_t now;
};

/* replay_slices.c: counts of the slices held of each expert. */
bool mp_replay_is_full(const struct mp_replay_run *run, uint32_t scope);
/* Add a slice, or remove the last one; the policy is notified of the first one added and of the
 * last one removed. */
void mp_replay_grow(struct mp_replay_run *run, uint32_t id);
void mp_replay_shrink(struct mp_replay_run *run, uint32_t id);
/* Remove slices until one that counted for its scope is gone. */
void mp_replay_peel(struct mp_replay_run *run, uint32_t id);
/* Evict the whole expert. */
void mp_replay_drop(struct mp_replay_run *run, uint32_t id);
/* True if the expert's next slice would be surplus. */
bool mp_replay_next_is_surplus(const struct mp_replay_run *run, uint32_t id);
/* Make room for a surplus slice. False: nothing may be evicted. */
bool mp_replay_free_surplus(struct mp_replay_run *run, uint32_t for_id);
/* Get the retained slices from the partition policy and recount. */
void mp_replay_ask_retained(struct mp_replay_run *run);

/* The whole trace in the pager's accounting. */
void mp_replay_pager(struct mp_replay_run *run, struct mp_replay_result *result);

/* Count one use. */
void mp_replay_count(struct mp_replay_result *result, const struct mp_replay_trace *trace,
                     const struct mp_replay_group *group, bool hit);

/*
 * The offline optimum for slots[scope] experts: after each batch the experts needed furthest in the
 * future are dropped, even if they were just loaded (Belady with bypass). With `decode_only` hits
 * in prompts do not count.
 */
enum mp_status mp_replay_optimum(const struct mp_replay_trace *trace, bool per_layer,
                                 const uint32_t *slots, bool decode_only,
                                 struct mp_replay_result *result) MP_MUST_CHECK;

/* The accounting of the published curves. */
enum mp_status mp_replay_curve(const struct mp_replay_trace *trace,
                               const struct mp_replay_config *config,
                               struct mp_replay_result *result) MP_MUST_CHECK;

#endif
