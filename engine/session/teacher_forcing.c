/*
 * Runs a given text through a model, whatever its logits are. The caller processes the logits.
 */
#include "engine/session/teacher_forcing.h"

#define STREAMS_MAX 64

struct rows {
    uint32_t token[STREAMS_MAX], sequence[STREAMS_MAX], position[STREAMS_MAX], next[STREAMS_MAX];
    uint8_t want[STREAMS_MAX];
    uint32_t count;
};

/* The tokens at `position` of the windows [first, first + streams). */
static void collect(const struct mp_teacher_forcing *run, size_t first, uint32_t position,
                    struct rows *rows)
{
    rows->count = 0;
    for (uint32_t s = 0; s < run->streams; s++) {
        const size_t at = (first + s) * run->window + position;
        const bool last = position + 1 == run->window || at + 1 >= run->ids->count;
        const uint32_t i = rows->count;

        if (at >= run->ids->count)
            break;
        rows->token[i] = run->ids->ids[at];
        rows->sequence[i] = s;
        rows->position[i] = position;
        rows->want[i] = run->logits && !last;
        rows->next[i] = last ? 0 : run->ids->ids[at + 1];
        rows->count++;
    }
}

uint32_t mp_teacher_forcing_streams(const struct mp_ids *ids, uint64_t window, uint32_t streams)
{
    const uint64_t windows = ids->count / window + (ids->count % window != 0);

    return windows < streams ? (uint32_t)windows : streams;
}

enum mp_status mp_teacher_force(const struct mp_teacher_forcing *run)
{
    const size_t total = run->ids->count;
    uint64_t done = 0;
    struct rows rows;

    for (size_t first = 0; first * run->window < total; first += run->streams) {
        for (uint32_t position = 0; position < run->window; position++) {
            const struct mp_batch batch = {
                .token = rows.token,
                .sequence = rows.sequence,
                .position = rows.position,
                .want = rows.want,
            };
            struct mp_batch filled = batch;
            const float *logits;
            enum mp_status status;

            collect(run, first, position, &rows);
            if (rows.count == 0)
                break;
            filled.count = rows.count;
            status = mp_forward(run->engine, &filled, &logits);
            if (status == MP_OK && run->on_batch != NULL)
                status = run->on_batch(run->ctx, &filled, logits, rows.next);
            if (status != MP_OK)
                return status;
            done += rows.count;
            if (run->on_progress != NULL)
                run->on_progress(run->ctx, done, total);
        }
    }
    return MP_OK;
}
