/*
 * The reference implementation: plain C, sums and functions in double, rounded to float once per
 * result. Slow on purpose and simple enough to be checked by reading.
 */
#include "kernels/cpu/inline.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/quant/quant.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define CHUNK_COLS MP_KERNEL_BLOCK_COLS
#define CHUNK_TOKENS 8

static void ref_convert(float *dst, const void *src, enum mp_wtype type, size_t count)
{
    mp_wtype_info(type)->convert(dst, src, count);
}

static const void *element(const void *w, enum mp_wtype type, size_t index)
{
    return (const unsigned char *)w + mp_wtype_bytes(type, index);
}

/* sums[t] += w[0..cols) . x[t][0..cols) for t < tokens <= CHUNK_TOKENS, cols <= CHUNK_COLS. */
static void add_dots(double *sums, const void *w, enum mp_wtype type, const float *x,
                     size_t x_stride, size_t cols, size_t tokens)
{
    const struct mp_wtype_info *info = mp_wtype_info(type);
    double rounded[CHUNK_COLS];
    float row[CHUNK_COLS];

    ref_convert(row, w, type, cols);
    for (size_t t = 0; t < tokens; t++) {
        if (info->x_block != 0)
            mp_quant_rounded(rounded, x + t * x_stride, info, cols);
        for (size_t c = 0; c < cols; c++)
            sums[t] +=
                (double)row[c] * (info->x_block != 0 ? rounded[c] : (double)x[t * x_stride + c]);
    }
}

static void ref_matmul(float *y, size_t y_stride, const void *w, enum mp_wtype type,
                       size_t w_stride, const float *x, size_t x_stride, size_t rows, size_t cols,
                       size_t tokens)
{
    for (size_t r = 0; r < rows; r++) {
        for (size_t t0 = 0; t0 < tokens; t0 += CHUNK_TOKENS) {
            size_t n = min_size(tokens - t0, CHUNK_TOKENS);
            double sums[CHUNK_TOKENS] = { 0 };

            for (size_t c = 0; c < cols; c += CHUNK_COLS)
                add_dots(sums, element(w, type, r * w_stride + c), type, x + t0 * x_stride + c,
                         x_stride, min_size(cols - c, CHUNK_COLS), n);
            for (size_t t = 0; t < n; t++)
                y[(t0 + t) * y_stride + r] = (float)sums[t];
        }
    }
}

static void ref_matmul_blocked(float *y, size_t y_stride, const void *w, enum mp_wtype type,
                               size_t w_stride, const float *x, size_t x_stride, size_t rows,
                               size_t cols, size_t tokens, int accumulate)
{
    for (size_t r = 0; r < rows; r++) {
        for (size_t t0 = 0; t0 < tokens; t0 += CHUNK_TOKENS) {
            size_t n = min_size(tokens - t0, CHUNK_TOKENS);

            if (!accumulate) {
                for (size_t t = 0; t < n; t++)
                    y[(t0 + t) * y_stride + r] = 0;
            }
            for (size_t c = 0; c < cols; c += MP_KERNEL_BLOCK_COLS) {
                double sums[CHUNK_TOKENS] = { 0 };

                add_dots(sums, element(w, type, r * w_stride + c), type, x + t0 * x_stride + c,
                         x_stride, min_size(cols - c, MP_KERNEL_BLOCK_COLS), n);
                for (size_t t = 0; t < n; t++)
                    y[(t0 + t) * y_stride + r] += (float)sums[t];
            }
        }
    }
}

static void ref_rmsnorm(float *out, size_t out_stride, const float *x, size_t x_stride,
                        const float *w, size_t width, size_t tokens, float eps)
{
    for (size_t t = 0; t < tokens; t++) {
        const float *from = x + t * x_stride;
        double sum = 0, scale;

        for (size_t i = 0; i < width; i++)
            sum += (double)from[i] * (double)from[i];
        scale = sum <= (double)FLT_MAX ? 1 / sqrt(sum / (double)width + (double)eps) : (double)NAN;
        for (size_t i = 0; i < width; i++)
            out[t * out_stride + i] = (float)((double)from[i] * scale * (double)w[i]);
    }
}

static void ref_rope(float *head, const float *cosine, const float *sine, size_t dim)
{
    for (size_t i = 0; i < dim / 2; i++) {
        double a = (double)head[i], b = (double)head[dim / 2 + i];

        head[i] = (float)(a * (double)cosine[i] - b * (double)sine[i]);
        head[dim / 2 + i] = (float)(b * (double)cosine[i] + a * (double)sine[i]);
    }
}

static void ref_silu_mul(float *gate, const float *up, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        double v = (double)gate[i];

        gate[i] = (float)(v / (1 + exp(-v)) * (double)up[i]);
    }
}

/* x[i] becomes exp(x[i] - max); the sum of the unrounded values is returned. */
static double exp_row(float *x, size_t width)
{
    double max = -INFINITY, sum = 0;

    for (size_t i = 0; i < width; i++)
        if ((double)x[i] > max)
            max = (double)x[i];
    for (size_t i = 0; i < width; i++) {
        double e = exp((double)x[i] - max);

        x[i] = (float)e;
        sum += e;
    }
    return sum;
}

static void ref_softmax(float *x, size_t x_stride, size_t width, size_t tokens)
{
    for (size_t t = 0; t < tokens; t++) {
        float *row = x + t * x_stride;
        double sum = exp_row(row, width);

        for (size_t i = 0; i < width; i++)
            row[i] = (float)((double)row[i] / sum);
    }
}

/* Row p of keys or values, as floats. */
static void kv_row(const struct mp_attention *a, const void *rows, size_t p, float *row)
{
    ref_convert(row, element(rows, a->type, p * a->kv_stride), a->type, a->dim);
}

static void attend_head(const struct mp_attention *a, size_t head)
{
    const float *q = a->q + head * a->dim;
    float *scores = a->scores + head * a->positions, *out = a->out + head * a->dim;
    float row[MP_KERNEL_HEAD_MAX];
    double mix[MP_KERNEL_HEAD_MAX] = { 0 }, sum;

    for (size_t p = 0; p < a->positions; p++) {
        double dot = 0;

        kv_row(a, a->k, p, row);
        for (size_t i = 0; i < a->dim; i++)
            dot += (double)q[i] * (double)row[i];
        scores[p] = (float)(dot * (double)a->scale);
    }
    sum = exp_row(scores, a->positions);
    for (size_t p = 0; p < a->positions; p++) {
        kv_row(a, a->v, p, row);
        for (size_t i = 0; i < a->dim; i++)
            mix[i] += (double)scores[p] * (double)row[i];
    }
    for (size_t i = 0; i < a->dim; i++)
        out[i] = a->positions > 0 ? (float)(mix[i] / sum) : 0;
}

static void ref_attend(const struct mp_attention *attention)
{
    for (size_t h = 0; h < attention->heads; h++)
        attend_head(attention, h);
}

static void ref_axpy(float *y, const float *x, float a, size_t count)
{
    for (size_t i = 0; i < count; i++)
        y[i] = (float)((double)y[i] + (double)a * (double)x[i]);
}

const struct mp_kernels mp_kernels_ref = {
    .name = "ref",
    .convert = ref_convert,
    .matmul = ref_matmul,
    .matmul_blocked = ref_matmul_blocked,
    .rmsnorm = ref_rmsnorm,
    .rope = ref_rope,
    .silu_mul = ref_silu_mul,
    .softmax = ref_softmax,
    .attend = ref_attend,
    .axpy = ref_axpy,
};
