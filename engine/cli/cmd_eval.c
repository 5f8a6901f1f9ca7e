/*
 * `moepager eval`: selects the measurement and has their common part. Each measurement is a file
 * eval_*.c.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/cli/eval.h"
#include "engine/session/teacher_forcing.h"
#include "vmm/base/error.h"
#include "vmm/output/json_out.h"

static enum mp_status encode_text(void *ctx)
{
    struct mp_eval *eval = ctx;

    return mp_encode_text(eval->args, &eval->session, eval->text, eval->read_bytes, &eval->ids,
                          &eval->text_bytes);
}

/* The reference gets the model's tokens: before its weights are read, can it? */
static enum mp_status check_reference(void *ctx)
{
    const struct mp_eval *eval = ctx;
    const uint32_t vocab = eval->session.model.vocab, context = eval->session.engine_config.ctx;
    char quoted[MP_QUOTE_BYTES];

    mp_quote(quoted, eval->args->reference, strlen(eval->args->reference));
    if (vocab != eval->vocab)
        return mp_fail(MP_ERR_CONFIG, "E_REFERENCE",
                       "--reference '%s' has %u tokens in its vocabulary, the model has %u; give "
                       "the model that this one was made of",
                       quoted, vocab, eval->vocab);
    if (eval->args->window > context)
        return mp_fail(MP_ERR_CONFIG, "E_CTX",
                       "windows of %llu tokens do not fit into the context of '%s', %u; lower "
                       "--window",
                       (unsigned long long)eval->args->window, quoted, context);
    return MP_OK;
}

static enum mp_status open_model(struct mp_eval *eval, const char *model, bool encode)
{
    const struct mp_progress progress = mp_loading_progress(&eval->bar);
    const struct mp_session_config config = {
        .model = model,
        .sequences = eval->streams,
        .tokenizer = encode,
        .before_load = encode ? encode_text : check_reference,
        .before_load_ctx = eval,
        .progress = &progress,
        .clock = eval->clock,
        .cancel = &mp_interrupted,
        .draft_model = eval->args->tokens_ahead,
        .probe = !eval->args->predictors, /* who computes an expert does not change predictions */
    };
    enum mp_status status;

    mp_progress_bar_begin(&eval->bar, "loading", NULL, eval->clock);
    status = mp_session_open(eval->settings, &config, &eval->session);
    mp_progress_bar_end(&eval->bar);
    return status;
}

enum mp_status mp_eval_open(struct mp_eval *eval, uint32_t streams)
{
    enum mp_status status;

    eval->streams = streams;
    status = open_model(eval, eval->args->model, true);
    eval->memory = eval->session.memory;
    eval->vocab = eval->session.model.vocab;
    return status;
}

enum mp_status mp_eval_open_reference(struct mp_eval *eval)
{
    mp_session_close(&eval->session);
    return open_model(eval, eval->args->reference, false);
}

uint32_t mp_eval_batch(const struct mp_eval *eval)
{
    return mp_teacher_forcing_streams(&eval->ids, eval->args->window, eval->streams);
}

struct run {
    struct mp_eval *eval;
    mp_eval_batch_fn *on_batch;
    void *ctx;
};

static enum mp_status on_batch(void *ctx, const struct mp_batch *batch, const float *logits,
                               const uint32_t *next)
{
    const struct run *run = ctx;

    return run->on_batch(run->ctx, batch, logits, next);
}

static void on_progress(void *ctx, uint64_t done_tokens, uint64_t total_tokens)
{
    const struct run *run = ctx;

    mp_progress_bar_show(&run->eval->bar, done_tokens, total_tokens);
}

enum mp_status mp_eval_run(struct mp_eval *eval, const char *label, mp_eval_batch_fn *function,
                           void *ctx)
{
    struct run run = { .eval = eval, .on_batch = function, .ctx = ctx };
    const struct mp_teacher_forcing forcing = {
        .engine = eval->session.engine,
        .ids = &eval->ids,
        .window = (uint32_t)eval->args->window,
        .streams = eval->streams,
        .logits = function != NULL,
        .on_batch = function != NULL ? on_batch : NULL,
        .on_progress = on_progress,
        .ctx = &run,
    };
    enum mp_status status;

    mp_progress_bar_begin(&eval->bar, label, "tokens", eval->clock);
    status = mp_teacher_force(&forcing);
    mp_progress_bar_end(&eval->bar);
    return status;
}

void mp_eval_print_head(const struct mp_eval *eval)
{
    printf("%zu tokens in windows of %llu, %u at once; experts in RAM: %.0f %%\n", eval->ids.count,
           (unsigned long long)eval->args->window, mp_eval_batch(eval),
           100.0 * (double)eval->memory.budget_bytes / (double)eval->memory.expert_bytes);
}

void mp_eval_json_head(const struct mp_eval *eval, struct mp_json_out *json)
{
    mp_json_put_u64(json, "tokens", eval->ids.count);
    mp_json_put_u64(json, "text_bytes", eval->text_bytes);
    mp_json_put_u64(json, "window", eval->args->window);
    mp_json_put_u64(json, "batch", mp_eval_batch(eval));
    mp_json_put_u64(json, "budget_bytes", eval->memory.budget_bytes);
}

static enum mp_status check_args(const struct mp_args *args)
{
    if (args->perplexity + args->divergence + args->predictors + args->tokens_ahead != 1)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "need exactly one of --perplexity, --divergence, --predictors, "
                       "--tokens-ahead");
    if (args->sweep != NULL && !args->perplexity)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE", "--sweep needs --perplexity");
    if (args->reference != NULL && !args->divergence)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE", "--reference needs --divergence");
    return mp_require_model(args);
}

enum mp_status mp_cmd_eval(const struct mp_args *args, const struct mp_settings *settings)
{
    struct mp_eval eval = { .args = args, .settings = settings, .clock = mp_clock_monotonic() };
    enum mp_status status = check_args(args);

    if (status == MP_OK)
        status = mp_require_text(args, &eval.text, &eval.read_bytes);
    if (status == MP_OK)
        status = args->perplexity     ? mp_eval_perplexity(&eval)
                 : args->divergence   ? mp_eval_divergence(&eval)
                 : args->tokens_ahead ? mp_eval_lookahead(&eval)
                                      : mp_eval_predictors(&eval);
    mp_session_close(&eval.session);
    mp_ids_free(&eval.ids);
    free(eval.text);
    return status;
}
