/*
 * Assign policies: cases by hand, and on random layers the distance to the optimum of DALI's model
 * (eq. 3-9), which `exact` finds and which trying everything confirms.
 */
#include <inttypes.h>

#include "policy/assign/queue.h"
#include "policy/assign/times.h"
#include "policy/builtins.h"
#include "tests/support/executors.h"
#include "tests/support/random.h"
#include "tests/unit/policy/assign/layer.h"
#include "tests/unit/policy/instance.h"

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
            device_ns[kind] = mp_assign_home_ns(&layer.facts, kind);
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

int main(void)
{
    RUN(exact_finds_what_trying_everything_finds);
    RUN(exact_looks_at_equal_ones_once);
    RUN(exact_tells_residents_from_what_must_be_loaded);
    RUN(a_bounded_search_still_gives_a_plan);
    RUN(greedy_and_beam_are_near_the_optimum);
    RUN(greedy_is_exact_for_one_token_without_residents);
    RUN(two_pointer_keeps_its_bound);
    return 0;
}
