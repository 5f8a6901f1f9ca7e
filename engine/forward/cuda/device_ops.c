/*
 * What is queued on the stream of a transformer, on any addresses: kernels, copies, products,
 * norms.
 *
 * The first error of an operation is kept, and later ones queue nothing, until mp_device_status()
 * returns it, once per layer.
 *
 * A norm of few tokens is not queued at once: the product that follows computes it as it reads, and
 * any other operation queues it first.
 */
#include "engine/forward/cuda/device.h"
#include "vmm/base/error.h"

/* ---- queueing: nothing happens behind an error */

void mp_device_keep_error(struct mp_device *device, enum mp_status status)
{
    if (status != MP_OK)
        device->op_error = *mp_error_last();
}

static bool can_queue(const struct mp_device *device)
{
    return device->op_error.status == MP_OK;
}

static void launch(struct mp_device *device, enum mp_cuda_kernel kernel, const void *params)
{
    if (can_queue(device))
        mp_device_keep_error(device,
                             mp_gpu_launch(device->gpu, mp_device_stream(device), kernel, params));
}

static uint64_t address(const void *on_device)
{
    return (uintptr_t)on_device;
}

/* The norm that waits, if there is one, by itself. */
static void launch_norm(struct mp_device *device)
{
    const struct mp_model_config *m = device->engine->config.model;
    const struct mp_cuda_rmsnorm params = {
        .x = device->ahead.in,
        .w = device->ahead.out != 0 ? address(device->ahead.norm->w) : 0,
        .out = device->ahead.out,
        .width = m->hidden,
        .tokens = device->ahead.tokens,
        .x_stride = m->hidden,
        .out_stride = m->hidden,
        .eps = m->norm_eps,
    };

    if (device->ahead.out != 0)
        launch(device, MP_CUDA_KERNEL_rmsnorm, &params);
    device->ahead.out = 0;
}

enum mp_status mp_device_status(struct mp_device *device)
{
    enum mp_status status;

    launch_norm(device);
    status = device->op_error.status;
    if (status != MP_OK)
        mp_error_set(&device->op_error);
    device->op_error.status = MP_OK;
    return status;
}

enum mp_status mp_device_finish(struct mp_device *device)
{
    enum mp_status status = mp_device_status(device);

    if (status == MP_OK)
        status = mp_gpu_record(device->gpu, device->seen, mp_device_stream(device));
    if (status == MP_OK)
        status = mp_gpu_await(device->gpu, device->seen, device->engine->config.spin);
    if (status == MP_OK)
        mp_device_note_seen(device);
    return status;
}

void mp_device_launch(struct mp_device *device, enum mp_cuda_kernel kernel, const void *params)
{
    launch_norm(device);
    launch(device, kernel, params);
}

void mp_device_upload(struct mp_device *device, mp_cu_ptr dst, const void *src, uint64_t bytes)
{
    launch_norm(device);
    if (can_queue(device))
        mp_device_keep_error(device,
                             mp_gpu_upload(device->gpu, mp_device_stream(device), dst, src, bytes));
}

void mp_device_download(struct mp_device *device, void *dst, mp_cu_ptr src, uint64_t bytes)
{
    launch_norm(device);
    if (can_queue(device))
        mp_device_keep_error(
            device, mp_gpu_download(device->gpu, mp_device_stream(device), dst, src, bytes));
}

void mp_device_copy(struct mp_device *device, mp_cu_ptr dst, mp_cu_ptr src, uint64_t bytes)
{
    launch_norm(device);
    if (can_queue(device))
        mp_device_keep_error(device,
                             mp_gpu_copy(device->gpu, mp_device_stream(device), dst, src, bytes));
}

void mp_device_clear(struct mp_device *device, mp_cu_ptr dst, uint64_t bytes)
{
    launch_norm(device);
    if (can_queue(device))
        mp_device_keep_error(device,
                             mp_gpu_clear(device->gpu, mp_device_stream(device), dst, bytes));
}

/* ---- on any addresses */

struct mp_cuda_matmul mp_device_product(const struct mp_view *w, const float *bias, mp_cu_ptr x,
                                        mp_cu_ptr y, uint32_t tokens, bool accumulate)
{
    return (struct mp_cuda_matmul){
        .w = address(w->data),
        .x = x,
        .y = y,
        .bias = address(bias),
        .type = w->type,
        .rows = (uint32_t)w->rows,
        .cols = (uint32_t)w->cols,
        .tokens = tokens,
        .w_stride = (uint32_t)w->cols,
        .x_stride = (uint32_t)w->cols,
        .y_stride = (uint32_t)w->rows,
        .accumulate = accumulate,
    };
}

void mp_device_multiply(struct mp_device *device, const struct mp_view *w, const float *bias,
                        mp_cu_ptr x, mp_cu_ptr y, uint32_t tokens, bool accumulate)
{
    const struct mp_cuda_matmul params = mp_device_product(w, bias, x, y, tokens, accumulate);

    launch_norm(device);
    if (can_queue(device))
        mp_device_keep_error(device,
                             mp_gemm_matmul(device->gemm, mp_device_stream(device), &params));
}

void mp_device_norm(struct mp_device *device, mp_cu_ptr out, mp_cu_ptr x,
                    const struct mp_norm *norm, uint32_t tokens)
{
    launch_norm(device);
    device->ahead.in = x;
    device->ahead.out = out;
    device->ahead.norm = norm;
    device->ahead.tokens = tokens;
    if (tokens > MP_DEVICE_FEW_TOKENS)
        launch_norm(device);
}

bool mp_device_take_norm(struct mp_device *device, mp_cu_ptr x, struct mp_cuda_normed *in_p)
{
    const struct mp_model_config *m = device->engine->config.model;

    if (device->ahead.out == 0 || device->ahead.out != x)
        return false;
    *in_p = (struct mp_cuda_normed){
        .x = device->ahead.in,
        .norm = address(device->ahead.norm->w),
        .cols = m->hidden,
        .tokens = device->ahead.tokens,
        .eps = m->norm_eps,
    };
    device->ahead.out = 0;
    return true;
}

/* Those from the first on whose weights have its type, in one launch; returns their number. */
static uint32_t project_type(struct mp_device *device, const struct mp_cuda_normed *in,
                             const struct mp_device_part *parts, uint32_t count)
{
    const enum mp_wtype type = parts[0].w->type;
    struct mp_cuda_project params = { .in = *in };
    uint32_t n = 0;

    for (; n < count && parts[n].w->type == type; n++)
        params.part[n] = (struct mp_cuda_part){
            .w = address(parts[n].w->data),
            .y = parts[n].y,
            .bias = address(parts[n].bias),
            .rows = (uint32_t)parts[n].w->rows,
        };
    mp_device_launch(device, mp_cuda_project(type, in->tokens), &params);
    return n;
}

void mp_device_project(struct mp_device *device, const struct mp_cuda_normed *in,
                       const struct mp_device_part *parts, uint32_t count)
{
    for (uint32_t i = 0; i < count;)
        i += project_type(device, in, parts + i, count - i);
}

void mp_device_ffn(struct mp_device *device, const struct mp_ffn *ffn, const struct mp_view *row,
                   const struct mp_cuda_normed *in, mp_cu_ptr x, mp_cu_ptr y, bool accumulate)
{
    const struct mp_device_state *s = &device->state;
    const uint32_t tokens = device->engine->tokens, count = row != NULL ? 3 : 2;
    const struct mp_device_part parts[] = { { &ffn->gate, NULL, s->gate },
                                            { &ffn->up, NULL, s->up },
                                            { row, NULL, s->row } };
    const struct mp_cuda_silu_mul silu = { s->gate, s->up, (uint64_t)tokens * ffn->gate.rows };

    if (in != NULL)
        mp_device_project(device, in, parts, count);
    for (uint32_t i = 0; in == NULL && i < count; i++)
        mp_device_multiply(device, parts[i].w, NULL, x, parts[i].y, tokens, false);
    mp_device_launch(device, MP_CUDA_KERNEL_silu_mul, &silu);
    mp_device_multiply(device, &ffn->down, NULL, s->gate, y, tokens, accumulate);
}

void mp_device_gather(struct mp_device *device, const struct mp_view *table, mp_cu_ptr rows,
                      mp_cu_ptr out, uint32_t count)
{
    const struct mp_cuda_embed params = {
        .table = address(table->data),
        .token = rows,
        .x = out,
        .type = table->type,
        .width = device->engine->config.model->hidden,
        .tokens = count,
        .vocab = (uint32_t)table->rows,
    };

    mp_device_launch(device, MP_CUDA_KERNEL_embed, &params);
}
