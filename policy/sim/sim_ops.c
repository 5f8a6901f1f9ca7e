/*
 * The costs of a MoE layer: the operations that the step calls, and simulated executors.
 */
#include <math.h>
#include <string.h>

#include "policy/sim/sim_int.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"

static struct mp_sim_executor *executor_of(struct mp_event_source *source)
{
    return (struct mp_sim_executor *)((char *)source - offsetof(struct mp_sim_executor, source));
}

static uint64_t executor_next_ns(struct mp_event_source *source)
{
    const struct mp_sim_executor *executor = executor_of(source);

    return executor->count > 0 ? executor->end_ns : UINT64_MAX;
}

static void start_first(struct mp_sim_executor *executor)
{
    executor->start_ns = executor->world->clock.time_ns;
    executor->end_ns = executor->start_ns + executor->ns[executor->first];
    executor->busy_ns += executor->ns[executor->first];
}

static void executor_fire(struct mp_event_source *source)
{
    struct mp_sim_executor *executor = executor_of(source);
    struct mp_sim_world *world = executor->world;

    mp_timeline_span(
        world->timeline, executor->track, "expert", executor->start_ns, executor->end_ns,
        &(struct mp_timeline_args){ { "need" }, { executor->needs[executor->first] } });
    world->ended[world->ended_count++] = executor->needs[executor->first];
    executor->count--;
    executor->first++;
    if (executor->count == 0)
        executor->first = 0;
    else
        start_first(executor);
}

void mp_sim_executor_init(struct mp_sim_executor *executor, struct mp_sim_world *world,
                          const char *name)
{
    executor->world = world;
    executor->source =
        (struct mp_event_source){ .next_ns = executor_next_ns, .fire = executor_fire };
    mp_clock_virtual_add(&world->clock, &executor->source);
    if (world->timeline != NULL)
        executor->track = mp_timeline_add_track(world->timeline, name);
}

static void push(struct mp_sim_executor *executor, uint32_t need, uint64_t ns)
{
    const uint32_t at = executor->first + executor->count;

    executor->needs[at] = need;
    executor->ns[at] = ns;
    if (executor->count++ == 0)
        start_first(executor);
}

void mp_sim_device_run(struct mp_sim_world *world, const char *name, uint64_t ns)
{
    struct mp_sim_executor *device = &world->device;
    uint64_t start_ns;

    while (device->count > 0)
        (void)mp_clock_virtual_next(&world->clock);
    start_ns = world->clock.time_ns;
    mp_clock_virtual_advance(&world->clock, ns);
    device->busy_ns += ns;
    mp_timeline_span(world->timeline, device->track, name, start_ns, world->clock.time_ns, NULL);
}

static enum mp_status op_scores(void *ctx, uint32_t layer, float *scores)
{
    struct mp_sim_world *w = ctx;

    mp_assert(layer < w->shape.layers);
    mp_sim_device_run(
        w, "attention",
        mp_sim_layer_ns(w->config->machine, w->config->model, w->tokens, w->sequences, w->context));
    mp_sim_load_scores(w->load, layer, scores);
    return MP_OK;
}

static enum mp_status op_source_scores(void *ctx, uint32_t layer, uint32_t target,
                                       enum mp_score_source source, float *scores)
{
    struct mp_sim_world *w = ctx;
    const struct mp_sim_machine *machine = w->config->machine;
    const struct mp_sim_model *model = w->config->model;
    uint64_t ns = mp_sim_router_ns(machine, model, w->tokens);

    if (source == MP_SCORES_PARTIAL)
        ns = mp_sim_layer_ns(machine, model, w->tokens, w->sequences, w->context);
    if (source == MP_SCORES_LLAPOR)
        ns = (uint64_t)(model->llapor_us * 1000);
    mp_sim_device_run(w, "predict", ns);
    mp_sim_load_predicted(w->load, layer, target, source, scores);
    return MP_OK;
}

static enum mp_status op_shared(void *ctx, uint32_t layer)
{
    struct mp_sim_world *w = ctx;

    (void)layer;
    mp_sim_device_run(w, "shared",
                      mp_sim_ffn_ns(w->config->machine, w->config->model,
                                    w->config->model->shared_ffn, w->tokens));
    return MP_OK;
}

static enum mp_status fail_check(const char *what)
{
    return mp_fail(MP_ERR_INVALID, "E_SIM_CHECK", "simulation is broken: %s", what);
}

/* Is the work what it should be, and each row of it new? */
static enum mp_status check_work(struct mp_sim_world *w, uint32_t layer,
                                 const struct mp_expert_work *work)
{
    const uint32_t unit = (layer * w->shape.experts + work->expert) * w->slices + work->slice;

    if (mp_executor_loads(&w->costs.executors[work->executor]) &&
        (mp_space_state(w->space, unit) != MP_RES_VALID || mp_space_leases(w->space, unit) != 1 ||
         work->pieces[0] == NULL))
        return fail_check("an expert without its bytes");
    for (uint32_t i = 0; i < work->rows.count; i++) {
        const uint32_t row = work->rows.token[i] * w->shape.top_k + work->rows.rank[i];

        if (work->rows.token[i] >= w->tokens || work->rows.rank[i] >= w->shape.top_k ||
            w->computed[row] != work->slice)
            return fail_check("a row that is computed twice, or not slice after slice");
        w->computed[row] = (uint8_t)(work->slice + work->slices);
    }
    return MP_OK;
}

uint64_t mp_sim_slices_ns(const struct mp_sim_world *w, uint32_t tokens, uint32_t slices)
{
    const double part = (double)slices / w->slices;
    struct mp_sim_machine machine = *w->config->machine;
    struct mp_sim_model model = *w->config->model;

    machine.expert_us *= part;
    machine.expert_token_us *= part;
    model.expert_ffn *= part;
    return mp_sim_device_ns(&machine, &model, tokens);
}

static enum mp_status check_all(struct mp_sim_world *w, uint32_t layer,
                                const struct mp_expert_work *work, uint32_t count)
{
    enum mp_status status = MP_OK;

    if (!w->config->check)
        return MP_OK;
    for (uint32_t i = 0; i < count && status == MP_OK; i++)
        status = check_work(w, layer, &work[i]);
    return status;
}

/* The device computes slices of one expert that come together as one; returns how many they are. */
static uint32_t push_slices(struct mp_sim_world *w, const struct mp_expert_work *work,
                            uint32_t count)
{
    uint32_t slices = 1;
    uint64_t ns;

    while (slices < count && work[slices].expert == work->expert)
        slices++;
    ns = mp_sim_slices_ns(w, work->rows.count, slices);
    for (uint32_t i = 0; i < slices; i++)
        push(&w->device, work[i].need, ns * (i + 1) / slices - ns * i / slices);
    return slices;
}

enum mp_status mp_sim_begin_device(void *ctx, uint32_t layer, const struct mp_expert_work *work,
                                   uint32_t count)
{
    struct mp_sim_world *w = ctx;
    const enum mp_status status = check_all(w, layer, work, count);

    for (uint32_t i = 0; status == MP_OK && i < count;)
        i += push_slices(w, &work[i], count - i);
    return status;
}

enum mp_status mp_sim_begin_in_place(void *ctx, uint32_t layer, const struct mp_expert_work *work,
                                     uint32_t count)
{
    struct mp_sim_world *w = ctx;
    const enum mp_status status = check_all(w, layer, work, count);

    for (uint32_t i = 0; status == MP_OK && i < count; i++)
        push(&w->device, work[i].need,
             mp_sim_in_place_ns(w->config->machine, w->config->model, work[i].rows.count));
    return status;
}

enum mp_status mp_sim_begin_cpu(void *ctx, uint32_t layer, const struct mp_expert_work *work,
                                uint32_t count)
{
    struct mp_sim_world *w = ctx;
    const uint64_t handoff_ns = (uint64_t)(w->config->machine->handoff_us * 1000);
    const enum mp_status status = check_all(w, layer, work, count);

    for (uint32_t i = 0; status == MP_OK && i < count; i++)
        push(&w->cpu, work[i].need,
             mp_sim_cpu_ns(w->config->machine, w->config->model, work[i].rows.count) +
                 (w->cpu.count == 0 ? handoff_ns : 0));
    return status;
}

/* Reading takes a share of what computing needs. */
static void compute_together(struct mp_sim_world *w, uint64_t ns)
{
    const double factor = fmax(1, w->config->machine->busy_factor);

    while (ns > 0) {
        const uint64_t left = w->link.ticket != NULL ? w->link.end_ns - w->clock.time_ns : 0;
        const uint64_t most = (uint64_t)((double)left / factor) + 1;
        const uint64_t part = left > 0 && most < ns ? most : ns;

        mp_sim_device_run(w, "experts", left > 0 ? (uint64_t)((double)part * factor) : part);
        ns -= part;
    }
}

enum mp_status mp_sim_begin_together(void *ctx, uint32_t layer, const struct mp_expert_work *work,
                                     uint32_t count)
{
    struct mp_sim_world *w = ctx;
    const struct mp_sim_machine *machine = w->config->machine;
    const bool waited = w->counters.exposed_wait_ns != w->waited_ns;
    uint64_t ns = (uint64_t)((machine->group_us + (waited ? machine->wake_us : 0)) * 1000);
    const enum mp_status status = check_all(w, layer, work, count);

    if (status != MP_OK)
        return status;
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *fresh =
            &w->fresh[(layer * w->shape.experts + work[i].expert) * w->slices + work[i].slice];

        ns += mp_sim_slices_ns(w, work[i].rows.count, work[i].slices);
        if (*fresh)
            ns += (uint64_t)(machine->fresh_us * 1000 / w->slices);
        *fresh = 0;
    }
    compute_together(w, ns);
    w->waited_ns = w->counters.exposed_wait_ns;
    return MP_OK;
}

/* Before it the loads of the layer were asked for. */
static enum mp_status op_shared_together(void *ctx, uint32_t layer)
{
    struct mp_sim_world *w = ctx;
    const double loads = (double)(w->counters.misses - w->misses);

    w->misses = w->counters.misses;
    mp_sim_device_run(w, "loads", (uint64_t)(loads * w->config->machine->issue_us * 1000));
    return op_shared(ctx, layer);
}

static bool op_any_ended(void *ctx)
{
    return ((struct mp_sim_world *)ctx)->ended_count > 0;
}

static enum mp_status op_ended(void *ctx, uint32_t *needs, uint32_t *count_p)
{
    struct mp_sim_world *w = ctx;

    while (w->ended_count == 0) {
        const bool moved = mp_clock_virtual_next(&w->clock);

        mp_assert(moved);
        (void)moved;
    }
    memcpy(needs, w->ended, w->ended_count * sizeof(needs[0]));
    *count_p = w->ended_count;
    w->ended_count = 0;
    return MP_OK;
}

static uint64_t op_link_busy(void *ctx)
{
    const struct mp_sim_world *w = ctx;

    return w->link.ticket != NULL ? w->link.end_ns - w->clock.time_ns : 0;
}

/* Each sequence has equally many tokens of the step, its last ones so far. */
static void write_routing(const struct mp_sim_world *w, uint32_t layer, uint32_t tokens, uint32_t k,
                          const uint32_t *experts, const float *weights)
{
    const uint32_t each = tokens / w->sequences;

    for (uint32_t t = 0; t < tokens; t++) {
        const struct mp_trace_row row = {
            .step = w->number,
            .layer = layer,
            .sequence = t / each,
            .position = w->context - each + t % each,
            .experts = experts + (size_t)t * k,
            .weights = weights + (size_t)t * k,
        };

        mp_trace_write(w->config->routing, &row);
    }
}

static void op_routed(void *ctx, uint32_t layer, uint32_t tokens, uint32_t k,
                      const uint32_t *experts, const float *weights)
{
    struct mp_sim_world *w = ctx;

    if (w->config->check)
        memset(w->computed, 0, (size_t)tokens * k);
    if (w->writes)
        write_routing(w, layer, tokens, k, experts, weights);
}

static enum mp_status op_combine(void *ctx, uint32_t layer, const uint32_t *experts,
                                 const float *weights)
{
    struct mp_sim_world *w = ctx;

    (void)layer;
    (void)experts;
    (void)weights;
    if (!w->config->check)
        return MP_OK;
    for (size_t i = 0; i < (size_t)w->tokens * w->shape.top_k; i++) {
        if (w->computed[i] != w->slices)
            return fail_check("a row that is not computed");
    }
    return mp_sim_check(w);
}

enum mp_status mp_sim_check(struct mp_sim_world *w)
{
    const struct mp_counters *c = &w->counters;
    struct mp_space_plan plan;

    if (!mp_pager_check(w->pager))
        return fail_check("the pager's books");
    for (uint32_t u = 0; u < mp_space_unit_count(w->space); u++) {
        if (mp_space_leases(w->space, u) != 0)
            return fail_check("a lease that nobody gave back");
    }
    if (w->clock.time_ns < w->seen_ns)
        return fail_check("time goes backwards");
    w->seen_ns = w->clock.time_ns;
    mp_space_get_plan(w->space, &plan);
    if (c->resident_peak_bytes > plan.slots * plan.slot_bytes_max)
        return fail_check("more bytes in the device tier than it has");
    if (c->exposed_wait_ns > w->clock.time_ns || c->prefetch_unused_bytes > c->prefetch_bytes)
        return fail_check("counters that cannot be");
    if (w->device.count > 0 || w->cpu.count > 0 || w->ended_count > 0)
        return fail_check("work after the end of its layer");
    if (w->device.busy_ns > w->clock.time_ns || w->cpu.busy_ns > w->clock.time_ns)
        return fail_check("an executor busier than time allows");
    return MP_OK;
}

const struct mp_step_ops mp_sim_step_ops = {
    .scores = op_scores,
    .source_scores = op_source_scores,
    .shared = op_shared,
    .ended = op_ended,
    .any_ended = op_any_ended,
    .link_busy = op_link_busy,
    .combine = op_combine,
    .routed = op_routed,
};

const struct mp_step_ops mp_sim_together_ops = {
    .scores = op_scores,
    .source_scores = op_source_scores,
    .shared = op_shared_together,
    .link_busy = op_link_busy,
    .combine = op_combine,
    .routed = op_routed,
};
