/*
 * Routing that reads as many experts per token as a measurement wants.
 */
#include "engine/measure/measure.h"

/* The expert of rank `r` in step `t`. An expert that is to be read was used longest ago of all. */
static uint32_t expert_of(const struct mp_measured *m, enum mp_pattern pattern, uint32_t t,
                          uint32_t r)
{
    if (pattern == MP_PATTERN_NONE_READ && m->sets > 1)
        return (t % m->sets * m->top_k + r) % m->experts;
    if (pattern == MP_PATTERN_ALL_READ)
        return (uint32_t)(((uint64_t)t * m->top_k + r) % m->experts);
    if (pattern == MP_PATTERN_ONE_READ && r == m->top_k - 1)
        return r + t % (m->experts - r);
    return r;
}

static enum mp_status add_pattern(const struct mp_measured *m, enum mp_pattern pattern,
                                  struct mp_replay_trace *trace)
{
    enum mp_status status = MP_OK;

    for (uint32_t t = 0; t < m->steps; t++) {
        for (uint32_t l = 0; l < m->layers && status == MP_OK; l++) {
            status = mp_replay_trace_begin(trace, l, true);
            for (uint32_t r = 0; r < m->top_k && status == MP_OK; r++)
                status = mp_replay_trace_choose(trace, expert_of(m, pattern, t, r));
        }
    }
    return status;
}

enum mp_status mp_measure_pattern(const struct mp_measured *shape, uint32_t patterns,
                                  uint32_t rounds, struct mp_replay_trace *trace_p)
{
    struct mp_replay_trace trace;
    enum mp_status status =
        mp_replay_trace_init(&trace, shape->layers, shape->experts, shape->top_k);

    if (status != MP_OK)
        return status;
    for (uint32_t l = 0; l < shape->layers; l++)
        trace.layer_bytes[l] = 1; /* nobody asks: the simulator has sizes of its own */
    for (unsigned i = 0; i < rounds * MP_PATTERN_COUNT && status == MP_OK; i++) {
        if (patterns & 1u << i / rounds)
            status = add_pattern(shape, (enum mp_pattern)(i / rounds), &trace);
    }
    if (status == MP_OK)
        status = mp_replay_trace_end(&trace);
    if (status != MP_OK) {
        mp_replay_trace_fini(&trace);
        return status;
    }
    *trace_p = trace;
    return MP_OK;
}
