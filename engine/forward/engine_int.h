#ifndef MP_ENGINE_INT_H
#define MP_ENGINE_INT_H

#include "engine/forward/engine.h"
#include "policy/record/decisions.h"

/*
 * The inside of the engine, shared by engine.c (life), paging.c (from the backend to the step),
 * forward.c (the transformer), ffn.c (matrix products over the pool), experts.c (the operations of
 * the MoE step) and predict_*.c (scores for predictors).
 *
 * T tokens_max, H hidden, Q heads * head_dim, K kv_heads * head_dim, D head_dim, V vocab,
 * C ctx, R top_k, S heads that share keys and are computed together, F the widest FFN, W rows of
 * experts that are computed together.
 */
struct mp_state {
    float *x;      // (T, H): the residual stream
    float *xn;     // (T, H): normed input of attention or FFN
    float *q;      // (T, Q)
    float *att;    // (T, Q)
    float *gate;   // (W, F)
    float *up;     // (W, F)
    float *xe;     // (W, H): rows of experts, gathered
    float *ye;     // (W, H): their results, and those of dense FFN and shared expert
    float *sum;    // (T, H): the shared expert's part of a MoE layer
    float *rank;   // (T, R, H): results by (token, rank)
    float *row;    // (T): weights of the combine, shared gate
    float *logits; // (sequences, V)
    float *scores; // (threads, S, C): attention scratch

    float *cosine; // (C, D / 2)
    float *sine;   // (C, D / 2)
    float *k;      // (layers, sequences, KV heads, C, D): a head's keys stand together
    float *v;      // (layers, sequences, KV heads, C, D)
};

/* Scratch of the scores for predictors; what the predict policy does not need is NULL. G features
 * of a network, W its widest layer. */
struct mp_predict_state {
    float *x;        // (T, H): residual stream of the partial forward
    float *features; // (T, G)
    float *wide[3];  // (T, W)
    uint8_t *done;   // (T, R): the result by (token, rank) is there

    bool shared; /* the shared part of the layer in work has been computed */

    /* Of the layer in work; NULL before the router has spoken. */
    const uint32_t *chosen; // (T, R)
    const float *weights;   // (T, R)
};

struct mp_device;

struct mp_engine {
    struct mp_engine_config config;
    struct mp_device *device; /* NULL: the CPU computes everything */
    struct mp_costs costs;    /* of this machine, as far as known */
    struct mp_state state;
    struct mp_counters counters;
    struct mp_shape shape;
    struct mp_backend *backend;
    struct mp_space *space;
    struct mp_policies policies;
    struct mp_decisions *decisions; /* NULL: no log */
    struct mp_pager *pager;
    struct mp_step *step;
    struct mp_step_executor host_executor; /* without a device */
    unsigned track;

    uint32_t *moe_layer;          // (layers): number among MoE layers, or UINT32_MAX
    uint32_t *layer_of;           // (moe_layers): the inverse
    uint32_t tokens;              /* of the batch in forward() */
    const struct mp_batch *batch; /* the same */
    const float *scores;          // (tokens, experts): of the layer being run; the step's
    struct mp_predict_state predict;
    uint64_t summed_ns; /* when the batch's last MoE layer was added up; 0: none yet */
};

/*
 * Measurements for `costs`, by the step's thread; without effect in a deterministic run. Experts of
 * a device are no matter of the first. Scores: the next ones after note_sum() are there.
 */
void mp_engine_note_experts(struct mp_engine *engine, uint64_t ns, uint32_t parts, uint64_t rows);
void mp_engine_note_sum(struct mp_engine *engine);
void mp_engine_note_scores(struct mp_engine *engine);
void mp_engine_note_predicted(struct mp_engine *engine, uint64_t start_ns);

/* The step's link_busy(); ctx is an engine. 0 in a deterministic run. */
uint64_t mp_engine_link_busy(void *ctx);

/* One matrix product of a list that is computed together: y(tokens, rows) = w x (+ bias). */
struct mp_product {
    const struct mp_view *w;
    const float *bias; // (rows) or NULL
    const float *x;
    size_t x_stride;
    float *y;
    size_t y_stride;
};

/* All products of the list for `tokens` tokens, rows shared out over the pool. */
void mp_engine_multiply(struct mp_engine *engine, const struct mp_product *list, size_t count,
                        size_t tokens);

/* S: kernels multiply 8 tokens, and as many heads, at once. */
static inline uint32_t mp_engine_heads_once(const struct mp_model_config *model)
{
    const uint32_t sharing = model->heads / model->kv_heads;

    return sharing < 8 ? sharing : 8;
}

/* W: the rows of a whole batch for one expert, and of a few tokens for all their experts. */
static inline uint64_t mp_engine_expert_rows(uint64_t tokens_max, uint64_t top_k)
{
    return tokens_max > 4 * top_k ? tokens_max : 4 * top_k;
}

/*
 * One feed-forward network with its input, or one slice of one: its rows of gate and up and its
 * columns of down. Slices of one network stand together, ascending, with one x, y and rows.
 */
struct mp_ffn_work {
    struct mp_ffn ffn;
    const float *x;   // (tokens, H)
    float *y;         // (tokens, H)
    float *gate, *up; // (tokens, channels): scratch
    size_t tokens;
    uint32_t more;              /* slices of the network that follow this one, its first here */
    bool later;                 /* it is one of those that follow */
    bool add;                   /* to what y has from slices before these */
    const struct mp_rows *rows; /* NULL, or: copy y to state.rank by these (token, rank) */
};

/* y = down(silu(gate x) * up x) for all networks of the list, which have one hidden width. */
void mp_engine_ffn(struct mp_engine *engine, const struct mp_ffn_work *list, size_t count);

/* Row of state.rank for row i of an expert. */
static inline size_t mp_engine_rank_row(const struct mp_engine *engine, const struct mp_rows *rows,
                                        size_t i)
{
    return (size_t)rows->token[i] * engine->shape.top_k + rows->rank[i];
}

/* fn for each token, shared out over the pool if there are many. */
void mp_engine_each_token(struct mp_engine *engine,
                          void (*fn)(void *ctx, uint64_t token, unsigned thread), void *ctx,
                          size_t tokens);

/* x += attention(norm(x)) for the batch in work. Without `keep` the layer's cache is left as it
 * was. Uses state.q, att, gate, up, xe and ye. */
void mp_engine_attention(struct mp_engine *engine, uint32_t layer, float *x, bool keep);

/* scores := softmax(router x) over the experts of the model's layer `layer`. */
void mp_engine_router(struct mp_engine *engine, uint32_t layer, const float *x, float *scores);

/*
 * out(H) := what the routed and shared experts add to the stream of token t: the ranks in order,
 * weights(R) normalised where the model does, then the shared part. Ranks whose byte in `done` (R)
 * is 0 count as zero; NULL: all are there.
 */
void mp_engine_sum_experts(struct mp_engine *engine, size_t t, const float *weights,
                           const uint8_t *done, float *out);

/* Scratch for the predict policy of engine->policies; a warning where what it wants is missing. */
enum mp_status mp_engine_predict_create(struct mp_engine *engine) MP_MUST_CHECK;
void mp_engine_predict_destroy(struct mp_engine *engine);

/* Scores of MoE layer `target` by `source`; what the engine has no data for is asked of the gate.
 */
void mp_engine_source_scores(struct mp_engine *engine, uint32_t moe_layer, uint32_t target,
                             enum mp_score_source source, float *scores);

/* The source that will speak where `source` is asked for. */
enum mp_score_source mp_engine_source_of(const struct mp_engine *engine, uint32_t moe_layer,
                                         uint32_t target, enum mp_score_source source);

/* The sources that have a file of their own; state.xn is the input of the open layer's gate. */
void mp_engine_scores_partial(struct mp_engine *engine, uint32_t moe_layer, uint32_t target,
                              float *scores);
void mp_engine_scores_llapor(struct mp_engine *engine, uint32_t moe_layer, float *scores);

/* MP_ERR_CANCELED if the caller of mp_forward() has asked for that. */
enum mp_status mp_engine_check_cancel(const struct mp_engine *engine) MP_MUST_CHECK;

/* Notify config.observer; state.xn and state.rank are those of the layer. */
void mp_engine_notify_observer(struct mp_engine *engine, uint32_t moe_layer,
                               const uint32_t *experts, const float *weights);

extern const struct mp_step_ops mp_engine_step_ops;
/* struct mp_step_executor's begin() on the CPU; ctx is an engine. */
enum mp_status mp_engine_begin_experts(void *ctx, uint32_t moe_layer,
                                       const struct mp_expert_work *work,
                                       uint32_t count) MP_MUST_CHECK;

/* paging.c. open: the backend, and the device that computes where the CPU cannot. make: space,
 * policies, pager and step, and with a device its threads and graphs. On failure what is there is
 * left to mp_engine_destroy(). */
enum mp_status mp_engine_open_backend(struct mp_engine *engine) MP_MUST_CHECK;
enum mp_status mp_engine_make_paging(struct mp_engine *engine) MP_MUST_CHECK;

#endif
