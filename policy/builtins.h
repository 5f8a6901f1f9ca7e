#ifndef MP_POLICY_BUILTINS_H
#define MP_POLICY_BUILTINS_H

#include "policy/policy.h"
#include "vmm/base/arena.h"

/*
 * The tables that policy.c lists, and the few functions that several policies share.
 */
extern const struct mp_route_ops mp_route_exact;
extern const struct mp_route_ops mp_route_smoe;
extern const struct mp_route_ops mp_route_smoe_similar;
extern const struct mp_assign_ops mp_assign_gpu_only;
extern const struct mp_assign_ops mp_assign_threshold;
extern const struct mp_assign_ops mp_assign_two_pointer;
extern const struct mp_assign_ops mp_assign_greedy;
extern const struct mp_assign_ops mp_assign_beam;
extern const struct mp_assign_ops mp_assign_exact;
extern const struct mp_assign_ops mp_assign_queue;
extern const struct mp_assign_ops mp_assign_resident;
extern const struct mp_assign_ops mp_assign_presched;
extern const struct mp_assign_ops mp_assign_cost;
extern const struct mp_predict_ops mp_predict_none;
extern const struct mp_predict_ops mp_predict_gate;
extern const struct mp_predict_ops mp_predict_history;
extern const struct mp_predict_ops mp_predict_residual;
extern const struct mp_predict_ops mp_predict_partial;
extern const struct mp_predict_ops mp_predict_gate_around;
extern const struct mp_predict_ops mp_predict_llapor;
extern const struct mp_predict_ops mp_predict_activation;
extern const struct mp_prefetch_ops mp_prefetch_none;
extern const struct mp_prefetch_ops mp_prefetch_top;
extern const struct mp_prefetch_ops mp_prefetch_top_score;
extern const struct mp_prefetch_ops mp_prefetch_workload;
extern const struct mp_prefetch_ops mp_prefetch_hot;
extern const struct mp_prefetch_ops mp_prefetch_impact;
extern const struct mp_prefetch_ops mp_prefetch_window;
extern const struct mp_prefetch_ops mp_prefetch_presched;
extern const struct mp_prefetch_ops mp_prefetch_idle;
extern const struct mp_admit_ops mp_admit_always;
extern const struct mp_admit_ops mp_admit_window;
extern const struct mp_admit_ops mp_admit_never;
extern const struct mp_evict_ops mp_evict_lru;
extern const struct mp_evict_ops mp_evict_lfu;
extern const struct mp_evict_ops mp_evict_random;
extern const struct mp_evict_ops mp_evict_layer_lru;
extern const struct mp_evict_ops mp_evict_layer_lfu;
extern const struct mp_evict_ops mp_evict_score;
extern const struct mp_evict_ops mp_evict_mrs;
extern const struct mp_evict_ops mp_evict_ema;
extern const struct mp_evict_ops mp_evict_workload;
extern const struct mp_evict_ops mp_evict_none;
extern const struct mp_evict_ops mp_evict_lfru;
extern const struct mp_evict_ops mp_evict_class_lru;
extern const struct mp_evict_ops mp_evict_lcp;
extern const struct mp_evict_ops mp_evict_shadow;
extern const struct mp_evict_ops mp_evict_best;
extern const struct mp_evict_ops mp_evict_activation;
extern const struct mp_partition_ops mp_partition_global;
extern const struct mp_partition_ops mp_partition_uniform;
extern const struct mp_partition_ops mp_partition_random;
extern const struct mp_partition_ops mp_partition_hot_table;
extern const struct mp_partition_ops mp_partition_static_layers;
extern const struct mp_partition_ops mp_partition_adapmoe;
extern const struct mp_partition_ops mp_partition_fixed_point;

/* The finaliser of splitmix64: every bit of the result depends on every bit of the input. */
static inline uint64_t mp_policy_mix(uint64_t v)
{
    v += 0x9e3779b97f4a7c15u;
    v = (v ^ v >> 30) * 0xbf58476d1ce4e5b9u;
    v = (v ^ v >> 27) * 0x94d049bb133111ebu;
    return v ^ v >> 31;
}

/* For predictors that only declare a source: scores := the engine's scores of that source. */
bool mp_predict_source(struct mp_policy *policy, const struct mp_predict_facts *facts,
                       float *scores);

/* How often `shadow` has changed its leader, or its static placement while that led. For tests,
 * because no other result shows the leader. */
uint32_t mp_evict_shadow_changes(const struct mp_policy *policy);

/*
 * Allocate an instance and its arrays in one block. `draft` is the instance, `bytes` long, with all
 * fields set except the arrays, which `take` takes from the arena. `take` is called twice: with the
 * draft, and with its copy in the block, where arrays are zeroed and may be filled; NULL: there are
 * no arrays. mp_policy_free() frees all.
 */
typedef void (*mp_policy_take_fn)(struct mp_policy *policy, const struct mp_shape *shape,
                                  struct mp_arena *arena);
enum mp_status mp_policy_make(struct mp_policy *draft, size_t bytes, mp_policy_take_fn take,
                              const struct mp_shape *shape,
                              struct mp_policy **policy_p) MP_MUST_CHECK;
void mp_policy_free(struct mp_policy *policy);

/* For policies without state: an instance that is only the common head. */
enum mp_status mp_policy_create_plain(const struct mp_policy_info *info,
                                      struct mp_policy **policy_p) MP_MUST_CHECK;

#endif
