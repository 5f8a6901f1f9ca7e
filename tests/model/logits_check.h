#ifndef MP_TESTS_LOGITS_CHECK_H
#define MP_TESTS_LOGITS_CHECK_H

#include "tests/model/harness.h"

/*
 * Logits against those of Hugging Face transformers in float32, teacher-forced: the prompt and 16
 * further tokens, one sequence ("b1") and four of different lengths together ("b4").
 * tests/data/models/README.md says where the expected values come from.
 *
 * Rows whose router margin is small may legitimately choose another expert; they are counted apart.
 */
struct logits_model {
    const char *model, *expect; /* directories */
};

#define LOGITS_MODELS 5
extern const struct logits_model logits_models[LOGITS_MODELS];

struct logits_tally {
    double bound;   /* largest error of a row */
    float margin;   /* of the router, below which a row is close */
    bool rounds;    /* then a row is close where its error is beyond the bound */
    size_t percent; /* most rows that may be close */

    size_t rows, close_rows;
    double worst; /* of the other rows */
};

/* What arithmetic in float32 must keep. */
struct logits_tally logits_tally_exact(void);

/* Run one batch; sequences and ctx of `options` are the batch's. Exits where a row is wrong. */
void logits_check(const struct logits_model *model, const char *batch,
                  struct harness_options options, struct logits_tally *tally);

/* Print the tally of a model; exits if too many rows were close. */
void logits_judge(const struct logits_model *model, const struct logits_tally *tally);

#endif
