/*
 * Prefill, then one token per sequence and step. Arithmetic and paging are the engine's; files and
 * output are the caller's.
 */
#include "engine/session/generate.h"

#include <stdlib.h>
#include <string.h>

#include "vmm/base/arena.h"
#include "vmm/base/checked.h"
#include "vmm/base/error.h"

struct sequence {
    const struct mp_ids *prompt;
    struct mp_output *output;
    struct mp_detok *detok;
    uint32_t position; /* of the next token to be processed */
    uint32_t next;     /* sampled, not processed yet */
    size_t shown;      /* bytes of the text that on_text has seen */
    size_t capacity;   /* of the text */
    bool done;
};

struct run {
    const struct mp_generate_config *config;
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

const char *mp_finish_name(enum mp_finish finish)
{
    static const char *const names[MP_FINISH_COUNT] = { "length", "eos", "stop", "context",
                                                        "interrupted" };

    return (unsigned)finish < MP_FINISH_COUNT ? names[finish] : "?";
}

static enum mp_status append_text(struct sequence *seq, const char *text, size_t bytes)
{
    struct mp_output *out = seq->output;
    uint64_t need;

    if (!mp_add_u64(out->text_bytes, bytes, &need) || need >= SIZE_MAX / 4)
        return mp_fail(MP_ERR_OVERFLOW, "E_TEXT", "the text is too long");
    if (out->text == NULL || need + 1 > seq->capacity) {
        const size_t capacity = 2 * (size_t)need + 64;
        char *grown = realloc(out->text, capacity);

        if (grown == NULL)
            return mp_fail_no_memory("the text", capacity);
        out->text = grown;
        seq->capacity = capacity;
    }
    memcpy(out->text + out->text_bytes, text, bytes);
    out->text_bytes = (size_t)need;
    out->text[need] = '\0';
    return MP_OK;
}

/* Cut the text at the first stop string, if one has appeared. */
static bool cut_at_stop(const struct mp_generate_config *config, struct sequence *seq)
{
    struct mp_output *out = seq->output;
    size_t first = out->text_bytes;
    bool found = false;

    for (uint32_t i = 0; i < config->stop_count; i++) {
        const char *at = out->text == NULL ? NULL
                                           : memmem(out->text, out->text_bytes, config->stops[i],
                                                    strlen(config->stops[i]));

        if (at != NULL && (size_t)(at - out->text) <= first) {
            first = (size_t)(at - out->text);
            found = true;
        }
    }
    if (found) {
        out->text_bytes = first;
        out->text[first] = '\0';
    }
    return found;
}

/* Bytes at the end of the text that could be the beginning of a stop string. */
static size_t held_back(const struct mp_generate_config *config, const struct mp_output *out)
{
    size_t most = 0;

    for (uint32_t i = 0; i < config->stop_count; i++) {
        const size_t bytes = strlen(config->stops[i]);

        for (size_t n = bytes - 1; n > most; n--) {
            if (n <= out->text_bytes &&
                !memcmp(out->text + out->text_bytes - n, config->stops[i], n)) {
                most = n;
                break;
            }
        }
    }
    return most;
}

/* Give on_text what is certain; all of it when the sequence has ended. */
static enum mp_status show_text(struct run *run, struct sequence *seq)
{
    const struct mp_generate_config *config = run->config;
    const struct mp_output *out = seq->output;
    const size_t end = out->text_bytes - (seq->done ? 0 : held_back(config, out));

    if (config->on_text == NULL || end <= seq->shown)
        return MP_OK;
    if (config->on_text(config->ctx, (uint32_t)(seq - run->sequences), out->text + seq->shown,
                        end - seq->shown) != 0)
        return mp_fail(MP_ERR_IO, "E_OUTPUT",
                       "cannot write the text; the output was closed or full");
    seq->shown = end;
    return MP_OK;
}

static bool is_eos(const struct mp_model_config *model, uint32_t token)
{
    for (uint32_t i = 0; i < model->eos_count; i++) {
        if (model->eos[i] == token)
            return true;
    }
    return false;
}

static enum mp_status append_id(struct mp_ids *ids, uint32_t token)
{
    if (ids->count == ids->capacity) {
        const size_t capacity = 2 * ids->capacity + 64;
        uint32_t *grown = realloc(ids->ids, capacity * sizeof(*grown));

        if (grown == NULL)
            return mp_fail_no_memory("token ids", capacity * sizeof(*grown));
        ids->ids = grown;
        ids->capacity = capacity;
    }
    ids->ids[ids->count++] = token;
    return MP_OK;
}

static void finish(struct sequence *seq, enum mp_finish why)
{
    seq->done = true;
    seq->output->finish = why;
}

/* A token was sampled: record it, decode it, and see whether the sequence ends. */
static enum mp_status accept(struct run *run, struct sequence *seq, uint32_t token)
{
    const struct mp_generate_config *config = run->config;
    const bool eos = !config->ignore_eos && is_eos(config->engine_config->model, token);
    enum mp_status status = append_id(&seq->output->ids, token);
    const char *text;
    size_t bytes;

    run->stats->generated_tokens++;
    seq->next = token;
    /* Models have more rows than the tokenizer has ids; such an id has no text. */
    if (status == MP_OK && seq->detok != NULL && !eos &&
        mp_tokenizer_content(config->tokenizer, token, &bytes) != NULL) {
        status = mp_detok_push(seq->detok, token, &text, &bytes);
        if (status == MP_OK)
            status = append_text(seq, text, bytes);
    }
    if (status != MP_OK)
        return status;

    if (eos)
        finish(seq, MP_FINISH_EOS);
    else if (seq->output->ids.count >= config->max_tokens)
        finish(seq, MP_FINISH_LENGTH);
    else if (seq->position >= config->engine_config->ctx)
        finish(seq, MP_FINISH_CTX);
    if (seq->done && seq->detok != NULL) {
        status = mp_detok_finish(seq->detok, &text, &bytes);
        if (status == MP_OK)
            status = append_text(seq, text, bytes);
    }
    if (status == MP_OK && cut_at_stop(config, seq))
        finish(seq, MP_FINISH_STOP);
    return status == MP_OK ? show_text(run, seq) : status;
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
    const size_t count = run->sequences[owner].output->ids.count;
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

    for (uint32_t t = 0; batch.sample != NULL && t < count; t++) {
        if (run->want[t])
            run->uniform[wanted++] = mp_sampler_uniform(run->sampler, run->owner[t]);
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
            if (run->sequences[s].done)
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
    for (uint32_t i = 0; i < config->stop_count; i++) {
        if (config->stops[i][0] == '\0')
            return mp_fail(MP_ERR_CONFIG, "E_STOP_EMPTY", "a stop string is empty");
        /* Found in the middle of a character it would leave half of one. */
        if (!mp_is_utf8(config->stops[i], strlen(config->stops[i])))
            return mp_fail(MP_ERR_CONFIG, "E_STOP_UTF8",
                           "stop string %u is not UTF-8, so no text can have it", i);
    }
    return MP_OK;
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
    const unsigned flags = MP_DECODE_SKIP_SPECIAL | (config->new_text ? 0 : MP_DECODE_CONTINUES);
    struct mp_arena arena = { 0 };
    enum mp_status status;

    take_arrays(run, &arena);
    status = mp_arena_open(&arena, "the batch");
    if (status != MP_OK)
        return status;
    take_arrays(run, &arena);
    run->block = arena.block;
    status = mp_sampler_create(&config->sampling, config->engine_config->model->vocab, run->count,
                               &run->sampler);
    for (uint32_t s = 0; s < run->count && status == MP_OK; s++) {
        struct sequence *seq = &run->sequences[s];

        seq->prompt = &prompts[s];
        seq->output = &outputs[s];
        run->stats->prompt_tokens += prompts[s].count;
        if (config->tokenizer != NULL) {
            status = mp_detok_create(config->tokenizer, flags, &seq->detok);
            if (status == MP_OK)
                status = append_text(seq, "", 0);
        }
    }
    return status;
}

static void run_close(struct run *run)
{
    for (uint32_t s = 0; run->block != NULL && s < run->count; s++)
        mp_detok_destroy(run->sequences[s].detok);
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
        if (!run.sequences[s].done)
            outputs[s].finish = MP_FINISH_INTERRUPTED;
    }
    run_close(&run);
    return status;
}

void mp_outputs_free(struct mp_output *outputs, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        mp_ids_free(&outputs[i].ids);
        free(outputs[i].text);
        memset(&outputs[i], 0, sizeof(outputs[i]));
    }
}
