/*
 * The search for SMoE's alpha under a time budget; smoe_alpha.h has the method. Experts are routed
 * in smoe.c only.
 */
#include "policy/route/smoe_alpha.h"

#include "vmm/base/assert.h"
#include "vmm/base/log.h"

#define STEP 0.05f
#define NS_PER_MS 1000000
#define SMOOTH 16  /* steps over which measured times are averaged */
#define ENOUGH 48u /* measured steps after which a budget can be called out of reach */
#define PAUSE 4    /* times as long as expected: somebody waited for something else */

double mp_smoe_alpha_of_shape(const struct mp_shape *shape)
{
    if (shape->experts != 64 || shape->top_k != 6)
        return 0.25;
    return shape->layers == 27 ? 0.35 : shape->layers == 28 ? 0.3 : 0.25;
}

void mp_smoe_alpha_init(struct mp_smoe_alpha *self, const struct mp_shape *shape, double alpha,
                        uint64_t budget_ms)
{
    *self = (struct mp_smoe_alpha){
        .budget_ns = budget_ms * NS_PER_MS,
        .layers = shape->layers,
        .alpha = (float)alpha,
        .layer = MP_LAYER_ANY,
        .tokens = UINT32_MAX,
        .ratio = 1,
    };
}

/* The alpha that meets the budget, by the line and what measured steps make of it. */
static void aim(struct mp_smoe_alpha *self)
{
    const double max = (double)STEP * (MP_SMOE_GRID - 1), budget_ns = (double)self->budget_ns;
    const double at_zero_ns = self->ratio * self->at_zero_ns;
    const double slope_ns = self->ratio * self->slope_ns;
    const double reachable_ns = slope_ns < 0 ? at_zero_ns + slope_ns * max : at_zero_ns;

    if (at_zero_ns <= budget_ns)
        self->alpha = 0;
    else if (slope_ns < 0 && reachable_ns <= budget_ns)
        self->alpha = (float)((budget_ns - at_zero_ns) / slope_ns);
    else
        self->alpha = slope_ns < 0 ? (float)max : 0;
    if (reachable_ns > budget_ns && !self->warned &&
        (!self->measures || self->measured >= ENOUGH)) {
        mp_log_warn("smoe",
                    "no alpha up to %.2f meets %.1f ms per token; %.1f ms can be reached, with "
                    "alpha %.2f",
                    max, budget_ns / NS_PER_MS, reachable_ns / NS_PER_MS, (double)self->alpha);
        self->warned = true;
    }
}

/* A step begins; the one before took facts->step_ns, if that is known. */
static void note_measured(struct mp_smoe_alpha *self, const struct mp_route_facts *facts)
{
    const bool counts = self->latest_tokens == facts->tokens && facts->tokens == self->tokens;
    const double expected_ns = self->at_zero_ns + self->slope_ns * (double)self->alpha;
    double ratio;

    self->latest_tokens = facts->tokens;
    if (facts->step_ns == 0)
        return;
    self->measures = true;
    if (!counts || expected_ns <= 0)
        return;
    ratio = (double)facts->step_ns / expected_ns;
    if (ratio > PAUSE * self->ratio && self->measured > 0)
        return;
    self->measured++;
    self->ratio += (ratio - self->ratio) / SMOOTH;
    aim(self);
}

float mp_smoe_alpha_trial(struct mp_smoe_alpha *self, const struct mp_route_facts *facts)
{
    if (self->budget_ns == 0)
        return -1;
    if (facts->costs->load_ns == 0) {
        if (!self->warned)
            mp_log_warn("smoe",
                        "what a load costs on this machine is not known, so no alpha can be found "
                        "for %.1f ms per token; alpha stays at %.2f",
                        (double)self->budget_ns / NS_PER_MS, (double)self->alpha);
        self->warned = true;
        return -1;
    }
    if (facts->layer == 0 && facts->tokens < self->tokens) {
        /* A smaller batch: what was seen of larger ones says nothing of it. */
        self->tokens = facts->tokens;
        self->next = 0;
        for (uint32_t i = 0; i < MP_SMOE_GRID; i++)
            self->time_ns[i] = 0;
        self->at_zero_ns = self->slope_ns = 0;
        self->ratio = 1;
        self->measured = 0;
    }
    if (facts->layer == 0) {
        note_measured(self, facts);
        self->layer = 0;
        self->step_ns = 0;
    }
    if (facts->layer != self->layer || facts->tokens != self->tokens) {
        self->layer = MP_LAYER_ANY;
        return -1;
    }
    return STEP * (float)self->next;
}

/* The least max(loads, CPU) for `cold` experts of one token; without a helper all are loaded. */
static uint64_t cold_ns(const struct mp_costs *costs, uint32_t cold)
{
    const uint32_t helper = mp_costs_helper(costs);
    const uint64_t cpu_ns =
        helper != MP_EXECUTOR_HOME ? mp_executor_ns(&costs->executors[helper], 1) : 0;
    uint64_t best_ns = cold * costs->load_ns;

    mp_assert(costs->load_ns > 0);
    for (uint32_t loads = 0; loads < cold && cpu_ns > 0; loads++) {
        const uint64_t loaded_ns = loads * costs->load_ns, computed_ns = (cold - loads) * cpu_ns;
        const uint64_t time_ns = loaded_ns > computed_ns ? loaded_ns : computed_ns;

        best_ns = time_ns < best_ns ? time_ns : best_ns;
    }
    return best_ns;
}

/* Least squares: *at_zero_p + alpha * *slope_p is the predicted time. */
static void fit(const struct mp_smoe_alpha *self, double *at_zero_p, double *slope_p)
{
    double mean_x = 0, mean_y = 0, xx = 0, xy = 0;

    for (uint32_t i = 0; i < MP_SMOE_GRID; i++) {
        mean_x += (double)STEP * i / MP_SMOE_GRID;
        mean_y += (double)self->time_ns[i] / MP_SMOE_GRID;
    }
    for (uint32_t i = 0; i < MP_SMOE_GRID; i++) {
        const double x = (double)STEP * i - mean_x;

        xx += x * x;
        xy += x * ((double)self->time_ns[i] - mean_y);
    }
    *slope_p = xy / xx;
    *at_zero_p = mean_y - *slope_p * mean_x;
}

void mp_smoe_alpha_note(struct mp_smoe_alpha *self, const struct mp_route_facts *facts,
                        uint32_t resident, uint32_t cold)
{
    const struct mp_costs *costs = facts->costs;
    uint64_t *time_ns = &self->time_ns[self->next];

    mp_assert(self->next < MP_SMOE_GRID);
    mp_assert(facts->layer == self->layer);
    self->step_ns += costs->layer_ns +
                     resident * mp_executor_ns(&costs->executors[MP_EXECUTOR_HOME], 1) +
                     cold_ns(costs, cold);
    if (++self->layer < self->layers)
        return;
    self->layer = MP_LAYER_ANY;
    *time_ns = *time_ns == 0 ? self->step_ns : (3 * *time_ns + self->step_ns) / 4;
    self->next = (self->next + 1) % MP_SMOE_GRID;
    if (self->next > 0)
        return;
    fit(self, &self->at_zero_ns, &self->slope_ns);
    aim(self);
}
