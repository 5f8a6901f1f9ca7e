/*
 * Layouts and size of the KV cache, and copies inside it. Its memory is part of the state.
 */
#include "engine/forward/kv.h"

#include <string.h>

#include "engine/forward/engine_int.h"
#include "engine/forward/recurrent.h"

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

bool mp_engine_can_go_back(const struct mp_engine *engine)
{
    return mp_recurrent_layers(engine->config.model) == 0;
}

bool mp_engine_copy_kv(struct mp_engine *engine, uint32_t from, uint32_t to, uint32_t positions)
{
    const struct mp_model_config *m = engine->config.model;
    const struct mp_kv *kv = &engine->compute->kv;
    const size_t bytes = (size_t)positions * m->head_dim * sizeof(float);

    if (engine->device != NULL || !mp_engine_can_go_back(engine))
        return false;
    for (uint32_t layer = 0; layer < m->layers; layer++) {
        for (uint32_t head = 0; head < m->kv_heads; head++) {
            const size_t source = mp_kv_at(kv, layer, from, head, 0);
            const size_t target = mp_kv_at(kv, layer, to, head, 0);

            memcpy(engine->state.k_cache + target, engine->state.k_cache + source, bytes);
            if (m->kv_rank == 0) /* else values are parts of the keys */
                memcpy(engine->state.v_cache + target, engine->state.v_cache + source, bytes);
        }
    }
    return true;
}
