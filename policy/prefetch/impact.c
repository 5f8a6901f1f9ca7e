/*
 * HybriMoE ("Hybrid CPU-GPU Scheduling and Cache Management for Efficient MoE Inference", DAC
 * 2025), impact-driven prefetching: the routers of the next three layers are asked early, the
 * schedule of each layer is simulated (policy/assign/queue.h) without and with one more expert
 * resident, and the experts that make the layer end sooner are loaded ahead, the largest gain
 * first.
 *
 * Written from public descriptions. Ours: each expert is weighed by itself, not in addition to
 * those chosen before; ties go to more tokens, then to the higher sum of scores. Where times are
 * not known, or there is no CPU executor, the gain of every cold expert is a load, so that the
 * order is that of prefetch policy `top`.
 */
#include "policy/builtins.h"

#include "policy/assign/queue.h"
#include "policy/prefetch/candidates.h"

#define LAYERS_AHEAD 3

struct impact {
    struct mp_sorter sorter;
    struct mp_candidates candidates;
    uint32_t *tokens;  // (experts): of the candidates, in their order
    uint8_t *resident; // (experts)
    uint64_t *gain_ns; // (experts)
};

static void impact_take(struct mp_policy *policy, const struct mp_shape *shape,
                        struct mp_arena *arena)
{
    struct impact *self = (struct impact *)policy;

    mp_sorter_take(policy, shape, arena);
    mp_candidates_take(&self->candidates, shape, arena);
    self->tokens = mp_arena_take(arena, shape->experts, sizeof(uint32_t));
    self->resident = mp_arena_take(arena, shape->experts, 1);
    self->gain_ns = mp_arena_take(arena, shape->experts, sizeof(uint64_t));
}

static enum mp_status impact_create(const void *config, const struct mp_shape *shape,
                                    struct mp_policy **policy_p)
{
    struct impact draft = { .sorter.super.info = &mp_prefetch_impact.info };

    (void)config;
    return mp_policy_make(&draft.sorter.super, sizeof(draft), impact_take, shape, policy_p);
}

/* gain_ns[i] := how much sooner the layer ends with candidate i resident too. */
static void weigh(struct impact *self, const struct mp_costs *costs, uint32_t count)
{
    const uint64_t plain_ns =
        mp_queue_plan(&self->sorter, costs, self->tokens, self->resident, count, NULL);

    for (uint32_t i = 0; i < count; i++) {
        uint64_t with_ns;

        self->gain_ns[i] = 0;
        if (self->resident[i])
            continue;
        /* Candidates come by tokens: equal ones stand together and gain the same. */
        if (i > 0 && !self->resident[i - 1] && self->tokens[i - 1] == self->tokens[i]) {
            self->gain_ns[i] = self->gain_ns[i - 1];
            continue;
        }
        self->resident[i] = 1;
        with_ns = mp_queue_plan(&self->sorter, costs, self->tokens, self->resident, count, NULL);
        self->resident[i] = 0;
        self->gain_ns[i] = plain_ns > with_ns ? plain_ns - with_ns : 0;
    }
}

static uint32_t impact_choose(struct mp_policy *policy, const struct mp_prefetch_facts *facts,
                              uint32_t *experts)
{
    struct impact *self = (struct impact *)policy;
    const struct mp_assign_facts *current = facts->current;
    const uint32_t seen = mp_candidates_gather(&self->candidates, facts, facts->k, MP_MARGIN_NONE);
    uint32_t count = 0;

    for (uint32_t i = 0; i < seen; i++) {
        self->tokens[i] = self->candidates.list[i].tokens;
        self->resident[i] = facts->resident[self->candidates.list[i].expert];
        self->gain_ns[i] = !self->resident[i];
    }
    if (current != NULL && mp_assign_can_weigh(current))
        weigh(self, current->costs, seen);
    mp_sorter_sort(self->sorter.order, seen, self->gain_ns);
    while (count < seen && self->gain_ns[self->sorter.order[count]] > 0) {
        experts[count] = self->candidates.list[self->sorter.order[count]].expert;
        count++;
    }
    return count;
}

const struct mp_prefetch_ops mp_prefetch_impact = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "impact",
              .summary = "what makes the next three layers end sooner, by simulation (HybriMoE)",
              .costs = true },
    .create = impact_create,
    .destroy = mp_policy_free,
    .choose = impact_choose,
    .reach = LAYERS_AHEAD,
};
