#ifndef MP_STEP_INT_H
#define MP_STEP_INT_H

#include "policy/pager/step.h"

/*
 * Private to the files of the step: step.c has the order of a layer, step_ahead.c assigns and
 * predicts, step_execute.c passes work to the executors.
 */
struct mp_step {
    struct mp_step_config config;
    unsigned track;
    void *block; /* all arrays below */

    float *scores;        // (tokens_max, experts)
    float *source;        // (tokens_max, experts)
    uint32_t *exact;      // (tokens_max, top_k): the model's own routing, if the policy's is not
    float *exact_weights; // (tokens_max, top_k)
    float *predicted;     // (tokens_max, experts): of the layer shared_distance ahead
    uint32_t *chosen;     // (tokens_max, top_k)
    float *weights;       // (tokens_max, top_k)
    uint8_t *resident;    // (experts)

    uint32_t *first;        // (experts + 1): rows of expert e are [first[e], first[e + 1])
    uint32_t *row_token;    // (tokens_max * top_k)
    uint32_t *row_rank;     // (tokens_max * top_k)
    struct mp_need *needs;  // (experts): the chosen ones, ascending
    uint32_t *need_experts; // (experts)
    uint32_t *need_tokens;  // (experts)
    float *need_scores;     // (experts)
    uint8_t *need_resident; // (experts)
    uint64_t *arrival;      // (experts): of the layer, in ns
    uint64_t *need_arrival; // (experts)
    bool arriving;          /* something of the layer is on its way */
    uint32_t *executors;    // (experts): executor of each need
    uint32_t slices;        /* >= 1 */
    uint32_t *ended;        // (experts * slices): needs whose work has ended
    uint32_t under_way;     /* queued work that has not ended */
    bool leaves;            /* the layer may be left open */
    bool open;              /* it was */
    struct mp_interrupt interrupt;
    uint32_t *wanted;            // (experts): result of the prefetch policy
    float *wanted_scores;        // (experts): scratch
    uint32_t *next_tokens;       // (experts): predicted for the next layer, for assign
    uint8_t *next_resident;      // (experts)
    struct mp_expert_work *work; // (experts * slices): work of one call
    uint32_t need_count;
    uint64_t begun_ns;               /* layer 0 of the step before; 0: there was none */
    uint32_t shared_distance;        /* of the prediction that all policies share; 0: none yet */
    uint32_t shared_target;          /* its layer; MP_LAYER_ANY: nothing is predicted */
    struct mp_assign_facts assigned; /* the facts of assign for the open layer */
    struct mp_costs costs;           /* the costs in those facts */
};

/* The costs passed to policies; never NULL. */
const struct mp_costs *mp_step_costs(const struct mp_step *step);

static inline uint64_t mp_step_now_ns(const struct mp_step *step)
{
    return mp_clock_now_ns(step->config.clock);
}

/* Remaining time of transfers in flight; 0 if idle or unknown. */
static inline uint64_t mp_step_link_busy_ns(const struct mp_step *step)
{
    const struct mp_step_ops *ops = step->config.ops;

    return ops->link_busy != NULL ? ops->link_busy(step->config.ctx) : 0;
}

/* Assign executors: sets step->executors and step->assigned. */
enum mp_status mp_step_assign(struct mp_step *step, uint32_t layer, uint32_t tokens) MP_MUST_CHECK;

/* Predict the experts of later layers and prefetch them. */
enum mp_status mp_step_look_ahead(struct mp_step *step, uint32_t layer,
                                  uint32_t tokens) MP_MUST_CHECK;

/* Begin the work of executors that need no load: of those on other machines, or of those here. */
enum mp_status mp_step_execute_elsewhere(struct mp_step *step, uint32_t layer,
                                         bool peers) MP_MUST_CHECK;

/* One round: begin work that is ready, or, with `wait`, block until a read or queued work ends.
 * *more_p: there was progress. */
enum mp_status mp_step_execute_some(struct mp_step *step, uint32_t layer, bool wait,
                                    bool *more_p) MP_MUST_CHECK;

/* Execute the needs in the order in which their bytes are complete. */
enum mp_status mp_step_execute(struct mp_step *step, uint32_t layer) MP_MUST_CHECK;

/* Wait for all work that is under way. */
enum mp_status mp_step_wait(struct mp_step *step) MP_MUST_CHECK;

/* After an error: wait until no executor uses bytes that the pager reclaims. The error record is
 * unchanged. */
void mp_step_drain(struct mp_step *step);

#endif
