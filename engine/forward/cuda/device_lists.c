/*
 * Work lists: which experts the kernels of a MoE layer compute, with whose rows. Who computes an
 * expert was decided before (device_executors.c).
 *
 * All lists of a layer stand one behind the other in one buffer, rows of activations likewise, so
 * executors never share a place and nothing is used again before the layer is over.
 */
#include "engine/forward/cuda/device.h"
#include "vmm/base/checked.h"

#define LIST_ALIGN 16u

/* Who computes an expert on the device: kernels for a list, those for tensor cores, or products of
 * its own. It follows from the expert's rows and the types of its matrices, so that bits do not
 * depend on the list. */
enum way { BY_LIST, BY_TENSOR, BY_PRODUCTS };

/* Of the work lists of a layer: every slice of every expert in a list of its own at worst. */
bool mp_device_list_bytes(const struct mp_engine_config *c, uint32_t slices, uint64_t *bytes_p)
{
    const struct mp_model_config *m = c->model;
    uint64_t works, rows;

    return mp_mul_u64((uint64_t)m->experts * slices, sizeof(struct mp_cuda_expert) + LIST_ALIGN,
                      &works) &&
           mp_mul_u64((uint64_t)c->tokens_max * m->experts_per_token, sizeof(uint32_t) * slices,
                      &rows) &&
           mp_add_u64(works, rows, bytes_p) && mp_round_up_u64(*bytes_p, 256, bytes_p);
}

/* Where the next list is written on the host. */
static void *list_here(const struct mp_device *device)
{
    return (char *)device->engine->state.list + device->list_used;
}

/* Place for `bytes` of a layer's lists on the device, where they are brought from their place on
 * the host. */
static enum mp_status send_list(struct mp_device *device, struct mp_device_queue *queue,
                                uint64_t bytes, uint64_t *at_p)
{
    const void *here = list_here(device);

    *at_p = device->state.list + device->list_used;
    device->list_used += (bytes + LIST_ALIGN - 1) / LIST_ALIGN * LIST_ALIGN;
    return mp_gpu_upload(device->gpu, queue->stream, *at_p, here, bytes);
}

/* Launch a list of experts of the same types, which stands on the host at `list_used`. */
static enum mp_status launch_list(struct mp_device *device, struct mp_device_queue *queue,
                                  const struct mp_expert_types *types, enum way way,
                                  const struct mp_cuda_experts *list, uint32_t rows)
{
    const enum mp_wtype gate = types->piece[MP_PIECE_GATE], down = types->piece[MP_PIECE_DOWN];
    const uint64_t work_bytes = list->works * sizeof(struct mp_cuda_expert);
    const uint64_t bytes = work_bytes + rows * sizeof(uint32_t);
    const struct mp_device_state *s = &device->state;
    struct mp_cuda_experts params = *list;
    enum mp_status status = send_list(device, queue, bytes, &params.work);

    params.row = params.work + work_bytes;
    params.x = s->xn;
    params.act = s->act + device->act_used * sizeof(float);
    params.rank = s->rank;
    params.type = gate;
    params.hidden = params.x_stride = device->engine->config.model->hidden;
    params.top_k = device->engine->shape.top_k;
    if (status == MP_OK)
        status = mp_gpu_launch(device->gpu, queue->stream,
                               way == BY_TENSOR ? mp_cuda_type(gate)->tensor_up
                                                : mp_cuda_experts_up(gate, params.rows_max),
                               &params);
    params.type = down;
    if (status == MP_OK)
        status = mp_gpu_launch(device->gpu, queue->stream,
                               way == BY_TENSOR ? mp_cuda_type(down)->tensor_down
                                                : mp_cuda_experts_down(down, params.rows_max),
                               &params);
    device->act_used += (uint64_t)rows * params.channels;
    return status;
}

static const struct mp_expert_types *types_of(const struct mp_device *device, uint32_t layer,
                                              const struct mp_expert_work *work)
{
    const struct mp_engine *engine = device->engine;

    return &engine->config.weights->unit_types[layer * engine->shape.experts + work->expert];
}

/* Is slice `slice` of this work to be computed with weights of these types? */
static bool takes_part(const struct mp_device *device, const struct mp_expert_work *work,
                       uint32_t layer, const struct mp_expert_types *types, uint32_t slice)
{
    return slice - work->slice < work->slices &&
           mp_expert_types_same(types_of(device, layer, work), types);
}

static struct mp_cuda_expert make_work(const struct mp_device *device,
                                       const struct mp_expert_work *work, uint32_t slice,
                                       uint32_t first)
{
    const struct mp_ffn_slices *slices = &device->engine->config.weights->slices;
    const void *const *pieces = work->executor == MP_EXECUTOR_HOME
                                    ? work->pieces
                                    : device->pieces[work->expert * slices->count + slice];

    return (struct mp_cuda_expert){
        .gate = (uintptr_t)pieces[MP_PIECE_GATE],
        .up = (uintptr_t)pieces[MP_PIECE_UP],
        .down = (uintptr_t)pieces[MP_PIECE_DOWN],
        .first = first,
        .count = work->rows.count,
        .channels = (uint32_t)mp_ffn_slices_channels(slices, slice),
        .accumulate = slice > 0,
    };
}

static uint32_t *list_rows(const struct mp_device *device, const struct mp_expert_work *work,
                           uint32_t *row)
{
    for (uint32_t r = 0; r < work->rows.count; r++)
        *row++ = (uint32_t)mp_engine_rank_row(device->engine, &work->rows, r);
    return row;
}

static enum mp_status launch_gemm(struct mp_device *device, struct mp_device_queue *queue,
                                  const struct mp_expert_types *types,
                                  const struct mp_expert_work *work, uint32_t slice)
{
    const struct mp_cuda_expert expert = make_work(device, work, slice, 0);
    const mp_cu_ptr act = device->state.act + device->act_used * sizeof(float);
    enum mp_status status;
    uint64_t row;

    (void)list_rows(device, work, list_here(device));
    status = send_list(device, queue, expert.count * sizeof(uint32_t), &row);
    device->act_used += (uint64_t)expert.count * expert.channels;
    return status == MP_OK ? mp_device_expert_gemm(device, queue, types, &expert, row, act)
                           : status;
}

static enum way way_of(const struct mp_device *device, const struct mp_expert_types *types,
                       uint32_t rows)
{
    const enum mp_wtype gate = types->piece[MP_PIECE_GATE], down = types->piece[MP_PIECE_DOWN];

    if (mp_device_wants_gemm(device, rows) && mp_gemm_takes(gate) && mp_gemm_takes(down))
        return BY_PRODUCTS;
    return mp_gemm_uses_tensor(device->gemm, gate, rows) &&
                   mp_gemm_uses_tensor(device->gemm, down, rows)
               ? BY_TENSOR
               : BY_LIST;
}

/* Of a batch, the experts whose weights are of these types and that are computed in one of the two
 * ways with a list, one slice of each. */
static enum mp_status launch_way(struct mp_device *device, struct mp_device_queue *queue,
                                 const struct mp_device_batch *batch,
                                 const struct mp_expert_types *types, enum way way, uint32_t slice)
{
    const struct mp_expert_work *works = device->work + batch->first;
    struct mp_cuda_expert *list = list_here(device);
    struct mp_cuda_experts params = { .works = 0 };
    uint32_t rows = 0, *row;

    for (uint32_t i = 0; i < batch->count; i++) {
        if (!takes_part(device, &works[i], batch->layer, types, slice) ||
            way_of(device, types, works[i].rows.count) != way)
            continue;
        list[params.works] = make_work(device, &works[i], slice, rows);
        if (list[params.works].channels > params.channels)
            params.channels = list[params.works].channels;
        if (works[i].rows.count > params.rows_max)
            params.rows_max = works[i].rows.count;
        rows += works[i].rows.count;
        params.works++;
    }
    row = (uint32_t *)(list + params.works);
    for (uint32_t i = 0; i < batch->count; i++) {
        if (takes_part(device, &works[i], batch->layer, types, slice) &&
            way_of(device, types, works[i].rows.count) == way)
            row = list_rows(device, &works[i], row);
    }
    return params.works > 0 ? launch_list(device, queue, types, way, &params, rows) : MP_OK;
}

/* Of a batch, the experts whose weights are of these types, one slice of each. */
static enum mp_status launch_slice(struct mp_device *device, struct mp_device_queue *queue,
                                   const struct mp_device_batch *batch,
                                   const struct mp_expert_types *types, uint32_t slice)
{
    const struct mp_expert_work *works = device->work + batch->first;
    enum mp_status status = launch_way(device, queue, batch, types, BY_LIST, slice);

    if (status == MP_OK)
        status = launch_way(device, queue, batch, types, BY_TENSOR, slice);
    for (uint32_t i = 0; i < batch->count && status == MP_OK; i++) {
        if (takes_part(device, &works[i], batch->layer, types, slice) &&
            way_of(device, types, works[i].rows.count) == BY_PRODUCTS)
            status = launch_gemm(device, queue, types, &works[i], slice);
    }
    return status;
}

/* Has no expert before number `i` of the batch the same types? */
static bool is_first(const struct mp_device *device, const struct mp_device_batch *batch,
                     uint32_t i)
{
    const struct mp_expert_work *works = device->work + batch->first;
    const struct mp_expert_types *types = types_of(device, batch->layer, &works[i]);
    uint32_t before = 0;

    while (before < i &&
           !mp_expert_types_same(types_of(device, batch->layer, &works[before]), types))
        before++;
    return before == i;
}

/* Slices of an expert are added in their order, in launches one behind the other. */
enum mp_status mp_device_queue_batch(struct mp_device *device, struct mp_device_queue *queue,
                                     const struct mp_device_batch *batch)
{
    const uint32_t slices = mp_device_slices(device);
    enum mp_status status = mp_gpu_record(device->gpu, batch->start, queue->stream);

    for (uint32_t i = 0; i < batch->count && status == MP_OK; i++) {
        const struct mp_expert_types *types =
            types_of(device, batch->layer, device->work + batch->first + i);

        for (uint32_t slice = 0; slice < slices && status == MP_OK && is_first(device, batch, i);
             slice++)
            status = launch_slice(device, queue, batch, types, slice);
    }
    if (status == MP_OK)
        status = mp_gpu_record(device->gpu, batch->end, queue->stream);
    return status;
}
