#ifndef MP_TESTS_SMOE_FIGURE_H
#define MP_TESTS_SMOE_FIGURE_H

/* The example of the paper's figure 1. */

/*
 * Figure 1: a token chooses five experts, a to e; a, b and the unchosen f, g are resident. Here
 * a..h are experts 0..7. With alpha 0.25 and S(6) = 0.09 the low-score ones are those up to 0.1125,
 * d and e, and substitutes need more than 0.0675: f and g do, h does not, nor is it resident.
 *
 *     before: 2 of 5 are resident, 3 have to be loaded      after: 4 of 5, and 1
 */
enum { A, B, C, D, E, F, G, H };
static const float figure_scores[8] = { 0.24f, 0.2f, 0.18f, 0.1f, 0.095f, 0.09f, 0.08f, 0.015f };
static const uint8_t figure_resident[8] = { 1, 1, 0, 0, 0, 1, 1, 0 };

static inline unsigned count_hits(const uint32_t *experts, const uint8_t *resident, uint32_t k)
{
    unsigned hits = 0;

    for (uint32_t r = 0; r < k; r++)
        hits += resident[experts[r]];
    return hits;
}

#endif
