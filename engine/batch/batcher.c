/*
 * The list of jobs and the batch of each step. What a job is made of is batcher_job.c's, which
 * sequence it runs on batcher_slots.c's; arithmetic and paging are the engine's.
 */
#include "engine/batch/batcher_int.h"

#include <stdlib.h>
#include <string.h>

#include "vmm/base/arena.h"
#include "vmm/base/error.h"

static void take_arrays(struct mp_batcher *b, struct mp_arena *arena)
{
    const struct mp_engine_config *engine = b->config.engine_config;
    uint32_t *ids;

    b->slots = mp_arena_take(arena, b->sequences, sizeof(*b->slots));
    ids = mp_arena_take(arena, (uint64_t)b->sequences * engine->ctx, sizeof(uint32_t));
    b->token = mp_arena_take(arena, engine->tokens_max, sizeof(uint32_t));
    b->owner = mp_arena_take(arena, engine->tokens_max, sizeof(uint32_t));
    b->position = mp_arena_take(arena, engine->tokens_max, sizeof(uint32_t));
    b->want = mp_arena_take(arena, engine->tokens_max, 1);
    b->logits = mp_arena_take(arena, engine->model->vocab, sizeof(float));
    for (uint32_t s = 0; b->slots != NULL && s < b->sequences; s++)
        b->slots[s].ids = ids + (size_t)s * engine->ctx;
}

static enum mp_status open_prefixes(struct mp_batcher *b)
{
    const struct mp_batcher_config *c = &b->config;
    const uint64_t bytes = mp_engine_kv_bytes(c->engine, MP_PREFIX_TOKENS);

    if (bytes == 0 || c->prefix_step_bytes == 0)
        return MP_OK;
    return mp_prefix_store_create(bytes, c->prefix_bytes, c->prefix_step_bytes, &b->prefixes);
}

enum mp_status mp_batcher_create(const struct mp_batcher_config *config,
                                 struct mp_batcher **batcher_p)
{
    struct mp_batcher *b = calloc(1, sizeof(*b));
    struct mp_arena arena = { 0 };
    enum mp_status status;

    if (b == NULL)
        return mp_fail_no_memory("a batcher", sizeof(*b));
    b->config = *config;
    b->sequences = config->engine_config->sequences;
    b->last = &b->jobs;
    b->kv_budget_bytes = b->kv_most_bytes = UINT64_MAX;
    b->positions_max = config->engine_config->ctx;
    take_arrays(b, &arena);
    status = open_prefixes(b);
    if (status == MP_OK)
        status = mp_arena_open(&arena, "a batcher");
    if (status != MP_OK) {
        mp_prefix_store_destroy(b->prefixes);
        free(b);
        return status;
    }
    take_arrays(b, &arena);
    b->block = arena.block;
    *batcher_p = b;
    return MP_OK;
}

/* Out of the list and off its sequence. */
static void unlink_job(struct mp_batcher *b, struct mp_job *job)
{
    struct mp_job **at = &b->jobs;

    while (*at != job)
        at = &(*at)->next;
    *at = job->next;
    if (b->last == &job->next)
        b->last = at;
    if (job->slot != NULL)
        mp_slots_leave(b, job);
    else
        b->stats.waiting--;
    b->stats.kv_wanted_bytes = b->stats.paused = 0; /* others may have room now */
}

void mp_batcher_destroy(struct mp_batcher *b)
{
    if (b == NULL)
        return;
    while (b->jobs != NULL)
        mp_batcher_cancel(b, b->jobs);
    mp_prefix_store_destroy(b->prefixes);
    free(b->block);
    free(b);
}

enum mp_status mp_batcher_submit(struct mp_batcher *b, const struct mp_job_config *config,
                                 struct mp_job **job_p)
{
    struct mp_job *job;
    enum mp_status status = mp_job_create(b, config, &job);

    if (status != MP_OK)
        return status;
    *b->last = job;
    b->last = &job->next;
    b->stats.submitted++;
    b->stats.waiting++;
    *job_p = job;
    return MP_OK;
}

void mp_batcher_cancel(struct mp_batcher *b, struct mp_job *job)
{
    unlink_job(b, job);
    b->stats.canceled++;
    mp_job_destroy(job);
}

/* The end of a job; `error` NULL: a good one. */
static void end_job(struct mp_batcher *b, struct mp_job *job, const struct mp_error *error)
{
    const uint64_t now = mp_clock_now_ns(b->config.clock);
    const uint64_t started = job->started_ns > 0 ? job->started_ns : now;
    const struct mp_job_end end = {
        .output = &job->output,
        .error = error,
        .prompt_tokens = job->config.prompt_count,
        .reused_tokens = job->reused,
        .waited_ns = started - job->submitted_ns,
        .first_ns = job->first_ns > 0 ? job->first_ns - job->submitted_ns : 0,
        .all_ns = now - job->submitted_ns,
    };

    unlink_job(b, job);
    b->stats.ended++;
    b->stats.failed += error != NULL;
    job->config.on_end(job->config.ctx, &end);
    mp_job_destroy(job);
}

static void end_failed(struct mp_batcher *b, struct mp_job *job)
{
    const struct mp_error error = *mp_error_last();

    end_job(b, job, &error);
}

void mp_batcher_fail_next(struct mp_batcher *b)
{
    struct mp_job *victim = NULL;

    for (struct mp_job *job = b->jobs; job != NULL; job = job->next) {
        if (mp_slots_is_paused(job) && (victim == NULL || job->slot->order > victim->slot->order))
            victim = job;
    }
    if (victim == NULL)
        victim = mp_slots_next_job(b);
    if (victim != NULL)
        end_failed(b, victim);
}

static void give_text(struct mp_job *job, const char *text, size_t bytes)
{
    if (bytes > 0 && job->config.on_text != NULL)
        job->config.on_text(job->config.ctx, text, bytes, job->output.ids.count);
}

void mp_batcher_interrupt(struct mp_batcher *b)
{
    while (b->jobs != NULL) {
        struct mp_job *job = b->jobs;
        const char *text;
        size_t bytes;

        if (mp_answer_end(&job->answer, MP_FINISH_INTERRUPTED, &text, &bytes) != MP_OK) {
            end_failed(b, job);
            continue;
        }
        give_text(job, text, bytes);
        end_job(b, job, NULL);
    }
}

bool mp_batcher_busy(const struct mp_batcher *b)
{
    return b->jobs != NULL;
}

/* ---- a step */

static void add_token(struct mp_batcher *b, struct mp_job *job, uint32_t position)
{
    if (job->slot->touched <= position)
        job->slot->touched = position + 1;
    b->token[b->count] = mp_job_token(job, position);
    b->owner[b->count] = (uint32_t)(job->slot - b->slots);
    b->position[b->count] = position;
    b->want[b->count++] = position + 1 == mp_job_count(job);
    job->in_step = true;
}

/* One token of every job that generates and has room, then tokens that are known, of prompts and of
 * answers that were put off, oldest job first. */
static void fill_batch(struct mp_batcher *b)
{
    const uint32_t tokens_max = b->config.engine_config->tokens_max;
    uint32_t room;

    b->count = b->prompt_count = 0;
    for (struct mp_job *job = b->jobs; job != NULL; job = job->next) {
        job->in_step = false;
        if (mp_job_generates(job) && !mp_slots_is_paused(job))
            add_token(b, job, job->position);
    }
    room = tokens_max - b->count;
    if (b->count > 0 && room > b->config.chunk_tokens)
        room = b->config.chunk_tokens;
    b->stats.decode_steps += b->count > 0;
    for (struct mp_job *job = b->jobs; job != NULL && room > 0; job = job->next) {
        const uint32_t end = mp_job_count(job);

        if (job->slot == NULL || mp_job_generates(job))
            continue;
        for (uint32_t at = job->position; at < end && room > 0; at++, room--) {
            add_token(b, job, at);
            b->prompt_count++;
        }
    }
    b->stats.prompt_tokens += b->prompt_count;
}

static struct mp_job *first_in_step(const struct mp_batcher *b)
{
    struct mp_job *job = b->jobs;

    while (job != NULL && !job->in_step)
        job = job->next;
    return job;
}

/* The engine has failed: what it was working on is lost. */
static enum mp_status fail_step(struct mp_batcher *b, enum mp_status status)
{
    const struct mp_error error = *mp_error_last();
    struct mp_job *job;

    while ((job = first_in_step(b)) != NULL)
        end_job(b, job, &error);
    mp_error_set(&error);
    return status;
}

static enum mp_status choose(struct mp_batcher *b, struct mp_job *job, const float *logits,
                             uint32_t *token_p, bool *end_p)
{
    const struct mp_job_config *c = &job->config;
    enum mp_status status = MP_OK;

    *end_p = false;
    if (c->restrict_logits != NULL) {
        memcpy(b->logits, logits, b->config.engine_config->model->vocab * sizeof(float));
        logits = b->logits;
        status = c->restrict_logits(c->ctx, b->logits);
    }
    if (status == MP_OK)
        status = mp_sampler_pick(job->sampler, c->choice, logits, token_p);
    if (status == MP_OK && c->chosen != NULL)
        status = c->chosen(c->ctx, *token_p, end_p);
    return status;
}

/* A token for the job whose logits these are. */
static void advance(struct mp_batcher *b, struct mp_job *job, const float *logits)
{
    const char *text = "";
    size_t bytes = 0;
    uint32_t token = 0;
    bool end;
    enum mp_status status = choose(b, job, logits, &token, &end);

    if (status == MP_OK)
        status = mp_answer_accept(&job->answer, token, job->position, &text, &bytes);
    if (status == MP_OK && job->config.on_token != NULL && !mp_answer_is_end(&job->rules, token))
        status = job->config.on_token(job->config.ctx, token, logits);
    if (status == MP_OK && end && !job->answer.done) {
        give_text(job, text, bytes);
        status = mp_answer_end(&job->answer, MP_FINISH_EOS, &text, &bytes);
    }
    if (status != MP_OK) {
        end_failed(b, job);
        return;
    }
    if (job->first_ns == 0)
        job->first_ns = mp_clock_now_ns(b->config.clock);
    b->stats.generated_tokens++;
    give_text(job, text, bytes);
    if (job->answer.done)
        end_job(b, job, NULL);
}

/* Note what the cache holds now, and continue the jobs whose logits are there. */
static void take_results(struct mp_batcher *b, const float *logits)
{
    const uint32_t vocab = b->config.engine_config->model->vocab;
    const uint32_t count = b->count;

    for (uint32_t t = 0; t < count; t++) {
        struct mp_slot *slot = &b->slots[b->owner[t]];

        slot->ids[b->position[t]] = b->token[t];
        slot->held = b->position[t] + 1;
        slot->used = b->stats.steps;
        if (slot->job != NULL && slot->job->in_step) /* a callback may have cancelled it */
            slot->job->position = slot->held;
    }
    for (uint32_t t = 0; t < count; t++) {
        struct mp_job *job = b->slots[b->owner[t]].job;

        if (!b->want[t])
            continue;
        if (job != NULL && job->in_step)
            advance(b, job, logits);
        logits += vocab;
    }
}

enum mp_status mp_batcher_step(struct mp_batcher *b)
{
    const uint64_t start_ns = mp_clock_now_ns(b->config.clock);
    struct mp_batch batch = {
        .token = b->token, .sequence = b->owner, .position = b->position, .want = b->want
    };
    const float *logits = NULL;
    enum mp_status status;
    uint64_t ns;

    mp_slots_start_jobs(b);
    fill_batch(b);
    if (b->count == 0)
        return MP_OK;
    batch.count = b->count;
    b->stats.steps++;
    status = mp_forward(b->config.engine, &batch, &logits);
    ns = mp_clock_now_ns(b->config.clock) - start_ns;
    b->stats.step_ns += ns;
    b->stats.prompt_ns += (uint64_t)((double)ns * b->prompt_count / b->count);
    if (status != MP_OK)
        return fail_step(b, status);
    take_results(b, logits);
    return MP_OK;
}

const struct mp_batcher_stats *mp_batcher_stats(const struct mp_batcher *b)
{
    return &b->stats;
}

struct mp_prefix_store *mp_batcher_prefixes(const struct mp_batcher *b)
{
    return b->prefixes;
}
