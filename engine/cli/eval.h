#ifndef MP_EVAL_H
#define MP_EVAL_H

#include "engine/cli/commands.h"

/*
 * The measurements of `moepager eval`: a model processes a text by teacher forcing
 * (engine/session/teacher_forcing.h), once, or several times with different policies.
 */
struct mp_eval {
    const struct mp_args *args;
    const struct mp_settings *settings; /* --sweep changes its groups */
    struct mp_clock *clock;
    struct mp_session session;
    struct mp_progress_bar bar;
    struct mp_ids ids;
    char *text; /* owned */
    size_t read_bytes;
    uint64_t text_bytes;          /* covered by the tokens */
    struct mp_memory_plan memory; /* of the model, also while the reference is open */
    uint32_t vocab;               /* the same */
    uint32_t streams;             /* number of windows in parallel */
};

/* Read and encode --text, then open the session for `streams` parallel windows. The text and the
 * window are checked before weights are read. */
enum mp_status mp_eval_open(struct mp_eval *eval, uint32_t streams) MP_MUST_CHECK;

/* Close the model and open --reference instead, for the same tokens. MP_ERR_CONFIG E_REFERENCE: its
 * vocabulary has another size. */
enum mp_status mp_eval_open_reference(struct mp_eval *eval) MP_MUST_CHECK;

/* Actual number of parallel windows. */
uint32_t mp_eval_batch(const struct mp_eval *eval);

/* Teacher forcing of the whole text with the session's engine, under a progress bar. on_batch may
 * be NULL: no logits are computed then. */
typedef enum mp_status mp_eval_batch_fn(void *ctx, const struct mp_batch *batch,
                                        const float *logits, const uint32_t *next);
enum mp_status mp_eval_run(struct mp_eval *eval, const char *label, mp_eval_batch_fn *on_batch,
                           void *ctx) MP_MUST_CHECK;

/* The line that begins a report, and the members that begin the JSON object. */
void mp_eval_print_head(const struct mp_eval *eval);
void mp_eval_json_head(const struct mp_eval *eval, struct mp_json_out *json);

/* Each opens, runs and prints. After an interruption it prints what is complete. */
enum mp_status mp_eval_perplexity(struct mp_eval *eval) MP_MUST_CHECK;
enum mp_status mp_eval_divergence(struct mp_eval *eval) MP_MUST_CHECK;
enum mp_status mp_eval_predictors(struct mp_eval *eval) MP_MUST_CHECK;
enum mp_status mp_eval_lookahead(struct mp_eval *eval) MP_MUST_CHECK;

#endif
