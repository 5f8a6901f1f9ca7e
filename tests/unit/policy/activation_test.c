/*
 * MoE-Infinity's activation matrices, by hand: what earlier requests say of this one, and what
 * leaves.
 */
#include <math.h>

#include "policy/builtins.h"
#include "tests/unit/policy/instance.h"

#define LAYERS 2
#define EXPERTS 4

static const struct mp_shape shape = {
    .layers = LAYERS, .experts = EXPERTS, .top_k = 1, .tokens_max = 4, .slots = 4
};

/* One step of up to three tokens, one expert each. */
static void step(struct mp_policy *policy, uint32_t tokens, const uint32_t *first,
                 const uint32_t *second)
{
    mp_predict_activation.observe(policy, 0, tokens, 1, first);
    mp_predict_activation.observe(policy, 1, tokens, 1, second);
}

/* Layer 1, as layer 0 asks for two tokens. */
static bool predict(struct mp_policy *policy, float scores[2 * EXPERTS])
{
    static const uint32_t chosen[2] = { 0, 0 };
    const struct mp_predict_facts facts = {
        .layer = 0, .target_layer = 1, .tokens = 2, .experts = EXPERTS, .k = 1, .chosen = chosen
    };

    return mp_predict_activation.predict(policy, &facts, scores);
}

static void check_scores(struct mp_policy *policy, float e0, float e1, float e2, float e3)
{
    const float want[EXPERTS] = { e0, e1, e2, e3 };
    float got[2 * EXPERTS];

    CHECK(predict(policy, got));
    for (uint32_t i = 0; i < 2 * EXPERTS; i++)
        CHECK(fabsf(got[i] - want[i % EXPERTS]) < 1e-6f);
}

#define LIST(...) ((const uint32_t[]){ __VA_ARGS__ })

/*
 * Requests of two or three tokens of prompt and one more. Matrices, layer 0 and layer 1:
 *
 *     A  3 0 0 0   0 0 2 1
 *     B  0 3 0 0   2 1 0 0
 *
 * C begins with experts 0 1 1: cos with A 1 / sqrt 5, with B 2 / sqrt 5, so layer 1 will be as B's.
 * Of two matrices that are kept D finds those of B and C, 1 3 0 0 and 0 0 0 4; it begins with 0 0:
 * cos with B is 0, with C 1 / sqrt 10.
 */
static void the_most_similar_request_is_repeated(void)
{
    struct mp_policy *policy = instance(&mp_predict_activation.info, mp_predict_activation.create,
                                        &shape, "KEEP", "2", NULL);
    float scores[2 * EXPERTS];

    mp_predict_activation.observe(policy, 0, 2, 1, LIST(0, 0));
    CHECK(!predict(policy, scores)); /* no other request, and nothing known of layer 1 */
    mp_predict_activation.observe(policy, 1, 2, 1, LIST(2, 2));
    check_scores(policy, 0, 0, 1, 0); /* itself so far */
    step(policy, 1, LIST(0), LIST(3));
    check_scores(policy, 0, 0, 2.0f / 3, 1.0f / 3);

    step(policy, 2, LIST(1, 1), LIST(0, 1));
    check_scores(policy, 0, 0, 2.0f / 3, 1.0f / 3); /* A, nothing alike: there is no other */
    step(policy, 1, LIST(1), LIST(0));

    mp_predict_activation.observe(policy, 0, 3, 1, LIST(0, 1, 1));
    check_scores(policy, 2.0f / 3, 1.0f / 3, 0, 0);
    mp_predict_activation.observe(policy, 1, 3, 1, LIST(3, 3, 3));
    step(policy, 1, LIST(1), LIST(3));

    mp_predict_activation.observe(policy, 0, 2, 1, LIST(0, 0));
    check_scores(policy, 0, 0, 0, 1);
    mp_predict_activation.destroy(policy);
}

/* Two earlier requests that were as much like this one: the one that was kept first is repeated. */
static void of_equally_similar_requests_the_first_place_is_taken(void)
{
    struct mp_policy *policy = instance(&mp_predict_activation.info, mp_predict_activation.create,
                                        &shape, "KEEP", "2", NULL);

    step(policy, 2, LIST(0, 0), LIST(1, 1));
    step(policy, 1, LIST(0), LIST(1));
    step(policy, 2, LIST(0, 0), LIST(2, 2));
    step(policy, 1, LIST(0), LIST(2));
    mp_predict_activation.observe(policy, 0, 2, 1, LIST(0, 0));
    check_scores(policy, 0, 1, 0, 0);
    mp_predict_activation.destroy(policy);
}

struct cache {
    struct mp_policy *policy;
    uint64_t now;
    uint8_t evictable[LAYERS * EXPERTS];
};

static void use(struct cache *c, uint32_t unit, uint32_t tokens)
{
    mp_evict_activation.on_access(c->policy, unit, tokens, ++c->now);
}

/* Who leaves, one after the other; all are there again afterwards. */
static void check_order(struct cache *c, const uint32_t order[4])
{
    const struct mp_evict_query query = { .scope_layer = MP_LAYER_ANY,
                                          .experts = EXPERTS,
                                          .evictable = c->evictable };

    for (uint32_t i = 0; i < 4; i++) {
        CHECK_EQ(mp_evict_activation.pick(c->policy, &query), order[i]);
        c->evictable[order[i]] = 0;
    }
    CHECK_EQ(mp_evict_activation.pick(c->policy, &query), MP_EXPERT_NONE);
    for (uint32_t i = 0; i < 4; i++)
        c->evictable[order[i]] = 1;
}

/*
 * A prompt of 4 tokens: layer 0 wants 0 (3 tokens) and 1, layer 1 wants 4 and 5 (2 each). Then 0 4,
 * 1 4 and 1 4. Of the prompt layer 0 is not in the matrix, which is 1 2 0 0 and 5 2 0 0:
 *
 *     0: 2 batches * 1/3 = 0.67   1: 3 * 2/3 = 2   4: 4 * 5/7 / 2 = 1.43   5: 1 * 2/7 / 2 = 0.14
 *
 * Another prompt, 2 tokens: 0, then 5. Its matrix is unknown and 0 2 0 0:
 *
 *     0 and 1: 3 * 1/4, 1 is older   4: 4 * EPSILON / 2   5: 2 * 1 / 2 = 1
 */
static void what_the_request_does_not_want_leaves(void)
{
    struct cache c = { .policy = instance(&mp_evict_activation.info, mp_evict_activation.create,
                                          &shape, NULL) };
    static const uint32_t units[4] = { 0, 1, 4, 5 };

    for (uint32_t i = 0; i < 4; i++) {
        mp_evict_activation.on_insert(c.policy, units[i], 0);
        c.evictable[units[i]] = 1;
    }
    use(&c, 0, 3);
    use(&c, 1, 1);
    use(&c, 4, 2);
    use(&c, 5, 2);
    for (uint32_t i = 0; i < 3; i++) {
        use(&c, i == 0 ? 0 : 1, 1);
        use(&c, 4, 1);
    }
    check_order(&c, LIST(5, 0, 4, 1));
    use(&c, 0, 2);
    use(&c, 5, 2);
    check_order(&c, LIST(4, 1, 0, 5));
    mp_evict_activation.destroy(c.policy);
}

/*
 * EPSILON is what a unit's count is worth that the request does not want: 5 was wanted in 10
 * batches, 4 in one, of 95 tokens among 10^7. 9.5e-6 + 1e-6 > 10 * 1e-6: 5 leaves. With more tokens
 * 4's part is 8.5e-6, and it leaves.
 */
static void what_is_not_wanted_counts_a_millionth(void)
{
    struct cache c = { .policy = instance(&mp_evict_activation.info, mp_evict_activation.create,
                                          &shape, NULL) };
    const struct mp_evict_query query = { .scope_layer = MP_LAYER_ANY,
                                          .experts = EXPERTS,
                                          .evictable = c.evictable };

    for (uint32_t unit = 4; unit < 6; unit++) {
        mp_evict_activation.on_insert(c.policy, unit, 0);
        c.evictable[unit] = 1;
    }
    use(&c, 0, 1);
    for (uint32_t i = 0; i < 10; i++)
        use(&c, 5, 1);
    use(&c, 0, 2); /* another request */
    use(&c, 4, 95);
    use(&c, 6, 10000000 - 95);
    CHECK_EQ(mp_evict_activation.pick(c.policy, &query), 5);
    use(&c, 6, 1176471);
    CHECK_EQ(mp_evict_activation.pick(c.policy, &query), 4);
    mp_evict_activation.destroy(c.policy);
}

int main(void)
{
    RUN(the_most_similar_request_is_repeated);
    RUN(of_equally_similar_requests_the_first_place_is_taken);
    RUN(what_the_request_does_not_want_leaves);
    RUN(what_is_not_wanted_counts_a_millionth);
    return 0;
}
