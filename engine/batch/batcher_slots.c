/*
 * Which sequence of the engine a job runs on, and what of its prompt is there already.
 */
#include <string.h>

#include "engine/batch/batcher_int.h"
#include "engine/forward/kv.h"

/* Copying keys and values of fewer tokens than this is not worth it. */
#define SHARED_TOKENS_MIN 16

/* Positions that a job takes at a time. */
#define ROOM_STEP 64

/* Tokens of the job that the slot holds, without the last, whose logits are needed. */
static uint32_t shared_tokens(const struct mp_slot *slot, const struct mp_job *job)
{
    const uint32_t most = mp_job_count(job) - 1;
    uint32_t n = 0;

    while (n < slot->held && n < most && slot->ids[n] == mp_job_token(job, n))
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
struct mp_job *mp_slots_next_job(const struct mp_batcher *b)
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

/* ---- room for keys and values */

static void reserve(struct mp_batcher *b, struct mp_slot *slot, uint32_t positions)
{
    const uint64_t bytes = mp_kv_sequence_bytes(b->config.engine_config, positions);

    b->stats.kv_bytes = b->stats.kv_bytes - slot->kv_bytes + bytes;
    slot->kv_bytes = bytes;
    slot->room = positions;
}

static void drop_from(struct mp_batcher *b, struct mp_slot *slot, uint32_t position)
{
    if (slot->touched <= position)
        return;
    mp_engine_drop_kv(b->config.engine, (uint32_t)(slot - b->slots), position);
    slot->touched = position;
}

/* A free sequence gives up what it holds, which is kept elsewhere as far as there is room. */
static void empty_slot(struct mp_batcher *b, struct mp_slot *slot)
{
    struct place place = { b->config.engine, (uint32_t)(slot - b->slots) };

    if (b->prefixes != NULL)
        mp_prefix_store_keep(b->prefixes, slot->ids, slot->held, save, &place);
    slot->held = 0;
    drop_from(b, slot, 0);
    reserve(b, slot, 0);
}

static struct mp_slot *oldest_idle(const struct mp_batcher *b, const struct mp_slot *but)
{
    struct mp_slot *oldest = NULL;

    for (uint32_t s = 0; s < b->sequences; s++) {
        struct mp_slot *slot = &b->slots[s];

        if (slot != but && slot->job == NULL && slot->kv_bytes > 0 &&
            (oldest == NULL || slot->used < oldest->used))
            oldest = slot;
    }
    return oldest;
}

/* Bytes of all sequences with jobs. */
static uint64_t running_bytes(const struct mp_batcher *b)
{
    uint64_t bytes = 0;

    for (uint32_t s = 0; s < b->sequences; s++)
        bytes += b->slots[s].job != NULL ? b->slots[s].kv_bytes : 0;
    return bytes;
}

/* True if the slot may hold so many positions now. */
static bool make_room(struct mp_batcher *b, const struct mp_slot *slot, uint32_t positions)
{
    const uint64_t own = mp_kv_sequence_bytes(b->config.engine_config, positions);
    const uint64_t budget = b->kv_budget_bytes;
    struct mp_slot *idle;

    if (budget == UINT64_MAX)
        return true;
    if (running_bytes(b) - (slot->job != NULL ? slot->kv_bytes : 0) + own > b->kv_most_bytes)
        return false; /* others have to end first */
    while (b->stats.kv_bytes - slot->kv_bytes + own > budget &&
           (idle = oldest_idle(b, slot)) != NULL)
        empty_slot(b, idle);
    if (b->stats.kv_bytes - slot->kv_bytes + own <= budget)
        return true;
    b->stats.kv_wanted_bytes = b->stats.kv_bytes - slot->kv_bytes + own - budget;
    return false;
}

/* For a job that starts. What the sequence has had beyond that goes, if there is a bound. */
static void take_room(struct mp_batcher *b, struct mp_slot *slot, uint32_t positions)
{
    if (slot->touched < slot->held)
        slot->touched = slot->held;
    if (b->kv_budget_bytes != UINT64_MAX)
        drop_from(b, slot, positions);
    reserve(b, slot, positions > slot->touched ? positions : slot->touched);
}

/* A step more than so many positions, as far as the job may come to have them. */
static uint32_t one_step_more(const struct mp_batcher *b, const struct mp_job *job,
                              uint32_t positions)
{
    const uint32_t most = mp_job_positions(b, &job->config);

    return most - positions > ROOM_STEP ? positions + ROOM_STEP : most;
}

/* ---- starting */

bool mp_slots_is_paused(const struct mp_job *job)
{
    return mp_job_generates(job) && job->position >= job->slot->room;
}

/* The job that started last waits again; what its sequence holds may still be there then, and is
 * computed again otherwise. */
static void put_off_youngest(struct mp_batcher *b)
{
    struct mp_job *youngest = NULL;

    for (uint32_t s = 0; s < b->sequences; s++) {
        const struct mp_slot *slot = &b->slots[s];

        if (slot->job != NULL && (youngest == NULL || slot->order > youngest->slot->order))
            youngest = slot->job;
    }
    mp_slots_leave(b, youngest);
    youngest->slot = NULL;
    youngest->position = 0;
    b->stats.waiting++;
    b->stats.put_off++;
}

/* Room for the next tokens of a job that generates: where all that there can be is not enough for
 * all, of those who started last. The oldest always has enough. */
static void grow(struct mp_batcher *b, struct mp_job *job)
{
    const struct mp_engine_config *c = b->config.engine_config;
    const uint32_t positions = one_step_more(b, job, job->slot->room);
    const uint64_t more = mp_kv_sequence_bytes(c, positions) - job->slot->kv_bytes;

    while (job->slot != NULL && b->stats.running > 1 && running_bytes(b) + more > b->kv_most_bytes)
        put_off_youngest(b);
    if (job->slot != NULL && make_room(b, job->slot, positions))
        reserve(b, job->slot, positions);
}

static void start_job(struct mp_batcher *b, struct mp_job *job, struct mp_slot *slot)
{
    for (struct mp_job *older = b->jobs; older != job; older = older->next)
        older->overtaken += older->slot == NULL;
    job->position = share(b, slot, job);
    job->slot = slot;
    if (job->started_ns == 0) {
        job->started_ns = mp_clock_now_ns(b->config.clock);
        job->reused = job->position;
    }
    slot->job = job;
    slot->held = job->position;
    slot->order = b->started++;
    take_room(b, slot, one_step_more(b, job, mp_job_count(job)));
    b->stats.waiting--;
    b->stats.running++;
    b->stats.reused_tokens += job->position;
}

void mp_slots_start_jobs(struct mp_batcher *b)
{
    b->stats.kv_wanted_bytes = b->stats.paused = 0;
    for (struct mp_job *job = b->jobs; job != NULL; job = job->next) {
        if (mp_slots_is_paused(job))
            grow(b, job);
    }
    for (struct mp_job *job = b->jobs; job != NULL; job = job->next)
        b->stats.paused += mp_slots_is_paused(job);
    while (b->stats.paused == 0 && b->stats.waiting > 0 && b->stats.running < b->sequences) {
        struct mp_job *job = mp_slots_next_job(b);
        struct mp_slot *slot = choose_slot(b, job);

        if (!make_room(b, slot, one_step_more(b, job, mp_job_count(job))))
            return; /* no younger one goes first: it would have to wait for ever */
        start_job(b, job, slot);
    }
}

void mp_slots_leave(struct mp_batcher *b, struct mp_job *job)
{
    reserve(b, job->slot, job->slot->touched);
    job->slot->job = NULL;
    b->stats.running--;
}

void mp_batcher_drop_idle(struct mp_batcher *b, uint64_t steps)
{
    for (uint32_t s = 0; s < b->sequences; s++) {
        struct mp_slot *slot = &b->slots[s];

        if (slot->job == NULL && slot->kv_bytes > 0 && slot->used + steps <= b->stats.steps)
            empty_slot(b, slot);
    }
}

uint32_t mp_batcher_positions(const struct mp_batcher *b)
{
    return b->positions_max;
}

void mp_batcher_set_kv_budget(struct mp_batcher *b, uint64_t budget_bytes, uint64_t most_bytes)
{
    const struct mp_engine_config *c = b->config.engine_config;
    uint32_t fits = 0, end = c->ctx + 1;

    b->kv_budget_bytes = budget_bytes;
    b->kv_most_bytes = most_bytes;
    while (end - fits > 1) {
        const uint32_t middle = fits + (end - fits) / 2;

        if (mp_kv_sequence_bytes(c, middle) <= most_bytes)
            fits = middle;
        else
            end = middle;
    }
    b->positions_max = fits;
}
