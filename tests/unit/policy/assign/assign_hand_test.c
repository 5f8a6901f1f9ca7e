/*
 * Assign policies on cases by hand: ties, queues, unknown costs. assign_test.c has random layers.
 */
#include "policy/assign/queue.h"
#include "policy/builtins.h"
#include "tests/support/executors.h"
#include "tests/unit/policy/assign/layer.h"
#include "tests/unit/policy/instance.h"

/*
 * Five experts, all cold but number 4, one token each; loads take 30, the CPU 20, so by score
 * 0 > 2 > 3 > 1:
 *     T_load 0, T_CPU 0    load 0    T_load 30
 *     30 > 0               CPU 1     T_CPU 20
 *     30 > 20              CPU 3     T_CPU 40
 *     30 <= 40             load 2    T_load 60
 */
static void two_pointer_by_hand(void)
{
    static const float scores[5] = { 0.9f, 0.1f, 0.7f, 0.2f, 0.05f };
    struct mp_policy *policy = make(&mp_assign_two_pointer);
    uint32_t executors[5];
    struct layer layer;

    layer_init(&layer, 5);
    layer.costs =
        (struct mp_costs){ TEST_THREE_EXECUTORS, .load_ns = 30, .executors[TEST_CPU].fixed_ns = 15,
                           .executors[TEST_CPU].token_ns = 5 };
    memcpy(layer.scores, scores, sizeof(scores));
    for (uint32_t i = 0; i < 5; i++)
        layer.tokens[i] = 1;
    layer.resident[4] = 1;
    mp_assign_two_pointer.assign(policy, &layer.facts, executors);
    CHECK_EQ(executors[0], TEST_DEVICE);
    CHECK_EQ(executors[1], TEST_CPU);
    CHECK_EQ(executors[2], TEST_DEVICE);
    CHECK_EQ(executors[3], TEST_CPU);
    CHECK_EQ(executors[4], TEST_DEVICE);
    mp_assign_two_pointer.destroy(policy);
}

/*
 * Loads take 100, the CPU 10 + 20 n, the device 2 + 3 n.
 *
 *     expert  tokens  resident  t_gpu  t_cpu  |difference|
 *          0       1        no    100     30            70
 *          1      10       yes     32    210           178
 *          2       6        no    100    130            30
 *          3       1       yes      5     30            25
 *          4       2        no    100     50            50
 *
 * Greedy, order 1 0 4 2 3:
 *     1: 32 <= 210      device, T_gpu 32
 *     0: 132 > 30       CPU, T_cpu 30
 *     4: 132 > 80       CPU, T_cpu 80
 *     2: 132 <= 210     device, T_gpu 132
 *     3: 137 > 110      CPU, T_cpu 110
 * max 132. With one of the two sides changed for any expert it gets no better: 132 needs expert 2
 * on the device, which is the optimum here, since the CPU alone with 2 would take 130 + 30 + 50.
 */
static void greedy_by_hand(void)
{
    static const uint32_t tokens[5] = { 1, 10, 6, 1, 2 };
    struct mp_policy *greedy = make(&mp_assign_greedy), *exact = make(&mp_assign_exact);
    struct mp_policy *threshold = make(&mp_assign_threshold);
    uint32_t executors[5];
    struct layer layer;

    layer_init(&layer, 5);
    layer.costs = (struct mp_costs){ TEST_THREE_EXECUTORS,
                                     .load_ns = 100,
                                     .executors[TEST_CPU].fixed_ns = 10,
                                     .executors[TEST_CPU].token_ns = 20,
                                     .executors[TEST_DEVICE].fixed_ns = 2,
                                     .executors[TEST_DEVICE].token_ns = 3 };
    memcpy(layer.tokens, tokens, sizeof(tokens));
    layer.resident[1] = layer.resident[3] = 1;
    mp_assign_greedy.assign(greedy, &layer.facts, executors);
    CHECK_EQ(executors[0], TEST_CPU);
    CHECK_EQ(executors[1], TEST_DEVICE);
    CHECK_EQ(executors[2], TEST_DEVICE);
    CHECK_EQ(executors[3], TEST_CPU);
    CHECK_EQ(executors[4], TEST_CPU);
    CHECK_EQ(time_of(&layer, executors), 132);
    CHECK_EQ(result_of(&mp_assign_exact, exact, &layer), 132);
    CHECK_EQ(try_everything(&layer), 132);

    /* Fiddler: cold ones go to the CPU up to 100 + 2 + 3 n >= 10 + 20 n, n <= 5. */
    mp_assign_threshold.assign(threshold, &layer.facts, executors);
    CHECK_EQ(executors[0], TEST_CPU);
    CHECK_EQ(executors[1], TEST_DEVICE);
    CHECK_EQ(executors[2], TEST_DEVICE);
    CHECK_EQ(executors[3], TEST_DEVICE);
    CHECK_EQ(executors[4], TEST_CPU);
    layer.tokens[2] = 5;
    mp_assign_threshold.assign(threshold, &layer.facts, executors);
    CHECK_EQ(executors[2], TEST_CPU);
    mp_assign_greedy.destroy(greedy);
    mp_assign_exact.destroy(exact);
    mp_assign_threshold.destroy(threshold);
}

/*
 * HybriMoE's queues with the same times. Residents: 1 (10 tokens, 32 on the device) and 3 (1 token,
 * 5); cold, by tokens: 2 (6), 4 (2), 0 (1). The device starts with its residents: done at 37.
 *     link: 2 arrives at 100, computed until 120; CPU: 0 until 30      the CPU is first, 0
 *     link: 2 until 120; CPU: 4 until 30 + 50 = 80                     the CPU, 4
 *     link: 2 until 120; CPU: 2 until 80 + 130 = 210                   the link, 2
 * Layer: 120. The CPU, done at 80, could take 3 until 110, but the device is done at 120 as before,
 * since it waits for the load: not sooner, so it does not.
 */
static void queue_by_hand(void)
{
    static const uint32_t tokens[5] = { 1, 10, 6, 1, 2 };
    struct mp_policy *queue = make(&mp_assign_queue);
    uint32_t executors[5];
    struct layer layer;

    layer_init(&layer, 5);
    layer.costs = (struct mp_costs){ TEST_THREE_EXECUTORS,
                                     .load_ns = 100,
                                     .executors[TEST_CPU].fixed_ns = 10,
                                     .executors[TEST_CPU].token_ns = 20,
                                     .executors[TEST_DEVICE].fixed_ns = 2,
                                     .executors[TEST_DEVICE].token_ns = 3 };
    memcpy(layer.tokens, tokens, sizeof(tokens));
    layer.resident[1] = layer.resident[3] = 1;
    mp_assign_queue.assign(queue, &layer.facts, executors);
    CHECK_EQ(executors[0], TEST_CPU);
    CHECK_EQ(executors[1], TEST_DEVICE);
    CHECK_EQ(executors[2], TEST_DEVICE);
    CHECK_EQ(executors[3], TEST_DEVICE);
    CHECK_EQ(executors[4], TEST_CPU);
    CHECK_EQ(mp_queue_plan((struct mp_sorter *)queue, &layer.costs, layer.tokens, layer.resident, 5,
                           NULL),
             120);

    /* All resident, the device slow: 5 experts of 102 each in a row end at 510. The CPU, 30 for
     * one, takes as many as end the layer sooner: after 3 of them 90 against 204, after 4 it is 120
     * against 102, which is sooner than 204, and the fifth would not be. */
    layer.costs.executors[TEST_DEVICE].fixed_ns = 99;
    for (uint32_t i = 0; i < 5; i++) {
        layer.tokens[i] = 1;
        layer.resident[i] = 1;
    }
    CHECK_EQ(mp_queue_plan((struct mp_sorter *)queue, &layer.costs, layer.tokens, layer.resident, 5,
                           executors),
             120);
    CHECK_EQ(executors[0], TEST_DEVICE);
    for (uint32_t i = 1; i < 5; i++)
        CHECK_EQ(executors[i], TEST_CPU);
    mp_assign_queue.destroy(queue);
}

/*
 * One token takes `device` there and `cpu` on the CPU; all are resident, or cold with `load`. What
 * is expected: D, the device, or C, the CPU, for each. 5 and 20, 1 and 3 tokens: both on the device
 * 20 and 0; the first on the CPU 15 and 20. The layer ends at 20 either way; beam takes the smaller
 * sum. 20 and 20: as soon here as there; greedy takes the device, beam what it looks at first, the
 *         CPU.
 *     10 and 15, twice: the lower expert is placed first; both at the device would end at 20.
 *     Cold: a load and its computing overlap for greedy and follow each other for threshold and
 *         queue. Of those that end together threshold takes the CPU, the others the device;
 *         two_pointer loads the first one in any case, and the next when both have spent 20.
 */
static void ties_go_where_the_text_says(void)
{
    static const struct {
        const struct mp_assign_ops *ops;
        uint32_t count, tokens[3];
        uint64_t load_ns, device_ns, cpu_ns;
        const char *expected;
    } cases[] = {
        { &mp_assign_beam, 2, { 1, 3 }, 0, 5, 20, "DD" },
        { &mp_assign_beam, 1, { 1 }, 0, 20, 20, "C" },
        { &mp_assign_greedy, 1, { 1 }, 0, 20, 20, "D" },
        { &mp_assign_greedy, 2, { 1, 1 }, 0, 10, 15, "DC" },
        { &mp_assign_greedy, 1, { 1 }, 20, 10, 20, "D" },
        { &mp_assign_threshold, 1, { 1 }, 15, 5, 20, "C" },
        { &mp_assign_threshold, 1, { 1 }, 14, 5, 20, "D" },
        { &mp_assign_queue, 1, { 1 }, 15, 5, 20, "D" },
        { &mp_assign_queue, 1, { 1 }, 16, 5, 20, "C" },
        { &mp_assign_two_pointer, 3, { 1, 1, 1 }, 20, 1, 20, "DDC" },
        { &mp_assign_two_pointer, 1, { 1 }, 100, 1, 1, "D" },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const bool cold = cases[i].load_ns > 0;
        struct mp_policy *policy = make(cases[i].ops);
        uint32_t executors[3];
        struct layer layer;

        layer_init(&layer, cases[i].count);
        layer.costs =
            (struct mp_costs){ TEST_THREE_EXECUTORS, .load_ns = cases[i].load_ns + 1 - cold,
                               .executors[TEST_CPU].token_ns = cases[i].cpu_ns,
                               .executors[TEST_DEVICE].token_ns = cases[i].device_ns };
        memcpy(layer.tokens, cases[i].tokens, sizeof(cases[i].tokens));
        for (uint32_t e = 0; e < cases[i].count; e++) {
            layer.resident[e] = !cold;
            layer.scores[e] = 0.5f / (float)(e + 1);
        }
        cases[i].ops->assign(policy, &layer.facts, executors);
        for (uint32_t e = 0; e < cases[i].count; e++)
            CHECK_EQ(executors[e] == TEST_CPU, cases[i].expected[e] == 'C');
        cases[i].ops->destroy(policy);
    }
}

static void unknown_costs_send_everything_to_the_device(void)
{
    const struct mp_policy_info *info;
    struct layer layer;

    for (size_t i = 0; (info = mp_policy_builtin(MP_POLICY_ASSIGN, i)) != NULL; i++) {
        const struct mp_assign_ops *ops = (const void *)info;
        struct mp_policy *policy = make(ops);

        for (unsigned what = 0; what < 4; what++) {
            uint32_t executors[EXPERTS];

            random_layer(&layer, what == 3 ? 0 : EXPERTS, 16, true);
            if (what == 0)
                layer.costs.executor_count = 1;
            else if (what == 1)
                layer.costs = (struct mp_costs){ TEST_THREE_EXECUTORS };
            memset(executors, 0xff, sizeof(executors));
            ops->assign(policy, &layer.facts, executors);
            for (uint32_t e = 0; e < layer.facts.count; e++)
                CHECK(executors[e] == TEST_DEVICE || (what == 2 && executors[e] == TEST_CPU) ||
                      /* a rule that looks at nothing but residency */
                      (what == 1 && executors[e] == TEST_CPU && !layer.resident[e]));
        }
        ops->destroy(policy);
    }
}

int main(void)
{
    RUN(two_pointer_by_hand);
    RUN(greedy_by_hand);
    RUN(queue_by_hand);
    RUN(ties_go_where_the_text_says);
    RUN(unknown_costs_send_everything_to_the_device);
    return 0;
}
