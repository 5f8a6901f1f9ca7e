#ifndef MP_SIM_FIT_H
#define MP_SIM_FIT_H

#include "policy/sim/sim_machine.h"

/*
 * Fits the parameters of a synthetic load (policy/sim/sim_load.h) to given statistics, by bisection
 * on a sample. Every trial uses the same random numbers, so that each statistic is monotone.
 */
#define MP_SIM_BLURS 24

struct mp_sim_fit {
    double share; /* w: weight of the constant part */
    double keep;  /* correlation of z from one token to the next */
    double heat;  /* inverse temperature of the softmax */

    /* Accuracy of the prediction as a decreasing function of its noise. */
    double blur[MP_SIM_BLURS], accuracy[MP_SIM_BLURS];
};

enum mp_status mp_sim_fit(const struct mp_sim_model *model, uint64_t seed,
                          struct mp_sim_fit *fit) MP_MUST_CHECK;

/* A layer's w: the fitted one, more or less by up to `variation`; u is uniform in 0..1. */
float mp_sim_fit_share(const struct mp_sim_fit *fit, double variation, double u);

/* The noise with which a prediction has this accuracy. */
double mp_sim_fit_blur(const struct mp_sim_fit *fit, double accuracy);

/* Random numbers: uniform in 0..1, and bell-shaped with mean 0 and variance 1. */
double mp_sim_uniform(uint64_t *random);
float mp_sim_normal(uint64_t *random);

/* Share of the choices that the most used quarter of the experts has; sorts counts(experts). */
double mp_sim_skew(uint32_t *counts, uint32_t experts);

/* best(k) := the places of the k largest of `count` values, largest first; equal: lower place. */
void mp_sim_top(const float *values, uint32_t count, uint32_t k, uint32_t *best);

#endif
