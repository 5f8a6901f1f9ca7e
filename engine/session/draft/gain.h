#ifndef MP_DRAFT_GAIN_H
#define MP_DRAFT_GAIN_H

#include "engine/session/draft/draft.h"

/*
 * How long a draft pays: a running comparison of tokens per second. A step that checks k guesses
 * for each sequence takes longer, by a ratio that is measured for each k, and gives more tokens, by
 * the share of each kind of guess that was right. Where drafts do not pay, they are tried again
 * after a pause that grows.
 */
struct mp_gain {
    double right[MP_DRAFT_KINDS]; /* share of the guesses of a kind, as long as those before are */
    double plain_ns;              /* a step without drafts; 0: unknown */
    double ratio[MP_DRAFT_MAX + 1]; /* the time of a step with so many to that; 0: unknown */
    uint32_t plain_steps;           /* since the start */
    uint32_t drafted_steps;         /* since the last plain one */
    uint32_t pause, left;           /* steps between two trials; until the next */
};

void mp_gain_init(struct mp_gain *gain);

/* Was a guess of this kind right? Not of guesses after a wrong one. */
void mp_gain_note_guess(struct mp_gain *gain, uint8_t kind, bool right);

/* A step with at most k guesses for a sequence took so long. */
void mp_gain_note_step(struct mp_gain *gain, uint32_t k, uint64_t ns);

/* How likely the first `count` guesses of a draft are all right. */
double mp_gain_chance(const struct mp_gain *gain, const struct mp_draft *draft, uint32_t count);

/* Tokens that a step is expected to give if it checks the first k of a draft. */
double mp_gain_tokens(const struct mp_gain *gain, const struct mp_draft *draft, uint32_t k);

/* The k, 0..most, to check next, the same for each of these drafts (those that are shorter wholly).
 */
uint32_t mp_gain_choose(struct mp_gain *gain, const struct mp_draft *const *drafts, uint32_t count,
                        uint32_t most);

#endif
