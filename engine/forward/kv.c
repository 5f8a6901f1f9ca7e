/*
 * Layouts and size of the KV cache, and copies inside it. Its memory is part of the state.
 */
#include "engine/forward/kv.h"

#include <string.h>

#include "engine/forward/engine_int.h"
#include "engine/forward/recurrent.h"
#include "vmm/base/error.h"

/* Of one position: bytes of all heads of layer `layer`, and 0 without attention. */
static uint64_t layer_bytes(const struct mp_engine_config *config, uint32_t layer)
{
    const struct mp_model_config *m = config->model;

    return m->linear[layer] ? 0
                            : (uint64_t)mp_layer_kv_heads(m, layer) *
                                  mp_wtype_bytes(config->kv_type, mp_layer_head_dim(m, layer));
}

enum mp_status mp_kv_check(const struct mp_engine_config *config)
{
    const struct mp_model_config *m = config->model;
    const size_t block = mp_wtype_info(config->kv_type)->block_elements;

    for (uint32_t i = 0; i < m->layers; i++) {
        if (!m->linear[i] && mp_layer_head_dim(m, i) % block != 0)
            return mp_fail(MP_ERR_UNSUPPORTED, "E_KV_TYPE",
                           "KV cache of type %s: heads of layer %u have %u elements, need a "
                           "multiple of %zu; f16 and bf16 take any",
                           mp_wtype_name(config->kv_type), i, mp_layer_head_dim(m, i), block);
    }
    return MP_OK;
}

void mp_kv_shape(const struct mp_engine_config *config, uint64_t dims[4])
{
    dims[0] = 0;
    for (uint32_t i = 0; i < config->model->layers; i++)
        dims[0] += layer_bytes(config, i);
    dims[1] = config->sequences;
    dims[2] = config->ctx;
    dims[3] = 1;
}

struct mp_kv mp_kv_layout(const struct mp_engine_config *config, enum mp_kv_order order)
{
    struct mp_kv kv = {
        .model = config->model, .order = order, .ctx = config->ctx, .type = config->kv_type
    };
    size_t at = 0;

    for (uint32_t i = 0; i < config->model->layers; i++) {
        kv.first[i] = at;
        at += layer_bytes(config, i) * config->sequences * config->ctx;
    }
    return kv;
}

bool mp_engine_can_go_back(const struct mp_engine *engine)
{
    return mp_recurrent_layers(engine->config.model) == 0;
}

bool mp_engine_copy_kv(struct mp_engine *engine, uint32_t from, uint32_t to, uint32_t positions)
{
    const struct mp_model_config *m = engine->config.model;
    const struct mp_kv *kv = &engine->compute->kv;

    if (engine->device != NULL || !mp_engine_can_go_back(engine))
        return false;
    for (uint32_t layer = 0; layer < m->layers; layer++) {
        const size_t bytes = positions * mp_kv_row_bytes(kv, layer);

        for (uint32_t head = 0; head < mp_layer_kv_heads(m, layer); head++) {
            const size_t source = mp_kv_at(kv, layer, from, head, 0);
            const size_t target = mp_kv_at(kv, layer, to, head, 0);

            memcpy(engine->state.k_cache + target, engine->state.k_cache + source, bytes);
            if (m->kv_rank == 0) /* else values are parts of the keys */
                memcpy(engine->state.v_cache + target, engine->state.v_cache + source, bytes);
        }
    }
    return true;
}
