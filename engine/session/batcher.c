/*
 * Jobs, the sequences that they run on, and the batch of each step. Arithmetic and paging are the
 * engine's; texts and ends are answer.c's.
 */
#include "engine/session/batcher.h"

#include <stdlib.h>
#include <string.h>

#include "vmm/base/arena.h"
#include "vmm/base/error.h"

/* Copying keys and values of fewer tokens than this is not worth it. */
#define SHARED_TOKENS_MIN 16

struct mp_job {
    struct mp_job *next;
    struct mp_job_config config; /* its texts are in `block` */
    struct mp_answer_rules rules;
    struct mp_answer answer;
    struct mp_output output;
    struct mp_sampler *sampler;
    void *block;

    struct slot *slot; /* NULL: waits */
    uint32_t position; /* of the next token to be processed */
    uint32_t sampled;  /* the last token, not processed yet */
    uint32_t reused;
    uint64_t submitted_ns, started_ns, first_ns;
    bool in_step; /* some of its tokens are in the batch */
};

/* A sequence of the engine. */
struct slot {
    struct mp_job *job; /* NULL: free */
    uint32_t *ids;      // (ctx): the first `held` are those whose keys and values are in the cache
    uint32_t held;
    uint64_t used; /* number of the step that used it last */
};

struct mp_batcher {
    struct mp_batcher_config config;
    struct mp_batcher_stats stats;
    struct mp_job *jobs, **last; /* in the order in which they came */
    struct slot *slots;          // (sequences)
    uint32_t sequences;

    uint32_t *token, *owner, *position; // (tokens_max)
    uint8_t *want;                      // (tokens_max)
    uint32_t count;                     /* tokens of the step */
    float *logits;                      // (vocab): of a restricted job
    void *block;                        /* of all these arrays */
};

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
    take_arrays(b, &arena);
    status = mp_arena_open(&arena, "a batcher");
    if (status != MP_OK) {
        free(b);
        return status;
    }
    take_arrays(b, &arena);
    b->block = arena.block;
    *batcher_p = b;
    return MP_OK;
}

static void job_free(struct mp_job *job)
{
    mp_answer_close(&job->answer);
    mp_outputs_free(&job->output, 1);
    mp_sampler_destroy(job->sampler);
    free(job->block);
    free(job);
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
    if (job->slot != NULL) {
        job->slot->job = NULL;
        b->stats.running--;
    } else {
        b->stats.waiting--;
    }
}

void mp_batcher_destroy(struct mp_batcher *b)
{
    if (b == NULL)
        return;
    while (b->jobs != NULL)
        mp_batcher_cancel(b, b->jobs);
    free(b->block);
    free(b);
}

static enum mp_status check_job(const struct mp_batcher *b, const struct mp_job_config *config)
{
    const struct mp_engine_config *engine = b->config.engine_config;
    enum mp_status status = mp_sampling_check(&config->sampling);

    if (status != MP_OK)
        return status;
    if (config->prompt_count == 0)
        return mp_fail(MP_ERR_CONFIG, "E_PROMPT_EMPTY",
                       "the prompt is empty; give at least one token");
    if (config->prompt_count >= engine->ctx)
        return mp_fail(MP_ERR_CONFIG, "E_PROMPT_LONG",
                       "the prompt has %zu tokens, the context holds %u%s", config->prompt_count,
                       engine->ctx,
                       mp_engine_ctx_can_grow(engine)
                           ? "; raise --ctx or shorten the prompt"
                           : ", as many as the model was made for; shorten the prompt");
    return mp_stops_check(config->stops, config->stop_count);
}

/* The prompt, then addresses of the stop strings, then these themselves, in one block. */
static enum mp_status copy_texts(struct mp_job *job)
{
    struct mp_job_config *c = &job->config;
    const size_t table = c->stop_count * sizeof(char *), ids = c->prompt_count * sizeof(uint32_t);
    size_t bytes = table + ids;
    const char **stops;
    uint32_t *prompt;
    char *at;

    for (uint32_t i = 0; i < c->stop_count; i++)
        bytes += strlen(c->stops[i]) + 1;
    job->block = malloc(bytes);
    if (job->block == NULL)
        return mp_fail_no_memory("a prompt", bytes);
    stops = job->block;
    prompt = (uint32_t *)((char *)job->block + table);
    at = (char *)prompt + ids;
    memcpy(prompt, c->prompt, ids);
    for (uint32_t i = 0; i < c->stop_count; i++) {
        stops[i] = at;
        at = stpcpy(at, c->stops[i]) + 1;
    }
    c->prompt = prompt;
    c->stops = stops;
    return MP_OK;
}

static enum mp_status open_job(const struct mp_batcher *b, struct mp_job *job)
{
    const struct mp_engine_config *engine = b->config.engine_config;
    enum mp_status status = copy_texts(job);

    job->rules = (struct mp_answer_rules){
        .model = engine->model,
        .tokenizer = b->config.tokenizer,
        .new_text = job->config.new_text,
        .ignore_eos = job->config.ignore_eos,
        .max_tokens = job->config.max_tokens,
        .ctx = engine->ctx,
        .stops = job->config.stops,
        .stop_count = job->config.stop_count,
    };
    if (status == MP_OK)
        status = mp_sampler_create(&job->config.sampling, engine->model->vocab,
                                   job->config.choice + 1, &job->sampler);
    return status == MP_OK ? mp_answer_open(&job->rules, &job->output, &job->answer) : status;
}

enum mp_status mp_batcher_submit(struct mp_batcher *b, const struct mp_job_config *config,
                                 struct mp_job **job_p)
{
    enum mp_status status = check_job(b, config);
    struct mp_job *job;

    if (status != MP_OK)
        return status;
    job = calloc(1, sizeof(*job));
    if (job == NULL)
        return mp_fail_no_memory("a job", sizeof(*job));
    job->config = *config;
    job->submitted_ns = mp_clock_now_ns(b->config.clock);
    status = open_job(b, job);
    if (status != MP_OK) {
        job_free(job);
        return status;
    }
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
    job_free(job);
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
    job_free(job);
}

static void end_failed(struct mp_batcher *b, struct mp_job *job)
{
    const struct mp_error error = *mp_error_last();

    end_job(b, job, &error);
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

/* ---- sequences */

/* Tokens of the job's prompt that the slot holds, without the last, whose logits are needed. */
static uint32_t shared_tokens(const struct slot *slot, const struct mp_job *job)
{
    const uint32_t most = (uint32_t)job->config.prompt_count - 1;
    uint32_t n = 0;

    while (n < slot->held && n < most && slot->ids[n] == job->config.prompt[n])
        n++;
    return n;
}

/* The same, but what the engine can go on from. */
static uint32_t usable_tokens(const struct mp_batcher *b, const struct slot *slot,
                              const struct mp_job *job)
{
    const uint32_t n = shared_tokens(slot, job);

    return mp_engine_can_go_back(b->config.engine) || n == slot->held ? n : 0;
}

/* The free sequence that holds most of the prompt, else the one that has been free for longest. */
static struct slot *choose_slot(const struct mp_batcher *b, const struct mp_job *job)
{
    struct slot *best = NULL;
    uint32_t best_tokens = 0;

    for (uint32_t s = 0; s < b->sequences; s++) {
        struct slot *slot = &b->slots[s];
        const uint32_t tokens = slot->job == NULL ? usable_tokens(b, slot, job) : 0;

        if (slot->job == NULL && (best == NULL || tokens > best_tokens ||
                                  (tokens == best_tokens && slot->used < best->used))) {
            best = slot;
            best_tokens = tokens;
        }
    }
    return best;
}

/* Copy a longer beginning of the prompt from another sequence, where the engine can. */
static uint32_t share(struct mp_batcher *b, struct slot *slot, const struct mp_job *job)
{
    const uint32_t own = usable_tokens(b, slot, job);
    const struct slot *other = NULL;
    uint32_t most = own + SHARED_TOKENS_MIN - 1;

    for (uint32_t s = 0; s < b->sequences; s++) {
        const uint32_t tokens = shared_tokens(&b->slots[s], job);

        if (&b->slots[s] != slot && tokens > most) {
            other = &b->slots[s];
            most = tokens;
        }
    }
    if (other == NULL || !mp_engine_copy_kv(b->config.engine, (uint32_t)(other - b->slots),
                                            (uint32_t)(slot - b->slots), most))
        return own;
    memcpy(slot->ids, other->ids, most * sizeof(*slot->ids));
    return most;
}

/* Waiting jobs take free sequences. */
static void start_jobs(struct mp_batcher *b)
{
    for (struct mp_job *job = b->jobs; job != NULL && b->stats.waiting > 0; job = job->next) {
        struct slot *slot = job->slot == NULL ? choose_slot(b, job) : NULL;

        if (job->slot != NULL)
            continue;
        if (slot == NULL)
            return;
        job->position = job->reused = share(b, slot, job);
        job->slot = slot;
        job->started_ns = mp_clock_now_ns(b->config.clock);
        slot->job = job;
        slot->held = job->position;
        b->stats.waiting--;
        b->stats.running++;
        b->stats.reused_tokens += job->reused;
    }
}

/* ---- a step */

static bool generates(const struct mp_job *job)
{
    return job->slot != NULL && job->position >= job->config.prompt_count;
}

static void add_token(struct mp_batcher *b, struct mp_job *job, uint32_t token, uint32_t position,
                      bool want)
{
    b->token[b->count] = token;
    b->owner[b->count] = (uint32_t)(job->slot - b->slots);
    b->position[b->count] = position;
    b->want[b->count++] = want;
    job->in_step = true;
}

/* One token of every job that generates, then prompt tokens, oldest job first. */
static void fill_batch(struct mp_batcher *b)
{
    const uint32_t tokens_max = b->config.engine_config->tokens_max;
    uint32_t room;

    b->count = 0;
    for (struct mp_job *job = b->jobs; job != NULL; job = job->next) {
        job->in_step = false;
        if (generates(job))
            add_token(b, job, job->sampled, job->position, true);
    }
    room = tokens_max - b->count;
    if (b->count > 0 && room > b->config.chunk_tokens)
        room = b->config.chunk_tokens;
    b->stats.decode_steps += b->count > 0;
    for (struct mp_job *job = b->jobs; job != NULL && room > 0; job = job->next) {
        const uint32_t end = (uint32_t)job->config.prompt_count;

        if (job->slot == NULL || generates(job))
            continue;
        for (uint32_t at = job->position; at < end && room > 0; at++, room--) {
            add_token(b, job, job->config.prompt[at], at, at + 1 == end);
            b->stats.prompt_tokens++;
        }
    }
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
    job->sampled = token;
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
        struct slot *slot = &b->slots[b->owner[t]];

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

    start_jobs(b);
    fill_batch(b);
    if (b->count == 0)
        return MP_OK;
    batch.count = b->count;
    b->stats.steps++;
    status = mp_forward(b->config.engine, &batch, &logits);
    b->stats.step_ns += mp_clock_now_ns(b->config.clock) - start_ns;
    if (status != MP_OK)
        return fail_step(b, status);
    take_results(b, logits);
    return MP_OK;
}

const struct mp_batcher_stats *mp_batcher_stats(const struct mp_batcher *b)
{
    return &b->stats;
}
