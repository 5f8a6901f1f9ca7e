/*
 * Assign policies: cases by hand, and on random layers the distance to the optimum of DALI's model
 * (eq. 3-9), which `exact` finds and which trying everything confirms.
 */
#include <inttypes.h>

#include "policy/assign/queue.h"
#include "policy/assign/times.h"
#include "policy/builtins.h"
#include "tests/unit/policy/instance.h"
#include "tests/support/executors.h"
#include "tests/support/random.h"

#define EXPERTS 64

static const struct mp_shape shape = {
    .layers = 1, .experts = EXPERTS, .top_k = 8, .tokens_max = 64, .slots = 32
};
static uint64_t random_state = 20240711;

struct layer {
    uint32_t experts[EXPERTS], tokens[EXPERTS];
    float scores[EXPERTS];
    uint8_t resident[EXPERTS];
    struct mp_costs costs;
    struct mp_assign_facts facts;
};

static void layer_init(struct layer *layer, uint32_t count)
{
    memset(layer, 0, sizeof(*layer));
    layer->costs = (struct mp_costs){ TEST_THREE_EXECUTORS };
    for (uint32_t i = 0; i < EXPERTS; i++)
        layer->experts[i] = i;
    layer->facts = (struct mp_assign_facts){
        .count = count,
        .experts = layer->experts,
        .tokens = layer->tokens,
        .scores = layer->scores,
        .resident = layer->resident,
        .costs = &layer->costs,
    };
}

/*
 * A machine whose load takes 1 to 20 times as long as the CPU does for one token, a device that is
 * 5 to 50 times as fast as the CPU, and a batch in which some experts are popular.
 */
static void random_layer(struct layer *layer, uint32_t count, uint32_t tokens_max, bool cached)
{
    layer_init(layer, count);
    layer->costs.executors[TEST_CPU].fixed_ns = 10000 + random_below(20000);
    layer->costs.executors[TEST_CPU].token_ns = 20000 + random_below(100000);
    layer->costs.load_ns =
        (1 + random_below(20)) *
        (layer->costs.executors[TEST_CPU].fixed_ns + layer->costs.executors[TEST_CPU].token_ns) / 2;
    layer->costs.executors[TEST_DEVICE].fixed_ns = 2000 + random_below(10000);
    layer->costs.executors[TEST_DEVICE].token_ns =
        layer->costs.executors[TEST_CPU].token_ns / (5 + random_below(46));
    for (uint32_t i = 0; i < count; i++) {
        layer->tokens[i] = 1 + random_below(random_below(3) == 0 ? tokens_max : 1 + tokens_max / 4);
        layer->resident[i] = cached && random_below(2);
        layer->scores[i] = (float)(1 + random_below(1000)) / 1000;
    }
}

/* max(T_gpu, T_cpu); checks executors and the memory bound on the way. */
static uint64_t time_of(const struct layer *layer, const uint32_t *executors)
{
    uint64_t device_ns = 0, cpu_ns = 0;
    uint32_t loads = 0;

    for (uint32_t i = 0; i < layer->facts.count; i++) {
        CHECK(executors[i] == TEST_DEVICE || executors[i] == TEST_CPU);
        if (executors[i] == TEST_CPU) {
            cpu_ns += mp_assign_helper_ns(&layer->costs, layer->tokens[i]);
            continue;
        }
        loads += !layer->resident[i];
        device_ns += mp_assign_home_ns(&layer->costs, layer->tokens[i], layer->resident[i]);
    }
    CHECK(layer->costs.transient == 0 || loads <= layer->costs.transient);
    return device_ns > cpu_ns ? device_ns : cpu_ns;
}

static uint64_t try_everything(const struct layer *layer)
{
    const uint32_t count = layer->facts.count;
    uint64_t best_ns = UINT64_MAX;

    for (uint32_t plan = 0; plan < 1u << count; plan++) {
        uint64_t device_ns = 0, cpu_ns = 0, time_ns;
        uint32_t loads = 0;

        for (uint32_t i = 0; i < count; i++) {
            const bool on_device = plan >> i & 1;

            loads += on_device && !layer->resident[i];
            *(on_device ? &device_ns : &cpu_ns) +=
                on_device ? mp_assign_home_ns(&layer->costs, layer->tokens[i], layer->resident[i])
                          : mp_assign_helper_ns(&layer->costs, layer->tokens[i]);
        }
        time_ns = device_ns > cpu_ns ? device_ns : cpu_ns;
        if (time_ns < best_ns && (layer->costs.transient == 0 || loads <= layer->costs.transient))
            best_ns = time_ns;
    }
    return best_ns;
}

static uint64_t result_of(const struct mp_assign_ops *ops, struct mp_policy *policy,
                          const struct layer *layer)
{
    uint32_t executors[EXPERTS];

    ops->assign(policy, &layer->facts, executors);
    return time_of(layer, executors);
}

static struct mp_policy *make(const struct mp_assign_ops *ops)
{
    return instance(&ops->info, ops->create, &shape, NULL);
}

static void exact_finds_what_trying_everything_finds(void)
{
    struct mp_policy *exact =
        instance(&mp_assign_exact.info, mp_assign_exact.create, &shape, "NODES", "1000000", NULL);
    struct layer layer;

    for (unsigned round = 0; round < 1500; round++) {
        random_layer(&layer, 1 + round % 12, round % 3 == 0 ? 1 : 64, round % 2);
        layer.costs.transient = round % 5 == 0 ? 1 + random_below(4) : 0;
        CHECK_EQ(result_of(&mp_assign_exact, exact, &layer), try_everything(&layer));
    }
    mp_assign_exact.destroy(exact);
}

/*
 * Equal experts change places freely, so that 24 of two kinds are at most 12 * 13 + 12 * 13^2
 * nodes, where 2^24 plans stand behind them. The optimum by trying how many of each kind are on the
 * device.
 */
static void exact_looks_at_equal_ones_once(void)
{
    struct mp_policy *exact =
        instance(&mp_assign_exact.info, mp_assign_exact.create, &shape, "NODES", "2184", NULL);
    struct layer layer;

    for (unsigned round = 0; round < 300; round++) {
        uint64_t best_ns = UINT64_MAX, device_ns[2], cpu_ns[2];

        random_layer(&layer, 24, 64, false);
        layer.costs.load_ns = layer.costs.executors[TEST_CPU].token_ns * (1 + round % 7) / 2;
        for (uint32_t i = 2; i < 24; i++)
            layer.tokens[i] = layer.tokens[i % 2];
        for (uint32_t kind = 0; kind < 2; kind++) {
            device_ns[kind] = mp_assign_home_ns(&layer.costs, layer.tokens[kind], false);
            cpu_ns[kind] = mp_assign_helper_ns(&layer.costs, layer.tokens[kind]);
        }
        for (uint32_t n = 0; n < 13 * 13; n++) {
            const uint32_t a = n % 13, b = n / 13;
            const uint64_t device = a * device_ns[0] + b * device_ns[1];
            const uint64_t cpu = (12 - a) * cpu_ns[0] + (12 - b) * cpu_ns[1];
            const uint64_t ns = device > cpu ? device : cpu;

            best_ns = ns < best_ns ? ns : best_ns;
        }
        CHECK_EQ(result_of(&mp_assign_exact, exact, &layer), best_ns);
    }
    mp_assign_exact.destroy(exact);
}

/*
 * Equal in time, but one is resident: they do not change places, because one load is all there is
 * room for. Device 3 n, load 6, CPU 2 + 5 n; tokens 2, 2, 5, the second resident. On the device
 * both of the first: 12 and 27; the last alone: 15 and 24; it and the resident one: 21 and 12.
 */
static void exact_tells_residents_from_what_must_be_loaded(void)
{
    struct mp_policy *exact = make(&mp_assign_exact);
    struct layer layer;

    layer_init(&layer, 3);
    layer.costs.load_ns = 6;
    layer.costs.transient = 1;
    layer.costs.executors[TEST_DEVICE].token_ns = 3;
    layer.costs.executors[TEST_CPU].fixed_ns = 2;
    layer.costs.executors[TEST_CPU].token_ns = 5;
    layer.tokens[0] = layer.tokens[1] = 2;
    layer.tokens[2] = 5;
    layer.resident[1] = 1;
    CHECK_EQ(result_of(&mp_assign_exact, exact, &layer), 21);
    mp_assign_exact.destroy(exact);
}

static void a_bounded_search_still_gives_a_plan(void)
{
    struct mp_policy *exact =
        instance(&mp_assign_exact.info, mp_assign_exact.create, &shape, "NODES", "1", NULL);
    struct mp_policy *whole = make(&mp_assign_exact);
    struct layer layer;
    uint64_t worse = 0;

    for (unsigned round = 0; round < 200; round++) {
        uint64_t one_ns, best_ns;

        random_layer(&layer, EXPERTS, 64, true);
        layer.costs.transient = round % 3;
        one_ns = result_of(&mp_assign_exact, exact, &layer);
        best_ns = result_of(&mp_assign_exact, whole, &layer);
        CHECK(best_ns <= one_ns);
        worse += best_ns < one_ns;
    }
    fprintf(stderr, "    %" PRIu64 " of 200 layers end sooner by the whole search\n", worse);
    CHECK(worse > 20);
    mp_assign_exact.destroy(exact);
    mp_assign_exact.destroy(whole);
}

struct ratio {
    double sum, worst;
    unsigned count;
};

static void add(struct ratio *ratio, uint64_t time_ns, uint64_t best_ns)
{
    const double one = (double)time_ns / (double)best_ns;

    CHECK(time_ns >= best_ns);
    ratio->sum += one;
    ratio->worst = one > ratio->worst ? one : ratio->worst;
    ratio->count++;
}

/* The mean of greedy is within a fifth of the optimum for every number of experts. */
static void greedy_and_beam_are_near_the_optimum(void)
{
    struct mp_policy *greedy = make(&mp_assign_greedy), *beam = make(&mp_assign_beam);
    struct mp_policy *exact =
        instance(&mp_assign_exact.info, mp_assign_exact.create, &shape, "NODES", "200000", NULL);
    struct ratio beam_all = { 0 }, greedy_all = { 0 };

    fprintf(stderr, "    experts  greedy mean  worst  beam mean  worst (optimum 1)\n");
    for (uint32_t count = 2; count <= 24; count += count < 8 ? 1 : 4) {
        struct ratio greedy_ratio = { 0 }, beam_ratio = { 0 };

        for (unsigned round = 0; round < 400; round++) {
            struct layer layer;
            uint64_t best_ns, greedy_ns, beam_ns;

            random_layer(&layer, count, 1u << round % 7, round % 2);
            layer.costs.transient = round % 4 == 0 ? 1 + random_below(count) : 0;
            best_ns = result_of(&mp_assign_exact, exact, &layer);
            greedy_ns = result_of(&mp_assign_greedy, greedy, &layer);
            beam_ns = result_of(&mp_assign_beam, beam, &layer);
            add(&greedy_ratio, greedy_ns, best_ns);
            add(&beam_ratio, beam_ns, best_ns);
            add(&greedy_all, greedy_ns, best_ns);
            add(&beam_all, beam_ns, best_ns);
        }
        fprintf(stderr, "    %7u  %11.3f  %5.2f  %9.3f  %5.2f\n", count,
                greedy_ratio.sum / greedy_ratio.count, greedy_ratio.worst,
                beam_ratio.sum / beam_ratio.count, beam_ratio.worst);
        CHECK(greedy_ratio.sum <= 1.2 * greedy_ratio.count);
    }
    CHECK(greedy_all.worst > 1.01); /* there was something to lose */
    CHECK(beam_all.sum < greedy_all.sum);
    mp_assign_greedy.destroy(greedy);
    mp_assign_beam.destroy(beam);
    mp_assign_exact.destroy(exact);
}

/* Equal experts, none resident: putting each where it is done sooner is the optimum. */
static void greedy_is_exact_for_one_token_without_residents(void)
{
    struct mp_policy *greedy = make(&mp_assign_greedy);
    struct layer layer;

    for (unsigned round = 0; round < 500; round++) {
        random_layer(&layer, 1 + round % 12, 1, false);
        CHECK_EQ(result_of(&mp_assign_greedy, greedy, &layer), try_everything(&layer));
    }
    mp_assign_greedy.destroy(greedy);
}

/* By eq. 4: max(loads * C_load, rest * C_CPU) <= optimum + max(C_load, C_CPU). */
static void two_pointer_keeps_its_bound(void)
{
    struct mp_policy *policy = make(&mp_assign_two_pointer);
    double worst = 0;

    for (unsigned round = 0; round < 3000; round++) {
        uint64_t load_ns, cpu_ns, best_ns = UINT64_MAX, time_ns, slack_ns;
        uint32_t cold = 0, loads = 0;
        uint32_t executors[EXPERTS];
        struct layer layer;

        random_layer(&layer, 1 + random_below(EXPERTS), 1, round % 2);
        if (round % 3 == 0)
            layer.costs.load_ns = 1 + random_below(200000);
        load_ns = layer.costs.load_ns;
        cpu_ns = mp_assign_helper_ns(&layer.costs, 1);
        mp_assign_two_pointer.assign(policy, &layer.facts, executors);
        for (uint32_t i = 0; i < layer.facts.count; i++) {
            cold += !layer.resident[i];
            loads += !layer.resident[i] && executors[i] == TEST_DEVICE;
            CHECK(!layer.resident[i] || executors[i] == TEST_DEVICE);
            /* No expert is loaded while one of higher score is left to the CPU. */
            for (uint32_t j = 0; j < layer.facts.count; j++)
                CHECK(layer.resident[i] || layer.resident[j] || executors[i] == TEST_DEVICE ||
                      executors[j] == TEST_CPU || layer.scores[j] >= layer.scores[i]);
        }
        for (uint32_t n = 0; n <= cold; n++) {
            const uint64_t a = n * load_ns, b = (cold - n) * cpu_ns, one = a > b ? a : b;

            best_ns = one < best_ns ? one : best_ns;
        }
        time_ns =
            loads * load_ns > (cold - loads) * cpu_ns ? loads * load_ns : (cold - loads) * cpu_ns;
        slack_ns = load_ns > cpu_ns ? load_ns : cpu_ns;
        CHECK(time_ns >= best_ns && time_ns <= best_ns + slack_ns);
        if (cold > 0)
            CHECK(loads > 0); /* as printed, also where the CPU is faster */
        if (slack_ns > 0 && (double)(time_ns - best_ns) / (double)slack_ns > worst)
            worst = (double)(time_ns - best_ns) / (double)slack_ns;
    }
    fprintf(stderr, "    worst excess %.2f of what is allowed\n", worst);
    CHECK(worst > 0.5); /* the bound is not far away */
    mp_assign_two_pointer.destroy(policy);
}

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
    RUN(exact_finds_what_trying_everything_finds);
    RUN(exact_looks_at_equal_ones_once);
    RUN(exact_tells_residents_from_what_must_be_loaded);
    RUN(a_bounded_search_still_gives_a_plan);
    RUN(greedy_and_beam_are_near_the_optimum);
    RUN(greedy_is_exact_for_one_token_without_residents);
    RUN(two_pointer_keeps_its_bound);
    RUN(ties_go_where_the_text_says);
    RUN(unknown_costs_send_everything_to_the_device);
    return 0;
}
