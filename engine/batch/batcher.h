#ifndef MP_BATCHER_H
#define MP_BATCHER_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/forward/engine.h"
#include "engine/forward/sampler.h"
#include "engine/session/answer.h"
#include "engine/batch/prefix_store.h"

/*
 * Continuous batching: jobs (a prompt to be continued) join and leave a running batch at steps. For
 * the server, and for a chat, which is one job at a time.
 *
 * A step is one batch of the engine: a token of every sequence that generates, then prompt tokens
 * of the oldest jobs, at most `chunk_tokens` while anything generates. Jobs start as sequences
 * become free: first those of whose prompts sequences hold most, else in the order in which they
 * came; but none is overtaken by more than MP_JOB_OVERTAKEN_MAX younger ones. Keys and values of
 * what a sequence has processed stay when its job ends: a job starts behind the longest beginning
 * of its prompt that a sequence holds, its own or, by copying, another one's, or that is kept
 * beside the sequences: what a sequence held goes there when another job takes it.
 *
 * With mp_batcher_set_kv_budget() a job takes room for its prompt and a few tokens when it starts,
 * and more as it needs it. Free sequences give theirs up for it, what was used longest ago first.
 * One that finds none is paused, and none starts then; but where all the room that there can be is
 * not enough, the job that started last is put off: it waits again, and goes on from what is still
 * there of it, after computing the rest anew. So the oldest always goes on, and all end.
 *
 * The logits of a job are those of a run of its prompt alone, bit for bit (engine.h), and its
 * random numbers are those of sequence `choice` of such a run.
 *
 * Thread safety: one thread at a time, the engine's. Callbacks come from mp_batcher_step() and may
 * submit and cancel jobs.
 */
struct mp_batcher;
struct mp_job;

#define MP_JOB_OVERTAKEN_MAX 8

struct mp_batcher_config {
    struct mp_engine *engine;
    const struct mp_engine_config *engine_config; /* both outlive the batcher */
    const struct mp_tokenizer *tokenizer;         /* or NULL, as in struct mp_answer_rules */
    uint32_t chunk_tokens;                        /* >= 1 */
    uint64_t prefix_bytes;      /* for prompts that no sequence holds any more; without effect where
                                   mp_engine_kv_bytes() is 0 */
    uint64_t prefix_step_bytes; /* as in prefix_store.h; 0: they are not kept at all */
    struct mp_clock *clock;
};

/* How a job ended. */
struct mp_job_end {
    const struct mp_output *output;
    const struct mp_error *error; /* NULL: as output->finish says; else it failed */
    uint64_t prompt_tokens, reused_tokens;
    uint64_t waited_ns; /* from submission until it had a sequence */
    uint64_t first_ns;  /* from submission to the first token; 0: there was none */
    uint64_t all_ns;    /* from submission to the end */
};

struct mp_job_config {
    const uint32_t *prompt; // (prompt_count): copied
    size_t prompt_count;
    struct mp_sampling sampling;
    uint32_t choice;
    uint32_t max_tokens; /* >= 1 */
    bool new_text, ignore_eos;
    const char *const *stops; // (stop_count): copied
    uint32_t stop_count;
    const uint32_t *shown; // (shown_count): as in struct mp_answer_rules; outlives the job
    uint32_t shown_count;

    /* New text, valid UTF-8, with the number of tokens so far; may be NULL. */
    void (*on_text)(void *ctx, const char *text, size_t bytes, uint64_t tokens);
    /* The last call for a job; it is gone afterwards. */
    void (*on_end)(void *ctx, const struct mp_job_end *end);

    /* Both or none. restrict: set logits(vocab) of tokens that must not come next to -INFINITY.
     * chosen: the token that was sampled; *end_p := nothing may follow it. */
    enum mp_status (*restrict_logits)(void *ctx, float *logits);
    enum mp_status (*chosen)(void *ctx, uint32_t token, bool *end_p);

    /* A token of the answer, before its text, with the model's own logits(vocab): before any
     * restriction. Not for an end token. May be NULL. */
    enum mp_status (*on_token)(void *ctx, uint32_t token, const float *logits);
    void *ctx;
};

/* Counts since the creation, but for the first three. */
struct mp_batcher_stats {
    uint64_t waiting, running;
    uint64_t paused; /* of those that run: they had no memory in the last step */
    uint64_t submitted, ended, failed, canceled;
    uint64_t put_off; /* times that a job has lost its sequence to an older one */
    uint64_t prompt_tokens, reused_tokens, generated_tokens;
    uint64_t steps, step_ns, decode_steps;
    uint64_t prompt_ns; /* of step_ns, the part of prompt tokens */
    /* Of RAM, now: what sequences have room for, and what a paused job or the next one lacks. */
    uint64_t kv_bytes, kv_wanted_bytes;
};

enum mp_status mp_batcher_create(const struct mp_batcher_config *config,
                                 struct mp_batcher **batcher_p) MP_MUST_CHECK;

/* Jobs that are left are cancelled. NULL is allowed. */
void mp_batcher_destroy(struct mp_batcher *batcher);

/* MP_ERR_CONFIG as mp_generate_check() and mp_sampling_check(); E_KV_ROOM: the job never had room.
 * It waits for its turn. */
enum mp_status mp_batcher_submit(struct mp_batcher *batcher, const struct mp_job_config *config,
                                 struct mp_job **job_p) MP_MUST_CHECK;

/* Forget a job that has not ended, with no further callback. */
void mp_batcher_cancel(struct mp_batcher *batcher, struct mp_job *job);

/* End all jobs as interrupted, with their callbacks. */
void mp_batcher_interrupt(struct mp_batcher *batcher);

/* True if there is a job. */
bool mp_batcher_busy(const struct mp_batcher *batcher);

/*
 * One step; MP_OK without a job. An error is that of the engine: it has ended the jobs of the step,
 * other jobs can go on unless it is MP_ERR_DEVICE.
 */
enum mp_status mp_batcher_step(struct mp_batcher *batcher) MP_MUST_CHECK;

/*
 * Keys and values of all sequences get `budget_bytes` of RAM from now on, which are not less than
 * stats.kv_bytes, and can get `most_bytes` at any time: jobs that may need more are refused.
 * Without this call there is no bound.
 */
void mp_batcher_set_kv_budget(struct mp_batcher *batcher, uint64_t budget_bytes,
                              uint64_t most_bytes);

/* Positions, prompt and answer together, that a job may have. */
uint32_t mp_batcher_positions(const struct mp_batcher *batcher);

/* Free sequences that had no job in the last `steps` steps give up what they hold. */
void mp_batcher_drop_idle(struct mp_batcher *batcher, uint64_t steps);

/* End the paused job that started last, else the next of those that wait, if any, with the calling
 * thread's last error. */
void mp_batcher_fail_next(struct mp_batcher *batcher);

const struct mp_batcher_stats *mp_batcher_stats(const struct mp_batcher *batcher);

/* Where prompts are kept that no sequence holds any more; NULL: nowhere. */
struct mp_prefix_store *mp_batcher_prefixes(const struct mp_batcher *batcher);

#endif
