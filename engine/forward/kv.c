/*
 * Layouts and size of the KV cache. Its memory is part of the state.
 */
#include "engine/forward/kv.h"

#include "engine/forward/engine.h"

void mp_kv_shape(const struct mp_engine_config *config, uint64_t dims[4])
{
    const struct mp_model_config *m = config->model;

    dims[0] = m->layers;
    dims[1] = config->sequences;
    dims[2] = config->ctx;
    dims[3] = (uint64_t)m->kv_heads * m->head_dim;
}

struct mp_kv mp_kv_layout(const struct mp_engine_config *config, enum mp_kv_order order)
{
    const size_t D = config->model->head_dim, heads = config->model->kv_heads;
    const size_t sequence = heads * config->ctx * D;

    return (struct mp_kv){
        .layer = config->sequences * sequence,
        .sequence = sequence,
        .head = order == MP_KV_BY_HEAD ? config->ctx * D : D,
        .position = order == MP_KV_BY_HEAD ? D : heads * D,
    };
}
