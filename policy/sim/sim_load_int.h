#ifndef MP_SIM_LOAD_INT_H
#define MP_SIM_LOAD_INT_H

#include "policy/sim/sim_load.h"

/*
 * A load's state, shared by the scores of routers (sim_load.c) and of predictors
 * (sim_load_predict.c).
 */
struct mp_sim_load {
    struct mp_sim_load_config config;
    uint32_t layers, experts, k;
    struct mp_sim_fit fit;
    uint64_t random;

    uint32_t step; /* 1 for the first one */
    uint32_t tokens;
    bool decode;

    /* Synthetic. */
    float *fixed;        // (layers, experts): a
    float *share;        // (layers): w
    float *moving;       // (layers, sequences, experts): z of the latest token
    float *logits;       // (layers, tokens_max, experts)
    uint32_t *generated; // (layers): step that logits are of
    float *hot;          // (layers, experts)
    float *pairs;        // three times (layers, experts, experts): together, next, similarity
    uint32_t *group;     // (layers)
    struct mp_calibration calibration;

    /* Trace. */
    size_t *step_group; // (groups + 1, the first steps + 1 used): first group of each step
    uint32_t step_count;

    /* Statistics of decode. */
    uint32_t *counts;   // (layers, experts): choices
    uint32_t *best;     // (top_k): scratch
    uint32_t *previous; // (layers, sequences, top_k)
    uint8_t *chosen;    // (experts): scratch
    double overlap_sum, mass_sum, accuracy_sum;
    uint64_t overlap_count, mass_count, accuracy_count;
};

static inline float *mp_sim_load_logits(const struct mp_sim_load *load, uint32_t layer)
{
    return load->logits + (size_t)layer * load->config.tokens_max * load->experts;
}

/* Scores of the batch in a trace that has scores. */
static inline const float *mp_sim_load_recorded(const struct mp_sim_load *load,
                                                const struct mp_replay_group *group)
{
    return load->config.trace->scores + (size_t)group->first_row * load->experts;
}

/* The trace's group of a layer in a step (1, 2, ...), or NULL. */
const struct mp_replay_group *mp_sim_load_group(const struct mp_sim_load *load, uint32_t step,
                                                uint32_t layer);

/* Generate the logits of the layer for `step`, unless done already. */
void mp_sim_load_generate(struct mp_sim_load *load, uint32_t layer, uint32_t step);

#endif
