#ifndef MP_ENGINE_INT_H
#define MP_ENGINE_INT_H

#include "engine/forward/compute.h"
#include "engine/forward/cpu/cpu.h"
#include "engine/forward/engine.h"
#include "engine/forward/peers.h"
#include "policy/record/decisions.h"

/*
 * Private to engine/forward: shared by engine.c (creation and queries), paging.c (from the backend
 * to the step), positions.c (rotation), forward.c (the transformer), moe.c (the operations of the
 * MoE step), predict_*.c (scores for predictors), costs.c and the computes.
 */

/* Scratch of predictors, which nobody else uses. G features of a network, W its widest layer; NULL
 * if not used. */
struct mp_predict_state {
    float *input;                      // (T, H)
    float *features;                   // (T, G)
    float *wide[3];                    // (T, W)
    struct mp_llapor_learner *learner; /* or NULL */

    bool alone;      /* without the pool, which experts have */
    bool asked;      /* for the next layer's gate, in the current layer */
    bool guesses;    /* that was asked for in the last layer that has a next one */
    bool guess_here; /* the compute has it */
    bool shared;     /* the shared expert of the current layer has been computed */
    bool input_here; /* state.xn on the host is, or will be, that of the current layer */

    /* Routing of the current layer; NULL before the router has run. */
    const uint32_t *chosen; // (T, R)
    const float *weights;   // (T, R)
};

struct mp_device;

struct mp_engine {
    struct mp_engine_config config;
    struct mp_device *device; /* NULL: the CPU computes everything */
    struct mp_compute cpu;
    struct mp_compute *compute; /* runs the transformer */
    struct mp_costs costs;      /* of this machine; 0 where unknown */
    struct mp_state_plan state_plan;
    struct mp_state state; /* on the host */
    struct mp_counters counters;
    struct mp_shape shape;
    struct mp_backend *backend;
    struct mp_space *space;
    struct mp_policies policies;
    struct mp_decisions *decisions; /* NULL: no log */
    struct mp_pager *pager;
    struct mp_step *step;
    struct mp_step_ops step_ops;    /* of moe.c */
    struct mp_lookahead *lookahead; /* NULL: none */
    unsigned track;

    uint32_t *moe_layer;          // (layers): number among MoE layers, or UINT32_MAX
    uint32_t *layer_of;           // (moe_layers): the inverse
    uint32_t tokens;              /* tokens of the batch in mp_forward() */
    const struct mp_batch *batch; /* the same */
    const float *scores;          // (tokens, experts): of the layer being run; the step's
    struct mp_predict_state predict;
    struct mp_need *peer_needs;       // (experts): of mp_engine_serve(); NULL without peers
    struct mp_expert_work *peer_work; // (experts * slices)
    uint64_t summed_ns; /* when the batch's last MoE layer was combined; 0: none yet */
};

/*
 * Measurements for `costs`, by the step's thread; without effect in a deterministic run.
 * note_experts() does not apply to experts of a device. note_scores(): the first scores after
 * note_sum() are available.
 */
void mp_engine_note_experts(struct mp_engine *engine, uint64_t ns, uint32_t parts, uint64_t rows);
void mp_engine_note_sum(struct mp_engine *engine);
void mp_engine_note_scores(struct mp_engine *engine);
void mp_engine_note_predicted(struct mp_engine *engine, uint64_t start_ns);

/* peers.c. create: list the executor of other machines, if there are any. The others are parts of
 * the step's operations and do nothing without peers. */
enum mp_status mp_engine_peers_create(struct mp_engine *engine) MP_MUST_CHECK;
void mp_engine_peers_destroy(struct mp_engine *engine);
enum mp_status mp_engine_peers_poll(struct mp_engine *engine) MP_MUST_CHECK;
enum mp_status mp_engine_peers_collect(struct mp_engine *engine) MP_MUST_CHECK;
enum mp_status mp_engine_peers_choose(void *ctx, const struct mp_assign_facts *facts,
                                      uint32_t *executors) MP_MUST_CHECK;

/* The step's link_busy(); ctx is an engine. 0 in a deterministic run. */
uint64_t mp_engine_link_busy(void *ctx);

/* S: kernels multiply 8 tokens, and as many heads, at once. */
static inline uint32_t mp_engine_heads_once(const struct mp_model_config *model)
{
    uint32_t sharing = model->heads / model->kv_heads;

    if (model->wide_kv_heads > 0 && model->heads / model->wide_kv_heads > sharing)
        sharing = model->heads / model->wide_kv_heads;
    return sharing < 8 ? sharing : 8;
}

/* Rows of a transposed matrix that are put in order together, and the scratch for them. */
#define MP_TILE_ROWS 16

static inline uint64_t mp_engine_tile_floats(const struct mp_model_config *model)
{
    return MP_TILE_ROWS *
           (uint64_t)(model->hidden > model->expert_ffn ? model->hidden : model->expert_ffn);
}

/* W: the rows of a whole batch for one expert, and of a few tokens for all their experts. */
static inline uint64_t mp_engine_expert_rows(uint64_t tokens_max, uint64_t top_k)
{
    return tokens_max > 4 * top_k ? tokens_max : 4 * top_k;
}

/* Row of state.rank for row i of an expert. */
static inline size_t mp_engine_rank_row(const struct mp_engine *engine, const struct mp_rows *rows,
                                        size_t i)
{
    return (size_t)rows->token[i] * engine->shape.top_k + rows->rank[i];
}

/* positions.c: fill state.cosine and state.sine. */
void mp_engine_fill_positions(struct mp_engine *engine);

/* x += attention(norm(x)); uses q, k, v, att and xe. */
void mp_engine_attention(struct mp_compute *c, uint32_t layer, enum mp_array x);
/* in := norm(x), and for a layer without experts x += ffn(in). */
void mp_engine_dense(struct mp_compute *c, uint32_t layer, enum mp_array in, enum mp_array x);

/* A pass of the current batch through the model, from its present progress to layer `to`, or with
 * all layers to its logits. */
struct mp_pass {
    struct mp_forward_progress from;
    uint32_t to;       /* layer of the model */
    uint32_t wanted;   /* tokens whose logits are wanted */
    bool uncancelable; /* mp_engine_check_cancel() is not called */
    /* x += the experts' combined results for xn */
    enum mp_status (*experts)(struct mp_compute *c, uint32_t moe_layer);
};
enum mp_status mp_engine_pass(struct mp_compute *c, const struct mp_pass *pass) MP_MUST_CHECK;

/*
 * moe.c. fill: set engine->step_ops for engine->compute. open: reset the state of a layer. bring:
 * get the layer's normed input to the host, in state.xn. note: this work has begun. A partial
 * forward uses the experts that the home executor was given with all slices; those that others
 * compute count as absent even if they have ended, so that a prediction does not depend on timing.
 */
void mp_engine_fill_step_ops(struct mp_engine *engine);
void mp_engine_open_layer(struct mp_engine *engine, uint32_t moe_layer);
enum mp_status mp_engine_bring_input(struct mp_engine *engine) MP_MUST_CHECK;
void mp_engine_note_done(struct mp_engine *engine, const struct mp_expert_work *work,
                         uint32_t count);

/* Allocate scratch for the predict policy of engine->policies; warns if its data are missing. */
enum mp_status mp_engine_predict_create(struct mp_engine *engine) MP_MUST_CHECK;
void mp_engine_predict_destroy(struct mp_engine *engine);

/* Scores of MoE layer `target` from `source`, or from the gate if the engine has no data for that
 * source. */
enum mp_status mp_engine_source_scores(struct mp_engine *engine, uint32_t moe_layer,
                                       uint32_t target, enum mp_score_source source,
                                       float *scores) MP_MUST_CHECK;

/* The source that is actually used for `source`. */
enum mp_score_source mp_engine_source_of(const struct mp_engine *engine, uint32_t moe_layer,
                                         uint32_t target, enum mp_score_source source);

/* Sources implemented in separate files; state.xn is the input of the open layer's gate. */
enum mp_status mp_engine_scores_partial(struct mp_engine *engine, uint32_t moe_layer,
                                        uint32_t target, float *scores) MP_MUST_CHECK;
void mp_engine_scores_llapor(struct mp_engine *engine, uint32_t moe_layer, float *scores);

/*
 * predict_llapor_learn.c. create: with config.llapor_learns. The others do nothing without it: out:
 * the last product of the network of `moe_layer`, as it is now; said: what that gave for the batch,
 * whose state is still in `wide`; learn: what its layer, the next one, really chose.
 */
enum mp_status mp_engine_llapor_learner_create(struct mp_engine *engine) MP_MUST_CHECK;
void mp_engine_llapor_learner_destroy(struct mp_llapor_learner *learner);
struct mp_llapor_linear mp_engine_llapor_out(const struct mp_engine *engine, uint32_t moe_layer);
void mp_engine_llapor_said(struct mp_engine *engine, uint32_t moe_layer, const float *scores);
void mp_engine_llapor_learn(struct mp_engine *engine, uint32_t moe_layer, const uint32_t *chosen);

/* MP_ERR_CANCELED if the caller of mp_forward() has requested it. */
enum mp_status mp_engine_check_cancel(const struct mp_engine *engine) MP_MUST_CHECK;

/* paging.c. open: open the backend and, if the CPU cannot access its memory, the device. make:
 * create space, policies, pager and step, and with a device its threads and graphs. After a failure
 * mp_engine_destroy() frees what was created. */
enum mp_status mp_engine_open_backend(struct mp_engine *engine) MP_MUST_CHECK;
enum mp_status mp_engine_make_paging(struct mp_engine *engine) MP_MUST_CHECK;

#endif
