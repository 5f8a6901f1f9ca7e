#ifndef MP_BATCHER_INT_H
#define MP_BATCHER_INT_H

#include "engine/batch/batcher.h"

/*
 * Private to batcher.c (the list of jobs, the steps), batcher_job.c (what a job is made of) and
 * batcher_slots.c (the sequences that jobs run on).
 */
struct mp_job {
    struct mp_job *next;
    struct mp_job_config config; /* its texts are in `block` */
    struct mp_answer_rules rules;
    struct mp_answer answer;
    struct mp_output output;
    struct mp_sampler *sampler;
    void *block;

    struct mp_slot *slot; /* NULL: waits */
    uint32_t position;    /* of the next token to be processed */
    uint32_t reused;
    uint32_t overtaken; /* by how many younger ones, while it waits */
    uint64_t submitted_ns, started_ns, first_ns;
    bool in_step; /* some of its tokens are in the batch */
};

/* A sequence of the engine. */
struct mp_slot {
    struct mp_job *job; /* NULL: free */
    uint32_t *ids;      // (ctx): the first `held` are those whose keys and values are in the cache
    uint32_t held;
    uint32_t touched;  /* positions whose pages may be there */
    uint32_t room;     /* positions that it may hold now */
    uint64_t kv_bytes; /* of stats.kv_bytes: those of `room` */
    uint64_t used;     /* number of the step that used it last */
    uint64_t order;    /* of its job: the number of its start */
};

struct mp_batcher {
    struct mp_batcher_config config;
    struct mp_batcher_stats stats;
    struct mp_job *jobs, **last;      /* in the order in which they came */
    struct mp_slot *slots;            // (sequences)
    struct mp_prefix_store *prefixes; /* or NULL */
    uint32_t sequences;
    uint64_t kv_budget_bytes, kv_most_bytes; /* UINT64_MAX: no bound */
    uint32_t positions_max;                  /* of a job */
    uint64_t started;                        /* jobs, ever */

    uint32_t *token, *owner, *position; // (tokens_max)
    uint8_t *want;                      // (tokens_max)
    uint32_t count, prompt_count;       /* tokens of the step; of them, of prompts */
    float *logits;                      // (vocab): of a restricted job
    void *block;                        /* of all these arrays */
};

/* A job that is in no list yet: its texts are copied. Errors as for mp_batcher_submit(). */
enum mp_status mp_job_create(const struct mp_batcher *b, const struct mp_job_config *config,
                             struct mp_job **job_p) MP_MUST_CHECK;
void mp_job_destroy(struct mp_job *job);

/* Jobs that run get the room that their next token needs, then waiting jobs take free sequences. */
void mp_slots_start_jobs(struct mp_batcher *b);

/* Tokens of its prompt and of its answer so far. */
uint32_t mp_job_count(const struct mp_job *job);
uint32_t mp_job_token(const struct mp_job *job, uint32_t position);

/* It runs, and only the last token of its answer is not processed yet. */
bool mp_job_generates(const struct mp_job *job);

/* The job runs, and its next token has no room. */
bool mp_slots_is_paused(const struct mp_job *job);

/* The waiting job whose turn it is; NULL: none waits. */
struct mp_job *mp_slots_next_job(const struct mp_batcher *b);

/* The job leaves its sequence, which goes on holding what it has. */
void mp_slots_leave(struct mp_batcher *b, struct mp_job *job);

/* Positions that the job may come to have. */
uint32_t mp_job_positions(const struct mp_batcher *b, const struct mp_job_config *config);

#endif
