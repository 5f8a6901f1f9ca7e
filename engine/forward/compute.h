#ifndef MP_COMPUTE_H
#define MP_COMPUTE_H

#include "engine/forward/engine.h"
#include "engine/forward/kv.h"
#include "engine/forward/state.h"

/*
 * A compute: a backend of the transformer's arithmetic, as coarse operations on the arrays of the
 * state. forward.c and moe.c use it and exist once. The CPU (engine/forward/cpu) executes each
 * operation at once, a device (engine/forward/cuda) queues it on a stream, and a graph captures the
 * queued operations.
 *
 * Operations without a status either cannot fail or keep their first error: later operations then
 * do nothing, until the next operation with a status returns that error, once. All work on the
 * current batch of T tokens; widths as in state.h.
 *
 * Thread safety: the engine's thread. Another compute may be used in parallel only as its header
 * allows.
 */
struct mp_compute;

/* Progress of a batch. */
struct mp_forward_progress {
    bool started;   /* false: nothing was done */
    bool complete;  /* all is done, and the result is available */
    uint32_t layer; /* layer of the model: the first that is not done */
};

/* One product of a list that may be computed together: out(tokens, rows) := w in + bias. With
 * `add`, in a list of one, out := out + (w in + bias), or the norm of what is added. */
struct mp_projection {
    const struct mp_view *w;
    const float *bias; // (rows) or NULL
    enum mp_array in, out;
    bool add;
    const struct mp_norm *norm; /* with `add` and H rows; or NULL */
};

struct mp_compute_ops {
    /* Begin a batch; logits are wanted for `wanted` of its tokens. */
    void (*begin)(struct mp_compute *c, const struct mp_batch *batch, uint32_t wanted);

    /* x := embeddings of the batch */
    void (*embed)(struct mp_compute *c);
    /* Optional: draft_in := the norms of x and of the batch's states, side by side. */
    void (*draft_in)(struct mp_compute *c);
    /* out := norm(in), (T, H); out is not in */
    void (*norm)(struct mp_compute *c, enum mp_array out, enum mp_array in,
                 const struct mp_norm *norm);
    /* 1 to 3 products with `tokens` rows each: T, or the number of picked rows. */
    void (*project)(struct mp_compute *c, const struct mp_projection *list, uint32_t count,
                    uint32_t tokens);
    /* Optional, for models with latent attention: q and k of xe, as store() takes them; and q :=
     * the values of all heads from what was attended, as the last product takes them. */
    void (*latent)(struct mp_compute *c, uint32_t layer);
    void (*latent_values)(struct mp_compute *c, uint32_t layer);
    /* Optional, for models with gated attention: q of `latent`, where each head's query is followed
     * by its gate; and att := att times the sigmoids of the gates. */
    void (*split_gate)(struct mp_compute *c);
    void (*apply_gate)(struct mp_compute *c);
    /* Optional: att := the gated delta network of xe. */
    void (*delta)(struct mp_compute *c, uint32_t layer);
    /* Optional: att := the gated short convolution of xe. */
    void (*short_conv)(struct mp_compute *c, uint32_t layer);
    /* Per-head norms, if the model has them, and rotary embedding of q and k; k and v, which is k
     * as it came where the layer has no product for it, are written to the layer's cache. */
    void (*store)(struct mp_compute *c, uint32_t layer);
    /* att := attention of q over the layer's cache */
    void (*attend)(struct mp_compute *c, uint32_t layer);
    /* Optional: undo the last store(), if its rows could be read before the layer stores again. */
    void (*forget)(struct mp_compute *c, uint32_t layer);
    /* x += down(activation(gate in, up in)) */
    void (*ffn)(struct mp_compute *c, const struct mp_ffn *ffn, enum mp_array in, enum mp_array x);
    /* xe := norm of the rows of x whose logits are wanted */
    void (*pick)(struct mp_compute *c, const struct mp_norm *norm, uint32_t wanted);
    /* Wait for logits, or for the tokens sampled from them; the batch is then complete. */
    enum mp_status (*result)(struct mp_compute *c, uint32_t wanted);

    /* ---- of a MoE layer; xn is its normed input */

    /* Optional: open the layer. */
    void (*open)(struct mp_compute *c, uint32_t moe_layer);
    /* Compute the scores by which experts are chosen, softmax(router in) in most families, for
     * read_scores(): in `scores`, or in memory of the compute. With `norm`, of xe := norm(in),
     * which is a prediction. */
    void (*router)(struct mp_compute *c, uint32_t layer, enum mp_array in,
                   const struct mp_norm *norm, float *scores);
    /* Wait for scores(T, E) of the last router(). */
    enum mp_status (*read_scores)(struct mp_compute *c, float *scores);
    /* Optional: before router() of the layer that is open, ask it for the prediction, too, that it
     * would give of x and this later layer's norm. It comes with read_scores(), without another
     * wait; read_guess() is after that. */
    void (*guess)(struct mp_compute *c, uint32_t layer);
    void (*read_guess)(struct mp_compute *c, float *scores);
    /* Optional: weights(T, R) := the weights of these experts, for models whose weights are not the
     * scores used for the choice; of the last router() that was not a prediction. */
    void (*weigh)(struct mp_compute *c, uint32_t layer, const uint32_t *experts, float *weights);
    /* sum := the shared expert's output; for models that have one */
    void (*shared)(struct mp_compute *c, uint32_t layer);
    /* Optional: as in struct mp_step_ops (policy/pager/step.h). */
    enum mp_status (*ended)(struct mp_compute *c, uint32_t *needs, uint32_t *count_p);
    bool (*any_ended)(struct mp_compute *c);
    void (*look)(struct mp_compute *c, bool sleeps);
    /* Optional: do experts that are under way have the pool, and the scratch of state on the host?
     * If not, none will before the engine's thread begins some. */
    bool (*pool_taken)(struct mp_compute *c);
    /* x += the sum of the experts' results in rank order, weighted by weights(T, R), plus the
     * shared expert's, through the norms and the scale that the model has behind them; all experts
     * of the layer have ended. */
    void (*combine)(struct mp_compute *c, uint32_t layer, const float *weights);
    /* partial := x + that sum, restricted to the results marked in state.done */
    void (*combine_done)(struct mp_compute *c, uint32_t layer, const float *weights);

    /* ---- between the compute and the host */

    /* Optional: queue a copy of an array to the host; NULL if the arrays are in host memory. */
    void (*show)(struct mp_compute *c, enum mp_array array, uint64_t bytes);
    /* Wait for all that is queued. */
    enum mp_status (*wait)(struct mp_compute *c);
    /* Return the kept error; does not wait. Called when a layer has been queued, and in a MoE layer
     * also before experts begin, so that none is launched after an error. */
    enum mp_status (*status)(struct mp_compute *c);

    /* Optional: from *progress_p on, do as much of the batch as is possible without the host.
     * Called before a batch, and again behind every MoE layer that the host has driven. */
    enum mp_status (*alone)(struct mp_compute *c, uint32_t wanted,
                            struct mp_forward_progress *progress_p);
    /* Optional: mp_forward() failed; wait until no work is left. */
    void (*abandon)(struct mp_compute *c);
};

struct mp_compute {
    const struct mp_compute_ops *ops;
    struct mp_engine *engine;
    const struct mp_weights *weights; /* with addresses that the compute can read */
    struct mp_kv kv;
    unsigned track; /* of the timeline */
    /* Executors, with the indices of engine->costs.executors; begin() calls mp_engine_note_done().
     */
    struct mp_step_executor executors[MP_EXECUTORS_MAX];
};

#endif
