/*
 * What work costs on this machine, measured while the engine works, for policies that ask. Experts:
 * time of a group over its experts, where each has one row (the fixed part) or many (the part per
 * row). A layer: what passes from one sum of experts to the next router's scores. A read: the pager
 * knows. What the link has to do still is guessed.
 */
#include "engine/engine_int.h"

/* From so many rows per expert on, arithmetic shows. */
#define MANY_ROWS 8

/* A running mean over about 16 samples. */
static void learn(uint64_t *value, uint64_t sample)
{
    *value = *value == 0 ? sample : (*value * 15 + sample) / 16;
}

void mp_engine_note_experts(struct mp_engine *engine, uint64_t ns, uint32_t parts, uint64_t rows)
{
    struct mp_costs *costs = &engine->costs;
    const uint64_t each_ns = ns * engine->shape.slices / parts;
    const uint64_t each_rows = rows * engine->shape.slices / parts;

    if (engine->shape.costs == NULL || parts == 0)
        return;
    if (each_rows <= 1 || costs->device_fixed_ns == 0)
        learn(&costs->device_fixed_ns, each_ns);
    else if (each_rows >= MANY_ROWS && each_ns > costs->device_fixed_ns)
        learn(&costs->device_token_ns, (each_ns - costs->device_fixed_ns) / each_rows);
    costs->load_ns = mp_pager_load_ns(engine->pager);
}

void mp_engine_note_sum(struct mp_engine *engine)
{
    engine->summed_ns = mp_clock_now_ns(engine->config.clock);
}

void mp_engine_note_scores(struct mp_engine *engine, uint32_t moe_layer)
{
    if (engine->shape.costs != NULL && moe_layer > 0)
        learn(&engine->costs.layer_ns, mp_clock_now_ns(engine->config.clock) - engine->summed_ns);
}

void mp_engine_note_predicted(struct mp_engine *engine, uint64_t start_ns)
{
    if (engine->shape.costs != NULL)
        learn(&engine->costs.predict_ns, mp_clock_now_ns(engine->config.clock) - start_ns);
}

/* A unit that is on its way is half there on average; those behind it can be overtaken. */
uint64_t mp_engine_link_busy(void *ctx)
{
    const struct mp_engine *engine = ctx;

    if (engine->config.deterministic)
        return 0;
    return mp_pager_reading(engine->pager) > 0 ? engine->costs.load_ns / 2 : 0;
}
