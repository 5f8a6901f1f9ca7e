/*
 * Scores that the engine computes for predictors, which have no weights; policy/policy.h defines
 * the sources.
 *
 * GATE      the later layer's norm and router on the residual stream as it is now.
 * RESIDUAL  DALI, section 4.2, eq. 10 and 11: the later layer's router on this router's input plus
 *           the mean change between the two inputs. Several layers ahead the changes add up.
 * PARTIAL   engine/forward/predict_partial.c
 * LLAPOR    engine/forward/predict_llapor.c
 *
 * If a source is not available (no calibration, no network, more than one layer ahead, the next
 * token's first layer, before there are results) the next best one is used: llapor, residual, gate.
 * A prediction affects only the time of a run, never its result, so this is not an error; missing
 * data are warned about when the engine is created.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/forward/engine_int.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

static enum mp_status gate_scores(struct mp_engine *engine, uint32_t moe_layer, uint32_t target,
                                  float *scores)
{
    struct mp_compute *c = engine->compute;
    const uint32_t layer = engine->layer_of[target];

    engine->predict.asked |= target == moe_layer + 1;
    if (engine->predict.guess_here && target == moe_layer + 1) {
        c->ops->read_guess(c, scores);
        return MP_OK;
    }
    c->ops->router(c, layer, MP_ARRAY_X, &c->weights->layers[layer].ffn_norm, scores);
    return c->ops->read_scores(c, scores);
}

static void residual_scores(struct mp_engine *engine, uint32_t moe_layer, uint32_t target,
                            float *scores)
{
    const size_t H = engine->config.model->hidden;
    const float *residual = engine->config.calibration->residual;
    float *x = engine->predict.input;

    memcpy(x, engine->state.xn, engine->tokens * H * sizeof(float));
    for (uint32_t l = moe_layer; l < target; l++) {
        for (uint32_t t = 0; t < engine->tokens; t++)
            engine->config.kernels->axpy(x + t * H, residual + l * H, 1.0f, H);
    }
    mp_cpu_router(engine, engine->layer_of[target], x, scores, engine->predict.alone);
}

enum mp_score_source mp_engine_source_of(const struct mp_engine *engine, uint32_t moe_layer,
                                         uint32_t target, enum mp_score_source source)
{
    if (source == MP_SCORES_PARTIAL && target == moe_layer + 1 && engine->predict.shared)
        return MP_SCORES_PARTIAL;
    if (source == MP_SCORES_LLAPOR && target == moe_layer + 1 && engine->config.llapor != NULL &&
        engine->predict.chosen != NULL)
        return MP_SCORES_LLAPOR;
    if ((source == MP_SCORES_RESIDUAL || source == MP_SCORES_LLAPOR) && target > moe_layer &&
        engine->config.calibration != NULL)
        return MP_SCORES_RESIDUAL;
    return MP_SCORES_GATE;
}

/* What needs other weights than the transformer's, by the host from the layer's normed input. It
 * does not wait for experts that the CPU computes meanwhile. */
static enum mp_status host_scores(struct mp_engine *engine, uint32_t moe_layer, uint32_t target,
                                  enum mp_score_source source, float *scores)
{
    const enum mp_status status = mp_engine_bring_input(engine);
    struct mp_compute *c = engine->compute;

    if (status != MP_OK)
        return status;
    engine->predict.alone = c->ops->pool_taken != NULL && c->ops->pool_taken(c);
    if (source == MP_SCORES_LLAPOR)
        mp_engine_scores_llapor(engine, moe_layer, scores);
    else
        residual_scores(engine, moe_layer, target, scores);
    return MP_OK;
}

enum mp_status mp_engine_source_scores(struct mp_engine *engine, uint32_t moe_layer,
                                       uint32_t target, enum mp_score_source source, float *scores)
{
    source = mp_engine_source_of(engine, moe_layer, target, source);
    if (source == MP_SCORES_GATE)
        return gate_scores(engine, moe_layer, target, scores);
    if (source == MP_SCORES_PARTIAL)
        return mp_engine_scores_partial(engine, moe_layer, target, scores);
    return host_scores(engine, moe_layer, target, source, scores);
}

static void warn_missing(const struct mp_engine *engine, enum mp_score_source source)
{
    const struct mp_engine_config *c = &engine->config;
    const char *name = engine->policies.predict_ops->info.name;

    if (source == MP_SCORES_RESIDUAL && c->calibration == NULL)
        mp_log_warn("predict",
                    "predict policy '%s' has no calibration of this model and asks the next gate "
                    "alone; run moepager calibrate",
                    name);
    if (source == MP_SCORES_LLAPOR && c->llapor == NULL)
        mp_log_warn("predict",
                    "predict policy '%s' has no trained predictors of this model and asks %s; see "
                    "docs/calibration.md",
                    name, c->calibration != NULL ? "policy 'residual'" : "the next gate");
}

static enum mp_status allocate(uint64_t count, float **out)
{
    *out = calloc(count, sizeof(float));
    return *out != NULL ? MP_OK : mp_fail_no_memory("scores for a predictor", count * 4);
}

enum mp_status mp_engine_predict_create(struct mp_engine *engine)
{
    const enum mp_score_source source = engine->policies.predict_ops->source;
    const struct mp_llapor *llapor = engine->config.llapor;
    struct mp_predict_state *p = &engine->predict;
    const uint64_t T = engine->shape.tokens_max;
    enum mp_status status = MP_OK;

    warn_missing(engine, source);
    if ((source == MP_SCORES_RESIDUAL || source == MP_SCORES_LLAPOR) &&
        engine->config.calibration != NULL)
        status = allocate(T * engine->config.model->hidden, &p->input);
    if (status == MP_OK && source == MP_SCORES_LLAPOR && llapor != NULL && llapor->count > 0) {
        status = allocate(T * (llapor->inputs_max + 2ull * engine->shape.experts), &p->features);
        for (int i = 0; i < 3 && status == MP_OK; i++)
            status = allocate(T * llapor->width_max, &p->wide[i]);
        if (status == MP_OK && engine->config.llapor_learns)
            status = mp_engine_llapor_learner_create(engine);
    }
    return status;
}

void mp_engine_predict_destroy(struct mp_engine *engine)
{
    struct mp_predict_state *p = &engine->predict;

    mp_engine_llapor_learner_destroy(p->learner);
    free(p->input);
    free(p->features);
    for (int i = 0; i < 3; i++)
        free(p->wide[i]);
}
