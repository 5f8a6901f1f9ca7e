#ifndef MP_DEVICE_H
#define MP_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/forward/engine_int.h"
#include "engine/gpu/executors.h"
#include "engine/gpu/gpu.h"
#include "vmm/base/lock.h"

/*
 * A CUDA device as a compute (engine/forward/compute.h), shared by device.c (life and memory),
 * device_weights.c (what every token needs, on the device), device_compute.c and device_moe.c (its
 * operations), device_executors.c (who computes experts), device_lists.c (work lists of their
 * kernels), device_expert_gemm.c (experts with many rows), device_queue.c (parallel executors),
 * device_ended.c (what the step hears of them), device_graph.c and device_graph_*.c (steps as CUDA
 * graphs).
 *
 * Arrays are those of the state's table (engine/forward/state.h), with pinned copies on the host of
 * those that are transferred. The engine's thread queues work; it waits for the device once per MoE
 * layer for the scores, and for experts as the step does: awake for a bounded time
 * (vmm/base/spin.h), then asleep.
 *
 * One stream carries the transformer and the experts of the device tier, a second one the experts
 * that are read in place over the link, a third one the copies around experts of the CPU. They need
 * no ordering among each other: before one stream uses results of another, the host has seen the
 * work end, as it must before a lease is released.
 */

/* One list of experts, or slices of them, queued on an executor: device->work[first .. first +
 * count). */
struct mp_device_batch {
    uint32_t layer, first, count;
    uint32_t parts, rows;   /* slices in the list, and the sum of their rows */
    mp_cu_event start, end; /* before and behind it on the queue's stream; the CPU's: end, alone */
    uint64_t start_ns;      /* of the CPU's */
};

#define MP_DEVICE_BATCHES 16

/* Most tokens of kernels that read each weight once. */
#define MP_DEVICE_FEW_TOKENS 8u

/*
 * An executor: a queue of batches. The CPU's has a thread that computes them. That of a stream is
 * looked at by the step's thread; one of its own waits for its oldest batch when the step's thread
 * sleeps for something else.
 */
struct mp_device_queue {
    struct mp_device *device;
    uint32_t executor; /* its index in the list that policies see */
    uint32_t scratch;  /* its part of gemm_x and gemm_up; not for the CPU */
    bool on_cpu;
    mp_cu_stream stream;
    unsigned track;
    pthread_t thread;
    bool running;
    struct mp_cond work;
    struct mp_device_batch batches[MP_DEVICE_BATCHES];
    /* The thread has the oldest batch, or all of the CPU's: then it alone writes `done`, else the
     * step's thread does. Cleared with release. */
    _Atomic bool watched;
    uint64_t taken, done; /* batch i stands at i % MP_DEVICE_BATCHES; the CPU's: device->lock */
};

/* Addresses on the device; 0: it does not have the array. */
struct mp_device_state {
    union {
        mp_cu_ptr array[MP_ARRAY_COUNT];
        struct {
#define MP_DEVICE_MEMBER(name, member, ...) mp_cu_ptr member;
            MP_STATE_ARRAYS(MP_DEVICE_MEMBER)
#undef MP_DEVICE_MEMBER
        };
    };
};

struct mp_device {
    struct mp_compute compute; /* the first member; ctx of its executors: one of queues[] */
    struct mp_engine *engine;
    struct mp_gpu *gpu;
    struct mp_gemm *gemm;
    struct mp_device_state state;
    mp_cu_ptr gemm_x, gemm_up; /* (streams, T, H), (streams, T, F): see device_expert_gemm.c */
    struct mp_weights weights; /* addresses are those of the device; units are not filled in */
    mp_cu_ptr weights_block;

    /* A norm of few tokens that is computed with the product that reads it, if that comes next. */
    struct {
        mp_cu_ptr in, out; /* out 0: none */
        const struct mp_norm *norm;
        uint32_t tokens;
    } ahead;

    /* Scores of a guess stand behind those of the router, or will when it is queued: of this layer.
     */
    bool guessed;
    uint32_t guess_layer;
    mp_cu_event seen;                /* recorded last by mp_device_finish() */
    uint64_t seen_count;             /* waits for it */
    uint64_t seen_ns, seen_batches;  /* when it was seen, and the stream's batches before it */
    struct mp_error op_error;        /* first error of an operation since the last status */
    struct mp_device_graphs *graphs; /* NULL: the host drives every step */

    struct mp_device_queue queues[MP_EXECUTORS_MAX]; /* one for each row of mp_gpu_costs() */
    uint32_t queue_count;
    struct mp_mutex lock;      /* rank LEAF */
    struct mp_cond ended_some; /* a thread has reported a batch */

    /* Work lists of the current layer. The step's thread fills them, the queues' threads read them.
     */
    struct mp_expert_work *work; // (E * slices)
    uint32_t work_used;
    uint64_t list_used, act_used; /* bytes; floats */

    /* Leases of the host tier, by expert and slice of the layer. */
    uint8_t *leased;                           // (E * slices)
    const void *(*pieces)[MP_UNIT_PIECES_MAX]; // (E * slices)
    uint32_t leased_layer;
    uint64_t elsewhere; /* batches of other executors than the device, so far */

    uint32_t *ended;              // (E * slices): needs of batches that have ended; device->lock
    _Atomic uint32_t ended_count; /* written under device->lock; read alone by any_ended() */
    struct mp_costs measured;     /* of the executors, updated during the run; device->lock */
    struct mp_error error;        /* first error of a batch since the last query; device->lock */
    bool stop;                    /* device->lock */
    void *lists_block;            /* of the arrays of units above */
};

/* The stream of the transformer and of experts in device memory. */
static inline mp_cu_stream mp_device_stream(const struct mp_device *device)
{
    return device->queues[MP_EXECUTOR_HOME].stream;
}

static inline struct mp_device *mp_device_of(struct mp_compute *compute)
{
    return (struct mp_device *)compute;
}

/* Number of slices of an expert. */
static inline uint32_t mp_device_slices(const struct mp_device *device)
{
    return device->engine->config.weights->slices.count;
}

/* True if this backend needs a device to compute. */
bool mp_device_needed(const struct mp_backend *backend);

/* Device memory needed beyond weights, budget and the sizes of mp_engine_measure(), with experts of
 * `slices` slices: for graphs and cuBLAS, if the configuration uses them, for arrays that are
 * larger than on the host, and for rounding. Memory that cuBLAS allocates internally is not known.
 */
uint64_t mp_device_extra_bytes(const struct mp_engine_config *config, uint32_t slices);

/*
 * Open the device of the engine's configuration; prepare: when the engine has its host memory,
 * allocate device memory and copy the weights; start: when it has a pager, start the threads. They
 * must be stopped before the pager is destroyed.
 */
enum mp_status mp_device_open(struct mp_engine *engine, struct mp_device **device_p) MP_MUST_CHECK;
enum mp_status mp_device_prepare(struct mp_device *device) MP_MUST_CHECK;
enum mp_status mp_device_start(struct mp_device *device) MP_MUST_CHECK;
void mp_device_stop(struct mp_device *device);    /* NULL is allowed */
void mp_device_destroy(struct mp_device *device); /* NULL is allowed */

/* Copy the weights that every token needs into one block of device memory; device->weights has
 * their addresses. */
enum mp_status mp_device_load_weights(struct mp_device *device) MP_MUST_CHECK;
/* Most padding between weights on the device. */
uint64_t mp_device_weights_padding(const struct mp_engine_config *config);
void mp_device_drop_weights(struct mp_device *device);

/* device_compute.c: all operations. */
extern const struct mp_compute_ops mp_device_compute_ops;

/*
 * device_ops.c: building blocks of the operations, queued on the stream of the transformer. The
 * first error is kept, and nothing is queued after it, until mp_device_status() or
 * mp_device_finish() returns it; finish also waits for the stream.
 */
void mp_device_keep_error(struct mp_device *device, enum mp_status status);
enum mp_status mp_device_status(struct mp_device *device) MP_MUST_CHECK;
enum mp_status mp_device_finish(struct mp_device *device) MP_MUST_CHECK;
void mp_device_launch(struct mp_device *device, enum mp_cuda_kernel kernel, const void *params);
void mp_device_upload(struct mp_device *device, mp_cu_ptr dst, const void *src, uint64_t bytes);
void mp_device_download(struct mp_device *device, void *dst, mp_cu_ptr src, uint64_t bytes);
void mp_device_copy(struct mp_device *device, mp_cu_ptr dst, mp_cu_ptr src, uint64_t bytes);
void mp_device_clear(struct mp_device *device, mp_cu_ptr dst, uint64_t bytes);

struct mp_cuda_matmul mp_device_product(const struct mp_view *w, const float *bias, mp_cu_ptr x,
                                        mp_cu_ptr y, uint32_t tokens, bool accumulate);
/* y (+)= w x (+ bias) */
void mp_device_multiply(struct mp_device *device, const struct mp_view *w, const float *bias,
                        mp_cu_ptr x, mp_cu_ptr y, uint32_t tokens, bool accumulate);
/* out := norm(x) w, both (tokens, H); with few tokens it waits for what comes next */
void mp_device_norm(struct mp_device *device, mp_cu_ptr out, mp_cu_ptr x,
                    const struct mp_norm *norm, uint32_t tokens);
/* Whether `x` is the result of a norm that waits: then it waits no more, and *in_p is what it would
 * have read. */
bool mp_device_take_norm(struct mp_device *device, mp_cu_ptr x, struct mp_cuda_normed *in_p);
/* Up to three products with a norm's result, of few tokens: y := w norm(in) (+ bias) */
struct mp_device_part {
    const struct mp_view *w;
    const float *bias; /* or NULL */
    mp_cu_ptr y;
};
void mp_device_project(struct mp_device *device, const struct mp_cuda_normed *in,
                       const struct mp_device_part *parts, uint32_t count);
/* y (+)= down(silu(gate x) * up x), and state.row := row x, if there is one; uses state.gate and
 * state.up. With `in`, of few tokens, x is the result of that norm, and is not read. */
void mp_device_ffn(struct mp_device *device, const struct mp_ffn *ffn, const struct mp_view *row,
                   const struct mp_cuda_normed *in, mp_cu_ptr x, mp_cu_ptr y, bool accumulate);
/* out(count, H) := rows (u32) of the table; zeros for what is not a row */
void mp_device_gather(struct mp_device *device, const struct mp_view *table, mp_cu_ptr rows,
                      mp_cu_ptr out, uint32_t count);
/* Queue the copy of logits, or of tokens sampled from them, to the host; read: use it after a wait.
 */
void mp_device_queue_result(struct mp_device *device, uint32_t wanted);
void mp_device_read_result(struct mp_device *device, uint32_t wanted);

/* device_moe.c: operations of a compute; router: scores := softmax(router x); gate: the same of xe
 * := norm(x); combine: x += the sum of the experts' (token, rank) results and the
 * shared expert's, weighted by state.weight. */
void mp_device_open_layer(struct mp_compute *c, uint32_t moe_layer);
void mp_device_compute_router(struct mp_compute *c, uint32_t layer, enum mp_array in,
                              const struct mp_norm *norm, float *scores);
enum mp_status mp_device_read_scores(struct mp_compute *c, float *scores) MP_MUST_CHECK;
void mp_device_guess(struct mp_compute *c, uint32_t layer);
void mp_device_read_guess(struct mp_compute *c, float *scores);
void mp_device_shared(struct mp_compute *c, uint32_t layer);
void mp_device_compute_combine(struct mp_compute *c, uint32_t layer, const float *weights);
void mp_device_combine_done(struct mp_compute *c, uint32_t layer, const float *weights);
void mp_device_router(struct mp_device *device, uint32_t layer, mp_cu_ptr x, mp_cu_ptr scores);
/* The same in one launch, with what `route` says follows (its first members, w, out, scores and
 * experts are filled in); false: x is no norm's result that waits, and nothing was done. next: have
 * it compute a later layer's gate of the same rows, too; false: its router has another type. */
bool mp_device_route_next(const struct mp_device *device, uint32_t layer, uint32_t later,
                          mp_cu_ptr scores, struct mp_cuda_route *route);
bool mp_device_route(struct mp_device *device, uint32_t layer, mp_cu_ptr x, mp_cu_ptr scores,
                     struct mp_cuda_route *route);
void mp_device_gate(struct mp_device *device, uint32_t layer, mp_cu_ptr x,
                    const struct mp_norm *norm, mp_cu_ptr scores);
void mp_device_combine(struct mp_device *device, uint32_t layer, mp_cu_ptr x, mp_cu_ptr rank);

/* device_executors.c. Make the list of executors from the engine's costs. in_place: the device can
 * read the host tier. Before mp_device_start(). */
void mp_device_list_executors(struct mp_device *device, bool in_place);
/* Release the host leases of the current layer. */
void mp_device_release_host(struct mp_device *device);

/*
 * device_lists.c. bytes: most bytes of the lists of a layer; false: overflow. queue: launch the
 * experts of a batch on its queue's stream, between its events.
 */
bool mp_device_list_bytes(const struct mp_engine_config *config, uint32_t slices,
                          uint64_t *bytes_p);
enum mp_status mp_device_queue_batch(struct mp_device *device, struct mp_device_queue *queue,
                                     const struct mp_device_batch *batch) MP_MUST_CHECK;

/*
 * device_expert_gemm.c. True if an expert with so many rows is computed by separate products, which
 * the second function queues: `row` (u32, on the device) are its rows, `act` (rows, channels) is
 * scratch.
 */
bool mp_device_wants_gemm(const struct mp_device *device, uint32_t rows);
enum mp_status mp_device_expert_gemm(struct mp_device *device, struct mp_device_queue *queue,
                                     const struct mp_expert_types *types,
                                     const struct mp_cuda_expert *expert, mp_cu_ptr row,
                                     mp_cu_ptr act) MP_MUST_CHECK;
/* Open cuBLAS, if it is wanted and works, for the streams that multiply, and allocate scratch for
 * the above; without enough memory MP_GEMM_AUTO does without. close: free the scratch; after
 * mp_gemm_close(). bytes: most device memory. */
enum mp_status mp_device_expert_gemm_open(struct mp_device *device) MP_MUST_CHECK;
void mp_device_expert_gemm_close(struct mp_device *device);
uint64_t mp_device_expert_gemm_bytes(const struct mp_engine_config *config);

/*
 * device_graph.c. With a pager, after mp_device_start(). step: the batch has been begun, or the
 * host has driven a MoE layer; *progress_p: its progress, before and after.
 */
struct mp_device_graph_counts {
    uint64_t replays, complete; /* of whole steps; those without a miss */
    uint64_t segments;          /* replays of the rest of a step */
    uint64_t thrown;            /* MoE layers of either whose results were not used */
};
/* If there is no memory for graphs, a warning is logged and none are used. */
enum mp_status mp_device_graphs_create(struct mp_device *device) MP_MUST_CHECK;
/* Of the device's memory: what is allocated, and what the driver is assumed to keep for graphs. */
uint64_t mp_device_graph_bytes(const struct mp_engine_config *config, uint32_t slices);
void mp_device_graphs_destroy(struct mp_device *device);
enum mp_status mp_device_graph_step(struct mp_device *device, uint32_t wanted,
                                    struct mp_forward_progress *progress_p) MP_MUST_CHECK;
struct mp_device_graph_counts mp_device_graphs_counted(const struct mp_device *device);
/*
 * For measurements: run the graph of the last step with `tokens` tokens once more, without pager
 * and policies, and wait for its logits. places (layers, experts): addresses of experts until the
 * next step, not with slices; NULL: unchanged. MP_ERR_INVALID: there is no such graph yet.
 */
enum mp_status mp_device_graph_again(struct mp_device *device, uint32_t tokens,
                                     const struct mp_cuda_place_of *places) MP_MUST_CHECK;

/* device_queue.c */
enum mp_status mp_device_queues_open(struct mp_device *device) MP_MUST_CHECK;
void mp_device_queues_close(struct mp_device *device);
/* Work under way? */
bool mp_device_queue_works(const struct mp_device_queue *queue);
/* Have the threads wait for the oldest batch of each queue. */
void mp_device_watch_locked(struct mp_device *device);
/* The oldest batch of a queue that is not watched has ended, or waiting for it has failed with the
 * thread's error: report it. */
void mp_device_conclude(struct mp_device_queue *queue, enum mp_status status);
/* The next batch of a queue, for the caller to fill; blocks while all are in use. */
struct mp_device_batch *mp_device_next_batch(struct mp_device_queue *queue);
/* Hand over a batch, filled and queued on the stream. */
void mp_device_hand_over(struct mp_device_queue *queue);
/* After an error: wait until all streams and threads are idle. */
void mp_device_settle(struct mp_device *device);

/*
 * device_ended.c. add: these needs have ended. Operations of a compute: ended: needs(*count_p) :=
 * needs of all batches that have ended.
 */
void mp_device_add_ended_locked(struct mp_device *device, const struct mp_expert_work *work,
                                uint32_t count);
void mp_device_notify_ended(struct mp_device *device, const struct mp_expert_work *work,
                            uint32_t count);
enum mp_status mp_device_ended(struct mp_compute *c, uint32_t *needs,
                               uint32_t *count_p) MP_MUST_CHECK;
bool mp_device_any_ended(struct mp_compute *c);
void mp_device_look(struct mp_compute *c, bool sleeps);
bool mp_device_pool_taken(struct mp_compute *c);
/* device->seen has been waited for. */
void mp_device_note_seen(struct mp_device *device);
/* From the end of the last experts on the transformer's stream to what was waited for behind them,
 * by the device's clock; UINT64_MAX: not known. */
uint64_t mp_device_since_experts_ns(struct mp_device *device);

#endif
