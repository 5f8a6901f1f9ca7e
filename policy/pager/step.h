#ifndef MP_STEP_H
#define MP_STEP_H

#include <stdint.h>

#include "policy/pager/pager.h"

/*
 * The step: the order of one MoE layer, over injected operations.
 *
 *     score -> route -> assign -> other machines -> make ready -> other executors
 *           -> (predict, prefetch) -> shared -> experts -> combine
 *
 * An assign policy with `looks_ahead` runs after the first prediction instead of before it. With
 * the source PARTIAL, shared experts and experts that are ready are computed before the prediction.
 *
 * The engine injects real arithmetic, the simulator injects cost models. So overlap, scheduling and
 * policies are implemented once.
 *
 * Thread safety: one thread at a time; operations may use their own threads.
 */
struct mp_step;

/* The rows of one expert: token t[i] chose it as its rank r[i]. */
struct mp_rows {
    const uint32_t *token; // (count), ascending
    const uint32_t *rank;  // (count)
    uint32_t count;
};

/* One expert to compute, or one slice of it where experts are paged in slices, with its bytes. An
 * executor that needs no load gets all slices at once. */
struct mp_expert_work {
    uint32_t expert;
    uint32_t slice;                         /* the first one */
    uint32_t slices;                        /* how many of them, >= 1 */
    uint32_t executor;                      /* index of the executor */
    const void *pieces[MP_UNIT_PIECES_MAX]; /* in the device tier, for executors that read it */
    struct mp_rows rows;
    uint32_t need; /* identifies it to the step */
};

/*
 * The operations of an executor; its properties have the same index in costs->executors
 * (policy/policy.h). `ctx` is what computes: a stream, a queue with a thread, another machine.
 */
struct mp_step_executor {
    void *ctx;

    /* With ops->ended(), home executor: what is queued after begin(), as combine() and the next
     * scores() do, comes after its work and sees the results. So a layer need not wait for it. */
    bool ordered;

    /*
     * Optional, for executors that need no load. Called for each need assigned to this executor,
     * before the layer is opened. True: the expert's bytes are available to it until the layer
     * ends. False: the home executor computes it.
     */
    bool (*take)(void *ctx, uint32_t layer, uint32_t expert);

    /*
     * Required: compute these experts, each for its rows, into the caller's (token, rank) buffer.
     * Slice 0 sets the rows, later ones add to them. The slices of an expert come in ascending
     * order, in one call (adjacent) or several, and must be added in that order, so that the bits
     * do not depend on residency. A call has all experts whose bytes are complete now, so that it
     * can distribute them over threads. Executors that need no load are called first, once each,
     * before any prediction.
     *
     * Without ops->ended() the work is complete on return. With it, the work is only queued:
     * executors run in parallel, and `work` is valid only during the call, but rows and bytes until
     * the work has ended. On an error nothing of this call was queued.
     */
    enum mp_status (*begin)(void *ctx, uint32_t layer, const struct mp_expert_work *work,
                            uint32_t count);
};

struct mp_step_ops {
    /* Required: scores(tokens, experts) := the router's probabilities of `layer` for the batch. */
    enum mp_status (*scores)(void *ctx, uint32_t layer, float *scores);

    /* Optional: called with the facts of assign and its result; may give experts to executors that
     * assign policies do not know, such as other machines. */
    enum mp_status (*assigned)(void *ctx, const struct mp_assign_facts *facts, uint32_t *executors);

    /* Optional, for models whose weights are not the scores used for the choice: weights(tokens, k)
     * := the weights of the chosen experts of this layer, whose scores were computed last. */
    void (*weigh)(void *ctx, uint32_t layer, const uint32_t *experts, float *weights);

    /* Optional: scores of `target_layer` by `source`, for a predictor that declared it. */
    enum mp_status (*source_scores)(void *ctx, uint32_t layer, uint32_t target_layer,
                                    enum mp_score_source source, float *scores);

    /* Optional: compute what needs no routed expert (shared experts); runs while loads are in
     * flight. */
    enum mp_status (*shared)(void *ctx, uint32_t layer);

    /* Optional. needs(*count_p) := the `need` of all work of all executors that has ended,
     * successfully or not, since the last call; blocks until there is at least one. Work is in
     * progress. */
    enum mp_status (*ended)(void *ctx, uint32_t *needs, uint32_t *count_p);

    /* Required with ended(): true if ended() would not block, as far as look() has looked. Called
     * by the step's thread; an executor calls mp_pager_wake() when it becomes true. Must not block.
     */
    bool (*any_ended)(void *ctx);

    /* Optional, with any_ended(), for executors that do not notice by themselves what has ended:
     * look whether something has. With `sleeps` the step's thread is about to sleep, and from then
     * on mp_pager_wake() is called as above. */
    void (*look)(void *ctx, bool sleeps);

    /* With ended(): source_scores() is computed beside work that has begun, and not behind it. What
     * is ready then begins before any prediction. */
    bool predicts_beside;

    /* Optional: remaining time of transfers in flight, in ns. */
    uint64_t (*link_busy)(void *ctx);

    /* Required: add up (token, rank) results in rank order. experts, weights: (tokens, k), the
     * weights as routed, not normalised. */
    enum mp_status (*combine)(void *ctx, uint32_t layer, const uint32_t *experts,
                              const float *weights);

    /* Optional: called with the routing, before it is used; the arrays are valid until the layer
     * has run. */
    void (*routed)(void *ctx, uint32_t layer, uint32_t tokens, uint32_t k, const uint32_t *experts,
                   const float *weights);

    /* Optional: called with the predictor's scores(tokens, experts); for evaluation. */
    void (*predicted)(void *ctx, uint32_t layer, uint32_t target_layer, uint32_t tokens,
                      const float *scores);
};

struct mp_step_config {
    struct mp_pager *pager;
    const struct mp_policies *policies;
    struct mp_shape shape;
    const struct mp_step_ops *ops;
    void *ctx;
    /* Passed to policies, read anew in each layer. NULL: the home executor alone, with unknown
     * costs. */
    const struct mp_costs *costs;
    const struct mp_step_executor *executors; /* one for each of costs->executors; also read anew */
    struct mp_clock *clock;
    struct mp_counters *counters;
    struct mp_timeline *timeline; /* or NULL */
};

/* Allocates for shape.tokens_max tokens; nothing is allocated later. */
enum mp_status mp_step_create(const struct mp_step_config *config,
                              struct mp_step **step_p) MP_MUST_CHECK;
void mp_step_destroy(struct mp_step *step);

/*
 * Run MoE layer `layer` for a batch of `tokens` tokens, 1..tokens_max.
 *
 * Where a layer's work is all of an `ordered` executor, and the layer is not the last, it is left
 * open: the leases are returned, and errors of its work are, when the next layer has its scores. So
 * layers follow one another with one wait each.
 *
 * MP_ERR_MODEL E_ROUTER_NAN: a score is not finite, with layer and token. Other errors are those of
 * the operations and of the pager. After an error the layer is closed and the step can be used
 * again.
 */
enum mp_status mp_step_layer(struct mp_step *step, uint32_t layer, uint32_t tokens) MP_MUST_CHECK;

/* Close a layer that was left open, where the next one does not come: an error between layers. The
 * error record is unchanged. */
void mp_step_abandon(struct mp_step *step);

#endif
