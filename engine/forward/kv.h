#ifndef MP_KV_H
#define MP_KV_H

#include <stddef.h>
#include <stdint.h>

#include "engine/model/config.h"
#include "kernels/cpu/types.h"
#include "vmm/base/status.h"

/*
 * The KV cache: keys and values of every position that a sequence has had, for each layer with
 * attention. The transformer stores and attends by (layer, sequence, position) and does not know
 * the memory layout; each compute uses the order that suits its kernels. Of each layer:
 *
 *     MP_KV_BY_HEAD      (sequences, heads, ctx, dim): a head's keys are adjacent
 *     MP_KV_BY_POSITION  (sequences, ctx, heads, dim): a position's heads are adjacent
 *
 * A head's key or value is a row of whole blocks of one type (config->kv_type), rounded when it is
 * stored. Keys and values are two arrays of the state (engine/forward/state.h) with one layout. A
 * position is written before it is read; positions after a sequence's last one are never read.
 */
struct mp_engine_config;

enum mp_kv_order { MP_KV_BY_HEAD, MP_KV_BY_POSITION };

struct mp_kv {
    const struct mp_model_config *model;
    enum mp_kv_order order;
    size_t ctx;
    enum mp_wtype type;
    size_t first[MP_LAYERS_MAX]; /* of a layer, in bytes */
};

/* MP_ERR_UNSUPPORTED E_KV_TYPE: heads of the model are not whole blocks of config->kv_type. */
enum mp_status mp_kv_check(const struct mp_engine_config *config) MP_MUST_CHECK;

/* Number of bytes of all keys, or of all values, as factors, because the product may exceed 64
 * bits. */
void mp_kv_shape(const struct mp_engine_config *config, uint64_t dims[4]);

/*
 * Bytes of RAM that a sequence's first `positions` take at most where the CPU computes, in whole
 * pages: those of each head's run come when they are touched. 0 only for no positions.
 */
uint64_t mp_kv_sequence_bytes(const struct mp_engine_config *config, uint32_t positions);

struct mp_kv mp_kv_layout(const struct mp_engine_config *config, enum mp_kv_order order);

/* Elements between the same head's keys, or values, of two positions. */
static inline size_t mp_kv_stride(const struct mp_kv *kv, uint32_t layer)
{
    const size_t dim = mp_layer_head_dim(kv->model, layer);

    return kv->order == MP_KV_BY_HEAD ? dim : dim * mp_layer_kv_heads(kv->model, layer);
}

/* Bytes of a head's key or value. */
static inline size_t mp_kv_row_bytes(const struct mp_kv *kv, uint32_t layer)
{
    return mp_wtype_bytes(kv->type, mp_layer_head_dim(kv->model, layer));
}

/* Offset of a head's key or value in its array, in bytes. */
static inline size_t mp_kv_at(const struct mp_kv *kv, uint32_t layer, uint32_t sequence,
                              uint32_t head, uint32_t position)
{
    const size_t heads = mp_layer_kv_heads(kv->model, layer);
    const bool by_head = kv->order == MP_KV_BY_HEAD;
    const size_t rows = sequence * heads * kv->ctx + head * (by_head ? kv->ctx : 1) +
                        (size_t)position * (by_head ? 1 : heads);

    return kv->first[layer] + rows * mp_kv_row_bytes(kv, layer);
}

#endif
