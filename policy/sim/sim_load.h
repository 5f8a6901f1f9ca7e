#ifndef MP_SIM_LOAD_H
#define MP_SIM_LOAD_H

#include "policy/sim/sim_fit.h"
#include "policy/replay/replay.h"

/*
 * Scores of simulated routers: from a recorded trace, or synthetic with given statistics.
 *
 * Synthetic logits of a layer are w * a + sqrt(1 - w^2) * z: `a`, one number per expert, is
 * constant; `z`, one per sequence and expert, is autocorrelated from token to token. Layers are
 * independent. Four parameters are fitted until a sample has the statistics of the model's
 * description:
 *
 *     skew       share of the choices that go to the most used quarter of a layer's experts
 *     overlap    share of a token's experts that the token before it chose too
 *     mass       sum of the scores of the chosen experts
 *     accuracy   share of the chosen experts among the k best predicted, per kind of prediction
 *
 * and layers differ in w by up to the share `variation`.
 *
 * A trace with the scores of all experts is used directly, so that the route policy chooses anew;
 * only predictions are synthetic, with the given accuracies. For a trace without scores, the number
 * of tokens per expert, layer and step is as recorded; which of the batch's tokens chose it, and
 * all scores, are synthetic.
 */
struct mp_sim_load;

struct mp_sim_load_config {
    const struct mp_sim_model *model;    /* outlives the load */
    const struct mp_replay_trace *trace; /* or NULL; of the model's shape, outlives the load */
    uint32_t sequences;                  /* of a synthetic load */
    uint32_t tokens_max;                 /* of one step */
    uint64_t seed;
    const struct mp_sim_fit *fit; /* NULL: found from the model's statistics */
};

enum mp_status mp_sim_load_create(const struct mp_sim_load_config *config,
                                  struct mp_sim_load **load_p) MP_MUST_CHECK;
void mp_sim_load_destroy(struct mp_sim_load *load);

/* Advance to the next step: of a synthetic load with `tokens` tokens, equally many of each
 * sequence, and *decode_p set by the caller; a trace sets it. False: the trace has ended. */
bool mp_sim_load_begin(struct mp_sim_load *load, uint32_t tokens, bool *decode_p);

/* The next step of a trace is the first one again. */
void mp_sim_load_rewind(struct mp_sim_load *load);

/* Tokens of the step in a layer; a trace may have none. */
uint32_t mp_sim_load_tokens(const struct mp_sim_load *load, uint32_t layer);

/* Most tokens that a trace has in one step and layer, and its steps of decode. */
void mp_sim_load_trace_size(const struct mp_replay_trace *trace, uint32_t *tokens_max_p,
                            uint32_t *decode_steps_p);

/* scores(tokens, experts) := probabilities of the layer in this step. */
void mp_sim_load_scores(struct mp_sim_load *load, uint32_t layer, float *scores);

/* scores(tokens, experts) := a predictor's scores of layer `target` while `layer` runs. */
void mp_sim_load_predicted(struct mp_sim_load *load, uint32_t layer, uint32_t target,
                           enum mp_score_source source, float *scores);

/* The calibration of a synthetic load; all pointers NULL for a trace. */
const struct mp_calibration *mp_sim_load_calibration(const struct mp_sim_load *load);

/* Observed statistics of decode; a statistic of no tokens is 0. To be called once, at the end. */
struct mp_sim_seen {
    double skew, skew_spread; /* mean of the layers, and standard deviation among them */
    double overlap, mass, accuracy;
};
struct mp_sim_seen mp_sim_load_seen(struct mp_sim_load *load);

#endif
