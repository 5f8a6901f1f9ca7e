/*
 * The highest scores; see top_k.h. An insertion into a short sorted list: k is small, and equal
 * scores stay in order.
 */
#include "policy/top_k.h"

#include "vmm/base/assert.h"

void mp_top_k(const float *scores, uint32_t count, uint32_t k, uint32_t *chosen, float *best)
{
    uint32_t found = 0;

    mp_assert(k <= count);
    for (uint32_t e = 0; e < count; e++) {
        uint32_t at = found < k ? found : k;

        while (at > 0 && best[at - 1] < scores[e])
            at--;
        if (at == k)
            continue;
        if (found < k)
            found++;
        for (uint32_t i = found - 1; i > at; i--) {
            chosen[i] = chosen[i - 1];
            best[i] = best[i - 1];
        }
        chosen[at] = e;
        best[at] = scores[e];
    }
}

void mp_route_top_k(const struct mp_route_facts *facts, uint32_t *experts, float *weights)
{
    for (size_t t = 0; t < facts->tokens; t++)
        mp_top_k(facts->scores + t * facts->experts, facts->experts, facts->k,
                 experts + t * facts->k, weights + t * facts->k);
}
