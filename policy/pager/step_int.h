#ifndef MP_STEP_INT_H
#define MP_STEP_INT_H

#include "policy/pager/step.h"

/*
 * What the parts of the step share: step.c is the order of a layer, step_ahead.c assigns and
 * guesses, step_execute.c hands work to the executors. Nobody else includes this.
 */
struct mp_step {
    struct mp_step_config config;
    unsigned track;
    void *block; /* all arrays below */

    float *scores;        // (tokens_max, experts)
    float *source;        // (tokens_max, experts)
    uint32_t *exact;      // (tokens_max, top_k): the model's own routing, if the policy's is not
    float *exact_weights; // (tokens_max, top_k)
    float *predicted;     // (tokens_max, experts)
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
    uint32_t *executors;    // (experts): who computes each need
    uint32_t slices;        /* >= 1 */
    uint32_t *ended;        // (experts * slices): needs whose work has ended
    uint32_t under_way;     /* taken over and not ended */
    struct mp_interrupt interrupt;
    uint32_t *wanted;            // (experts): what prefetch names
    uint32_t *next_tokens;       // (experts): predicted for the next layer, for assign
    uint8_t *next_resident;      // (experts)
    struct mp_expert_work *work; // (experts * slices): what is computed in one call
    uint32_t need_count;
    struct mp_assign_facts assigned; /* what assign was given for the open layer */
    struct mp_costs costs;           /* as it was given them */
};

/* Given to policies; never NULL. */
const struct mp_costs *mp_step_costs(const struct mp_step *step);

static inline uint64_t mp_step_now_ns(const struct mp_step *step)
{
    return mp_clock_now_ns(step->config.clock);
}

/* Decide who computes what: step->executors and step->assigned. */
enum mp_status mp_step_assign(struct mp_step *step, uint32_t layer, uint32_t tokens) MP_MUST_CHECK;

/* Guess what later layers will want and start to load it. */
enum mp_status mp_step_look_ahead(struct mp_step *step, uint32_t layer,
                                  uint32_t tokens) MP_MUST_CHECK;

/* What needs nothing loaded can begin at once. */
enum mp_status mp_step_execute_elsewhere(struct mp_step *step, uint32_t layer) MP_MUST_CHECK;

/* One round: hand over what is ready, or, with `wait`, wait for what ends first, a read or work
 * that is under way. *more_p: something happened. */
enum mp_status mp_step_execute_some(struct mp_step *step, uint32_t layer, bool wait,
                                    bool *more_p) MP_MUST_CHECK;

/* Execute the needs in the order in which their bytes are complete. */
enum mp_status mp_step_execute(struct mp_step *step, uint32_t layer) MP_MUST_CHECK;

/* After an error: nobody may work on what the pager takes back. The error stays what it was. */
void mp_step_drain(struct mp_step *step);

#endif
