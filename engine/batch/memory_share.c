/*
 * Looks at the counters of both sides, and moves steps of memory. What is forgotten between two
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

struct mp_memory_share {
    struct mp_memory_share_config config;
    struct mp_memory_share_stats stats;
    uint64_t step_bytes;
    size_t step_experts;
    bool broken; /* nothing moves any more */

    size_t layers, experts;
    double wait_ns; /* per use of an expert that was not there, when last measured */

    /* As they were at the last look: */
    uint64_t steps;
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

static uint64_t prefix_bytes(const struct mp_memory_share *share, uint64_t budget_bytes)
{
    return mp_batcher_prefixes(share->config.batcher) != NULL
               ? share->config.total_bytes - budget_bytes
               : 0;
}

/* What was counted until now is the start of the next look. */
static void remember(struct mp_memory_share *share)
{
    const struct mp_memory_share_config *c = &share->config;
    const struct mp_prefix_store *prefixes = mp_batcher_prefixes(c->batcher);

    share->steps = mp_batcher_stats(c->batcher)->steps;
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
    share->stats.prefix_bytes = prefix_bytes(share, config->budget_bytes);
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
    const struct mp_prefix_stats *now =
        mp_prefix_store_stats(mp_batcher_prefixes(share->config.batcher));
    const uint64_t near = now->missing_tokens - share->prefixes.missing_tokens;
    const uint64_t far = (now->far_tokens - share->prefixes.far_tokens) / MP_PREFIX_FAR_STEPS;
    const double ns = b->prompt_tokens > 0 ? (double)b->prompt_ns / (double)b->prompt_tokens : 0;

    return (struct mp_worth){
        .gain_ns = ns * (double)(near > far ? near : far),
        .loss_ns = ns * (double)(now->lost_tokens - share->prefixes.lost_tokens),
    };
}

/* ---- moving */

/* First one gives, then the other takes: never more than there is. */
static enum mp_status divide(struct mp_memory_share *share, uint64_t budget_bytes)
{
    const struct mp_memory_share_config *c = &share->config;
    struct mp_prefix_store *prefixes = mp_batcher_prefixes(c->batcher);
    const uint64_t kept = prefix_bytes(share, budget_bytes);
    enum mp_status status;

    if (prefixes != NULL && kept < share->stats.prefix_bytes)
        mp_prefix_store_set_budget(prefixes, kept);
    status = mp_engine_set_budget(c->engine, budget_bytes);
    if (status != MP_OK) {
        if (prefixes != NULL)
            mp_prefix_store_set_budget(prefixes, share->stats.prefix_bytes);
        return status;
    }
    if (prefixes != NULL)
        mp_prefix_store_set_budget(prefixes, kept);
    share->stats.budget_bytes = budget_bytes;
    share->stats.prefix_bytes = kept;
    return MP_OK;
}

enum mp_status mp_memory_share_set(struct mp_memory_share *share, uint64_t budget_bytes)
{
    const struct mp_memory_share_config *c = &share->config;

    if (budget_bytes > c->full_bytes)
        budget_bytes = c->full_bytes;
    if (budget_bytes > c->total_bytes)
        return mp_fail(MP_ERR_CONFIG, "E_REQUEST",
                       "budget of %" PRIu64 " bytes: --memory leaves %" PRIu64
                       " for experts and kept prompts",
                       budget_bytes, c->total_bytes);
    return divide(share, budget_bytes);
}

/* The experts' budget one step further, as far as both have bounds. */
static uint64_t next_budget(const struct mp_memory_share *share, int direction)
{
    const struct mp_memory_share_config *c = &share->config;
    const uint64_t most = c->full_bytes < c->total_bytes ? c->full_bytes : c->total_bytes;
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
    status = divide(share, budget);
    share->broken = status != MP_OK;
    if (share->broken)
        return status;
    share->stats.to_experts += direction > 0;
    share->stats.to_prefixes += direction < 0;
    mp_log_debug("serve", "experts have %" PRIu64 " bytes now, prompts %" PRIu64, budget,
                 share->stats.prefix_bytes);
    return MP_OK;
}

enum mp_status mp_memory_share_look(struct mp_memory_share *share)
{
    struct mp_worth experts, prefixes;
    enum mp_status status = MP_OK;
    uint64_t chosen;

    if (share->broken || mp_batcher_prefixes(share->config.batcher) == NULL ||
        mp_batcher_stats(share->config.batcher)->steps < share->steps + MP_SHARE_STEPS)
        return MP_OK;
    chosen = read_uses(share);
    measure_wait(share, chosen);
    experts = mp_worth_of_experts(share->sorted, share->layers * share->experts,
                                  share->step_experts, share->wait_ns);
    prefixes = worth_of_prefixes(share);
    mp_log_debug("serve",
                 "a step of memory would save %.0f us with experts and %.0f with prompts, and "
                 "costs %.0f and %.0f",
                 experts.gain_ns / 1e3, prefixes.gain_ns / 1e3, experts.loss_ns / 1e3,
                 prefixes.loss_ns / 1e3);
    status = move(share, mp_memory_share_decide(&experts, &prefixes));
    remember(share);
    return status;
}

const struct mp_memory_share_stats *mp_memory_share_stats(const struct mp_memory_share *share)
{
    return &share->stats;
}
