/*
 * Which sequence of the engine a job runs on, and what of its prompt is there already.
 */
#include <string.h>

#include "engine/batch/batcher_int.h"

/* Copying keys and values of fewer tokens than this is not worth it. */
#define SHARED_TOKENS_MIN 16

/* Tokens of the job's prompt that the slot holds, without the last, whose logits are needed. */
static uint32_t shared_tokens(const struct mp_slot *slot, const struct mp_job *job)
{
    const uint32_t most = (uint32_t)job->config.prompt_count - 1;
    uint32_t n = 0;

    while (n < slot->held && n < most && slot->ids[n] == job->config.prompt[n])
        n++;
    return n;
}

/* The same, but what the engine can go on from. */
static uint32_t usable_tokens(const struct mp_batcher *b, const struct mp_slot *slot,
                              const struct mp_job *job)
{
    const uint32_t n = shared_tokens(slot, job);

    return mp_engine_can_go_back(b->config.engine) || n == slot->held ? n : 0;
}

/* The free sequence that holds most of the prompt, else the one that has been free for longest. */
static struct mp_slot *choose_slot(const struct mp_batcher *b, const struct mp_job *job)
{
    struct mp_slot *best = NULL;
    uint32_t best_tokens = 0;

    for (uint32_t s = 0; s < b->sequences; s++) {
        struct mp_slot *slot = &b->slots[s];
        const uint32_t tokens = slot->job == NULL ? usable_tokens(b, slot, job) : 0;

        if (slot->job == NULL && (best == NULL || tokens > best_tokens ||
                                  (tokens == best_tokens && slot->used < best->used))) {
            best = slot;
            best_tokens = tokens;
        }
    }
    return best;
}

/* How much of the prompt any sequence holds. */
static uint32_t most_held(const struct mp_batcher *b, const struct mp_job *job)
{
    uint32_t most = 0;

    for (uint32_t s = 0; s < b->sequences; s++) {
        const uint32_t tokens = usable_tokens(b, &b->slots[s], job);

        most = tokens > most ? tokens : most;
    }
    return most;
}

/* Copy a longer beginning of the prompt than `own` from another sequence, where the engine can. */
static uint32_t copy_from_other(struct mp_batcher *b, struct mp_slot *slot,
                                const struct mp_job *job, uint32_t own)
{
    const struct mp_slot *other = NULL;
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

struct place {
    struct mp_engine *engine;
    uint32_t sequence;
};

static void save(void *ctx, uint32_t first, void *out)
{
    const struct place *place = ctx;

    mp_engine_save_kv(place->engine, place->sequence, first, MP_PREFIX_TOKENS, out);
}

static void restore(void *ctx, uint32_t first, const void *in)
{
    const struct place *place = ctx;

    mp_engine_restore_kv(place->engine, place->sequence, first, MP_PREFIX_TOKENS, in);
}

/* What the sequence holds and the job will overwrite is kept; what is kept of the job's prompt and
 * no sequence holds is brought back. Returns how much of the prompt the sequence holds then. */
static uint32_t share(struct mp_batcher *b, struct mp_slot *slot, const struct mp_job *job)
{
    const uint32_t own = usable_tokens(b, slot, job);
    const uint32_t count = (uint32_t)job->config.prompt_count - 1;
    struct place place = { b->config.engine, (uint32_t)(slot - b->slots) };
    uint32_t held, kept = 0;

    if (b->prefixes != NULL) {
        kept = mp_prefix_store_find(b->prefixes, job->config.prompt, count, most_held(b, job));
        if (slot->held > own)
            mp_prefix_store_keep(b->prefixes, slot->ids, slot->held, save, &place);
    }
    held = copy_from_other(b, slot, job, own);
    if (kept < held + SHARED_TOKENS_MIN)
        return held;
    held = mp_prefix_store_load(b->prefixes, job->config.prompt, count, held, restore, &place);
    memcpy(slot->ids, job->config.prompt, held * sizeof(*slot->ids));
    return held;
}

/* The waiting job to start: the oldest of those of whose prompts most is held (in portions that are
 * worth a change of order), as that may be overwritten by any other; but the oldest of all where
 * others have gone first often enough. NULL: none waits. */
static struct mp_job *next_job(const struct mp_batcher *b)
{
    struct mp_job *best = NULL;
    uint32_t most = 0;

    for (struct mp_job *job = b->jobs; job != NULL; job = job->next) {
        const uint32_t portions = job->slot == NULL ? most_held(b, job) / SHARED_TOKENS_MIN : 0;

        if (job->slot != NULL)
            continue;
        if (best == NULL && job->overtaken >= MP_JOB_OVERTAKEN_MAX)
            return job;
        if (best == NULL || portions > most) {
            best = job;
            most = portions;
        }
    }
    return best;
}

static void start_job(struct mp_batcher *b, struct mp_job *job, struct mp_slot *slot)
{
    for (struct mp_job *older = b->jobs; older != job; older = older->next)
        older->overtaken += older->slot == NULL;
    job->position = job->reused = share(b, slot, job);
    job->slot = slot;
    job->started_ns = mp_clock_now_ns(b->config.clock);
    slot->job = job;
    slot->held = job->position;
    b->stats.waiting--;
    b->stats.running++;
    b->stats.reused_tokens += job->reused;
}

void mp_slots_start_jobs(struct mp_batcher *b)
{
    while (b->stats.waiting > 0 && b->stats.running < b->sequences) {
        struct mp_job *job = next_job(b);

        start_job(b, job, choose_slot(b, job));
    }
}
