/*
 * The kernels on the device that is there against kernels/cpu/ref.c, which sums in double: over odd
 * shapes, all types of weights, 1 to 67 tokens. The same kernels run in the tests on the CPU; here
 * they run as the driver compiled them for this device.
 *
 * Usage: check_kernels [ORDINAL] [--few]. One line per kernel, then "N cases, M wrong".
 * 0: none is wrong; 1; 77: there is no driver.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/gpu/gpu.h"
#include "engine/forward/sampler.h"
#include "kernels/cpu/kernels.h"
#include "vmm/base/error.h"

/* Relative to the largest magnitude of the reference. */
#define TOLERANCE 2e-5
#define BUFFERS 16

static const struct mp_kernels *const ref = &mp_kernels_ref;

struct check {
    struct mp_gpu *gpu;
    mp_cu_stream stream;
    mp_cu_ptr buffer[BUFFERS]; /* of the case in work */
    unsigned buffers;
    uint64_t random;
    unsigned cases, wrong;
    double worst; /* of the kernel in work */
    bool failed;  /* of the case in work: a call failed */
};

static float random_float(struct check *c)
{
    c->random = c->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (float)((double)(c->random >> 33) / (double)(UINT64_C(1) << 31) * 2 - 1);
}

static float *floats(struct check *c, size_t count)
{
    float *x = malloc((count > 0 ? count : 1) * sizeof(float));

    for (size_t i = 0; x != NULL && i < count; i++)
        x[i] = random_float(c);
    if (x == NULL)
        exit(1);
    return x;
}

/* Weights in [-1/4, 1/4]: bits that are a finite number in every type. */
static void *weights(struct check *c, enum mp_wtype type, size_t count)
{
    float *x = floats(c, count);
    uint16_t *half = (uint16_t *)x;

    for (size_t i = 0; i < count; i++) {
        uint32_t bits;

        x[i] *= 0.25f;
        memcpy(&bits, &x[i], sizeof(bits));
        if (type == MP_WTYPE_BF16)
            half[i] = (uint16_t)(bits >> 16);
        else if (type == MP_WTYPE_F16) /* truncated; tiny ones become zero */
            half[i] = (uint16_t)((bits >> 16 & 0x8000) |
                                 ((bits >> 23 & 255) < 113
                                      ? 0
                                      : ((bits >> 23 & 255) - 112) << 10 | (bits >> 13 & 0x3ff)));
    }
    return x;
}

static void must(struct check *c, enum mp_status status)
{
    if (status != MP_OK && !c->failed) {
        printf("  failed: %s\n", mp_error_last()->text);
        c->failed = true;
    }
}

/* Device memory for the case, with these contents; NULL: zeros. */
static mp_cu_ptr put(struct check *c, const void *data, size_t bytes)
{
    mp_cu_ptr *to = &c->buffer[c->buffers];
    void *staged = NULL;

    must(c, mp_gpu_alloc(c->gpu, bytes > 0 ? bytes : 1, "a case", to));
    if (c->failed)
        return 0;
    c->buffers++;
    if (data == NULL)
        return *to;
    must(c, mp_gpu_alloc_host(c->gpu, bytes, "a case", &staged));
    if (!c->failed) {
        memcpy(staged, data, bytes);
        must(c, mp_gpu_upload(c->gpu, c->stream, *to, staged, bytes));
        must(c, mp_gpu_finish(c->gpu, c->stream));
    }
    mp_gpu_free_host(c->gpu, staged);
    return *to;
}

static void get(struct check *c, void *out, mp_cu_ptr from, size_t bytes)
{
    void *staged = NULL;

    memset(out, 0xff, bytes); /* NaN */
    must(c, mp_gpu_alloc_host(c->gpu, bytes, "a case", &staged));
    if (!c->failed) {
        must(c, mp_gpu_download(c->gpu, c->stream, staged, from, bytes));
        must(c, mp_gpu_finish(c->gpu, c->stream));
        memcpy(out, staged, bytes);
    }
    mp_gpu_free_host(c->gpu, staged);
}

static void launch(struct check *c, enum mp_cuda_kernel kernel, const void *params)
{
    if (!c->failed)
        must(c, mp_gpu_launch(c->gpu, c->stream, kernel, params));
}

/* The end of a case: got against want; frees both and the case's device memory. */
static void compare(struct check *c, const char *what, float *got, float *want, size_t count)
{
    double largest = 1e-30, error = 0;

    for (size_t i = 0; i < count; i++)
        largest = fabs((double)want[i]) > largest ? fabs((double)want[i]) : largest;
    for (size_t i = 0; i < count; i++) {
        const double off = fabs((double)got[i] - (double)want[i]) / largest;

        error = off > error || isnan(off) ? off : error;
    }
    c->cases++;
    c->worst = error > c->worst || isnan(error) ? error : c->worst;
    if (c->failed || !(error <= TOLERANCE)) {
        c->wrong++;
        printf("  WRONG %s: off by %.3g of the largest\n", what, error);
    }
    free(got);
    free(want);
    while (c->buffers > 0)
        mp_gpu_free(c->gpu, c->buffer[--c->buffers]);
    c->failed = false;
}

static void report(struct check *c, const char *kernel)
{
    printf("%-12s largest error %.3g\n", kernel, c->worst);
    fflush(stdout);
    c->worst = 0;
}

static void check_matmul(struct check *c, enum mp_wtype type, bool gemm, uint32_t rows,
                         uint32_t cols, uint32_t tokens)
{
    const uint32_t stride = cols + 3;
    void *w = weights(c, type, (size_t)rows * cols);
    float *x = floats(c, (size_t)tokens * stride), *bias = floats(c, rows);
    float *want = floats(c, (size_t)tokens * rows), *got = floats(c, (size_t)tokens * rows);
    struct mp_cuda_matmul p = { .type = type,
                                .rows = rows,
                                .cols = cols,
                                .tokens = tokens,
                                .w_stride = cols,
                                .x_stride = stride,
                                .y_stride = rows };
    char what[96];

    ref->matmul(want, rows, w, type, cols, x, stride, rows, cols, tokens);
    for (size_t i = 0; i < (size_t)tokens * rows; i++)
        want[i] += bias[i % rows];
    p.w = put(c, w, (size_t)rows * cols * mp_wtype_bytes(type));
    p.x = put(c, x, (size_t)tokens * stride * sizeof(float));
    p.bias = put(c, bias, rows * sizeof(float));
    p.y = put(c, NULL, (size_t)tokens * rows * sizeof(float));
    launch(c, (gemm ? MP_CUDA_KERNEL_gemm_f32 : MP_CUDA_KERNEL_gemv_f32) + type, &p);
    get(c, got, p.y, (size_t)tokens * rows * sizeof(float));
    snprintf(what, sizeof(what), "%s %s %u x %u, %u tokens", gemm ? "gemm" : "gemv",
             mp_wtype_name(type), rows, cols, tokens);
    compare(c, what, got, want, (size_t)tokens * rows);
    free(w);
    free(x);
    free(bias);
}

static void matmuls(struct check *c, bool few)
{
    static const uint32_t sizes[][2] = { { 1, 1 },    { 7, 33 },   { 33, 257 },
                                         { 255, 31 }, { 64, 768 }, { 257, 2048 } };
    static const uint32_t tokens[] = { 1, 2, 5, 8, 9, 67 };

    for (unsigned gemm = 0; gemm < 2; gemm++) {
        for (unsigned type = 0; type < MP_WTYPE_COUNT; type++) {
            for (size_t i = few ? 4 : 0; i < (few ? 5 : MP_ARRAY_LEN(sizes)); i++) {
                for (size_t t = 0; t < MP_ARRAY_LEN(tokens); t++) {
                    if (gemm || tokens[t] <= 8)
                        check_matmul(c, type, gemm, sizes[i][0], sizes[i][1], tokens[t]);
                }
            }
        }
        report(c, gemm ? "gemm" : "gemv");
    }
}

static void check_rows(struct check *c, uint32_t width, uint32_t tokens)
{
    float *x = floats(c, (size_t)tokens * width), *w = floats(c, width);
    float *want = floats(c, (size_t)tokens * width), *got = floats(c, (size_t)tokens * width);
    const size_t bytes = (size_t)tokens * width * sizeof(float);
    struct mp_cuda_rmsnorm norm = {
        .width = width, .tokens = tokens, .x_stride = width, .out_stride = width, .eps = 1e-6f
    };
    struct mp_cuda_softmax soft = { .width = width, .tokens = tokens, .stride = width };
    char what[96];

    ref->rmsnorm(want, width, x, width, w, width, tokens, norm.eps);
    norm.x = put(c, x, bytes);
    norm.w = put(c, w, width * sizeof(float));
    norm.out = put(c, NULL, bytes);
    launch(c, MP_CUDA_KERNEL_rmsnorm, &norm);
    get(c, got, norm.out, bytes);
    snprintf(what, sizeof(what), "rmsnorm of %u, %u tokens", width, tokens);
    compare(c, what, got, want, (size_t)tokens * width);

    got = floats(c, (size_t)tokens * width);
    want = floats(c, (size_t)tokens * width);
    memcpy(want, x, bytes);
    ref->softmax(want, width, width, tokens);
    soft.x = put(c, x, bytes);
    launch(c, MP_CUDA_KERNEL_softmax, &soft);
    get(c, got, soft.x, bytes);
    snprintf(what, sizeof(what), "softmax of %u, %u tokens", width, tokens);
    compare(c, what, got, want, (size_t)tokens * width);
    free(x);
    free(w);
}

static void elementwise(struct check *c)
{
    const size_t width = 257, tokens = 5, count = width * tokens, bytes = count * sizeof(float);
    float *x = floats(c, count), *y = floats(c, count), *gate = floats(c, tokens);
    float *want = floats(c, count), *got = floats(c, count);
    struct mp_cuda_axpy add = { .count = count, .width = (uint32_t)width, .a = 0.75f };
    struct mp_cuda_silu_mul silu = { .count = count };

    memcpy(want, y, bytes);
    for (size_t i = 0; i < count; i++)
        want[i] += (float)(1 / (1 + exp(-(double)gate[i / width]))) * x[i];
    add.x = put(c, x, bytes);
    add.y = put(c, y, bytes);
    add.gate = put(c, gate, tokens * sizeof(float));
    launch(c, MP_CUDA_KERNEL_axpy, &add);
    get(c, got, add.y, bytes);
    compare(c, "axpy with a gate", got, want, count);

    got = floats(c, count);
    want = floats(c, count);
    memcpy(want, x, bytes);
    ref->silu_mul(want, y, count);
    silu.gate = put(c, x, bytes);
    silu.up = put(c, y, bytes);
    launch(c, MP_CUDA_KERNEL_silu_mul, &silu);
    get(c, got, silu.gate, bytes);
    compare(c, "silu_mul", got, want, count);
    free(x);
    free(y);
    free(gate);
}

/* place and attend of one token at the end of a sequence whose cache is filled with noise. */
static void check_attention(struct check *c, uint32_t heads, uint32_t kv_heads, uint32_t dim,
                            uint32_t at, bool parts)
{
    const uint32_t ctx = at + 2, Q = heads * dim, K = kv_heads * dim;
    float *q = floats(c, Q), *k = floats(c, K), *v = floats(c, K), *norm = floats(c, dim);
    float *cosine = floats(c, (size_t)ctx * dim / 2), *sine = floats(c, (size_t)ctx * dim / 2);
    float *keys = floats(c, (size_t)ctx * K), *values = floats(c, (size_t)ctx * K);
    float *want = floats(c, Q), *got = floats(c, Q), *scores = floats(c, ctx);
    const uint32_t zero = 0;
    const float scale = 1 / sqrtf((float)dim), eps = 1e-6f;
    struct mp_cuda_place place = {
        .heads = heads, .kv_heads = kv_heads, .head_dim = dim, .tokens = 1, .ctx = ctx, .eps = eps
    };
    struct mp_cuda_attend attend = { .heads = heads,
                                     .kv_heads = kv_heads,
                                     .head_dim = dim,
                                     .tokens = 1,
                                     .ctx = ctx,
                                     .scale = scale };
    char what[96];

    place.q = attend.q = put(c, q, Q * sizeof(float));
    place.k = put(c, k, K * sizeof(float));
    place.v = put(c, v, K * sizeof(float));
    place.q_norm = place.k_norm = put(c, norm, dim * sizeof(float));
    place.cosine = put(c, cosine, (size_t)ctx * dim / 2 * sizeof(float));
    place.sine = put(c, sine, (size_t)ctx * dim / 2 * sizeof(float));
    place.k_cache = attend.k_cache = put(c, keys, (size_t)ctx * K * sizeof(float));
    place.v_cache = attend.v_cache = put(c, values, (size_t)ctx * K * sizeof(float));
    place.sequence = attend.sequence = put(c, &zero, sizeof(zero));
    place.position = attend.position = put(c, &at, sizeof(at));
    attend.out = put(c, NULL, Q * sizeof(float));
    attend.part = parts ? put(c, NULL, mp_cuda_attend_part_bytes(&attend)) : 0;
    launch(c, MP_CUDA_KERNEL_place, &place);
    launch(c, parts ? MP_CUDA_KERNEL_attend_part : MP_CUDA_KERNEL_attend, &attend);
    if (parts)
        launch(c, MP_CUDA_KERNEL_attend_merge, &attend);
    get(c, got, attend.out, Q * sizeof(float));

    ref->rmsnorm(q, dim, q, dim, norm, dim, heads, eps);
    ref->rmsnorm(k, dim, k, dim, norm, dim, kv_heads, eps);
    for (uint32_t h = 0; h < heads; h++)
        ref->rope(q + h * dim, cosine + at * (dim / 2), sine + at * (dim / 2), dim);
    for (uint32_t h = 0; h < kv_heads; h++)
        ref->rope(k + h * dim, cosine + at * (dim / 2), sine + at * (dim / 2), dim);
    memcpy(keys + (size_t)at * K, k, K * sizeof(float));
    memcpy(values + (size_t)at * K, v, K * sizeof(float));
    for (uint32_t h = 0; h < heads; h++) {
        const size_t kv = (size_t)(h / (heads / kv_heads)) * dim;

        ref->attend(want + h * dim, q + h * dim, keys + kv, values + kv, K, 1, dim, at + 1, scale,
                    scores);
    }
    snprintf(what, sizeof(what), "attention%s, %u / %u heads of %u, %u positions",
             parts ? " in parts" : "", heads, kv_heads, dim, at + 1);
    compare(c, what, got, want, Q);
    float *const all[] = { q, k, v, norm, cosine, sine, keys, values, scores };
    for (size_t i = 0; i < MP_ARRAY_LEN(all); i++)
        free(all[i]);
}

/* Two experts, one token, combined; the second expert also gets other tokens if there are. */
static void check_experts(struct check *c, enum mp_wtype type, uint32_t hidden, uint32_t channels,
                          uint32_t tokens)
{
    const uint32_t R = 2, rows = tokens * R;
    const size_t matrix = (size_t)hidden * channels, size = mp_wtype_bytes(type);
    char *w = weights(c, type, 2 * 3 * matrix);
    float *x = floats(c, (size_t)tokens * hidden), *weight = floats(c, rows);
    float *want = floats(c, (size_t)tokens * hidden), *got = floats(c, (size_t)tokens * hidden);
    float *act = floats(c, channels), *up = floats(c, channels), *y = floats(c, hidden);
    uint32_t *row = malloc(rows * sizeof(uint32_t));
    struct mp_cuda_expert work[2];
    struct mp_cuda_experts p = { .type = type,
                                 .works = 2,
                                 .hidden = hidden,
                                 .channels = channels,
                                 .top_k = R,
                                 .x_stride = hidden,
                                 .rows_max = tokens };
    struct mp_cuda_combine sum = { .hidden = hidden, .top_k = R, .tokens = tokens, .normalise = 1 };
    const mp_cu_ptr base = put(c, w, 2 * 3 * matrix * size);
    char what[96];

    if (row == NULL)
        exit(1);
    for (uint32_t i = 0; i < rows; i++) {
        row[i] = i % tokens * R + i / tokens; /* expert e is every token's rank e */
        weight[i] = 0.1f + fabsf(weight[i]);
    }
    for (uint32_t e = 0; e < 2; e++)
        work[e] = (struct mp_cuda_expert){ .gate = base + e * 3 * matrix * size,
                                           .up = base + (e * 3 + 1) * matrix * size,
                                           .down = base + (e * 3 + 2) * matrix * size,
                                           .first = e * tokens,
                                           .count = tokens,
                                           .channels = channels };
    p.work = put(c, work, sizeof(work));
    p.row = put(c, row, rows * sizeof(uint32_t));
    p.x = sum.x = put(c, x, (size_t)tokens * hidden * sizeof(float));
    p.act = put(c, NULL, (size_t)rows * channels * sizeof(float));
    p.rank = sum.rank = put(c, NULL, (size_t)rows * hidden * sizeof(float));
    sum.weight = put(c, weight, rows * sizeof(float));
    launch(c, MP_CUDA_KERNEL_experts_up_f32 + type, &p);
    launch(c, MP_CUDA_KERNEL_experts_down_f32 + type, &p);
    launch(c, MP_CUDA_KERNEL_combine, &sum);
    get(c, got, sum.x, (size_t)tokens * hidden * sizeof(float));

    memcpy(want, x, (size_t)tokens * hidden * sizeof(float));
    for (uint32_t t = 0; t < tokens; t++) {
        const float total = weight[t * R] + weight[t * R + 1];

        for (uint32_t e = 0; e < 2; e++) {
            const char *m = w + e * 3 * matrix * size;

            ref->matmul(act, channels, m, type, hidden, x + t * hidden, hidden, channels, hidden,
                        1);
            ref->matmul(up, channels, m + matrix * size, type, hidden, x + t * hidden, hidden,
                        channels, hidden, 1);
            ref->silu_mul(act, up, channels);
            ref->matmul_blocked(y, hidden, m + 2 * matrix * size, type, channels, act, channels,
                                hidden, channels, 1, 0);
            ref->axpy(want + t * hidden, y, weight[t * R + e] / total, hidden);
        }
    }
    snprintf(what, sizeof(what), "experts %s %u x %u, %u tokens", mp_wtype_name(type), hidden,
             channels, tokens);
    compare(c, what, got, want, (size_t)tokens * hidden);
    float *const all[] = { (float *)w, x, weight, act, up, y, (float *)row };
    for (size_t i = 0; i < MP_ARRAY_LEN(all); i++)
        free(all[i]);
}

static void experts(struct check *c, bool few)
{
    static const uint32_t sizes[][2] = { { 32, 32 }, { 33, 257 }, { 256, 768 } };
    static const uint32_t tokens[] = { 1, 3, 8, 9, 40 };

    for (unsigned type = 0; type < MP_WTYPE_COUNT; type++) {
        for (size_t i = 0; i < (few ? 1 : MP_ARRAY_LEN(sizes)); i++) {
            for (size_t t = 0; t < MP_ARRAY_LEN(tokens); t++)
                check_experts(c, type, sizes[i][0], sizes[i][1], tokens[t]);
        }
    }
    report(c, "experts");
}

/* The k best, with ties, and the first greatest: numbers, compared as floats. */
static void choices(struct check *c)
{
    const uint32_t experts = 61, k = 6, tokens = 3;
    float *scores = floats(c, tokens * experts);
    float *want = floats(c, tokens * k), *got = floats(c, tokens * k);
    uint32_t chosen[18], best[3];
    struct mp_cuda_top_k top = { .experts = experts, .top_k = k, .tokens = tokens };
    struct mp_cuda_argmax argmax = { .vocab = experts, .tokens = tokens };

    for (uint32_t i = 0; i < tokens * experts; i++)
        scores[i] = floorf(scores[i] * 8) / 8; /* many are equal */
    for (uint32_t t = 0; t < tokens; t++) {
        bool taken[61] = { false };

        for (uint32_t r = 0; r < k; r++) {
            uint32_t at = UINT32_MAX;

            for (uint32_t e = 0; e < experts; e++) {
                if (!taken[e] &&
                    (at == UINT32_MAX || scores[t * experts + e] > scores[t * experts + at]))
                    at = e;
            }
            taken[at] = true;
            want[t * k + r] = (float)at;
        }
    }
    top.scores = argmax.logits = put(c, scores, tokens * experts * sizeof(float));
    top.expert = put(c, NULL, sizeof(chosen));
    top.weight = put(c, NULL, tokens * k * sizeof(float));
    argmax.token = put(c, NULL, sizeof(best));
    launch(c, MP_CUDA_KERNEL_top_k, &top);
    launch(c, MP_CUDA_KERNEL_argmax, &argmax);
    get(c, chosen, top.expert, sizeof(chosen));
    get(c, best, argmax.token, sizeof(best));
    for (uint32_t i = 0; i < tokens * k; i++)
        got[i] = i % k == 0 && best[i / k] != chosen[i] ? -1 : (float)chosen[i];
    compare(c, "top_k and argmax", got, want, tokens * k);
    free(scores);
    report(c, "top_k");
}

/* Tokens drawn by chance against the host's sampler, with the same random numbers. */
static void draws(struct check *c)
{
    const struct mp_sampling ways[] = { { 0, 0, 1, 1 }, { 1, 0, 1, 2 }, { 0.7, 20, 0.9, 3 } };
    const uint32_t vocab = 1999, tokens = 5;

    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        float *logits = floats(c, vocab * tokens), *want = floats(c, tokens);
        float *got = floats(c, tokens);
        struct mp_cuda_sample sample = {
            .top_p = (uint64_t)(ways[i].top_p * 0x1p32),
            .vocab = vocab,
            .tokens = tokens,
            .top_k = ways[i].top_k,
            .temperature = (float)ways[i].temperature,
        };
        uint32_t uniform[5], token[5];
        struct mp_sampler *picks, *draws;

        must(c, mp_sampler_create(&ways[i], vocab, tokens, &picks));
        must(c, mp_sampler_create(&ways[i], vocab, tokens, &draws));
        if (c->failed)
            exit(1); /* out of memory */
        for (uint32_t t = 0; t < tokens; t++) {
            must(c, mp_sampler_pick(picks, t, logits + t * vocab, &token[t]));
            uniform[t] = mp_sampler_draw(draws, t);
            want[t] = (float)token[t];
        }
        sample.logits = put(c, logits, vocab * tokens * sizeof(float));
        sample.uniform = put(c, uniform, sizeof(uniform));
        sample.token = put(c, NULL, sizeof(token));
        launch(c, MP_CUDA_KERNEL_sample, &sample);
        get(c, token, sample.token, sizeof(token));
        for (uint32_t t = 0; t < tokens; t++)
            got[t] = (float)token[t];
        compare(c, "sample", got, want, tokens);
        free(logits);
        mp_sampler_destroy(picks);
        mp_sampler_destroy(draws);
    }
    report(c, "sample");
}

int main(int argc, char **argv)
{
    const bool few = argc > 2 && !strcmp(argv[2], "--few");
    struct check c = { .random = 1 };
    enum mp_status status =
        mp_gpu_open(argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 0, &c.gpu);

    if (status == MP_OK)
        status = mp_gpu_stream_open(c.gpu, &c.stream);
    if (status != MP_OK) {
        fprintf(stderr, "check_kernels: %s\n", mp_error_last()->text);
        mp_gpu_close(c.gpu);
        return status == MP_ERR_UNSUPPORTED ? 77 : 1;
    }
    matmuls(&c, few);
    for (uint32_t width = 1; width < 3000; width = width * 3 + 1)
        check_rows(&c, width, 5);
    report(&c, "rows");
    elementwise(&c);
    report(&c, "elementwise");
    for (unsigned parts = 0; parts < 2; parts++) {
        check_attention(&c, 4, 4, 32, 0, parts);
        check_attention(&c, 6, 2, 64, 40, parts);
        check_attention(&c, 8, 2, 128, 300, parts);
    }
    report(&c, "attention");
    experts(&c, few);
    choices(&c);
    draws(&c);
    mp_gpu_stream_close(c.gpu, c.stream);
    mp_gpu_close(c.gpu);
    printf("%u cases, %u wrong\n", c.cases, c.wrong);
    return c.wrong > 0;
}
