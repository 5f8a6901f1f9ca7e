#ifndef MP_DRAFT_H
#define MP_DRAFT_H

#include <stdbool.h>
#include <stdint.h>

#include "vmm/base/status.h"

/*
 * A source of drafts: guesses of the tokens that follow in a text. The model checks a whole draft
 * in one batch (engine/session/draft/drafts.h), so a source affects time only, never the text.
 *
 * Each source is one file. Texts are numbered as the sequences of the engine.
 *
 * Thread safety: one thread at a time.
 */
#define MP_DRAFT_MAX 8u       /* tokens that a step checks */
#define MP_DRAFT_AHEAD_MAX 8u /* tokens behind them, for a lookahead */
#define MP_DRAFT_LONGEST (MP_DRAFT_MAX + MP_DRAFT_AHEAD_MAX)
#define MP_DRAFT_KINDS 8u /* of guesses, from the least sure to the surest */

struct mp_draft {
    uint32_t count;
    uint32_t token[MP_DRAFT_LONGEST];
    uint8_t kind[MP_DRAFT_LONGEST]; /* below MP_DRAFT_KINDS */
};

struct mp_batch;
struct mp_draft_source;

struct mp_draft_source_ops {
    const char *name;
    bool quick; /* a guess takes no time worth measuring */

    /* All texts are empty again. */
    void (*begin)(struct mp_draft_source *source);

    /* A text has one more token. No effect past the longest text. */
    void (*push)(struct mp_draft_source *source, uint32_t text, uint32_t token);

    /* Optional: the model has run this batch, the tokens of which are pushed before or behind it,
     * guesses that were right, or wrong; states as mp_engine_states(). */
    enum mp_status (*seen)(struct mp_draft_source *source, const struct mp_batch *batch,
                           const float *states) MP_MUST_CHECK;

    /* Guess at most `most` tokens, 1..MP_DRAFT_LONGEST, after those of the text. */
    enum mp_status (*guess)(struct mp_draft_source *source, uint32_t text, uint32_t most,
                            struct mp_draft *draft) MP_MUST_CHECK;

    void (*destroy)(struct mp_draft_source *source);
};

/* First member of every source. */
struct mp_draft_source {
    const struct mp_draft_source_ops *ops;
    uint64_t
        late_ns; /* of guesses, spent on tokens that were there long before; see mp_drafts_end */
};

/* Looks for the last tokens earlier in the same text and guesses what came after them there. The
 * kind of a guess is the number of tokens that agree, less one. `length`: of the longest text. */
enum mp_status mp_draft_lookup_create(uint32_t texts, uint32_t length,
                                      struct mp_draft_source **source_p) MP_MUST_CHECK;

#endif
