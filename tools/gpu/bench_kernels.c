/*
 * Speed of the kernels of a decoding step, on the device that is there:
 *
 *     bench_kernels [--device N] [--json] [--small] [--repeats N]
 *     bench_kernels --grids
 *
 * Lists of experts have as many entries as a graph launches: as many as the tokens can choose, 8
 * for one token; of more than 8 rows, where the host makes the list, 8. The launches of a layer of
 * Qwen3-30B-A3B (tools/gpu/layer.h) are measured each for itself, and all of them in their order,
 * in a graph of some 20 layers.
 *
 * Each launch takes its weights from another place of a buffer that is far larger than any cache.
 * Times are the device's own (events around some 20 launches), the median of the repeats (9). They
 * are compared with what the same device reads (a kernel that only adds words) and copies (both
 * directions counted) in the same run; whatever else the device does shows in both.
 *
 * --small: tiny shapes, each once, on the driver without a device: shows that the program works,
 * and no numbers are worth anything. --grids: blocks, threads and bytes of each launch of a layer
 * and of the head, as JSON; needs no driver. 0; 1: an error; 77: there is no driver.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/gpu/gpu.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cuda/works.h"
#include "tools/gpu/layer.h"
#include "vmm/base/compiler.h"
#include "vmm/base/error.h"

#define PART_BYTES (UINT64_C(1) << 20) /* of attention in parts, which needs half of it */
#define REPEATS_MAX 99
#define LAUNCHES 20
#define EXPERTS 8 /* of a token */
#define CACHES 12 /* of keys and values, for as many layers one after another */
#define OF 128    /* experts of a layer */
#define WORKS_MAX OF
#define ROWS_BYTES 16384 /* numbers of rows, behind the lists */

struct bench {
    struct mp_gpu *gpu;
    mp_cu_stream stream;
    mp_cu_event start, end;
    mp_cu_ptr weights, work, x, y, part;
    uint64_t weight_bytes, work_bytes, x_bytes, y_bytes;
    void *here; /* pinned, work_bytes */
    unsigned repeats, launches, shown;
    bool json, small;
    double read_gbps, copy_gbps;
    struct layer_shape shape;
    struct layer_at at;      /* of the first layer */
    uint64_t kv_cache_bytes; /* of its keys, or values */
};

/* One thing to measure: queue() queues launch number `n` of it. */
struct item {
    const char *name;
    enum { READ, MATMUL, EXPERT, ATTEND, SAMPLE, LAYER } what;
    bool headline;
    bool graph;                     /* launched as one */
    double bytes;                   /* of weights, or of keys and values, in a launch */
    double flop;                    /* 0: not worth saying */
    enum mp_cuda_kernel kernels[2]; /* of a launch */
    unsigned kernel_count;
    union {
        struct mp_cuda_matmul matmul;
        struct mp_cuda_experts experts;
        struct mp_cuda_attend attend;
        struct mp_cuda_read read;
        struct mp_cuda_sample sample;
    } params;
    uint64_t step;       /* bytes from the weights of one launch to those of the next */
    unsigned first, end; /* LAYER: launches of a layer */
};

/* Those of layer `n`, with other weights and other experts than those before. */
static enum mp_status queue_layer(struct bench *b, const struct item *item, unsigned n)
{
    struct layer_launch list[LAYER_LAUNCHES];
    struct layer_at at = b->at;
    enum mp_status status = MP_OK;

    at.weights += n % ((b->weight_bytes - layer_bytes(&b->shape)) / item->step + 1) * item->step;
    at.k_cache += n % CACHES * 2 * b->kv_cache_bytes;
    at.v_cache += n % CACHES * 2 * b->kv_cache_bytes;
    at.work += (uint64_t)(n % LAUNCHES) * EXPERTS * sizeof(struct mp_cuda_expert);
    layer_launches(&b->shape, &at, list);
    for (unsigned k = item->first; k < item->end && status == MP_OK; k++)
        status = mp_gpu_launch(b->gpu, b->stream, list[k].kernel, &list[k].params);
    return status;
}

static enum mp_status queue(struct bench *b, const struct item *item, unsigned n)
{
    struct item now = *item;
    const uint64_t places = item->step > 0 ? b->weight_bytes / item->step : 1;
    const uint64_t shift = n % places * item->step;
    enum mp_status status = MP_OK;

    if (item->what == LAYER)
        return queue_layer(b, item, n);
    if (item->what == READ)
        now.params.read.src += shift;
    else if (item->what == MATMUL)
        now.params.matmul.w += shift;
    else if (item->what == EXPERT)
        now.params.experts.work +=
            (uint64_t)(n % LAUNCHES) * item->params.experts.works * sizeof(struct mp_cuda_expert);
    for (unsigned k = 0; k < item->kernel_count && status == MP_OK; k++)
        status = mp_gpu_launch(b->gpu, b->stream, item->kernels[k], &now.params);
    return status;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The launches of a repeat, as a graph. */
static enum mp_status capture(struct bench *b, const struct item *item, mp_cu_graph_exec *graph_p)
{
    enum mp_status status = mp_gpu_capture_begin(b->gpu, b->stream), ended;

    if (status != MP_OK)
        return status;
    for (unsigned n = 0; n < b->launches && status == MP_OK; n++)
        status = queue(b, item, n);
    ended = mp_gpu_capture_end(b->gpu, b->stream, graph_p);
    return status == MP_OK ? ended : status;
}

static enum mp_status queue_all(struct bench *b, const struct item *item, mp_cu_graph_exec graph,
                                unsigned repeat)
{
    enum mp_status status = MP_OK;

    if (graph != NULL)
        return mp_gpu_replay(b->gpu, b->stream, graph);
    for (unsigned n = 0; n < b->launches && status == MP_OK; n++)
        status = queue(b, item, repeat * b->launches + n);
    return status;
}

/* Median seconds of one launch. */
static enum mp_status measure(struct bench *b, const struct item *item, double *seconds_p)
{
    double times[REPEATS_MAX];
    mp_cu_graph_exec graph = NULL;
    enum mp_status status = item->graph ? capture(b, item, &graph) : MP_OK;

    for (unsigned r = 0; r <= b->repeats && status == MP_OK; r++) { /* the first is not counted */
        float ms = 0;

        status = mp_gpu_record(b->gpu, b->start, b->stream);
        if (status == MP_OK)
            status = queue_all(b, item, graph, r);
        if (status == MP_OK)
            status = mp_gpu_record(b->gpu, b->end, b->stream);
        if (status == MP_OK)
            status = mp_gpu_wait(b->gpu, b->end);
        if (status == MP_OK)
            status = mp_gpu_elapsed(b->gpu, b->start, b->end, &ms);
        if (r > 0)
            times[r - 1] = (double)ms / 1e3 / b->launches;
    }
    mp_gpu_graph_close(b->gpu, graph);
    if (status != MP_OK)
        return status;
    qsort(times, b->repeats, sizeof(times[0]), compare);
    *seconds_p = times[b->repeats / 2] > 0 ? times[b->repeats / 2] : 1e-9;
    return MP_OK;
}

static void show(struct bench *b, const struct item *item, double seconds)
{
    const double gbps = item->bytes / seconds / 1e9;

    if (b->json) {
        printf("%s\n  {\"name\": \"%s\", \"us\": %.3f, \"gbps\": %.3f, \"ratio\": %.3f, "
               "\"ratio_read\": %.3f, \"gflops\": %.1f, \"headline\": %s}",
               b->shown++ > 0 ? "," : "", item->name, seconds * 1e6, gbps, gbps / b->copy_gbps,
               gbps / b->read_gbps, item->flop / seconds / 1e9, item->headline ? "true" : "false");
        return;
    }
    printf("%-48s %9.1f us %8.1f GB/s %6.2f of reading", item->name, seconds * 1e6, gbps,
           gbps / b->read_gbps);
    if (item->flop > 0)
        printf(" %9.0f GFLOP/s", item->flop / seconds / 1e9);
    printf("\n");
}

static enum mp_status run(struct bench *b, const struct item *item)
{
    double seconds;
    const enum mp_status status = measure(b, item, &seconds);

    if (status == MP_OK)
        show(b, item, seconds);
    return status;
}

/* ---- limits */

static enum mp_status measure_read(struct bench *b)
{
    struct item item = {
        .name = "read", .what = READ, .kernels = { MP_CUDA_KERNEL_read }, .kernel_count = 1
    };
    const unsigned most = b->small ? 2 : 4096;
    enum mp_status status = MP_OK;

    item.bytes = (double)(b->weight_bytes / 4);
    item.step = b->weight_bytes / 4;
    for (unsigned blocks = b->small ? 1 : 256; blocks <= most && status == MP_OK; blocks *= 2) {
        double seconds = 1;

        item.params.read = (struct mp_cuda_read){ b->weights, item.step, b->y, 1, blocks };
        status = measure(b, &item, &seconds);
        if (status == MP_OK && item.bytes / seconds / 1e9 > b->read_gbps)
            b->read_gbps = item.bytes / seconds / 1e9;
    }
    return status;
}

static enum mp_status measure_copy(struct bench *b)
{
    const uint64_t bytes = b->weight_bytes / 4;
    enum mp_status status = MP_OK;

    for (unsigned r = 0; r <= b->repeats && status == MP_OK; r++) {
        float ms = 0;
        double gbps;

        status = mp_gpu_record(b->gpu, b->start, b->stream);
        for (int n = 0; n < 2 && status == MP_OK; n++) /* halves to halves: no place twice */
            status = mp_gpu_copy(b->gpu, b->stream, b->weights + 2 * bytes + (uint64_t)n * bytes,
                                 b->weights + (uint64_t)n * bytes, bytes);
        if (status == MP_OK)
            status = mp_gpu_record(b->gpu, b->end, b->stream);
        if (status == MP_OK)
            status = mp_gpu_wait(b->gpu, b->end);
        if (status == MP_OK)
            status = mp_gpu_elapsed(b->gpu, b->start, b->end, &ms);
        gbps = ms > 0 ? 4 * (double)bytes / (double)ms / 1e6 : 1e-9;
        if (r > 0 && gbps > b->copy_gbps)
            b->copy_gbps = gbps;
    }
    return status;
}

/* ---- what waits for memory */

static enum mp_status dense(struct bench *b, const char *what, enum mp_wtype type, uint32_t rows,
                            uint32_t cols, uint32_t tokens, bool tensor)
{
    const uint32_t least = (uint32_t)mp_wtype_info(type)->block_elements;
    char name[64];
    struct item item = { .name = name, .what = MATMUL, .kernel_count = 1 };

    if (b->small) {
        rows = rows / 64 > 0 ? rows / 64 : 1;
        cols = cols / 16 < least ? least : cols / 16;
    }
    item.kernels[0] = tensor        ? mp_cuda_type(type)->tensor
                      : tokens <= 8 ? mp_cuda_gemv(type, tokens)
                                    : mp_cuda_type(type)->gemm;
    item.step = mp_wtype_bytes(type, (uint64_t)rows * cols);
    item.bytes = (double)item.step;
    item.flop = tokens > 1 ? 2.0 * rows * cols * tokens : 0;
    item.headline = tokens == 1 && cols == 2048 && rows == 4096 && type == MP_WTYPE_BF16;
    item.params.matmul = (struct mp_cuda_matmul){ .w = b->weights,
                                                  .x = b->x,
                                                  .y = b->y,
                                                  .type = type,
                                                  .rows = rows,
                                                  .cols = cols,
                                                  .tokens = tokens,
                                                  .w_stride = cols,
                                                  .x_stride = cols,
                                                  .y_stride = rows };
    snprintf(name, sizeof(name), "%s %s %ux%u, %u token%s", what, mp_wtype_name(type), rows, cols,
             tokens, tokens == 1 ? "" : "s");
    return run(b, &item);
}

static struct mp_cuda_expert one_expert(mp_cu_ptr at, uint64_t expert_bytes, uint32_t first,
                                        uint32_t rows, uint32_t channels)
{
    return (struct mp_cuda_expert){ .gate = at,
                                    .up = at + expert_bytes / 3,
                                    .down = at + expert_bytes / 3 * 2,
                                    .first = first,
                                    .count = rows,
                                    .channels = channels };
}

/* Work lists of LAUNCHES launches, each with other experts, and rows 0, 1, 2 ... for all. Experts
 * come first, the rest of the `works` entries are empty, as the router leaves them. */
static enum mp_status upload_work(struct bench *b, uint64_t expert_bytes, uint32_t channels,
                                  uint32_t rows, uint32_t works)
{
    struct mp_cuda_expert *list = b->here;
    uint32_t *row = (uint32_t *)(list + LAUNCHES * WORKS_MAX);
    const uint64_t places = b->weight_bytes / expert_bytes;

    memset(list, 0, LAUNCHES * WORKS_MAX * sizeof(*list));
    for (unsigned i = 0; i < LAUNCHES * EXPERTS; i++)
        list[i / EXPERTS * works + i % EXPERTS] =
            one_expert(b->weights + i % places * expert_bytes, expert_bytes, i % EXPERTS * rows,
                       rows, channels);
    for (uint32_t i = 0; i < EXPERTS * rows; i++)
        row[i] = i % rows * EXPERTS + i / rows; /* expert e is rank e of every token */
    return mp_gpu_upload(b->gpu, b->stream, b->work, b->here, b->work_bytes);
}

static enum mp_status experts(struct bench *b, enum mp_wtype type, uint32_t hidden,
                              uint32_t channels, uint32_t rows, bool tensor)
{
    const uint32_t least = (uint32_t)mp_wtype_info(type)->block_elements;
    char name[64];
    struct item item = { .name = name, .what = EXPERT, .kernel_count = 2 };
    const bool graph = !tensor && rows <= 8;
    const uint32_t works = graph ? mp_cuda_works(OF, EXPERTS, rows) : EXPERTS;
    uint64_t expert_bytes;
    enum mp_status status;

    if (b->small) {
        hidden = hidden / 16 < least ? least : hidden / 16;
        channels = least < 32 ? 32 : least;
    }
    expert_bytes = 3 * mp_wtype_bytes(type, (uint64_t)hidden * channels);
    item.kernels[0] = tensor ? mp_cuda_type(type)->tensor_up : mp_cuda_experts_up(type, rows);
    item.kernels[1] = tensor ? mp_cuda_type(type)->tensor_down : mp_cuda_experts_down(type, rows);
    item.bytes = (double)expert_bytes * EXPERTS;
    item.flop = rows > 1 ? 6.0 * EXPERTS * hidden * channels * rows : 0;
    item.headline = !tensor && (rows == 1 || rows == 8) && type == MP_WTYPE_BF16;
    item.params.experts = (struct mp_cuda_experts){
        .work = b->work,
        .row = b->work + LAUNCHES * WORKS_MAX * sizeof(struct mp_cuda_expert),
        .x = b->x,
        .act = b->y,
        .rank = b->y + (uint64_t)EXPERTS * rows * channels * sizeof(float),
        .type = type,
        .works = works,
        .hidden = hidden,
        .channels = channels,
        .top_k = EXPERTS,
        .x_stride = hidden,
        .rows_max = rows,
    };
    snprintf(name, sizeof(name), "experts%s %s 8 of %d, list of %u, %ux%u, %u row%s",
             tensor ? " (tensor)" : "", mp_wtype_name(type), OF, works, channels, hidden, rows,
             rows == 1 ? "" : "s");
    status = mp_gpu_finish(b->gpu, b->stream);
    if (status == MP_OK)
        status = upload_work(b, expert_bytes, channels, rows, works);
    return status == MP_OK ? run(b, &item) : status;
}

static enum mp_status attention(struct bench *b, enum mp_wtype type, uint32_t positions, bool split)
{
    const uint32_t heads = 32, kv_heads = 4, dim = b->small ? 16 : 128;
    char name[64];
    struct item item = { .name = name, .what = ATTEND, .kernel_count = 1 };
    uint32_t *here = b->here;
    enum mp_status status = mp_gpu_finish(b->gpu, b->stream);
    uint64_t cache_bytes;

    positions = b->small ? 40 : positions;
    cache_bytes = mp_wtype_bytes(type, (size_t)positions * kv_heads * dim);
    here[0] = 0;
    here[1] = positions - 1;
    item.kernels[0] = mp_cuda_attend(type);
    item.bytes = 2.0 * (double)cache_bytes;
    item.params.attend = (struct mp_cuda_attend){
        .q = b->x,
        .out = b->y,
        .k_cache = b->weights,
        .v_cache = b->weights + cache_bytes,
        .sequence = b->work,
        .position = b->work + sizeof(uint32_t),
        .heads = heads,
        .kv_heads = kv_heads,
        .head_dim = dim,
        .tokens = 1,
        .ctx = positions,
        .scale = 0.1f,
        .part = split ? b->part : 0,
        .turn = b->part + PART_BYTES - heads * sizeof(uint32_t),
    };
    snprintf(name, sizeof(name), "attention %s %u positions, 1 token, %s", mp_wtype_name(type),
             positions, split ? "split" : "whole");
    if (status == MP_OK)
        status = mp_gpu_upload(b->gpu, b->stream, b->work, b->here, b->work_bytes);
    return status == MP_OK ? run(b, &item) : status;
}

/* Many tokens on tensor cores, where the device has kernels for them. */
static enum mp_status tensor_cores(struct bench *b, enum mp_wtype type)
{
    static const uint32_t tokens[] = { 16, 64, 512 };
    enum mp_status status = mp_gpu_load_tensor(b->gpu);

    if (status == MP_ERR_UNSUPPORTED)
        return MP_OK;
    for (size_t i = 0; i < (b->small ? 1 : MP_ARRAY_LEN(tokens)) && status == MP_OK; i++)
        status = dense(b, "product (tensor)", type, 4096, 2048, tokens[i], true);
    for (size_t i = 0; i < (b->small ? 1 : MP_ARRAY_LEN(tokens)) && status == MP_OK; i++)
        status = experts(b, type, 2048, 768, tokens[i], true);
    return status;
}

/* Blocks of random bytes, whose scales are numbers (fill_weights()). */
static enum mp_status quantised(struct bench *b, enum mp_wtype type)
{
    static const uint32_t tokens[] = { 1, 8, 64 };
    enum mp_status status = mp_gpu_load_type(b->gpu, type);

    for (size_t i = 0; i < (b->small ? 1 : MP_ARRAY_LEN(tokens)) && status == MP_OK; i++)
        status = dense(b, "product", type, 4096, 2048, tokens[i], false);
    for (size_t i = 0; i < (b->small ? 1 : MP_ARRAY_LEN(tokens)) && status == MP_OK; i++)
        status = experts(b, type, 2048, 768, tokens[i], false);
    return status == MP_OK ? tensor_cores(b, type) : status;
}

/* ---- a layer of a decoding step */

/* The next `bytes` of the place for results, which hold nothing that stays. */
static mp_cu_ptr take(mp_cu_ptr *next, uint64_t bytes)
{
    const mp_cu_ptr at = *next;

    *next += (bytes + 255) / 256 * 256;
    return at;
}

/* Numbers of every kind that a layer reads: lists of LAUNCHES layers, in each the experts behind
 * that layer's other weights; rows; sequence and position; where all experts of a layer are. */
static enum mp_status upload_layer(struct bench *b)
{
    const struct layer_shape *s = &b->shape;
    const uint64_t expert_bytes = layer_expert_bytes(s), step = layer_bytes(s);
    const uint64_t layers = (b->weight_bytes - step) / step + 1;
    struct mp_cuda_expert *list = b->here;
    struct mp_cuda_place_of *table = (void *)(list + LAUNCHES * EXPERTS);
    uint32_t *row = (uint32_t *)(table + OF);

    memset(b->here, 0, b->work_bytes);
    for (unsigned i = 0; i < LAUNCHES * EXPERTS; i++)
        list[i] = one_expert(b->weights + i / EXPERTS % layers * step + layer_dense_bytes(s) +
                                 i % EXPERTS * expert_bytes,
                             expert_bytes, i % EXPERTS, 1, s->channels);
    for (unsigned e = 0; e < OF; e++)
        table[e] = (struct mp_cuda_place_of){ b->weights, b->weights, b->weights, 1 };
    for (uint32_t i = 0; i < EXPERTS; i++)
        row[i] = i;
    row[EXPERTS] = 0; /* the sequence */
    row[EXPERTS + 1] = s->positions - 1;
    b->at.work = b->work;
    b->at.table = b->at.work + LAUNCHES * EXPERTS * sizeof(*list);
    b->at.row = b->at.table + OF * sizeof(*table);
    b->at.sequence = b->at.row + EXPERTS * sizeof(uint32_t);
    b->at.position = b->at.sequence + sizeof(uint32_t);
    return mp_gpu_upload(b->gpu, b->stream, b->work, b->here, b->work_bytes);
}

static enum mp_status open_layer(struct bench *b)
{
    const struct layer_shape *s = &b->shape;
    mp_cu_ptr next = b->y;
    enum mp_status status;

    b->shape = layer_qwen3_30b_a3b;
    b->shape.processors = (uint32_t)mp_gpu_device(b->gpu)->processors;
    if (b->small) {
        b->shape.hidden = 128;
        b->shape.heads = b->shape.kv_heads = 2;
        b->shape.head_dim = 16;
        b->shape.channels = 32;
        b->shape.vocab = 1024;
        b->shape.ctx = b->shape.positions = 40;
    }
    b->at = (struct layer_at){ .weights = b->weights, .part = b->part };
    b->at.state = take(&next, layer_state_bytes(s));
    b->at.x = take(&next, s->hidden * sizeof(float));
    b->at.norms = take(&next, s->hidden * sizeof(float));
    b->at.rotations = take(&next, (uint64_t)s->ctx * s->head_dim / 2 * sizeof(float));
    b->at.turn = take(&next, 2 * s->heads * sizeof(uint32_t));
    b->kv_cache_bytes = mp_wtype_bytes(s->kv_type, (uint64_t)s->ctx * s->kv_heads * s->head_dim);
    b->at.k_cache = take(&next, CACHES * 2 * b->kv_cache_bytes);
    b->at.v_cache = b->at.k_cache + b->kv_cache_bytes;
    status = mp_gpu_clear(b->gpu, b->stream, b->y, next - b->y);
    /* What weights are made of is as good for numbers: not zero, and finite. */
    if (status == MP_OK)
        status = mp_gpu_copy(b->gpu, b->stream, b->at.x, b->weights,
                             b->at.turn - b->at.x); /* x, norms, rotations */
    if (status == MP_OK)
        status = mp_gpu_finish(b->gpu, b->stream); /* here[] may be written */
    return status == MP_OK ? upload_layer(b) : status;
}

static enum mp_status layer(struct bench *b)
{
    struct layer_launch list[LAYER_LAUNCHES];
    enum mp_status status = open_layer(b);
    uint64_t bytes = 0;

    layer_launches(&b->shape, &b->at, list);
    for (unsigned i = 0; i < LAYER_LAUNCHES && status == MP_OK; i++) {
        char name[64];
        const struct item item = { .name = name,
                                   .what = LAYER,
                                   .bytes = (double)list[i].bytes,
                                   .step = list[i].bytes > 0 ? list[i].bytes : 16,
                                   .first = i,
                                   .end = i + 1 };

        snprintf(name, sizeof(name), "layer, %s", list[i].name);
        bytes += list[i].bytes;
        status = run(b, &item);
    }
    if (status == MP_OK)
        status = run(b, &(struct item){ .name = "layer, all of its 8 launches, graph",
                                        .what = LAYER,
                                        .headline = true,
                                        .graph = true,
                                        .bytes = (double)bytes,
                                        .step = layer_bytes(&b->shape),
                                        .end = LAYER_LAUNCHES });
    return status;
}

/* As of a trained model: the most probable of n tokens have shares as i^-1.5. Nearly equal logits
 * would make the kernels search the whole vocabulary. */
static enum mp_status upload_logits(struct bench *b, mp_cu_ptr at, uint32_t vocab)
{
    const uint32_t most = (uint32_t)(b->work_bytes / sizeof(float));
    float *here = b->here;
    uint64_t random = 1;
    enum mp_status status = mp_gpu_finish(b->gpu, b->stream);

    for (uint32_t first = 0; first < vocab && status == MP_OK; first += most) {
        const uint32_t count = vocab - first < most ? vocab - first : most;

        for (uint32_t i = 0; i < count; i++) {
            random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            here[i] = -1.5f * logf((float)((random >> 40) + 1) * 0x1p-24f);
        }
        status = mp_gpu_upload(b->gpu, b->stream, at + first * sizeof(float), here,
                               count * sizeof(float));
        if (status == MP_OK)
            status = mp_gpu_finish(b->gpu, b->stream);
    }
    return status;
}

/* One token of the vocabulary, from logits that stay in the second-level cache. */
static enum mp_status sampling(struct bench *b)
{
    const uint32_t vocab = b->shape.vocab;
    const struct {
        const char *what;
        uint32_t top_k;
        double top_p;
        float temperature;
    } ways[] = { { "greedy", 0, 1, 0 }, { "top-k 20, top-p 0.95", 20, 0.95, 0.7f } };
    mp_cu_ptr next = b->y;
    struct item item = { .what = SAMPLE,
                         .bytes = 4.0 * vocab,
                         .kernels = { MP_CUDA_KERNEL_sample_list, MP_CUDA_KERNEL_sample } };
    struct mp_cuda_sample *p = &item.params.sample;
    enum mp_status status = MP_OK;

    *p = (struct mp_cuda_sample){ .logits = b->x, .part = b->part, .vocab = vocab, .tokens = 1 };
    p->uniform = take(&next, sizeof(uint32_t));
    p->token = take(&next, sizeof(uint32_t));
    p->turn = take(&next, sizeof(uint32_t));
    status = mp_gpu_clear(b->gpu, b->stream, b->y, next - b->y);
    if (status == MP_OK)
        status = upload_logits(b, b->x, vocab);
    for (size_t i = 0; i < 2 * MP_ARRAY_LEN(ways) && status == MP_OK; i++) {
        char name[64];

        item.name = name;
        item.kernel_count = 1 + i % 2; /* the list alone, then both */
        p->top_k = ways[i / 2].top_k;
        p->top_p = (uint64_t)(ways[i / 2].top_p * 0x1p32);
        p->temperature = ways[i / 2].temperature;
        snprintf(name, sizeof(name), "sample_list%s of %u, %s", i % 2 == 1 ? ", sample" : "", vocab,
                 ways[i / 2].what);
        status = run(b, &item);
    }
    return status;
}

/* ---- grids, without a device */

static void print_grid(const struct layer_launch *launch, bool last)
{
    const struct mp_cuda_grid grid = mp_cuda_kernel_grid(launch->kernel, &launch->params);

    printf("  {\"name\": \"%s\", \"kernel\": \"%s\", \"blocks\": %llu, \"threads\": %u, "
           "\"bytes\": %llu}%s\n",
           launch->name, mp_cuda_kernel_name(launch->kernel),
           (unsigned long long)grid.x * grid.y * grid.z, grid.threads,
           (unsigned long long)launch->bytes, last ? "" : ",");
}

static void print_grids(void)
{
    const struct layer_at nowhere = { .part = 16 }; /* not 0: attention may be in parts */
    const struct layer_launch head = layer_head(&layer_qwen3_30b_a3b, &nowhere, 0);
    struct layer_launch list[LAYER_LAUNCHES];

    layer_launches(&layer_qwen3_30b_a3b, &nowhere, list);
    printf("[\n");
    for (unsigned i = 0; i < LAYER_LAUNCHES; i++)
        print_grid(&list[i], false);
    print_grid(&head, true);
    printf("]\n");
}

static enum mp_status run_all(struct bench *b)
{
    static const uint32_t tokens[] = { 1, 2, 4, 8, 64, 512 };
    const size_t token_counts = b->small ? 4 : 6;
    enum mp_status status = MP_OK;

    status = layer(b);
    if (status == MP_OK)
        status = sampling(b);
    for (size_t i = 0; i < token_counts && status == MP_OK; i++)
        status = dense(b, "product", MP_WTYPE_BF16, 4096, 2048, tokens[i], false);
    for (size_t i = 0; i < 4 && status == MP_OK; i++)
        status = dense(b, "product", MP_WTYPE_BF16, 512, 2048, tokens[i], false);
    if (status == MP_OK)
        status = dense(b, "product", MP_WTYPE_BF16, 151936, 2048, 1, false);
    for (size_t i = 0; i < token_counts && status == MP_OK; i++)
        status = experts(b, MP_WTYPE_BF16, 2048, 768, tokens[i], false);
    if (status == MP_OK)
        status = tensor_cores(b, MP_WTYPE_BF16);
#define X(TYPE, name) status = status == MP_OK ? quantised(b, MP_WTYPE_##TYPE) : status;
    MP_CUDA_QUANT_MAP(X)
#undef X
    for (uint32_t positions = 1024; positions <= 16384 && status == MP_OK; positions *= 4) {
        for (unsigned i = 0; i < 4 && status == MP_OK; i++)
            status = attention(b, i < 2 ? MP_WTYPE_F32 : MP_WTYPE_BF16, positions, i % 2 == 1);
    }
    return status;
}

/* ---- the device */

/* Weights as models have them: devices are faster with zeros. */
static enum mp_status fill_weights(struct bench *b)
{
    uint64_t *words = b->here, random = 1;
    enum mp_status status = MP_OK;

    for (uint64_t i = 0; i < b->work_bytes / 8; i++) {
        random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        words[i] = UINT64_C(0x3c003c003c003c00) ^ (random >> 7 & UINT64_C(0x807f807f807f807f));
    }
    for (uint64_t at = 0; at < b->weight_bytes && status == MP_OK; at += b->work_bytes) {
        const uint64_t left = b->weight_bytes - at;

        status = mp_gpu_upload(b->gpu, b->stream, b->weights + at, b->here,
                               left < b->work_bytes ? left : b->work_bytes);
    }
    return status == MP_OK ? mp_gpu_finish(b->gpu, b->stream) : status;
}

static enum mp_status open_all(struct bench *b, unsigned device)
{
    enum mp_status status = mp_gpu_open(device, &b->gpu);

    b->weight_bytes = b->small ? UINT64_C(8) << 20 : UINT64_C(2) << 30;
    b->x_bytes = b->small ? UINT64_C(1) << 20 : UINT64_C(64) << 20;
    b->y_bytes = b->small ? UINT64_C(4) << 20 : UINT64_C(256) << 20;
    b->work_bytes = LAUNCHES * WORKS_MAX * sizeof(struct mp_cuda_expert) + ROWS_BYTES;
    if (status == MP_OK)
        status = mp_gpu_stream_open(b->gpu, &b->stream);
    if (status == MP_OK)
        status = mp_gpu_event_open(b->gpu, true, &b->start);
    if (status == MP_OK)
        status = mp_gpu_event_open(b->gpu, true, &b->end);
    if (status == MP_OK)
        status = mp_gpu_alloc(b->gpu, b->weight_bytes, "weights", &b->weights);
    if (status == MP_OK)
        status = mp_gpu_alloc(b->gpu, b->work_bytes, "work lists", &b->work);
    if (status == MP_OK)
        status = mp_gpu_alloc(b->gpu, b->x_bytes, "activations", &b->x);
    if (status == MP_OK)
        status = mp_gpu_alloc(b->gpu, b->y_bytes, "results", &b->y);
    if (status == MP_OK)
        status = mp_gpu_alloc(b->gpu, PART_BYTES, "partial sums", &b->part);
    if (status == MP_OK)
        status = mp_gpu_alloc_host(b->gpu, b->work_bytes, "work lists", &b->here);
    return status == MP_OK ? fill_weights(b) : status;
}

static void close_all(struct bench *b)
{
    if (b->gpu == NULL)
        return;
    if (b->stream != NULL && mp_gpu_finish(b->gpu, b->stream) != MP_OK)
        fprintf(stderr, "bench_kernels: %s\n", mp_error_last()->text);
    mp_gpu_free_host(b->gpu, b->here);
    mp_gpu_free(b->gpu, b->weights);
    mp_gpu_free(b->gpu, b->work);
    mp_gpu_free(b->gpu, b->x);
    mp_gpu_free(b->gpu, b->y);
    mp_gpu_free(b->gpu, b->part);
    mp_gpu_event_close(b->gpu, b->start);
    mp_gpu_event_close(b->gpu, b->end);
    mp_gpu_stream_close(b->gpu, b->stream);
    mp_gpu_close(b->gpu);
}

static enum mp_status bench(struct bench *b, unsigned device)
{
    enum mp_status status = open_all(b, device);

    if (status == MP_OK)
        status = measure_read(b);
    if (status == MP_OK)
        status = measure_copy(b);
    if (status != MP_OK)
        return status;
    if (b->json)
        printf("{\"device\": \"%s\", \"small\": %s, \"read_gbps\": %.3f, \"copy_gbps\": %.3f, "
               "\"kernels\": [",
               mp_gpu_device(b->gpu)->name, b->small ? "true" : "false", b->read_gbps,
               b->copy_gbps);
    else
        printf("%s%s: reads %.1f GB/s, copies %.1f GB/s\n", mp_gpu_device(b->gpu)->name,
               b->small ? " (--small: these are no measurements)" : "", b->read_gbps, b->copy_gbps);
    status = run_all(b);
    if (b->json)
        printf("\n]}\n");
    return status;
}

int main(int argc, char **argv)
{
    struct bench b = { .repeats = 9, .launches = LAUNCHES };
    unsigned device = 0;
    enum mp_status status;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--grids") == 0) {
            print_grids();
            return 0;
        } else if (strcmp(argv[i], "--json") == 0) {
            b.json = true;
        } else if (strcmp(argv[i], "--small") == 0) {
            b.small = true;
            b.repeats = 1;
            b.launches = 1;
        } else if (strcmp(argv[i], "--device") == 0 && i + 1 < argc) {
            device = (unsigned)strtoul(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--repeats") == 0 && i + 1 < argc) {
            b.repeats = (unsigned)strtoul(argv[++i], NULL, 10);
        } else {
            fprintf(stderr, "usage: bench_kernels [--device N] [--json] [--small] [--repeats N] "
                            "| --grids\n");
            return 2;
        }
    }
    if (b.repeats < 1 || b.repeats > REPEATS_MAX) {
        fprintf(stderr, "bench_kernels: --repeats: 1 to %d\n", REPEATS_MAX);
        return 2;
    }
    mp_gpu_configure_from_environment();
    status = bench(&b, device);
    if (status != MP_OK)
        fprintf(stderr, "bench_kernels: %s\n", mp_error_last()->text);
    close_all(&b);
    return status == MP_OK ? 0 : (status == MP_ERR_UNSUPPORTED ? 77 : 1);
}
