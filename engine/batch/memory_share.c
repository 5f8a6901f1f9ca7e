/*
 * Looks at the counters of all sides, and moves steps of memory. What is forgotten between two
 * looks is nothing: all numbers are differences of counts since the last one.
 */
#include "engine/batch/memory_share.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "policy/pager/pager.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

#define WORTH_MORE 1.25
#define TRIAL_STEPS 8 /* of those that run, before another one may take memory */

struct mp_memory_share {
    struct mp_memory_share_config config;
    struct mp_memory_share_stats stats;
    uint64_t step_bytes;
    size_t step_experts;
    bool broken; /* nothing moves any more */

    size_t layers, experts;
    double wait_ns; /* per use of an expert that was not there, when last measured */
    struct mp_worth expert_worth, prefix_worth; /* at the last look */
    uint64_t kv_most_bytes;                     /* of sequences since then */
    uint64_t tried; /* the step after which sequences were last judged worth it or not */

    /* As they were at the last look: */
    uint64_t steps, step_ns;
    uint64_t *uses; // (layers, experts)
    struct mp_counters counters;
    struct mp_prefix_stats prefixes;

    struct mp_expert_use *sorted; // (layers, experts)
    uint8_t *resident;            // (experts)
};

uint64_t mp_memory_share_step(uint64_t total_bytes, uint64_t one_expert_bytes)
{
    const uint64_t part = total_bytes / MP_SHARE_PARTS;

    return part > 2 * one_expert_bytes ? part : 2 * one_expert_bytes;
}

static uint64_t prefix_bytes(const struct mp_memory_share *share, uint64_t budget_bytes,
                             uint64_t kv_bytes)
{
    return mp_batcher_prefixes(share->config.batcher) != NULL
               ? share->config.total_bytes - budget_bytes - kv_bytes
               : 0;
}

static void set_kv_budget(struct mp_memory_share *share, uint64_t kv_bytes)
{
    const struct mp_memory_share_config *c = &share->config;

    mp_batcher_set_kv_budget(c->batcher, kv_bytes, c->total_bytes - c->smallest_bytes);
    share->stats.kv_bytes = kv_bytes;
}

/* What was counted until now is the start of the next look. */
static void remember(struct mp_memory_share *share)
{
    const struct mp_memory_share_config *c = &share->config;
    const struct mp_prefix_store *prefixes = mp_batcher_prefixes(c->batcher);

    share->steps = share->tried = mp_batcher_stats(c->batcher)->steps;
    share->step_ns = mp_batcher_stats(c->batcher)->step_ns;
    share->kv_most_bytes = mp_batcher_stats(c->batcher)->kv_bytes;
    memcpy(share->uses, c->uses, share->layers * share->experts * sizeof(*share->uses));
    share->counters = *mp_engine_counters(c->engine);
    if (prefixes != NULL)
        share->prefixes = *mp_prefix_store_stats(prefixes);
}

enum mp_status mp_memory_share_create(const struct mp_memory_share_config *config,
                                      struct mp_memory_share **share_p)
{
    const struct mp_shape *shape = mp_engine_shape(config->engine);
    const size_t layers = shape->layers, experts = shape->experts, count = layers * experts;
    const uint64_t one = config->expert_bytes / count;
    struct mp_memory_share *share = calloc(1, sizeof(*share));

    if (share == NULL)
        return mp_fail_no_memory("a budget that is shared", sizeof(*share));
    share->config = *config;
    share->layers = layers;
    share->experts = experts;
    share->step_bytes = mp_memory_share_step(config->total_bytes, one);
    share->step_experts = (size_t)(share->step_bytes / one);
    share->uses = calloc(count, sizeof(*share->uses));
    share->sorted = calloc(count, sizeof(*share->sorted));
    share->resident = calloc(experts, 1);
    if (share->uses == NULL || share->sorted == NULL || share->resident == NULL) {
        mp_memory_share_destroy(share);
        return mp_fail_no_memory("a budget that is shared", count * sizeof(*share->sorted));
    }
    share->stats.budget_bytes = config->budget_bytes;
    share->stats.prefix_bytes = prefix_bytes(share, config->budget_bytes, config->kv_bytes);
    set_kv_budget(share, config->kv_bytes);
    remember(share);
    *share_p = share;
    return MP_OK;
}

void mp_memory_share_destroy(struct mp_memory_share *share)
{
    if (share == NULL)
        return;
    free(share->uses);
    free(share->sorted);
    free(share->resident);
    free(share);
}

/* ---- worth */

static int by_uses(const void *a, const void *b)
{
    const struct mp_expert_use *left = a, *right = b;

    return (left->uses > right->uses) - (left->uses < right->uses);
}

struct mp_worth mp_worth_of_experts(struct mp_expert_use *uses, size_t count, size_t step,
                                    double ns)
{
    uint64_t least = 0, most = 0;
    size_t residents = 0, others = 0;

    qsort(uses, count, sizeof(*uses), by_uses);
    for (size_t i = 0; i < count; i++) {
        if (uses[i].resident && residents < step) {
            least += uses[i].uses;
            residents++;
        }
        if (!uses[count - 1 - i].resident && others < step) {
            most += uses[count - 1 - i].uses;
            others++;
        }
    }
    return (struct mp_worth){ .gain_ns = (double)most * ns, .loss_ns = (double)least * ns };
}

int mp_memory_share_decide(const struct mp_worth *experts, const struct mp_worth *prefixes)
{
    const double to_experts = experts->gain_ns - WORTH_MORE * prefixes->loss_ns;
    const double to_prefixes = prefixes->gain_ns - WORTH_MORE * experts->loss_ns;

    if (to_experts <= 0 && to_prefixes <= 0)
        return 0;
    return to_experts > to_prefixes ? 1 : -1;
}

/* How often each expert was chosen since the last look; returns the sum. */
static uint64_t read_uses(struct mp_memory_share *share)
{
    struct mp_pager *pager = mp_engine_pager(share->config.engine);
    uint64_t sum = 0;

    for (size_t layer = 0; layer < share->layers; layer++) {
        const size_t first = layer * share->experts;

        mp_pager_residents(pager, (uint32_t)layer, false, share->resident);
        for (size_t e = 0; e < share->experts; e++) {
            struct mp_expert_use *use = &share->sorted[first + e];

            use->uses = share->config.uses[first + e] - share->uses[first + e];
            use->resident = share->resident[e] != 0;
            sum += use->uses;
        }
    }
    return sum;
}

/* A batch needs an expert once for all its tokens: the wait per choice of an absent one. */
static void measure_wait(struct mp_memory_share *share, uint64_t chosen)
{
    const struct mp_counters now =
        mp_counters_since(mp_engine_counters(share->config.engine), &share->counters);
    const uint64_t absent = now.misses + now.partial_hits, needed = now.hits + absent;

    if (absent > 0 && chosen > 0)
        share->wait_ns =
            (double)now.exposed_wait_ns / (double)absent * (double)needed / (double)chosen;
    else if (share->wait_ns <= 0)
        share->wait_ns = (double)mp_pager_load_ns(mp_engine_pager(share->config.engine));
}

static struct mp_worth worth_of_prefixes(const struct mp_memory_share *share)
{
    const struct mp_batcher_stats *b = mp_batcher_stats(share->config.batcher);
    const struct mp_prefix_store *store = mp_batcher_prefixes(share->config.batcher);
    const struct mp_prefix_stats *now =
        store != NULL ? mp_prefix_store_stats(store) : &share->prefixes;
    const uint64_t near = now->missing_tokens - share->prefixes.missing_tokens;
    const uint64_t far = (now->far_tokens - share->prefixes.far_tokens) / MP_PREFIX_FAR_STEPS;
    const double ns = b->prompt_tokens > 0 ? (double)b->prompt_ns / (double)b->prompt_tokens : 0;

    return (struct mp_worth){
        .gain_ns = ns * (double)(near > far ? near : far),
        .loss_ns = ns * (double)(now->lost_tokens - share->prefixes.lost_tokens),
    };
}

/* Of the time since the last look. */
static void measure(struct mp_memory_share *share)
{
    const struct mp_worth *experts = &share->expert_worth, *prefixes = &share->prefix_worth;

    measure_wait(share, read_uses(share));
    share->expert_worth = mp_worth_of_experts(share->sorted, share->layers * share->experts,
                                              share->step_experts, share->wait_ns);
    share->prefix_worth = worth_of_prefixes(share);
    mp_log_debug("serve",
                 "a step of memory would save %.0f us with experts and %.0f with prompts, and "
                 "costs %.0f and %.0f",
                 experts->gain_ns / 1e3, prefixes->gain_ns / 1e3, experts->loss_ns / 1e3,
                 prefixes->loss_ns / 1e3);
}

/* ---- moving */

/* First one gives, then the other takes: never more than there is. Sequences need no more than
 * `kv_bytes`. */
static enum mp_status divide(struct mp_memory_share *share, uint64_t budget_bytes,
                             uint64_t kv_bytes)
{
    const struct mp_memory_share_config *c = &share->config;
    struct mp_prefix_store *prefixes = mp_batcher_prefixes(c->batcher);
    const uint64_t kept = prefix_bytes(share, budget_bytes, kv_bytes);
    enum mp_status status = MP_OK;

    if (prefixes != NULL && kept < share->stats.prefix_bytes)
        mp_prefix_store_set_budget(prefixes, kept);
    if (budget_bytes != share->stats.budget_bytes)
        status = mp_engine_set_budget(c->engine, budget_bytes);
    if (status != MP_OK) {
        if (prefixes != NULL)
            mp_prefix_store_set_budget(prefixes, share->stats.prefix_bytes);
        return status;
    }
    if (prefixes != NULL)
        mp_prefix_store_set_budget(prefixes, kept);
    set_kv_budget(share, kv_bytes);
    share->stats.budget_bytes = budget_bytes;
    share->stats.prefix_bytes = kept;
    mp_log_debug("serve",
                 "experts have %" PRIu64 " bytes now, prompts %" PRIu64 ", sequences %" PRIu64,
                 budget_bytes, kept, kv_bytes);
    return MP_OK;
}

enum mp_status mp_memory_share_set(struct mp_memory_share *share, uint64_t budget_bytes)
{
    const struct mp_memory_share_config *c = &share->config;
    uint64_t kv_bytes = share->stats.kv_bytes;

    if (budget_bytes > c->full_bytes)
        budget_bytes = c->full_bytes;
    if (budget_bytes > c->total_bytes - kv_bytes) {
        mp_batcher_drop_idle(c->batcher, 0);
        kv_bytes = mp_batcher_stats(c->batcher)->kv_bytes;
    }
    if (budget_bytes > c->total_bytes - kv_bytes)
        return mp_fail(MP_ERR_CONFIG, "E_REQUEST",
                       "budget of %" PRIu64 " bytes: --memory leaves %" PRIu64
                       " for experts, kept prompts and KV cache, and the answers that run need "
                       "%" PRIu64 " of them",
                       budget_bytes, c->total_bytes, kv_bytes);
    if (share->stats.kv_bytes < c->total_bytes - budget_bytes)
        kv_bytes = share->stats.kv_bytes;
    else
        kv_bytes = c->total_bytes - budget_bytes;
    return divide(share, budget_bytes, kv_bytes);
}

/* The experts' budget one step further, as far as both have bounds. */
static uint64_t next_budget(const struct mp_memory_share *share, int direction)
{
    const struct mp_memory_share_config *c = &share->config;
    const uint64_t room = c->total_bytes - share->stats.kv_bytes;
    const uint64_t most = c->full_bytes < room ? c->full_bytes : room;
    const uint64_t now = share->stats.budget_bytes;

    if (direction > 0)
        return most - now < share->step_bytes ? most : now + share->step_bytes;
    if (direction < 0)
        return now < c->smallest_bytes + share->step_bytes ? c->smallest_bytes
                                                           : now - share->step_bytes;
    return now;
}

static enum mp_status move(struct mp_memory_share *share, int direction)
{
    const uint64_t budget = next_budget(share, direction);
    enum mp_status status;

    if (budget == share->stats.budget_bytes)
        return MP_OK;
    status = divide(share, budget, share->stats.kv_bytes);
    if (status != MP_OK)
        return status;
    share->stats.to_experts += direction > 0;
    share->stats.to_prefixes += direction < 0;
    return MP_OK;
}

/* What they may get beyond what they have. */
static uint64_t most_for_sequences(const struct mp_memory_share *share)
{
    return share->config.total_bytes - share->config.smallest_bytes - share->stats.kv_bytes;
}

/* So many bytes from the two others: experts', kept prompts'. Who loses less gives first. */
struct parts {
    uint64_t experts, rest;
};

static struct parts find_givers(const struct mp_memory_share *share, uint64_t bytes)
{
    const struct mp_memory_share_config *c = &share->config;
    const uint64_t rest = c->total_bytes - share->stats.budget_bytes - share->stats.kv_bytes;
    const uint64_t experts = share->stats.budget_bytes - c->smallest_bytes;
    const bool experts_last = mp_batcher_prefixes(c->batcher) == NULL ||
                              share->prefix_worth.loss_ns <= share->expert_worth.loss_ns;
    struct parts from;

    if (experts_last)
        from.experts = bytes > rest ? bytes - rest : 0;
    else
        from.experts = bytes < experts ? bytes : experts;
    from.rest = bytes - from.experts;
    return from;
}

/* With n + 1 sequences at once in place of n, what was computed since the last look would have
 * taken an n-th less time, if steps took as long; and the wait for experts, and the computing of
 * prompts, that the bytes have saved in that time is what it costs. */
static bool is_worth_more(struct mp_memory_share *share, const struct parts *from, uint64_t active)
{
    const struct mp_batcher_stats *b = mp_batcher_stats(share->config.batcher);
    const uint64_t one = share->step_bytes / share->step_experts;
    const struct mp_worth experts =
        mp_worth_of_experts(share->sorted, share->layers * share->experts,
                            (size_t)((from->experts + one - 1) / one), share->wait_ns);
    const double gain_ns = (double)(b->step_ns - share->step_ns) / (double)(active + 1);
    const double loss_ns = experts.loss_ns + share->prefix_worth.loss_ns * (double)from->rest /
                                                 (double)share->step_bytes;

    mp_log_debug("serve", "one more sequence would save %.0f us, and costs %.0f", gain_ns / 1e3,
                 loss_ns / 1e3);
    return gain_ns > WORTH_MORE * loss_ns;
}

/* A job waits for so many bytes more, and they can be had: what cannot will be when others end.
 * Where none goes on it gets them; else after a few steps with what there is, if that is worth it.
 */
static enum mp_status give_sequences(struct mp_memory_share *share, uint64_t wanted_bytes,
                                     bool *given_p)
{
    const struct mp_batcher_stats *b = mp_batcher_stats(share->config.batcher);
    const uint64_t most = most_for_sequences(share), active = b->running - b->paused;
    const uint64_t parts = (wanted_bytes + share->step_bytes - 1) / share->step_bytes;
    const uint64_t bytes = parts * share->step_bytes < most ? parts * share->step_bytes : most;
    struct parts from;
    enum mp_status status;

    *given_p = false;
    if (active > 0 && b->steps < share->tried + TRIAL_STEPS)
        return MP_OK;
    share->tried = b->steps;
    if (active > 0)
        measure(share);
    from = find_givers(share, bytes);
    if (active > 0 && !is_worth_more(share, &from, active))
        return MP_OK;
    status = divide(share, share->stats.budget_bytes - from.experts, share->stats.kv_bytes + bytes);
    *given_p = status == MP_OK;
    if (status == MP_OK) {
        share->stats.to_sequences++;
        remember(share);
    } else if (active == 0) {
        mp_batcher_fail_next(share->config.batcher);
    }
    return status;
}

/* What sequences did not need since the last look goes where it gains more. True: some did. */
static bool take_back(struct mp_memory_share *share, enum mp_status *status_p)
{
    const uint64_t kv = share->stats.kv_bytes, most = share->kv_most_bytes;
    const uint64_t bytes = kv > most ? (kv - most) / share->step_bytes * share->step_bytes : 0;
    const uint64_t room = share->config.full_bytes - share->stats.budget_bytes;
    const bool to_experts = share->expert_worth.gain_ns >= share->prefix_worth.gain_ns;
    const uint64_t experts = to_experts ? bytes < room ? bytes : room : 0;

    if (bytes == 0)
        return false;
    *status_p = divide(share, share->stats.budget_bytes + experts, kv - bytes);
    share->stats.from_sequences += *status_p == MP_OK;
    return true;
}

enum mp_status mp_memory_share_look(struct mp_memory_share *share)
{
    const struct mp_batcher_stats *stats = mp_batcher_stats(share->config.batcher);
    enum mp_status status = MP_OK;
    bool given = false;

    if (stats->kv_bytes > share->kv_most_bytes)
        share->kv_most_bytes = stats->kv_bytes;
    if (stats->kv_wanted_bytes > 0 && stats->kv_wanted_bytes <= most_for_sequences(share))
        status = give_sequences(share, stats->kv_wanted_bytes, &given);
    if (status != MP_OK || given || share->broken || stats->steps < share->steps + MP_SHARE_STEPS)
        return status;
    mp_batcher_drop_idle(share->config.batcher, MP_SHARE_STEPS);
    measure(share);
    if (stats->kv_wanted_bytes > 0 || !take_back(share, &status))
        status = move(share, mp_memory_share_decide(&share->expert_worth, &share->prefix_worth));
    share->broken = status != MP_OK;
    remember(share);
    return status;
}

const struct mp_memory_share_stats *mp_memory_share_stats(const struct mp_memory_share *share)
{
    return &share->stats;
}
