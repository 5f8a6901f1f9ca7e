#ifndef MP_DEVICE_H
#define MP_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/forward/engine_int.h"
#include "engine/gpu/executors.h"
#include "engine/gpu/gpu.h"
#include "vmm/base/lock.h"

/*
 * The engine on a CUDA device, shared by device.c (life and memory), device_weights.c (what every
 * token needs, on the device), device_forward.c (the transformer), device_step.c (the operations
 * of a MoE layer), device_lists.c (whom the kernels of its experts compute), device_expert_gemm.c
 * (experts with many rows), device_queue.c (executors that work at the same time), device_graph.c
 * (steps that the device does alone) and device_partial.c (the next layer ahead of time, for a
 * predictor).
 *
 * Every activation of engine_int.h has its twin in device memory. On the host stay, pinned, those
 * that cross over: router scores, normed inputs, results of experts that the CPU computed, logits.
 * The host's thread queues; it waits for the device once per MoE layer for the scores, and for
 * experts as the step does.
 *
 * One stream carries the transformer and the experts of the device tier, a second one the experts
 * that are read in place over the link, a third one the copies around experts of the CPU. They need
 * no order between each other: what crosses over was seen to end by the host, which it has to be
 * anyway before a lease is given back.
 */

/* One list of experts, or slices of them, that an executor has taken over: device->work[first ..
 * first + count). */
struct mp_device_batch {
    uint32_t layer, first, count;
    uint32_t parts, rows;   /* slices, and their rows, over all of the list */
    mp_cu_event start, end; /* around it, on the queue's stream; not of the CPU */
    uint64_t start_ns;      /* when it was handed over */
};

#define MP_DEVICE_BATCHES 16

/* At most, of kernels that read each weight once. */
#define MP_DEVICE_FEW_TOKENS 8u

/* An executor: takes batches over in order, and a thread that sees them end, or computes them. */
struct mp_device_queue {
    struct mp_device *device;
    uint32_t executor; /* its place in the list that policies see */
    bool on_cpu;       /* the thread computes; else it waits for the stream */
    mp_cu_stream stream;
    unsigned track;
    pthread_t thread;
    bool running;
    struct mp_cond work;
    struct mp_device_batch batches[MP_DEVICE_BATCHES];
    uint64_t taken, done; /* device->lock; batch i stands at i % MP_DEVICE_BATCHES */
};

/* Addresses on the device; shapes as in engine_int.h, S the widest of shared and dense FFNs. */
struct mp_device_state {
    mp_cu_ptr x, xn, xe; // (T, H); xe: input of attention, and of the head
    mp_cu_ptr q, att;    // (T, Q)
    mp_cu_ptr k, v;      // (T, K)
    mp_cu_ptr gate, up;  // (T, S)
    mp_cu_ptr ye, sum;   // (T, H)
    mp_cu_ptr scores;    // (T, E)
    mp_cu_ptr row;       // (T)
    mp_cu_ptr weight;    // (T, R)
    mp_cu_ptr rank;      // (T, R, H)
    mp_cu_ptr act;       // (T * R, F): of all experts of a layer
    mp_cu_ptr gemm_x;    // (2, T, H): of an expert with many rows, for each stream; see
    mp_cu_ptr gemm_up;   // (2, T, F): device_expert_gemm.c
    mp_cu_ptr logits;    // (sequences, V)
    mp_cu_ptr ids;       /* u32: token (T), sequence (T), position (T), and of the sequences
                            that want logits their token's number, random number, sampled token */
    mp_cu_ptr list;      /* work lists of a layer */
    mp_cu_ptr part;      /* of attention in parts, for few tokens */
    mp_cu_ptr cosine, sine;
    mp_cu_ptr k_cache, v_cache; // (layers, sequences, C, K)
};

struct mp_device {
    struct mp_engine *engine;
    struct mp_gpu *gpu;
    struct mp_gemm *gemm;
    struct mp_step_ops ops;
    struct mp_step_executor executors[MP_EXECUTORS_MAX]; /* ctx: one of queues[] */
    struct mp_device_state state;
    struct mp_weights weights; /* addresses are those of the device; units are not filled in */
    mp_cu_ptr weights_block;
    unsigned track;

    /* Pinned. */
    uint32_t *ids;
    float *scores; // (T, E)
    float *weight; // (T, R)
    char *list;
    uint64_t list_bytes;

    struct mp_device_graphs *graphs;   /* NULL: the host drives every step */
    struct mp_device_partial *partial; /* NULL: no predictor asks for it */

    struct mp_device_queue queues[MP_GPU_EXECUTORS]; /* by enum mp_gpu_executor */
    struct mp_mutex lock;                            /* rank LEAF */
    struct mp_cond ended_some;                       /* a batch has ended */

    /* Of the layer in work. The step's thread fills them, the queues' threads read them. */
    struct mp_expert_work *work; // (E * slices)
    uint32_t work_used;
    uint64_t list_used, act_used; /* bytes; floats */

    /* Leases of the host tier, by expert and slice of the layer. */
    uint8_t *leased;                           // (E * slices)
    const void *(*pieces)[MP_UNIT_PIECES_MAX]; // (E * slices)
    uint32_t leased_layer;

    uint32_t *ended;              // (E * slices): needs of batches that have ended; device->lock
    _Atomic uint32_t ended_count; /* written under device->lock; read alone by any_ended() */
    struct mp_costs measured;     /* of the executors, followed while running; device->lock */
    struct mp_error error;        /* the first of a batch since it was asked for; device->lock */
    bool stop;                    /* device->lock */
};

/* The stream of the transformer. */
static inline mp_cu_stream mp_device_stream(const struct mp_device *device)
{
    return device->queues[MP_GPU_DEVICE].stream;
}

/* Does this backend need a device to compute on? */
bool mp_device_needed(const struct mp_backend *backend);

/* Device memory beyond weights, budget and what mp_engine_measure() counts, with experts of so many
 * slices: for graphs, cuBLAS and a predictor, where the configuration would have them, what arrays
 * there are larger by than the host's, and rounding. What cuBLAS keeps for itself is not known. */
uint64_t mp_device_extra_bytes(const struct mp_engine_config *config, uint32_t slices);

/*
 * Open the device of the engine's configuration; then, when the engine has its host memory, make
 * what is on the device and bring the weights there; then, when it has a pager, start the threads.
 * They stop before the pager goes.
 */
enum mp_status mp_device_open(struct mp_engine *engine, struct mp_device **device_p) MP_MUST_CHECK;
enum mp_status mp_device_prepare(struct mp_device *device) MP_MUST_CHECK;
enum mp_status mp_device_start(struct mp_device *device) MP_MUST_CHECK;
void mp_device_stop(struct mp_device *device);    /* NULL is allowed */
void mp_device_destroy(struct mp_device *device); /* NULL is allowed */

/* Copy what every token needs into one block of device memory; device->weights says where. */
enum mp_status mp_device_load_weights(struct mp_device *device) MP_MUST_CHECK;
/* At most, between weights on the device. */
uint64_t mp_device_weights_padding(const struct mp_engine_config *config);
void mp_device_drop_weights(struct mp_device *device);

/* engine.h's mp_forward() for a batch that has been checked. */
enum mp_status mp_device_forward(struct mp_device *device, const struct mp_batch *batch,
                                 const float **logits_p) MP_MUST_CHECK;

/* Its parts, each queued on the stream of the transformer. */
enum mp_status mp_device_begin(struct mp_device *device, const struct mp_batch *batch,
                               uint32_t *wanted_p) MP_MUST_CHECK;
enum mp_status mp_device_embed(struct mp_device *device, uint32_t tokens) MP_MUST_CHECK;
/* x += attention(norm(x)) */
enum mp_status mp_device_attention(struct mp_device *device, uint32_t layer, mp_cu_ptr x,
                                   uint32_t tokens) MP_MUST_CHECK;
/* xn := norm(x), and for a layer without experts x += ffn(xn) */
enum mp_status mp_device_dense(struct mp_device *device, uint32_t layer,
                               uint32_t tokens) MP_MUST_CHECK;
enum mp_status mp_device_head(struct mp_device *device, uint32_t wanted) MP_MUST_CHECK;
/* For the host: the logits, or the tokens that are sampled from them. */
enum mp_status mp_device_result(struct mp_device *device, uint32_t wanted) MP_MUST_CHECK;

/* Queue y (+)= w x (+ bias) for `tokens` tokens on the stream of the transformer. */
enum mp_status mp_device_multiply(struct mp_device *device, const struct mp_view *w,
                                  const float *bias, mp_cu_ptr x, mp_cu_ptr y, uint32_t tokens,
                                  bool accumulate) MP_MUST_CHECK;
/* Queue out := norm(x) w, both (tokens, H). */
enum mp_status mp_device_norm(struct mp_device *device, mp_cu_ptr out, mp_cu_ptr x, const float *w,
                              uint32_t tokens) MP_MUST_CHECK;
/* Queue y (+)= down(silu(gate x) * up x). Uses state.gate and state.up. */
enum mp_status mp_device_ffn(struct mp_device *device, const struct mp_ffn *ffn, mp_cu_ptr x,
                             mp_cu_ptr y, uint32_t tokens, bool accumulate) MP_MUST_CHECK;

/* The operations of the step, from engine->step_ops; what they keep of a layer, for a new one. */
void mp_device_fill_ops(struct mp_device *device);
/* What the engine's costs list of the executors that there are becomes what is driven here.
 * in_place: the device can read the host tier. Before mp_device_start(). */
void mp_device_list_executors(struct mp_device *device, bool in_place);
void mp_device_open_layer(struct mp_device *device, uint32_t moe_layer);
/* Give back host leases of work that was never handed over. */
void mp_device_release_host(struct mp_device *device);

/* Queue scores := softmax(router x). Always by the project's kernels: rounded inputs would choose
 * other experts. */
enum mp_status mp_device_router(struct mp_device *device, uint32_t layer, mp_cu_ptr x,
                                mp_cu_ptr scores) MP_MUST_CHECK;
/* Queue sum := the shared expert's part of a layer, where the model has one. */
enum mp_status mp_device_shared(struct mp_device *device, uint32_t layer,
                                uint32_t tokens) MP_MUST_CHECK;
/* Queue x += what experts, by their (token, rank) results, and shared expert give, by state.weight.
 */
enum mp_status mp_device_combine(struct mp_device *device, mp_cu_ptr x, mp_cu_ptr rank,
                                 uint32_t tokens) MP_MUST_CHECK;
/* scores(tokens, experts) of MoE layer `target` for the residual stream x, on the host. */
enum mp_status mp_device_gate_scores(struct mp_device *device, mp_cu_ptr x, uint32_t target,
                                     float *scores) MP_MUST_CHECK;

/*
 * device_lists.c. bytes: of the lists of a layer, at worst; false: more than any memory has. queue:
 * the experts of a batch, on its queue's stream and between its events.
 */
bool mp_device_list_bytes(const struct mp_engine_config *config, uint32_t slices,
                          uint64_t *bytes_p);
enum mp_status mp_device_queue_batch(struct mp_device *device, struct mp_device_queue *queue,
                                     const struct mp_device_batch *batch) MP_MUST_CHECK;

/*
 * device_expert_gemm.c. Is an expert with so many rows computed by products of its own? Then this
 * queues them: `row` (u32, on the device) are its rows, `act` (rows, channels) is scratch.
 */
bool mp_device_wants_gemm(const struct mp_device *device, uint32_t rows);
enum mp_status mp_device_expert_gemm(struct mp_device *device, struct mp_device_queue *queue,
                                     enum mp_wtype type, const struct mp_cuda_expert *expert,
                                     mp_cu_ptr row, mp_cu_ptr act) MP_MUST_CHECK;
/* Products of the device: cuBLAS, where it is wanted and works, for both streams that multiply, and
 * scratch for the above. All of it is made here; where there is no room, MP_GEMM_AUTO does without.
 * bytes: at most, of device memory. close: the scratch; after mp_gemm_close(). */
enum mp_status mp_device_expert_gemm_open(struct mp_device *device) MP_MUST_CHECK;
void mp_device_expert_gemm_close(struct mp_device *device);
uint64_t mp_device_expert_gemm_bytes(const struct mp_engine_config *config);

/*
 * device_partial.c. With policies; nothing is made, and nothing done, where no predictor asks for a
 * partial forward. begin: a layer is opened; note: this work has been queued; scores: those of
 * `target`, the MoE layer that follows, from what has been noted and from the shared expert.
 */
enum mp_status mp_device_partial_create(struct mp_device *device) MP_MUST_CHECK;
uint64_t mp_device_partial_bytes(const struct mp_engine_config *config); /* of device memory */
void mp_device_partial_destroy(struct mp_device *device);
void mp_device_partial_begin(struct mp_device *device);
void mp_device_partial_note(struct mp_device *device, const struct mp_expert_work *work);
enum mp_status mp_device_scores_partial(struct mp_device *device, uint32_t moe_layer,
                                        uint32_t target, float *scores) MP_MUST_CHECK;

/*
 * device_graph.c. With a pager, after mp_device_start(). `step`: the batch has been begun
 * (mp_device_begin()); *progress_p says what has been done of it.
 */
struct mp_device_progress {
    bool started;   /* else nothing was done */
    bool complete;  /* everything, and the logits are here */
    bool begun;     /* attention and norm of `layer` are done, too */
    uint32_t layer; /* of the model: the host goes on from it */
};
struct mp_device_graph_counts {
    uint64_t replays, complete; /* of them without a miss */
};
/* Without memory for them there are none, and one warning. */
enum mp_status mp_device_graphs_create(struct mp_device *device) MP_MUST_CHECK;
uint64_t mp_device_graph_bytes(const struct mp_engine_config *config, uint32_t slices);
void mp_device_graphs_destroy(struct mp_device *device);
enum mp_status mp_device_graph_step(struct mp_device *device, uint32_t tokens, uint32_t wanted,
                                    struct mp_device_progress *progress_p) MP_MUST_CHECK;
struct mp_device_graph_counts mp_device_graphs_counted(const struct mp_device *device);
/*
 * For measuring: the graph of the last step of so many tokens once more, without pager and
 * policies, until its logits are here. places (layers, experts): where experts are from now on,
 * until the next step, not with slices; NULL: as they were. MP_ERR_INVALID: there is no such graph
 * yet.
 */
enum mp_status mp_device_graph_again(struct mp_device *device, uint32_t tokens,
                                     const struct mp_cuda_place_of *places) MP_MUST_CHECK;

/* device_queue.c */
enum mp_status mp_device_queues_open(struct mp_device *device) MP_MUST_CHECK;
void mp_device_queues_close(struct mp_device *device);
/* This work has ended, without a queue. */
void mp_device_notify_ended(struct mp_device *device, const struct mp_expert_work *work,
                            uint32_t count);
/* The next batch of a queue, for its caller to fill; waits while all are under way. */
struct mp_device_batch *mp_device_next_batch(struct mp_device_queue *queue);
/* It is filled, and queued on the stream: let the thread see it end. */
void mp_device_hand_over(struct mp_device_queue *queue);
/* After an error: wait until no stream and no thread works any more. */
void mp_device_settle(struct mp_device *device);
/* needs(*count_p) := those of all batches that have ended; see struct mp_step_ops. */
enum mp_status mp_device_ended(struct mp_device *device, bool wait, uint32_t *needs,
                               uint32_t *count_p) MP_MUST_CHECK;

#endif
