/*
 * Prefill, then one token per sequence and step, or several where a draft was right. Arithmetic and
 * paging are the engine's; files and output are the caller's.
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
    uint32_t accepted; /* guesses in this step */
    bool wrong;        /* one of them was; what is behind it does not count */
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
    uint32_t *uniform, *sampled;        // (wanted tokens): where the device samples
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
    if (config->drafts != NULL)
        mp_drafts_push(config->drafts, (uint32_t)(seq - run->sequences), token);
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

/* The token behind row t is known: is the guess in the next row, if there is one, right? */
static void compare_guess(const struct run *run, uint32_t t, uint32_t count, struct sequence *seq)
{
    if (t + 1 == count || run->owner[t + 1] != run->owner[t])
        return;
    seq->wrong = seq->answer.done || run->token[t + 1] != seq->next;
    seq->accepted += !seq->wrong;
}

/* What the row's sequence has become; `wanted`: the number of the row among the wanted ones. */
static enum mp_status take_row(struct run *run, uint32_t t, uint32_t count, uint32_t wanted,
                               const float *logits)
{
    struct sequence *seq = &run->sequences[run->owner[t]];
    enum mp_status status;
    uint32_t token;

    if (seq->wrong) {
        if (device_samples(run->config))
            mp_sampler_rewind(run->sampler, run->owner[t], 1);
        return MP_OK;
    }
    seq->position = run->position[t] + 1;
    if (!run->want[t])
        return MP_OK;
    status = choose(run, t, wanted, logits, &token);
    if (status == MP_OK)
        status = accept(run, seq, token);
    compare_guess(run, t, count, seq);
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
    if (status == MP_OK && config->drafts != NULL)
        status = mp_drafts_seen(config->drafts, config->engine, &batch);
    for (uint32_t t = 0; t < count && status == MP_OK; t++) {
        status = take_row(run, t, count, wanted, logits);
        wanted += run->want[t];
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

/* A row of the next step. */
static void add_row(struct run *run, uint32_t *count, uint32_t s, uint32_t ahead, uint32_t token)
{
    run->token[*count] = token;
    run->owner[*count] = s;
    run->position[*count] = run->sequences[s].position + ahead;
    run->want[(*count)++] = 1;
}

/* The last token of each sequence, and behind it the guesses to check; 0: all have ended. */
static uint32_t collect_step(struct run *run)
{
    uint32_t count = 0;

    for (uint32_t s = 0; s < run->count; s++) {
        struct sequence *seq = &run->sequences[s];
        const struct mp_draft *draft =
            run->config->drafts != NULL ? mp_drafts_of(run->config->drafts, s) : NULL;

        if (seq->answer.done)
            continue;
        seq->wrong = false;
        seq->accepted = 0;
        add_row(run, &count, s, 0, seq->next);
        for (uint32_t i = 0; draft != NULL && i < draft->count; i++)
            add_row(run, &count, s, i + 1, draft->token[i]);
    }
    return count;
}

/* A guess takes a position, and a token of the sequence's length. */
static uint32_t room_of(const struct run *run, const struct sequence *seq)
{
    const uint64_t length = run->config->max_tokens - seq->answer.output->ids.count - 1;
    const uint64_t positions = run->config->engine_config->ctx - seq->position - 1;

    return (uint32_t)(length < positions ? length : positions);
}

static enum mp_status plan_drafts(struct run *run)
{
    const uint32_t wanted_max = mp_engine_wanted_max(run->config->engine_config);
    uint32_t sequence[MP_GENERATE_MAX], room[MP_GENERATE_MAX], count = 0;

    for (uint32_t s = 0; s < run->count; s++) {
        if (run->sequences[s].answer.done)
            continue;
        room[count] = room_of(run, &run->sequences[s]);
        sequence[count++] = s;
    }
    return count == 0
               ? MP_OK
               : mp_drafts_plan(run->config->drafts, sequence, room, count, wanted_max - count);
}

static void note_drafts(struct run *run, uint64_t start_ns)
{
    struct mp_drafts *drafts = run->config->drafts;

    for (uint32_t s = 0; s < run->count; s++) {
        if (mp_drafts_of(drafts, s)->count > 0)
            mp_drafts_note(drafts, s, run->sequences[s].accepted);
    }
    mp_drafts_end(drafts, mp_clock_now_ns(run->config->clock) - start_ns);
}

static enum mp_status decode(struct run *run)
{
    struct mp_drafts *drafts = run->config->drafts;

    for (;;) {
        const uint64_t start_ns = drafts != NULL ? mp_clock_now_ns(run->config->clock) : 0;
        enum mp_status status = drafts != NULL ? plan_drafts(run) : MP_OK;
        uint32_t count = 0;

        if (status == MP_OK)
            count = collect_step(run);
        if (count == 0)
            return status;
        run->step++;
        if (drafts != NULL) {
            const struct mp_drafts_expected *next = mp_drafts_expected(drafts);

            mp_engine_expect(run->config->engine, next->token, next->chance, next->count);
        }
        status = run_batch(run, count);
        if (status != MP_OK)
            return status;
        if (drafts != NULL)
            note_drafts(run, start_ns);
        run->stats->decode_steps++;
    }
}

enum mp_status mp_generate_check(const struct mp_generate_config *config,
                                 const struct mp_ids *prompts, uint32_t count)
{
    if (count == 0 || count > config->engine_config->sequences || count > MP_GENERATE_MAX)
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
    const size_t wanted_max = mp_engine_wanted_max(run->config->engine_config);

    run->sequences = mp_arena_take(arena, run->count, sizeof(*run->sequences));
    run->token = mp_arena_take(arena, tokens_max, sizeof(uint32_t));
    run->owner = mp_arena_take(arena, tokens_max, sizeof(uint32_t));
    run->position = mp_arena_take(arena, tokens_max, sizeof(uint32_t));
    run->want = mp_arena_take(arena, tokens_max, 1);
    run->uniform = mp_arena_take(arena, wanted_max, sizeof(uint32_t));
    run->sampled = mp_arena_take(arena, wanted_max, sizeof(uint32_t));
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
    if (config->drafts != NULL)
        mp_drafts_begin(config->drafts);
    for (uint32_t s = 0; s < run->count && status == MP_OK; s++) {
        struct sequence *seq = &run->sequences[s];

        for (size_t i = 0; config->drafts != NULL && i < prompts[s].count; i++)
            mp_drafts_push(config->drafts, s, prompts[s].ids[i]);
        seq->prompt = &prompts[s];
        run->stats->prompt_tokens += prompts[s].count;
        status = mp_answer_open(&run->rules, &outputs[s], &seq->answer);
    }
    return status;
}

static uint64_t bytes_read(const struct mp_generate_config *config)
{
    const struct mp_counters *counters = mp_engine_counters(config->engine);

    return counters->load_bytes + counters->prefetch_bytes;
}

/* The stats of decoding, which began when bytes_read() was `before`. */
static void fill_stats(const struct run *run, uint64_t first_ns, uint64_t before)
{
    const struct mp_generate_config *config = run->config;

    run->stats->decode_ns = mp_clock_now_ns(config->clock) - first_ns;
    run->stats->decode_bytes = bytes_read(config) - before;
    if (config->drafts != NULL)
        run->stats->drafts = *mp_drafts_stats(config->drafts);
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
    uint64_t start_ns, first_ns, before;

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
    before = bytes_read(config);
    if (status == MP_OK)
        status = decode(&run);
    fill_stats(&run, first_ns, before);
    for (uint32_t s = 0; status == MP_ERR_CANCELED && s < count; s++) {
        if (!run.sequences[s].answer.done)
            outputs[s].finish = MP_FINISH_INTERRUPTED;
    }
    run_close(&run);
    return status;
}
