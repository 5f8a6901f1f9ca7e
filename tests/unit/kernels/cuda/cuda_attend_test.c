/*
 * Attention on a device, run on the CPU: values against a softmax in double; positions that one
 * block has or that are shared out, one token or many, few heads of a key or many give the same
 * bits, and keys and values of 16 bits those of the same values as floats. Heads that share keys
 * and values read them once.
 */
#include "tests/device/simt/simt_thread.h"
#include "tests/unit/kernels/cuda/cuda_run.h"

struct problem {
    uint32_t dim, heads, kv_heads, tokens, ctx;
    uint32_t *sequence, *position;
    float *q, *k, *v;
    enum mp_wtype type; /* of what kernels read */
    void *k_cache, *v_cache;
};

/* Rows of the cache beyond each token's position are NaN; two sequences. */
static struct problem problem_make(uint32_t dim, uint32_t heads, uint32_t kv_heads, uint32_t tokens,
                                   const uint32_t *position)
{
    struct problem p = {
        .dim = dim, .heads = heads, .kv_heads = kv_heads, .tokens = tokens, .type = MP_WTYPE_F32
    };
    size_t count, K = (size_t)kv_heads * dim;

    for (uint32_t t = 0; t < tokens; t++)
        p.ctx = position[t] + 1 > p.ctx ? position[t] + 1 : p.ctx;
    count = 2 * p.ctx * K;
    p.sequence = operand(tokens * sizeof(uint32_t));
    p.position = operand(tokens * sizeof(uint32_t));
    p.q = floats((size_t)tokens * heads * dim);
    p.k = operand(count * sizeof(float));
    p.v = operand(count * sizeof(float));
    memset(p.k, 0xFF, count * sizeof(float));
    memset(p.v, 0xFF, count * sizeof(float));
    for (uint32_t t = 0; t < tokens; t++) {
        p.sequence[t] = t % 2;
        p.position[t] = position[t];
        fill_random(p.k + t % 2 * p.ctx * K, (position[t] + 1) * K, 1);
        fill_random(p.v + t % 2 * p.ctx * K, (position[t] + 1) * K, 1);
    }
    for (size_t i = 0; i < (size_t)tokens * heads * dim; i++)
        p.q[i] *= 3;
    p.k_cache = p.k;
    p.v_cache = p.v;
    return p;
}

/* x rounded to `type`; x becomes the rounded values. */
static void *rounded(float *x, size_t count, enum mp_wtype type)
{
    void *to = operand(mp_wtype_bytes(type, count));

    mp_kernels_store(type, to, x, count);
    mp_kernels_ref.convert(x, to, type, count);
    return to;
}

static void problem_round(struct problem *p, enum mp_wtype type)
{
    const size_t count = 2 * (size_t)p->ctx * p->kv_heads * p->dim;

    p->type = type;
    p->k_cache = rounded(p->k, count, type);
    p->v_cache = rounded(p->v, count, type);
}

static float *attend(const struct problem *p, uint32_t first, uint32_t tokens, int split)
{
    const size_t width = (size_t)p->heads * p->dim;
    float *out = operand(tokens * width * sizeof(*out));
    struct mp_cuda_attend params = { at(p->q + first * width),
                                     at(out),
                                     at(p->k_cache),
                                     at(p->v_cache),
                                     at(p->sequence + first),
                                     at(p->position + first),
                                     p->heads,
                                     p->kv_heads,
                                     p->dim,
                                     tokens,
                                     p->ctx,
                                     1 / sqrtf((float)p->dim),
                                     0,
                                     0 };

    if (split) {
        uint32_t *turn = operand(tokens * p->heads * sizeof(*turn));

        memset(turn, 0, tokens * p->heads * sizeof(*turn));
        params.part = at(operand(mp_cuda_attend_part_bytes(&params)));
        params.turn = at(turn);
        launch(mp_cuda_attend(p->type), &params);
        for (uint32_t i = 0; i < tokens * p->heads; i++)
            CHECK_EQ(turn[i], 0);
    } else {
        launch(mp_cuda_attend(p->type), &params);
    }
    return out;
}

static void check_head(const struct problem *p, uint32_t t, uint32_t h, const float *out)
{
    const size_t D = p->dim, K = p->kv_heads * D, n = p->position[t] + 1;
    const size_t start = p->sequence[t] * p->ctx * K + h / (p->heads / p->kv_heads) * D;
    const float *q = p->q + ((size_t)t * p->heads + h) * D;
    double *weight = malloc(n * sizeof(*weight)), total = 0, max = -INFINITY;

    CHECK(weight != NULL);
    for (size_t i = 0; i < n; i++) {
        weight[i] = 0;
        for (size_t e = 0; e < D; e++)
            weight[i] += (double)q[e] * (double)p->k[start + i * K + e] / sqrt((double)D);
        max = weight[i] > max ? weight[i] : max;
    }
    for (size_t i = 0; i < n; i++)
        total += weight[i] = exp(weight[i] - max);
    for (size_t e = 0; e < D; e++) {
        double sum = 0;

        for (size_t i = 0; i < n; i++)
            sum += weight[i] / total * (double)p->v[start + i * K + e];
        CHECK(fabs((double)out[((size_t)t * p->heads + h) * D + e] - sum) <= 2e-5);
    }
    free(weight);
}

/* The same problem with its cache in 16 bits, and with what those mean as floats. */
static void check_rounded(struct problem p, enum mp_wtype type)
{
    const size_t bytes = (size_t)p.tokens * p.heads * p.dim * sizeof(float);
    const float *out, *parts, *want;

    problem_round(&p, type);
    out = attend(&p, 0, p.tokens, 0);
    parts = attend(&p, 0, p.tokens, 1);
    p.type = MP_WTYPE_F32;
    p.k_cache = p.k;
    p.v_cache = p.v;
    want = attend(&p, 0, p.tokens, 0);
    CHECK(memcmp(out, want, bytes) == 0);
    CHECK(memcmp(parts, want, bytes) == 0);
    for (uint32_t i = 0; i < p.tokens * p.heads; i++)
        check_head(&p, i / p.heads, i % p.heads, out);
}

static void check(uint32_t dim, uint32_t heads, uint32_t kv_heads, uint32_t tokens,
                  const uint32_t *position)
{
    const struct problem p = problem_make(dim, heads, kv_heads, tokens, position);
    const size_t width = (size_t)heads * dim;
    const float *out = attend(&p, 0, tokens, 0), *parts = attend(&p, 0, tokens, 1);

    CHECK(memcmp(out, parts, tokens * width * sizeof(*out)) == 0);
    for (uint32_t t = 0; t < tokens; t++) {
        const float *alone = attend(&p, t, 1, t % 2 == 0);

        for (uint32_t h = 0; h < heads; h++)
            check_head(&p, t, h, out);
        CHECK(memcmp(alone, out + t * width, width * sizeof(*out)) == 0);
    }
    check_rounded(p, MP_WTYPE_BF16);
    free_operands();
    check_rounded(problem_make(dim, heads, kv_heads, tokens, position), MP_WTYPE_F16);
    free_operands();
}

static void shapes(void)
{
    static const uint32_t few[] = { 0, 1, 30, 31, 32, 33, 63, 64, 100 };

    check(2, 1, 1, 9, few);
    check(6, 4, 2, 4, few + 2); /* not a multiple of 4: read element by element */
    check(64, 8, 2, 4, few + 5);
    check(100, 3, 3, 3, few + 3);
    check(128, 8, 1, 9, few);
    check(130, 2, 1, 2, few + 7);
    check(256, 2, 2, 3, few + 4);
}

/* Head h of `p` alone, with the keys and values that it shares. */
static struct problem one_head(const struct problem *p, uint32_t h)
{
    const uint32_t D = p->dim, kv = h / (p->heads / p->kv_heads);
    struct problem one = *p;

    one.heads = one.kv_heads = 1;
    one.q = operand(p->tokens * D * sizeof(float));
    one.k = operand(2 * (size_t)p->ctx * D * sizeof(float));
    one.v = operand(2 * (size_t)p->ctx * D * sizeof(float));
    for (uint32_t t = 0; t < p->tokens; t++)
        memcpy(one.q + t * D, p->q + (t * p->heads + h) * D, D * sizeof(float));
    for (size_t i = 0; i < 2 * (size_t)p->ctx; i++) {
        memcpy(one.k + i * D, p->k + (i * p->kv_heads + kv) * D, D * sizeof(float));
        memcpy(one.v + i * D, p->v + (i * p->kv_heads + kv) * D, D * sizeof(float));
    }
    one.k_cache = one.k;
    one.v_cache = one.v;
    return one;
}

/* Heads that share keys and values get the bits that each gets alone, also where a block has some
 * of them only. */
static void check_shared(uint32_t dim, uint32_t heads, uint32_t kv_heads, uint32_t position)
{
    const struct problem p = problem_make(dim, heads, kv_heads, 1, &position);
    const float *out = attend(&p, 0, 1, 1);

    for (uint32_t h = 0; h < heads; h += 3) {
        const struct problem one = one_head(&p, h);

        CHECK(memcmp(out + h * dim, attend(&one, 0, 1, 0), dim * sizeof(float)) == 0);
    }
    free_operands();
}

static void heads_share(void)
{
    check_shared(32, 5, 1, 300);
    check_shared(32, 16, 1, 40); /* two blocks of eight */
    check_shared(32, 12, 1, 40); /* two of six */
    check_shared(132, 7, 1, 70); /* wide: one of four, one of three */
    check_shared(30, 9, 1, 70);  /* element by element */
}

/* Bytes of keys and values that a token's heads read, in times of what there is. */
static void check_reads(uint32_t dim, uint32_t heads, enum mp_wtype type, uint32_t times)
{
    const uint32_t position = 511;
    struct problem p = problem_make(dim, heads, 1, 1, &position);

    if (type != MP_WTYPE_F32)
        problem_round(&p, type);
    for (int split = 0; split < 2; split++) {
        mp_simt_loaded_bytes = 0;
        (void)attend(&p, 0, 1, split);
        CHECK_EQ(mp_simt_loaded_bytes, times * 2 * mp_wtype_bytes(type, 512 * (size_t)dim));
    }
    free_operands();
}

static void keys_are_read_once(void)
{
    check_reads(128, 1, MP_WTYPE_BF16, 1);
    check_reads(128, 4, MP_WTYPE_F32, 1);
    check_reads(128, 8, MP_WTYPE_BF16, 1);
    check_reads(64, 8, MP_WTYPE_F16, 1);
    check_reads(128, 16, MP_WTYPE_BF16, 2);
    check_reads(256, 4, MP_WTYPE_BF16, 1);
    check_reads(256, 8, MP_WTYPE_F32, 2);
}

/* Parts end in the middle, and the last one has streams of two units. */
static void long_context(void)
{
    static const uint32_t far[] = { 2100, 1023, 1024 }, farther[] = { 8192 + 300 };

    check(8, 4, 2, 3, far);
    check(4, 2, 1, 1, farther);
}

/* What a later position holds must not matter, and scores of any size do not overflow. */
static void large_scores(void)
{
    static const uint32_t position[] = { 70 };
    struct problem p = problem_make(16, 2, 1, 1, position);
    const float *out;

    for (uint32_t i = 0; i < 32; i++)
        p.q[i] *= 1000;
    out = attend(&p, 0, 1, 0);
    check_head(&p, 0, 0, out);
    check_head(&p, 0, 1, out);
    p.k[33 * 16] = NAN;
    out = attend(&p, 0, 1, 0);
    for (uint32_t i = 0; i < 32; i++)
        CHECK(isnan(out[i]));
    free_operands();
}

int main(void)
{
    each_order("shapes", shapes);
    RUN(heads_share);
    RUN(keys_are_read_once);
    RUN(long_context);
    RUN(large_scores);
    return 0;
}
