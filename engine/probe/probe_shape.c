/*
 * The experts that a probe times.
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

bool mp_probe_shape_fits(const struct mp_probe_shape *shape)
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
    if (changed.gate == MP_WTYPE_COUNT || changed.down == MP_WTYPE_COUNT ||
        !mp_probe_shape_fits(&changed))
        return false;
    *shape = changed;
    return true;
}
