/*
 * The kernels of a layer that are no products, run on the CPU: embedding, norms, positions,
 * attention, softmax, activation, sums.
 */
#include "tests/unit/kernels/cuda/cuda_run.h"

static const uint32_t widths[] = { 1, 7, 31, 33, 64, 255, 256, 257, 1000 };

static void embedding(void)
{
    for (int type = 0; type < MP_WTYPE_PLAIN_COUNT; type++) {
        for (size_t j = 0; j < LEN(widths); j++) {
            const uint32_t width = widths[j], vocab = 9, tokens = 5;
            const void *table = weights((enum mp_wtype)type, (size_t)vocab * width);
            float *wide = widen(table, (enum mp_wtype)type, (size_t)vocab * width);
            uint32_t *token = operand(tokens * sizeof(*token));
            float *x = operand(tokens * width * sizeof(*x));
            const struct mp_cuda_embed p = { at(table), at(token), at(x), (uint32_t)type,
                                             width,     tokens,    vocab };

            for (uint32_t t = 0; t < tokens; t++)
                token[t] = t * 7 % 10; /* 7 and 9: the last of them is no token */
            token[4] = 9;
            launch(MP_CUDA_KERNEL_embed, &p);
            for (uint32_t t = 0; t < 4; t++)
                CHECK(memcmp(x + t * width, wide + token[t] * width, width * sizeof(*x)) == 0);
            CHECK_EQ(float_bits(x[4 * width]), 0xA5A5A5A5u);
            free(wide);
            free_operands();
        }
    }
}

static void rmsnorm(void)
{
    for (size_t j = 0; j < LEN(widths); j++) {
        const uint32_t n = widths[j], stride = n + 3, tokens = 4;
        float *x = floats(3 * stride + n), *w = floats(n),
              *out = operand(tokens * n * sizeof(*out));
        float *alone = operand(n * sizeof(*alone));
        struct mp_cuda_rmsnorm p = { at(x), at(w), at(out), n, tokens, stride, n, 1e-5f, 0 };

        launch(MP_CUDA_KERNEL_rmsnorm, &p);
        for (uint32_t t = 0; t < tokens; t++) {
            double sum = 0;

            for (uint32_t i = 0; i < n; i++)
                sum += (double)x[t * stride + i] * (double)x[t * stride + i];
            for (uint32_t i = 0; i < n; i++) {
                const double want =
                    (double)x[t * stride + i] / sqrt(sum / n + (double)p.eps) * (double)w[i];

                CHECK(fabs((double)out[t * n + i] - want) <= 1e-6 * fabs(want) + 1e-30);
            }
        }
        p.x = at(x + 3 * stride);
        p.out = at(alone);
        p.tokens = 1;
        launch(MP_CUDA_KERNEL_rmsnorm, &p);
        CHECK(memcmp(alone, out + 3 * n, n * sizeof(*out)) == 0);
        p = (struct mp_cuda_rmsnorm){ at(x), at(w), at(x), n, tokens, stride, stride, 1e-5f, 0 };
        launch(MP_CUDA_KERNEL_rmsnorm, &p);
        for (uint32_t t = 0; t < tokens; t++)
            CHECK(memcmp(x + t * stride, out + t * n, n * sizeof(*x)) == 0);
        for (uint32_t i = 0; i < n; i++)
            x[i] = i == n / 2 ? -3e38f : 1.0f; /* overflows when it is squared */
        p = (struct mp_cuda_rmsnorm){ at(x), at(w), at(out), n, 1, stride, n, 1e-5f, 0 };
        launch(MP_CUDA_KERNEL_rmsnorm, &p);
        for (uint32_t i = 0; i < n; i++)
            CHECK(isnan(out[i]));
        free_operands();
    }
}

static void softmax_checked(const float *x, const float *before, uint32_t width)
{
    double max = -INFINITY, sum = 0;

    for (uint32_t i = 0; i < width; i++)
        max = (double)before[i] > max ? (double)before[i] : max;
    for (uint32_t i = 0; i < width; i++)
        sum += exp((double)before[i] - max);
    for (uint32_t i = 0; i < width; i++) {
        const double want = exp((double)before[i] - max) / sum;

        /* x - max is rounded, and so are the sum and the quotient. */
        const double limit = (8 + max - (double)before[i]) * 0x1p-24 * want + 5e-45;

        CHECK(fabs((double)x[i] - want) <= limit);
    }
}

static void softmax(void)
{
    for (size_t j = 0; j < LEN(widths); j++) {
        const uint32_t n = widths[j], stride = n + 1, tokens = 7;
        float *x = floats(6 * stride + n), *alone, before[7 * 1001];
        struct mp_cuda_softmax p = { at(x), n, tokens, stride, 0 };

        for (uint32_t i = 0; i < 6 * stride + n; i++)
            x[i] *= i % 3 == 0 ? 100.0f : 3.0f;
        memcpy(before, x, (6 * stride + n) * sizeof(*x));
        launch(MP_CUDA_KERNEL_softmax, &p);
        for (uint32_t t = 0; t < tokens; t++)
            softmax_checked(x + t * stride, before + t * stride, n);
        alone = operand(n * sizeof(*x));
        memcpy(alone, before + 5 * stride, n * sizeof(*x));
        p.x = at(alone);
        p.tokens = 1;
        launch(MP_CUDA_KERNEL_softmax, &p);
        CHECK(memcmp(alone, x + 5 * stride, n * sizeof(*x)) == 0);
        x[0] = NAN;
        p = (struct mp_cuda_softmax){ at(x), n, 1, stride, 0 };
        launch(MP_CUDA_KERNEL_softmax, &p);
        for (uint32_t i = 0; i < n; i++)
            CHECK(isnan(x[i]));
        free_operands();
    }
}

/* exp through softmax of (0, v) would round twice; silu(v) * 1 shows it nearly bare. */
static void activation(void)
{
    const uint32_t count = 20001;
    float *gate = operand(count * sizeof(*gate)), *up = floats(count), *before;
    const struct mp_cuda_silu_mul p = { at(gate), at(up), count };

    before = malloc(count * sizeof(*before));
    CHECK(before != NULL);
    for (uint32_t i = 0; i < count; i++)
        before[i] = gate[i] = ((float)i - 10000) * 0.0105f;
    before[0] = gate[0] = -INFINITY;
    before[1] = gate[1] = INFINITY;
    before[2] = gate[2] = NAN;
    up[0] = up[1] = 1;
    launch(MP_CUDA_KERNEL_silu_mul, &p);
    CHECK(isnan(gate[0]) && gate[1] == INFINITY && isnan(gate[2]));
    for (uint32_t i = 3; i < count; i++) {
        const double v = (double)before[i], want = v / (1 + exp(-v)) * (double)up[i];

        CHECK(fabs((double)gate[i] - want) <= 4e-7 * fabs(want) + 3e-37); /* exp(89) */
    }
    free(before);
    free_operands();
}

/* The exponential within 1 unit in the last place: softmax of (0, x): e / (1 + e), e = exp(x). */
static void exponential(void)
{
    const uint32_t tokens = 40000;
    float *x = operand(2 * tokens * sizeof(*x)), *before = malloc(2 * tokens * sizeof(*x));
    const struct mp_cuda_softmax p = { at(x), 2, tokens, 2, 0 };
    double worst = 0;

    CHECK(before != NULL);
    for (uint32_t t = 0; t < tokens; t++) {
        before[2 * t] = x[2 * t] = 0;
        before[2 * t + 1] = x[2 * t + 1] = -20 - (float)t * 0.00225f; /* 1 + e is 1 */
    }
    launch(MP_CUDA_KERNEL_softmax, &p);
    for (uint32_t t = 0; t < tokens; t++) {
        const double off = ulps(x[2 * t + 1], exp((double)before[2 * t + 1]));

        worst = off > worst ? off : worst;
        CHECK(same(x[2 * t], 1));
    }
    fprintf(stderr, "    exp: at most %.2f ulp off\n", worst);
    CHECK(worst <= 1.0);
    free(before);
    free_operands();
}

static void rows_out_and_back(void)
{
    for (size_t j = 0; j < LEN(widths); j++) {
        const uint32_t n = widths[j], top_k = 3, count = 4;
        float *x = floats(5 * n), *out = operand(count * n * sizeof(*out));
        float *back = floats(15 * n), before[15000];
        uint32_t *row = operand(count * sizeof(*row));
        struct mp_cuda_rows p = { at(row), at(x), at(out), count, n, top_k, 0 };

        for (uint32_t r = 0; r < count; r++)
            row[r] = 14 - 4 * r; /* 14, 10, 6, 2: of tokens 4, 3, 2, 0 */
        launch(MP_CUDA_KERNEL_gather_rows, &p);
        for (uint32_t r = 0; r < count; r++)
            CHECK(memcmp(out + r * n, x + row[r] / top_k * n, n * sizeof(*x)) == 0);
        p.from = at(out);
        p.to = at(back);
        for (p.accumulate = 0; p.accumulate < 2; p.accumulate++) {
            memcpy(before, back, 15 * n * sizeof(*back));
            launch(MP_CUDA_KERNEL_scatter_rows, &p);
            for (uint32_t i = 0; i < 15 * n; i++) {
                const uint32_t r = (14 - i / n) / 4;
                const bool mine = (14 - i / n) % 4 == 0;
                const float kept = p.accumulate || !mine ? before[i] : 0;

                CHECK(same(back[i], mine ? kept + out[r * n + i % n] : kept));
            }
        }
        free_operands();
    }
}

static void combine(void)
{
    for (size_t j = 0; j < LEN(widths) * 4; j++) {
        const uint32_t H = widths[j / 4], T = 3, R = 4;
        const float *rank = floats(T * R * H), *shared = floats(T * H);
        float *weight = floats(T * R), *x = floats(T * H), before[3000];
        const struct mp_cuda_combine p = { .x = at(x),
                                           .rank = at(rank),
                                           .weight = at(weight),
                                           .shared = j % 2 == 0 ? 0 : at(shared),
                                           .hidden = H,
                                           .top_k = R,
                                           .tokens = T,
                                           .normalise = j / 2 % 2 };

        for (uint32_t i = 0; i < T * R; i++)
            weight[i] = fabsf(weight[i]) + 0.1f;
        memcpy(before, x, T * H * sizeof(*x));
        launch(MP_CUDA_KERNEL_combine, &p);
        for (uint32_t i = 0; i < T * H; i++) {
            const float *w = weight + i / H * R;
            const float total = p.normalise ? w[0] + w[1] + w[2] + w[3] : 1.0f;
            float sum = 0; /* as the CPU's kernels do it, bit for bit */

            for (uint32_t r = 0; r < R; r++)
                sum = fmaf(w[r] / total, rank[(i / H * R + r) * H + i % H], sum);
            CHECK(same(x[i], before[i] + (p.shared != 0 ? sum + shared[i] : sum)));
        }
        free_operands();
    }
}

/* A gate weighs the shared expert. */
static void combine_opens_a_gate(void)
{
    for (size_t j = 0; j < LEN(widths); j++) {
        const uint32_t H = widths[j], T = 3, R = 4;
        float *shared = floats(T * H), *gate = floats(T), *rank = floats(T * R * H);
        float *x = floats(T * H), *none = floats(T * H), *weight = floats(T * R);
        struct mp_cuda_combine p = {
            at(x), at(rank), at(weight), at(shared), H, R, T, 0, at(gate)
        };

        memcpy(none, x, T * H * sizeof(*x));
        launch(MP_CUDA_KERNEL_combine, &p);
        p.x = at(none);
        p.shared = p.gate = 0;
        launch(MP_CUDA_KERNEL_combine, &p);
        for (uint32_t i = 0; i < T * H; i++) {
            const double share = 1 / (1 + exp(-(double)gate[i / H]));

            CHECK(fabs((double)x[i] - (double)none[i] - share * (double)shared[i]) <= 2e-6);
        }
        free_operands();
    }
}

/* Every 16-bit value comes back; halfway goes to the even one, a little more or less does not. */
static void rounding_of(enum mp_wtype type)
{
    const uint32_t count = 65536;
    uint16_t *all = operand(count * sizeof(*all)), *to = operand(count * sizeof(*to));
    float *wide, *x = operand(count * sizeof(*x));
    const struct mp_cuda_round p = { at(x), at(to), 256, 256, 256, 0 };

    for (uint32_t i = 0; i < count; i++)
        all[i] = (uint16_t)i;
    wide = widen(all, type, count);
    for (int kind = -1; kind <= 1; kind++) {
        for (uint32_t i = 0; i < count; i++) { /* the middle between a value and the next one */
            const double next = (double)wide[(i & 0x7fff) < 0x7fff ? i + 1 : i];

            x[i] = kind == -1 ? wide[i] : (float)(((double)wide[i] + next) / 2);
            if (kind == 1)
                x[i] = nextafterf(x[i], 2 * wide[i]);
        }
        launch(type == MP_WTYPE_BF16 ? MP_CUDA_KERNEL_round_bf16 : MP_CUDA_KERNEL_round_f16, &p);
        for (uint32_t i = 0; i < count; i++) {
            const uint32_t up = kind == 1 || (kind == 0 && i % 2 == 1) ? i + 1 : i;
            float *back = widen(&to[i], type, 1);

            if (isnan(wide[i]) || isnan(x[i]))
                CHECK(isnan(*back));
            else if (isfinite(x[i]) && (i & 0x7fff) > 0)
                CHECK_EQ(to[i], up);
            free(back);
        }
    }
    free(wide);
    free_operands();
}

static void rounding(void)
{
    rounding_of(MP_WTYPE_BF16);
    rounding_of(MP_WTYPE_F16);
}

static void head_expected(double *to, const float *from, const float *norm, const float *cosine,
                          const float *sine, uint32_t dim)
{
    double sum = 0, scale = 1;

    for (uint32_t i = 0; i < dim; i++)
        sum += (double)from[i] * (double)from[i];
    if (norm != NULL)
        scale = 1 / sqrt(sum / dim + 1e-6);
    for (uint32_t i = 0; i < dim / 2; i++) {
        const uint32_t j = dim / 2 + i;
        const double a = (double)from[i] * scale * (norm != NULL ? (double)norm[i] : 1);
        const double b = (double)from[j] * scale * (norm != NULL ? (double)norm[j] : 1);

        to[i] = a * (double)cosine[i] - b * (double)sine[i];
        to[j] = b * (double)cosine[i] + a * (double)sine[i];
    }
}

/* Both caches of 16 bits have the floats of others, rounded, and 0xA5 where those have it. */
static void check_narrow(const float *wide, const void *narrow, enum mp_wtype type, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const uint16_t *got = (const uint16_t *)narrow + i;
        uint16_t want = 0xA5A5;

        if (float_bits(wide[i]) != 0xA5A5A5A5u)
            mp_kernels_store(type, &want, &wide[i], 1);
        CHECK_EQ(*got, want);
    }
}

/* The same launch with a cache of 16 bits. `q` is what it was before. */
static void positions_narrow(struct mp_cuda_place p, enum mp_wtype type, const float *q,
                             uint32_t rows)
{
    const uint32_t Q = p.tokens * p.heads * p.head_dim, count = rows * p.kv_heads * p.head_dim;
    const float *k_cache = (const float *)(uintptr_t)p.k_cache;
    const float *v_cache = (const float *)(uintptr_t)p.v_cache;
    float *narrow_q = operand(Q * sizeof(*q));
    void *k = operand(count * sizeof(uint16_t)), *v = operand(count * sizeof(uint16_t));

    memcpy(narrow_q, q, Q * sizeof(*q));
    p.type = type;
    p.k_cache = at(k);
    p.v_cache = at(v);
    q = (const float *)(uintptr_t)p.q;
    p.q = at(narrow_q);
    launch(MP_CUDA_KERNEL_place, &p);
    CHECK(memcmp(narrow_q, q, Q * sizeof(*q)) == 0);
    check_narrow(k_cache, k, type, count);
    check_narrow(v_cache, v, type, count);
}

/* Queries in place, keys and values to their rows of the cache, and nothing else of it. */
static void positions(uint32_t dim, uint32_t heads, uint32_t kv_heads, int has_norm)
{
    const uint32_t T = 3, C = 5, S = 2, K = kv_heads * dim, Q = heads * dim;
    static const uint32_t sequence[] = { 1, 0, 1 }, position[] = { 4, 0, 2 };
    float *q = floats(T * Q), *k = floats(T * K), *v = floats(T * K), *norm = floats(dim);
    float *cosine = floats(C * dim / 2), *sine = floats(C * dim / 2);
    float *k_cache = operand(S * C * K * sizeof(*k)), *v_cache = operand(S * C * K * sizeof(*v));
    uint32_t *at_sequence = operand(sizeof(sequence)), *at_position = operand(sizeof(position));
    const struct mp_cuda_place p = { .q = at(q),
                                     .k = at(k),
                                     .v = at(v),
                                     .q_norm = has_norm ? at(norm) : 0,
                                     .k_norm = has_norm ? at(norm) : 0,
                                     .cosine = at(cosine),
                                     .sine = at(sine),
                                     .k_cache = at(k_cache),
                                     .v_cache = at(v_cache),
                                     .sequence = at(at_sequence),
                                     .position = at(at_position),
                                     .heads = heads,
                                     .kv_heads = kv_heads,
                                     .head_dim = dim,
                                     .tokens = T,
                                     .ctx = C,
                                     .eps = 1e-6f,
                                     .type = MP_WTYPE_F32 };
    float *before = malloc(T * Q * sizeof(*before));
    double want[256];
    uint32_t kept = 0;

    CHECK(before != NULL);
    memcpy(before, q, T * Q * sizeof(*q));
    memcpy(at_sequence, sequence, sizeof(sequence));
    memcpy(at_position, position, sizeof(position));
    launch(MP_CUDA_KERNEL_place, &p);
    for (uint32_t i = 0; i < T * (heads + kv_heads); i++) {
        const uint32_t t = i / (heads + kv_heads), h = i % (heads + kv_heads);
        const size_t row = (size_t)(sequence[t] * C + position[t]) * K;
        const size_t kv = (size_t)(h - heads) * dim;
        const float *got = h < heads ? q + t * Q + h * dim : k_cache + row + kv;

        head_expected(want, h < heads ? before + t * Q + h * dim : k + t * K + kv,
                      has_norm ? norm : NULL, cosine + position[t] * dim / 2,
                      sine + position[t] * dim / 2, dim);
        for (uint32_t e = 0; e < dim; e++)
            CHECK(fabs((double)got[e] - want[e]) <= 3e-6);
        if (h >= heads)
            CHECK(memcmp(v_cache + row + kv, v + t * K + kv, dim * sizeof(*v)) == 0);
    }
    for (uint32_t i = 0; i < S * C * K; i += K)
        kept += float_bits(k_cache[i]) == 0xA5A5A5A5u && float_bits(v_cache[i]) == 0xA5A5A5A5u;
    CHECK_EQ(kept, S * C - T);
    positions_narrow(p, MP_WTYPE_BF16, before, S * C);
    positions_narrow(p, MP_WTYPE_F16, before, S * C);
    free(before);
    free_operands();
}

static void place(void)
{
    positions(2, 1, 1, 0);
    positions(6, 4, 2, 1);
    positions(64, 8, 2, 0);
    positions(66, 3, 3, 1);
    positions(128, 8, 1, 1);
    positions(256, 2, 1, 1);
}

int main(void)
{
    RUN(embedding);
    RUN(rows_out_and_back);
    each_order("rmsnorm", rmsnorm);
    each_order("softmax", softmax);
    RUN(activation);
    RUN(exponential);
    RUN(combine);
    RUN(combine_opens_a_gate);
    RUN(rounding);
    each_order("place", place);
    return 0;
}
