/*
 * Ties, bounds and constants of eviction that follows a leader, which its heads state.
 */
#include <math.h>

#include "policy/builtins.h"
#include "policy/evict/shadow.h"
#include "policy/hot.h"
#include "policy/residents.h"
#include "tests/support/executors.h"
#include "tests/support/random.h"
#include "tests/unit/policy/instance.h"

static uint64_t random_state = 1;

/* Evict policy shadow: what the leader would not hold, here what nobody has used, leaves before the
 * leader's own, the oldest first; layer 0, which has its share, would give up its own. */
static void what_the_leader_does_not_hold_leaves_first(void)
{
    static const uint32_t come[4] = { 0, 1, 5, 4 }, leave[4] = { 5, 4, 0, 1 };
    const struct mp_shape shape = {
        .layers = 2, .experts = 4, .top_k = 1, .tokens_max = 1, .slots = 4
    };
    const struct mp_evict_ops *ops = &mp_evict_shadow;
    struct mp_policy *policy = instance(&ops->info, ops->create, &shape, NULL);
    uint8_t evictable[8] = { 1, 1, 0, 0, 1, 1 };
    const struct mp_evict_query query = {
        .for_id = 2, .scope_layer = MP_LAYER_ANY, .experts = 4, .evictable = evictable
    };

    for (uint32_t i = 0; i < 4; i++) {
        if (come[i] < 4)
            ops->on_access(policy, come[i], 1, i + 1);
        ops->on_insert(policy, come[i], i + 1);
    }
    ops->on_access(policy, 2, 1, 5);
    for (uint32_t i = 0; i < 4; i++) {
        CHECK_EQ(ops->pick(policy, &query), leave[i]);
        evictable[leave[i]] = 0;
    }
    ops->destroy(policy);
}

/* Evict policy shadow over four experts of one layer, whose costs are not known: a miss is 1. */
static struct mp_shadow *make_shadow(uint32_t slots)
{
    const struct mp_shape shape = {
        .layers = 1, .experts = 4, .top_k = 1, .tokens_max = 1, .slots = slots
    };
    const struct mp_evict_ops *ops = &mp_evict_shadow;
    struct mp_shadow *shadow = (struct mp_shadow *)instance(&ops->info, ops->create, &shape, NULL);

    shadow->hysteresis = 1000000; /* nobody else ever leads */
    return shadow;
}

static void use_shadow(struct mp_shadow *shadow, uint32_t unit)
{
    mp_evict_shadow.on_access(&shadow->super, unit, 1, shadow->batches + 1);
}

/* Of what was used lately a use 128 tokens ago counts half. */
static void recent_uses_fade_to_half_in_128_tokens(void)
{
    struct mp_shadow *shadow = make_shadow(3);

    for (uint32_t i = 0; i < 129; i++)
        use_shadow(shadow, i > 0);
    CHECK(fabs(shadow->recent[0] / shadow->weight - 0.5) < 1e-9);
    mp_policy_free(&shadow->super);
}

/* The first use of what a calibration places is a miss, as it is where it is loaded on demand: in
 * an empty memory nobody is ahead. The second use is a hit for both. */
static void what_is_placed_is_loaded_at_its_first_use(void)
{
    struct mp_shadow *shadow = make_shadow(3);

    shadow->order[0] = 2;
    mp_shadow_place_first(shadow);
    CHECK(shadow->ghosts[MP_SHADOW_STATIC].held[2]);
    for (uint32_t i = 0; i < 3; i++) {
        use_shadow(shadow, 2);
        CHECK_EQ(shadow->lead[MP_SHADOW_STATIC], 0);
        CHECK_EQ(shadow->overrun[0], 0);
        if (i == 0)
            mp_evict_shadow.on_insert(&shadow->super, 2, shadow->batches);
    }
    CHECK_EQ(shadow->passed, 0);
    mp_policy_free(&shadow->super);
}

/*
 * Three slots, one of which is for what is placed. Round robin over four misses with layer-lru,
 * and one batch of four hits what is placed, expert 0. Then expert 1 is used alone, until a
 * placement takes it for 0: that costs as much as one load, which the next batch pays.
 */
static void a_swap_costs_as_much_as_a_load(void)
{
    struct mp_shadow *shadow = make_shadow(3);
    const struct mp_ghost *placed = &shadow->ghosts[MP_SHADOW_STATIC];
    uint64_t lead;

    shadow->leader = MP_GHOST_LAYER_LRU; /* which never hits */
    for (uint32_t i = 0; i < 128; i++)
        use_shadow(shadow, i % 4);
    CHECK_EQ(shadow->placed, 1);
    CHECK(placed->held[0] && !placed->held[1]);
    while (shadow->swaps[MP_SHADOW_STATIC] == 0) {
        CHECK(shadow->batches < 256);
        use_shadow(shadow, 1);
    }
    CHECK(placed->held[1] && !placed->held[0]);
    CHECK_EQ(shadow->swaps[MP_SHADOW_STATIC], 1);
    lead = shadow->lead[MP_SHADOW_STATIC];
    CHECK(lead > 2);
    use_shadow(shadow, 1);
    CHECK_EQ(lead - shadow->lead[MP_SHADOW_STATIC], 1);
    lead--;
    use_shadow(shadow, 1);
    CHECK_EQ(shadow->lead[MP_SHADOW_STATIC], lead);
    mp_policy_free(&shadow->super);
}

/* Five slots, so that three of four are placed and one is outside: it comes in for the coldest. */
static void the_last_one_outside_can_come_in(void)
{
    struct mp_shadow *shadow = make_shadow(5);
    const uint8_t *held = shadow->ghosts[MP_SHADOW_STATIC].held;

    for (uint32_t i = 0; i < 16; i++)
        use_shadow(shadow, i % 3);
    CHECK_EQ(shadow->placed, 3);
    CHECK(held[0] && held[1] && held[2] && !held[3]);
    for (uint32_t i = 0; i < 32; i++)
        use_shadow(shadow, 3);
    CHECK(held[0] && held[1] && !held[2] && held[3]);
    mp_policy_free(&shadow->super);
}

/* A count of 10 may be one of 6 by chance, 6 + sqrt(16); one of 11 is not. */
static void more_than_chance_is_more_than_a_deviation(void)
{
    struct mp_shadow *shadow = make_shadow(5);
    const uint8_t *held = shadow->ghosts[MP_SHADOW_STATIC].held;

    for (uint32_t i = 0; i < 16; i++)
        use_shadow(shadow, i % 3);
    for (uint32_t hot = 10; hot <= 11; hot++) {
        shadow->facts.count[0] = shadow->facts.count[1] = 100;
        shadow->facts.count[2] = 6;
        shadow->facts.count[3] = hot;
        for (uint32_t i = 0; i < 16; i++)
            use_shadow(shadow, 0);
        CHECK_EQ(held[3], hot == 11);
        CHECK_EQ(held[2], hot == 10);
    }
    mp_policy_free(&shadow->super);
}

/* A hysteresis of 100 % of what a change would load, two experts of the other ghost, and two
 * standard deviations of the leader's one miss. Who is cheaper by four loads does not lead yet. */
static void the_leader_changes_beyond_the_hysteresis(void)
{
    struct mp_shadow *shadow = make_shadow(3);

    for (uint32_t i = 0; i < 4; i++)
        use_shadow(shadow, 0);
    shadow->hysteresis = 100;
    shadow->ghosts[MP_GHOST_LAYER_LRU].held[2] = shadow->ghosts[MP_GHOST_LAYER_LRU].held[3] = 1;
    CHECK_EQ(shadow->absent, 1);
    shadow->lead[MP_GHOST_LAYER_LRU] = 4;
    use_shadow(shadow, 0);
    CHECK_EQ(shadow->leader, MP_GHOST_NEXT_USE);
    CHECK_EQ(shadow->lead[MP_GHOST_LAYER_LRU], 4);
    shadow->lead[MP_GHOST_LAYER_LRU] = 5;
    use_shadow(shadow, 0);
    CHECK_EQ(shadow->leader, MP_GHOST_LAYER_LRU);
    CHECK_EQ(shadow->changes, 1);
    CHECK_EQ(shadow->lead[MP_GHOST_LAYER_LRU], 0);
    CHECK_EQ(shadow->absent, 0);
    mp_policy_free(&shadow->super);
}

/* The same with what is really paid, and with all slots. Each time that static placement leads for
 * this reason it takes twice as much to leave it. */
static void static_placement_is_left_later_each_time(void)
{
    struct mp_shadow *shadow = make_shadow(3);

    shadow->leader = MP_GHOST_LAYER_LRU;
    mp_evict_shadow.on_insert(&shadow->super, 0, 0);
    for (uint32_t i = 0; i < 17; i++)
        use_shadow(shadow, 0);
    CHECK(shadow->is_placed && shadow->ghosts[MP_SHADOW_STATIC].held[0]);
    shadow->hysteresis = 100;
    for (uint64_t limit = 2; limit <= 8; limit *= 2) {
        shadow->overrun[0] = 3;
        use_shadow(shadow, 0);
        CHECK_EQ(shadow->leader, MP_GHOST_LAYER_LRU);
        shadow->overrun[0] = 4;
        use_shadow(shadow, 0);
        CHECK_EQ(shadow->leader, MP_SHADOW_STATIC);
        shadow->lead[MP_GHOST_LAYER_LRU] = limit;
        use_shadow(shadow, 0);
        CHECK_EQ(shadow->leader, MP_SHADOW_STATIC);
        shadow->lead[MP_GHOST_LAYER_LRU] = limit + 1;
        use_shadow(shadow, 0);
        CHECK_EQ(shadow->leader, MP_GHOST_LAYER_LRU);
    }
    mp_policy_free(&shadow->super);
}

/* A CPU that is quicker than any load computes all that is absent, so no demand ever brings it in.
 * What is likely comes in all the same: into a free slot, then for what is half as likely. */
static void what_others_compute_becomes_resident(void)
{
    const struct mp_costs costs = { TEST_THREE_EXECUTORS, .load_ns = 100,
                                    .executors[TEST_DEVICE].fixed_ns = 1,
                                    .executors[TEST_CPU].fixed_ns = 2 };
    const struct mp_shape shape = {
        .layers = 1, .experts = 4, .top_k = 1, .tokens_max = 1, .slots = 2, .costs = &costs
    };
    const struct mp_evict_ops *ops = &mp_evict_shadow;
    struct mp_policy *policy = instance(&ops->info, ops->create, &shape, NULL);
    uint8_t evictable[4] = { 0 };
    const struct mp_evict_query query = {
        .for_id = MP_EXPERT_NONE, .scope_layer = 0, .experts = 4, .evictable = evictable
    };
    struct mp_swap swap;

    for (uint32_t turn = 0; turn < 2; turn++) {
        ops->on_access(policy, turn, 1, turn + 1);
        CHECK_EQ(ops->replace(policy, &query, turn + 1, &swap, 4), 1);
        CHECK_EQ(swap.in, turn);
        CHECK_EQ(swap.out, MP_EXPERT_NONE);
        ops->on_insert(policy, turn, turn + 1);
        evictable[turn] = 1;
    }
    ops->on_access(policy, 2, 1, 3);
    CHECK_EQ(ops->replace(policy, &query, 3, &swap, 4), 0); /* as likely as the others */
    ops->on_access(policy, 2, 1, 4);
    CHECK_EQ(ops->replace(policy, &query, 4, &swap, 4), 1);
    CHECK_EQ(swap.in, 2);
    CHECK_EQ(swap.out, 0);
    evictable[0] = 0;
    CHECK_EQ(ops->replace(policy, &query, 4, &swap, 4), 1);
    CHECK_EQ(swap.out, 1);
    ops->destroy(policy);
}

/* The same where scores are known: 1 was never chosen, but nearly, and comes in for 0, which was
 * chosen once and has no score since. */
static void what_nearly_was_chosen_is_likely(void)
{
    static const float scores[4] = { 0.05f, 0.45f, 0.5f, 0 };
    static const float first[4] = { 0.9f, 0.05f, 0.05f, 0 };
    const struct mp_costs costs = { TEST_THREE_EXECUTORS, .load_ns = 100,
                                    .executors[TEST_DEVICE].fixed_ns = 1,
                                    .executors[TEST_CPU].fixed_ns = 2 };
    const struct mp_shape shape = {
        .layers = 1, .experts = 4, .top_k = 1, .tokens_max = 1, .slots = 2, .costs = &costs
    };
    const struct mp_evict_ops *ops = &mp_evict_shadow;
    struct mp_policy *policy = instance(&ops->info, ops->create, &shape, NULL);
    uint8_t evictable[4] = { 1, 0, 1, 0 };
    const struct mp_evict_query query = {
        .for_id = MP_EXPERT_NONE, .scope_layer = 0, .experts = 4, .evictable = evictable
    };
    struct mp_swap swap = { 0 };
    uint32_t chosen = 0;

    ops->on_insert(policy, 0, 0);
    ops->on_insert(policy, 2, 0);
    for (uint64_t now = 1; now <= 20; now++) {
        ops->on_scores(policy, 0, 1, 1, now == 1 ? first : scores, &chosen, now);
        ops->on_access(policy, now == 1 ? 0 : 2, 1, now);
    }
    CHECK_EQ(ops->replace(policy, &query, 20, &swap, 4), 1);
    CHECK_EQ(swap.in, 1);
    CHECK_EQ(swap.out, 0);
    ops->destroy(policy);
}

/* One batch of a layer: what is absent is loaded in place of the policy's victims. */
static void page(struct mp_policy *policy, uint8_t *resident, const uint32_t *ids, uint64_t now)
{
    const struct mp_evict_ops *ops = &mp_evict_shadow;
    const struct mp_shadow *shadow = (const struct mp_shadow *)policy;
    struct mp_evict_query query = { .scope_layer = MP_LAYER_ANY,
                                    .experts = shadow->facts.experts,
                                    .evictable = resident };

    for (uint32_t i = 0; i < 4; i++)
        ops->on_access(policy, ids[i], 1, now);
    for (uint32_t i = 0; i < 4; i++) {
        if (resident[ids[i]])
            continue;
        if (shadow->residents.count == shadow->facts.slots) {
            query.for_id = ids[i];
            const uint32_t victim = ops->pick(policy, &query);
            const uint32_t out = victim != MP_EXPERT_NONE ? victim : shadow->residents.id[0];

            resident[out] = 0;
            ops->on_remove(policy, out, now);
        }
        resident[ids[i]] = 1;
        ops->on_insert(policy, ids[i], now);
    }
}

/* No expert is likelier than another, so no policy is better: what one of them has gained over some
 * tokens is chance, and nobody is followed for it. */
static void chance_does_not_change_the_leader(void)
{
    const struct mp_shape shape = {
        .layers = 4, .experts = 32, .top_k = 4, .tokens_max = 1, .slots = 32
    };
    struct mp_policy *policy =
        instance(&mp_evict_shadow.info, mp_evict_shadow.create, &shape, NULL);
    const struct mp_shadow *shadow = (const struct mp_shadow *)policy;
    uint8_t resident[128] = { 0 };
    uint32_t leaders = 0, leader = 0;

    for (uint32_t batch = 0; batch < 400 * shape.layers; batch++) {
        const uint32_t layer = batch % shape.layers;
        uint32_t ids[4];

        for (uint32_t r = 0; r < 4; r++)
            ids[r] = layer * 32 + r * 8 + random_below(8);
        page(policy, resident, ids, batch + 1);
        leaders += shadow->leader != leader;
        leader = shadow->leader;
    }
    fprintf(stderr, "    %u leaders followed in 400 tokens\n", leaders);
    CHECK(leaders <= 2);
    mp_evict_shadow.destroy(policy);
}

/* An executor that reads over the link: likely experts come in beside it only while it computes
 * most of what is absent. Where loads are quicker they bring in what is needed. */
static void the_link_is_idle_only_if_absent_experts_are_not_loaded(void)
{
    for (uint64_t load_ns = 10; load_ns <= 1000; load_ns *= 100) {
        const struct mp_costs costs = {
            .load_ns = load_ns,
            .layer_ns = 1,
            .executor_count = 2,
            .executors = { { .name = "device", .fixed_ns = 1 },
                           { .name = "in place", .fixed_ns = 100, .reads = MP_READS_LINK } }
        };
        const struct mp_shape shape = {
            .layers = 1, .experts = 256, .top_k = 1, .tokens_max = 1, .slots = 4, .costs = &costs
        };
        const struct mp_evict_ops *ops = &mp_evict_shadow;
        struct mp_policy *policy = instance(&ops->info, ops->create, &shape, NULL);
        const struct mp_shadow *shadow = (const struct mp_shadow *)policy;

        CHECK(!mp_shadow_fills(shadow));
        for (uint32_t i = 0; i < 200; i++)
            ops->on_access(policy, i, 1, i + 1);
        CHECK_EQ(mp_shadow_fills(shadow), load_ns == 1000);
        CHECK_EQ(shadow->absent > 0, load_ns == 10); /* of others' work chance is no load */
        ops->destroy(policy);
    }
}

/* Classes end at 7: a count of 512 is of the same class as one of 128, so the older one leaves. One
 * of 64 is of class 6 and leaves before it is twice as old. */
static void the_highest_class_is_seven(void)
{
    static const struct {
        uint32_t before, after;
        uint32_t leaves;
    } cases[] = { { 512, 128, 0 }, { 128, 64, 1 }, { 128, 32, 1 }, { 4, 2, 1 } };
    const struct mp_shape shape = {
        .layers = 1, .experts = 3, .top_k = 1, .tokens_max = 4, .slots = 3
    };
    const uint8_t evictable[3] = { 1, 1 };
    const struct mp_evict_query query = {
        .for_id = 2, .scope_layer = MP_LAYER_ANY, .experts = 3, .evictable = evictable
    };
    const struct mp_evict_ops *ops = &mp_evict_class_lru;

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        struct mp_policy *policy =
            instance(&ops->info, ops->create, &shape, "HALF_LIFE", "1000000", NULL);
        uint64_t now = 1;

        ops->on_insert(policy, 0, 0);
        ops->on_insert(policy, 1, 0);
        for (uint32_t n = 0; n <= cases[i].before; n++) /* one more: counts fade a little */
            ops->on_access(policy, 0, 1, now++);
        for (uint32_t n = 0; n <= cases[i].after; n++)
            ops->on_access(policy, 1, 1, now++);
        for (uint32_t n = 0; n < 3 * cases[i].after; n++) /* ages 4 to 3 */
            ops->on_access(policy, 2, 1, now++);
        CHECK_EQ(ops->pick(policy, &query), cases[i].leaves);
        ops->destroy(policy);
    }
}

/* Where the CPU computes what is absent all slots are the placement's, unless anything at all was
 * loaded on demand since it was made. */
static void room_is_left_if_one_was_loaded_on_demand(void)
{
    const struct mp_costs costs = { TEST_THREE_EXECUTORS,
                                    .load_ns = 100,
                                    .layer_ns = 10,
                                    .executors[TEST_DEVICE].token_ns = 1,
                                    .executors[TEST_IN_PLACE].token_ns = 50,
                                    .executors[TEST_CPU].token_ns = 20 };
    const struct mp_shape shape = {
        .layers = 1, .experts = 16, .top_k = 4, .tokens_max = 1, .slots = 12, .costs = &costs
    };

    for (uint64_t passed = 0; passed < 3; passed++) {
        struct mp_policy *policy =
            instance(&mp_evict_shadow.info, mp_evict_shadow.create, &shape, NULL);
        struct mp_shadow *shadow = (struct mp_shadow *)policy;

        CHECK_EQ(shadow->room, 3);
        CHECK(mp_shadow_others_known(shadow));
        shadow->is_placed = true;
        shadow->passed = passed;
        shadow->batches = shadow->choose_at - 1;
        mp_shadow_turn(shadow, 1);
        CHECK_EQ(shadow->placed, passed > 0 ? 9 : 12);
        CHECK_EQ(shadow->passed, 0);
        mp_evict_shadow.destroy(policy);
    }
}

int main(void)
{
    RUN(what_the_leader_does_not_hold_leaves_first);
    RUN(recent_uses_fade_to_half_in_128_tokens);
    RUN(what_is_placed_is_loaded_at_its_first_use);
    RUN(a_swap_costs_as_much_as_a_load);
    RUN(the_last_one_outside_can_come_in);
    RUN(more_than_chance_is_more_than_a_deviation);
    RUN(the_leader_changes_beyond_the_hysteresis);
    RUN(static_placement_is_left_later_each_time);
    RUN(what_others_compute_becomes_resident);
    RUN(what_nearly_was_chosen_is_likely);
    RUN(chance_does_not_change_the_leader);
    RUN(the_link_is_idle_only_if_absent_experts_are_not_loaded);
    RUN(the_highest_class_is_seven);
    RUN(room_is_left_if_one_was_loaded_on_demand);
    return 0;
}
