/*
 * Decoding without the host: where routing is the model's own and the device computes every expert,
 * a step of few tokens is one graph. Routers, the choice of experts and the search for their bytes
 * run on the device; a table says where each resident expert is. Kernels and their order are those
 * of the host-driven step, so the bits are, too.
 *
 * The table is written before a replay and nothing is moved while it runs, because only this thread
 * moves anything and it waits: what is resident needs no lease. Reads that are under way go to
 * slots that the table does not name.
 *
 * Experts that are not resident are counted per layer. After a miss what the graph computed from
 * that layer on is worthless: the host goes on from there, with the residual stream that each layer
 * left behind before its experts, and the next steps are driven by the host, more after each miss.
 *
 * Then the host's step runs over the layers that are done, with their scores and with operations
 * that have nothing left to do: pager and policies see the same as in a host-driven step.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/device.h"
#include "engine/route_from.h"
#include "vmm/base/assert.h"
#include "vmm/base/checked.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

#define TOKENS_MAX MP_DEVICE_FEW_TOKENS
#define EXPERTS_MAX 1024 /* of the resolve kernel */
#define REST_MAX 64u     /* host-driven steps after a miss, at most */

/* N: TOKENS_MAX or less; L: MoE layers. */
struct mp_device_graphs {
    mp_cu_graph_exec execs[TOKENS_MAX + 1]; /* by tokens */
    bool warm[TOKENS_MAX + 1];              /* all kernels have run once */
    enum mp_wtype type;                     /* of all experts */
    uint32_t tokens_max;

    mp_cu_ptr table;  /* struct mp_cuda_place_of (L, E) */
    mp_cu_ptr work;   /* struct mp_cuda_expert (E) */
    mp_cu_ptr row;    /* u32 (N, R) */
    mp_cu_ptr expert; /* u32 (N, R) */
    mp_cu_ptr misses; /* u32 (L) */
    mp_cu_ptr scores; // (L, N, E)
    mp_cu_ptr x;      // (L, N, H): before the experts

    /* Pinned. */
    struct mp_cuda_place_of *places; // (L, E)
    uint32_t *missed;                // (L)
    float *seen;                     // (L, N, E)

    bool known; /* the table is that of these counts */
    uint64_t loads, prefetches, evictions, resident_bytes, moves;

    uint32_t rest, pause; /* steps that the host drives yet, and after the next miss */
    struct mp_device_graph_counts counts;
};

/* One type for all experts: their kernels are launched before anybody knows whom. */
static bool same_types(const struct mp_weights *weights)
{
    for (uint32_t u = 1; u < weights->unit_count; u++) {
        if (weights->unit_types[u] != weights->unit_types[0])
            return false;
    }
    return true;
}

/* Policies that ask for something else in between have their steps driven by the host. */
static bool can_use_graphs(const struct mp_engine *engine)
{
    const struct mp_engine_config *c = &engine->config;
    const struct mp_policies *p = &engine->policies;
    const enum mp_score_source source = p->predict_ops->source;

    return c->graphs && c->watch == NULL && c->weights->slices.count == 1 &&
           !strcmp(p->route_ops->info.name, "exact") &&
           !strcmp(p->assign_ops->info.name, "gpu-only") && source != MP_SCORES_RESIDUAL &&
           source != MP_SCORES_LLAPOR && c->model->experts <= EXPERTS_MAX && same_types(c->weights);
}

static enum mp_status make_memory(struct mp_device *device, struct mp_device_graphs *g)
{
    const struct mp_engine *engine = device->engine;
    const uint64_t L = engine->shape.layers, E = engine->shape.experts, N = g->tokens_max;
    const uint64_t R = engine->shape.top_k, H = engine->config.model->hidden;
    const struct {
        mp_cu_ptr *address_p;
        uint64_t bytes;
    } there[] = {
        { &g->table, L * E * sizeof(struct mp_cuda_place_of) },
        { &g->work, E * sizeof(struct mp_cuda_expert) },
        { &g->row, N * R * sizeof(uint32_t) },
        { &g->expert, N * R * sizeof(uint32_t) },
        { &g->misses, L * sizeof(uint32_t) },
        { &g->scores, L * N * E * sizeof(float) },
        { &g->x, L * N * H * sizeof(float) },
    };
    const struct {
        void **address_p;
        uint64_t bytes;
    } here[] = {
        { (void **)&g->places, L * E * sizeof(struct mp_cuda_place_of) },
        { (void **)&g->missed, L * sizeof(uint32_t) },
        { (void **)&g->seen, L * N * E * sizeof(float) },
    };
    enum mp_status status = MP_OK;

    for (size_t i = 0; i < sizeof(there) / sizeof(there[0]) && status == MP_OK; i++)
        status = mp_gpu_alloc(device->gpu, there[i].bytes, "graphs", there[i].address_p);
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
    g->tokens_max = engine->config.sequences < TOKENS_MAX ? engine->config.sequences : TOKENS_MAX;
    g->type = engine->config.weights->unit_types[0];
    device->graphs = g;
    status = make_memory(device, g);
    return status;
}

void mp_device_graphs_destroy(struct mp_device *device)
{
    struct mp_device_graphs *g = device->graphs;

    if (g == NULL)
        return;
    for (unsigned i = 0; i <= TOKENS_MAX; i++)
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
    const struct mp_cuda_resolve resolve = {
        .expert = g->expert,
        .table = g->table + (uint64_t)moe_layer * shape->experts * sizeof(struct mp_cuda_place_of),
        .work = g->work,
        .row = g->row,
        .misses = g->misses + moe_layer * sizeof(uint32_t),
        .experts = shape->experts,
        .top_k = shape->top_k,
        .tokens = tokens,
        .channels = device->engine->config.model->expert_ffn,
    };
    const mp_cu_stream stream = mp_device_stream(device);
    /* Where the routing is given, the router's work is done all the same, for the time it takes. */
    enum mp_status status =
        mp_device_router(device, device->engine->layer_of[moe_layer], device->state.xn,
                         device->engine->config.route_from != NULL ? device->state.scores : scores);

    if (status == MP_OK)
        status = mp_gpu_launch(device->gpu, stream, MP_CUDA_KERNEL_top_k, &top_k);
    if (status == MP_OK)
        status = mp_gpu_launch(device->gpu, stream, MP_CUDA_KERNEL_resolve, &resolve);
    return status;
}

static enum mp_status queue_experts(struct mp_device *device, uint32_t tokens)
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
        .channels = m->expert_ffn,
        .top_k = device->engine->shape.top_k,
        .x_stride = m->hidden,
        .rows_max = tokens,
    };
    enum mp_status status =
        mp_gpu_launch(device->gpu, mp_device_stream(device),
                      (enum mp_cuda_kernel)(MP_CUDA_KERNEL_experts_up_f32 + g->type), &params);

    if (status == MP_OK)
        status = mp_gpu_launch(device->gpu, mp_device_stream(device),
                               (enum mp_cuda_kernel)(MP_CUDA_KERNEL_experts_down_f32 + g->type),
                               &params);
    return status;
}

static enum mp_status queue_layer(struct mp_device *device, uint32_t layer, uint32_t tokens)
{
    const struct mp_model_config *m = device->engine->config.model;
    const uint32_t moe_layer = device->engine->moe_layer[layer];
    const uint64_t bytes = (uint64_t)tokens * m->hidden * sizeof(float);
    enum mp_status status = mp_device_attention(device, layer, tokens);

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
    if (status == MP_OK)
        status = queue_experts(device, tokens);
    if (status == MP_OK)
        status = mp_device_combine(device, tokens);
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
    enum mp_status status = mp_gpu_capture_begin(device->gpu, mp_device_stream(device)), ended;
    struct mp_error first;

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
    const struct mp_counters *c = &engine->counters;
    const uint32_t L = engine->shape.layers, E = engine->shape.experts;

    if (g->known && g->loads == c->loads && g->prefetches == c->prefetch_issued &&
        g->evictions == c->evictions && g->resident_bytes == c->resident_bytes &&
        g->moves == mp_space_moves(engine->space))
        return MP_OK;
    for (uint32_t i = 0; i < L * E; i++) {
        const void *pieces[MP_UNIT_PIECES_MAX];

        g->places[i] = (struct mp_cuda_place_of){ .valid = 0 };
        if (mp_pager_find(engine->pager, i / E, i % E, pieces))
            g->places[i] = (struct mp_cuda_place_of){
                .gate = (uintptr_t)pieces[MP_PIECE_GATE],
                .up = (uintptr_t)pieces[MP_PIECE_UP],
                .down = (uintptr_t)pieces[MP_PIECE_DOWN],
                .valid = 1,
            };
    }
    g->known = true;
    g->loads = c->loads;
    g->prefetches = c->prefetch_issued;
    g->evictions = c->evictions;
    g->resident_bytes = c->resident_bytes;
    g->moves = mp_space_moves(engine->space);
    return mp_gpu_upload(device->gpu, mp_device_stream(device), g->table, g->places,
                         (uint64_t)L * E * sizeof(g->places[0]));
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
        status = mp_gpu_download(device->gpu, stream, g->missed, g->misses, L * sizeof(uint32_t));
    if (status == MP_OK && !given)
        status = mp_gpu_download(device->gpu, stream, g->seen, g->scores,
                                 L * tokens * E * sizeof(float));
    if (status == MP_OK)
        status = mp_gpu_download(device->gpu, stream, engine->state.logits, device->state.logits,
                                 (uint64_t)tokens * engine->config.model->vocab * sizeof(float));
    if (status == MP_OK)
        status = mp_gpu_finish(device->gpu, stream);
    return status;
}

/* ---- the host's step over what is done */

static enum mp_status done_scores(void *ctx, uint32_t moe_layer, float *scores)
{
    struct mp_engine *engine = ctx;
    const size_t count = (size_t)engine->tokens * engine->shape.experts;

    engine->predict.chosen = NULL;
    memcpy(scores, engine->device->graphs->seen + moe_layer * count, count * sizeof(float));
    engine->scores = scores;
    return MP_OK;
}

/* The residual stream of the layer lies aside; see queue_layer(). */
static enum mp_status done_source_scores(void *ctx, uint32_t moe_layer, uint32_t target_layer,
                                         enum mp_score_source source, float *scores)
{
    struct mp_engine *engine = ctx;
    const uint64_t bytes = (uint64_t)engine->tokens * engine->config.model->hidden * sizeof(float);

    (void)source;
    return mp_device_gate_scores(engine->device, engine->device->graphs->x + moe_layer * bytes,
                                 target_layer, scores);
}

static enum mp_status done_shared(void *ctx, uint32_t moe_layer)
{
    (void)ctx;
    (void)moe_layer;
    return MP_OK;
}

static bool done_take(void *ctx, uint32_t moe_layer, uint32_t expert, enum mp_executor executor)
{
    (void)ctx;
    (void)moe_layer;
    (void)expert;
    (void)executor;
    return false;
}

static enum mp_status done_experts(void *ctx, uint32_t moe_layer, const struct mp_expert_work *work,
                                   uint32_t count)
{
    struct mp_device *device = ((struct mp_engine *)ctx)->device;

    (void)moe_layer;
    mp_device_tell(device, work, count);
    return MP_OK;
}

static enum mp_status done_combine(void *ctx, uint32_t moe_layer, const uint32_t *experts,
                                   const float *weights)
{
    (void)ctx;
    (void)moe_layer;
    (void)experts;
    (void)weights;
    return MP_OK;
}

static enum mp_status tell_policies(struct mp_device *device, uint32_t layers, uint32_t tokens)
{
    const struct mp_step_ops kept = device->ops;
    enum mp_status status = MP_OK;

    device->ops.scores = done_scores;
    device->ops.source_scores = done_source_scores;
    device->ops.shared = done_shared;
    device->ops.take = done_take;
    device->ops.experts = done_experts;
    device->ops.combine = done_combine;
    for (uint32_t l = 0; l < layers && status == MP_OK; l++)
        status = mp_step_layer(device->engine->step, l, tokens);
    device->ops = kept;
    return status;
}

/* Bring back what the first layer with a miss found. */
static enum mp_status resume(struct mp_device *device, uint32_t moe_layer, uint32_t tokens)
{
    const uint32_t layer = device->engine->layer_of[moe_layer];
    const uint64_t bytes = (uint64_t)tokens * device->engine->config.model->hidden * sizeof(float);
    enum mp_status status = mp_gpu_copy(device->gpu, mp_device_stream(device), device->state.x,
                                        device->graphs->x + moe_layer * bytes, bytes);

    return status == MP_OK ? mp_device_dense(device, layer, tokens) : status;
}

enum mp_status mp_device_graph_step(struct mp_device *device, uint32_t tokens, uint32_t wanted,
                                    uint32_t *layer_p)
{
    struct mp_device_graphs *g = device->graphs;
    const struct mp_engine *engine = device->engine;
    const uint32_t L = engine->shape.layers;
    uint32_t good = 0;
    enum mp_status status = MP_OK;

    *layer_p = UINT32_MAX;
    if (g == NULL || tokens > g->tokens_max || wanted != tokens)
        return MP_OK;
    if (g->rest > 0) {
        g->rest--;
        return MP_OK;
    }
    /* A driver may load a kernel when it is first launched, which it cannot do while capturing. */
    if (g->warm[tokens] && g->execs[tokens] == NULL)
        status = capture(device, tokens);
    if (status == MP_OK)
        status = replay(device, tokens);
    if (status != MP_OK)
        return status;
    g->warm[tokens] = true;
    while (good < L && g->missed[good] == 0)
        good++;
    g->counts.replays++;
    g->counts.complete += good == L;
    g->pause = good == L ? 0 : g->pause == 0 ? 1 : g->pause < REST_MAX ? 2 * g->pause : REST_MAX;
    g->rest = g->pause;
    status = tell_policies(device, good, tokens);
    if (status == MP_OK && good < L)
        status = resume(device, good, tokens);
    *layer_p = good < L ? engine->layer_of[good] : engine->config.model->layers;
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

    if (g == NULL || tokens > TOKENS_MAX || g->execs[tokens] == NULL)
        return mp_fail(MP_ERR_INVALID, "E_INTERNAL", "no graph of %u tokens", tokens);
    if (places != NULL) {
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
