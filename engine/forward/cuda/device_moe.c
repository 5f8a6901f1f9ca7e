/*
 * The device's operations of a MoE layer besides the experts themselves (device_executors.c):
 * router scores, shared expert, sums. Their order is determined by forward.c and the step.
 */
#include <string.h>

#include "engine/forward/cuda/device.h"

#define NOT_THERE UINT32_MAX
#define GATHER_MAX 32768u /* rows of one launch */

void mp_device_open_layer(struct mp_compute *c, uint32_t moe_layer)
{
    struct mp_device *device = mp_device_of(c);

    mp_device_release_host(device); /* of a layer that failed before it was computed */
    device->leased_layer = moe_layer;
    device->work_used = 0;
    device->list_used = device->act_used = 0;
}

/* Always by the project's kernels: rounded inputs would choose other experts. */
void mp_device_router(struct mp_device *device, uint32_t layer, mp_cu_ptr x, mp_cu_ptr scores)
{
    const uint32_t tokens = device->engine->tokens, experts = device->engine->shape.experts;
    const struct mp_view *w = &device->weights.layers[layer].router;
    const struct mp_cuda_matmul params = mp_device_product(w, NULL, x, scores, tokens, false);
    const struct mp_cuda_softmax softmax = {
        .x = scores, .width = experts, .tokens = tokens, .stride = experts
    };
    struct mp_cuda_route route = { .kept = 0 };

    if (mp_device_route(device, layer, x, scores, &route))
        return;
    mp_device_launch(device,
                     tokens <= MP_DEVICE_FEW_TOKENS ? mp_cuda_gemv(w->type, tokens)
                                                    : mp_cuda_type(w->type)->gemm,
                     &params);
    mp_device_launch(device, MP_CUDA_KERNEL_softmax, &softmax);
}

bool mp_device_route(struct mp_device *device, uint32_t layer, mp_cu_ptr x, mp_cu_ptr scores,
                     struct mp_cuda_route *route)
{
    const struct mp_view *w = &device->weights.layers[layer].router;

    if (!mp_device_take_norm(device, x, &route->in))
        return false;
    route->w = (uintptr_t)w->data;
    route->out = x;
    route->scores = scores;
    route->turn = device->state.turn;
    route->experts = device->engine->shape.experts;
    mp_device_launch(device, mp_cuda_route(w->type, route->in.tokens), route);
    return true;
}

void mp_device_gate(struct mp_device *device, uint32_t layer, mp_cu_ptr x,
                    const struct mp_norm *norm, mp_cu_ptr scores)
{
    const struct mp_device_state *s = &device->state;

    mp_device_norm(device, s->xe, x, norm, device->engine->tokens);
    mp_device_router(device, layer, s->xe, scores);
}

bool mp_device_route_next(const struct mp_device *device, uint32_t layer, uint32_t later,
                          mp_cu_ptr scores, struct mp_cuda_route *route)
{
    const struct mp_layer_weights *w = &device->weights.layers[later];

    if (w->router.type != device->weights.layers[layer].router.type)
        return false;
    route->next.w = (uintptr_t)w->router.data;
    route->next.norm = (uintptr_t)w->ffn_norm.w;
    route->next.scores = scores;
    return true;
}

static uint64_t count_scores(const struct mp_compute *c)
{
    return (uint64_t)c->engine->tokens * c->engine->shape.experts;
}

/* A guess stands behind the scores: by the same launch, if there is a kernel for both. */
static void route_and_guess(struct mp_device *device, uint32_t layer, mp_cu_ptr x)
{
    const struct mp_device_state *s = &device->state;
    const mp_cu_ptr behind = s->scores + count_scores(&device->compute) * sizeof(float);
    const uint32_t later = device->guess_layer;
    struct mp_cuda_route route = { .kept = 0 };

    if (device->ahead.in == s->x && mp_device_route_next(device, layer, later, behind, &route) &&
        mp_device_route(device, layer, x, s->scores, &route))
        return;
    mp_device_router(device, layer, x, s->scores);
    mp_device_gate(device, later, s->x, &device->weights.layers[later].ffn_norm, behind);
}

/* They stay on the device until they are read. */
void mp_device_compute_router(struct mp_compute *c, uint32_t layer, enum mp_array in,
                              const struct mp_norm *norm, float *scores)
{
    struct mp_device *device = mp_device_of(c);
    const struct mp_device_state *s = &device->state;

    (void)scores;
    if (norm != NULL)
        mp_device_gate(device, layer, s->array[in], norm, s->scores);
    else if (device->guessed)
        route_and_guess(device, layer, s->array[in]);
    else
        mp_device_router(device, layer, s->array[in], s->scores);
}

void mp_device_guess(struct mp_compute *c, uint32_t layer)
{
    struct mp_device *device = mp_device_of(c);

    device->guess_layer = layer;
    device->guessed = true;
}

void mp_device_read_guess(struct mp_compute *c, float *scores)
{
    memcpy(scores, c->engine->state.scores + count_scores(c), count_scores(c) * sizeof(float));
}

enum mp_status mp_device_read_scores(struct mp_compute *c, float *scores)
{
    struct mp_device *device = mp_device_of(c);
    const uint64_t bytes = count_scores(c) * sizeof(float);
    enum mp_status status;

    mp_device_download(device, c->engine->state.scores, device->state.scores,
                       device->guessed ? 2 * bytes : bytes);
    device->guessed = false;
    status = mp_device_finish(device);
    if (status == MP_OK)
        memcpy(scores, c->engine->state.scores, bytes);
    return status;
}

/* sum := shared(x), row := shared_gate x; the sum of experts weighs one by the other. x is normed
 * once more, in the product's prologue, so that it is one launch for all. */
void mp_device_shared(struct mp_compute *c, uint32_t layer)
{
    struct mp_device *device = mp_device_of(c);
    const struct mp_device_state *s = &device->state;
    const struct mp_layer_weights *w = &c->weights->layers[layer];
    const struct mp_cuda_normed in = {
        .x = s->x,
        .norm = (uintptr_t)w->ffn_norm.w,
        .cols = c->engine->config.model->hidden,
        .tokens = c->engine->tokens,
        .eps = c->engine->config.model->norm_eps,
    };

    mp_device_ffn(device, &w->shared, w->shared_gate.data != NULL ? &w->shared_gate : NULL,
                  in.tokens <= MP_DEVICE_FEW_TOKENS ? &in : NULL, s->xn, s->sum, false); // (T, H)
}

/* ---- sums of experts */

void mp_device_combine(struct mp_device *device, uint32_t layer, mp_cu_ptr x, mp_cu_ptr rank)
{
    const struct mp_device_state *s = &device->state;
    const struct mp_model_config *m = device->engine->config.model;
    const struct mp_cuda_combine params = {
        .x = x,
        .rank = rank,
        .weight = s->weight,
        .shared = m->shared_ffn != 0 ? s->sum : 0,
        .gate = device->weights.layers[layer].shared_gate.data != NULL ? s->row : 0,
        .hidden = m->hidden,
        .top_k = device->engine->shape.top_k,
        .tokens = device->engine->tokens,
        .normalise = m->norm_topk,
    };

    mp_device_launch(device, MP_CUDA_KERNEL_combine, &params);
}

/* The copy has ended when scores, or the logits, are here next. */
static void send_weights(struct mp_device *device, const float *weights)
{
    const struct mp_engine *engine = device->engine;
    const uint64_t bytes = (uint64_t)engine->tokens * engine->shape.top_k * sizeof(weights[0]);

    memcpy(engine->state.weight, weights, bytes);
    mp_device_upload(device, device->state.weight, engine->state.weight, bytes);
}

void mp_device_compute_combine(struct mp_compute *c, uint32_t layer, const float *weights)
{
    struct mp_device *device = mp_device_of(c);

    mp_device_release_host(device);
    send_weights(device, weights);
    mp_device_combine(device, layer, device->state.x, device->state.rank);
}

/* partial_rank := the results that state.done of the host names, else zeros. The stream has been
 * given all of them, so they are there when it comes to this. */
static void gather_done(struct mp_device *device)
{
    const struct mp_state *here = &device->engine->state;
    const struct mp_device_state *s = &device->state;
    const uint32_t ranks = device->engine->tokens * device->engine->shape.top_k;
    const uint64_t H = device->engine->config.model->hidden;
    const struct mp_view rank = {
        .data = (const void *)(uintptr_t)s->rank, .type = MP_WTYPE_F32, .rows = ranks, .cols = H
    };

    for (uint32_t i = 0; i < ranks; i++)
        here->partial_row[i] = here->done[i] ? i : NOT_THERE;
    mp_device_upload(device, s->partial_row, here->partial_row, ranks * sizeof(uint32_t));
    mp_device_clear(device, s->partial_rank, ranks * H * sizeof(float));
    for (uint32_t first = 0; first < ranks; first += GATHER_MAX)
        mp_device_gather(device, &rank, s->partial_row + first * sizeof(uint32_t),
                         s->partial_rank + first * H * sizeof(float),
                         ranks - first < GATHER_MAX ? ranks - first : GATHER_MAX);
}

void mp_device_combine_done(struct mp_compute *c, uint32_t layer, const float *weights)
{
    struct mp_device *device = mp_device_of(c);
    const struct mp_device_state *s = &device->state;

    gather_done(device);
    send_weights(device, weights);
    mp_device_copy(device, s->partial, s->x,
                   (uint64_t)c->engine->tokens * c->engine->config.model->hidden * sizeof(float));
    mp_device_combine(device, layer, s->partial, s->partial_rank);
}
