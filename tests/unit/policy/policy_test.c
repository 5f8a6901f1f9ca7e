/*
 * The lists of policies: every built-in is complete, what is incomplete is named, unknown names are
 * refused with the known ones, profiles are full sets, options arrive.
 */
#include "policy/policy.h"

#include "policy/builtins.h"
#include "tests/unit/policy/calibration.h"
#include "tests/support/executors.h"
#include "tests/support/test.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"

static struct mp_shape shape = { .layers = 3,
                                 .experts = 8,
                                 .top_k = 2,
                                 .tokens_max = 4,
                                 .slots = 12,
                                 .expert_bytes = 1,
                                 .seed = 7 };

static void every_builtin_is_complete_and_can_be_found(void)
{
    for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT; kind++) {
        const struct mp_policy_info *info;
        size_t count = 0;

        for (; (info = mp_policy_builtin(kind, count)) != NULL; count++) {
            CHECK_EQ(mp_policy_check(kind, info), MP_OK);
            CHECK(mp_policy_find(kind, info->name) == info);
        }
        CHECK(count >= 1);
        CHECK(mp_policy_builtin(kind, count + 1) == NULL);
        CHECK(mp_policy_find(kind, "lru ") == NULL);
        CHECK(mp_policy_find(kind, "") == NULL);
        CHECK(mp_policy_find(kind, NULL) == NULL);
    }
    CHECK(mp_policy_builtin(MP_POLICY_KIND_COUNT, 0) == NULL);
    CHECK(mp_policy_find(MP_POLICY_EVICT, "exact") == NULL);
    CHECK(mp_policy_find(MP_POLICY_ROUTE, "exact") == &mp_route_exact.info);
    CHECK_STR(mp_policy_kind_name(MP_POLICY_PREFETCH), "prefetch");
    CHECK_STR(mp_policy_kind_name(MP_POLICY_KIND_COUNT), "?");
}

static void refused(enum mp_policy_kind kind, const struct mp_policy_info *info,
                    enum mp_status status, const char *text)
{
    mp_error_clear();
    CHECK_EQ(mp_policy_check(kind, info), status);
    if (strstr(mp_error_last()->text, text) == NULL) {
        fprintf(stderr, "\"%s\" does not name %s\n", mp_error_last()->text, text);
        exit(1);
    }
}

/* Take one function out of a copy of a complete table. */
#define LACKS(kind, KIND, table, function)                                        \
    do {                                                                          \
        struct mp_##kind##_ops ops = table;                                       \
                                                                                  \
        ops.function = NULL;                                                      \
        refused(MP_POLICY_##KIND, &ops.info, MP_ERR_INVALID,                      \
                #kind " policy '" NAME_OF(kind) "' ");                            \
        refused(MP_POLICY_##KIND, &ops.info, MP_ERR_INVALID, "lacks " #function); \
    } while (0)
#define NAME_OF(kind) NAME_OF_##kind
#define NAME_OF_route "exact"
#define NAME_OF_assign "gpu-only"
#define NAME_OF_predict "gate"
#define NAME_OF_prefetch "top"
#define NAME_OF_admit "always"
#define NAME_OF_evict "lru"
#define NAME_OF_partition "uniform"

static void every_missing_function_is_named(void)
{
    LACKS(route, ROUTE, mp_route_exact, create);
    LACKS(route, ROUTE, mp_route_exact, destroy);
    LACKS(route, ROUTE, mp_route_exact, route);
    LACKS(assign, ASSIGN, mp_assign_gpu_only, create);
    LACKS(assign, ASSIGN, mp_assign_gpu_only, destroy);
    LACKS(assign, ASSIGN, mp_assign_gpu_only, assign);
    LACKS(predict, PREDICT, mp_predict_gate, create);
    LACKS(predict, PREDICT, mp_predict_gate, destroy);
    LACKS(prefetch, PREFETCH, mp_prefetch_top, create);
    LACKS(prefetch, PREFETCH, mp_prefetch_top, destroy);
    LACKS(admit, ADMIT, mp_admit_always, create);
    LACKS(admit, ADMIT, mp_admit_always, destroy);
    LACKS(admit, ADMIT, mp_admit_always, admit);
    LACKS(evict, EVICT, mp_evict_lru, create);
    LACKS(evict, EVICT, mp_evict_lru, destroy);
    LACKS(evict, EVICT, mp_evict_lru, on_insert);
    LACKS(evict, EVICT, mp_evict_lru, on_remove);
    LACKS(evict, EVICT, mp_evict_lru, pick);
    LACKS(partition, PARTITION, mp_partition_uniform, create);
    LACKS(partition, PARTITION, mp_partition_uniform, destroy);
    LACKS(partition, PARTITION, mp_partition_uniform, quota);
}

static void optional_functions_may_be_missing(void)
{
    struct mp_evict_ops evict = mp_evict_lru;
    struct mp_predict_ops predict = mp_predict_history;
    struct mp_prefetch_ops prefetch = mp_prefetch_top;
    struct mp_partition_ops partition = mp_partition_uniform;

    evict.on_access = NULL;
    CHECK_EQ(mp_policy_check(MP_POLICY_EVICT, &evict.info), MP_OK);
    predict.observe = NULL;
    predict.predict = NULL;
    CHECK_EQ(mp_policy_check(MP_POLICY_PREDICT, &predict.info), MP_OK);
    prefetch.choose = NULL;
    CHECK_EQ(mp_policy_check(MP_POLICY_PREFETCH, &prefetch.info), MP_OK);
    partition.quota = NULL;
    partition.global = true;
    CHECK_EQ(mp_policy_check(MP_POLICY_PARTITION, &partition.info), MP_OK);
}

static void heads_are_checked(void)
{
    const struct mp_evict_ops good = mp_evict_lru;
    struct mp_evict_ops ops = good;

    ops.info.abi = MP_POLICY_ABI + 1;
    refused(MP_POLICY_EVICT, &ops.info, MP_ERR_UNSUPPORTED, "ABI 6, need 5");
    ops = good;
    ops.info.name = NULL;
    refused(MP_POLICY_EVICT, &ops.info, MP_ERR_INVALID, "without name");
    ops = good;
    ops.info.summary = NULL;
    refused(MP_POLICY_EVICT, &ops.info, MP_ERR_INVALID, "summary");
    ops = good;
    ops.info.name = "LRU";
    refused(MP_POLICY_EVICT, &ops.info, MP_ERR_INVALID, "'LRU'");
    ops.info.name = "l_ru";
    refused(MP_POLICY_EVICT, &ops.info, MP_ERR_INVALID, "'l_ru'");
    ops.info.name = "";
    refused(MP_POLICY_EVICT, &ops.info, MP_ERR_INVALID, "1 to 32");
    ops.info.name = "a-name-of-more-than-thirty-two-letters";
    refused(MP_POLICY_EVICT, &ops.info, MP_ERR_INVALID, "1 to 32");
    ops = good;
    ops.info.config_size = 8;
    refused(MP_POLICY_EVICT, &ops.info, MP_ERR_INVALID, "config_size");
    ops = good;
    ops.info.opts = mp_prefetch_top.info.opts;
    refused(MP_POLICY_EVICT, &ops.info, MP_ERR_INVALID, "config_size");
    refused(MP_POLICY_KIND_COUNT, &good.info, MP_ERR_INVALID, "policy");
}

static void profiles_are_full_sets(void)
{
    size_t count = 0;

    for (; mp_profiles[count].name != NULL; count++) {
        struct mp_policy_names names = { .profile = mp_profiles[count].name };
        struct mp_profile chosen;
        struct mp_policies set;

        CHECK(mp_profiles[count].summary != NULL);
        CHECK_EQ(mp_policy_resolve(&names, &chosen), MP_OK);
        CHECK_STR(chosen.name, mp_profiles[count].name);
        for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT; kind++)
            CHECK_STR(mp_policy_find(kind, chosen.policy[kind])->name,
                      mp_profiles[count].policy[kind]);
        /* A profile that changes the model's output would have to be asked for by name. */
        CHECK(count > 0 || mp_policy_find(MP_POLICY_ROUTE, chosen.policy[MP_POLICY_ROUTE]) ==
                               &mp_route_exact.info);
        CHECK_EQ(mp_policies_create(&chosen, &shape, NULL, &set), MP_OK);
#define X(kind, KIND)                               \
    CHECK(set.kind != NULL);                        \
    CHECK(set.kind->info == &set.kind##_ops->info); \
    CHECK_EQ(mp_policy_check(MP_POLICY_##KIND, set.kind->info), MP_OK);
        MP_POLICY_KIND_MAP(X)
#undef X
        mp_policies_destroy(&set);
        CHECK(set.evict == NULL && set.evict_ops == NULL);
        mp_policies_destroy(&set); /* safe on a zeroed set */
    }
    CHECK(count >= 2);
}

static void names_override_the_profile(void)
{
    struct mp_policy_names names = { .profile = NULL };
    struct mp_profile chosen;

    CHECK_EQ(mp_policy_resolve(&names, &chosen), MP_OK);
    CHECK_STR(chosen.name, mp_profiles[0].name);
    names.profile = "lru";
    names.policy[MP_POLICY_EVICT] = "layer-lfu";
    names.policy[MP_POLICY_PREFETCH] = "top";
    CHECK_EQ(mp_policy_resolve(&names, &chosen), MP_OK);
    CHECK_STR(chosen.policy[MP_POLICY_EVICT], "layer-lfu");
    CHECK_STR(chosen.policy[MP_POLICY_PREFETCH], "top");
    CHECK_STR(chosen.policy[MP_POLICY_PREDICT], "none");
}

static void unknown_names_are_refused_with_the_known_ones(void)
{
    struct mp_policy_names names = { .profile = "lru\n" };
    struct mp_profile chosen = { .name = "untouched" };
    struct mp_policies set = { .evict = (struct mp_policy *)&chosen };

    CHECK_EQ(mp_policy_resolve(&names, &chosen), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_PROFILE");
    CHECK(strstr(mp_error_last()->text,
                 "unknown profile 'lru\\x0a'; known are gate-best, gate-ema") ==
          mp_error_last()->text);
    for (const struct mp_profile *p = mp_profiles; p->name != NULL; p++)
        CHECK(strstr(mp_error_last()->text, p->name) != NULL);
    names.profile = NULL;
    for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT; kind++) {
        const struct mp_policy_info *info;

        names.policy[kind] = "nonsense";
        CHECK_EQ(mp_policy_resolve(&names, &chosen), MP_ERR_CONFIG);
        CHECK_STR(mp_error_last()->code, "E_POLICY");
        CHECK(strstr(mp_error_last()->text, mp_policy_kind_name(kind)) != NULL);
        for (size_t i = 0; (info = mp_policy_builtin(kind, i)) != NULL; i++)
            CHECK(strstr(mp_error_last()->text, info->name) != NULL);
        names.policy[kind] = NULL;
    }
    CHECK_STR(chosen.name, "untouched");

    chosen = mp_profiles[0];
    chosen.policy[MP_POLICY_PARTITION] = "nonsense";
    CHECK_EQ(mp_policies_create(&chosen, &shape, NULL, &set), MP_ERR_CONFIG);
    CHECK(strstr(mp_error_last()->text, "'nonsense'") != NULL);
    chosen.policy[MP_POLICY_PARTITION] = NULL;
    CHECK_EQ(mp_policies_create(&chosen, &shape, NULL, &set), MP_ERR_CONFIG);
    CHECK(set.evict == (struct mp_policy *)&chosen); /* untouched */
}

static void options_have_the_policys_prefix_and_arrive(void)
{
    static const float scores[8] = { 0, 1, 2, 3, 4, 5, 6, 7 };
    const struct mp_prefetch_facts facts = {
        .target_layer = 1, .tokens = 1, .experts = 8, .k = 2, .scores = scores, .max = 8
    };
    uint64_t ranks = 5; /* the whole of the policy's config */
    const struct mp_opt_group groups[] = {
        { .prefix = "MOEPAGER_TOP_", .table = mp_prefetch_top.info.opts, .config = &ranks },
        { .prefix = NULL },
    };
    struct mp_profile chosen = mp_profiles[0];
    char prefix[MP_POLICY_PREFIX_BYTES];
    struct mp_policies set;
    uint32_t wanted[8];

    mp_policy_prefix(&mp_evict_layer_lru.info, prefix);
    CHECK_STR(prefix, "MOEPAGER_LAYER_LRU_");
    mp_policy_prefix(&mp_prefetch_top.info, prefix);
    CHECK_STR(prefix, "MOEPAGER_TOP_");
    CHECK_EQ(mp_prefetch_top.info.config_size, sizeof(ranks));

    chosen.policy[MP_POLICY_PREFETCH] = "top";
    CHECK_EQ(mp_policies_create(&chosen, &shape, NULL, &set), MP_OK);
    CHECK_EQ(set.prefetch_ops->choose(set.prefetch, &facts, wanted), 2); /* the model's k */
    mp_policies_destroy(&set);
    CHECK_EQ(setenv("MOEPAGER_TOP_RANKS", "3", 1), 0);
    CHECK_EQ(mp_policies_create(&chosen, &shape, NULL, &set), MP_OK);
    CHECK_EQ(set.prefetch_ops->choose(set.prefetch, &facts, wanted), 3);
    mp_policies_destroy(&set);
    CHECK_EQ(mp_policies_create(&chosen, &shape, groups, &set), MP_OK);
    CHECK_EQ(set.prefetch_ops->choose(set.prefetch, &facts, wanted), 5);
    mp_policies_destroy(&set);
    CHECK_EQ(unsetenv("MOEPAGER_TOP_RANKS"), 0);
}

static void uniform_gives_away_every_slot_once(void)
{
    for (uint32_t layers = 1; layers < 9; layers++) {
        for (uint32_t slots = 0; slots < 40; slots++) {
            const struct mp_shape s = { .layers = layers, .slots = slots };
            uint32_t quota[8], sum = 0;

            mp_partition_uniform.quota(NULL, &s, quota);
            for (uint32_t l = 0; l < layers; l++) {
                sum += quota[l];
                CHECK(quota[l] == slots / layers || quota[l] == slots / layers + 1);
                CHECK(l == 0 || quota[l] <= quota[l - 1]);
            }
            CHECK_EQ(sum, slots);
        }
    }
}

static void small_policies_decide_what_they_say(void)
{
    static const uint32_t experts[3] = { 1, 4, 6 }, tokens[3] = { 9, 1, 1 };
    static const uint8_t resident[3] = { 1, 0, 0 };
    const struct mp_assign_facts facts = {
        .layer = 0,
        .count = 3,
        .experts = experts,
        .tokens = tokens,
        .resident = resident,
    };
    uint32_t executors[3] = { TEST_CPU, TEST_CPU, TEST_CPU };

    mp_assign_gpu_only.assign(NULL, &facts, executors);
    for (size_t i = 0; i < 3; i++)
        CHECK_EQ(executors[i], TEST_DEVICE);
    CHECK(mp_admit_always.admit(NULL, 0, 1, 1));
    CHECK(mp_admit_always.admit(NULL, 23, 100, 9));
    CHECK(mp_partition_global.global);
    CHECK(!mp_partition_uniform.global);
    CHECK(mp_evict_layer_lru.per_layer && mp_evict_layer_lfu.per_layer);
    CHECK(!mp_evict_lru.per_layer && !mp_evict_lfu.per_layer && !mp_evict_random.per_layer);
    CHECK(mp_route_exact.exact);
    CHECK(mp_predict_none.predict == NULL && mp_prefetch_none.choose == NULL);
}

int main(void)
{
    shape.calibration = test_calibration(shape.layers, shape.experts);
    RUN(every_builtin_is_complete_and_can_be_found);
    RUN(every_missing_function_is_named);
    RUN(optional_functions_may_be_missing);
    RUN(heads_are_checked);
    RUN(profiles_are_full_sets);
    RUN(names_override_the_profile);
    RUN(unknown_names_are_refused_with_the_known_ones);
    RUN(options_have_the_policys_prefix_and_arrive);
    RUN(uniform_gives_away_every_slot_once);
    RUN(small_policies_decide_what_they_say);
    return 0;
}
