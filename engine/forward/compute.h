#ifndef MP_COMPUTE_H
#define MP_COMPUTE_H

#include "engine/forward/engine.h"
#include "engine/forward/kv.h"
#include "engine/forward/state.h"

/*
 * A compute: what a transformer is calculated by, as coarse operations on the arrays of the state.
 * forward.c and moe.c are written over it, once; the CPU (engine/forward/cpu) does each operation
 * at once, a device (engine/forward/cuda) queues it on a stream, and a graph is what was queued.
 *
 * Operations without a status cannot fail, or keep their first error: then what follows does
 * nothing, until the next of the operations with a status returns that error, once. They work on
 * the batch that was begun, T tokens; widths as in state.h.
 *
 * Threads: the engine's. Another compute may be used at the same time only for what its own header
 * names.
 */
struct mp_compute;

/* How far a batch has come. */
struct mp_forward_progress {
    bool started;   /* else nothing was done */
    bool complete;  /* everything, and the result is here */
    bool begun;     /* attention and norm of `layer` are done, too */
    uint32_t layer; /* of the model: the first that is not done */
};

/* One product of a list that may be computed together: out(tokens, rows) := w in + bias. With
 * `add`, which stands alone, out := out + (w in + bias). */
struct mp_projection {
    const struct mp_view *w;
    const float *bias; // (rows) or NULL
    enum mp_array in, out;
    bool add;
};

struct mp_compute_ops {
    /* The batch whose tokens come next; `wanted` of them want logits. */
    void (*begin)(struct mp_compute *c, const struct mp_batch *batch, uint32_t wanted);

    /* x := embeddings of the batch */
    void (*embed)(struct mp_compute *c);
    /* out := norm(in) w, (T, H); out is not in */
    void (*norm)(struct mp_compute *c, enum mp_array out, enum mp_array in, const float *w);
    /* 1 to 3 products with `tokens` rows each: T, or those that were picked. */
    void (*project)(struct mp_compute *c, const struct mp_projection *list, uint32_t count,
                    uint32_t tokens);
    /* Optional, for models with latent attention: q and k of xe, as store() takes them; and q :=
     * the values of all heads from what was attended, as the last product takes them. */
    void (*latent)(struct mp_compute *c, uint32_t layer);
    void (*latent_values)(struct mp_compute *c, uint32_t layer);
    /* Norm of heads, where the model has it, and rotary embedding of q and k; k and v go to the
     * layer's cache. */
    void (*store)(struct mp_compute *c, uint32_t layer);
    /* att := attention of q over the layer's cache */
    void (*attend)(struct mp_compute *c, uint32_t layer);
    /* Optional: undo the last store(), where it could be read before the layer stores again. */
    void (*forget)(struct mp_compute *c, uint32_t layer);
    /* x += down(silu(gate in) * up in) */
    void (*ffn)(struct mp_compute *c, const struct mp_ffn *ffn, enum mp_array in, enum mp_array x);
    /* xe := norm of the rows of x whose logits are wanted */
    void (*pick)(struct mp_compute *c, const float *norm, uint32_t wanted);
    /* Wait for logits, or for the tokens that are sampled from them: all of the batch is done. */
    enum mp_status (*result)(struct mp_compute *c, uint32_t wanted);

    /* ---- of a MoE layer; xn is its normed input */

    /* Optional: the layer is opened. */
    void (*open)(struct mp_compute *c, uint32_t moe_layer);
    /* What experts are chosen by, softmax(router in) in most families, for read_scores(): in
     * `scores` itself, or where the compute has them. With `norm`, of xe := norm(in), which is a
     * prediction. */
    void (*router)(struct mp_compute *c, uint32_t layer, enum mp_array in, const float *norm,
                   float *scores);
    /* Wait for scores(T, E) of the last router(). */
    enum mp_status (*read_scores)(struct mp_compute *c, float *scores);
    /* Optional: weights(T, R) of these experts where they are not the scores that they were chosen
     * by, of the last router() that was no prediction. */
    void (*weigh)(struct mp_compute *c, const uint32_t *experts, float *weights);
    /* sum := the shared expert's part; for models that have one */
    void (*shared)(struct mp_compute *c, uint32_t layer);
    /* Optional: the step's, for experts that executors have begun (policy/pager/step.h). */
    enum mp_status (*ended)(struct mp_compute *c, bool wait, uint32_t *needs, uint32_t *count_p);
    bool (*any_ended)(struct mp_compute *c);
    /* All experts of the layer have ended: x += the sum of their results in rank order, by these
     * weights(T, R), and of the shared part. */
    void (*combine)(struct mp_compute *c, const float *weights);
    /* partial := x + that sum, with the results only that state.done names */
    void (*combine_done)(struct mp_compute *c, const float *weights);

    /* ---- between the compute and the host */

    /* Optional: queue a copy of an array for the host; NULL where the host's is the array. */
    void (*show)(struct mp_compute *c, enum mp_array array, uint64_t bytes);
    /* Wait for all that is queued. */
    enum mp_status (*wait)(struct mp_compute *c);
    /* The kept error; does not wait. Asked for when a layer has been queued, and in a MoE layer
     * also before experts begin, so that none is launched behind an error. */
    enum mp_status (*status)(struct mp_compute *c);

    /* Optional: do as much of the batch as can be done without the host. */
    enum mp_status (*alone)(struct mp_compute *c, uint32_t wanted,
                            struct mp_forward_progress *progress_p);
    /* Optional: mp_forward() failed; nothing may work any more when it returns. */
    void (*abandon)(struct mp_compute *c);
};

struct mp_compute {
    const struct mp_compute_ops *ops;
    struct mp_engine *engine;
    const struct mp_weights *weights; /* addresses are those that the compute reads */
    struct mp_kv kv;
    unsigned track; /* of the timeline */
    /* Who computes experts, at the places of engine->costs.executors; begin() calls
     * mp_engine_note_done(). */
    struct mp_step_executor executors[MP_EXECUTORS_MAX];
};

#endif
