#ifndef MP_POLICY_SMOE_ALPHA_H
#define MP_POLICY_SMOE_ALPHA_H

#include "policy/policy.h"

/*
 * SMoE eq. 5: the smallest alpha whose time per output token meets a budget.
 *
 * T(alpha) is not measured by trying values on the user's text but predicted: each step is routed
 * a second time with one value of a grid in turn, its cold experts are counted, and the machine's
 * costs make a time of them. A line through the grid's times, as the paper observes it (figure 10),
 * gives alpha for the steps that follow.
 *
 * Steps are those with the smallest batch seen so far, because prompts are not output tokens.
 */
#define MP_SMOE_GRID 13 /* 0, 0.05, .. 0.6: table IV */

struct mp_smoe_alpha {
    uint64_t budget_ns; /* 0: none, alpha stays */
    uint32_t layers;
    float alpha; /* the one to use */

    uint64_t time_ns[MP_SMOE_GRID]; /* smoothed; 0: not known yet */
    uint32_t next;                  /* of the grid: the one that the present step is routed with */
    uint32_t layer, tokens;         /* expected next; layer MP_LAYER_ANY: wait for a new step */
    uint64_t step_ns;               /* predicted so far */
    bool warned;                    /* of: no alpha meets it, or costs are not known */
};

/*
 * The paper's alpha for a model of this shape: 0.35 for DeepSeek-MoE-16B (27 MoE layers, 6 of 64
 * experts), 0.3 for XVERSE-MoE-A4.2B (28 layers, 6 of 64) and 0.25, which it uses for Qwen2-57B and
 * which is the most careful of the three, for all others.
 */
double mp_smoe_alpha_of_shape(const struct mp_shape *shape);

void mp_smoe_alpha_init(struct mp_smoe_alpha *self, const struct mp_shape *shape, double alpha,
                        uint64_t budget_ms);

/* The value of the grid with which this layer shall be tried; negative: none. */
float mp_smoe_alpha_trial(struct mp_smoe_alpha *self, const struct mp_route_facts *facts);

/* The trial chose `resident` experts that are in the device tier and `cold` that are not. */
void mp_smoe_alpha_note(struct mp_smoe_alpha *self, const struct mp_route_facts *facts,
                        uint32_t resident, uint32_t cold);

#endif
