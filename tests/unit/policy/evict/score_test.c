/*
 * Replacement by score: SMoE's mean of a window (eq. 3), and MRS, which forgets by halves.
 */
#include "policy/builtins.h"
#include "policy/top_k.h"
#include "tests/unit/policy/instance.h"
#include "tests/unit/policy/route/smoe_figure.h"

/* eq. 3 with n = 1, the mean of this step and the one before; the four experts of layer 0 are
 * resident. */
static void score_evicts_the_lowest_mean(void)
{
    static const float steps[3][4] = { { 0.4f, 0.3f, 0.2f, 0.1f },
                                       { 0.1f, 0.2f, 0.3f, 0.4f },
                                       { 0.5f, 0.3f, 0.0f, 0.2f } };
    const struct mp_shape shape = {
        .layers = 2, .experts = 4, .top_k = 2, .tokens_max = 2, .slots = 8
    };
    const struct mp_evict_ops *ops = &mp_evict_score;
    uint8_t evictable[8] = { 1, 1, 1, 1, 0, 0, 0, 0 };
    const struct mp_evict_query query = {
        .for_unit = 4, .scope_layer = MP_LAYER_ANY, .experts = 4, .evictable = evictable
    };
    struct mp_policy *score = instance(&ops->info, ops->create, &shape, "N", "1", NULL);
    static const uint32_t chosen[4] = { 0, 1, 2, 3 };
    static const float two_tokens[8] = { 0.2f, 0.2f, 0.3f, 0.3f, 0.2f, 0.2f, 0.3f, 0.3f };

    for (uint32_t u = 0; u < 4; u++)
        ops->on_insert(score, u, 0);
    CHECK_EQ(ops->pick(score, &query), 0); /* no scores yet: the oldest */
    ops->on_scores(score, 0, 1, 2, steps[0], chosen, 1);
    CHECK_EQ(ops->pick(score, &query), 3);
    ops->on_access(score, 3, 1, 1); /* chosen: shielded until the layer ends */
    CHECK_EQ(ops->pick(score, &query), 2);
    ops->on_scores(score, 0, 1, 2, steps[2], chosen, 2); /* the next time: the shield is gone */
    /* means 0.45 0.3 0.1 0.15 */
    CHECK_EQ(ops->pick(score, &query), 2);
    evictable[2] = 0;
    CHECK_EQ(ops->pick(score, &query), 3);
    evictable[2] = 1;
    for (uint32_t u = 0; u < 4; u++)
        ops->on_access(score, u, 1, 2);
    CHECK_EQ(ops->pick(score, &query), 2); /* all shielded: still the lowest */
    ops->on_scores(score, 0, 2, 2, two_tokens, chosen, 3);
    /* The batch counts by its mean: 0.35 0.25 0.15 0.25. */
    CHECK_EQ(ops->pick(score, &query), 2);
    ops->on_scores(score, 0, 1, 2, steps[1], chosen, 4); /* 0.15 0.2 0.3 0.35 */
    CHECK_EQ(ops->pick(score, &query), 0);
    ops->on_remove(score, 0, 4);
    evictable[0] = 0;
    CHECK_EQ(ops->pick(score, &query), 1);
    ops->destroy(score);
}

/* HybriMoE: S := TopP(s) / 2 + S / 2 with P = 2 of 4 experts. */
static void mrs_forgets_by_halves(void)
{
    const struct mp_shape shape = {
        .layers = 1, .experts = 4, .top_k = 1, .tokens_max = 2, .slots = 4
    };
    static const float first[4] = { 0.4f, 0.3f, 0.2f, 0.1f },
                       second[4] = { 0.1f, 0.2f, 0.3f, 0.4f };
    const struct mp_evict_ops *ops = &mp_evict_mrs;
    uint8_t evictable[4] = { 1, 1, 1, 1 };
    const struct mp_evict_query query = {
        .for_unit = 0, .scope_layer = MP_LAYER_ANY, .experts = 4, .evictable = evictable
    };
    struct mp_policy *mrs = instance(&ops->info, ops->create, &shape, NULL);

    for (uint32_t u = 4; u-- > 0;)
        ops->on_insert(mrs, u, 0);
    ops->on_scores(mrs, 0, 1, 1, first, NULL, 1); /* 0.2 0.15 0 0: of 2 and 3 the older */
    CHECK_EQ(ops->pick(mrs, &query), 3);
    ops->on_scores(mrs, 0, 1, 1, second, NULL, 2); /* 0.1 0.075 0.15 0.2 */
    CHECK_EQ(ops->pick(mrs, &query), 1);
    ops->on_scores(mrs, 0, 1, 1, second, NULL, 3); /* 0.05 0.0375 0.225 0.3 */
    evictable[1] = 0;
    CHECK_EQ(ops->pick(mrs, &query), 0);
    ops->destroy(mrs);
}

int main(void)
{
    RUN(score_evicts_the_lowest_mean);
    RUN(mrs_forgets_by_halves);
    return 0;
}
