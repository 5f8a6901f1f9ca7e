/*
 * check_kernels: products with weights, dense and of experts, with the strides of production (those
 * of a matrix without gaps, which tiles read by 16 bytes) and with ones that no tile can read.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/tiles.h"
#include "tools/gpu/check.h"
#include "vmm/base/compiler.h"

static const char *type_name(unsigned type)
{
    return mp_wtype_name((enum mp_wtype)type);
}

/* What the products, with bias and what was there, come to. */
static void near_products(struct check *c, enum mp_cuda_kernel kernel,
                          const struct mp_cuda_matmul *p, const float *before, const char *what)
{
    const float *bias = (const float *)(uintptr_t)p->bias;
    float *want = check_want((size_t)p->tokens * p->rows);

    check_product(want, (const void *)(uintptr_t)p->w, (enum mp_wtype)p->type, p->w_stride,
                  (const float *)(uintptr_t)p->x, p->x_stride, p->rows, p->cols, p->tokens);
    if (before != NULL) {
        for (size_t i = 0; i < (size_t)p->tokens * p->rows; i++)
            want[i] += bias[i % p->rows] + before[i / p->rows * p->y_stride + i % p->rows];
    }
    check_near(c, kernel, (const float *)(uintptr_t)p->y, p->y_stride, want, p->rows, p->tokens,
               what);
}

/* `gap` 0: as in production; else elements between rows, and weights off by an element or 2 bytes.
 */
static void matmul(struct check *c, bool gemm, unsigned type, uint32_t rows, uint32_t cols,
                   uint32_t tokens, uint32_t gap)
{
    const enum mp_cuda_kernel kernel = gemm ? mp_cuda_type(type)->gemm : mp_cuda_gemv(type, tokens);
    const uint32_t stride = cols + gap;
    const size_t y_count = (size_t)tokens * (rows + gap);
    const size_t shift = gap == 0 ? 0 : type == MP_WTYPE_F32 ? 4 : 2;
    const char *w = check_shifted(c, (enum mp_wtype)type, (size_t)rows * stride, shift);
    const float *x = check_floats(c, (size_t)tokens * stride);
    struct mp_cuda_matmul p = { .w = check_at(w),
                                .x = check_at(x),
                                .y = check_at(check_floats(c, y_count)),
                                .type = type,
                                .rows = rows,
                                .cols = cols,
                                .tokens = tokens,
                                .w_stride = stride,
                                .x_stride = stride,
                                .y_stride = rows + gap };
    char what[96];

    snprintf(what, sizeof(what), "%s, %u x %u, %u tokens", gap > 0 ? "unaligned" : "tiles", rows,
             cols, tokens);
    check_launch(c, kernel, &p, what);
    near_products(c, kernel, &p, NULL, what);
    p.bias = check_at(check_floats(c, rows));
    p.accumulate = 1;
    if (rows <= 1024 && cols <= 1024) {
        const float *before = check_copy(c, (const float *)(uintptr_t)p.y, y_count * sizeof(float));

        check_launch(c, kernel, &p, what);
        near_products(c, kernel, &p, before, what);
    }
    check_end(c);
}

/* What a product of tensor cores may come to, and how far off it may be: see MP_CUDA_TENSOR_FIRST.
 * to, off: (rows). Activations, and weights that were decoded, are rounded here as there. w_stride:
 * elements. */
static void tensor_row(unsigned type, const void *w, uint64_t w_stride, const float *x,
                       uint32_t rows, uint32_t cols, double *to, double *off)
{
    const enum mp_wtype of = (enum mp_wtype)type, as = type == MP_WTYPE_BF16 ? of : MP_WTYPE_F16;
    float *in = check_want(cols), *wide = check_want(cols);
    uint16_t *bits = calloc(cols + 1, sizeof(*bits));

    if (bits == NULL)
        exit(1);
    mp_kernels_store(as, bits, x, cols);
    mp_kernels_ref.convert(in, bits, as, cols);
    for (uint32_t r = 0; r < rows; r++) {
        double sum = 0, magnitude = 0;

        mp_kernels_ref.convert(wide, (const char *)w + mp_wtype_bytes(of, r * w_stride), of, cols);
        if (type >= MP_WTYPE_PLAIN_COUNT) {
            mp_kernels_store(as, bits, wide, cols);
            mp_kernels_ref.convert(wide, bits, as, cols);
        }
        for (uint32_t c = 0; c < cols; c++) {
            sum += (double)wide[c] * (double)in[c];
            magnitude += fabs((double)wide[c] * (double)in[c]);
        }
        to[r] = sum;
        off[r] = (cols + 32) * 0x1p-22 * magnitude;
    }
    free(bits);
    free(wide);
    free(in);
}

static double *doubles(size_t count, double value)
{
    double *to = malloc((count + 4) * sizeof(*to));

    if (to == NULL)
        exit(1);
    for (size_t i = 0; i < count + 4; i++)
        to[i] = value;
    return to;
}

static void tensor(struct check *c, unsigned type, uint32_t rows, uint32_t cols, uint32_t tokens,
                   uint32_t gap)
{
    const uint32_t stride = cols + gap;
    const size_t y_count = (size_t)tokens * (rows + gap);
    const char *w = check_shifted(c, (enum mp_wtype)type, (size_t)rows * stride, gap > 0 ? 2 : 0);
    const float *x = check_floats(c, (size_t)tokens * stride);
    float *y = check_floats(c, y_count), *bias = check_floats(c, rows);
    struct mp_cuda_matmul p = { .w = check_at(w),
                                .x = check_at(x),
                                .y = check_at(y),
                                .bias = gap > 0 ? check_at(bias) : 0,
                                .type = type,
                                .rows = rows,
                                .cols = cols,
                                .tokens = tokens,
                                .w_stride = stride,
                                .x_stride = stride,
                                .y_stride = rows + gap,
                                .accumulate = gap > 0 };
    double *want = doubles(y_count, 0), *limit = doubles(y_count, -1);
    char what[96];

    for (uint32_t t = 0; t < tokens; t++) {
        double *to = want + (size_t)t * p.y_stride, *off = limit + (size_t)t * p.y_stride;

        tensor_row(type, (const void *)(uintptr_t)p.w, stride, x + (size_t)t * stride, rows, cols,
                   to, off);
        for (uint32_t r = 0; r < rows && gap > 0; r++) {
            to[r] += (double)bias[r] + (double)y[(size_t)t * p.y_stride + r];
            off[r] += 4 * 0x1p-24 * (2 + fabs(to[r])); /* two more sums in float */
        }
    }
    snprintf(what, sizeof(what), "%s, %u x %u, %u tokens", gap > 0 ? "unaligned" : "tiles", rows,
             cols, tokens);
    check_launch_within(c, mp_cuda_type(type)->tensor, &p, y, want, limit, what);
    check_end(c);
}

/* A norm with three products that read it; what it should be is known from the two kernels apart.
 */
static void project(struct check *c, unsigned type, uint32_t rows, uint32_t cols, uint32_t tokens)
{
    struct mp_cuda_project p = {
        .in = { .x = check_at(check_floats(c, (size_t)tokens * cols)),
                .norm = check_at(check_floats(c, cols)),
                .cols = cols,
                .tokens = tokens,
                .eps = 1e-6f },
    };
    char what[96];

    for (uint32_t i = 0; i < 3; i++) {
        const uint32_t count = i == 0 ? rows : 9;

        p.part[i] = (struct mp_cuda_part){
            .w = check_at(check_weights(c, (enum mp_wtype)type, (size_t)count * cols)),
            .y = check_at(check_space(c, (size_t)tokens * count * sizeof(float))),
            .bias = i == 1 ? check_at(check_floats(c, count)) : 0,
            .rows = count,
        };
    }
    snprintf(what, sizeof(what), "%u x %u and two more, %u tokens", rows, cols, tokens);
    check_launch(c, mp_cuda_project(type, tokens), &p, what);
    check_end(c);
}

static void quantised(struct check *c, unsigned type, bool few)
{
    static const uint32_t tokens[] = { 1, 5, 8, 2 };

    if (!check_wants_type(c, type))
        return;
    for (size_t i = 0; i < (few ? 2 : MP_ARRAY_LEN(tokens)); i++) {
        matmul(c, false, type, few ? 6 : 512, few ? 1280 : 2048, tokens[i], 0);
        matmul(c, false, type, 33, 512, tokens[i], 256);
        project(c, type, few ? 6 : 512, few ? 1280 : 2048, tokens[i]);
    }
    matmul(c, true, type, few ? 33 : 768, few ? 256 : 2048, few ? 9 : 67, 0);
    matmul(c, true, type, 5, 256, 9, 256);
    if (check_tensor(c)) {
        tensor(c, type, few ? 33 : 768, few ? 256 : 2048, few ? 9 : 67, 0);
        tensor(c, type, 5, 256, 9, 256);
    }
    if (!few)
        matmul(c, false, type, MP_GEMV_SPLIT_ROWS_MAX + 3, 1280, 1, 0);
}

/* Every cut of the tiles: columns shared out and not, 1, 2, 4 and 8 tokens, and more in blocks. */
void check_matmuls(struct check *c, bool few)
{
    static const uint32_t tokens[] = { 1, 2, 3, 8, 4, 5 };
    static const uint32_t many[] = { 9, 16, 67 };
    const uint32_t wide = MP_GEMV_SPLIT_ROWS_MAX + 3;

    for (unsigned type = 0; type < MP_WTYPE_PLAIN_COUNT; type++) {
        for (size_t i = 0; i < (few ? 4 : MP_ARRAY_LEN(tokens)); i++) {
            matmul(c, false, type, few ? 6 : 512, few ? 1032 : 2048, tokens[i], 0);
            matmul(c, false, type, few ? 35 : wide, few ? 8 : 1032, tokens[i], 0);
            matmul(c, false, type, 33, 257, tokens[i], 3);
            project(c, type, few ? 6 : 512, few ? 1032 : 2048, tokens[i]);
            project(c, type, few ? 35 : wide, few ? 8 : 1032, tokens[i]);
            project(c, type, 33, 257, tokens[i]);
        }
        for (size_t i = 0; i < (few ? 1 : MP_ARRAY_LEN(many)); i++) {
            matmul(c, true, type, few ? 33 : 768, few ? 264 : 2048, many[i], 0);
            matmul(c, true, type, 7, 1000, many[i], 0);
            matmul(c, true, type, 5, 31, many[i], 3);
        }
        for (size_t i = 0; i < (few ? 1 : MP_ARRAY_LEN(many)); i++) {
            if (type == MP_WTYPE_F32 || !check_tensor(c))
                continue;
            tensor(c, type, few ? 33 : 768, few ? 264 : 2048, many[i], 0);
            tensor(c, type, 7, 1000, many[i], 0);
            tensor(c, type, 5, 31, many[i], 3);
        }
        if (!few)
            matmul(c, false, type, 4096, 2048, 1, 0);
        matmul(c, false, type, 1, 1, 1, 0);
    }
#define X(TYPE, name) quantised(c, MP_WTYPE_##TYPE, few);
    MP_CUDA_QUANT_MAP(X)
#undef X
}

/* ---- experts */

struct list {
    uint32_t experts, top_k, tokens;
    uint32_t hidden, channels;
    struct mp_cuda_expert *work; /* (experts) */
    uint32_t *row;               /* (tokens, top_k) */
};

/* Token t chooses experts (3 t + 5 r) % experts; the others' entries stay empty, as in a graph.
 * Every second one has fewer channels. */
static void fill_list(struct list *list, const char *weights, size_t matrix_bytes, uint32_t copies,
                      uint32_t fewer, bool accumulate)
{
    uint32_t used = 0;

    for (uint32_t e = 0; e < list->experts; e++) {
        const uint64_t at = check_at(weights) + e % copies * 3 * matrix_bytes;
        const uint32_t first = used;

        for (uint32_t i = 0; i < list->tokens * list->top_k; i++) {
            if ((3 * (i / list->top_k) + 5 * (i % list->top_k)) % list->experts == e)
                list->row[used++] = i;
        }
        list->work[e] = (struct mp_cuda_expert){ .gate = at,
                                                 .up = at + matrix_bytes,
                                                 .down = at + 2 * matrix_bytes,
                                                 .first = first,
                                                 .count = used - first,
                                                 .channels = list->channels - (e % 2) * fewer,
                                                 .accumulate = accumulate };
    }
}

/* The rows of one expert once more; `before` was in `rank`. */
static void near_expert(const struct list *list, const struct mp_cuda_expert *w,
                        const struct mp_cuda_experts *p, const float *before, bool is_up,
                        float *want)
{
    const enum mp_wtype type = (enum mp_wtype)p->type;
    const uint32_t F = p->channels, H = p->hidden;
    const float *x = (const float *)(uintptr_t)p->x, *act = (const float *)(uintptr_t)p->act;
    float *up = check_want(F);

    for (uint32_t i = w->first; i < w->first + w->count; i++) {
        const uint32_t row = list->row[i];
        const float *in = x + (size_t)(row / p->top_k) * p->x_stride;
        float *to = want + (is_up ? (size_t)i * F : (size_t)row * H);

        if (is_up) {
            check_product(to, (const void *)(uintptr_t)w->gate, type, H, in, H, w->channels, H, 1);
            check_product(up, (const void *)(uintptr_t)w->up, type, H, in, H, w->channels, H, 1);
            mp_kernels_ref.silu_mul(to, up, w->channels);
            memcpy(to + w->channels, act + (size_t)i * F + w->channels,
                   (F - w->channels) * sizeof(float)); /* none of the expert's */
            continue;
        }
        check_product(to, (const void *)(uintptr_t)w->down, type, w->channels, act + (size_t)i * F,
                      F, H, w->channels, 1);
        if (w->accumulate) {
            for (uint32_t h = 0; h < H; h++)
                to[h] += before[(size_t)row * H + h];
        }
    }
    free(up);
}

static void near_experts(struct check *c, const struct list *list, const struct mp_cuda_experts *p,
                         const float *before, bool is_up, const char *what)
{
    const uint32_t width = is_up ? p->channels : p->hidden, ranks = list->tokens * list->top_k;
    float *want = check_want((size_t)ranks * width);

    for (uint32_t e = 0; e < list->experts; e++)
        near_expert(list, &list->work[e], p, before, is_up, want);
    check_near(c,
               is_up ? mp_cuda_experts_up(p->type, p->rows_max)
                     : mp_cuda_experts_down(p->type, p->rows_max),
               (const float *)(uintptr_t)(is_up ? p->act : p->rank), width, want, width, ranks,
               what);
}

/* act and rank of a list, each by what the CPU has before it. */
static void near_tensor(struct check *c, const struct list *list, const struct mp_cuda_experts *p,
                        bool is_up, const char *what)
{
    const uint32_t F = p->channels, H = p->hidden, ranks = list->tokens * list->top_k;
    const size_t count = (size_t)ranks * (is_up ? F : H);
    float *act = (void *)(uintptr_t)p->act, *rank = (void *)(uintptr_t)p->rank;
    double *want = doubles(count, 0), *limit = doubles(count, -1);
    double *up = doubles(F, 0), *up_off = doubles(F, 0);

    for (uint32_t e = 0; e < list->experts; e++) {
        const struct mp_cuda_expert *w = &list->work[e];

        for (uint32_t i = w->first; i < w->first + w->count; i++) {
            const uint32_t row = list->row[i];
            const float *x =
                (const float *)(uintptr_t)p->x + (size_t)(row / p->top_k) * p->x_stride;
            double *to = want + (is_up ? (size_t)i * F : (size_t)row * H);
            double *off = limit + (is_up ? (size_t)i * F : (size_t)row * H);

            if (!is_up) {
                tensor_row(p->type, (const void *)(uintptr_t)w->down, w->channels,
                           act + (size_t)i * F, H, w->channels, to, off);
                for (uint32_t h = 0; h < H && w->accumulate; h++) {
                    const double before = (double)rank[(size_t)row * H + h];

                    to[h] += before;
                    off[h] += (w->channels + 32) * 0x1p-22 * fabs(before);
                }
                continue;
            }
            tensor_row(p->type, (const void *)(uintptr_t)w->gate, H, x, w->channels, H, to, off);
            tensor_row(p->type, (const void *)(uintptr_t)w->up, H, x, w->channels, H, up, up_off);
            for (uint32_t f = 0; f < w->channels; f++) { /* the slope of silu is at most 1.1 */
                const double gate = to[f], silu = gate / (1 + exp(-gate));

                to[f] = silu * up[f];
                off[f] = 1.1 * off[f] * (fabs(up[f]) + up_off[f]) + fabs(silu) * up_off[f] +
                         8 * 0x1p-24 * fabs(to[f]);
            }
        }
    }
    free(up);
    free(up_off);
    check_launch_within(
        c, is_up ? mp_cuda_type(p->type)->tensor_up : mp_cuda_type(p->type)->tensor_down, p,
        is_up ? act : rank, want, limit, what);
}

static void experts(struct check *c, unsigned type, struct list *list, bool accumulate, bool tensor)
{
    const uint32_t copies = list->experts < 4 ? list->experts : 4,
                   ranks = list->tokens * list->top_k;
    const size_t matrix = (size_t)list->hidden * list->channels;
    const char *w = check_weights(c, (enum mp_wtype)type, copies * 3 * matrix);
    float *x = check_floats(c, (size_t)list->tokens * list->hidden);
    struct mp_cuda_experts p = {
        .x = check_at(x),
        .act = check_at(check_floats(c, (size_t)ranks * list->channels)),
        .rank = check_at(check_floats(c, (size_t)ranks * list->hidden)),
        .type = type,
        .works = list->experts,
        .hidden = list->hidden,
        .channels = list->channels,
        .top_k = list->top_k,
        .x_stride = list->hidden,
        .rows_max = list->tokens,
    };
    const float *before;
    char what[96];

    /* Blocks have weights up to a few hundred: act, too, is to be a number in F16. */
    for (size_t i = 0;
         tensor && type >= MP_WTYPE_PLAIN_COUNT && i < (size_t)list->tokens * list->hidden; i++)
        x[i] /= 256;
    list->work = calloc(list->experts, sizeof(list->work[0]));
    list->row = calloc(ranks, sizeof(uint32_t));
    if (list->work == NULL || list->row == NULL)
        exit(1);
    fill_list(list, w, mp_wtype_bytes((enum mp_wtype)type, matrix), copies,
              type < MP_WTYPE_PLAIN_COUNT ? 8 : 256, accumulate);
    p.work = check_at(check_table(c, list->work, list->experts * sizeof(list->work[0])));
    p.row = check_at(check_copy(c, list->row, ranks * sizeof(uint32_t)));
    snprintf(what, sizeof(what), "%s, %u of %u x %u, %u tokens%s", type_name(type), list->experts,
             list->channels, list->hidden, list->tokens, accumulate ? ", added" : "");
    before = check_copy(c, (const float *)(uintptr_t)p.rank,
                        (size_t)ranks * list->hidden * sizeof(float));
    if (tensor) {
        near_tensor(c, list, &p, true, what);
        near_tensor(c, list, &p, false, what);
    } else {
        check_launch(c, mp_cuda_experts_up(type, p.rows_max), &p, what);
        near_experts(c, list, &p, before, true, what);
        check_launch(c, mp_cuda_experts_down(type, p.rows_max), &p, what);
        near_experts(c, list, &p, before, false, what);
    }
    check_end(c);
    free(list->work);
    free(list->row);
}

static void quantised_experts(struct check *c, unsigned type, bool few)
{
    static const uint32_t tokens[] = { 1, 3, 12, 8, 40 };

    if (!check_wants_type(c, type))
        return;
    for (size_t i = 0; i < (few ? 3 : MP_ARRAY_LEN(tokens)); i++) {
        struct list list = { few ? 4 : 16, 2, tokens[i], 256, 512, NULL, NULL };

        experts(c, type, &list, i % 2 == 1, false);
        if (check_tensor(c) && tokens[i] > 8)
            experts(c, type, &list, i % 2 == 0, true);
    }
}

void check_experts(struct check *c, bool few)
{
    static const uint32_t tokens[] = { 1, 2, 3, 8, 9, 40 };

    for (unsigned type = 0; type < MP_WTYPE_PLAIN_COUNT; type++) {
        for (size_t i = 0; i < (few ? 5 : MP_ARRAY_LEN(tokens)); i++) {
            struct list odd = { 5, 2, tokens[i], 33, 27, NULL, NULL };
            struct list aligned = { 16, 4, tokens[i], 264, 40, NULL, NULL };
            struct list graph = { 128, 8, tokens[i] <= 8 ? tokens[i] : 8, 2048, 768, NULL, NULL };

            experts(c, type, &odd, i % 2 == 1, false);
            experts(c, type, &aligned, i % 2 == 0, false);
            if (!few && type == MP_WTYPE_BF16 && tokens[i] <= 3)
                experts(c, type, &graph, false, false);
            if (type == MP_WTYPE_F32 || !check_tensor(c) || tokens[i] < 9)
                continue;
            odd.tokens = few ? 9 : 4 * tokens[i];
            experts(c, type, &odd, i % 2 == 1, true);
            experts(c, type, &aligned, i % 2 == 0, true);
        }
    }
#define X(TYPE, name) quantised_experts(c, MP_WTYPE_##TYPE, few);
    MP_CUDA_QUANT_MAP(X)
#undef X
}
