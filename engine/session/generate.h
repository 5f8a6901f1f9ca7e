#ifndef MP_GENERATE_H
#define MP_GENERATE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/forward/engine.h"
#include "engine/forward/sampler.h"
#include "engine/session/answer.h"
#include "engine/session/draft/drafts.h"

/*
 * Text generation: prompts of different lengths in one batch, prefill, then one token per sequence
 * and step until each has ended.
 *
 * Prompts are divided into batches of the engine's tokens_max; a decode step is one batch. The
 * result of a sequence does not depend on the others (see engine.h).
 */
#define MP_GENERATE_MAX 64u /* prompts */

struct mp_generate_config {
    struct mp_engine *engine;
    const struct mp_engine_config *engine_config;
    const struct mp_tokenizer *tokenizer; /* NULL: ids only, no text and no stop strings */
    bool new_text; /* of a chat's reply; else the prompt and what is generated are one text */
    struct mp_sampling sampling;
    uint32_t max_tokens; /* per sequence, >= 1 */
    bool ignore_eos;     /* for benchmarks */
    /* (max_tokens) ids that every sequence takes instead of sampling; or NULL. For comparisons. */
    const uint32_t *forced;
    const char *stops[MP_STOPS_MAX];
    uint32_t stop_count;
    /* Guesses of the tokens that follow, checked several at a time: the tokens are the same. Not
     * for models with recurrent layers, which cannot go back. Or NULL. */
    struct mp_drafts *drafts;
    struct mp_clock *clock;

    /* All optional. text: new text of a sequence, valid UTF-8. A nonzero return ends generation
     * with MP_ERR_IO (the output is gone). */
    int (*on_text)(void *ctx, uint32_t sequence, const char *text, size_t bytes);
    void (*on_prefill)(void *ctx, uint64_t done_tokens, uint64_t total_tokens);
    /* logits(vocab) from which the next token of `sequence` will be sampled. */
    enum mp_status (*on_logits)(void *ctx, uint32_t sequence, uint32_t step, const float *logits);
    /* Before each engine batch: the number of the step, 0 for all of prefill, then 1, 2, ... */
    void (*on_step)(void *ctx, uint32_t step, const struct mp_batch *batch);
    void *ctx;
};

struct mp_generate_stats {
    uint64_t prompt_tokens, generated_tokens;
    uint64_t prefill_ns;   /* start to the first token of every sequence */
    uint64_t decode_ns;    /* the rest */
    uint64_t first_tokens; /* of generated_tokens: chosen at the end of prefill */
    uint64_t decode_steps; /* batches after prefill */
    uint64_t decode_bytes; /* of experts, read in them */
    struct mp_drafts_stats drafts;
};

/* The argument checks of mp_generate() that need no engine: MP_ERR_CONFIG E_BATCH, E_PROMPT_EMPTY,
 * E_PROMPT_LONG, E_STOP_EMPTY, E_STOP_UTF8. */
enum mp_status mp_generate_check(const struct mp_generate_config *config,
                                 const struct mp_ids *prompts, uint32_t count) MP_MUST_CHECK;

/*
 * prompts    (count): at least one token each, fewer than the context
 * outputs    (count): zeroed by the caller; free with mp_outputs_free(). Filled also when an error
 *            ends the run: what was generated until then is there
 * stats_p    also filled after an error; an incomplete step is not counted
 */
enum mp_status mp_generate(const struct mp_generate_config *config, const struct mp_ids *prompts,
                           uint32_t count, struct mp_output *outputs,
                           struct mp_generate_stats *stats_p) MP_MUST_CHECK;

#endif
