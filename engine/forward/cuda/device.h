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
 * operations), device_executors.c (who computes experts), device_lists.c (what their kernels are
 * given), device_expert_gemm.c (experts with many rows), device_queue.c (executors that work at the
 * same time), device_graph.c and device_graph_*.c (steps that the device does alone).
 *
 * Arrays are those of the state's table (engine/forward/state.h), with pinned ones on the host
 * beside what crosses over. The host's thread queues; it waits for the device once per MoE layer
 * for the scores, and for experts as the step does.
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
    uint32_t scratch;  /* its part of gemm_x and gemm_up; not of the CPU */
    bool on_cpu;       /* the thread computes; else it waits for the stream */
    mp_cu_stream stream;
    unsigned track;
    pthread_t thread;
    bool running;
    struct mp_cond work;
    struct mp_device_batch batches[MP_DEVICE_BATCHES];
    uint64_t taken, done; /* device->lock; batch i stands at i % MP_DEVICE_BATCHES */
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

    struct mp_error op_error;        /* the first of an operation since it was asked for */
    struct mp_device_graphs *graphs; /* NULL: the host drives every step */

    struct mp_device_queue queues[MP_EXECUTORS_MAX]; /* one for each row of mp_gpu_costs() */
    uint32_t queue_count;
    struct mp_mutex lock;      /* rank LEAF */
    struct mp_cond ended_some; /* a batch has ended */

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
    void *lists_block;            /* of the arrays of units above */
};

/* The stream of the transformer, and of experts in the memory of the device. */
static inline mp_cu_stream mp_device_stream(const struct mp_device *device)
{
    return device->queues[MP_EXECUTOR_HOME].stream;
}

static inline struct mp_device *mp_device_of(struct mp_compute *compute)
{
    return (struct mp_device *)compute;
}

/* Of an expert. */
static inline uint32_t mp_device_slices(const struct mp_device *device)
{
    return device->engine->config.weights->slices.count;
}

/* Does this backend need a device to compute on? */
bool mp_device_needed(const struct mp_backend *backend);

/* Device memory beyond weights, budget and what mp_engine_measure() counts, with experts of so many
 * slices: for graphs and cuBLAS, where the configuration would have them, what arrays there are
 * larger by than the host's, and rounding. What cuBLAS keeps for itself is not known. */
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

/* device_compute.c: all operations. */
extern const struct mp_compute_ops mp_device_compute_ops;

/*
 * What they are made of, queued on the stream of the transformer. An error is kept, and nothing is
 * queued behind it, until it is asked for; _finish() does, and waits for the stream.
 */
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
/* out := norm(x) w, both (tokens, H) */
void mp_device_norm(struct mp_device *device, mp_cu_ptr out, mp_cu_ptr x, const float *w,
                    uint32_t tokens);
/* y (+)= down(silu(gate x) * up x); uses state.gate and state.up */
void mp_device_ffn(struct mp_device *device, const struct mp_ffn *ffn, mp_cu_ptr x, mp_cu_ptr y,
                   bool accumulate);
/* out(count, H) := rows (u32) of the table; zeros for what is not a row */
void mp_device_gather(struct mp_device *device, const struct mp_view *table, mp_cu_ptr rows,
                      mp_cu_ptr out, uint32_t count);
/* Logits, or the tokens that are sampled from them, for the host; read: when they are there. */
void mp_device_queue_result(struct mp_device *device, uint32_t wanted);
void mp_device_read_result(struct mp_device *device, uint32_t wanted);

/* device_moe.c: operations of a compute; router: scores := softmax(router x); gate: the same of
 * xe := norm(x), to state.scores; combine: x += what experts, by their (token, rank) results, and
 * shared expert give, by state.weight. */
void mp_device_open_layer(struct mp_compute *c, uint32_t moe_layer);
void mp_device_compute_router(struct mp_compute *c, uint32_t layer, enum mp_array in,
                              const float *norm, float *scores);
enum mp_status mp_device_read_scores(struct mp_compute *c, float *scores) MP_MUST_CHECK;
void mp_device_shared(struct mp_compute *c, uint32_t layer);
void mp_device_compute_combine(struct mp_compute *c, const float *weights);
void mp_device_combine_done(struct mp_compute *c, const float *weights);
void mp_device_router(struct mp_device *device, uint32_t layer, mp_cu_ptr x, mp_cu_ptr scores);
void mp_device_gate(struct mp_device *device, uint32_t layer, mp_cu_ptr x, const float *norm);
void mp_device_combine(struct mp_device *device, mp_cu_ptr x, mp_cu_ptr rank);

/* device_executors.c. What the engine's costs list of the executors that there are becomes what is
 * driven here. in_place: the device can read the host tier. Before mp_device_start(). */
void mp_device_list_executors(struct mp_device *device, bool in_place);
/* Give back host leases of the layer in work. */
void mp_device_release_host(struct mp_device *device);

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
/* Products of the device: cuBLAS, where it is wanted and works, for the streams that multiply, and
 * scratch for the above. All of it is made here; where there is no room, MP_GEMM_AUTO does without.
 * bytes: at most, of device memory. close: the scratch; after mp_gemm_close(). */
enum mp_status mp_device_expert_gemm_open(struct mp_device *device) MP_MUST_CHECK;
void mp_device_expert_gemm_close(struct mp_device *device);
uint64_t mp_device_expert_gemm_bytes(const struct mp_engine_config *config);

/*
 * device_graph.c. With a pager, after mp_device_start(). `step`: the batch has been begun;
 * *progress_p says what has been done of it.
 */
struct mp_device_graph_counts {
    uint64_t replays, complete; /* of them without a miss */
};
/* Without memory for them there are none, and one warning. */
enum mp_status mp_device_graphs_create(struct mp_device *device) MP_MUST_CHECK;
uint64_t mp_device_graph_bytes(const struct mp_engine_config *config, uint32_t slices);
void mp_device_graphs_destroy(struct mp_device *device);
enum mp_status mp_device_graph_step(struct mp_device *device, uint32_t wanted,
                                    struct mp_forward_progress *progress_p) MP_MUST_CHECK;
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
/* Operations of a compute: needs(*count_p) := those of all batches that have ended. */
enum mp_status mp_device_ended(struct mp_compute *c, bool wait, uint32_t *needs,
                               uint32_t *count_p) MP_MUST_CHECK;
bool mp_device_any_ended(struct mp_compute *c);

#endif
