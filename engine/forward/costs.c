/*
 * Costs of work on this machine, measured during a run, for policies that use them. Experts: time
 * of a group divided by its experts, where each has one row (the fixed part) or many (the part per
 * row); a device's executors are measured by events (device_queue.c). A layer: time from one
 * combine, or from the experts that end behind it, to the next router's scores. A load: as measured
 * by the pager. A prediction: the scores of one layer ahead. The link's remaining work is
 * estimated.
 */
#include "engine/forward/cuda/device.h"
#include "engine/forward/engine_int.h"

/* From so many rows per expert on, arithmetic shows. */
#define MANY_ROWS 8

/* A running mean over about 16 samples. */
static void learn(uint64_t *value, uint64_t sample)
{
    *value = *value == 0 ? sample : (*value * 15 + sample) / 16;
}

static bool follows(const struct mp_engine *engine)
{
    return engine->shape.costs != NULL && !engine->config.deterministic;
}

static void note_load(struct mp_engine *engine)
{
    const uint64_t ns = mp_pager_load_ns(engine->pager);

    if (ns > 0)
        engine->costs.load_ns = ns;
}

void mp_engine_note_experts(struct mp_engine *engine, uint64_t ns, uint32_t parts, uint64_t rows)
{
    struct mp_executor *home = &engine->costs.executors[MP_EXECUTOR_HOME];
    const uint64_t each_ns = parts > 0 ? ns * engine->shape.slices / parts : 0;
    const uint64_t each_rows = parts > 0 ? rows * engine->shape.slices / parts : 0;

    /* Beside a device the CPU is another executor, whose cost device_queue.c follows. */
    if (!follows(engine) || engine->device != NULL || parts == 0)
        return;
    if (each_rows <= 1 || home->fixed_ns == 0)
        learn(&home->fixed_ns, each_ns);
    else if (each_rows >= MANY_ROWS && each_ns > home->fixed_ns)
        learn(&home->token_ns, (each_ns - home->fixed_ns) / each_rows);
    note_load(engine);
}

void mp_engine_note_sum(struct mp_engine *engine)
{
    engine->summed_ns = mp_clock_now_ns(engine->config.clock);
}

/* A device's sum may be queued before its experts have ended; what is behind them counts. */
static uint64_t since_experts_ns(struct mp_engine *engine)
{
    const uint64_t since_sum_ns = mp_clock_now_ns(engine->config.clock) - engine->summed_ns;
    const uint64_t device_ns =
        engine->device != NULL ? mp_device_since_experts_ns(engine->device) : UINT64_MAX;

    return device_ns < since_sum_ns ? device_ns : since_sum_ns;
}

void mp_engine_note_scores(struct mp_engine *engine)
{
    if (!follows(engine))
        return;
    if (engine->summed_ns > 0)
        learn(&engine->costs.layer_ns, since_experts_ns(engine));
    note_load(engine);
}

void mp_engine_note_predicted(struct mp_engine *engine, uint64_t start_ns)
{
    if (follows(engine))
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
