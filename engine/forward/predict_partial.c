/*
 * The partial forward of SMoE (section IV-C, figure 7): the results of this layer's resident and
 * shared experts go into the next layer's attention and gate; experts that are not there yet count
 * as zero. The weights are those of the router, normalised over all chosen experts, also the absent
 * ones. Dense layers between two MoE layers are run as they are.
 *
 * These are the calls of forward.c with another set of experts. The real attention of the next
 * layer comes later and stores its keys and values then.
 */
#include "engine/forward/engine_int.h"

enum mp_status mp_engine_scores_partial(struct mp_engine *engine, uint32_t moe_layer,
                                        uint32_t target, float *scores)
{
    struct mp_compute *c = engine->compute;
    const uint32_t end = engine->layer_of[target];

    c->ops->combine_done(c, engine->layer_of[moe_layer], engine->predict.weights);
    for (uint32_t layer = engine->layer_of[moe_layer] + 1; layer <= end; layer++) {
        mp_engine_attention(c, layer, MP_ARRAY_PARTIAL);
        if (c->ops->forget != NULL)
            c->ops->forget(c, layer);
        if (layer < end)
            mp_engine_dense(c, layer, MP_ARRAY_XE, MP_ARRAY_PARTIAL);
    }
    c->ops->router(c, end, MP_ARRAY_PARTIAL, &c->weights->layers[end].ffn_norm, scores);
    return c->ops->read_scores(c, scores);
}
