/*
 * Load ahead what each token would choose by the predicted scores: the union of all tokens' best
 * experts, ordered by how many tokens want them, then by the sum of their scores, then by id.
 */
#include "policy/builtins.h"

#include <stdlib.h>

#include "vmm/base/error.h"

struct top_config {
    uint64_t ranks;
};

static const struct mp_opt top_opts[] = {
    MP_OPT(MP_OPT_U64, "RANKS", struct top_config, ranks, "0", 0, 4096,
           "Predicted experts of each token that prefetch policy top loads ahead; 0: as many as "
           "the model chooses."),
    MP_OPT_END,
};

struct candidate {
    uint32_t expert, tokens;
    float score;
};

struct top {
    struct mp_policy super;
    uint32_t ranks;
    struct candidate *candidates; // (experts)
    uint32_t *best;               // (experts): scratch, one token's ranks
    float *best_score;            // (experts)
};

static void top_destroy(struct mp_policy *policy)
{
    struct top *top = (struct top *)policy;

    free(top->candidates);
    free(top->best);
    free(top->best_score);
    free(top);
}

static enum mp_status top_create(const void *config_, const struct mp_shape *shape,
                                 struct mp_policy **policy_p)
{
    const struct top_config *config = config_;
    const uint64_t ranks = config->ranks == 0 ? shape->top_k : config->ranks;
    struct top *top = calloc(1, sizeof(*top));

    if (top == NULL)
        return mp_fail_no_memory("prefetch policy 'top'", sizeof(*top));
    top->super.info = &mp_prefetch_top.info;
    top->ranks = ranks < shape->experts ? (uint32_t)ranks : shape->experts;
    top->candidates = calloc(shape->experts, sizeof(*top->candidates));
    top->best = calloc(shape->experts, sizeof(*top->best));
    top->best_score = calloc(shape->experts, sizeof(*top->best_score));
    if (top->candidates == NULL || top->best == NULL || top->best_score == NULL) {
        top_destroy(&top->super);
        return mp_fail_no_memory("prefetch policy 'top'", shape->experts * 24u);
    }
    *policy_p = &top->super;
    return MP_OK;
}

static bool before(const struct candidate *a, const struct candidate *b)
{
    if (a->tokens != b->tokens)
        return a->tokens > b->tokens;
    if (a->score != b->score)
        return a->score > b->score;
    return a->expert < b->expert;
}

/* Insertion sort: few candidates, and qsort() may allocate. */
static void sort(struct candidate *list, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++) {
        const struct candidate one = list[i];
        uint32_t at = i;

        for (; at > 0 && before(&one, &list[at - 1]); at--)
            list[at] = list[at - 1];
        list[at] = one;
    }
}

static uint32_t top_choose(struct mp_policy *policy, const struct mp_prefetch_facts *facts,
                           uint32_t *experts)
{
    struct top *top = (struct top *)policy;
    uint32_t count = 0;

    for (uint32_t e = 0; e < facts->experts; e++)
        top->candidates[e] = (struct candidate){ .expert = e };
    for (uint32_t t = 0; t < facts->tokens; t++) {
        const struct mp_route_facts one = {
            .tokens = 1,
            .experts = facts->experts,
            .k = top->ranks,
            .scores = facts->scores + (size_t)t * facts->experts,
        };

        mp_route_top_k(&one, top->best, top->best_score);
        for (uint32_t r = 0; r < top->ranks; r++) {
            top->candidates[top->best[r]].tokens++;
            top->candidates[top->best[r]].score += top->best_score[r];
        }
    }
    for (uint32_t e = 0; e < facts->experts; e++) {
        if (top->candidates[e].tokens > 0)
            top->candidates[count++] = top->candidates[e];
    }
    sort(top->candidates, count);
    for (uint32_t i = 0; i < count; i++)
        experts[i] = top->candidates[i].expert;
    return count;
}

const struct mp_prefetch_ops mp_prefetch_top = {
    .info = { .abi = MP_POLICY_ABI,
              .name = "top",
              .summary = "each token's best experts by the predicted scores",
              .opts = top_opts,
              .config_size = sizeof(struct top_config) },
    .create = top_create,
    .destroy = top_destroy,
    .choose = top_choose,
};
