/*
 * MoEpic's speculative prefetch (section 3.2): experts of the next layer one by one in descending
 * order of their predicted scores, from the end of the demand loads, behind which prefetches are
 * queued, until the router's result is known; what has not started by then is taken back. With
 * predictor `gate-around` the first layer follows from the last one of the previous token.
 *
 * Departures: the buffer of the paper (U_b, as large as the experts of one token) is a limit on how
 * many absent experts are named, BUFFER; with several tokens the scores are summed, the paper has
 * one. Equal sums go to the lower id. O(experts * (tokens + named)).
 */
#include "policy/builtins.h"

#include <string.h>

#include "vmm/base/assert.h"

struct window_config {
    uint64_t buffer;
};

static const struct mp_opt window_opts[] = {
    MP_OPT(MP_OPT_U64, "BUFFER", struct window_config, buffer, "0", 0, 4096,
           "Experts that prefetch policy window loads ahead at most; 0: as many as a token "
           "chooses."),
    MP_OPT_END,
};

struct window {
    struct mp_policy super;
    uint32_t buffer;
    double *sum;    // (experts)
    uint8_t *taken; // (experts)
};

static void window_take(struct mp_policy *policy, const struct mp_shape *shape,
                        struct mp_arena *arena)
{
    struct window *window = (struct window *)policy;

    window->sum = mp_arena_take(arena, shape->experts, sizeof(*window->sum));
    window->taken = mp_arena_take(arena, shape->experts, 1);
}

static enum mp_status window_create(const void *config_, const struct mp_shape *shape,
                                    struct mp_policy **policy_p)
{
    const struct window_config *config = config_;
    struct window draft = {
        .super.info = &mp_prefetch_window.info,
        .buffer = config->buffer > 0 ? (uint32_t)config->buffer : shape->top_k,
    };

    return mp_policy_make(&draft.super, sizeof(draft), window_take, shape, policy_p);
}

/* The expert with the largest sum that is not taken; there is one. */
static uint32_t take_best(struct window *window, uint32_t experts)
{
    uint32_t best = experts;

    for (uint32_t e = 0; e < experts; e++) {
        if (!window->taken[e] && (best == experts || window->sum[e] > window->sum[best]))
            best = e;
    }
    window->taken[best] = 1;
    return best;
}

static uint32_t window_choose(struct mp_policy *policy, const struct mp_prefetch_facts *facts,
                              uint32_t *experts)
{
    struct window *window = (struct window *)policy;
    uint32_t count = 0, absent = 0;

    mp_assert(window->buffer > 0);
    memset(window->sum, 0, facts->experts * sizeof(window->sum[0]));
    memset(window->taken, 0, facts->experts);
    for (uint32_t t = 0; t < facts->tokens; t++) {
        for (uint32_t e = 0; e < facts->experts; e++)
            window->sum[e] += (double)facts->scores[(size_t)t * facts->experts + e];
    }
    while (count < facts->experts && count < facts->max && absent < window->buffer) {
        const uint32_t best = take_best(window, facts->experts);

        experts[count++] = best;
        absent += !facts->resident[best];
    }
    return count;
}

const struct mp_prefetch_ops mp_prefetch_window = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "window",
              .summary = "best scores first, until the router's result is known (MoEpic)",
              .opts = window_opts,
              .config_size = sizeof(struct window_config) },
    .create = window_create,
    .destroy = mp_policy_free,
    .choose = window_choose,
    .until_routed = true,
};
