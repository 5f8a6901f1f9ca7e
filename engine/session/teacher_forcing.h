#ifndef MP_TEACHER_FORCING_H
#define MP_TEACHER_FORCING_H

#include "engine/forward/engine.h"
#include "engine/text/tokenizer.h"

/*
 * Runs a given text through a model, token by token: for calibration and perplexity.
 *
 * The text is divided into independent windows of equal length; `streams` of them run in parallel,
 * and each batch has one token of each. So batches and residency are those of decoding.
 */
struct mp_teacher_forcing {
    struct mp_engine *engine;
    const struct mp_ids *ids; /* at least 2 */
    uint32_t window;          /* 2..ctx */
    uint32_t streams;         /* 1..sequences and tokens_max */
    bool logits;              /* of every token that has a next one in its window */

    /* Optional, both. logits: a row for each `want` of the batch; next(count): the token that
     * follows in the text, where want is 1. */
    enum mp_status (*on_batch)(void *ctx, const struct mp_batch *batch, const float *logits,
                               const uint32_t *next);
    void (*on_progress)(void *ctx, uint64_t done_tokens, uint64_t total_tokens);
    void *ctx;
};

/* Actual number of parallel windows: a short text has fewer than `streams`. */
uint32_t mp_teacher_forcing_streams(const struct mp_ids *ids, uint64_t window, uint32_t streams);

enum mp_status mp_teacher_force(const struct mp_teacher_forcing *run) MP_MUST_CHECK;

#endif
