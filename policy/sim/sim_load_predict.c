/*
 * Predictions with a given accuracy, derived from the actual scores, which policies do not know
 * yet. Routing is generated in sim_load.c.
 */
#include "policy/sim/sim_load_int.h"

#include <math.h>
#include <string.h>

static double accuracy_of(const struct mp_sim_model *model, enum mp_score_source source)
{
    switch (source) {
    case MP_SCORES_RESIDUAL: return model->accuracy_residual;
    case MP_SCORES_PARTIAL: return model->accuracy_partial;
    case MP_SCORES_LLAPOR: return model->accuracy_llapor;
    default: return model->accuracy_gate;
    }
}

static void note_accuracy(struct mp_sim_load *load, const float *truth, const float *guess)
{
    uint32_t right = 0;

    memset(load->chosen, 0, load->experts);
    mp_sim_top(truth, load->experts, load->k, load->best);
    for (uint32_t r = 0; r < load->k; r++)
        load->chosen[load->best[r]] = 1;
    mp_sim_top(guess, load->experts, load->k, load->best);
    for (uint32_t r = 0; r < load->k; r++)
        right += load->chosen[load->best[r]];
    load->accuracy_sum += (double)right / load->k;
    load->accuracy_count++;
}

/* Each recorded expert is seen with the stated accuracy; else another one takes its place. */
static void predict_trace(struct mp_sim_load *load, uint32_t layer, uint32_t target,
                          double accuracy, float *scores)
{
    const struct mp_replay_group *group =
        mp_sim_load_group(load, load->step + (target <= layer), target);
    const uint32_t tokens = mp_sim_load_tokens(load, layer);
    const struct mp_replay_use *uses;
    uint32_t at = 0;

    for (size_t i = 0; i < (size_t)tokens * load->experts; i++)
        scores[i] = (float)mp_sim_uniform(&load->random) * 0.5f;
    if (group == NULL || tokens == 0)
        return;
    uses = load->config.trace->uses + group->first;
    for (uint32_t i = 0; i < group->count; i++) {
        for (uint32_t n = 0; n < uses[i].tokens && n < tokens; n++, at++) {
            const bool seen = mp_sim_uniform(&load->random) < accuracy;
            const uint32_t expert = seen
                                        ? uses[i].id % load->experts
                                        : (uint32_t)(mp_sim_uniform(&load->random) * load->experts);

            scores[(size_t)(at % tokens) * load->experts + expert] += 1;
        }
    }
}

/* The recorded scores, in which a chosen expert has its place with the stated accuracy; else it has
 * that of any other one. */
static void predict_recorded(struct mp_sim_load *load, uint32_t layer, uint32_t target,
                             double accuracy, float *scores)
{
    const struct mp_replay_group *group =
        mp_sim_load_group(load, load->step + (target <= layer), target);
    const uint32_t tokens = mp_sim_load_tokens(load, layer), experts = load->experts;
    uint32_t known = 0;

    memset(scores, 0, (size_t)tokens * experts * sizeof(scores[0]));
    if (group != NULL)
        known = group->tokens < tokens ? group->tokens : tokens;
    for (uint32_t t = 0; t < known; t++) {
        const float *truth = mp_sim_load_recorded(load, group) + (size_t)t * experts;
        float *guess = scores + (size_t)t * experts;

        memcpy(guess, truth, experts * sizeof(guess[0]));
        mp_sim_top(truth, experts, load->k, load->best);
        for (uint32_t r = 0; r < load->k; r++) {
            const uint32_t other = (uint32_t)(mp_sim_uniform(&load->random) * experts);
            const float mine = guess[load->best[r]];

            if (mp_sim_uniform(&load->random) < accuracy)
                continue;
            guess[load->best[r]] = guess[other];
            guess[other] = mine;
        }
        if (load->decode && target == layer + 1)
            note_accuracy(load, truth, guess);
    }
}

void mp_sim_load_predicted(struct mp_sim_load *load, uint32_t layer, uint32_t target,
                           enum mp_score_source source, float *scores)
{
    const uint32_t distance = target > layer ? target - layer : target + load->layers - layer;
    const double accuracy = pow(accuracy_of(load->config.model, source), distance);
    float blur;

    if (load->config.trace != NULL && load->config.trace->scores != NULL) {
        predict_recorded(load, layer, target, accuracy, scores);
        return;
    }
    if (load->config.trace != NULL) {
        predict_trace(load, layer, target, accuracy, scores);
        return;
    }
    if (target <= layer && !load->decode) {
        /* The next step is another one: all that is known is what stays. */
        for (uint32_t t = 0; t < load->tokens; t++)
            memcpy(scores + (size_t)t * load->experts, load->fixed + (size_t)target * load->experts,
                   load->experts * sizeof(float));
        return;
    }
    mp_sim_load_generate(load, target, load->step + (target <= layer));
    blur = (float)mp_sim_fit_blur(&load->fit, accuracy);
    for (uint32_t t = 0; t < load->tokens; t++) {
        const float *truth = mp_sim_load_logits(load, target) + (size_t)t * load->experts;
        float *guess = scores + (size_t)t * load->experts;

        for (uint32_t e = 0; e < load->experts; e++)
            guess[e] = truth[e] + blur * mp_sim_normal(&load->random);
        if (load->decode && distance == 1)
            note_accuracy(load, truth, guess);
    }
}
