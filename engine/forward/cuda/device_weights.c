/*
 * What every token needs, on the device: one block in which every matrix and vector stands at a
 * multiple of 256 bytes, filled from the weights in RAM through two pinned buffers, so that copying
 * one and sending the other overlap.
 *
 * device->weights is the same tree as engine->config.weights with addresses of the device in it.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/forward/cuda/device.h"
#include "vmm/base/checked.h"
#include "vmm/base/error.h"

#define ALIGN 256u
#define STAGE_BYTES (4u << 20)

struct stage {
    void *memory;      /* pinned */
    mp_cu_event event; /* its last copy */
    bool busy;
};

struct loader {
    struct mp_device *device;
    bool copying; /* else addresses are counted only */
    uint64_t used;
    struct stage stages[2];
    unsigned next;
};

/* Send bytes through the buffer whose turn it is. */
static enum mp_status send(struct loader *loader, mp_cu_ptr dst, const char *src, uint64_t bytes)
{
    struct mp_gpu *gpu = loader->device->gpu;
    const mp_cu_stream stream = mp_device_stream(loader->device);
    enum mp_status status = MP_OK;

    for (uint64_t at = 0; at < bytes && status == MP_OK; at += STAGE_BYTES) {
        const uint64_t chunk = bytes - at < STAGE_BYTES ? bytes - at : STAGE_BYTES;
        struct stage *stage = &loader->stages[loader->next];

        loader->next ^= 1;
        if (stage->busy)
            status = mp_gpu_wait(gpu, stage->event);
        if (status != MP_OK)
            break;
        memcpy(stage->memory, src + at, chunk);
        stage->busy = true;
        status = mp_gpu_upload(gpu, stream, dst + at, stage->memory, chunk);
        if (status == MP_OK)
            status = mp_gpu_record(gpu, stage->event, stream);
    }
    return status;
}

/* A place for bytes at *data_p, which becomes their address on the device. */
static enum mp_status place(struct loader *loader, const void **data_p, uint64_t bytes)
{
    const mp_cu_ptr address = loader->device->weights_block + loader->used;
    enum mp_status status = MP_OK;

    if (*data_p == NULL)
        return MP_OK;
    if (loader->copying) {
        status = send(loader, address, *data_p, bytes);
        *data_p = (const void *)(uintptr_t)address;
    }
    if (!mp_add_u64(loader->used, bytes, &loader->used) ||
        !mp_round_up_u64(loader->used, ALIGN, &loader->used))
        return mp_fail(MP_ERR_MODEL, "E_TENSOR_SHAPE", "the weights are larger than any memory");
    return status;
}

static enum mp_status check_type(enum mp_wtype type)
{
    if (mp_cuda_type(type) != NULL)
        return MP_OK;
    return mp_fail(MP_ERR_MODEL, "E_UNSUPPORTED",
                   "the model has weights of type %s, for which devices have no kernels; use "
                   "--device cpu",
                   mp_wtype_name(type));
}

static enum mp_status place_view(struct loader *loader, struct mp_view *view)
{
    const enum mp_status status = check_type(view->type);

    if (status != MP_OK)
        return status;
    return place(loader, &view->data, mp_wtype_bytes(view->type, view->rows * view->cols));
}

static enum mp_status place_vector(struct loader *loader, const float **vector, uint64_t count)
{
    const void *data = *vector;
    const enum mp_status status = place(loader, &data, count * sizeof(float));

    *vector = data;
    return status;
}

static enum mp_status place_ffn(struct loader *loader, struct mp_ffn *ffn)
{
    enum mp_status status = place_view(loader, &ffn->gate);

    if (status == MP_OK)
        status = place_view(loader, &ffn->up);
    if (status == MP_OK)
        status = place_view(loader, &ffn->down);
    return status;
}

static enum mp_status place_layer(struct loader *loader, struct mp_layer_weights *w)
{
    const struct mp_model_config *m = loader->device->engine->config.model;
    const uint64_t H = m->hidden, D = m->head_dim, Q = m->heads * D, K = m->kv_heads * D;
    struct {
        const float **vector;
        uint64_t count;
    } vectors[] = {
        { &w->attn_norm, H }, { &w->ffn_norm, H }, { &w->q_bias, Q }, { &w->k_bias, K },
        { &w->v_bias, K },    { &w->o_bias, H },   { &w->q_norm, D }, { &w->k_norm, D },
    };
    struct mp_view *views[] = { &w->q, &w->k, &w->v, &w->o, &w->router, &w->shared_gate };
    enum mp_status status = MP_OK;

    for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]) && status == MP_OK; i++)
        status = place_vector(loader, vectors[i].vector, vectors[i].count);
    for (size_t i = 0; i < sizeof(views) / sizeof(views[0]) && status == MP_OK; i++)
        status = place_view(loader, views[i]);
    if (status == MP_OK)
        status = place_ffn(loader, &w->dense);
    if (status == MP_OK)
        status = place_ffn(loader, &w->shared);
    return status;
}

/* Everything once, in one order. A head that is the embedding itself is not copied twice. */
static enum mp_status place_all(struct loader *loader)
{
    const struct mp_model_config *m = loader->device->engine->config.model;
    struct mp_weights *w = &loader->device->weights;
    const bool tied = w->head.data == w->embed.data;
    enum mp_status status = place_view(loader, &w->embed);

    if (status == MP_OK && !tied)
        status = place_view(loader, &w->head);
    if (tied)
        w->head.data = w->embed.data;
    if (status == MP_OK)
        status = place_vector(loader, &w->final_norm, m->hidden);
    for (uint32_t l = 0; l < m->layers && status == MP_OK; l++)
        status = place_layer(loader, &w->layers[l]);
    return status;
}

static enum mp_status open_stages(struct loader *loader)
{
    struct mp_gpu *gpu = loader->device->gpu;
    enum mp_status status = MP_OK;

    for (int i = 0; i < 2 && status == MP_OK; i++) {
        status =
            mp_gpu_alloc_host(gpu, STAGE_BYTES, "a buffer for weights", &loader->stages[i].memory);
        if (status == MP_OK)
            status = mp_gpu_event_open(gpu, false, &loader->stages[i].event);
    }
    return status;
}

/* Nothing may be under way. */
static void close_stages(struct loader *loader)
{
    for (int i = 0; i < 2; i++) {
        mp_gpu_event_close(loader->device->gpu, loader->stages[i].event);
        mp_gpu_free_host(loader->device->gpu, loader->stages[i].memory);
    }
}

uint64_t mp_device_weights_padding(const struct mp_engine_config *config)
{
    return (uint64_t)ALIGN * (3 + (uint64_t)config->model->layers * 20); /* pieces of place_all() */
}

enum mp_status mp_device_load_weights(struct mp_device *device)
{
    const struct mp_weights *from = device->engine->config.weights;
    const uint32_t layers = device->engine->config.model->layers;
    const uint32_t experts = device->engine->shape.layers * device->engine->shape.experts;
    struct loader loader = { .device = device };
    enum mp_status status = MP_OK;

    for (uint32_t e = 0; e < experts && status == MP_OK; e++)
        status = check_type(from->unit_types[e]);
    if (status != MP_OK)
        return status;

    device->weights = *from;
    device->weights.units = NULL;
    device->weights.unit_types = NULL;
    device->weights.block = NULL;
    device->weights.layers = calloc(layers, sizeof(device->weights.layers[0]));
    if (device->weights.layers == NULL)
        return mp_fail_no_memory("the list of weights", layers * sizeof(from->layers[0]));
    memcpy(device->weights.layers, from->layers, layers * sizeof(from->layers[0]));

    status = place_all(&loader);
    if (status == MP_OK)
        status = mp_gpu_alloc(device->gpu, loader.used, "the weights", &device->weights_block);
    if (status == MP_OK)
        status = open_stages(&loader);
    if (status == MP_OK) {
        loader.copying = true;
        loader.used = 0;
        status = place_all(&loader);
        if (status == MP_OK)
            status = mp_gpu_finish(device->gpu, mp_device_stream(device));
        if (status != MP_OK)
            mp_device_settle(device);
    }
    close_stages(&loader);
    return status;
}

void mp_device_drop_weights(struct mp_device *device)
{
    mp_gpu_free(device->gpu, device->weights_block);
    free(device->weights.layers);
}
