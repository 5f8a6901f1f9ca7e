#ifndef MP_EVALUATE_H
#define MP_EVALUATE_H

#include "engine/forward/engine.h"

/*
 * Measures the accuracy of a predict policy, layer by layer: set its observer in an engine and run
 * batches whose rows are one step of the same texts. Layer 0 is predicted, if at all, in the
 * previous step; the first step of a text does not count for it.
 *
 * recall  of each token's k experts, the share that is among its k best predicted ones
 * hot     experts ranked by how many tokens of the batch they have, as predicted and in truth
 *         (equal counts: the lower number first): the share of the predicted best 4 that are in the
 *         true best 6, where one that has as many tokens as the sixth counts too. PreScope's "Hot
 *         Top-4" (section 6.4).
 */
#define MP_EVALUATE_HOT 4u
#define MP_EVALUATE_HOT_WITHIN 6u

struct mp_evaluation {
    uint64_t tokens; /* 0: the policy never predicted this layer */
    double recall, hot;
};

struct mp_evaluator;

enum mp_status mp_evaluator_create(const struct mp_model_id *id, uint32_t tokens_max,
                                   struct mp_evaluator **evaluator_p) MP_MUST_CHECK;
void mp_evaluator_destroy(struct mp_evaluator *evaluator);

const struct mp_observer *mp_evaluator_observer(struct mp_evaluator *evaluator);

/* Reset all counts, for the next policy. */
void mp_evaluator_reset(struct mp_evaluator *evaluator);

void mp_evaluator_result(const struct mp_evaluator *evaluator, uint32_t layer,
                         struct mp_evaluation *result_p);

#endif
