/*
 * The device's operations of a compute, each queued on the stream of the transformer
 * (device_ops.c): the table of all of them, and those that every layer has. What a MoE layer adds
 * is in device_moe.c, in what order they are queued in forward.c.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "engine/forward/cuda/device.h"
#include "vmm/base/error.h"

#define LONG_CONTEXT 1024u

/* ---- the batch */

/* Where state.ids begins with numbers of one kind: of tokens, then of those that want logits. */
enum ids { TOKEN, SEQUENCE, POSITION, WANTED, UNIFORM, SAMPLED };

static size_t ids_at(const struct mp_device *device, enum ids kind)
{
    const struct mp_engine_config *c = &device->engine->config;
    const size_t of_tokens = kind < WANTED ? kind : WANTED;

    return of_tokens * c->tokens_max + (kind - of_tokens) * mp_engine_wanted_max(c);
}

static mp_cu_ptr ids_there(const struct mp_device *device, enum ids kind)
{
    return device->state.ids + ids_at(device, kind) * sizeof(uint32_t);
}

static uint32_t *ids_here(const struct mp_device *device, enum ids kind)
{
    return device->engine->state.ids + ids_at(device, kind);
}

/* The numbers of the wanted tokens go over, too, and random ones where the device samples. */
static void begin(struct mp_compute *c, const struct mp_batch *batch, uint32_t wanted)
{
    struct mp_device *device = mp_device_of(c);
    const size_t bytes = batch->count * sizeof(uint32_t);
    uint32_t *next = ids_here(device, WANTED);

    device->ahead.out = 0; /* of a step that failed */
    if (mp_gpu_is_lost(device->gpu)) {
        mp_device_keep_error(
            device, mp_fail(MP_ERR_DEVICE, "E_CUDA",
                            "the device was lost in an earlier step; it must be opened anew"));
        return;
    }
    memcpy(ids_here(device, TOKEN), batch->token, bytes);
    memcpy(ids_here(device, SEQUENCE), batch->sequence, bytes);
    memcpy(ids_here(device, POSITION), batch->position, bytes);
    for (uint32_t t = 0; t < batch->count; t++) {
        if (batch->want[t])
            *next++ = t;
    }
    if (batch->sample != NULL)
        memcpy(ids_here(device, UNIFORM), batch->sample->uniform, wanted * sizeof(uint32_t));
    mp_device_upload(device, device->state.ids, device->engine->state.ids,
                     ids_at(device, SAMPLED) * sizeof(uint32_t));
}

static void embed(struct mp_compute *c)
{
    struct mp_device *device = mp_device_of(c);

    mp_device_gather(device, &c->weights->embed, ids_there(device, TOKEN), device->state.x,
                     c->engine->tokens);
}

/* ---- of every layer */

static void norm(struct mp_compute *c, enum mp_array out, enum mp_array in,
                 const struct mp_norm *norm)
{
    struct mp_device *device = mp_device_of(c);

    mp_device_norm(device, device->state.array[out], device->state.array[in], norm,
                   c->engine->tokens);
}

/* Products of one input that a norm gives, which nobody else reads. */
static bool project_normed(struct mp_device *device, const struct mp_projection *list,
                           uint32_t count)
{
    struct mp_device_part parts[3];
    struct mp_cuda_normed in;

    for (uint32_t i = 0; i < count; i++) {
        if (list[i].in != MP_ARRAY_XE || list[i].add)
            return false;
        parts[i] =
            (struct mp_device_part){ list[i].w, list[i].bias, device->state.array[list[i].out] };
    }
    if (!mp_device_take_norm(device, device->state.array[MP_ARRAY_XE], &in))
        return false;
    mp_device_project(device, &in, parts, count);
    return true;
}

static void project(struct mp_compute *c, const struct mp_projection *list, uint32_t count,
                    uint32_t tokens)
{
    struct mp_device *device = mp_device_of(c);
    const mp_cu_ptr *array = device->state.array;

    if (project_normed(device, list, count))
        return;
    for (uint32_t i = 0; i < count; i++)
        mp_device_multiply(device, list[i].w, list[i].bias, array[list[i].in], array[list[i].out],
                           tokens, list[i].add);
}

static uint64_t kv_bytes_at(const struct mp_compute *c, uint32_t layer)
{
    return mp_kv_at(&c->kv, layer, 0, 0, 0);
}

static void store(struct mp_compute *c, uint32_t layer)
{
    struct mp_device *device = mp_device_of(c);
    const struct mp_model_config *m = c->engine->config.model;
    const struct mp_layer_weights *w = &c->weights->layers[layer];
    const struct mp_device_state *s = &device->state;
    const struct mp_cuda_place params = {
        .q = s->q,
        .k = s->k,
        .v = s->v,
        .q_norm = (uintptr_t)w->q_norm,
        .k_norm = (uintptr_t)w->k_norm,
        .cosine = s->cosine,
        .sine = s->sine,
        .k_cache = s->k_cache + kv_bytes_at(c, layer),
        .v_cache = s->v_cache + kv_bytes_at(c, layer),
        .sequence = ids_there(device, SEQUENCE),
        .position = ids_there(device, POSITION),
        .heads = m->heads,
        .kv_heads = m->kv_heads,
        .head_dim = m->head_dim,
        .tokens = c->engine->tokens,
        .ctx = c->engine->config.ctx,
        .eps = m->norm_eps,
        .type = c->kv.type,
    };

    mp_device_launch(device, MP_CUDA_KERNEL_place, &params);
}

/* Few heads over a long context leave most of the device idle. Same bits either way. */
static bool is_worth_splitting(const struct mp_device *device, uint32_t blocks)
{
    const struct mp_engine *engine = device->engine;
    const unsigned processors = (unsigned)mp_gpu_device(device->gpu)->processors;

    return engine->config.ctx >= LONG_CONTEXT && engine->tokens <= MP_DEVICE_FEW_TOKENS &&
           blocks < 2ull * processors;
}

static void attend(struct mp_compute *c, uint32_t layer)
{
    struct mp_device *device = mp_device_of(c);
    const struct mp_model_config *m = c->engine->config.model;
    const struct mp_device_state *s = &device->state;
    const enum mp_cuda_kernel kernel = mp_cuda_attend(c->kv.type);
    struct mp_cuda_attend params = {
        .q = s->q,
        .out = s->att,
        .k_cache = s->k_cache + kv_bytes_at(c, layer),
        .v_cache = s->v_cache + kv_bytes_at(c, layer),
        .sequence = ids_there(device, SEQUENCE),
        .position = ids_there(device, POSITION),
        .heads = m->heads,
        .kv_heads = m->kv_heads,
        .head_dim = m->head_dim,
        .tokens = c->engine->tokens,
        .ctx = c->engine->config.ctx,
        .scale = 1.0f / sqrtf((float)m->head_dim),
    };

    if (is_worth_splitting(device, mp_cuda_kernel_grid(kernel, &params).x)) {
        params.part = s->part;
        params.turn = s->turn + m->heads * sizeof(uint32_t); /* the first row: mp_device_route() */
    }
    mp_device_launch(device, kernel, &params);
}

static void ffn(struct mp_compute *c, const struct mp_ffn *ffn, enum mp_array in, enum mp_array x)
{
    struct mp_device *device = mp_device_of(c);
    const mp_cu_ptr *array = device->state.array;
    struct mp_cuda_normed normed;
    const bool waits = mp_device_take_norm(device, array[in], &normed);

    mp_device_ffn(device, ffn, NULL, waits ? &normed : NULL, array[in], array[x], true);
}

/* ---- the result */

static void pick(struct mp_compute *c, const struct mp_norm *norm, uint32_t wanted)
{
    struct mp_device *device = mp_device_of(c);
    const struct mp_device_state *s = &device->state;
    const struct mp_view x = {
        .data = (const void *)(uintptr_t)s->x,
        .type = MP_WTYPE_F32,
        .rows = c->engine->config.tokens_max,
        .cols = c->engine->config.model->hidden,
    };

    mp_device_gather(device, &x, ids_there(device, WANTED), s->xe, wanted);
    mp_device_norm(device, s->xe, s->xe, norm, wanted);
}

static void sample(struct mp_device *device, const struct mp_sampling *sampling, uint32_t wanted)
{
    const float temperature = (float)sampling->temperature;
    const struct mp_cuda_sample params = {
        .logits = device->state.logits,
        .uniform = ids_there(device, UNIFORM),
        .token = ids_there(device, SAMPLED),
        .part = device->state.part, /* attention is done with them */
        .turn = device->state.turn,
        .top_p = (uint64_t)(sampling->top_p * 0x1p32),
        .vocab = device->engine->config.model->vocab,
        .tokens = wanted,
        .top_k = sampling->top_k,
        .temperature = sampling->temperature > 0 && temperature < FLT_MIN ? FLT_MIN : temperature,
    };

    mp_device_launch(device, MP_CUDA_KERNEL_sample_list, &params);
    mp_device_launch(device, MP_CUDA_KERNEL_sample, &params);
    mp_device_download(device, ids_here(device, SAMPLED), params.token, wanted * sizeof(uint32_t));
}

void mp_device_queue_result(struct mp_device *device, uint32_t wanted)
{
    const struct mp_engine *engine = device->engine;

    if (engine->batch->sample != NULL)
        sample(device, engine->batch->sample->sampling, wanted);
    else
        mp_device_download(device, engine->state.logits, device->state.logits,
                           (uint64_t)wanted * engine->config.model->vocab * sizeof(float));
}

void mp_device_read_result(struct mp_device *device, uint32_t wanted)
{
    const struct mp_sample *sample = device->engine->batch->sample;

    if (sample != NULL)
        memcpy(sample->token, ids_here(device, SAMPLED), wanted * sizeof(uint32_t));
}

static enum mp_status result(struct mp_compute *c, uint32_t wanted)
{
    struct mp_device *device = mp_device_of(c);
    enum mp_status status;

    mp_device_queue_result(device, wanted);
    status = mp_device_finish(device);
    if (status == MP_OK)
        mp_device_read_result(device, wanted);
    return status;
}

/* ---- between device and host */

static void show(struct mp_compute *c, enum mp_array array, uint64_t bytes)
{
    struct mp_device *device = mp_device_of(c);

    mp_device_download(device, c->engine->state.array[array], device->state.array[array], bytes);
}

static enum mp_status wait(struct mp_compute *c)
{
    return mp_device_finish(mp_device_of(c));
}

static enum mp_status status_of(struct mp_compute *c)
{
    return mp_device_status(mp_device_of(c));
}

static enum mp_status alone(struct mp_compute *c, uint32_t wanted,
                            struct mp_forward_progress *progress_p)
{
    return mp_device_graph_step(mp_device_of(c), wanted, progress_p);
}

static void abandon(struct mp_compute *c)
{
    struct mp_device *device = mp_device_of(c);

    mp_device_settle(device);
    mp_device_release_host(device);
    device->op_error.status = MP_OK;
}

/* No forget(): what a partial forward stores of the next layer, that layer stores again before it
 * reads it, and nobody else reads behind the positions that came before the batch. */
const struct mp_compute_ops mp_device_compute_ops = {
    .begin = begin,
    .embed = embed,
    .norm = norm,
    .project = project,
    .store = store,
    .attend = attend,
    .ffn = ffn,
    .pick = pick,
    .result = result,
    .open = mp_device_open_layer,
    .router = mp_device_compute_router,
    .read_scores = mp_device_read_scores,
    .guess = mp_device_guess,
    .read_guess = mp_device_read_guess,
    .shared = mp_device_shared,
    .ended = mp_device_ended,
    .any_ended = mp_device_any_ended,
    .look = mp_device_look,
    .pool_taken = mp_device_pool_taken,
    .combine = mp_device_compute_combine,
    .combine_done = mp_device_combine_done,
    .show = show,
    .wait = wait,
    .status = status_of,
    .alone = alone,
    .abandon = abandon,
};
