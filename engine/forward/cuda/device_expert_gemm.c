/*
 * Experts with many rows each. The kernels for whole work lists are optimised for few rows, where
 * weights are the bottleneck. An expert with enough rows for cuBLAS (engine/gpu/cublas.h) is
 * computed by three separate products: its rows are gathered from the batch before, and the results
 * are scattered to their places afterwards.
 *
 * The choice depends only on the expert's rows and types, so the bits do not depend on budgets or
 * on what else is ready. Scratch is reused in order on the same stream.
 */
#include <inttypes.h>

#include "engine/forward/cuda/device.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"

/* Streams with products: of the executors that are no CPU. */
static uint32_t count_streams(void)
{
    const struct mp_costs all = mp_gpu_costs();
    uint32_t count = 0;

    for (uint32_t i = 0; i < all.executor_count; i++)
        count += all.executors[i].reads != MP_READS_HOST;
    return count;
}

bool mp_device_wants_gemm(const struct mp_device *device, uint32_t rows)
{
    return rows >= mp_gemm_tokens_min(device->gemm);
}

/* Activations of the largest batch. */
static uint64_t widest_input(const struct mp_engine_config *c)
{
    const struct mp_model_config *m = c->model;
    const uint64_t widths[] = { m->hidden, (uint64_t)m->heads * m->head_dim, m->expert_ffn,
                                m->shared_ffn, m->dense_ffn };
    uint64_t widest = 0;

    for (size_t i = 0; i < MP_ARRAY_LEN(widths); i++)
        widest = widths[i] > widest ? widths[i] : widest;
    return widest * c->tokens_max;
}

/* A copy of an expert's rows, or their products, for each of the streams. */
static uint64_t scratch_bytes(const struct mp_engine_config *c, uint32_t width)
{
    return (uint64_t)count_streams() * c->tokens_max * sizeof(float) * width;
}

uint64_t mp_device_expert_gemm_bytes(const struct mp_engine_config *c)
{
    if (!mp_gemm_is_there(c->gemm))
        return 0;
    return count_streams() * mp_gemm_bytes(widest_input(c)) + scratch_bytes(c, c->model->hidden) +
           scratch_bytes(c, c->model->expert_ffn);
}

static enum mp_status make_scratch(struct mp_device *device)
{
    const struct mp_engine_config *c = &device->engine->config;
    enum mp_status status;

    if (mp_gemm_tokens_min(device->gemm) == UINT32_MAX)
        return MP_OK;
    status = mp_gpu_alloc(device->gpu, scratch_bytes(c, c->model->hidden), "activations",
                          &device->gemm_x);
    if (status == MP_OK)
        status = mp_gpu_alloc(device->gpu, scratch_bytes(c, c->model->expert_ffn), "activations",
                              &device->gemm_up);
    if (status == MP_OK)
        return MP_OK;
    mp_device_expert_gemm_close(device);
    return mp_gemm_forgive(device->gemm, status);
}

/* Experts cannot take more than they are. */
static uint64_t wanted_bytes(const struct mp_engine_config *c)
{
    uint64_t bytes = 0;

    for (uint32_t u = 0; u < c->weights->unit_count; u++) {
        for (uint32_t i = 0; i < c->weights->units[u].piece_count; i++)
            bytes += c->weights->units[u].pieces[i].bytes;
    }
    return c->budget_bytes < bytes ? c->budget_bytes : bytes;
}

/* What cuBLAS takes for itself is known only now, where the experts' memory is not yet taken. */
static enum mp_status leave_room(struct mp_device *device)
{
    const uint64_t budget_bytes = wanted_bytes(&device->engine->config);
    struct mp_backend *backend = device->engine->backend;
    uint64_t free_bytes, total_bytes;
    enum mp_status status;

    if (mp_gemm_tokens_min(device->gemm) == UINT32_MAX)
        return MP_OK;
    status = backend->ops->memory_info(backend, MP_TIER_DEVICE, &free_bytes, &total_bytes);
    if (status == MP_OK && free_bytes < budget_bytes)
        status =
            mp_fail(MP_ERR_NO_MEMORY, "E_DEVICE_ROOM",
                    "cuBLAS leaves %" PRIu64 " of %" PRIu64 " bytes of the device, but experts "
                    "are to have %" PRIu64 "; lower --budget, or do without: --cuda-gemm own",
                    free_bytes, total_bytes, budget_bytes);
    if (status == MP_OK)
        return MP_OK;
    mp_device_expert_gemm_close(device);
    return mp_gemm_forgive(device->gemm, status);
}

enum mp_status mp_device_expert_gemm_open(struct mp_device *device)
{
    const struct mp_engine_config *c = &device->engine->config;
    enum mp_status status = mp_gemm_open(device->gpu, c->gemm, widest_input(c), &device->gemm);

    for (uint32_t i = 0; i < device->queue_count && status == MP_OK; i++) {
        if (!device->queues[i].on_cpu)
            status = mp_gemm_use(device->gemm, device->queues[i].stream);
    }
    if (status == MP_OK)
        status = make_scratch(device);
    return status == MP_OK ? leave_room(device) : status;
}

void mp_device_expert_gemm_close(struct mp_device *device)
{
    mp_gpu_free(device->gpu, device->gemm_x);
    mp_gpu_free(device->gpu, device->gemm_up);
    device->gemm_x = device->gemm_up = 0;
}

static enum mp_status multiply(struct mp_device *device, mp_cu_stream stream, enum mp_wtype type,
                               const struct mp_cuda_matmul *shape)
{
    struct mp_cuda_matmul params = *shape;

    params.type = type;
    params.w_stride = params.x_stride = params.cols;
    params.y_stride = params.rows;
    return mp_gemm_matmul(device->gemm, stream, &params);
}

enum mp_status mp_device_expert_gemm(struct mp_device *device, struct mp_device_queue *queue,
                                     const struct mp_expert_types *types,
                                     const struct mp_cuda_expert *expert, mp_cu_ptr row,
                                     mp_cu_ptr act)
{
    const struct mp_device_state *s = &device->state;
    const struct mp_engine *engine = device->engine;
    const uint32_t H = engine->config.model->hidden, F = expert->channels, rows = expert->count;
    const uint64_t first = (uint64_t)queue->scratch * engine->config.tokens_max * sizeof(float);
    const mp_cu_ptr x = device->gemm_x + first * H;
    const mp_cu_ptr up = device->gemm_up + first * engine->config.model->expert_ffn;
    const struct mp_cuda_rows in = { row, s->xn, x, rows, H, engine->shape.top_k, 0 };
    const struct mp_cuda_rows out = { row, x, s->rank, rows, H, 1, expert->accumulate };
    const struct mp_cuda_matmul steps[] = {
        { .w = expert->gate, .x = x, .y = act, .rows = F, .cols = H, .tokens = rows },
        { .w = expert->up, .x = x, .y = up, .rows = F, .cols = H, .tokens = rows },
        { .w = expert->down, .x = act, .y = x, .rows = H, .cols = F, .tokens = rows },
    };
    const struct mp_cuda_silu_mul silu = { act, up, (uint64_t)rows * F };
    enum mp_status status;

    mp_assert(!queue->on_cpu && rows <= engine->config.tokens_max);
    status = mp_gpu_launch(device->gpu, queue->stream, MP_CUDA_KERNEL_gather_rows, &in);
    for (int i = 0; i < 2 && status == MP_OK; i++)
        status = multiply(device, queue->stream, types->piece[i], &steps[i]);
    if (status == MP_OK)
        status = mp_gpu_launch(device->gpu, queue->stream, MP_CUDA_KERNEL_silu_mul, &silu);
    if (status == MP_OK)
        status = multiply(device, queue->stream, types->piece[MP_PIECE_DOWN], &steps[2]);
    if (status == MP_OK)
        status = mp_gpu_launch(device->gpu, queue->stream, MP_CUDA_KERNEL_scatter_rows, &out);
    return status;
}
