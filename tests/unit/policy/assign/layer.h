#ifndef MP_TESTS_LAYER_H
#define MP_TESTS_LAYER_H

/* A layer with made-up needs and costs, and what a plan for it takes. */
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

static inline void layer_init(struct layer *layer, uint32_t count)
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
static inline void random_layer(struct layer *layer, uint32_t count, uint32_t tokens_max,
                                bool cached)
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
static inline uint64_t time_of(const struct layer *layer, const uint32_t *executors)
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
        device_ns += mp_assign_home_ns(&layer->facts, i);
    }
    CHECK(layer->costs.transient == 0 || loads <= layer->costs.transient);
    return device_ns > cpu_ns ? device_ns : cpu_ns;
}

static inline uint64_t try_everything(const struct layer *layer)
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
                on_device ? mp_assign_home_ns(&layer->facts, i)
                          : mp_assign_helper_ns(&layer->costs, layer->tokens[i]);
        }
        time_ns = device_ns > cpu_ns ? device_ns : cpu_ns;
        if (time_ns < best_ns && (layer->costs.transient == 0 || loads <= layer->costs.transient))
            best_ns = time_ns;
    }
    return best_ns;
}

static inline uint64_t result_of(const struct mp_assign_ops *ops, struct mp_policy *policy,
                                 const struct layer *layer)
{
    uint32_t executors[EXPERTS];

    ops->assign(policy, &layer->facts, executors);
    return time_of(layer, executors);
}

static inline struct mp_policy *make(const struct mp_assign_ops *ops)
{
    return instance(&ops->info, ops->create, &shape, NULL);
}

#endif
