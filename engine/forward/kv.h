#ifndef MP_KV_H
#define MP_KV_H

#include <stddef.h>
#include <stdint.h>

/*
 * The KV cache: keys and values of every position that a sequence has had, for each layer. The
 * transformer stores and attends by (layer, sequence, position) and does not know the memory
 * layout; each compute uses the order that suits its kernels.
 *
 *     MP_KV_BY_HEAD      (layers, sequences, heads, ctx, dim): a head's keys are adjacent
 *     MP_KV_BY_POSITION  (layers, sequences, ctx, heads, dim): a position's heads are adjacent
 *
 * Keys and values are two arrays of the state (engine/forward/state.h) with one layout. A position
 * is written before it is read; positions after a sequence's last one are never read.
 */
struct mp_engine_config;

enum mp_kv_order { MP_KV_BY_HEAD, MP_KV_BY_POSITION };

/* Strides in floats. */
struct mp_kv {
    size_t layer, sequence, head, position;
};

/* Number of floats of all keys, or of all values, as factors, because the product may exceed 64
 * bits. */
void mp_kv_shape(const struct mp_engine_config *config, uint64_t dims[4]);

struct mp_kv mp_kv_layout(const struct mp_engine_config *config, enum mp_kv_order order);

/* Offset of a head's key or value in its array, in floats. */
static inline size_t mp_kv_at(const struct mp_kv *kv, uint32_t layer, uint32_t sequence,
                              uint32_t head, uint32_t position)
{
    return layer * kv->layer + sequence * kv->sequence + head * kv->head + position * kv->position;
}

#endif
