/*
 * Ties, bounds and constants that the heads of policies state, where no test of the policy itself
 * has them: one row each.
 */
#include "policy/builtins.h"
#include "policy/evict/shadow.h"
#include "policy/hot.h"
#include "policy/replay/replay_int.h"
#include "policy/residents.h"
#include "tests/unit/policy/instance.h"

#define MOST 16

static struct mp_policy *make_evict(const struct mp_evict_ops *ops, uint32_t experts)
{
    const struct mp_shape shape = {
        .layers = 1, .experts = experts, .top_k = 1, .tokens_max = 4, .slots = experts
    };

    return instance(&ops->info, ops->create, &shape, NULL);
}

/* Two residents of equal worth, used once in one batch: the one used first leaves, whatever its
 * number and whoever came first. */
static void of_equal_residents_the_oldest_use_leaves(void)
{
    static const struct mp_evict_ops *const all[] = {
        &mp_evict_lru,   &mp_evict_layer_lru, &mp_evict_lfu, &mp_evict_layer_lfu,  &mp_evict_lcp,
        &mp_evict_score, &mp_evict_mrs,       &mp_evict_ema, &mp_evict_activation,
    };
    const uint8_t evictable[4] = { 1, 1 };
    const struct mp_evict_query query = {
        .for_unit = 2, .scope_layer = MP_LAYER_ANY, .experts = 4, .evictable = evictable
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(all); i++) {
        for (uint32_t ways = 0; ways < 4; ways++) {
            const uint32_t old = ways % 2, first = ways / 2;
            struct mp_policy *policy = make_evict(all[i], 4);

            all[i]->on_insert(policy, first, 0);
            all[i]->on_insert(policy, !first, 0);
            all[i]->on_access(policy, old, 1, 1);
            all[i]->on_access(policy, !old, 1, 1);
            if (all[i]->pick(policy, &query) != old) {
                fprintf(stderr, "%s: not %u\n", all[i]->info.name, old);
                exit(1);
            }
            all[i]->destroy(policy);
        }
    }
}

struct default_of {
    const struct mp_policy_info *info;
    const char *option, *value;
};

static void constants_of_the_papers_are_the_defaults(void)
{
    _Alignas(16) char config[64] = { 0 };
    static const struct default_of all[] = {
        { &mp_assign_beam.info, "WIDTH", "2" },
        { &mp_evict_class_lru.info, "HALF_LIFE", "128" },
        { &mp_evict_lcp.info, "OMEGA", "128" },
        { &mp_evict_lcp.info, "RHO", "0.25" },
        { &mp_evict_mrs.info, "ALPHA", "0.5" },
        { &mp_evict_mrs.info, "P", "0" },
        { &mp_evict_score.info, "N", "16" },
        { &mp_evict_workload.info, "W", "4" },
        { &mp_evict_workload.info, "U", "0" },
        { &mp_evict_ema.info, "KEEP", "0.9" },
        { &mp_evict_shadow.info, "HYSTERESIS", "100" },
        { &mp_partition_fixed_point.info, "TAU", "5000" },
        { &mp_partition_fixed_point.info, "ZETA", "0.01" },
        { &mp_predict_activation.info, "KEEP", "32" },
        { &mp_prefetch_presched.info, "HORIZON", "3" },
        { &mp_prefetch_presched.info, "GROUP", "0" },
        { &mp_prefetch_window.info, "BUFFER", "0" },
        { &mp_route_smoe.info, "ALPHA", "-1" },
        { &mp_route_smoe_similar.info, "COSINE", "0.5" },
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(all); i++) {
        const struct mp_opt *opt = all[i].info->opts;

        while (opt->name != NULL && strcmp(opt->name, all[i].option) != 0)
            opt++;
        CHECK(opt->name != NULL);
        CHECK_STR(opt->dfl, all[i].value);
    }
    CHECK_EQ(mp_opt_set_one(mp_assign_beam.info.opts, "", config, "WIDTH", "64"), MP_OK);
    CHECK(mp_opt_set_one(mp_assign_beam.info.opts, "", config, "WIDTH", "65") != MP_OK);
    CHECK_EQ(mp_prefetch_impact.reach, 3);
    CHECK_EQ(mp_prefetch_presched.reach, 3);
}

/* Hot experts come by their share, equal ones by number. */
static void equally_hot_experts_come_by_number(void)
{
    static const float hot[8] = { 1, 2, 1, 3, 2, 1, 2, 3 };
    static const uint32_t order[8] = { 3, 7, 1, 4, 6, 0, 2, 5 };
    const struct mp_calibration calibration = { .hot = hot };
    const struct mp_shape shape = { .layers = 2, .experts = 4, .calibration = &calibration };
    uint32_t units[8];

    CHECK_EQ(mp_hot_order(&shape, units), MP_OK);
    for (uint32_t i = 0; i < 8; i++)
        CHECK_EQ(units[i], order[i]);
}

/* A quarter, but two at least; of evict policy workload those of two tokens at most, of placements
 * that stay two more than that. */
static void a_quarter_is_left_for_what_passes_through(void)
{
    static const struct {
        uint32_t slots, top_k, planned, buffers;
    } cases[] = {
        { 40, 8, 30, 10 }, { 40, 5, 30, 10 }, { 40, 4, 32, 10 }, { 40, 3, 34, 8 }, { 8, 4, 6, 2 },
        { 7, 4, 5, 2 },    { 3, 1, 1, 2 },    { 2, 1, 0, 2 },    { 12, 8, 9, 3 },  { 11, 8, 9, 2 },
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        const struct mp_shape shape = {
            .layers = 1, .experts = 64, .top_k = cases[i].top_k, .slots = cases[i].slots
        };

        CHECK_EQ(mp_residents_planned(&shape, 0), cases[i].planned);
        CHECK_EQ(mp_buffer_slots(&shape), cases[i].buffers);
    }
}

/* Evict policy shadow: as many as a token has experts, but a quarter at most, and two at least. */
static void a_placement_leaves_room_for_one_token(void)
{
    static const struct {
        uint32_t slots, top_k, room;
    } cases[] = { { 40, 8, 8 }, { 40, 12, 10 }, { 40, 1, 2 }, { 11, 8, 2 }, { 12, 8, 3 } };

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        const struct mp_shape shape = { .layers = 1,
                                        .experts = 64,
                                        .top_k = cases[i].top_k,
                                        .tokens_max = 1,
                                        .slots = cases[i].slots };
        struct mp_policy *policy =
            instance(&mp_evict_shadow.info, mp_evict_shadow.create, &shape, NULL);

        CHECK_EQ(((const struct mp_shadow *)policy)->room, cases[i].room);
        mp_evict_shadow.destroy(policy);
    }
}

/* A layer of up to 8 experts is taken for Mixtral's, a larger one for a model of many. */
static void what_is_moved_at_once_follows_the_size_of_a_layer(void)
{
    static const struct {
        uint32_t experts, ahead, swaps;
    } cases[] = { /* with 9, all 5 that are cold */
                  { 8, 1, 1 },
                  { 9, 4, 5 },
                  { MOST, 4, 8 }
    };
    const uint8_t evictable[MOST] = { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 };
    const uint8_t resident[MOST] = { 0 };
    float scores[MOST];

    for (uint32_t e = 0; e < MOST; e++)
        scores[e] = 1.0f / (float)(e + 1);
    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        const uint32_t n = cases[i].experts, half = n / 2;
        const struct mp_shape shape = {
            .layers = 2, .experts = n, .top_k = n, .tokens_max = 4, .slots = 2 * n
        };
        const struct mp_prefetch_facts facts = { .target_layer = 1,
                                                 .tokens = 1,
                                                 .experts = n,
                                                 .k = n,
                                                 .scores = scores,
                                                 .resident = resident,
                                                 .max = n };
        const struct mp_evict_query query = {
            .for_unit = MP_UNIT_NONE, .scope_layer = 0, .experts = n, .evictable = evictable
        };
        const struct mp_prefetch_ops *prefetch = &mp_prefetch_workload;
        const struct mp_evict_ops *evict = &mp_evict_workload;
        struct mp_policy *ahead = instance(&prefetch->info, prefetch->create, &shape, NULL);
        struct mp_policy *cache = instance(&evict->info, evict->create, &shape, NULL);
        struct mp_swap swaps[MOST];
        uint32_t named[MOST];

        CHECK_EQ(prefetch->choose(ahead, &facts, named), cases[i].ahead);
        for (uint32_t e = 0; e < half; e++)
            evict->on_insert(cache, e, 0);
        for (uint64_t step = 1; step <= 4; step++) { /* the others are wanted: W = 4 */
            for (uint32_t e = half; e < n; e++)
                evict->on_access(cache, e, 1, step);
            CHECK_EQ(evict->replace(cache, &query, step, swaps, n), step < 4 ? 0 : cases[i].swaps);
        }
        prefetch->destroy(ahead);
        evict->destroy(cache);
    }
}

/* k = 1, alpha 0.25, S(2) = 0.125: worth its bytes is what exceeds 0.15625. */
static void top_score_must_exceed_its_bound(void)
{
    static const float best[] = { 0.15625f, 0x1.400002p-3f };
    const struct mp_shape shape = {
        .layers = 2, .experts = 4, .top_k = 1, .tokens_max = 1, .slots = 8
    };
    const struct mp_prefetch_ops *ops = &mp_prefetch_top_score;
    const uint8_t resident[4] = { 0 };

    for (uint32_t i = 0; i < 2; i++) {
        const float scores[4] = { 0.125f, best[i], 0.1f, 0 };
        const struct mp_prefetch_facts facts = { .target_layer = 1,
                                                 .tokens = 1,
                                                 .experts = 4,
                                                 .k = 1,
                                                 .scores = scores,
                                                 .resident = resident,
                                                 .max = 4 };
        struct mp_policy *policy = instance(&ops->info, ops->create, &shape, "ALPHA", "0.25", NULL);
        uint32_t named[4];

        CHECK_EQ(ops->choose(policy, &facts, named), i);
        ops->destroy(policy);
    }
}

/* Equal tokens: the higher sum of scores, then the lower id. */
static void guesses_go_by_tokens_then_score_then_id(void)
{
    static const struct mp_prefetch_ops *const all[] = { &mp_prefetch_top, &mp_prefetch_hot,
                                                         &mp_prefetch_workload };
    static const struct {
        float scores[4];
        uint32_t first, second;
    } cases[] = { { { 0.25f, 0.25f, 0.125f, 0 }, 0, 1 }, { { 0, 0.125f, 0.5f, 0.25f }, 2, 3 } };
    const struct mp_shape shape = {
        .layers = 2, .experts = 4, .top_k = 2, .tokens_max = 1, .slots = 8
    };
    const uint8_t resident[4] = { 0 };

    for (size_t i = 0; i < MP_ARRAY_LEN(all) * MP_ARRAY_LEN(cases); i++) {
        const struct mp_prefetch_ops *ops = all[i / MP_ARRAY_LEN(cases)];
        const size_t c = i % MP_ARRAY_LEN(cases);
        const struct mp_prefetch_facts facts = { .target_layer = 1,
                                                 .tokens = 1,
                                                 .experts = 4,
                                                 .k = 2,
                                                 .scores = cases[c].scores,
                                                 .resident = resident,
                                                 .max = 4 };
        struct mp_policy *policy = instance(&ops->info, ops->create, &shape, NULL);
        uint32_t named[4];

        CHECK(ops->choose(policy, &facts, named) >= 1);
        CHECK_EQ(named[0], cases[c].first);
        if (ops != &mp_prefetch_workload)
            CHECK_EQ(named[1], cases[c].second);
        ops->destroy(policy);
    }
}

/* Whom a replay lets go: the smallest key, then the second, then the number. */
static void replays_break_ties_by_second_key_then_id(void)
{
    static const struct {
        uint64_t key[3], second[3];
        uint32_t first;
    } cases[] = {
        { { 1, 1, 1 }, { 5, 5, 5 }, 0 },
        { { 1, 1, 1 }, { 5, 5, 4 }, 2 },
        { { 2, 1, 1 }, { 0, 5, 5 }, 1 },
        { { 1, 1, 1 }, { 5, 4, 5 }, 1 },
    };
    const struct mp_replay_trace trace = { .layers = 1, .experts = 3 };

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        for (uint32_t order = 0; order < 3; order++) {
            struct mp_replay_set set;

            CHECK_EQ(mp_replay_set_init(&set, &trace, false), MP_OK);
            for (uint32_t u = 0; u < 3; u++) {
                mp_replay_add(&set, (u + order) % 3);
                set.key[u] = cases[i].key[u];
                set.second[u] = cases[i].second[u];
            }
            CHECK_EQ(mp_replay_first(&set, 0, 0), cases[i].first);
            mp_replay_set_fini(&set);
        }
    }
}

int main(void)
{
    RUN(of_equal_residents_the_oldest_use_leaves);
    RUN(constants_of_the_papers_are_the_defaults);
    RUN(equally_hot_experts_come_by_number);
    RUN(a_quarter_is_left_for_what_passes_through);
    RUN(a_placement_leaves_room_for_one_token);
    RUN(what_is_moved_at_once_follows_the_size_of_a_layer);
    RUN(top_score_must_exceed_its_bound);
    RUN(guesses_go_by_tokens_then_score_then_id);
    RUN(replays_break_ties_by_second_key_then_id);
    return 0;
}
