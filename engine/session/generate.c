/*
 * Prefill, then one token per sequence and step. Arithmetic and paging are the engine's; files and
 * output are the caller's.
 */
#include "engine/session/generate.h"

#include <stdlib.h>
#include <string.h>

#include "vmm/base/arena.h"
#include "vmm/base/error.h"

struct sequence {
    const struct mp_ids *prompt;
    struct mp_answer answer;
    uint32_t position; /* of the next token to be processed */
    uint32_t next;     /* sampled, not processed yet */
};

struct run {
    const struct mp_generate_config *config;
    struct mp_answer_rules rules;
    struct mp_sampler *sampler;
    struct sequence *sequences;
    uint32_t count;
    uint32_t step;

    uint32_t *token, *owner, *position; // (tokens_max)
    uint8_t *want;                      // (tokens_max)
    uint32_t *uniform, *sampled;        // (count): where the device samples
    void *block;                        /* of all these arrays */
    struct mp_generate_stats *stats;
};

/* A token was sampled: record it, decode it, show its text, and see whether the sequence ends. */
static enum mp_status accept(struct run *run, struct sequence *seq, uint32_t token)
{
    const struct mp_generate_config *config = run->config;
    const char *text;
    size_t bytes;
    enum mp_status status = mp_answer_accept(&seq->answer, token, seq->position, &text, &bytes);

    run->stats->generated_tokens++;
    seq->next = token;
    if (status != MP_OK || bytes == 0 || config->on_text == NULL)
        return status;
    if (config->on_text(config->ctx, (uint32_t)(seq - run->sequences), text, bytes) != 0)
        return mp_fail(MP_ERR_IO, "E_OUTPUT",
                       "cannot write the text; the output was closed or full");
    return MP_OK;
}

/* Does the device sample? Not where somebody looks at logits, or gives the tokens. */
static bool device_samples(const struct mp_generate_config *config)
{
    return mp_engine_can_sample(config->engine) && config->on_logits == NULL &&
           config->forced == NULL;
}

/* The token behind row `t` of a batch, the i-th wanted one. */
static enum mp_status choose(struct run *run, uint32_t t, uint32_t i, const float *logits,
                             uint32_t *token_p)
{
    const struct mp_generate_config *config = run->config;
    const uint32_t owner = run->owner[t];
    const size_t count = run->sequences[owner].answer.output->ids.count;
    enum mp_status status = MP_OK;

    if (device_samples(config)) {
        *token_p = run->sampled[i];
        return *token_p == UINT32_MAX ? mp_sampler_refuse(owner) : MP_OK;
    }
    logits += (size_t)i * config->engine_config->model->vocab;
    if (config->on_logits != NULL)
        status = config->on_logits(config->ctx, owner, (uint32_t)count, logits);
    if (config->forced != NULL)
        *token_p = config->forced[count];
    else if (status == MP_OK)
        status = mp_sampler_pick(run->sampler, owner, logits, token_p);
    return status;
}

/* Run one batch and accept a token for each wanted row. */
static enum mp_status run_batch(struct run *run, uint32_t count)
{
    const struct mp_generate_config *config = run->config;
    const struct mp_sample sample = { &config->sampling, run->uniform, run->sampled };
    const struct mp_batch batch = {
        .count = count,
        .token = run->token,
        .sequence = run->owner,
        .position = run->position,
        .want = run->want,
        .sample = device_samples(config) ? &sample : NULL,
    };
    const float *logits = NULL;
    uint32_t wanted = 0;
    enum mp_status status;

    if (batch.sample != NULL) {
        for (uint32_t t = 0; t < count; t++) {
            if (run->want[t])
                run->uniform[wanted++] = mp_sampler_uniform(run->sampler, run->owner[t]);
        }
    }
    wanted = 0;

    if (config->on_step != NULL)
        config->on_step(config->ctx, run->step, &batch);
    status = mp_forward(config->engine, &batch, &logits);
    for (uint32_t t = 0; t < count && status == MP_OK; t++) {
        struct sequence *seq = &run->sequences[run->owner[t]];
        uint32_t token;

        seq->position = run->position[t] + 1;
        if (!run->want[t])
            continue;
        status = choose(run, t, wanted++, logits, &token);
        if (status == MP_OK)
            status = accept(run, seq, token);
    }
    return status;
}

/* All prompts, in batches as full as they go; the last token of each wants logits. */
static enum mp_status prefill(struct run *run)
{
    const uint32_t tokens_max = run->config->engine_config->tokens_max;
    uint64_t done = 0;
    uint32_t count = 0;

    for (uint32_t s = 0; s < run->count; s++) {
        const struct mp_ids *prompt = run->sequences[s].prompt;

        for (size_t i = 0; i < prompt->count; i++) {
            const bool last = i + 1 == prompt->count;
            enum mp_status status;

            run->token[count] = prompt->ids[i];
            run->owner[count] = s;
            run->position[count] = (uint32_t)i;
            run->want[count++] = last;
            if (count < tokens_max && !(last && s + 1 == run->count))
                continue;
            status = run_batch(run, count);
            if (status != MP_OK)
                return status;
            done += count;
            count = 0;
            if (run->config->on_prefill != NULL)
                run->config->on_prefill(run->config->ctx, done, run->stats->prompt_tokens);
        }
    }
    return MP_OK;
}

static enum mp_status decode(struct run *run)
{
    for (;;) {
        uint32_t count = 0;
        enum mp_status status;

        for (uint32_t s = 0; s < run->count; s++) {
            if (run->sequences[s].answer.done)
                continue;
            run->token[count] = run->sequences[s].next;
            run->owner[count] = s;
            run->position[count] = run->sequences[s].position;
            run->want[count++] = 1;
        }
        if (count == 0)
            return MP_OK;
        run->step++;
        status = run_batch(run, count);
        if (status != MP_OK)
            return status;
        run->stats->decode_steps++;
    }
}

enum mp_status mp_generate_check(const struct mp_generate_config *config,
                                 const struct mp_ids *prompts, uint32_t count)
{
    if (count == 0 || count > config->engine_config->sequences)
        return mp_fail(MP_ERR_CONFIG, "E_BATCH", "%u prompts, the engine was made for 1 to %u",
                       count, config->engine_config->sequences);
    for (uint32_t s = 0; s < count; s++) {
        if (prompts[s].count == 0)
            return mp_fail(MP_ERR_CONFIG, "E_PROMPT_EMPTY",
                           "prompt %u is empty; give at least one token", s);
        if (prompts[s].count >= config->engine_config->ctx)
            return mp_fail(MP_ERR_CONFIG, "E_PROMPT_LONG",
                           "prompt %u has %zu tokens, the context holds %u%s", s, prompts[s].count,
                           config->engine_config->ctx,
                           mp_engine_ctx_can_grow(config->engine_config)
                               ? "; raise --ctx or shorten the prompt"
                               : ", as many as the model was made for; shorten the prompt");
    }
    return mp_stops_check(config->stops, config->stop_count);
}

static void take_arrays(struct run *run, struct mp_arena *arena)
{
    const size_t tokens_max = run->config->engine_config->tokens_max;

    run->sequences = mp_arena_take(arena, run->count, sizeof(*run->sequences));
    run->token = mp_arena_take(arena, tokens_max, sizeof(uint32_t));
    run->owner = mp_arena_take(arena, tokens_max, sizeof(uint32_t));
    run->position = mp_arena_take(arena, tokens_max, sizeof(uint32_t));
    run->want = mp_arena_take(arena, tokens_max, 1);
    run->uniform = mp_arena_take(arena, run->count, sizeof(uint32_t));
    run->sampled = mp_arena_take(arena, run->count, sizeof(uint32_t));
}

static enum mp_status run_open(struct run *run, const struct mp_ids *prompts,
                               struct mp_output *outputs)
{
    const struct mp_generate_config *config = run->config;
    struct mp_arena arena = { 0 };
    enum mp_status status;

    take_arrays(run, &arena);
    status = mp_arena_open(&arena, "the batch");
    if (status != MP_OK)
        return status;
    take_arrays(run, &arena);
    run->block = arena.block;
    run->rules = (struct mp_answer_rules){
        .model = config->engine_config->model,
        .tokenizer = config->tokenizer,
        .new_text = config->new_text,
        .ignore_eos = config->ignore_eos,
        .max_tokens = config->max_tokens,
        .ctx = config->engine_config->ctx,
        .stops = config->stops,
        .stop_count = config->stop_count,
    };
    status = mp_sampler_create(&config->sampling, config->engine_config->model->vocab, run->count,
                               &run->sampler);
    for (uint32_t s = 0; s < run->count && status == MP_OK; s++) {
        struct sequence *seq = &run->sequences[s];

        seq->prompt = &prompts[s];
        run->stats->prompt_tokens += prompts[s].count;
        status = mp_answer_open(&run->rules, &outputs[s], &seq->answer);
    }
    return status;
}

static void run_close(struct run *run)
{
    if (run->block != NULL) {
        for (uint32_t s = 0; s < run->count; s++)
            mp_answer_close(&run->sequences[s].answer);
    }
    mp_sampler_destroy(run->sampler);
    free(run->block);
}

enum mp_status mp_generate(const struct mp_generate_config *config, const struct mp_ids *prompts,
                           uint32_t count, struct mp_output *outputs,
                           struct mp_generate_stats *stats_p)
{
    struct run run = { .config = config, .count = count, .stats = stats_p };
    enum mp_status status = mp_generate_check(config, prompts, count);
    uint64_t start_ns, first_ns;

    memset(stats_p, 0, sizeof(*stats_p));
    if (status != MP_OK)
        return status;
    status = run_open(&run, prompts, outputs);
    start_ns = mp_clock_now_ns(config->clock);
    if (status == MP_OK)
        status = prefill(&run);
    first_ns = mp_clock_now_ns(config->clock);
    stats_p->prefill_ns = first_ns - start_ns;
    stats_p->first_tokens = stats_p->generated_tokens;
    if (status == MP_OK)
        status = decode(&run);
    stats_p->decode_ns = mp_clock_now_ns(config->clock) - first_ns;
    for (uint32_t s = 0; status == MP_ERR_CANCELED && s < count; s++) {
        if (!run.sequences[s].answer.done)
            outputs[s].finish = MP_FINISH_INTERRUPTED;
    }
    run_close(&run);
    return status;
}
