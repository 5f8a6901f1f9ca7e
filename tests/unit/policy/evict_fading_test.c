/*
 * Evict policies whose counts fade, and the one that keeps its residents: victims worked out by
 * hand.
 */
#include <math.h>
#include <stdlib.h>

#include "policy/builtins.h"
#include "policy/priority.h"
#include "tests/support/test.h"

#define LAYERS 2
#define EXPERTS 4
#define UNITS (LAYERS * EXPERTS)

struct bench {
    const struct mp_evict_ops *ops;
    struct mp_policy *policy;
    uint64_t now;
    uint8_t evictable[UNITS];
};

static void open_bench(struct bench *b, const struct mp_evict_ops *ops, const void *config,
                       uint32_t top_k, uint32_t slots)
{
    const struct mp_shape shape = {
        .layers = LAYERS, .experts = EXPERTS, .top_k = top_k, .tokens_max = 8, .slots = slots
    };

    *b = (struct bench){ .ops = ops };
    CHECK_EQ(ops->create(config, &shape, &b->policy), MP_OK);
}

static void close_bench(struct bench *b)
{
    b->ops->destroy(b->policy);
}

static void insert(struct bench *b, uint32_t unit)
{
    b->ops->on_insert(b->policy, unit, b->now);
    b->evictable[unit] = 1;
}

/* One token of the unit's layer that chooses the unit alone. */
static void token(struct bench *b, uint32_t unit)
{
    b->ops->on_access(b->policy, unit, 1, ++b->now);
}

static uint32_t pick(struct bench *b, uint32_t scope)
{
    const struct mp_evict_query query = { .scope_layer = scope,
                                          .experts = EXPERTS,
                                          .evictable = b->evictable };

    return b->ops->pick(b->policy, &query);
}

/*
 * omega 2, rho 1/4: a count is worth half after one token without use.
 *
 * Tokens of layer 0: 0 0 0 0 1 2. Then P(0) = 4 * 1/4 = 1 (nu 2), P(1) = 1 * 1/2 (nu 1), P(2) = 1
 * (nu 0), and 3 was never used. Tie of 0 and 2: 0 is the older.
 * One more token of 2: P(0) = 1/2, P(1) = 1/4, P(2) = 2.
 * One more of 1: P(0) = 1/4, P(1) = 2, P(2) = 1.
 */
static void lcp_fades_what_is_not_used(void)
{
    static const struct {
        double rho, omega;
    } config = { 0.25, 2 };
    static const uint32_t tokens[6] = { 0, 0, 0, 0, 1, 2 };
    struct bench b;

    CHECK_EQ(sizeof(config), mp_evict_lcp.info.config_size);
    open_bench(&b, &mp_evict_lcp, &config, 1, 4);
    for (uint32_t i = 0; i < 6; i++)
        token(&b, tokens[i]);
    for (uint32_t u = 0; u < 4; u++)
        insert(&b, u);
    CHECK_EQ(pick(&b, MP_LAYER_ANY), 3);
    b.evictable[3] = 0;
    CHECK_EQ(pick(&b, MP_LAYER_ANY), 1);
    b.evictable[1] = 0;
    CHECK_EQ(pick(&b, MP_LAYER_ANY), 0); /* a tie by value, inserted before 2 */
    b.evictable[1] = 1;
    token(&b, 2);
    CHECK_EQ(pick(&b, MP_LAYER_ANY), 1);
    token(&b, 1);
    CHECK_EQ(pick(&b, MP_LAYER_ANY), 0);
    /* Layer 1's tokens do not age layer 0, and the scope is obeyed. */
    for (uint32_t i = 0; i < 20; i++)
        token(&b, 5);
    insert(&b, 5);
    CHECK_EQ(pick(&b, MP_LAYER_ANY), 0);
    CHECK_EQ(pick(&b, 1), 5);
    close_bench(&b);
}

/*
 * A batch is one moment: k = 2, 3 tokens choose 0 1, 0 1, 0 2. None of these three has aged; then
 * one token chooses 1 3: nu(0) = nu(2) = 1 token, though it is two pairs. And it is one activation
 * of each: else a prompt of thousands of tokens would outweigh all that is used after it.
 */
static void priorities_count_tokens_and_batches_are_one_moment(void)
{
    const struct mp_shape shape = { .layers = 1, .experts = 4, .top_k = 2 };
    const double fade = log(4) / 128;
    struct mp_arena arena = { 0 };
    struct mp_priority p;

    mp_priority_init(&p, &shape, 0.25, 128);
    mp_priority_take(&p, &arena);
    CHECK_EQ(mp_arena_open(&arena, "a test"), MP_OK);
    mp_priority_take(&p, &arena);
    CHECK(mp_priority_log(&p, 0) == -INFINITY);
    mp_priority_access(&p, 0, 3, 1);
    mp_priority_access(&p, 1, 2, 1);
    mp_priority_access(&p, 2, 1, 1);
    for (uint32_t id = 0; id < 3; id++)
        CHECK(mp_priority_log(&p, id) == 0);
    mp_priority_access(&p, 1, 1, 2);
    mp_priority_access(&p, 3, 1, 2);
    CHECK(fabs(mp_priority_log(&p, 0) + fade) < 1e-12);
    CHECK(fabs(mp_priority_log(&p, 2) + fade) < 1e-12);
    CHECK(mp_priority_log(&p, 1) == log(2) && mp_priority_log(&p, 3) == 0);
    /* 128 tokens later a quarter is left. */
    for (uint64_t moment = 3; moment < 3 + 127; moment++) {
        mp_priority_access(&p, 1, 1, moment);
        mp_priority_access(&p, 3, 1, moment);
    }
    CHECK(fabs(exp(mp_priority_log(&p, 0)) - 0.25) < 1e-9);
    free(arena.block);
}

/*
 * Uses are counted over all units. 0 0 0 1 then inserts of 0 1 (uses 5, 6): count / age is
 * 3 / (6 - 5 + 1) for 0, 1 / 1 for 1. Four uses of unit 2: 3 / 6 and 1 / 5: still 1. A use of 1:
 * 2 / 1, and 0 has 3 / 7.
 */
static void lfru_divides_by_age(void)
{
    struct bench b;

    open_bench(&b, &mp_evict_lfru, NULL, 1, 4);
    for (uint32_t i = 0; i < 3; i++)
        token(&b, 0);
    token(&b, 1);
    insert(&b, 0);
    insert(&b, 1);
    CHECK_EQ(pick(&b, MP_LAYER_ANY), 1);
    for (uint32_t i = 0; i < 4; i++)
        token(&b, 2);
    CHECK_EQ(pick(&b, MP_LAYER_ANY), 1);
    token(&b, 1);
    CHECK_EQ(pick(&b, MP_LAYER_ANY), 0);
    close_bench(&b);
}

/*
 * No fading to speak of (half-life a million). 0 four times: class 2. 1 once: class 0, then age 0.
 * Ages: 0 has 1, worth 1/4; 1 has 0. Unit 2 is used 4 times: ages 5/4 for 0 and 4/1 for 1: 1
 * leaves. 1 used once more (count 2, class 1): ages 6/4 for 0, 0 for 1: 0 leaves.
 */
static void class_lru_is_patient_with_what_was_used_often(void)
{
    static const uint64_t half_life = 1000000;
    struct bench b;

    open_bench(&b, &mp_evict_class_lru, &half_life, 1, 4);
    for (uint32_t i = 0; i < 4; i++)
        token(&b, 0);
    token(&b, 1);
    insert(&b, 0);
    insert(&b, 1);
    CHECK_EQ(pick(&b, MP_LAYER_ANY), 0);
    for (uint32_t i = 0; i < 4; i++)
        token(&b, 2);
    CHECK_EQ(pick(&b, MP_LAYER_ANY), 1);
    token(&b, 1);
    CHECK_EQ(pick(&b, MP_LAYER_ANY), 0);
    close_bench(&b);
}

/* Equal in age and class, or in count / age: 2 / 2 and 1 / 1. The id must not decide, nor the order
 * in which they came. */
static void ties_go_to_the_oldest_use(void)
{
    static const uint64_t half_life = 1000000;
    struct bench b;

    for (uint32_t old = 0; old < 2; old++) {
        for (uint32_t first = 0; first < 2; first++) {
            open_bench(&b, &mp_evict_class_lru, &half_life, 1, 4);
            insert(&b, first);
            insert(&b, !first);
            b.ops->on_access(b.policy, old, 1, 1); /* of one batch */
            b.ops->on_access(b.policy, !old, 1, 1);
            CHECK_EQ(pick(&b, MP_LAYER_ANY), old);
            b.now = 1;
            token(&b, 2);
            CHECK_EQ(pick(&b, MP_LAYER_ANY), old);
            close_bench(&b);

            open_bench(&b, &mp_evict_lfru, NULL, 1, 4);
            insert(&b, first);
            insert(&b, !first);
            token(&b, old);
            token(&b, old);
            token(&b, !old);
            CHECK_EQ(pick(&b, MP_LAYER_ANY), old);
            close_bench(&b);
        }
    }
}

/* 8 slots, k 2: two buffer slots (a quarter). */
static void residents_stay_and_the_rest_goes_oldest_first(void)
{
    struct bench b;

    open_bench(&b, &mp_evict_none, NULL, 2, 8);
    CHECK(mp_evict_none.waits && mp_evict_none.per_layer);
    for (uint32_t u = 0; u < 4; u++)
        insert(&b, u); /* before the first layer */
    token(&b, 5);
    insert(&b, 5);
    token(&b, 6);
    insert(&b, 6);
    CHECK_EQ(pick(&b, MP_LAYER_ANY), 5);
    token(&b, 5);
    CHECK_EQ(pick(&b, MP_LAYER_ANY), 6);
    CHECK_EQ(pick(&b, 0), MP_EXPERT_NONE);
    b.evictable[5] = b.evictable[6] = 0;
    CHECK_EQ(pick(&b, MP_LAYER_ANY), MP_EXPERT_NONE);
    /* A resident that was taken all the same stays again when it comes back. */
    b.ops->on_remove(b.policy, 2, b.now);
    insert(&b, 2);
    CHECK_EQ(pick(&b, MP_LAYER_ANY), MP_EXPERT_NONE);
    close_bench(&b);

    /* Nothing was named: the first six stay, what comes then goes. */
    open_bench(&b, &mp_evict_none, NULL, 2, 8);
    for (uint32_t u = 0; u < 8; u++) {
        token(&b, u);
        insert(&b, u);
    }
    CHECK_EQ(pick(&b, MP_LAYER_ANY), 6);
    CHECK_EQ(pick(&b, 0), MP_EXPERT_NONE);
    close_bench(&b);
}

int main(void)
{
    RUN(lcp_fades_what_is_not_used);
    RUN(priorities_count_tokens_and_batches_are_one_moment);
    RUN(lfru_divides_by_age);
    RUN(class_lru_is_patient_with_what_was_used_often);
    RUN(ties_go_to_the_oldest_use);
    RUN(residents_stay_and_the_rest_goes_oldest_first);
    return 0;
}
