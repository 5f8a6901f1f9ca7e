/*
 * The experts that predicted scores name, in order; see candidates.h. How many of them are loaded
 * is for the prefetch policies to say.
 */
#include "policy/prefetch/candidates.h"

#include <stdlib.h>

#include "policy/top_k.h"
#include "vmm/base/assert.h"

void mp_candidates_take(struct mp_candidates *set, const struct mp_shape *shape,
                        struct mp_arena *arena)
{
    set->list = mp_arena_take(arena, shape->experts, sizeof(*set->list));
    set->best = mp_arena_take(arena, shape->experts, sizeof(*set->best));
    set->best_score = mp_arena_take(arena, shape->experts, sizeof(*set->best_score));
}

static bool before(const struct mp_candidate *a, const struct mp_candidate *b)
{
    if (a->tokens != b->tokens)
        return a->tokens > b->tokens;
    if (a->score != b->score)
        return a->score > b->score;
    return a->expert < b->expert;
}

/* Insertion sort: few candidates, and qsort() may allocate. */
static void sort(struct mp_candidate *list, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++) {
        const struct mp_candidate one = list[i];
        uint32_t at = i;

        while (at > 0 && before(&one, &list[at - 1])) {
            list[at] = list[at - 1];
            at--;
        }
        list[at] = one;
    }
}

uint32_t mp_candidates_gather(struct mp_candidates *set, const struct mp_prefetch_facts *facts,
                              uint32_t ranks, float margin)
{
    const bool barred = margin >= 0 && ranks < facts->experts;
    uint32_t count = 0;

    mp_assert(ranks > 0 && ranks <= facts->experts);
    for (uint32_t e = 0; e < facts->experts; e++)
        set->list[e] = (struct mp_candidate){ .expert = e };
    for (uint32_t t = 0; t < facts->tokens; t++) {
        mp_top_k(facts->scores + (size_t)t * facts->experts, facts->experts, ranks + barred,
                 set->best, set->best_score);
        for (uint32_t r = 0; r < ranks; r++) {
            if (barred && !(set->best_score[r] > (1 + margin) * set->best_score[ranks]))
                break;
            set->list[set->best[r]].tokens++;
            set->list[set->best[r]].score += set->best_score[r];
        }
    }
    for (uint32_t e = 0; e < facts->experts; e++) {
        if (set->list[e].tokens > 0)
            set->list[count++] = set->list[e];
    }
    sort(set->list, count);
    return count;
}
