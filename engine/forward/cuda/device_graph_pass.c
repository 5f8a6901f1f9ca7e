/*
 * The operations of a step that the device does alone: the forward pass of forward.c, in which the
 * experts of a MoE layer are those that the router chooses on the device. It is queued like any
 * other, or captured; by whom, and what becomes of misses, is in device_graph.c.
 */
#include "engine/forward/cuda/device_graph.h"
#include "kernels/cuda/works.h"
#include "vmm/base/assert.h"

/* The most experts that a step can choose. */
static uint32_t works_max(const struct mp_device *device)
{
    const struct mp_shape *shape = &device->engine->shape;

    return mp_cuda_works(shape->experts, shape->top_k, device->engine->tokens);
}

static mp_cu_ptr scores_of(const struct mp_device *device, uint32_t moe_layer)
{
    const struct mp_engine *engine = device->engine;

    return device->graphs->scores +
           (uint64_t)moe_layer * engine->tokens * engine->shape.experts * sizeof(float);
}

static mp_cu_ptr guesses_of(const struct mp_device *device, uint32_t moe_layer)
{
    return device->graphs->guesses + (scores_of(device, moe_layer) - device->graphs->scores);
}

bool mp_device_graph_guesses(const struct mp_device *device, uint32_t moe_layer)
{
    const struct mp_engine *engine = device->engine;
    struct mp_cuda_route route;

    return device->graphs->asks && moe_layer + 1 < engine->shape.layers &&
           mp_device_route_next(device, engine->layer_of[moe_layer],
                                engine->layer_of[moe_layer + 1], 0, &route);
}

static struct mp_cuda_top_k choice_of(const struct mp_device *device, uint32_t moe_layer)
{
    const struct mp_shape *shape = &device->engine->shape;

    return (struct mp_cuda_top_k){
        .scores = scores_of(device, moe_layer),
        .expert = device->graphs->expert,
        .weight = device->state.weight,
        .experts = shape->experts,
        .top_k = shape->top_k,
        .tokens = device->engine->tokens,
    };
}

/* work := the chosen experts' slices of one number that are resident. */
static struct mp_cuda_resolve list_of(const struct mp_device *device, uint32_t moe_layer,
                                      uint32_t slice)
{
    const struct mp_device_graphs *g = device->graphs;
    const struct mp_shape *shape = &device->engine->shape;
    const uint64_t list = (uint64_t)moe_layer * mp_device_slices(device) + slice;

    return (struct mp_cuda_resolve){
        .expert = g->expert,
        .table = g->table + list * shape->experts * sizeof(struct mp_cuda_place_of),
        .work = g->work,
        .row = g->row,
        .misses = g->misses + list * sizeof(uint32_t),
        .experts = shape->experts,
        .top_k = shape->top_k,
        .tokens = device->engine->tokens,
        .channels =
            (uint32_t)mp_ffn_slices_channels(&device->engine->config.weights->slices, slice),
        .accumulate = slice > 0,
        .works = works_max(device),
    };
}

/* Scores, choice and the list of the first slices; x is kept for the host. Where the routing is
 * given, the router's work is done all the same, for the time it takes. */
static void queue_route(struct mp_device *device, uint32_t moe_layer)
{
    const struct mp_engine *engine = device->engine;
    const uint64_t bytes = (uint64_t)engine->tokens * engine->config.model->hidden * sizeof(float);
    const bool given = engine->config.forced_routing != NULL;
    struct mp_cuda_route route = {
        .kept = device->graphs->x + moe_layer * bytes,
        .choose = choice_of(device, moe_layer),
        .list = list_of(device, moe_layer, 0),
    };
    bool done;

    if (mp_device_graph_guesses(device, moe_layer))
        (void)mp_device_route_next(device, engine->layer_of[moe_layer],
                                   engine->layer_of[moe_layer + 1], guesses_of(device, moe_layer),
                                   &route);
    done = mp_device_route(device, engine->layer_of[moe_layer], device->state.xn,
                           given ? device->state.scores : route.choose.scores, &route);
    mp_assert(done); /* the layer's norm came just before, and of few tokens */
    (void)done;
}

static void queue_slice(struct mp_device *device, uint32_t moe_layer, uint32_t slice)
{
    const struct mp_device_graphs *g = device->graphs;
    const struct mp_model_config *m = device->engine->config.model;
    const struct mp_weights *weights = device->engine->config.weights;
    const enum mp_wtype *types =
        weights->unit_types[moe_layer * device->engine->shape.experts].piece; /* as the others */
    const struct mp_device_state *s = &device->state;
    struct mp_cuda_experts params = {
        .work = g->work,
        .row = g->row,
        .x = s->xn,
        .act = s->act,
        .rank = s->rank,
        .type = types[MP_PIECE_GATE],
        .works = works_max(device),
        .hidden = m->hidden,
        .channels = (uint32_t)mp_ffn_slices_channels(&weights->slices, slice),
        .top_k = device->engine->shape.top_k,
        .x_stride = m->hidden,
        .rows_max = device->engine->tokens,
    };

    mp_device_launch(device, mp_cuda_experts_up(params.type, params.rows_max), &params);
    params.type = types[MP_PIECE_DOWN];
    mp_device_launch(device, mp_cuda_experts_down(params.type, params.rows_max), &params);
}

/* A layer's experts, whichever the router chooses. */
static enum mp_status queue_experts(struct mp_compute *c, uint32_t moe_layer)
{
    struct mp_device *device = mp_device_of(c);
    const uint32_t layer = c->engine->layer_of[moe_layer];
    queue_route(device, moe_layer);
    if (c->engine->config.model->shared_ffn != 0)
        mp_device_shared(c, layer);
    for (uint32_t slice = 0; slice < mp_device_slices(device); slice++) {
        const struct mp_cuda_resolve list = list_of(device, moe_layer, slice);

        if (slice > 0)
            mp_device_launch(device, MP_CUDA_KERNEL_resolve, &list);
        queue_slice(device, moe_layer, slice);
    }
    mp_device_combine(device, layer, device->state.x, device->state.rank);
    return mp_device_status(device);
}

enum mp_status mp_device_graph_queue(struct mp_device *device, uint32_t done)
{
    const struct mp_engine *engine = device->engine;
    struct mp_pass pass = { .to = engine->config.model->layers,
                            .wanted = engine->tokens,
                            .uncancelable = true,
                            .experts = queue_experts };
    enum mp_status status;

    if (done > 0)
        pass.from = (struct mp_forward_progress){ .started = true,
                                                  .layer = engine->layer_of[done - 1] + 1 };
    status = mp_engine_pass(&device->compute, &pass);
    return status == MP_OK ? mp_device_status(device) : status;
}
