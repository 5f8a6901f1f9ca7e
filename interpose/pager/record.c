/*
 * The routing trace and the timeline. Routers' weights are not seen from outside; each choice is
 * written with an equal share.
 */
#include "interpose/pager/paged.h"

#include <stdlib.h>
#include <string.h>

#include "policy/record/trace.h"
#include "vmm/base/error.h"
#include "vmm/output/timeline.h"

#define TIMELINE_EVENTS 200000
#define TOP_K_MAX 64

struct mp_paged_record {
    struct mp_trace_writer *trace; /* or NULL */
    uint32_t top_k;
    uint32_t step, layer;      /* of the layer before */
    uint32_t position, tokens; /* of the step: where it begins, how many */
    uint32_t experts[TOP_K_MAX];
    float weights[TOP_K_MAX];
};

static void open_trace(struct mp_paged *paged, struct mp_paged_record *record)
{
    struct mp_trace_shape shape = {
        .layers = paged->shape.layers,
        .experts = paged->shape.experts,
        .top_k = paged->shape.top_k,
        .expert_bytes = paged->plan.unit_bytes / (paged->shape.layers * paged->shape.experts),
    };
    const char *slash = strrchr(paged->path, '/');
    char path[PATH_MAX];

    if (paged->settings.files.trace[0] == '\0')
        return;
    snprintf(shape.model, sizeof(shape.model), "%s", slash != NULL ? slash + 1 : paged->path);
    mp_paged_expand(paged, paged->settings.files.trace, path);
    if (shape.top_k > TOP_K_MAX || mp_trace_create(path, &shape, &record->trace) != MP_OK) {
        mp_log_warn("preload", "no trace is written: %s", mp_error_last()->text);
        mp_error_clear();
        record->trace = NULL;
    }
    for (uint32_t r = 0; r < shape.top_k && r < TOP_K_MAX; r++)
        record->weights[r] = 1.0f / (float)shape.top_k;
}

struct mp_paged_record *mp_paged_record_create(struct mp_paged *paged)
{
    struct mp_paged_record *record = calloc(1, sizeof(*record));

    if (record == NULL)
        return NULL;
    record->top_k = paged->shape.top_k;
    record->layer = UINT32_MAX;
    open_trace(paged, record);
    return record;
}

void mp_paged_record_route(struct mp_paged *paged, const struct mp_routing *routing)
{
    struct mp_paged_record *record = paged->record;

    if (record == NULL || record->trace == NULL || routing->k != record->top_k)
        return;
    if (record->layer != UINT32_MAX && routing->layer <= record->layer) {
        record->step++;
        record->position += record->tokens;
    }
    record->layer = routing->layer;
    record->tokens = routing->tokens;
    for (uint32_t t = 0; t < routing->tokens; t++) {
        const struct mp_trace_row row = {
            .step = record->step,
            .layer = routing->layer,
            .position = record->position + t,
            .experts = record->experts,
            .weights = record->weights,
        };

        for (uint32_t r = 0; r < routing->k; r++)
            memcpy(&record->experts[r],
                   routing->ids + t * routing->token_stride + r * routing->rank_stride,
                   sizeof(record->experts[r]));
        mp_trace_write(record->trace, &row);
    }
}

void mp_paged_record_end(struct mp_paged *paged)
{
    struct mp_paged_record *record = paged->record;
    char path[PATH_MAX];

    if (record != NULL && record->trace != NULL && mp_trace_close(record->trace) != MP_OK)
        mp_log_failure("preload");
    free(record);
    paged->record = NULL;
    if (paged->timeline == NULL)
        return;
    mp_paged_expand(paged, paged->settings.files.timeline, path);
    if (mp_timeline_write(paged->timeline, path) != MP_OK)
        mp_log_failure("preload");
}

void mp_paged_timeline_create(struct mp_paged *paged)
{
    if (paged->settings.files.timeline[0] != '\0' &&
        mp_timeline_create(mp_clock_monotonic(), TIMELINE_EVENTS, &paged->timeline) != MP_OK) {
        mp_log_warn("preload", "no timeline is written: %s", mp_error_last()->text);
        mp_error_clear();
    }
}
