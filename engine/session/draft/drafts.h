#ifndef MP_DRAFTS_H
#define MP_DRAFTS_H

#include "engine/session/draft/gain.h"

/*
 * Drafts of the sequences of a generation: what is guessed, how much of it is checked, and what was
 * right.
 *
 * Exactness: a step runs the last token of each sequence and behind it the guesses, and samples a
 * token after each as if there were no guesses, with the sequence's next random number, until one
 * differs from the guess. A guess is then accepted with the probability that the model gives it,
 * and after a wrong one the token has the model's distribution without it: the accept-reject rule
 * for a guess that is certain of itself. So the tokens are those of a generation without drafts,
 * at every temperature.
 */
struct mp_drafts;

struct mp_drafts_config {
    struct mp_draft_source *source; /* owned once creation has succeeded */
    uint32_t sequences;
    uint32_t most; /* guesses to check for each sequence, 1..MP_DRAFT_MAX */
    bool always;   /* do not compare times: check all guesses */
};

struct mp_drafts_stats {
    uint64_t drafted, accepted; /* tokens */
    uint64_t steps;             /* that checked guesses */
};

enum mp_status mp_drafts_create(const struct mp_drafts_config *config,
                                struct mp_drafts **drafts_p) MP_MUST_CHECK;
void mp_drafts_destroy(struct mp_drafts *drafts);

uint32_t mp_drafts_most(const struct mp_drafts *drafts);

/* Forget all texts, and the counts of stats. What was learned about times and guesses is kept. */
void mp_drafts_begin(struct mp_drafts *drafts);

/* A sequence has one more token: of its prompt, or generated. */
void mp_drafts_push(struct mp_drafts *drafts, uint32_t sequence, uint32_t token);

/*
 * Before a step of `count` sequences: what to check. room(count): most guesses that the sequence
 * can take. total: most guesses of all together. Results are read with mp_drafts_of().
 */
enum mp_status mp_drafts_plan(struct mp_drafts *drafts, const uint32_t *sequence,
                              const uint32_t *room, uint32_t count, uint32_t total) MP_MUST_CHECK;
const struct mp_draft *mp_drafts_of(const struct mp_drafts *drafts, uint32_t sequence);

/* Guesses that are not checked in this step, of a text that goes on alone; count 0: none. */
const struct mp_draft *mp_drafts_unchecked(const struct mp_drafts *drafts, uint32_t sequence);

/* After the step: how many of the sequence's guesses were accepted; and how long all of it took. */
void mp_drafts_note(struct mp_drafts *drafts, uint32_t sequence, uint32_t accepted);
void mp_drafts_end(struct mp_drafts *drafts, uint64_t ns);

const struct mp_drafts_stats *mp_drafts_stats(const struct mp_drafts *drafts);

#endif
