/*
 * A job: its texts, copied, its sampler and its answer.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/batch/batcher_int.h"
#include "engine/forward/kv.h"
#include "vmm/base/error.h"

uint32_t mp_job_positions(const struct mp_batcher *b, const struct mp_job_config *config)
{
    const uint64_t all = (uint64_t)config->prompt_count + config->max_tokens;
    const uint32_t ctx = b->config.engine_config->ctx;

    return all < ctx ? (uint32_t)all : ctx;
}

uint32_t mp_job_count(const struct mp_job *job)
{
    return (uint32_t)(job->config.prompt_count + job->output.ids.count);
}

uint32_t mp_job_token(const struct mp_job *job, uint32_t position)
{
    return position < job->config.prompt_count
               ? job->config.prompt[position]
               : job->output.ids.ids[position - job->config.prompt_count];
}

bool mp_job_generates(const struct mp_job *job)
{
    return job->slot != NULL && job->output.ids.count > 0 && job->position + 1 == mp_job_count(job);
}

static enum mp_status check_room(const struct mp_batcher *b, const struct mp_job_config *config)
{
    const uint32_t positions = mp_job_positions(b, config);

    if (positions <= b->positions_max)
        return MP_OK;
    return mp_fail(MP_ERR_CONFIG, "E_KV_ROOM",
                   "the prompt has %zu tokens and may get %" PRIu64
                   " more: their KV cache takes %" PRIu64 " bytes, but there are at most %" PRIu64
                   " for it; ask for fewer tokens, or shorten the prompt",
                   config->prompt_count, (uint64_t)positions - config->prompt_count,
                   mp_kv_sequence_bytes(b->config.engine_config, positions), b->kv_most_bytes);
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
    status = check_room(b, config);
    return status == MP_OK ? mp_stops_check(config->stops, config->stop_count) : status;
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
        .shown = job->config.shown,
        .shown_count = job->config.shown_count,
    };
    if (status == MP_OK)
        status = mp_sampler_create(&job->config.sampling, engine->model->vocab,
                                   job->config.choice + 1, &job->sampler);
    return status == MP_OK ? mp_answer_open(&job->rules, &job->output, &job->answer) : status;
}

enum mp_status mp_job_create(const struct mp_batcher *b, const struct mp_job_config *config,
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
        mp_job_destroy(job);
        return status;
    }
    *job_p = job;
    return MP_OK;
}

void mp_job_destroy(struct mp_job *job)
{
    mp_answer_close(&job->answer);
    mp_outputs_free(&job->output, 1);
    mp_sampler_destroy(job->sampler);
    free(job->block);
    free(job);
}
