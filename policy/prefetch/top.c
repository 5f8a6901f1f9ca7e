/*
 * Load ahead what each token would choose by the predicted scores: the union of all tokens' best
 * experts, ordered by how many tokens want them, then by the sum of their scores, then by id.
 */
#include "policy/builtins.h"

#include "policy/prefetch/candidates.h"

struct top_config {
    uint64_t ranks;
};

static const struct mp_opt top_opts[] = {
    MP_OPT(MP_OPT_U64, "RANKS", struct top_config, ranks, "0", 0, 4096,
           "Predicted experts of each token that prefetch policy top loads ahead; 0: as many as "
           "the model chooses."),
    MP_OPT_END,
};

struct top {
    struct mp_policy super;
    uint32_t ranks;
    struct mp_candidates candidates;
};

static void top_take(struct mp_policy *policy, const struct mp_shape *shape, struct mp_arena *arena)
{
    mp_candidates_take(&((struct top *)policy)->candidates, shape, arena);
}

static enum mp_status top_create(const void *config, const struct mp_shape *shape,
                                 struct mp_policy **policy_p)
{
    const uint64_t given = ((const struct top_config *)config)->ranks;
    const uint64_t ranks = given == 0 ? shape->top_k : given;
    struct top draft = {
        .super.info = &mp_prefetch_top.info,
        .ranks = ranks < shape->experts ? (uint32_t)ranks : shape->experts,
    };

    return mp_policy_make(&draft.super, sizeof(draft), top_take, shape, policy_p);
}

static uint32_t top_choose(struct mp_policy *policy, const struct mp_prefetch_facts *facts,
                           uint32_t *experts)
{
    struct top *top = (struct top *)policy;
    const uint32_t count =
        mp_candidates_gather(&top->candidates, facts, top->ranks, MP_MARGIN_NONE);

    for (uint32_t i = 0; i < count; i++)
        experts[i] = top->candidates.list[i].expert;
    return count;
}

const struct mp_prefetch_ops mp_prefetch_top = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "top",
              .summary = "each token's best experts by the predicted scores",
              .opts = top_opts,
              .config_size = sizeof(struct top_config) },
    .create = top_create,
    .destroy = mp_policy_free,
    .choose = top_choose,
};
