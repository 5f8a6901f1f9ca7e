/*
 * Estimates are exponential means. A ratio that is not known is guessed from the next smaller known
 * one, or as half a step for each guess.
 */
#include "engine/session/draft/gain.h"

#include "vmm/base/assert.h"

#define PLAIN_FIRST 4u   /* plain steps before the first draft */
#define DRAFTED_MOST 32u /* drafted steps before a plain one, to compare with */
#define PAUSE_FIRST 16u
#define PAUSE_MOST 1024u
#define SLOPE 0.5           /* of a ratio, unmeasured */
#define WORTH_TRYING 1.2    /* tokens that a step must be expected to give for a trial */
#define OTHER_WEIGHT 0.03   /* of a time with another k */
#define STEP_WEIGHT 0.125   /* of a new time */
#define GUESS_WEIGHT 0.0625 /* of a new guess */

void mp_gain_init(struct mp_gain *gain)
{
    static const double first[MP_DRAFT_KINDS] = { 0.1, 0.35, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8 };

    *gain = (struct mp_gain){ .pause = PAUSE_FIRST };
    for (uint32_t i = 0; i < MP_DRAFT_KINDS; i++)
        gain->right[i] = first[i];
}

static void approach(double *mean, double value, double weight)
{
    *mean += weight * (value - *mean);
}

void mp_gain_note_guess(struct mp_gain *gain, uint8_t kind, bool right)
{
    mp_assert(kind < MP_DRAFT_KINDS);
    approach(&gain->right[kind], right ? 1 : 0, GUESS_WEIGHT);
}

/* What is known of other k comes from steps long ago, perhaps: it follows slowly. */
static void note_ratio(struct mp_gain *gain, uint32_t k, double ratio)
{
    approach(&gain->ratio[k], ratio, gain->ratio[k] > 0 ? STEP_WEIGHT : 1);
    for (uint32_t other = 1; other <= MP_DRAFT_MAX; other++) {
        if (other != k && gain->ratio[other] > 0)
            approach(&gain->ratio[other], 1 + (ratio - 1) * other / k, OTHER_WEIGHT);
    }
}

void mp_gain_note_step(struct mp_gain *gain, uint32_t k, uint64_t ns)
{
    mp_assert(k <= MP_DRAFT_MAX);
    if (k == 0) {
        gain->plain_steps++;
        gain->drafted_steps = 0;
        approach(&gain->plain_ns, (double)ns, gain->plain_ns > 0 ? STEP_WEIGHT : 1);
        return;
    }
    gain->drafted_steps++;
    if (gain->plain_ns > 0)
        note_ratio(gain, k, (double)ns / gain->plain_ns);
}

static double ratio_of(const struct mp_gain *gain, uint32_t k)
{
    for (uint32_t known = k; known > 0; known--) {
        if (gain->ratio[known] > 0)
            return 1 + (gain->ratio[known] - 1) * k / known;
    }
    return 1 + SLOPE * k;
}

double mp_gain_chance(const struct mp_gain *gain, const struct mp_draft *draft, uint32_t count)
{
    double right = 1;

    mp_assert(count <= draft->count);
    for (uint32_t i = 0; i < count; i++)
        right *= gain->right[draft->kind[i]];
    return right;
}

double mp_gain_tokens(const struct mp_gain *gain, const struct mp_draft *draft, uint32_t k)
{
    double tokens = 1;

    for (uint32_t i = 1; i <= k && i <= draft->count; i++)
        tokens += mp_gain_chance(gain, draft, i);
    return tokens;
}

/* A draft is worth a trial now and then although its time is thought, or known, not to be. */
static uint32_t try_again(struct mp_gain *gain, double tokens, uint32_t most)
{
    if (tokens < WORTH_TRYING)
        return 0;
    if (gain->left > 0) {
        gain->left--;
        return 0;
    }
    gain->left = gain->pause;
    gain->pause = 2 * gain->pause < PAUSE_MOST ? 2 * gain->pause : PAUSE_MOST;
    return most < 2 ? most : 2;
}

uint32_t mp_gain_choose(struct mp_gain *gain, const struct mp_draft *const *drafts, uint32_t count,
                        uint32_t most)
{
    double best = 1, tokens_most = 1;
    uint32_t chosen = 0, longest = 0;

    mp_assert(most <= MP_DRAFT_MAX);
    for (uint32_t i = 0; i < count; i++)
        longest = drafts[i]->count > longest ? drafts[i]->count : longest;
    most = most < longest ? most : longest;
    if (most == 0 || gain->plain_steps < PLAIN_FIRST || gain->drafted_steps >= DRAFTED_MOST)
        return 0;
    for (uint32_t k = 1; k <= most; k++) {
        double tokens = 0;

        for (uint32_t i = 0; i < count; i++)
            tokens += mp_gain_tokens(gain, drafts[i], k) / count;
        tokens_most = tokens;
        if (tokens / ratio_of(gain, k) > best) {
            best = tokens / ratio_of(gain, k);
            chosen = k;
        }
    }
    if (chosen == 0)
        return try_again(gain, tokens_most, most);
    gain->pause = PAUSE_FIRST;
    return chosen;
}
