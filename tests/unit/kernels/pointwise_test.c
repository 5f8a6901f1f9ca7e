/*
 * Everything but the matrix products: values against double, the same bits at every position and
 * in every call, no access outside the operands.
 */
#include "tests/unit/kernels/common.h"

#define WIDEST 300
#define TYPED_FLOATS 40000

static const size_t widths[] = { 1,  2,  3,  7,  8,  9,   15,  16,  17,  31,  32,
                                 33, 63, 64, 65, 96, 100, 127, 128, 129, 257, WIDEST };

static double silu(double v)
{
    return v / (1 + exp(-v));
}

static void silu_mul_values_and_positions(const struct mp_kernels *k)
{
    for (size_t w = 0; w < LEN(widths); w++) {
        size_t n = widths[w];
        struct guarded gate = guarded_alloc(4 * n), up = guarded_alloc(4 * n);
        float *g = gate.p, *u = up.p, before[WIDEST], one;

        fill_random(g, n, 30);
        fill_random(u, n, 3);
        memcpy(before, g, 4 * n);
        k->silu_mul(g, u, n);
        for (size_t i = 0; i < n; i++) {
            CHECK(ulps(g[i], silu((double)before[i]) * (double)u[i]) <= 5);
            one = before[i];
            k->silu_mul(&one, &u[i], 1);
            CHECK(same(one, g[i]));
        }
        k->silu_mul(g, u, 0);
        CHECK(same(one, g[n - 1]));
        guarded_free(&gate);
        guarded_free(&up);
    }
}

static void silu_of_special_values(const struct mp_kernels *k)
{
    float v[] = { 0.0f, -0.0f, INFINITY, NAN, 100.0f, 3e38f, -1000.0f, -3e38f, 0x1p-149f, 1.0f };
    float ones[] = { 1, 1, 1, 1, 1, 1, 1, 1, 4, INFINITY };

    k->silu_mul(v, ones, LEN(v));
    CHECK(same(v[0], 0.0f) && same(v[1], -0.0f) && same(v[2], INFINITY) && isnan(v[3]));
    CHECK(same(v[4], 100.0f) && same(v[5], 3e38f) && same(v[6], -0.0f) && same(v[7], -0.0f));
    CHECK(v[8] >= 0 && v[8] <= 0x1p-147f && same(v[9], INFINITY));
}

/* softmax of {0, x} is exp(x) as long as 1 + exp(x) is 1: the exponential alone. */
static void exponential_within_two_ulps(const struct mp_kernels *k)
{
    double worst = 0;

    for (float x = -17.4f; x > -104; x -= 0x1.234567p-12f) {
        float row[2] = { 0, x };

        k->softmax(row, 2, 2, 1);
        CHECK(same(row[0], 1.0f));
        double off = ulps(row[1], exp((double)x));
        worst = off > worst ? off : worst;
    }
    for (float x = -17.4f; x < 17.4f; x += 0x1.234567p-14f) {
        float row[2] = { 0, x };
        double e = exp((double)x);

        k->softmax(row, 2, 2, 1);
        double off = ulps(row[1], e / (1 + e)) - 2; /* a sum and a division of its own */
        worst = off > worst ? off : worst;
    }
    fprintf(stderr, "    exponential: at most %.3f ulp\n", worst);
    CHECK(worst <= 2);
}

static void softmax_values_and_rows(const struct mp_kernels *k)
{
    for (size_t w = 0; w < LEN(widths); w++) {
        size_t n = widths[w], stride = n + 3;
        struct guarded mem = guarded_alloc(4 * (4 * stride + n));
        float *x = mem.p, before[5 * (WIDEST + 3)], alone[WIDEST + 16];

        fill_random(x, 4 * stride + n, 20);
        memcpy(before, x, mem.bytes);
        k->softmax(x, stride, n, 5);
        for (size_t t = 0; t < 5; t++) {
            double sum = 0, max = -INFINITY;
            const float *from = before + t * stride;

            for (size_t i = 0; i < n; i++)
                max = fmax(max, (double)from[i]);
            for (size_t i = 0; i < n; i++)
                sum += exp((double)from[i] - max);
            for (size_t i = 0; i < n; i++) {
                double want = exp((double)from[i] - max) / sum;

                CHECK(fabs((double)x[t * stride + i] - want) <= want * 1e-5);
            }
            if (t < 4) {
                for (size_t i = n; i < stride; i++)
                    CHECK(same(x[t * stride + i], from[i]));
            }
            memcpy(alone + t, from, 4 * n);
            k->softmax(alone + t, 1000, n, 1);
            CHECK(memcmp(alone + t, x + t * stride, 4 * n) == 0);
        }
        k->softmax(x, stride, n, 0);
        guarded_free(&mem);
    }
}

static void softmax_of_special_values(const struct mp_kernels *k)
{
    float one = -3e38f, ends[20], nan[20], big[3] = { 3e38f, 3e38f, -3e38f };

    k->softmax(&one, 1, 1, 1);
    CHECK(same(one, 1));
    k->softmax(big, 3, 3, 1);
    CHECK(same(big[0], 0.5f) && same(big[1], 0.5f) && same(big[2], 0));
    for (size_t at = 0; at < 20; at++) {
        for (size_t i = 0; i < 20; i++) {
            ends[i] = i == at ? 7.0f : -INFINITY;
            nan[i] = i == at ? NAN : 1.0f;
        }
        k->softmax(ends, 20, 20, 1);
        k->softmax(nan, 20, 20, 1);
        for (size_t i = 0; i < 20; i++)
            CHECK(same(ends[i], i == at ? 1.0f : 0.0f) && isnan(nan[i]));
    }
    k->softmax(NULL, 0, 0, 0);
}

static void rmsnorm_values_and_rows(const struct mp_kernels *k)
{
    float w[WIDEST], out[3 * WIDEST], shifted[WIDEST + 16];

    fill_random(w, WIDEST, 2);
    for (size_t j = 0; j < LEN(widths); j++) {
        size_t n = widths[j], stride = n + 1;
        struct guarded mem = guarded_alloc(4 * (2 * stride + n)), weights = guarded_alloc(4 * n);
        float *x = mem.p;

        fill_random(x, 2 * stride + n, 8);
        memcpy(weights.p, w, 4 * n);
        k->rmsnorm(out, n, x, stride, weights.p, n, 3, 1e-5f);
        for (size_t t = 0; t < 3; t++) {
            double sum = 0;

            for (size_t i = 0; i < n; i++)
                sum += (double)x[t * stride + i] * (double)x[t * stride + i];
            for (size_t i = 0; i < n; i++) {
                double want = (double)x[t * stride + i] * (double)w[i] /
                              sqrt(sum / (double)n + (double)1e-5f);

                CHECK(fabs((double)out[t * n + i] - want) <= fabs(want) * 1e-5);
            }
            memcpy(shifted + 2 * t + 1, x + t * stride, 4 * n);
            k->rmsnorm(shifted + 2 * t + 1, 1, shifted + 2 * t + 1, 1, w, n, 1, 1e-5f);
            CHECK(memcmp(shifted + 2 * t + 1, out + t * n, 4 * n) == 0);
        }
        k->rmsnorm(x, stride, x, stride, weights.p, n, 3, 1e-5f);
        for (size_t t = 0; t < 3; t++)
            CHECK(memcmp(x + t * stride, out + t * n, 4 * n) == 0);
        guarded_free(&mem);
        guarded_free(&weights);
    }
}

/* Rows whose mean square is eps, far below and far above it. */
static void rmsnorm_of_small_rows(const struct mp_kernels *k)
{
    static const float sizes[] = { 0x1p-8f, 0x1p-12f, 0x1p-4f, 0x1p-20f, 0 };
    const float eps = 0x1p-16f;
    float x[WIDEST], out[WIDEST], w[WIDEST];

    for (size_t i = 0; i < WIDEST; i++)
        w[i] = 1;
    for (size_t s = 0; s < LEN(sizes); s++) {
        const double size = (double)sizes[s], want = size / sqrt(size * size + (double)eps);

        for (size_t j = 0; j < LEN(widths); j++) {
            for (size_t i = 0; i < widths[j]; i++)
                x[i] = i % 2 == 0 ? sizes[s] : -sizes[s];
            k->rmsnorm(out, widths[j], x, widths[j], w, widths[j], 1, eps);
            for (size_t i = 0; i < widths[j]; i++)
                CHECK(fabs(fabs((double)out[i]) - want) <= want * 1e-6);
        }
    }
}

/* One damaged exponent is enough for a sum of squares beyond float: no zeros come out of it. */
static void rmsnorm_overflow(const struct mp_kernels *k)
{
    float x[2 * WIDEST], out[2 * WIDEST], w[WIDEST];

    for (size_t j = 0; j < LEN(widths); j++) {
        const size_t n = widths[j];

        for (size_t at = 0; at < n; at += n / 3 + 1) {
            for (size_t i = 0; i < n; i++) {
                x[i] = i == at ? 1e18f : 1.0f;
                x[n + i] = i == at ? -3e38f : 1.0f;
                w[i] = 1.0f;
            }
            k->rmsnorm(out, n, x, n, w, n, 2, 1e-5f);
            CHECK(fabs((double)out[at] - sqrt((double)n)) <= sqrt((double)n) * 1e-5);
            for (size_t i = 0; i < n; i++)
                CHECK(isfinite(out[i]) && isnan(out[n + i]));
        }
    }
}

static void rope_turns_pairs(const struct mp_kernels *k)
{
    for (size_t half = 0; half <= 70; half++) {
        struct guarded mem = guarded_alloc(8 * half), c_mem = guarded_alloc(4 * half);
        struct guarded s_mem = guarded_alloc(4 * half);
        float *head = mem.p, *c = c_mem.p, *s = s_mem.p, before[140];

        fill_random(head, 2 * half, 4);
        memcpy(before, head, 8 * half);
        for (size_t i = 0; i < half; i++) {
            c[i] = cosf((float)i);
            s[i] = sinf((float)i);
        }
        k->rope(head, c, s, 2 * half);
        for (size_t i = 0; i < half; i++) {
            double a = (double)before[i], b = (double)before[half + i];
            float pair[2] = { before[i], before[half + i] };

            CHECK(fabs((double)head[i] - (a * (double)c[i] - b * (double)s[i])) <= 1e-6);
            CHECK(fabs((double)head[half + i] - (b * (double)c[i] + a * (double)s[i])) <= 1e-6);
            k->rope(pair, &c[i], &s[i], 2);
            CHECK(same(pair[0], head[i]) && same(pair[1], head[half + i]));
        }
        guarded_free(&mem);
        guarded_free(&c_mem);
        guarded_free(&s_mem);
    }
}

static void axpy_values_and_positions(const struct mp_kernels *k)
{
    for (size_t n = 0; n <= 70; n++) {
        struct guarded x_mem = guarded_alloc(4 * n), y_mem = guarded_alloc(4 * n);
        float *x = x_mem.p, *y = y_mem.p, before[70];

        fill_random(x, n, 2);
        fill_random(y, n, 2);
        memcpy(before, y, 4 * n);
        k->axpy(y, x, 0.3f, n);
        for (size_t i = 0; i < n; i++) {
            double want = (double)before[i] + (double)0.3f * (double)x[i];

            CHECK(fabs((double)y[i] - want) <= 0x1p-23);
            k->axpy(&before[i], &x[i], 0.3f, 1);
            CHECK(same(before[i], y[i]));
        }
        guarded_free(&x_mem);
        guarded_free(&y_mem);
    }
}

static void check_head(const float *out, const float *q, const float *key, const float *v,
                       size_t stride, size_t dim, size_t positions, double scale)
{
    double weights[64], sum = 0;

    for (size_t p = 0; p < positions; p++) {
        double dot = 0;

        for (size_t i = 0; i < dim; i++)
            dot += (double)q[i] * (double)key[p * stride + i];
        weights[p] = exp(dot * scale);
        sum += weights[p];
    }
    for (size_t i = 0; i < dim; i++) {
        double want = 0;

        for (size_t p = 0; p < positions; p++)
            want += weights[p] / sum * (double)v[p * stride + i];
        CHECK(fabs((double)out[i] - want) <= 2e-5);
    }
    CHECK(same(out[0], out[dim - 1])); /* the same values, in a body and in a tail */
}

/* The scratch keeps exp(score - highest) of each position. */
static void check_scores(const float *scores, const float *q, const float *key, size_t stride,
                         size_t dim, size_t positions, double scale)
{
    double dots[64], highest = -INFINITY;

    for (size_t p = 0; p < positions; p++) {
        dots[p] = 0;
        for (size_t i = 0; i < dim; i++)
            dots[p] += (double)q[i] * (double)key[p * stride + i] * scale;
        highest = dots[p] > highest ? dots[p] : highest;
    }
    for (size_t p = 0; p < positions; p++)
        CHECK(fabs((double)scores[p] - exp(dots[p] - highest)) <= 2e-5);
}

static void check_attend(const struct mp_kernels *k, size_t heads, size_t dim, size_t positions)
{
    size_t stride = dim + 5, count = (positions - 1) * stride + dim;
    struct guarded k_mem = guarded_alloc(4 * count), v_mem = guarded_alloc(4 * count);
    struct guarded q_mem = guarded_alloc(4 * heads * dim);
    struct guarded out_mem = guarded_alloc(4 * heads * dim);
    struct guarded scores = guarded_alloc(4 * heads * positions);
    float *q = q_mem.p, *key = k_mem.p, *v = v_mem.p, *out = out_mem.p, again[WIDEST];
    double scale = 1 / sqrt((double)dim);

    memset(key, 0xFF, k_mem.bytes); /* NaN between the rows */
    memset(v, 0xFF, v_mem.bytes);
    fill_random(q, heads * dim, 3);
    for (size_t p = 0; p < positions; p++) {
        fill_random(key + p * stride, dim, 3);
        fill_random(v + p * stride, dim, 1);
        v[p * stride + dim - 1] = v[p * stride];
    }
    const struct mp_attention all = {
        .out = out,
        .q = q,
        .k = key,
        .v = v,
        .kv_stride = stride,
        .heads = heads,
        .dim = dim,
        .positions = positions,
        .scale = (float)scale,
        .scores = scores.p,
    };

    k->attend(&all);
    for (size_t h = 0; h < heads; h++)
        check_scores((const float *)scores.p + h * positions, q + h * dim, key, stride, dim,
                     positions, scale);
    for (size_t h = 0; h < heads; h++) {
        check_head(out + h * dim, q + h * dim, key, v, stride, dim, positions, scale);
        /* alone and elsewhere: the same bits */
        struct mp_attention one = all;

        one.out = again + positions % 8;
        one.q = q + h * dim;
        one.heads = 1;
        k->attend(&one);
        CHECK(memcmp(again + positions % 8, out + h * dim, 4 * dim) == 0);
    }
    guarded_free(&k_mem);
    guarded_free(&v_mem);
    guarded_free(&q_mem);
    guarded_free(&out_mem);
    guarded_free(&scores);
}

static void attend_mixes_positions(const struct mp_kernels *k)
{
    static const size_t dims[] = { 1, 2, 3, 8, 15, 16, 33, 64, 100, 128, 130, 140 };
    float out[2 * 20], none[2 * 20] = { 0 };
    const struct mp_attention nothing = { .out = out,
                                          .q = none,
                                          .k = none,
                                          .v = none,
                                          .heads = 2,
                                          .dim = 20,
                                          .scale = 1,
                                          .scores = none };

    for (size_t d = 0; d < LEN(dims); d++) {
        for (size_t p = 1; p <= 40; p++)
            check_attend(k, 1 + (p + d) % 9, dims[d], p);
    }
    memset(out, 0xFF, sizeof(out));
    k->attend(&nothing);
    for (size_t i = 0; i < LEN(out); i++)
        CHECK(same(out[i], 0));
}

/* Rows of keys, or values, of a type, NaN between them, and the floats that they stand for. */
static void fill_rows(enum mp_wtype type, unsigned char *rows, float *floats, size_t dim,
                      size_t stride, size_t positions)
{
    float row[MP_KERNEL_HEAD_MAX];

    memset(rows, 0xFF, mp_wtype_bytes(type, positions * stride));
    for (size_t p = 0; p < positions; p++) {
        unsigned char *to = rows + mp_wtype_bytes(type, p * stride);

        fill_random(row, dim, 3);
        mp_kernels_store(type, to, row, dim);
        mp_wtype_info(type)->convert(floats + p * dim, to, dim);
    }
}

/* The same bits as with the floats, also where several runs of positions are converted. */
static void check_typed(const struct mp_kernels *k, enum mp_wtype type, size_t heads, size_t dim,
                        size_t positions)
{
    static float key[TYPED_FLOATS], v[TYPED_FLOATS], q[9 * 1024], want[9 * 1024], out[9 * 1024];
    static float want_scores[9 * 300], scores[9 * 300];
    static unsigned char keys[1 + 2 * TYPED_FLOATS], values[1 + 2 * TYPED_FLOATS];
    const size_t stride = dim + 32;
    struct mp_attention a = {
        .out = want,
        .q = q,
        .k = key,
        .v = v,
        .kv_stride = dim,
        .heads = heads,
        .dim = dim,
        .positions = positions,
        .scale = 0.2f,
        .scores = want_scores,
    };

    CHECK(positions * stride <= TYPED_FLOATS);
    fill_random(q, heads * dim, 3);
    fill_rows(type, keys + 1, key, dim, stride, positions);
    fill_rows(type, values + 1, v, dim, stride, positions);
    k->attend(&a);
    a.out = out;
    a.k = keys + 1;
    a.v = values + 1;
    a.type = type;
    a.kv_stride = stride;
    a.scores = scores;
    k->attend(&a);
    CHECK(memcmp(out, want, heads * dim * sizeof(*out)) == 0);
    CHECK(memcmp(scores, want_scores, heads * positions * sizeof(*scores)) == 0);
}

static void attend_takes_types(const struct mp_kernels *k)
{
    static const enum mp_wtype types[] = { MP_WTYPE_F16, MP_WTYPE_BF16, MP_WTYPE_Q8_0 };

    for (size_t i = 0; i < LEN(types); i++) {
        for (size_t dim = 32; dim <= 1024; dim *= 2) {
            for (size_t positions = 1; positions <= (dim < 128 ? 300 : 30); positions += 7)
                check_typed(k, types[i], 1 + positions % 9, dim, positions);
        }
    }
    check_typed(k, MP_WTYPE_F16, 3, 37, 200);
    check_typed(k, MP_WTYPE_BF16, 5, 3, 200);
}

int main(void)
{
    each_kernels("silu_mul_values_and_positions", silu_mul_values_and_positions);
    each_kernels("silu_of_special_values", silu_of_special_values);
    each_kernels("exponential_within_two_ulps", exponential_within_two_ulps);
    each_kernels("softmax_values_and_rows", softmax_values_and_rows);
    each_kernels("softmax_of_special_values", softmax_of_special_values);
    each_kernels("rmsnorm_values_and_rows", rmsnorm_values_and_rows);
    each_kernels("rmsnorm_of_small_rows", rmsnorm_of_small_rows);
    each_kernels("rmsnorm_overflow", rmsnorm_overflow);
    each_kernels("rope_turns_pairs", rope_turns_pairs);
    each_kernels("axpy_values_and_positions", axpy_values_and_positions);
    each_kernels("attend_mixes_positions", attend_mixes_positions);
    each_kernels("attend_takes_types", attend_takes_types);
    return 0;
}
