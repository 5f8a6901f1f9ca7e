#ifndef MP_POLICY_SMOE_ALPHA_H
#define MP_POLICY_SMOE_ALPHA_H

#include "policy/policy.h"

/*
 * SMoE eq. 5: the smallest alpha whose time per output token meets a budget.
 *
 * T(alpha) is not measured by trying values on the user's text but predicted: each step is routed a
 * second time with the next value of a grid, its cold experts are counted, and their time follows
 * from the machine's costs. A line through the grid's times (the paper observes that they are
 * linear, figure 10) gives alpha for the following steps.
 *
 * Where steps are measured (facts->step_ns), the predicted times are multiplied by how much longer
 * they took than was predicted for the alpha that they had, on average: what the costs do not tell,
 * such as loads that overlap or wait, is then in.
 *
 * Only batches of the smallest size seen so far count as steps, because prompts are not output
 * tokens.
 */
#define MP_SMOE_GRID 13 /* 0, 0.05, .. 0.6: table IV */

struct mp_smoe_alpha {
    uint64_t budget_ns; /* 0: none, alpha stays */
    uint32_t layers;
    float alpha; /* the one to use */

    uint64_t time_ns[MP_SMOE_GRID]; /* smoothed; 0: not known yet */
    uint32_t next;                  /* index in the grid of the current step's trial */
    uint32_t layer, tokens; /* expected in the next call; layer MP_LAYER_ANY: wait for a new step */
    uint64_t step_ns;       /* predicted so far */
    double at_zero_ns, slope_ns; /* the line; both 0: not known yet */
    double ratio;                /* measured times are so many times the predicted ones */
    uint32_t measured;           /* steps */
    uint32_t latest_tokens;      /* of the step before */
    bool measures;               /* the client measures steps */
    bool warned; /* a warning was logged: no alpha meets the budget, or costs are unknown */
};

/*
 * The paper's alpha for a model of this shape: 0.35 for DeepSeek-MoE-16B (27 MoE layers, 6 of 64
 * experts), 0.3 for XVERSE-MoE-A4.2B (28 layers, 6 of 64) and 0.25, its value for Qwen2-57B and the
 * most conservative of the three, for all others.
 */
double mp_smoe_alpha_of_shape(const struct mp_shape *shape);

void mp_smoe_alpha_init(struct mp_smoe_alpha *self, const struct mp_shape *shape, double alpha,
                        uint64_t budget_ms);

/* The value of the grid to try in this layer; negative: none. */
float mp_smoe_alpha_trial(struct mp_smoe_alpha *self, const struct mp_route_facts *facts);

/* Result of the trial: it chose `resident` experts in the device tier and `cold` others. */
void mp_smoe_alpha_note(struct mp_smoe_alpha *self, const struct mp_route_facts *facts,
                        uint32_t resident, uint32_t cold);

#endif
