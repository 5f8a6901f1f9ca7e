#ifndef MP_STEP_H
#define MP_STEP_H

#include <stdint.h>

#include "policy/pager/pager.h"

/*
 * The step: the order of one MoE layer, over injected operations.
 *
 *     score -> route -> assign -> make ready -> other executors -> (predict, prefetch) -> shared
 *           -> experts -> combine
 *
 * An assign policy that looks ahead is asked after the first prediction instead of before it. With
 * the source PARTIAL, shared and those experts that are ready come before the prediction.
 *
 * The engine injects real arithmetic, the simulator injects cost models. So overlap, scheduling and
 * policies exist once.
 *
 * Thread safety: one thread at a time; the operations may use threads of their own.
 */
struct mp_step;

/* The rows of one expert: token t[i] chose it as its rank r[i]. */
struct mp_rows {
    const uint32_t *token; // (count), ascending
    const uint32_t *rank;  // (count)
    uint32_t count;
};

/* One expert to compute, or where experts are paged in slices one slice of it, with its bytes.
 * An executor that needs nothing loaded gets all slices at once. */
struct mp_expert_work {
    uint32_t expert;
    uint32_t slice;                         /* the first one */
    uint32_t slices;                        /* how many of them, >= 1 */
    uint32_t executor;                      /* who computes it, by place */
    const void *pieces[MP_UNIT_PIECES_MAX]; /* in the device tier, for executors that read that */
    struct mp_rows rows;
    uint32_t need; /* the step's own number for it */
};

/*
 * An executor as the step drives it; costs->executors (policy/policy.h) has its properties at the
 * same place of the list. What computes there (a stream, a queue with a thread, another machine) is
 * behind ctx.
 */
struct mp_step_executor {
    void *ctx;

    /*
     * Optional, for executors that need nothing loaded. Asked for each need that assign gave to
     * this one, before the layer is opened: can it have the expert's bytes? Then they stay where it
     * reads them until the layer is over. False: the home executor computes it.
     */
    bool (*take)(void *ctx, uint32_t layer, uint32_t expert);

    /*
     * Required: compute these experts, each for its rows, into the caller's (token, rank) buffer.
     * Slice 0 sets the rows, later ones add to them. The slices of an expert come in ascending
     * order, in one call side by side or in several, and are to be added in that order: then the
     * bits do not depend on what was resident.
     * They are those whose bytes are complete now, so that one call can share them out over
     * threads. Executors that need nothing loaded come first, one call for each, before anything is
     * predicted; they read the bytes where they are.
     *
     * Without ops->ended() all is computed when it returns. With it, it only takes the work over:
     * executors run at the same time, and `work`, but not rows and bytes, may be forgotten. On an
     * error nothing of this call was taken.
     */
    enum mp_status (*begin)(void *ctx, uint32_t layer, const struct mp_expert_work *work,
                            uint32_t count);
};

struct mp_step_ops {
    /* Required: scores(tokens, experts) := the router's probabilities of `layer` for the batch. */
    enum mp_status (*scores)(void *ctx, uint32_t layer, float *scores);

    /* Optional: weights(tokens, k) := those of the chosen experts of the layer whose scores came
     * last, where a model weighs them by other numbers than it chooses them by. */
    void (*weigh)(void *ctx, const uint32_t *experts, float *weights);

    /* Optional: scores of `target_layer` by `source`, for a predictor that declared it. */
    enum mp_status (*source_scores)(void *ctx, uint32_t layer, uint32_t target_layer,
                                    enum mp_score_source source, float *scores);

    /* Optional: what needs no routed expert (shared experts); runs while loads are on their way. */
    enum mp_status (*shared)(void *ctx, uint32_t layer);

    /* Optional. needs(*count_p) := the `need` of all work of all executors that has ended since the
     * last call. With `wait`, some being under way, at least one. What failed has ended too. */
    enum mp_status (*ended)(void *ctx, bool wait, uint32_t *needs, uint32_t *count_p);

    /* Required with ended(): would it have something to report? Called by the step's thread; an
     * executor calls mp_pager_wake() when that becomes true. Must not block. */
    bool (*any_ended)(void *ctx);

    /* Optional: what is left of transfers that have started, in ns. */
    uint64_t (*link_busy)(void *ctx);

    /* Required: add up (token, rank) results in rank order. experts, weights: (tokens, k), the
     * weights as routed, not normalised. */
    enum mp_status (*combine)(void *ctx, uint32_t layer, const uint32_t *experts,
                              const float *weights);

    /* Optional: what was routed, before anything follows from it; the arrays stay as they are until
     * the layer has run. */
    void (*routed)(void *ctx, uint32_t layer, uint32_t tokens, uint32_t k, const uint32_t *experts,
                   const float *weights);

    /* Optional: what the predictor made of it, scores(tokens, experts); for those who compare. */
    void (*predicted)(void *ctx, uint32_t layer, uint32_t target_layer, uint32_t tokens,
                      const float *scores);
};

struct mp_step_config {
    struct mp_pager *pager;
    const struct mp_policies *policies;
    struct mp_shape shape;
    const struct mp_step_ops *ops;
    void *ctx;
    /* Given to policies, read anew each layer. NULL: the home executor alone, and nothing known. */
    const struct mp_costs *costs;
    const struct mp_step_executor *executors; /* one for each of costs->executors; read anew, too */
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
 * MP_ERR_MODEL E_ROUTER_NAN: a score is not finite, with layer and token. Other errors are those of
 * the operations and of the pager. After an error the layer is closed and the step can be used
 * again.
 */
enum mp_status mp_step_layer(struct mp_step *step, uint32_t layer, uint32_t tokens) MP_MUST_CHECK;

#endif
