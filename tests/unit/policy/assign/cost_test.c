/*
 * Assignment by cost, as profile `auto` has it: each expert to who is done with it first.
 */
#include "policy/assign/plan.h"
#include "policy/builtins.h"
#include "tests/support/executors.h"
#include "tests/support/random.h"
#include "tests/support/test.h"
#include "tests/unit/policy/auto_layer.h"

static uint64_t random_state = 17;

/*
 * Load 10, device 1 + n, CPU 2 + 3 n, in place 6 + 2 n.
 * Experts with 8 5 2 1 tokens, the second resident: the device is busy with it until 6.
 *   8: load until 10, device until 19; in place 6 + 22 = 28; CPU 26: device.
 *   2: load until 20, device until 23; in place 19 + 10 = 29; CPU 8: CPU.
 *   1: load until 20, device until 22; in place 27; CPU 8 + 5 = 13: CPU.
 * The layer ends at 19. Without the CPU 2 is loaded (23) and 1 read in place (23 + 8 = 31, loaded
 * 32): 31. With loads of 100 all absent ones are read in place: 28, 38, 46.
 */
static void cost_gives_each_to_who_is_done_first(void)
{
    static const uint32_t tokens[4] = { 8, 5, 2, 1 };
    static const uint8_t resident[4] = { 0, 1, 0, 0 };
    struct mp_costs costs = { TEST_THREE_EXECUTORS,
                              .load_ns = 10,
                              .executors[TEST_CPU].fixed_ns = 2,
                              .executors[TEST_CPU].token_ns = 3,
                              .executors[TEST_DEVICE].fixed_ns = 1,
                              .executors[TEST_DEVICE].token_ns = 1,
                              .executors[TEST_IN_PLACE].fixed_ns = 6,
                              .executors[TEST_IN_PLACE].token_ns = 2 };
    const struct mp_shape shape = { .layers = 1, .experts = 8 };
    struct mp_assign_facts facts = facts_of(4, tokens, resident, &costs);
    uint32_t who[4];
    struct mp_policy *policy;

    CHECK_EQ(mp_assign_cost.create(NULL, &shape, &policy), MP_OK);
    mp_assign_cost.assign(policy, &facts, who);
    CHECK(who[0] == TEST_DEVICE && who[1] == TEST_DEVICE);
    CHECK(who[2] == TEST_CPU && who[3] == TEST_CPU);
    CHECK_EQ(mp_assign_span_ns(&facts, who), 19);
    costs.executors[TEST_CPU].handoff_ns =
        30; /* with it the CPU would have been done at 38, and later */
    mp_assign_cost.assign(policy, &facts, who);
    CHECK(who[2] == TEST_DEVICE && who[3] == TEST_IN_PLACE);
    costs.executors[TEST_CPU].handoff_ns = 0;
    costs.executor_count = TEST_CPU;
    mp_assign_cost.assign(policy, &facts, who);
    for (unsigned i = 0; i < 3; i++)
        CHECK_EQ(who[i], TEST_DEVICE);
    CHECK_EQ(who[3], TEST_IN_PLACE);
    CHECK_EQ(mp_assign_span_ns(&facts, who), 31);
    costs.load_ns = 100;
    mp_assign_cost.assign(policy, &facts, who);
    for (unsigned i = 0; i < 4; i++)
        CHECK_EQ(who[i], resident[i] ? TEST_DEVICE : TEST_IN_PLACE);
    costs.load_ns = 0; /* nothing is known */
    mp_assign_cost.assign(policy, &facts, who);
    for (unsigned i = 0; i < 4; i++)
        CHECK_EQ(who[i], TEST_DEVICE);
    mp_assign_cost.destroy(policy);
}

/*
 * Three absent experts of one token each. Load 10, device 1, CPU 4. Nothing on its way: the link
 * gets the first (11) only after the CPU has taken the other two (4, 8). With the last one on its
 * way, there at 3: the device has it at 4, the CPU the others at 4 and 8, where a bit would have
 * made the device wait for another load, or the CPU compute what is nearly there.
 */
static void what_is_on_its_way_is_not_loaded_again(void)
{
    static const uint32_t tokens[3] = { 1, 1, 1 };
    static const uint8_t resident[3] = { 0, 0, 0 };
    static const uint64_t arrival_ns[3] = { MP_ARRIVAL_NEVER, MP_ARRIVAL_NEVER, 3 };
    static const uint64_t late_ns[3] = { MP_ARRIVAL_NEVER, MP_ARRIVAL_NEVER, 90 };
    const struct mp_costs costs = { TEST_THREE_EXECUTORS, .load_ns = 10,
                                    .executors[TEST_CPU].token_ns = 4,
                                    .executors[TEST_DEVICE].token_ns = 1 };
    const struct mp_shape shape = { .layers = 1, .experts = 8 };
    struct mp_assign_facts facts = facts_of(3, tokens, resident, &costs);
    uint32_t who[3];
    struct mp_policy *policy;

    CHECK_EQ(mp_assign_cost.create(NULL, &shape, &policy), MP_OK);
    facts.arrival_ns = arrival_ns;
    mp_assign_cost.assign(policy, &facts, who);
    CHECK(who[0] == TEST_CPU && who[1] == TEST_CPU && who[2] == TEST_DEVICE);
    CHECK_EQ(mp_assign_span_ns(&facts, who), 8);
    facts.arrival_ns = late_ns; /* the CPU is done before it comes */
    mp_assign_cost.assign(policy, &facts, who);
    for (unsigned i = 0; i < 3; i++)
        CHECK_EQ(who[i], TEST_CPU);
    mp_assign_cost.destroy(policy);
}

/* Eight residents of 2 each, 5 on the CPU: two of them there, 12 and 10; a third would end at 15.
 */
static void the_cpu_relieves_the_device(void)
{
    static const uint32_t tokens[8] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    static const uint8_t resident[8] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    const struct mp_costs costs = { TEST_THREE_EXECUTORS,
                                    .load_ns = 10,
                                    .executors[TEST_CPU].fixed_ns = 2,
                                    .executors[TEST_CPU].token_ns = 3,
                                    .executors[TEST_DEVICE].fixed_ns = 1,
                                    .executors[TEST_DEVICE].token_ns = 1 };
    const struct mp_shape shape = { .layers = 1, .experts = 8 };
    const struct mp_assign_facts facts = facts_of(8, tokens, resident, &costs);
    uint32_t who[8];
    struct mp_policy *policy;

    CHECK_EQ(mp_assign_cost.create(NULL, &shape, &policy), MP_OK);
    mp_assign_cost.assign(policy, &facts, who);
    for (unsigned i = 0; i < 8; i++)
        CHECK_EQ(who[i], i < 6 ? TEST_DEVICE : TEST_CPU);
    CHECK_EQ(mp_assign_span_ns(&facts, who), 12);
    mp_assign_cost.destroy(policy);
}

/* A load takes 10 for any number of tokens, the CPU 1 for each of them: the link gets the expert
 * with 9 tokens, although the CPU would be done with it sooner, and the CPU the others. */
static void large_experts_are_loaded_and_small_ones_computed_where_they_are(void)
{
    static const uint32_t tokens[4] = { 2, 9, 3, 4 };
    static const uint8_t resident[4] = { 0, 0, 0, 0 };
    const struct mp_costs costs = { TEST_THREE_EXECUTORS, .load_ns = 10,
                                    .executors[TEST_CPU].token_ns = 1 };
    const struct mp_shape shape = { .layers = 1, .experts = 4 };
    const struct mp_assign_facts facts = facts_of(4, tokens, resident, &costs);
    uint32_t who[4];
    struct mp_policy *policy;

    CHECK_EQ(mp_assign_cost.create(NULL, &shape, &policy), MP_OK);
    mp_assign_cost.assign(policy, &facts, who);
    for (unsigned i = 0; i < 4; i++)
        CHECK_EQ(who[i], i == 1 ? TEST_DEVICE : TEST_CPU);
    CHECK_EQ(mp_assign_span_ns(&facts, who), 10);
    mp_assign_cost.destroy(policy);
}

/* A fourth executor, a second helper that takes 6 beside a CPU that takes 5, and four absent
 * experts: the CPU takes them from the end, at 5 and 10, the other from the beginning, at 6 and 12.
 */
static void another_executor_is_another_entry(void)
{
    static const uint32_t tokens[4] = { 1, 1, 1, 1 };
    static const uint8_t resident[4] = { 0, 0, 0, 0 };
    struct mp_costs costs = {
        TEST_THREE_EXECUTORS, .load_ns = 100, .executors[TEST_CPU].fixed_ns = 5,
        .executors[TEST_DEVICE].fixed_ns = 1,
        .executors[TEST_EXECUTORS] = { .fixed_ns = 6, .reads = MP_READS_HOST, .processor = 2 }
    };
    const struct mp_shape shape = { .layers = 1, .experts = 4 };
    const struct mp_assign_facts facts = facts_of(4, tokens, resident, &costs);
    uint32_t who[4];
    struct mp_policy *policy;

    costs.executor_count = TEST_EXECUTORS + 1;
    CHECK_EQ(mp_assign_cost.create(NULL, &shape, &policy), MP_OK);
    mp_assign_cost.assign(policy, &facts, who);
    CHECK(who[0] == TEST_EXECUTORS && who[1] == TEST_EXECUTORS);
    CHECK(who[2] == TEST_CPU && who[3] == TEST_CPU);
    CHECK_EQ(mp_assign_span_ns(&facts, who), 12);
    costs.executors[TEST_EXECUTORS].processor = 1; /* now both take turns */
    CHECK_EQ(mp_assign_span_ns(&facts, who), 22);
    mp_assign_cost.destroy(policy);
}

/* Whatever work costs, the plan is not longer than a static placement's with the same residents. */
static void a_plan_is_never_longer_than_static_placement(void)
{
    const struct mp_shape shape = { .layers = 1, .experts = 8 };
    struct mp_policy *cost, *fixed;

    CHECK_EQ(mp_assign_cost.create(NULL, &shape, &cost), MP_OK);
    CHECK_EQ(mp_assign_resident.create(NULL, &shape, &fixed), MP_OK);
    for (unsigned round = 0; round < 20000; round++) {
        const uint32_t most = 1 + random_below(20);
        const struct mp_costs costs = { TEST_THREE_EXECUTORS,
                                        .load_ns = 1 + random_below(100),
                                        .executors[TEST_CPU].fixed_ns = 1 + random_below(60),
                                        .executors[TEST_CPU].token_ns = random_below(30),
                                        .executors[TEST_DEVICE].fixed_ns = 1 + random_below(10),
                                        .executors[TEST_DEVICE].token_ns = random_below(5),
                                        .executors[TEST_IN_PLACE].fixed_ns = random_below(60),
                                        .executors[TEST_IN_PLACE].token_ns = random_below(5),
                                        .executors[TEST_CPU].handoff_ns = random_below(40) };
        uint32_t tokens[8];
        uint8_t resident[8];
        struct mp_assign_facts facts;
        uint32_t planned[8], simple[8];

        for (unsigned i = 0; i < 8; i++) {
            tokens[i] = 1 + random_below(most);
            resident[i] = random_below(3) > 0;
        }
        facts = facts_of(1 + random_below(8), tokens, resident, &costs);
        facts.link_busy_ns = random_below(50);
        mp_assign_cost.assign(cost, &facts, planned);
        mp_assign_resident.assign(fixed, &facts, simple);
        if (most == 1) /* in any order the same */
            CHECK(mp_assign_span_ns(&facts, planned) <= mp_assign_span_ns(&facts, simple));
        else
            CHECK(mp_assign_span_ns(&facts, planned) <=
                  mp_assign_span_ns(&facts, simple) +
                      costs.executors[TEST_DEVICE].token_ns * most * 8);
    }
    mp_assign_cost.destroy(cost);
    mp_assign_resident.destroy(fixed);
}

int main(void)
{
    RUN(cost_gives_each_to_who_is_done_first);
    RUN(what_is_on_its_way_is_not_loaded_again);
    RUN(the_cpu_relieves_the_device);
    RUN(large_experts_are_loaded_and_small_ones_computed_where_they_are);
    RUN(another_executor_is_another_entry);
    RUN(a_plan_is_never_longer_than_static_placement);
    return 0;
}
