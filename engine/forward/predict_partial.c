/*
 * The partial forward of SMoE (section IV-C, figure 7): the results of this layer's resident and
 * shared experts go into the next layer's attention and gate; experts that are not there yet count
 * as zero. The weights are those of the router, normalised over all chosen experts, also the absent
 * ones. Dense layers between two MoE layers are run as they are.
 *
 * The real attention of the next layer comes later and writes its keys and values then: here the
 * cache is put back as it was.
 */
#include <string.h>

#include "engine/forward/engine_int.h"

/* x of the next layer, as far as it is known. */
static void add_present(struct mp_engine *engine)
{
    const size_t H = engine->config.model->hidden, R = engine->shape.top_k;
    const struct mp_predict_state *p = &engine->predict;

    memcpy(p->x, engine->state.x, engine->tokens * H * sizeof(float));
    for (size_t t = 0; t < engine->tokens; t++) {
        mp_engine_sum_experts(engine, t, p->weights + t * R, p->done + t * R, engine->state.ye);
        engine->config.kernels->axpy(p->x + t * H, engine->state.ye, 1.0f, H);
    }
}

/* x += ffn(norm(x)) of a layer without experts. */
static void add_dense(struct mp_engine *engine, uint32_t layer, float *x)
{
    const struct mp_layer_weights *w = &engine->config.weights->layers[layer];
    const struct mp_model_config *m = engine->config.model;
    struct mp_state *s = &engine->state;
    const size_t H = m->hidden;
    const struct mp_ffn_work work = {
        .ffn = w->dense,
        .x = s->xe,
        .y = s->ye,
        .gate = s->gate,
        .up = s->up,
        .tokens = engine->tokens,
    };

    engine->config.kernels->rmsnorm(s->xe, H, x, H, w->ffn_norm, H, engine->tokens, m->norm_eps);
    mp_engine_ffn(engine, &work, 1);
    engine->config.kernels->axpy(x, s->ye, 1.0f, engine->tokens * H);
}

void mp_engine_scores_partial(struct mp_engine *engine, uint32_t moe_layer, uint32_t target,
                              float *scores)
{
    const struct mp_model_config *m = engine->config.model;
    const uint32_t end = engine->layer_of[target];
    const size_t H = m->hidden;
    float *x = engine->predict.x;

    add_present(engine);
    for (uint32_t layer = engine->layer_of[moe_layer] + 1; layer < end; layer++) {
        mp_engine_attention(engine, layer, x, false);
        add_dense(engine, layer, x);
    }
    mp_engine_attention(engine, end, x, false);
    engine->config.kernels->rmsnorm(engine->state.xe, H, x, H,
                                    engine->config.weights->layers[end].ffn_norm, H, engine->tokens,
                                    m->norm_eps);
    mp_engine_router(engine, end, engine->state.xe, scores);
}
