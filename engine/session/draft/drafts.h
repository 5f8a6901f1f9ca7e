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

/*
 * Tokens behind those that a step checks are guessed for a lookahead, too: by the source where it
 * is quick. One that takes time is asked for them in steps that check nothing, while a running
 * comparison says that these steps are faster so (faster.h); otherwise `quick` guesses. With
 * `always` it is asked in each step.
 */
struct mp_drafts_config {
    struct mp_draft_source *source; /* owned once creation has succeeded */
    struct mp_draft_source *quick;  /* beside a source that takes time, or NULL; owned as well */
    uint32_t sequences;
    uint32_t most;  /* guesses to check for each sequence, 1..MP_DRAFT_MAX */
    uint32_t ahead; /* guesses of each sequence for a lookahead, 0..MP_DRAFT_AHEAD_MAX */
    bool always;    /* do not compare times: check all guesses */
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

/* The engine has run a batch of these sequences. */
struct mp_batch;
struct mp_engine;
enum mp_status mp_drafts_seen(struct mp_drafts *drafts, struct mp_engine *engine,
                              const struct mp_batch *batch) MP_MUST_CHECK;

/*
 * Before a step of `count` sequences: what to check. room(count): most guesses that the sequence
 * can take. total: most guesses of all together. Results are read with mp_drafts_of().
 */
enum mp_status mp_drafts_plan(struct mp_drafts *drafts, const uint32_t *sequence,
                              const uint32_t *room, uint32_t count, uint32_t total) MP_MUST_CHECK;
const struct mp_draft *mp_drafts_of(const struct mp_drafts *drafts, uint32_t sequence);

/* The tokens that are guessed behind those of this step: of all sequences the next one, then of all
 * the one after it, and so on; count 0: none. They stay until the next plan. */
#define MP_DRAFTS_EXPECTED_MAX 128u
struct mp_drafts_expected {
    uint32_t count;
    uint32_t token[MP_DRAFTS_EXPECTED_MAX];
    float chance[MP_DRAFTS_EXPECTED_MAX]; /* that it and all before it are right */
};
const struct mp_drafts_expected *mp_drafts_expected(const struct mp_drafts *drafts);

/* After the step: how many of the sequence's guesses were accepted; and how long all of it took,
 * less what the source spent on a text that it had not been asked about: that is no cost of one
 * step. */
void mp_drafts_note(struct mp_drafts *drafts, uint32_t sequence, uint32_t accepted);
void mp_drafts_end(struct mp_drafts *drafts, uint64_t ns);

const struct mp_drafts_stats *mp_drafts_stats(const struct mp_drafts *drafts);

#endif
