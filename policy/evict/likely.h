#ifndef MP_POLICY_LIKELY_H
#define MP_POLICY_LIKELY_H

#include "policy/evict/ghost.h"

/*
 * How likely the next token of a layer chooses each of its experts, for evict policy `shadow`: a
 * sum of several guesses with weights that are learned while running. The guesses are what is used
 * now (p of next-use), what scores high now and what has scored high all the time (k times a moving
 * average and the mean of the router's scores), and what a calibration counted, if there is one.
 * Which of them is right depends on the text and the model: with momentum the first two, without
 * any the last two.
 *
 * The weights are those with the least sum of squared errors (share of the tokens that chose the
 * expert, less the guess) over all experts of all layers so far, half of it forgotten in 256
 * tokens, and at first they are held to constants.
 *
 * No thread safety; the owner is `shadow`.
 */
#define MP_LIKELY_GUESSES 4u

struct mp_likely {
    const struct mp_ghost_facts *facts;
    double *guess;  // (layers, GUESSES, experts): of the layer's next token
    double *mean;   // (ids): sum of scores so far
    double *tokens; // (layers): that it is of
    double *share;  // (experts): scratch
    bool *guessed;  // (layers)
    double weight[MP_LIKELY_GUESSES];
    double product[MP_LIKELY_GUESSES][MP_LIKELY_GUESSES]; /* sums of guess * guess, fading */
    double target[MP_LIKELY_GUESSES];                     /* of guess * share */
    bool calibrated;
};

/* Take the arrays; called twice, before and after mp_arena_open(). `facts` must outlive it. */
void mp_likely_take(struct mp_likely *likely, const struct mp_shape *shape,
                    const struct mp_ghost_facts *facts, struct mp_arena *arena);

/* Before the first batch: how often a calibration saw each expert, hot(layers, experts), or NULL.
 */
void mp_likely_begin(struct mp_likely *likely, const float *hot);

/* The router's scores (tokens, experts) of a batch of `layer`. */
void mp_likely_scores(struct mp_likely *likely, uint32_t layer, uint32_t tokens,
                      const float *scores);

/* Learn from a batch of `layer` in which tokens[i] tokens chose ids[i], which `facts` has counted.
 */
void mp_likely_batch(struct mp_likely *likely, uint32_t layer, const uint32_t *ids,
                     const uint32_t *tokens, uint32_t count);

/* Probability that the next token of its layer chooses the expert, about. */
double mp_likely_share(const struct mp_likely *likely, uint32_t id);

#endif
