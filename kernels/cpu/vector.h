/*
 * The kernels, once, over the vectors of the file that includes this one (at its end; there is no
 * other use and hence no guard). It defines vec, LANES, the v_, w_ and x_ operations, what
 * kernels/cpu/product.h needs for its tiles, and VECTOR_KERNELS, the table to define, VECTOR_NAME
 * its name, VECTOR_QUANT the kernels whose variants of kernels/cpu/quant it uses.
 *
 * Exactness. An element-wise kernel uses the same vector operations for whole vectors and, with
 * masked loads and stores, for the last few elements. Compilers must not reassociate or contract:
 * no -ffast-math, -ffp-contract=off.
 */

#include <string.h>

#include "kernels/cpu/quant/quant.h"
#include "kernels/cpu/product.h"

INLINE void convert_as(float *dst, const unsigned char *src, enum mp_wtype type, size_t count)
{
    size_t i = 0;

    for (; i + LANES <= count; i += LANES)
        v_store(dst + i, w_widen(src + i * type_bytes(type), type));
    if (i < count)
        v_store_n(dst + i, count - i, w_widen_n(src + i * type_bytes(type), type, count - i));
}

static void v_convert_f32(float *dst, const void *src, size_t count)
{
    convert_as(dst, src, MP_WTYPE_F32, count);
}

static void v_convert_bf16(float *dst, const void *src, size_t count)
{
    convert_as(dst, src, MP_WTYPE_BF16, count);
}

static void v_convert_f16(float *dst, const void *src, size_t count)
{
    convert_as(dst, src, MP_WTYPE_F16, count);
}

static void (*const convert_of[MP_WTYPE_COUNT])(float *dst, const void *src, size_t count) = {
    [MP_WTYPE_F32] = v_convert_f32,
    [MP_WTYPE_BF16] = v_convert_bf16,
    [MP_WTYPE_F16] = v_convert_f16,
};

static void v_convert(float *dst, const void *src, enum mp_wtype type, size_t count)
{
    if ((unsigned)type < MP_WTYPE_COUNT && convert_of[type] != NULL)
        convert_of[type](dst, src, count);
    else
        mp_wtype_info(type)->convert(dst, src, count);
}

/*
 * exp(x) within 2 units in the last place: x = n ln 2 + r with |r| <= ln 2 / 2, then the Taylor
 * polynomial of e^r, whose first omitted term r^8 / 8! is below 2^-27. ln 2 is split in two so that
 * n times its first part is exact. Beyond the bounds the result is 0 or infinity; min and max
 * are written so that NaN comes through.
 */
INLINE vec v_exp(vec x)
{
    vec n, r, e;

    x = v_min(v_set1(89.0f), v_max(v_set1(-105.0f), x));
    n = v_round(v_mul(x, v_set1(0x1.715476p+0f)));
    r = v_fnma(n, v_set1(0x1.62e4p-1f), x);
    r = v_fnma(n, v_set1(0x1.7f7d1cp-20f), r);
    e = v_set1(1.0f / 5040);
    e = v_fma(e, r, v_set1(1.0f / 720));
    e = v_fma(e, r, v_set1(1.0f / 120));
    e = v_fma(e, r, v_set1(1.0f / 24));
    e = v_fma(e, r, v_set1(1.0f / 6));
    e = v_fma(e, r, v_set1(0.5f));
    e = v_fma(e, r, v_set1(1.0f));
    e = v_fma(e, r, v_set1(1.0f));
    return v_scale(e, n);
}

static void v_rmsnorm(float *out, size_t out_stride, const float *x, size_t x_stride,
                      const float *w, size_t width, size_t tokens, float eps)
{
    size_t whole = width - width % LANES, rest = width % LANES;

    for (size_t t = 0; t < tokens; t++) {
        const float *from = x + t * x_stride;
        float *to = out + t * out_stride;
        vec squares = v_set1(0), scale;
        float sum;

        for (size_t i = 0; i < whole; i += LANES)
            squares = v_fma(v_load(from + i), v_load(from + i), squares);
        if (rest > 0) {
            vec a = v_load_n(from + whole, rest);

            squares = v_fma(a, a, squares);
        }
        sum = v_sum(squares);
        scale = v_set1(1 / sqrtf(sum / (float)width + eps) + (sum - sum)); /* inf - inf is NaN */
        for (size_t i = 0; i < whole; i += LANES)
            v_store(to + i, v_mul(v_mul(v_load(from + i), scale), v_load(w + i)));
        if (rest > 0)
            v_store_n(to + whole, rest,
                      v_mul(v_mul(v_load_n(from + whole, rest), scale), v_load_n(w + whole, rest)));
    }
}

/* (a, b) turned by the angle (c, s). */
INLINE void turn(vec *a, vec *b, vec c, vec s)
{
    vec old = *a;

    *a = v_fnma(*b, s, v_mul(old, c));
    *b = v_fma(old, s, v_mul(*b, c));
}

static void v_rope(float *head, const float *cosine, const float *sine, size_t dim)
{
    size_t half = dim / 2, i = 0;
    vec a, b;

    for (; i + LANES <= half; i += LANES) {
        a = v_load(head + i);
        b = v_load(head + half + i);
        turn(&a, &b, v_load(cosine + i), v_load(sine + i));
        v_store(head + i, a);
        v_store(head + half + i, b);
    }
    if (i < half) {
        a = v_load_n(head + i, half - i);
        b = v_load_n(head + half + i, half - i);
        turn(&a, &b, v_load_n(cosine + i, half - i), v_load_n(sine + i, half - i));
        v_store_n(head + i, half - i, a);
        v_store_n(head + half + i, half - i, b);
    }
}

INLINE vec silu(vec a)
{
    vec one = v_set1(1.0f);

    return v_div(a, v_add(one, v_exp(v_sub(v_set1(0), a))));
}

static void v_silu_mul(float *gate, const float *up, size_t count)
{
    size_t i = 0;

    for (; i + LANES <= count; i += LANES)
        v_store(gate + i, v_mul(silu(v_load(gate + i)), v_load(up + i)));
    if (i < count)
        v_store_n(gate + i, count - i,
                  v_mul(silu(v_load_n(gate + i, count - i)), v_load_n(up + i, count - i)));
}

/* x[i] becomes exp(x[i] - max); returns the sum. NaN is no maximum, but makes the sum NaN. */
static float exp_row(float *x, size_t width)
{
    size_t whole = width - width % LANES, rest = width % LANES;
    vec lowest = v_set1(-INFINITY), zero = v_set1(0), max = lowest, sum = zero, e;

    for (size_t i = 0; i < whole; i += LANES)
        max = v_max(v_load(x + i), max);
    if (rest > 0)
        max = v_max(v_keep_n(v_load_n(x + whole, rest), rest, lowest), max);
    max = v_set1(v_max_lane(max));
    for (size_t i = 0; i < whole; i += LANES) {
        e = v_exp(v_sub(v_load(x + i), max));
        v_store(x + i, e);
        sum = v_add(sum, e);
    }
    if (rest > 0) {
        e = v_exp(v_sub(v_load_n(x + whole, rest), max));
        v_store_n(x + whole, rest, e);
        sum = v_add(sum, v_keep_n(e, rest, zero));
    }
    return v_sum(sum);
}

static void v_softmax(float *x, size_t x_stride, size_t width, size_t tokens)
{
    for (size_t t = 0; t < tokens; t++) {
        float *row = x + t * x_stride;
        vec sum = v_set1(exp_row(row, width));
        size_t i = 0;

        for (; i + LANES <= width; i += LANES)
            v_store(row + i, v_div(v_load(row + i), sum));
        if (i < width)
            v_store_n(row + i, width - i, v_div(v_load_n(row + i, width - i), sum));
    }
}

/* A run of positions of heads that share values: out (heads, dim), weights (heads, all positions).
 */
struct mixture {
    float *out;
    const float *weights, *v;
    size_t weight_stride, kv_stride, dim, positions;
};

/*
 * out[h][i..i + n) += sum_p weights[h][p] * v[p][i..i + n) for `heads` heads and n = count * LANES,
 * or the first few lanes of one. Each sum is made position by position.
 */
TILE void mix(const struct mixture *m, size_t head, size_t i, int heads, int count, size_t lanes)
{
    const float *weights = m->weights + head * m->weight_stride;
    float *out = m->out + head * m->dim + i;
    vec acc[8];

    UNROLL
    for (int a = 0; a < heads * count; a++) {
        const float *from = out + (size_t)(a / count) * m->dim + (size_t)(a % count) * LANES;

        acc[a] = lanes == LANES ? v_load(from) : v_load_n(from, lanes);
    }
    for (size_t p = 0; p < m->positions; p++) {
        const float *from = m->v + p * m->kv_stride + i;
        vec value[8];

        UNROLL
        for (int j = 0; j < count; j++)
            value[j] = lanes == LANES ? v_load(from + j * LANES) : v_load_n(from, lanes);
        UNROLL
        for (int h = 0; h < heads; h++) {
            vec weight = v_set1(weights[(size_t)h * m->weight_stride + p]);

            UNROLL
            for (int j = 0; j < count; j++)
                acc[h * count + j] = v_fma(weight, value[j], acc[h * count + j]);
        }
    }
    UNROLL
    for (int a = 0; a < heads * count; a++) {
        float *to = out + (size_t)(a / count) * m->dim + (size_t)(a % count) * LANES;

        if (lanes == LANES)
            v_store(to, acc[a]);
        else
            v_store_n(to, lanes, acc[a]);
    }
}

/* All of `heads` heads: values are read once for them. */
TILE void mix_heads(const struct mixture *m, size_t head, int heads)
{
    const int count = 8 / heads;
    size_t i = 0;

    for (; i + (size_t)count * LANES <= m->dim; i += (size_t)count * LANES)
        mix(m, head, i, heads, count, LANES);
    for (; i + LANES <= m->dim; i += LANES)
        mix(m, head, i, heads, 1, LANES);
    if (i < m->dim)
        mix(m, head, i, heads, 1, m->dim - i);
}

static void divide(float *x, float by, size_t count)
{
    size_t i = 0;

    for (; i + LANES <= count; i += LANES)
        v_store(x + i, v_div(v_load(x + i), v_set1(by)));
    if (i < count)
        v_store_n(x + i, count - i, v_div(v_load_n(x + i, count - i), v_set1(by)));
}

#define HEADS_MAX 8

/* Keys and values of other types become floats for so many positions at a time. */
#define KV_FLOATS (8 * (size_t)MP_KERNEL_HEAD_MAX)

/* Rows of keys or values as floats. */
struct kv_rows {
    const float *row;
    size_t stride;
};

/* Positions that kv_rows() can give at once. */
static size_t kv_run(const struct mp_attention *a)
{
    return a->type == MP_WTYPE_F32 ? a->positions : KV_FLOATS / a->dim;
}

static struct kv_rows kv_rows(const struct mp_attention *a, const void *rows, size_t first,
                              size_t count, float *buffer)
{
    const unsigned char *p = rows;

    p += mp_wtype_bytes(a->type, first * a->kv_stride);
    if (a->type == MP_WTYPE_F32)
        return (struct kv_rows){ (const float *)(const void *)p, a->kv_stride };
    for (size_t i = 0; i < count; i++)
        v_convert(buffer + i * a->dim, p + mp_wtype_bytes(a->type, i * a->kv_stride), a->type,
                  a->dim);
    return (struct kv_rows){ buffer, a->dim };
}

/* Heads that share keys are to them as tokens are to weights: each key is read once. */
static void attend_some(const struct mp_attention *a, size_t head, size_t heads)
{
    float *scores = a->scores + head * a->positions, *out = a->out + head * a->dim;
    float sums[HEADS_MAX], buffer[KV_FLOATS];
    const size_t run = kv_run(a);

    for (size_t p = 0, count; p < a->positions; p += count) {
        struct kv_rows keys;

        count = min_size(run, a->positions - p);
        keys = kv_rows(a, a->k, p, count, buffer);
        v_matmul(scores + p, a->positions, keys.row, MP_WTYPE_F32, keys.stride,
                 a->q + head * a->dim, a->dim, count, a->dim, heads);
    }
    for (size_t i = 0; i < heads * a->positions; i++)
        scores[i] *= a->scale;
    for (size_t i = 0; i < heads; i++)
        sums[i] = exp_row(scores + i * a->positions, a->positions);
    memset(out, 0, heads * a->dim * sizeof(*out));
    for (size_t p = 0, count; p < a->positions; p += count) {
        struct kv_rows values;
        size_t h = 0;

        count = min_size(run, a->positions - p);
        values = kv_rows(a, a->v, p, count, buffer);
        const struct mixture m = { out,           scores + p, values.row, a->positions,
                                   values.stride, a->dim,     count };

        for (; h + 4 <= heads; h += 4)
            mix_heads(&m, h, 4);
        for (; h < heads; h++)
            mix_heads(&m, h, 1);
    }
    for (size_t h = 0; h < heads; h++)
        divide(out + h * a->dim, sums[h], a->dim);
}

static void v_attend(const struct mp_attention *a)
{
    if (a->positions == 0) {
        memset(a->out, 0, a->heads * a->dim * sizeof(*a->out));
        return;
    }
    for (size_t h = 0, count; h < a->heads; h += count) {
        count = min_size(a->heads - h, HEADS_MAX);
        attend_some(a, h, count);
    }
}

static void v_axpy(float *y, const float *x, float a, size_t count)
{
    size_t i = 0;

    for (; i + LANES <= count; i += LANES)
        v_store(y + i, v_fma(v_set1(a), v_load(x + i), v_load(y + i)));
    if (i < count)
        v_store_n(y + i, count - i,
                  v_fma(v_set1(a), v_load_n(x + i, count - i), v_load_n(y + i, count - i)));
}

extern const struct mp_kernels VECTOR_KERNELS;
const struct mp_kernels VECTOR_KERNELS = {
    .name = VECTOR_NAME,
    .math = BF16_PAIRS ? MP_MATH_NATIVE : MP_MATH_F32,
    .convert = v_convert,
    .matmul = v_matmul,
    .matmul_blocked = v_matmul_blocked,
    .rmsnorm = v_rmsnorm,
    .rope = v_rope,
    .silu_mul = v_silu_mul,
    .softmax = v_softmax,
    .attend = v_attend,
    .axpy = v_axpy,
};
