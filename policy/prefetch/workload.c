/*
 * By workload: each token's k best predicted experts are counted, and the experts with the most
 * tokens are loaded ahead.
 *
 * `workload` is DALI's ("A Workload-Aware Offloading Framework for Efficient MoE Inference on Local
 * PCs", section 4.2): a fixed number, 1 for Mixtral and 4 for DeepSeek-V2-Lite and Qwen3-30B-A3B
 * (figure 12; figure 19 has 8 for Qwen). The policy does not know the model: layers of at most 8
 * experts get 1, others 4.
 *
 * `hot` is Klotski's ("Efficient Mixture-of-Expert Inference via Expert-Aware Multi-Batch
 * Pipeline", ASPLOS 2025): as many hot experts as a token chooses, so that they can be computed
 * while the others load on demand. Its choice comes from correlations between layers, which is
 * predictor `history`. Written from the paper's abstract and from what PreScope says of it.
 *
 * Departure of both: experts that are resident or on the way are passed over, not counted. Ties go
 * to the higher sum of scores, then to the lower id.
 */
#include "policy/builtins.h"

#include "policy/prefetch/candidates.h"

#define FEW_EXPERTS 8 /* Mixtral's */

struct workload_config {
    uint64_t count;
};

static const struct mp_opt workload_opts[] = {
    MP_OPT(MP_OPT_U64, "COUNT", struct workload_config, count, "0", 0, 4096,
           "Experts that prefetch policy workload loads ahead per layer; 0: 1 in layers of up to 8 "
           "experts, 4 in larger ones."),
    MP_OPT_END,
};

struct workload {
    struct mp_policy super;
    uint64_t count;
    struct mp_candidates candidates;
};

static void workload_take(struct mp_policy *policy, const struct mp_shape *shape,
                          struct mp_arena *arena)
{
    mp_candidates_take(&((struct workload *)policy)->candidates, shape, arena);
}

static enum mp_status create_as(const struct mp_policy_info *info, uint64_t count,
                                const struct mp_shape *shape, struct mp_policy **policy_p)
{
    struct workload draft = { .super.info = info, .count = count };

    return mp_policy_make(&draft.super, sizeof(draft), workload_take, shape, policy_p);
}

static enum mp_status workload_create(const void *config_, const struct mp_shape *shape,
                                      struct mp_policy **policy_p)
{
    const struct workload_config *config = config_;
    const uint64_t by_size = shape->experts <= FEW_EXPERTS ? 1 : 4;

    return create_as(&mp_prefetch_workload.info, config->count > 0 ? config->count : by_size, shape,
                     policy_p);
}

static enum mp_status hot_create(const void *config, const struct mp_shape *shape,
                                 struct mp_policy **policy_p)
{
    (void)config;
    return create_as(&mp_prefetch_hot.info, shape->top_k, shape, policy_p);
}

static uint32_t workload_choose(struct mp_policy *policy, const struct mp_prefetch_facts *facts,
                                uint32_t *experts)
{
    struct workload *self = (struct workload *)policy;
    const uint32_t seen = mp_candidates_gather(&self->candidates, facts, facts->k, MP_MARGIN_NONE);
    uint32_t count = 0;

    for (uint32_t i = 0; i < seen && count < self->count; i++) {
        const uint32_t expert = self->candidates.list[i].expert;

        if (!facts->resident[expert])
            experts[count++] = expert;
    }
    return count;
}

const struct mp_prefetch_ops mp_prefetch_workload = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "workload",
              .summary = "the cold experts that most tokens are predicted to choose (DALI)",
              .opts = workload_opts,
              .config_size = sizeof(struct workload_config) },
    .create = workload_create,
    .destroy = mp_policy_free,
    .choose = workload_choose,
};

const struct mp_prefetch_ops mp_prefetch_hot = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "hot",
              .summary = "as many hot experts as a token chooses (Klotski)" },
    .create = hot_create,
    .destroy = mp_policy_free,
    .choose = workload_choose,
};
