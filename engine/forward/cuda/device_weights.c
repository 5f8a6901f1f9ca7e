/*
 * Weights that every token needs, on the device: one block in which every matrix and vector is
 * aligned to 256 bytes, filled from the weights in RAM through two pinned buffers, so that filling
 * one and sending the other overlap. Experts are loaded by the pager.
 *
 * device->weights is a copy of engine->config.weights with device addresses.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/forward/cuda/device.h"
#include "engine/model/roles.h"
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

/* The device has kernels for weights of this type from here on. */
static enum mp_status need_type(struct mp_device *device, enum mp_wtype type)
{
    if (mp_cuda_type(type) != NULL)
        return mp_gpu_load_type(device->gpu, type);
    return mp_fail(MP_ERR_MODEL, "E_UNSUPPORTED",
                   "the model has weights of type %s, for which devices have no kernels; use "
                   "--device cpu",
                   mp_wtype_name(type));
}

/* One kernel computes gates and ups of an expert, another one what they go into. */
static enum mp_status need_expert(struct mp_device *device, const struct mp_expert_types *types)
{
    enum mp_status status = MP_OK;

    for (unsigned i = 0; i < MP_EXPERT_PIECES && status == MP_OK; i++)
        status = need_type(device, types->piece[i]);
    if (status != MP_OK || types->piece[MP_PIECE_UP] == types->piece[MP_PIECE_GATE])
        return status;
    return mp_fail(MP_ERR_MODEL, "E_UNSUPPORTED",
                   "the model has experts whose gates are %s and whose ups are %s, devices need "
                   "one type for both; use --device cpu",
                   mp_wtype_name(types->piece[MP_PIECE_GATE]),
                   mp_wtype_name(types->piece[MP_PIECE_UP]));
}

static enum mp_status need_role(struct mp_device *device, enum mp_role role, enum mp_wtype type)
{
    const enum mp_status status = need_type(device, type);

    if (status != MP_OK || role != MP_ROLE_ROUTER || mp_cuda_route(type, 1) != MP_CUDA_KERNEL_COUNT)
        return status;
    return mp_fail(MP_ERR_MODEL, "E_UNSUPPORTED",
                   "the model has routers of type %s, for which devices have no kernels; use "
                   "--device cpu",
                   mp_wtype_name(type));
}

/* A matrix, or floats that were converted when the weights were read. */
static enum mp_status place_role(struct loader *loader, enum mp_role role, uint32_t layer)
{
    const struct mp_model_config *m = loader->device->engine->config.model;
    const struct mp_role_info *info = &mp_roles[role];
    struct mp_weights *w = &loader->device->weights;
    char *owner = role < MP_ROLE_LAYER ? (char *)w : (char *)&w->layers[layer];
    struct mp_view *view = (void *)(owner + info->offset);
    const float **vector = (void *)(owner + info->offset);
    const void *data;
    enum mp_status status;

    if (info->cols != MP_DIM_NONE) {
        status = need_role(loader->device, role, view->type);
        return status != MP_OK ? status
                               : place(loader, &view->data,
                                       mp_wtype_bytes(view->type, view->rows * view->cols));
    }
    data = *vector;
    status = place(loader, &data, mp_dim_size(m, info->rows, layer) * sizeof(float));
    *vector = data;
    return status;
}

static enum mp_status place_roles(struct loader *loader, int first, int end, uint32_t layer)
{
    const struct mp_model_config *m = loader->device->engine->config.model;
    enum mp_status status = MP_OK;

    for (int role = first; role < end && status == MP_OK; role++) {
        if (mp_role_needed(m, (enum mp_role)role, layer))
            status = place_role(loader, (enum mp_role)role, layer);
    }
    return status;
}

/* Everything once, in one order. A head that is the embedding itself is not copied twice. */
static enum mp_status place_all(struct loader *loader)
{
    const struct mp_model_config *m = loader->device->engine->config.model;
    struct mp_weights *w = &loader->device->weights;
    enum mp_status status = place_roles(loader, 0, MP_ROLE_LAYER, 0);

    if (m->tied)
        w->head = w->embed;
    for (uint32_t l = 0; l < m->layers && status == MP_OK; l++)
        status = place_roles(loader, MP_ROLE_LAYER, MP_ROLE_COUNT, l);
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
    return (uint64_t)ALIGN *
           (MP_ROLE_LAYER + (uint64_t)config->model->layers * (MP_ROLE_COUNT - MP_ROLE_LAYER));
}

enum mp_status mp_device_load_weights(struct mp_device *device)
{
    const struct mp_weights *from = device->engine->config.weights;
    const struct mp_model_config *m = device->engine->config.model;
    const uint32_t layers = m->layers, experts = m->moe_layers * m->experts;
    struct loader loader = { .device = device };
    enum mp_status status = MP_OK;

    for (uint32_t e = 0; e < experts && status == MP_OK; e++)
        status = need_expert(device, &from->unit_types[e]);
    if (status != MP_OK)
        return status;

    device->weights = *from;
    device->weights.units = NULL;
    device->weights.unit_types = NULL;
    device->weights.block = device->weights.tables = NULL;
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
