/*
 * Decoding without the host: where routing is the model's own and the device computes every expert
 * of a step of few tokens, that step is one graph. Routers, the choice of experts and the search
 * for their bytes run on the device; a table says where each resident expert is. Kernels and their
 * order are those of the host-driven step, so the bits are, too.
 *
 * The table is written before a replay and nothing is moved while it runs, because only this thread
 * moves anything and it waits: what is resident needs no lease. Reads that are under way go to
 * slots that the table does not name.
 *
 * Experts that are not resident are counted per layer. After a miss what the graph computed from
 * that layer on is worthless: the host goes on from there, with the residual stream that each layer
 * left behind before its experts, and the next steps are driven by the host, more after each miss.
 *
 * Behind every graph pager and policies are told of its layers (device_graph_tell.c).
 */
#include <stdlib.h>
#include <string.h>

#include "engine/forward/cuda/device_graph.h"
#include "engine/forward/route_from.h"
#include "vmm/base/assert.h"
#include "vmm/base/checked.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

#define EXPERTS_MAX 1024 /* of the resolve kernel */
#define REST_MAX 64u     /* host-driven steps after a miss, at most */

/* One type for all experts: their kernels are launched before anybody knows whom. */
static bool same_types(const struct mp_engine *engine)
{
    const enum mp_wtype *types = engine->config.weights->unit_types;

    for (uint32_t e = 1; e < engine->shape.layers * engine->shape.experts; e++) {
        if (types[e] != types[0])
            return false;
    }
    return true;
}

/* Who looks at every layer has its steps driven by the host, and so has a partial forward where the
 * routing is given: the scores that the graph leaves are then not those of the routers. */
static bool can_use_graphs(const struct mp_engine *engine)
{
    const struct mp_engine_config *c = &engine->config;
    const struct mp_policies *p = &engine->policies;

    return c->graphs && (c->observer == NULL || c->observer->layer == NULL) &&
           !strcmp(p->route_ops->info.name, "exact") &&
           !(p->predict_ops->source == MP_SCORES_PARTIAL && c->route_from != NULL) &&
           c->model->experts <= EXPERTS_MAX && same_types(engine);
}

static uint32_t slices_of(const struct mp_device *device)
{
    return device->engine->config.weights->slices.count;
}

static uint32_t tokens_of(const struct mp_engine_config *c)
{
    return c->sequences < MP_DEVICE_FEW_TOKENS ? c->sequences : MP_DEVICE_FEW_TOKENS;
}

/* Bytes of what stands on the device: table, work, row, expert, misses, scores, x. */
#define THERE_COUNT 7

static void measure(const struct mp_engine_config *c, uint32_t slices, uint64_t bytes[THERE_COUNT])
{
    const struct mp_model_config *m = c->model;
    const uint64_t L = m->moe_layers, E = m->experts, N = tokens_of(c), S = slices;
    const uint64_t R = m->experts_per_token, H = m->hidden;

    bytes[0] = L * S * E * sizeof(struct mp_cuda_place_of);
    bytes[1] = E * sizeof(struct mp_cuda_expert);
    bytes[2] = bytes[3] = N * R * sizeof(uint32_t);
    bytes[4] = L * S * sizeof(uint32_t);
    bytes[5] = L * N * E * sizeof(float);
    bytes[6] = L * N * H * sizeof(float);
}

uint64_t mp_device_graph_bytes(const struct mp_engine_config *config, uint32_t slices)
{
    uint64_t bytes[THERE_COUNT], sum = 0;

    measure(config, slices, bytes);
    for (size_t i = 0; i < THERE_COUNT; i++)
        sum += bytes[i];
    return config->graphs && config->model->experts <= EXPERTS_MAX ? sum : 0;
}

static enum mp_status make_memory(struct mp_device *device, struct mp_device_graphs *g)
{
    mp_cu_ptr *const there[THERE_COUNT] = { &g->table,  &g->work,   &g->row, &g->expert,
                                            &g->misses, &g->scores, &g->x };
    uint64_t bytes[THERE_COUNT];

    measure(&device->engine->config, slices_of(device), bytes);
    const struct {
        void **address_p;
        uint64_t bytes;
    } here[] = {
        { (void **)&g->places, bytes[0] },
        { (void **)&g->missed, bytes[4] },
        { (void **)&g->seen, bytes[5] },
    };
    enum mp_status status = MP_OK;

    for (size_t i = 0; i < THERE_COUNT && status == MP_OK; i++)
        status = mp_gpu_alloc(device->gpu, bytes[i], "graphs", there[i]);
    for (size_t i = 0; i < sizeof(here) / sizeof(here[0]) && status == MP_OK; i++)
        status = mp_gpu_alloc_host(device->gpu, here[i].bytes, "graphs", here[i].address_p);
    return status;
}

enum mp_status mp_device_graphs_create(struct mp_device *device)
{
    const struct mp_engine *engine = device->engine;
    struct mp_device_graphs *g;
    enum mp_status status;

    if (!can_use_graphs(engine))
        return MP_OK;
    g = calloc(1, sizeof(*g));
    if (g == NULL)
        return mp_fail_no_memory("graphs", sizeof(*g));
    g->tokens_max = tokens_of(&engine->config);
    g->type = engine->config.weights->unit_types[0];
    device->graphs = g;
    status = make_memory(device, g);
    if (status != MP_ERR_NO_SPACE)
        return status;
    mp_log_warn("cuda", "%s; steps are queued kernel by kernel, not as one graph",
                mp_error_last()->text);
    mp_error_clear();
    mp_device_graphs_destroy(device);
    return MP_OK;
}

void mp_device_graphs_destroy(struct mp_device *device)
{
    struct mp_device_graphs *g = device->graphs;

    if (g == NULL)
        return;
    for (unsigned i = 0; i <= MP_DEVICE_FEW_TOKENS; i++)
        mp_gpu_graph_close(device->gpu, g->execs[i]);
    const mp_cu_ptr there[] = { g->table, g->work, g->row, g->expert, g->misses, g->scores, g->x };
    void *const here[] = { g->places, g->missed, g->seen };

    for (size_t i = 0; i < sizeof(there) / sizeof(there[0]); i++)
        mp_gpu_free(device->gpu, there[i]);
    for (size_t i = 0; i < sizeof(here) / sizeof(here[0]); i++)
        mp_gpu_free_host(device->gpu, here[i]);
    device->graphs = NULL;
    free(g);
}

struct mp_device_graph_counts mp_device_graphs_counted(const struct mp_device *device)
{
    const struct mp_device_graph_counts none = { 0 };

    return device->graphs != NULL ? device->graphs->counts : none;
}

/* ---- what the graph is made of */

static enum mp_status queue_choice(struct mp_device *device, uint32_t moe_layer, uint32_t tokens)
{
    const struct mp_device_graphs *g = device->graphs;
    const struct mp_shape *shape = &device->engine->shape;
    const mp_cu_ptr scores =
        g->scores + (uint64_t)moe_layer * tokens * shape->experts * sizeof(float);
    const struct mp_cuda_top_k top_k = {
        .scores = scores,
        .expert = g->expert,
        .weight = device->state.weight,
        .experts = shape->experts,
        .top_k = shape->top_k,
        .tokens = tokens,
    };
    /* Where the routing is given, the router's work is done all the same, for the time it takes. */
    enum mp_status status =
        mp_device_router(device, device->engine->layer_of[moe_layer], device->state.xn,
                         device->engine->config.route_from != NULL ? device->state.scores : scores);

    return status == MP_OK
               ? mp_gpu_launch(device->gpu, mp_device_stream(device), MP_CUDA_KERNEL_top_k, &top_k)
               : status;
}

/* work := the chosen experts' slices of one number that are resident. */
static enum mp_status queue_resolve(struct mp_device *device, uint32_t moe_layer, uint32_t slice,
                                    uint32_t tokens)
{
    const struct mp_device_graphs *g = device->graphs;
    const struct mp_shape *shape = &device->engine->shape;
    const uint64_t list = (uint64_t)moe_layer * slices_of(device) + slice;
    const struct mp_cuda_resolve params = {
        .expert = g->expert,
        .table = g->table + list * shape->experts * sizeof(struct mp_cuda_place_of),
        .work = g->work,
        .row = g->row,
        .misses = g->misses + list * sizeof(uint32_t),
        .experts = shape->experts,
        .top_k = shape->top_k,
        .tokens = tokens,
        .channels = (uint32_t)mp_slices_channels(&device->engine->config.weights->slices, slice),
        .accumulate = slice > 0,
    };

    return mp_gpu_launch(device->gpu, mp_device_stream(device), MP_CUDA_KERNEL_resolve, &params);
}

static enum mp_status queue_experts(struct mp_device *device, uint32_t slice, uint32_t tokens)
{
    const struct mp_device_graphs *g = device->graphs;
    const struct mp_model_config *m = device->engine->config.model;
    const struct mp_device_state *s = &device->state;
    const struct mp_cuda_experts params = {
        .work = g->work,
        .row = g->row,
        .x = s->xn,
        .act = s->act,
        .rank = s->rank,
        .type = g->type,
        .works = m->experts,
        .hidden = m->hidden,
        .channels = (uint32_t)mp_slices_channels(&device->engine->config.weights->slices, slice),
        .top_k = device->engine->shape.top_k,
        .x_stride = m->hidden,
        .rows_max = tokens,
    };
    enum mp_status status = mp_gpu_launch(device->gpu, mp_device_stream(device),
                                          mp_cuda_type(g->type)->experts_up, &params);

    if (status == MP_OK)
        status = mp_gpu_launch(device->gpu, mp_device_stream(device),
                               mp_cuda_type(g->type)->experts_down, &params);
    return status;
}

static enum mp_status queue_layer(struct mp_device *device, uint32_t layer, uint32_t tokens)
{
    const struct mp_model_config *m = device->engine->config.model;
    const uint32_t moe_layer = device->engine->moe_layer[layer];
    const uint64_t bytes = (uint64_t)tokens * m->hidden * sizeof(float);
    enum mp_status status = mp_device_attention(device, layer, device->state.x, tokens);

    if (status == MP_OK)
        status = mp_device_dense(device, layer, tokens);
    if (status != MP_OK || !m->is_moe[layer])
        return status;
    status = mp_gpu_copy(device->gpu, mp_device_stream(device),
                         device->graphs->x + moe_layer * bytes, device->state.x, bytes);
    if (status == MP_OK)
        status = queue_choice(device, moe_layer, tokens);
    if (status == MP_OK)
        status = mp_device_shared(device, layer, tokens);
    for (uint32_t slice = 0; slice < slices_of(device) && status == MP_OK; slice++) {
        status = queue_resolve(device, moe_layer, slice, tokens);
        if (status == MP_OK)
            status = queue_experts(device, slice, tokens);
    }
    if (status == MP_OK)
        status = mp_device_combine(device, device->state.x, device->state.rank, tokens);
    return status;
}

static enum mp_status queue_step(struct mp_device *device, uint32_t tokens)
{
    const uint32_t layers = device->engine->config.model->layers;
    enum mp_status status = mp_device_embed(device, tokens);

    for (uint32_t layer = 0; layer < layers && status == MP_OK; layer++)
        status = queue_layer(device, layer, tokens);
    if (status == MP_OK)
        status = mp_device_head(device, tokens);
    return status;
}

static enum mp_status capture(struct mp_device *device, uint32_t tokens)
{
    mp_cu_graph_exec exec = NULL;
    enum mp_status status, ended;
    struct mp_error first;

    mp_pager_settle(device->engine->pager); /* nobody maps anything while a graph is recorded */
    status = mp_gpu_capture_begin(device->gpu, mp_device_stream(device));
    if (status != MP_OK)
        return status;
    status = queue_step(device, tokens);
    first = *mp_error_last();
    ended = mp_gpu_capture_end(device->gpu, mp_device_stream(device), &exec);
    if (status == MP_OK) {
        if (ended == MP_OK)
            device->graphs->execs[tokens] = exec;
        return ended;
    }
    mp_gpu_graph_close(device->gpu, exec);
    mp_error_set(&first);
    return status;
}

/* ---- a step */

/* Where every resident expert is, as the device shall see it. */
static enum mp_status write_table(struct mp_device *device)
{
    struct mp_device_graphs *g = device->graphs;
    const struct mp_engine *engine = device->engine;
    const uint32_t E = engine->shape.experts, S = slices_of(device);
    const uint32_t units = engine->shape.layers * E * S;
    const uint64_t generation = mp_space_generation(engine->space);
    enum mp_status status;

    if (g->known && g->generation == generation)
        return MP_OK;
    for (uint32_t u = 0; u < units; u++) {
        struct mp_cuda_place_of *place = &g->places[u / S / E * S * E + u % S * E + u / S % E];
        const void *pieces[MP_UNIT_PIECES_MAX];

        *place = (struct mp_cuda_place_of){ .valid = 0 };
        if (mp_pager_find(engine->pager, u, pieces))
            *place = (struct mp_cuda_place_of){
                .gate = (uintptr_t)pieces[MP_PIECE_GATE],
                .up = (uintptr_t)pieces[MP_PIECE_UP],
                .down = (uintptr_t)pieces[MP_PIECE_DOWN],
                .valid = 1,
            };
    }
    g->generation = generation;
    status = mp_gpu_upload(device->gpu, mp_device_stream(device), g->table, g->places,
                           (uint64_t)units * sizeof(g->places[0]));
    g->known = status == MP_OK;
    return status;
}

/* Scores of every layer, where they are given and not computed. */
static enum mp_status give_scores(struct mp_device *device, uint64_t count)
{
    struct mp_device_graphs *g = device->graphs;
    const struct mp_engine *engine = device->engine;

    for (uint32_t l = 0; l < engine->shape.layers; l++)
        mp_route_from_scores(engine->config.route_from, engine->batch, l, g->seen + l * count);
    return mp_gpu_upload(device->gpu, mp_device_stream(device), g->scores, g->seen,
                         engine->shape.layers * count * sizeof(float));
}

/* The ids have been uploaded. All that the host wants to know comes back with one wait. */
static enum mp_status replay(struct mp_device *device, uint32_t tokens)
{
    struct mp_device_graphs *g = device->graphs;
    const struct mp_engine *engine = device->engine;
    const uint64_t L = engine->shape.layers, E = engine->shape.experts;
    const mp_cu_stream stream = mp_device_stream(device);
    const bool given = engine->config.route_from != NULL;
    enum mp_status status = write_table(device);

    if (status == MP_OK && given)
        status = give_scores(device, tokens * E);
    if (status == MP_OK)
        status = g->execs[tokens] != NULL ? mp_gpu_replay(device->gpu, stream, g->execs[tokens])
                                          : queue_step(device, tokens);
    if (status == MP_OK)
        status = mp_gpu_download(device->gpu, stream, g->missed, g->misses,
                                 L * slices_of(device) * sizeof(uint32_t));
    if (status == MP_OK && !given)
        status = mp_gpu_download(device->gpu, stream, g->seen, g->scores,
                                 L * tokens * E * sizeof(float));
    if (status == MP_OK)
        status = mp_device_result(device, tokens);
    if (status == MP_OK)
        status = mp_gpu_finish(device->gpu, stream);
    return status;
}

/* Layers that the device did alone, from the start. */
static uint32_t count_good(const struct mp_device *device)
{
    const struct mp_device_graphs *g = device->graphs;
    const uint32_t S = slices_of(device), lists = device->engine->shape.layers * S;
    uint32_t i = 0;

    while (i < lists && g->missed[i] == 0)
        i++;
    return i / S;
}

/* A step is tried again the later the more often it did not end here. */
static void count_step(struct mp_device_graphs *g, bool complete)
{
    g->counts.replays++;
    g->counts.complete += complete;
    g->pause = complete ? 0 : g->pause == 0 ? 1 : g->pause < REST_MAX ? 2 * g->pause : REST_MAX;
    g->rest = g->pause;
}

enum mp_status mp_device_graph_step(struct mp_device *device, uint32_t tokens, uint32_t wanted,
                                    struct mp_device_progress *progress_p)
{
    struct mp_device_graphs *g = device->graphs;
    const struct mp_engine *engine = device->engine;
    const uint32_t L = engine->shape.layers;
    uint32_t good, told;
    enum mp_status status = MP_OK;

    *progress_p = (struct mp_device_progress){ .started = false };
    if (g == NULL || tokens > g->tokens_max || wanted != tokens)
        return MP_OK;
    if (g->rest > 0) {
        g->rest--;
        return MP_OK;
    }
    /* A driver may load a kernel when it is first launched, which it cannot do while capturing. */
    if (g->warm[tokens] && g->execs[tokens] == NULL && !g->refused &&
        capture(device, tokens) != MP_OK) {
        mp_log_warn("cuda", "%s; steps are queued kernel by kernel instead of as one graph",
                    mp_error_last()->text);
        mp_error_clear();
        g->refused = true;
    }
    status = replay(device, tokens); /* a lost device is told here */
    if (status != MP_OK)
        return status;
    g->warm[tokens] = true;
    good = count_good(device);
    status = mp_device_graph_tell(device, good, &told);
    count_step(g, good == L && !g->taken);
    progress_p->started = true;
    if (g->taken) {
        progress_p->layer = engine->layer_of[told - 1] + 1;
    } else if (good < L) {
        progress_p->layer = engine->layer_of[good];
        progress_p->begun = true;
        if (status == MP_OK)
            status = mp_device_graph_resume(device, good);
    } else {
        progress_p->complete = true;
    }
    return status;
}

enum mp_status mp_device_graph_again(struct mp_device *device, uint32_t tokens,
                                     const struct mp_cuda_place_of *places)
{
    struct mp_device_graphs *g = device->graphs;
    const struct mp_engine *engine = device->engine;
    const uint64_t count = (uint64_t)engine->shape.layers * engine->shape.experts;
    const mp_cu_stream stream = mp_device_stream(device);
    enum mp_status status = MP_OK;

    if (g == NULL || tokens > MP_DEVICE_FEW_TOKENS || g->execs[tokens] == NULL)
        return mp_fail(MP_ERR_INVALID, "E_INTERNAL", "no graph of %u tokens", tokens);
    if (places != NULL) {
        mp_assert(slices_of(device) == 1);
        memcpy(g->places, places, count * sizeof(g->places[0]));
        g->known = false;
        status =
            mp_gpu_upload(device->gpu, stream, g->table, g->places, count * sizeof(g->places[0]));
    }
    if (status == MP_OK)
        status = mp_gpu_replay(device->gpu, stream, g->execs[tokens]);
    if (status == MP_OK)
        status = mp_gpu_download(device->gpu, stream, engine->state.logits, device->state.logits,
                                 (uint64_t)tokens * engine->config.model->vocab * sizeof(float));
    if (status == MP_OK)
        status = mp_gpu_finish(device->gpu, stream);
    return status;
}
