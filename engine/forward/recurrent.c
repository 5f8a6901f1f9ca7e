#include "engine/forward/recurrent.h"

#include "engine/forward/engine_int.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"

#define NOWHERE UINT32_MAX

uint64_t mp_recurrent_layers(const struct mp_model_config *model)
{
    uint64_t count = 0;

    for (uint32_t i = 0; i < model->layers; i++)
        count += model->linear[i];
    return count;
}

uint64_t mp_recurrent_floats(const struct mp_model_config *model)
{
    const struct mp_delta *d = &model->delta;

    if (model->short_conv > 0)
        return (uint64_t)(model->short_conv - 1) * model->hidden;
    return d->key_heads == 0 ? 0
                             : (uint64_t)(d->conv - 1) * mp_delta_channels(d) +
                                   (uint64_t)d->value_heads * d->key_dim * d->value_dim;
}

/* The two states of a layer and sequence are numbers 2 i and 2 i + 1 of all. */
static uint64_t first_state(const struct mp_engine *engine, uint32_t layer, uint32_t sequence)
{
    uint64_t number = 0;

    for (uint32_t i = 0; i < layer; i++)
        number += engine->config.model->linear[i];
    return 2 * (number * engine->config.sequences + sequence);
}

static bool can_begin(const struct mp_engine *engine, uint32_t sequence, uint32_t position)
{
    const struct mp_model_config *m = engine->config.model;

    for (uint32_t i = 0; position > 0 && i < m->layers; i++) {
        const uint32_t *at;

        if (!m->linear[i])
            continue;
        at = engine->state.recurrent_at + first_state(engine, i, sequence);
        if (at[0] != position && at[1] != position)
            return false;
    }
    return true;
}

enum mp_status mp_recurrent_check(const struct mp_engine *engine, const struct mp_batch *batch)
{
    bool seen[MP_RECURRENT_SEQUENCES] = { false };
    const bool states = mp_recurrent_floats(engine->config.model) > 0;

    for (uint32_t t = 0; states && t < batch->count; t++) {
        const uint32_t sequence = batch->sequence[t];

        mp_assert(sequence < MP_RECURRENT_SEQUENCES);
        if (!seen[sequence] && !can_begin(engine, sequence, batch->position[t]))
            return mp_fail(MP_ERR_INVALID, "E_BATCH",
                           "sequence %u cannot go to position %u: layers without attention keep "
                           "its last state only",
                           sequence, batch->position[t]);
        seen[sequence] = true;
    }
    return MP_OK;
}

void mp_recurrent_open(struct mp_engine *engine, uint32_t layer, uint32_t sequence,
                       uint32_t position, uint32_t count, const float **before_p, float **after_p)
{
    const uint64_t floats = mp_recurrent_floats(engine->config.model);
    const uint64_t first = first_state(engine, layer, sequence);
    uint32_t *at = engine->state.recurrent_at + first;
    const unsigned old = at[1] == position;

    *before_p = position == 0 ? NULL : engine->state.recurrent + (first + old) * floats;
    *after_p = engine->state.recurrent + (first + 1 - old) * floats;
    at[1 - old] = position + count;
    if (position == 0)
        at[old] = NOWHERE;
}
