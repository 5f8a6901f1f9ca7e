/*
 * The experts that a probe times: those of a model, or of the command line.
 */
#include <string.h>

#include "engine/probe/probe.h"
#include "kernels/cuda/cuda_kernels.h"

uint64_t mp_probe_gate_bytes(const struct mp_probe_shape *shape)
{
    return mp_wtype_bytes(shape->gate, (size_t)shape->hidden * shape->channels);
}

uint64_t mp_probe_down_bytes(const struct mp_probe_shape *shape)
{
    return mp_wtype_bytes(shape->down, (size_t)shape->hidden * shape->channels);
}

uint64_t mp_probe_expert_bytes(const struct mp_probe_shape *shape)
{
    return 2 * mp_probe_gate_bytes(shape) + mp_probe_down_bytes(shape);
}

/* Are rows of this type whole blocks, for which devices have kernels? */
static bool fits(enum mp_wtype type, uint32_t columns)
{
    return mp_cuda_type(type) != NULL && columns % mp_wtype_info(type)->block_elements == 0;
}

static bool shape_fits(const struct mp_probe_shape *shape)
{
    return fits(shape->gate, shape->hidden) && fits(shape->down, shape->channels);
}

static enum mp_wtype find_type(const char *name, size_t bytes)
{
    enum mp_wtype type = MP_WTYPE_F32;

    while (type < MP_WTYPE_COUNT &&
           (strlen(mp_wtype_name(type)) != bytes || memcmp(mp_wtype_name(type), name, bytes) != 0))
        type++;
    return type;
}

bool mp_probe_parse_types(const char *text, struct mp_probe_shape *shape)
{
    const char *comma = strchr(text, ',');
    const size_t bytes = comma != NULL ? (size_t)(comma - text) : strlen(text);
    struct mp_probe_shape changed = *shape;

    changed.gate = changed.down = find_type(text, bytes);
    if (comma != NULL)
        changed.down = find_type(comma + 1, strlen(comma + 1));
    if (changed.gate == MP_WTYPE_COUNT || changed.down == MP_WTYPE_COUNT || !shape_fits(&changed))
        return false;
    *shape = changed;
    return true;
}

/* Of the first expert of each layer, the types that most have; the first of equals. */
static const struct mp_expert_types *usual_types(const struct mp_model_config *model,
                                                 const struct mp_weights *weights)
{
    const struct mp_expert_types *types = weights->unit_types, *best = NULL;
    uint32_t most = 0;

    for (uint32_t i = 0; i < model->moe_layers; i++) {
        uint32_t count = 0;

        for (uint32_t k = 0; k < model->moe_layers; k++)
            count += mp_expert_types_same(&types[i * model->experts], &types[k * model->experts]);
        if (count > most) {
            most = count;
            best = &types[i * model->experts];
        }
    }
    return best;
}

struct mp_probe_shape mp_probe_shape_of(const struct mp_model_config *model,
                                        const struct mp_weights *weights)
{
    const struct mp_expert_types *usual = weights != NULL ? usual_types(model, weights) : NULL;
    struct mp_probe_shape shape = {
        .hidden = model->hidden,
        .channels = model->expert_ffn,
        .experts = model->experts_per_token,
        .gate = MP_WTYPE_BF16,
        .down = MP_WTYPE_BF16,
    };

    if (usual != NULL) {
        shape.gate = usual->piece[MP_PIECE_GATE];
        shape.down = usual->piece[MP_PIECE_DOWN];
    }
    if (!shape_fits(&shape))
        shape.gate = shape.down = MP_WTYPE_BF16;
    return shape;
}
