#include "policy/priority.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/base/error.h"

enum mp_status mp_priority_init(struct mp_priority *priority, const struct mp_shape *shape,
                                double rho, double omega)
{
    const size_t units = (size_t)shape->layers * shape->experts;

    *priority = (struct mp_priority){
        .layers = shape->layers,
        .experts = shape->experts,
        .top_k = shape->top_k,
        .fade = -log(rho) / omega / shape->top_k,
        .pairs = calloc(shape->layers, sizeof(uint64_t)),
        .moment = calloc(shape->layers, sizeof(uint64_t)),
        .seen = calloc(units, sizeof(uint64_t)),
        .since = calloc(units, sizeof(uint64_t)),
        .count = calloc(units, sizeof(uint64_t)),
        .log_count = calloc(units, sizeof(double)),
    };
    if (priority->pairs == NULL || priority->moment == NULL || priority->seen == NULL ||
        priority->since == NULL || priority->count == NULL || priority->log_count == NULL) {
        mp_priority_fini(priority);
        return mp_fail_no_memory("cache priorities", units * 32);
    }
    return MP_OK;
}

void mp_priority_fini(struct mp_priority *priority)
{
    free(priority->pairs);
    free(priority->moment);
    free(priority->seen);
    free(priority->since);
    free(priority->count);
    free(priority->log_count);
    memset(priority, 0, sizeof(*priority));
}

/* A new batch of the layer: what the one before activated begins to age. */
static void turn(struct mp_priority *priority, uint32_t layer, uint64_t moment)
{
    const uint32_t first = layer * priority->experts;

    for (uint32_t u = first; u < first + priority->experts; u++) {
        if (priority->seen[u] == priority->moment[layer])
            priority->since[u] = priority->pairs[layer];
    }
    priority->moment[layer] = moment;
}

void mp_priority_access(struct mp_priority *priority, uint32_t unit, uint32_t tokens,
                        uint64_t moment)
{
    const uint32_t layer = unit / priority->experts;

    if (priority->moment[layer] != moment)
        turn(priority, layer, moment);
    priority->pairs[layer] += tokens;
    priority->count[unit] += tokens;
    priority->log_count[unit] = log((double)priority->count[unit]);
    priority->seen[unit] = moment;
}
