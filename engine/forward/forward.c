/*
 * The transformer: mp_forward() from top to bottom, as in the models' papers, over a compute
 * (engine/forward/compute.h). What a MoE layer does between its norm and the next layer is moe.c.
 */
#include "engine/forward/engine_int.h"
#include "engine/forward/recurrent.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"

/* x += the gated delta network, or short convolution, of norm(x), which stands in attention's
 * place. */
static void recurrent(struct mp_compute *c, uint32_t layer, enum mp_array x)
{
    const struct mp_layer_weights *w = &c->weights->layers[layer];
    const bool conv = c->engine->config.model->short_conv > 0;
    const struct mp_projection out = {
        conv ? &w->conv.out : &w->delta.out, NULL, MP_ARRAY_ATT, x, true, NULL
    }; // (T, H)

    c->ops->norm(c, MP_ARRAY_XE, x, &w->attn_norm);
    if (conv)
        c->ops->short_conv(c, layer);
    else
        c->ops->delta(c, layer);
    c->ops->project(c, &out, 1, c->engine->tokens);
}

void mp_engine_attention(struct mp_compute *c, uint32_t layer, enum mp_array x)
{
    const struct mp_layer_weights *w = &c->weights->layers[layer];
    const uint32_t tokens = c->engine->tokens;
    const bool gated = c->engine->config.model->q_gate;
    const struct mp_projection qkv[] = {
        { .w = &w->q,
          .bias = w->q_bias,
          .in = MP_ARRAY_XE,
          .out = gated ? MP_ARRAY_LATENT : MP_ARRAY_Q },                         // (T, Q)
        { .w = &w->k, .bias = w->k_bias, .in = MP_ARRAY_XE, .out = MP_ARRAY_K }, // (T, K)
        { .w = &w->v, .bias = w->v_bias, .in = MP_ARRAY_XE, .out = MP_ARRAY_V }, // (T, K)
    };
    const bool latent = c->engine->config.model->kv_rank > 0;
    const struct mp_projection out = {
        &w->o, w->o_bias, latent ? MP_ARRAY_Q : MP_ARRAY_ATT,
        x,     true,      w->attn_after.w != NULL ? &w->attn_after : NULL
    }; // (T, H)

    if (c->engine->config.model->linear[layer]) {
        recurrent(c, layer, x);
        return;
    }
    c->ops->norm(c, MP_ARRAY_XE, x, &w->attn_norm);
    if (latent)
        c->ops->latent(c, layer);
    else
        c->ops->project(c, qkv, w->v.rows > 0 ? 3 : 2, tokens);
    if (gated)
        c->ops->split_gate(c);
    c->ops->store(c, layer);
    c->ops->attend(c, layer);
    if (gated)
        c->ops->apply_gate(c);
    if (latent)
        c->ops->latent_values(c, layer);
    c->ops->project(c, &out, 1, tokens);
}

void mp_engine_dense(struct mp_compute *c, uint32_t layer, enum mp_array in, enum mp_array x)
{
    const struct mp_layer_weights *w = &c->weights->layers[layer];

    c->ops->norm(c, in, x, &w->ffn_norm);
    if (!c->engine->config.model->is_moe[layer])
        c->ops->ffn(c, &w->dense, in, x);
}

/* x := the embeddings, or what a layer that drafts makes of them and of states */
static void begin_stream(struct mp_compute *c)
{
    const struct mp_projection in = { .w = &c->weights->draft.in,
                                      .in = MP_ARRAY_DRAFT_IN,
                                      .out = MP_ARRAY_X };

    c->ops->embed(c);
    if (!c->engine->config.model->drafting)
        return;
    c->ops->draft_in(c);
    c->ops->project(c, &in, 1, c->engine->tokens);
}

/* logits := head(norm(x)) of the wanted tokens */
static void head(struct mp_compute *c, uint32_t wanted)
{
    const struct mp_weights *w = c->weights;
    const struct mp_projection out = {
        .w = &w->head, .bias = w->head_bias, .in = MP_ARRAY_XE, .out = MP_ARRAY_LOGITS
    };

    if (wanted == 0)
        return;
    c->ops->pick(c, &w->final_norm, wanted);
    c->ops->project(c, &out, 1, wanted);
}

enum mp_status mp_engine_pass(struct mp_compute *c, const struct mp_pass *pass)
{
    const struct mp_engine *engine = c->engine;
    const struct mp_model_config *m = engine->config.model;
    const struct mp_forward_progress *from = &pass->from;
    enum mp_status status = MP_OK;

    if (!from->started)
        begin_stream(c);
    for (uint32_t layer = from->layer; layer < pass->to && status == MP_OK; layer++) {
        status = pass->uncancelable ? MP_OK : mp_engine_check_cancel(engine);
        if (status != MP_OK)
            return status;
        mp_engine_attention(c, layer, MP_ARRAY_X);
        mp_engine_dense(c, layer, MP_ARRAY_XN, MP_ARRAY_X);
        status = m->is_moe[layer] ? pass->experts(c, engine->moe_layer[layer]) : c->ops->status(c);
    }
    if (status == MP_OK && pass->to == m->layers)
        head(c, pass->wanted);
    return status;
}

enum mp_status mp_engine_check_cancel(const struct mp_engine *engine)
{
    if (engine->config.cancel != NULL && *engine->config.cancel)
        return mp_fail(MP_ERR_CANCELED, "E_CANCELED", "interrupted");
    return MP_OK;
}

static enum mp_status step_experts(struct mp_compute *c, uint32_t moe_layer)
{
    return mp_step_layer(c->engine->step, moe_layer, c->engine->tokens);
}

static enum mp_status check_batch(const struct mp_engine *engine, const struct mp_batch *batch,
                                  uint32_t *wanted_p)
{
    const struct mp_engine_config *c = &engine->config;
    uint32_t wanted = 0;

    if (batch->count == 0 || batch->count > c->tokens_max)
        return mp_fail(MP_ERR_INVALID, "E_BATCH", "batch of %u tokens, need 1 to %u", batch->count,
                       c->tokens_max);
    for (uint32_t t = 0; t < batch->count; t++) {
        if (batch->token[t] >= c->model->vocab || batch->sequence[t] >= c->sequences ||
            batch->position[t] >= c->ctx)
            return mp_fail(MP_ERR_INVALID, "E_BATCH",
                           "token %u of the batch is out of range: id %u, sequence %u, position %u",
                           t, batch->token[t], batch->sequence[t], batch->position[t]);
        wanted += batch->want[t] != 0;
    }
    if (batch->sample != NULL && !mp_engine_can_sample(engine))
        return mp_fail(MP_ERR_INVALID, "E_BATCH", "only a device samples tokens in a batch");
    if (wanted > mp_engine_wanted_max(c))
        return mp_fail(MP_ERR_INVALID, "E_BATCH", "logits of %u tokens of a batch, need at most %u",
                       wanted, mp_engine_wanted_max(c));
    *wanted_p = wanted;
    return mp_recurrent_check(engine, batch);
}

/* How far the host goes before the compute is asked whether it can go on alone. */
static uint32_t next_stop(const struct mp_compute *c, uint32_t layer)
{
    const struct mp_model_config *m = c->engine->config.model;

    if (c->ops->alone == NULL)
        return m->layers;
    while (layer < m->layers && !m->is_moe[layer])
        layer++;
    return layer < m->layers ? layer + 1 : layer;
}

/* What the compute cannot do alone is driven layer by layer. */
static enum mp_status run(struct mp_compute *c, const struct mp_batch *batch, uint32_t wanted)
{
    struct mp_pass pass = { .wanted = wanted, .experts = step_experts };
    enum mp_status status;

    c->ops->begin(c, batch, wanted);
    status = c->ops->status(c);
    while (status == MP_OK && pass.to < c->engine->config.model->layers) {
        if (c->ops->alone != NULL)
            status = c->ops->alone(c, wanted, &pass.from);
        if (status != MP_OK || pass.from.complete)
            return status;
        pass.to = next_stop(c, pass.from.layer);
        status = mp_engine_pass(c, &pass);
        pass.from = (struct mp_forward_progress){ .started = true, .layer = pass.to };
    }
    return status == MP_OK ? c->ops->result(c, wanted) : status;
}

const float *mp_engine_states(struct mp_engine *engine)
{
    struct mp_compute *c = engine->compute;

    mp_assert(engine->device == NULL);
    c->ops->norm(c, MP_ARRAY_XN, MP_ARRAY_X, &c->weights->final_norm);
    return engine->state.xn;
}

enum mp_status mp_forward(struct mp_engine *engine, const struct mp_batch *batch,
                          const float **logits_p)
{
    const uint64_t start_ns = mp_timeline_now_ns(engine->config.timeline);
    struct mp_compute *c = engine->compute;
    uint32_t wanted = 0;
    enum mp_status status = check_batch(engine, batch, &wanted);

    if (status != MP_OK)
        return status;
    mp_assert((batch->states != NULL) == engine->config.model->drafting);
    engine->tokens = batch->count;
    engine->batch = batch;
    engine->summed_ns = 0;
    status = run(c, batch, wanted);
    if (status != MP_OK) {
        if (c->ops->abandon != NULL)
            c->ops->abandon(c);
        mp_step_abandon(engine->step);
        return status;
    }
    mp_timeline_span(engine->config.timeline, c->track, "forward", start_ns,
                     mp_timeline_now_ns(engine->config.timeline),
                     &(struct mp_timeline_args){ { "tokens", NULL }, { batch->count, 0 } });
    mp_live_note(engine->config.live, batch->count, wanted, &engine->counters);
    *logits_p = engine->state.logits;
    return MP_OK;
}
