#ifndef MP_KV_H
#define MP_KV_H

#include <stddef.h>
#include <stdint.h>

#include "engine/model/config.h"

/*
 * The KV cache: keys and values of every position that a sequence has had, for each layer with
 * attention. The transformer stores and attends by (layer, sequence, position) and does not know
 * the memory layout; each compute uses the order that suits its kernels. Of each layer:
 *
 *     MP_KV_BY_HEAD      (sequences, heads, ctx, dim): a head's keys are adjacent
 *     MP_KV_BY_POSITION  (sequences, ctx, heads, dim): a position's heads are adjacent
 *
 * Keys and values are two arrays of the state (engine/forward/state.h) with one layout. A position
 * is written before it is read; positions after a sequence's last one are never read.
 */
struct mp_engine_config;

enum mp_kv_order { MP_KV_BY_HEAD, MP_KV_BY_POSITION };

struct mp_kv {
    const struct mp_model_config *model;
    enum mp_kv_order order;
    size_t ctx;
    size_t first[MP_LAYERS_MAX]; /* of a layer, in floats */
};

/* Number of floats of all keys, or of all values, as factors, because the product may exceed 64
 * bits. */
void mp_kv_shape(const struct mp_engine_config *config, uint64_t dims[4]);

struct mp_kv mp_kv_layout(const struct mp_engine_config *config, enum mp_kv_order order);

/* Floats between the same head's keys, or values, of two positions. */
static inline size_t mp_kv_stride(const struct mp_kv *kv, uint32_t layer)
{
    const size_t dim = mp_layer_head_dim(kv->model, layer);

    return kv->order == MP_KV_BY_HEAD ? dim : dim * mp_layer_kv_heads(kv->model, layer);
}

/* Offset of a head's key or value in its array, in floats. */
static inline size_t mp_kv_at(const struct mp_kv *kv, uint32_t layer, uint32_t sequence,
                              uint32_t head, uint32_t position)
{
    const size_t dim = mp_layer_head_dim(kv->model, layer);
    const size_t heads = mp_layer_kv_heads(kv->model, layer);

    return kv->first[layer] + sequence * heads * kv->ctx * dim +
           head * (kv->order == MP_KV_BY_HEAD ? kv->ctx * dim : dim) +
           position * mp_kv_stride(kv, layer);
}

#endif
