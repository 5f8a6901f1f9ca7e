/*
 * A simulated run: creates space, policies and pager, then runs prompts and tokens batch by batch.
 * Costs of a layer are in sim_ops.c, scores of routers in sim_load.c.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "policy/sim/sim_fit.h"
#include "policy/sim/sim_int.h"
#include "vmm/base/arena.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

/* Tokens of prompts in one batch, over all sequences. */
#define PROMPT_TOKENS_MAX 4096
#define TIMELINE_EVENTS 1048576
#define RESERVE_BYTES (UINT64_C(1) << 30)

static uint64_t link_cost(void *ctx, const struct mp_ticket *ticket)
{
    struct mp_sim_world *w = ctx;

    w->fresh[ticket->tag] = 1;
    if (w->config->fail_ppm > 0 && mp_sim_uniform(&w->random) * 1e6 < (double)w->config->fail_ppm)
        return MP_LINK_FAILS;
    return w->load_ns;
}

/* Every slice of an expert is one piece of one file that does not exist. */
static enum mp_status make_space(struct mp_sim_world *w, uint64_t budget_bytes)
{
    const uint64_t bytes = (mp_sim_expert_bytes(w->config->model) + w->slices - 1) / w->slices;
    const uint32_t count = w->shape.layers * w->shape.experts * w->slices;
    struct mp_unit *units = calloc(count, sizeof(*units));
    struct mp_space_config space = {
        .backend = mp_backend_sim(),
        .units = units,
        .unit_count = count,
        .budget_bytes = budget_bytes,
        .io_mode = MP_IO_BUFFERED,
        .reader = { .depth = 1, .threads = 1, .chunk_bytes = 4096, .link = &w->link },
        .clock = &w->clock.super,
        .timeline = w->timeline,
        .counters = &w->counters,
    };
    enum mp_status status;
    uint32_t file;

    if (units == NULL)
        return mp_fail_no_memory("the units of a model", count * sizeof(*units));
    for (uint32_t u = 0; u < count; u++) {
        units[u].piece_count = 1;
        units[u].pieces[0] = (struct mp_piece){ 0, u * bytes, bytes };
    }
    status = mp_files_create(&w->files);
    if (status == MP_OK)
        status = mp_files_add_virtual(w->files, w->config->model->name, count * bytes, &file);
    space.files = w->files;
    if (status == MP_OK)
        status = mp_space_create(&space, &w->space);
    free(units);
    if (status == MP_OK)
        mp_pager_fit_shape(w->space, &w->shape);
    return status;
}

/* A slice is one run of bytes, so one copy; times of whole experts are divided. */
static uint64_t slice_load_ns(const struct mp_sim_world *w)
{
    struct mp_sim_machine machine = *w->config->machine;
    struct mp_sim_model model = *w->config->model;

    if (w->slices > 1) {
        machine.load_us /= w->slices;
        machine.copies = 1;
        model.expert_ffn /= w->slices;
    }
    return mp_sim_load_ns(&machine, &model);
}

/* What a prediction of the profile's kind takes of the device. */
static uint64_t predict_ns(const struct mp_sim_world *w)
{
    const struct mp_sim_config *c = w->config;
    const struct mp_predict_ops *ops =
        (const void *)mp_policy_find(MP_POLICY_PREDICT, c->profile->policy[MP_POLICY_PREDICT]);

    switch (ops != NULL ? ops->source : MP_SCORES_NONE) {
    case MP_SCORES_NONE: return 0;
    case MP_SCORES_PARTIAL: return w->costs.layer_ns;
    case MP_SCORES_LLAPOR: return (uint64_t)(c->model->llapor_us * 1000);
    default: return mp_sim_router_ns(c->machine, c->model, c->batch);
    }
}

/* fixed + n token through the times of one expert with 1 and 1 + span tokens. */
static void add_executor(struct mp_costs *costs, struct mp_executor executor, uint64_t one_ns,
                         uint64_t many_ns, uint64_t span)
{
    executor.token_ns = (many_ns - one_ns) / span;
    executor.fixed_ns = one_ns - executor.token_ns;
    costs->executors[costs->executor_count++] = executor;
}

/* The device, always; where everything is computed together there is nobody else. */
static void fill_executors(struct mp_sim_world *w)
{
    const struct mp_sim_machine *h = w->config->machine;
    const struct mp_sim_model *m = w->config->model;
    const struct mp_executor cpu = { .name = "cpu",
                                     .handoff_ns = (uint64_t)(h->handoff_us * 1000),
                                     .reads = MP_READS_HOST,
                                     .processor = 1 };

    add_executor(&w->costs, (struct mp_executor){ .name = "device" }, mp_sim_device_ns(h, m, 1),
                 mp_sim_device_ns(h, m, 65), 64);
    w->step_executors[0] = (struct mp_step_executor){ .ctx = w, .begin = mp_sim_begin_device };
    if (h->group_us > 0) {
        w->step_executors[0].begin = mp_sim_begin_together;
        return;
    }
    if (h->in_place_gbps > 0) {
        w->step_executors[w->costs.executor_count] =
            (struct mp_step_executor){ .ctx = w, .begin = mp_sim_begin_in_place };
        add_executor(&w->costs, (struct mp_executor){ .name = "in place", .reads = MP_READS_LINK },
                     mp_sim_in_place_ns(h, m, 1), mp_sim_in_place_ns(h, m, 65), 64);
    }
    if (h->cpu_gflops > 0) {
        w->step_executors[w->costs.executor_count] =
            (struct mp_step_executor){ .ctx = w, .begin = mp_sim_begin_cpu };
        add_executor(&w->costs, cpu, mp_sim_cpu_ns(h, m, 1), mp_sim_cpu_ns(h, m, 2), 1);
    }
}

static void fill_costs(struct mp_sim_world *w)
{
    const struct mp_sim_machine *h = w->config->machine;
    const struct mp_sim_model *m = w->config->model;

    w->load_ns = slice_load_ns(w);
    w->costs = (struct mp_costs){
        .load_ns = w->load_ns * w->slices,
        .layer_ns = mp_sim_layer_ns(h, m, w->config->batch, w->config->batch, w->config->prompt) +
                    mp_sim_ffn_ns(h, m, m->shared_ffn, w->config->batch),
    };
    w->costs.predict_ns = predict_ns(w);
    fill_executors(w);
}

/* What of the device's memory is left for experts. The cache may be beyond 64 bits. */
static uint64_t auto_bytes(const struct mp_sim_config *c)
{
    const uint64_t all = (uint64_t)(c->machine->device_gib * (1 << 30));
    const double cache = (c->model->layers + c->model->dense_layers) * c->model->kv_bytes *
                         c->batch * (c->prompt + c->gen);
    const uint64_t other = mp_sim_other_bytes(c->model) + RESERVE_BYTES +
                           (cache < 1e18 ? (uint64_t)cache : (uint64_t)1e18);

    return all > other ? all - other : 0;
}

static uint64_t expert_bytes_all(const struct mp_sim_model *model)
{
    return (uint64_t)(model->layers * model->experts) * mp_sim_expert_bytes(model);
}

static enum mp_status make_load(struct mp_sim_world *w)
{
    const struct mp_sim_config *c = w->config;
    const struct mp_sim_load_config load = {
        .model = c->model,
        .trace = c->trace,
        .sequences = c->batch,
        .tokens_max = w->shape.tokens_max,
        .seed = c->seed,
        .fit = c->fit,
    };
    const enum mp_status status = mp_sim_load_create(&load, &w->load);

    if (status != MP_OK)
        return status;
    w->calibration = c->calibration != NULL ? *c->calibration : *mp_sim_load_calibration(w->load);
    w->shape.calibration = &w->calibration;
    return MP_OK;
}

static enum mp_status make_layers(struct mp_sim_world *w)
{
    struct mp_pager_config pager = {
        .space = w->space,
        .policies = &w->policies,
        .shape = w->shape,
        .clock = &w->clock.super,
        .counters = &w->counters,
        .timeline = w->timeline,
        .deterministic = w->config->deterministic,
    };
    struct mp_step_config step = {
        .policies = &w->policies,
        .shape = w->shape,
        .ops = w->config->machine->group_us > 0 ? &mp_sim_together_ops : &mp_sim_step_ops,
        .ctx = w,
        .costs = &w->costs,
        .executors = w->step_executors,
        .clock = &w->clock.super,
        .counters = &w->counters,
        .timeline = w->timeline,
    };
    enum mp_status status =
        mp_policies_create(w->config->profile, &w->shape, w->config->groups, &w->policies);

    if (status == MP_OK)
        status = mp_pager_create(&pager, &w->pager);
    step.pager = w->pager;
    return status == MP_OK ? mp_step_create(&step, &w->step) : status;
}

static void take_parts(struct mp_sim_world *w, struct mp_arena *arena)
{
    const uint64_t parts = (uint64_t)w->shape.experts * w->slices;
    struct mp_sim_executor *const executors[] = { &w->device, &w->cpu };

    w->ended = mp_arena_take(arena, parts, sizeof(uint32_t));
    w->computed = mp_arena_take(arena, w->shape.tokens_max, w->shape.top_k);
    w->fresh = mp_arena_take(arena, w->shape.layers * parts, 1);
    for (size_t i = 0; i < MP_ARRAY_LEN(executors); i++) {
        executors[i]->needs = mp_arena_take(arena, parts, sizeof(uint32_t));
        executors[i]->ns = mp_arena_take(arena, parts, sizeof(uint64_t));
    }
}

static enum mp_status make_parts(struct mp_sim_world *w)
{
    struct mp_arena arena = { 0 };
    enum mp_status status;

    take_parts(w, &arena);
    status = mp_arena_open(&arena, "the simulator");
    if (status != MP_OK)
        return status;
    w->block = arena.block;
    take_parts(w, &arena);
    mp_sim_executor_init(&w->device, w, "device");
    mp_sim_executor_init(&w->cpu, w, "cpu");
    return MP_OK;
}

static enum mp_status make_world(struct mp_sim_world *w)
{
    const struct mp_sim_config *c = w->config;
    enum mp_status status = MP_OK;

    mp_clock_virtual_init(&w->clock);
    mp_counters_reset(&w->counters);
    w->random = c->seed ^ UINT64_C(0x2545f4914f6cdd1d);
    w->link = (struct mp_virtual_link){ .clock = &w->clock, .cost_ns = link_cost, .ctx = w };
    w->link.latency_ns = (uint64_t)(c->machine->latency_us * 1000);
    if (c->timeline_p != NULL) {
        status = mp_timeline_create(&w->clock.super, TIMELINE_EVENTS, &w->timeline);
        *c->timeline_p = w->timeline;
    }
    fill_costs(w);
    w->shape.costs = &w->costs;
    if (status == MP_OK)
        status = make_parts(w);
    if (status == MP_OK)
        status =
            make_space(w, mp_share_resolve(&c->budget, expert_bytes_all(c->model), auto_bytes(c)));
    if (status == MP_OK)
        status = make_load(w);
    return status == MP_OK ? make_layers(w) : status;
}

/* Also takes a half-made one. */
static void destroy_world(struct mp_sim_world *w)
{
    mp_step_destroy(w->step);
    mp_pager_destroy(w->pager);
    mp_policies_destroy(&w->policies);
    mp_sim_load_destroy(w->load);
    mp_space_destroy(w->space);
    mp_files_destroy(w->files);
    free(w->block);
}

/* All layers for the tokens that the load has in this step. */
static enum mp_status run_step(struct mp_sim_world *w)
{
    const struct mp_sim_machine *h = w->config->machine;
    const struct mp_sim_model *m = w->config->model;
    enum mp_status status = MP_OK;

    if (w->config->cancel != NULL && *w->config->cancel)
        return mp_fail(MP_ERR_CANCELED, "E_CANCELED", "interrupted");
    w->tokens = mp_sim_load_tokens(w->load, 0);
    for (uint32_t l = 0; l < (uint32_t)m->dense_layers; l++) {
        mp_sim_device_run(w, "dense layer",
                          mp_sim_layer_ns(h, m, w->tokens, w->sequences, w->context) +
                              mp_sim_ffn_ns(h, m, m->dense_ffn, w->tokens));
    }
    for (uint32_t l = 0; l < w->shape.layers && status == MP_OK; l++) {
        w->tokens = mp_sim_load_tokens(w->load, l);
        if (w->tokens > 0)
            status = mp_step_layer(w->step, l, w->tokens);
    }
    mp_sim_device_run(w, "output", mp_sim_head_ns(h, m, w->tokens, w->sequences));
    return status;
}

struct busy {
    uint64_t device, cpu, link;
};

static struct busy busy_of(const struct mp_sim_world *w)
{
    return (struct busy){ w->device.busy_ns, w->cpu.busy_ns, w->link.busy_ns };
}

/* `count` steps of decode: texts of `gen` each, and a pause after each but the last. */
static enum mp_status run_decode(struct mp_sim_world *w, uint32_t count)
{
    const struct mp_sim_config *c = w->config;
    enum mp_status status = MP_OK;
    bool decode = true;

    for (uint32_t i = 0; i < count && status == MP_OK; i++) {
        const uint32_t at = c->gen > 0 ? i % c->gen : 0;

        if (i > 0 && at == 0)
            mp_pager_pause(w->pager);
        w->context = c->prompt + at + 1;
        w->number = i + 1;
        (void)mp_sim_load_begin(w->load, c->batch, &decode);
        status = run_step(w);
    }
    return status;
}

static enum mp_status run_prompt(struct mp_sim_world *w)
{
    const struct mp_sim_config *c = w->config;
    enum mp_status status = MP_OK;
    bool decode = false;

    for (uint32_t done = 0; done < c->prompt && status == MP_OK;) {
        const uint32_t most = w->shape.tokens_max / c->batch;
        const uint32_t left = c->prompt - done, now = left < most ? left : most;

        done += now;
        w->context = done;
        (void)mp_sim_load_begin(w->load, now * c->batch, &decode);
        status = run_step(w);
    }
    return status;
}

/* What a partition wants resident from the start is there before the first prompt. */
static void load_first(struct mp_sim_world *w)
{
    while (w->link.ticket != NULL)
        (void)mp_clock_virtual_next(&w->clock);
}

/* Prompt and decode of a synthetic load. */
static enum mp_status run_synthetic(struct mp_sim_world *w, struct mp_sim_result *r)
{
    const struct mp_sim_config *c = w->config;
    enum mp_status status = run_decode(w, c->warm);
    struct mp_counters before;
    struct busy busy;
    uint64_t start_ns, decode_ns;

    if (c->warm > 0 && status == MP_OK)
        mp_pager_pause(w->pager);
    start_ns = w->clock.time_ns;
    w->writes = c->routing != NULL;
    w->number = 0;
    if (status == MP_OK)
        status = run_prompt(w);
    before = w->counters;
    busy = busy_of(w);
    decode_ns = w->clock.time_ns;
    r->prefill_ns = decode_ns - start_ns;
    r->prefill_tokens = (uint64_t)c->batch * c->prompt;
    if (status == MP_OK)
        status = run_decode(w, c->gen);
    r->decode_ns = w->clock.time_ns - decode_ns;
    r->decode_steps = c->gen;
    r->decode_tokens = (uint64_t)c->gen * c->batch;
    r->counters = mp_counters_since(&w->counters, &before);
    r->device_busy_ns = w->device.busy_ns - busy.device;
    r->cpu_busy_ns = w->cpu.busy_ns - busy.cpu;
    r->link_busy_ns = w->link.busy_ns - busy.link;
    return status;
}

/* What a text leaves behind when it has been run before. */
static enum mp_status run_before(struct mp_sim_world *w)
{
    enum mp_status status = MP_OK;
    bool decode = false;

    while (status == MP_OK && mp_sim_load_begin(w->load, 0, &decode)) {
        w->context++;
        status = run_step(w);
    }
    if (status == MP_OK)
        mp_pager_pause(w->pager);
    mp_sim_load_rewind(w->load);
    w->context = 0;
    return status;
}

/* As recorded; the counters are those of the steps of decode. */
static enum mp_status run_trace(struct mp_sim_world *w, struct mp_sim_result *r)
{
    enum mp_status status = w->config->again ? run_before(w) : MP_OK;
    bool decode = false;

    mp_counters_reset(&r->counters);
    while (status == MP_OK && mp_sim_load_begin(w->load, 0, &decode)) {
        const struct mp_counters before = w->counters;
        const struct busy busy = busy_of(w);
        const uint64_t start_ns = w->clock.time_ns;
        struct mp_counters now;

        w->context++;
        status = run_step(w);
        if (!decode) {
            r->prefill_ns += w->clock.time_ns - start_ns;
            r->prefill_tokens += w->tokens;
            continue;
        }
        now = mp_counters_since(&w->counters, &before);
        mp_counters_merge(&r->counters, &now);
        r->decode_ns += w->clock.time_ns - start_ns;
        r->decode_steps++;
        r->decode_tokens += w->tokens;
        r->device_busy_ns += w->device.busy_ns - busy.device;
        r->cpu_busy_ns += w->cpu.busy_ns - busy.cpu;
        r->link_busy_ns += w->link.busy_ns - busy.link;
    }
    return status;
}

static enum mp_status check_config(const struct mp_sim_config *c, uint32_t *tokens_max_p)
{
    const struct mp_replay_trace *trace = c->trace;
    uint32_t steps;

    if (trace != NULL) {
        if (trace->layers != (uint32_t)c->model->layers ||
            trace->experts != (uint32_t)c->model->experts ||
            trace->top_k != (uint32_t)c->model->top_k)
            return mp_fail(MP_ERR_CONFIG, "E_SIM",
                           "the trace has %u layers of %u experts, %u per token; model '%s' has "
                           "%g, %g and %g",
                           trace->layers, trace->experts, trace->top_k, c->model->name,
                           c->model->layers, c->model->experts, c->model->top_k);
        mp_sim_load_trace_size(trace, tokens_max_p, &steps);
        return MP_OK;
    }
    if (c->batch == 0 || c->batch > PROMPT_TOKENS_MAX || c->prompt == 0)
        return mp_fail(MP_ERR_CONFIG, "E_SIM",
                       "%u sequences with prompts of %u tokens: need 1 to %u sequences and a "
                       "prompt",
                       c->batch, c->prompt, PROMPT_TOKENS_MAX);
    *tokens_max_p = c->prompt > PROMPT_TOKENS_MAX / c->batch
                        ? PROMPT_TOKENS_MAX / c->batch * c->batch
                        : c->prompt * c->batch;
    return MP_OK;
}

enum mp_status mp_sim_run(const struct mp_sim_config *config, struct mp_sim_result *result_p)
{
    struct mp_sim_world world = {
        .config = config,
        .sequences = config->batch,
        .slices = config->slices > 1 ? config->slices : 1,
        .shape = {
            .layers = (uint32_t)config->model->layers,
            .experts = (uint32_t)config->model->experts,
            .top_k = (uint32_t)config->model->top_k,
            .seed = config->seed,
            .slices = config->slices,
        },
    };
    struct mp_sim_result result = { .expert_bytes_all = expert_bytes_all(config->model) };
    enum mp_status status = check_config(config, &world.shape.tokens_max);

    if (status != MP_OK)
        return status;
    status = make_world(&world);
    if (status == MP_OK)
        load_first(&world);
    if (status == MP_OK)
        status =
            config->trace != NULL ? run_trace(&world, &result) : run_synthetic(&world, &result);
    if (status == MP_OK) {
        result.seen = mp_sim_load_seen(world.load);
        result.slots = world.shape.slots;
        result.slices = world.slices;
        result.units = world.shape.layers * world.shape.experts;
        result.budget_bytes = (uint64_t)world.shape.slots * world.shape.expert_bytes;
        *result_p = result;
    }
    destroy_world(&world);
    return status;
}
