/*
 * Partitions: MoEpic's cache configuration on cases worked out by hand, AdapMoE's sizes against
 * dynamic programming, first residents in the right order, and that no partition gives away more
 * slots than there are.
 */
#include <math.h>

#include "policy/builtins.h"
#include "policy/hot.h"
#include "tests/unit/policy/calibration.h"
#include "tests/unit/policy/instance.h"
#include "tests/support/random.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

static uint64_t random_state = 11;

/* Least expected loads with `slots` for layers l.. by trying every size: dynamic programming. */
static double least_loads(const struct mp_shape *shape, uint32_t slots)
{
    static double best[65], next[65];

    for (uint32_t s = 0; s <= slots; s++)
        best[s] = s == 0 ? 0 : INFINITY;
    for (uint32_t l = 0; l < shape->layers; l++) {
        float share[32];

        memcpy(share, shape->calibration->hot + l * shape->experts,
               shape->experts * sizeof(share[0]));
        for (uint32_t i = 1; i < shape->experts; i++) {
            for (uint32_t j = i; j > 0 && share[j] > share[j - 1]; j--) {
                const float swap = share[j];

                share[j] = share[j - 1];
                share[j - 1] = swap;
            }
        }
        for (uint32_t s = 0; s <= slots; s++) {
            double covered = 0;

            next[s] = INFINITY;
            for (uint32_t mine = 0; mine <= s && mine <= shape->experts; mine++) {
                if (mine > 0)
                    covered += (double)share[mine - 1];
                if (mine > 0 && best[s - mine] + 1 - covered < next[s])
                    next[s] = best[s - mine] + 1 - covered;
            }
        }
        memcpy(best, next, sizeof(best));
    }
    return best[slots];
}

static void adapmoe_finds_the_optimum_of_dynamic_programming(void)
{
    float hot[4 * 12];
    const struct mp_calibration calibration = { .hot = hot };

    for (unsigned round = 0; round < 300; round++) {
        struct mp_shape shape = { .layers = 4, .experts = 12, .calibration = &calibration };
        struct mp_policy *policy;
        uint32_t quota[4], sum = 0;
        double loads = 0;

        for (uint32_t l = 0; l < 4; l++) {
            float all = 0;

            for (uint32_t e = 0; e < 12; e++)
                all += hot[l * 12 + e] = (float)(1 + random_below(l == 0 ? 2 : 200));
            for (uint32_t e = 0; e < 12; e++)
                hot[l * 12 + e] /= all;
        }
        shape.slots = 4 + random_below(45);
        CHECK_EQ(mp_partition_adapmoe.create(NULL, &shape, &policy), MP_OK);
        mp_partition_adapmoe.quota(policy, &shape, quota);
        for (uint32_t l = 0; l < 4; l++) {
            bool taken[12] = { false };

            CHECK(quota[l] >= 1 && quota[l] <= 12);
            sum += quota[l];
            loads += 1;
            for (uint32_t i = 0; i < quota[l]; i++) {
                uint32_t top = 12;

                for (uint32_t e = 0; e < 12; e++) {
                    if (!taken[e] && (top == 12 || hot[l * 12 + e] > hot[l * 12 + top]))
                        top = e;
                }
                taken[top] = true;
                loads -= (double)hot[l * 12 + top];
            }
        }
        CHECK_EQ(sum, shape.slots);
        CHECK(fabs(loads - least_loads(&shape, shape.slots)) < 1e-5);
        mp_partition_adapmoe.destroy(policy);
    }
}

/* Shares: expert 0 of every layer is hottest, and layer 0 falls steepest (see calibration.h). */
static void first_residents_are_the_hottest_or_whole_layers(void)
{
    struct mp_shape shape = { .layers = 3, .experts = 8, .top_k = 1, .slots = 12 };
    struct {
        uint64_t value;
    } config = { 0 };
    struct mp_policy *policy;
    uint32_t units[24], count;
    float last = 1;

    shape.calibration = test_calibration(3, 8);
    CHECK_EQ(mp_partition_hot_table.create(&config, &shape, &policy), MP_OK);
    count = mp_partition_hot_table.first(policy, &shape, units);
    CHECK_EQ(mp_buffer_slots(&shape), 3); /* a quarter of 12 is less than 2 + 2 */
    CHECK_EQ(count, 9);
    for (uint32_t i = 0; i < count; i++) {
        CHECK(shape.calibration->hot[units[i]] <= last);
        last = shape.calibration->hot[units[i]];
    }
    CHECK_EQ(units[0], 0);
    mp_partition_hot_table.destroy(policy);
    config.value = 11;
    CHECK_EQ(mp_partition_hot_table.create(&config, &shape, &policy), MP_OK);
    CHECK_EQ(mp_partition_hot_table.first(policy, &shape, units), 1);
    mp_partition_hot_table.destroy(policy);

    for (uint64_t at_end = 0; at_end < 2; at_end++) {
        config.value = at_end;
        CHECK_EQ(mp_partition_static_layers.create(&config, &shape, &policy), MP_OK);
        CHECK_EQ(mp_partition_static_layers.first(policy, &shape, units), 9);
        for (uint32_t i = 0; i < 8; i++)
            CHECK_EQ(units[i], at_end ? 16 + i : i);
        CHECK_EQ(units[8], 8); /* one of the next layer, which does not fit as a whole */
        mp_partition_static_layers.destroy(policy);
    }
}

static void without_a_calibration_they_are_refused(void)
{
    const struct mp_shape shape = { .layers = 3, .experts = 8, .top_k = 1, .slots = 12 };
    const uint64_t config = 0;
    struct mp_policy *policy;

    CHECK_EQ(mp_partition_hot_table.create(&config, &shape, &policy), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_CALIBRATION");
    CHECK(strstr(mp_error_last()->text, "'hot-table'") != NULL);
    CHECK(strstr(mp_error_last()->text, "moepager calibrate") != NULL);
    CHECK_EQ(mp_partition_adapmoe.create(NULL, &shape, &policy), MP_ERR_CONFIG);
    CHECK(strstr(mp_error_last()->text, "'adapmoe'") != NULL);
}

/* Every partition that divides: the shares of all slots, or of all experts if there are fewer. */
static void no_partition_gives_away_more_than_there_is(void)
{
    const struct mp_partition_ops *ops;

    for (size_t i = 0; (ops = (const void *)mp_policy_builtin(MP_POLICY_PARTITION, i)) != NULL;
         i++) {
        static _Alignas(16) char config[1024];

        CHECK(ops->info.config_size <= sizeof(config));
        if (ops->info.opts != NULL)
            CHECK_EQ(mp_opt_load(ops->info.opts, "UNSET_", config), 0);
        for (uint32_t slots = 0; slots <= 40; slots++) {
            struct mp_shape shape = {
                .layers = 4, .experts = 8, .top_k = 2, .tokens_max = 4, .slots = slots
            };
            uint32_t quota[4] = { 0 }, units[32], count = 0;
            struct mp_policy *policy;
            uint64_t sum = 0;

            shape.calibration = test_calibration(4, 8);
            CHECK_EQ(ops->create(ops->info.opts != NULL ? config : NULL, &shape, &policy), MP_OK);
            if (!ops->global)
                ops->quota(policy, &shape, quota);
            for (uint32_t l = 0; l < 4; l++)
                sum += quota[l];
            CHECK(sum <= slots);
            if (!ops->global)
                CHECK(sum >= (slots < 32 ? slots : 32));
            if (ops->first != NULL)
                count = ops->first(policy, &shape, units);
            CHECK(count <= slots && count <= 32);
            for (uint32_t u = 0; u < count; u++) {
                CHECK(units[u] < 32);
                for (uint32_t v = 0; v < u; v++)
                    CHECK(units[v] != units[u]);
            }
            ops->destroy(policy);
        }
    }
}

int main(void)
{
    RUN(adapmoe_finds_the_optimum_of_dynamic_programming);
    RUN(first_residents_are_the_hottest_or_whole_layers);
    RUN(without_a_calibration_they_are_refused);
    RUN(no_partition_gives_away_more_than_there_is);
    return 0;
}
