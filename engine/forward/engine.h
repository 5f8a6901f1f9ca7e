#ifndef MP_ENGINE_H
#define MP_ENGINE_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/model/sidecar/calibration.h"
#include "engine/model/sidecar/heat_map.h"
#include "vmm/format/checkpoint.h"
#include "engine/model/config.h"
#include "engine/gpu/cublas.h"
#include "engine/model/sidecar/llapor.h"
#include "engine/model/sidecar/token_heat.h"
#include "engine/pool/pool.h"
#include "engine/forward/sampler.h"
#include "engine/model/weights.h"
#include "kernels/cpu/kernels.h"
#include "policy/pager/step.h"
#include "vmm/live/live.h"

/*
 * The engine: a model, the memory it may use, and forward(). On a backend whose memory the CPU
 * cannot access, everything runs on the device (engine/forward/cuda/device.h), except experts that
 * policies assign to the CPU.
 *
 *     config    what the model is                  (engine/model/config.h)
 *     weights   what every token needs, in RAM     (engine/model/weights.h)
 *     state     activations and KV cache           (engine/forward/state.h, kv.h)
 *     paging    files <- space <- pager <- step    (vmm/, policy/)
 *
 * Exactness: the bits of a sequence's logits do not depend on the budget, the policies (as long as
 * routing is exact), the number of threads, the other sequences of a batch, or how a prompt is cut
 * into batches.
 *
 * Thread safety: one thread at a time; the engine uses its pool internally.
 */
struct mp_batch;
struct mp_peers;

/* Inputs and results of a MoE layer, before they are added to the residual stream. T tokens of the
 * batch, H hidden. */
struct mp_layer_seen {
    uint32_t layer; /* MoE layer */
    uint32_t k;
    const struct mp_batch *batch;
    const float *input;      // (T, H): the router's input
    const uint32_t *experts; // (T, k)
    const float *weights;    // (T, k): as routed, not normalised
    const float *results;    // (T, k, H): of the experts, not weighted
};

/* Callbacks for calibration and evaluation. Either may be NULL; both are called on the engine's
 * thread. */
struct mp_observer {
    void *ctx;
    void (*layer)(void *ctx, const struct mp_layer_seen *seen);
    /* The predict policy's scores(tokens, experts) of `target`, made while `layer` runs. */
    void (*predicted)(void *ctx, uint32_t layer, uint32_t target, uint32_t tokens,
                      const float *scores);
};

struct mp_engine_config {
    const struct mp_model_config *model; /* these three must outlive the engine */
    const struct mp_weights *weights;
    struct mp_files *files;

    uint32_t sequences;  /* 1..64 */
    uint32_t ctx;        /* positions per sequence, 1..model->positions_max */
    uint32_t tokens_max; /* of one batch: the prefill chunk; >= sequences */
    uint32_t wanted_max; /* most tokens of a batch whose logits are wanted; less than `sequences`
                            counts as that */

    /* Of keys and values: plain, or, on a CPU, Q8_0 (then heads have whole blocks). */
    enum mp_wtype kv_type;
    bool kv_small_pages; /* no huge page holds what is not used beside what is */

    uint64_t budget_bytes; /* of experts in RAM; UINT64_MAX: all of them */
    /* For a backend with a host tier: see struct mp_space_config. */
    uint64_t host_budget_bytes;
    enum mp_host_residency host_residency;
    enum mp_addressing addressing;
    const char *backend; /* "host", "cuda", or a chain such as "trace:host" */
    struct mp_backend_config backend_config;
    enum mp_io_mode io_mode;
    bool populate;                  /* see struct mp_space_config */
    struct mp_reader_config reader; /* uring, depth, threads, chunk_bytes */

    /* With a device: */
    struct mp_costs
        costs; /* measured on this machine; its executors, or those of engine/gpu/executors.h if it
                  lists none, are used as far as the machine has them; updated during the run,
                  except with `deterministic` */
    enum mp_gemm_choice gemm; /* who makes products with many tokens */
    bool graphs;              /* run steps that need no host as one CUDA graph; same bits */

    struct mp_profile policies;
    const struct mp_opt_group *option_groups; /* options of policies; or NULL: environment */
    uint32_t lookahead; /* tokens whose experts are guessed from their ids, 0..8 */
    bool deterministic;
    uint64_t seed;
    const char *decision_log; /* path of the decision log; NULL: none */

    const struct mp_kernels *kernels;
    struct mp_pool *pool; /* must outlive the engine */
    /* Of waits for a device and for copies to it; NULL: mp_pool_spin(). Outlives the engine. */
    const struct mp_spin *spin;
    struct mp_clock *clock;
    struct mp_timeline *timeline; /* or NULL */
    struct mp_live *live;         /* or NULL; told of each batch */

    /* Routing of each MoE layer, for a trace; or NULL. Called on the engine's thread. */
    void (*routed)(void *ctx, uint32_t layer, uint32_t tokens, uint32_t k, const uint32_t *experts,
                   const float *weights);
    void *routed_ctx;

    const struct mp_observer *observer; /* or NULL */

    /* Routing in place of the model's own (engine/forward/forced_routing.h), or NULL. Outlives the
     * engine. */
    const struct mp_forced_routing *forced_routing;

    /* Other machines that compute experts (engine/forward/peers.h), or NULL. Outlives the engine.
     * Only where the CPU computes. */
    const struct mp_peers *peers;

    /* Calibration and trained predictors of this model, for policies and for the sources of
     * predictors. Or NULL. Both must outlive the engine. */
    const struct mp_calibration_data *calibration;
    const struct mp_llapor *llapor;
    bool llapor_learns;                     /* a copy of it goes on learning */
    const struct mp_token_heat *token_heat; /* what a lookahead begins with; or NULL */

    /* Counts what is chosen, and names the first residents; or NULL. Outlives the engine. */
    struct mp_heat_map *heat_map;

    /* Checked between layers and experts: nonzero ends mp_forward() with MP_ERR_CANCELED. Or NULL.
     */
    const volatile sig_atomic_t *cancel;
};

struct mp_engine;

/* True if the model supports more positions than the context has, so that --ctx can be raised. */
static inline bool mp_engine_ctx_can_grow(const struct mp_engine_config *config)
{
    return config->ctx < config->model->positions_max;
}

/* The wanted tokens that a batch may have. */
static inline uint32_t mp_engine_wanted_max(const struct mp_engine_config *config)
{
    return config->wanted_max > config->sequences ? config->wanted_max : config->sequences;
}

/* Bytes of RAM that an engine of this configuration takes besides weights and budget. */
enum mp_status mp_engine_measure(const struct mp_engine_config *config, uint64_t *kv_bytes_p,
                                 uint64_t *state_bytes_p) MP_MUST_CHECK;

/*
 * MP_ERR_CONFIG: budget, sequences, ctx or tokens_max out of range, with the numbers; E_RESIDENCY:
 * deterministic with an exclusive host tier and an assign policy that uses it. MP_ERR_NO_MEMORY. On
 * failure nothing is left.
 */
enum mp_status mp_engine_create(const struct mp_engine_config *config,
                                struct mp_engine **engine_p) MP_MUST_CHECK;
void mp_engine_destroy(struct mp_engine *engine);

/* Request for sampled tokens instead of logits: kernels/cuda/cuda_kernels.h, mp_cuda_sample. */
struct mp_sample {
    const struct mp_sampling *sampling;
    const uint32_t *uniform; // (wanted tokens): mp_sampler_uniform()
    uint32_t *token;         // (wanted tokens): results; UINT32_MAX: its logits are not finite
};

/*
 * Tokens to process together. Those of one sequence are in ascending order of position and continue
 * its last batch.
 */
struct mp_batch {
    uint32_t count;                 /* 1..tokens_max */
    const uint32_t *token;          // (count): ids below model->vocab
    const uint32_t *sequence;       // (count): below config.sequences
    const uint32_t *position;       // (count): below ctx
    const uint8_t *want;            // (count): 1 if the logits after this token are wanted; at most
                                    // mp_engine_wanted_max() of them are 1
    const struct mp_sample *sample; /* or NULL; only where mp_engine_can_sample() */
    /* For a layer that drafts (engine/model/drafting.h), else NULL: (count, H), of each token the
     * state of the one before it. */
    const float *states;
};

/*
 * Run the model. *logits_p := (wanted tokens, vocab) floats in the order of the batch, valid until
 * the next call; not with batch->sample. After an error the positions of this batch may be
 * submitted again.
 */
enum mp_status mp_forward(struct mp_engine *engine, const struct mp_batch *batch,
                          const float **logits_p) MP_MUST_CHECK;

/*
 * Change config.budget_bytes (bytes; UINT64_MAX: room for all experts) between two calls of
 * mp_forward(), on the same thread. Waits for transfers that have started. The evict policy chooses
 * the residents to evict, others may move; the output does not change by a bit.
 *
 * MP_ERR_CONFIG E_BUDGET_SMALL: less than two slots for each size of expert; nothing has changed.
 * MP_ERR_NO_SPACE: the device has no more memory; what has been allocated is kept. After any other
 * error the budget has an intermediate value, and the engine is usable.
 */
enum mp_status mp_engine_set_budget(struct mp_engine *engine, uint64_t budget_bytes) MP_MUST_CHECK;

/*
 * (count, H): the states of all tokens of the last batch behind the final norm, until the next
 * call; after a mp_forward() that succeeded. Only where the CPU computes.
 */
const float *mp_engine_states(struct mp_engine *engine);

/* With config.lookahead: ids guessed for the tokens after the next batch, of all its sequences,
 * nearest first, and how likely each is, 0..1. */
void mp_engine_expect(struct mp_engine *engine, const uint32_t *ids, const float *chances,
                      uint32_t count);

/* True if tokens can be sampled without logits on the host, as on a device. */
bool mp_engine_can_sample(const struct mp_engine *engine);

/*
 * Between two calls of mp_forward(). can_go_back: a sequence may continue at any position up to its
 * last; else only where it ended (recurrent layers). copy_kv: let sequence `to` hold what `from`
 * holds of its first `positions`; false, with nothing changed, where that is not possible: on a
 * device, and if sequences cannot go back.
 */
bool mp_engine_can_go_back(const struct mp_engine *engine);
bool mp_engine_copy_kv(struct mp_engine *engine, uint32_t from, uint32_t to, uint32_t positions);

/*
 * Keys and values of `count` positions of a sequence from `first` on, as one run of bytes that is
 * kept elsewhere, and back, to the same positions of any sequence. kv_bytes: how many bytes that
 * takes; 0: not possible, as for copy_kv.
 */
uint64_t mp_engine_kv_bytes(const struct mp_engine *engine, uint32_t count);
void mp_engine_save_kv(const struct mp_engine *engine, uint32_t sequence, uint32_t first,
                       uint32_t count, void *out);
void mp_engine_restore_kv(struct mp_engine *engine, uint32_t sequence, uint32_t first,
                          uint32_t count, const void *in);

/*
 * What a sequence holds from position `first` on is not needed any more: its pages go back to the
 * system, and come again when positions are processed (mp_kv_sequence_bytes()). A sequence with
 * recurrent layers starts anew then. Nothing on a device.
 */
void mp_engine_drop_kv(struct mp_engine *engine, uint32_t sequence, uint32_t first);

const struct mp_counters *mp_engine_counters(struct mp_engine *engine);
void mp_engine_plan(const struct mp_engine *engine, struct mp_space_plan *plan_p);
const char *mp_engine_reader(const struct mp_engine *engine);

/* See mp_space_lost_bytes(). */
uint64_t mp_engine_lost_bytes(const struct mp_engine *engine);
const struct mp_shape *mp_engine_shape(const struct mp_engine *engine);
struct mp_pager *mp_engine_pager(struct mp_engine *engine);

/* Complete the decision log and give the file its name. MP_ERR_IO: it could not be written, and
 * there is no file. Without this call there is no file either. */
enum mp_status mp_engine_close_log(struct mp_engine *engine) MP_MUST_CHECK;

/* (tokens, experts): the router's scores of the layer for which config.routed is called. Only for
 * that callback. */
const float *mp_engine_scores(const struct mp_engine *engine);

#endif
