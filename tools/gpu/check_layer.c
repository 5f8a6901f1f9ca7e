/* check_kernels: what lies between the products of a layer, and attention. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/gpu/check.h"
#include "vmm/base/compiler.h"

/* The operand at an address. */
static const float *at(uint64_t address)
{
    return (const float *)(uintptr_t)address;
}

static void rows(struct check *c, uint32_t width, uint32_t tokens, uint32_t gap)
{
    const uint32_t stride = width + gap;
    const struct mp_cuda_rmsnorm norm = {
        .x = check_at(check_floats(c, (size_t)tokens * stride)),
        .w = check_at(check_floats(c, width)),
        .out = check_at(check_space(c, (size_t)tokens * stride * sizeof(float))),
        .width = width,
        .tokens = tokens,
        .x_stride = stride,
        .out_stride = stride,
        .eps = 1e-6f,
    };
    const struct mp_cuda_softmax soft = {
        .x = norm.x, .width = width, .tokens = tokens, .stride = stride
    };
    float *want;
    char what[96];

    snprintf(what, sizeof(what), "%u rows of %u", tokens, width);
    check_launch(c, MP_CUDA_KERNEL_rmsnorm, &norm, what);
    want = check_want((size_t)tokens * width);
    mp_kernels_ref.rmsnorm(want, width, at(norm.x), stride, at(norm.w), width, tokens, norm.eps);
    check_near(c, MP_CUDA_KERNEL_rmsnorm, at(norm.out), stride, want, width, tokens, what);
    want = check_want((size_t)tokens * width);
    for (uint32_t t = 0; t < tokens; t++)
        memcpy(want + (size_t)t * width, at(norm.x) + (size_t)t * stride, width * sizeof(*want));
    mp_kernels_ref.softmax(want, width, width, tokens);
    check_launch(c, MP_CUDA_KERNEL_softmax, &soft, what);
    check_near(c, MP_CUDA_KERNEL_softmax, at(soft.x), stride, want, width, tokens, what);
    check_end(c);
}

static void elementwise(struct check *c, uint32_t width, uint32_t tokens)
{
    const uint64_t count = (uint64_t)width * tokens;
    const struct mp_cuda_silu_mul silu = { .gate = check_at(check_floats(c, count)),
                                           .up = check_at(check_floats(c, count)),
                                           .count = count };
    char what[96];

    snprintf(what, sizeof(what), "%u rows of %u", tokens, width);
    check_launch(c, MP_CUDA_KERNEL_silu_mul, &silu, what);
    check_end(c);
}

static void embed(struct check *c, unsigned type, uint32_t width, uint32_t tokens)
{
    const uint32_t vocab = 101;
    uint32_t *token = check_space(c, tokens * sizeof(*token));
    const struct mp_cuda_embed p = {
        .table = check_at(check_weights(c, (enum mp_wtype)type, (size_t)vocab * width)),
        .token = check_at(token),
        .x = check_at(check_space(c, (size_t)tokens * width * sizeof(float))),
        .type = type,
        .width = width,
        .tokens = tokens,
        .vocab = vocab,
    };
    float *want;
    char what[96];

    for (uint32_t t = 0; t < tokens; t++)
        token[t] = check_random(c) % vocab;
    snprintf(what, sizeof(what), "%s, %u tokens of %u", mp_wtype_name((enum mp_wtype)type), tokens,
             width);
    check_launch(c, MP_CUDA_KERNEL_embed, &p, what);
    want = check_want((size_t)tokens * width);
    for (uint32_t t = 0; t < tokens; t++)
        mp_kernels_ref.convert(want + (size_t)t * width,
                               (const char *)(uintptr_t)p.table +
                                   mp_wtype_bytes((enum mp_wtype)type, (size_t)token[t] * width),
                               (enum mp_wtype)type, width);
    check_near(c, MP_CUDA_KERNEL_embed, at(p.x), width, want, width, tokens, what);
    check_end(c);
}

/* To 16 bits, out of a matrix in any order and back. */
static void moved(struct check *c, uint32_t width, uint32_t tokens)
{
    const uint32_t top_k = 4, ranks = tokens * top_k;
    uint32_t *row = check_space(c, ranks * sizeof(*row));
    const float *x = check_floats(c, (size_t)tokens * width);
    const float *rank = check_floats(c, (size_t)ranks * width);
    const struct mp_cuda_round round = {
        .x = check_at(x),
        .to = check_at(check_space(c, (size_t)tokens * width * sizeof(uint16_t))),
        .width = width,
        .tokens = tokens,
        .x_stride = width,
    };
    struct mp_cuda_rows move = {
        .row = check_at(row),
        .from = check_at(x),
        .to = check_at(check_space(c, (size_t)ranks * width * sizeof(float))),
        .rows = ranks,
        .width = width,
        .top_k = top_k,
    };
    char what[96];

    for (uint32_t i = 0; i < ranks; i++)
        row[i] = (i * 7 + 3) % ranks; /* every one once: 7 divides no count here */
    snprintf(what, sizeof(what), "%u rows of %u", ranks, width);
    check_launch(c, MP_CUDA_KERNEL_round_bf16, &round, what);
    check_launch(c, MP_CUDA_KERNEL_round_f16, &round, what);
    check_launch(c, MP_CUDA_KERNEL_gather_rows, &move, what);
    move.from = move.to;
    move.to = check_at(rank);
    check_launch(c, MP_CUDA_KERNEL_scatter_rows, &move, what);
    move.accumulate = 1;
    check_launch(c, MP_CUDA_KERNEL_scatter_rows, &move, what);
    check_end(c);
}

static void combine(struct check *c, uint32_t hidden, uint32_t top_k, uint32_t tokens)
{
    float *weight = check_floats(c, tokens * top_k);
    struct mp_cuda_combine p = {
        .x = check_at(check_floats(c, (size_t)tokens * hidden)),
        .rank = check_at(check_floats(c, (size_t)tokens * top_k * hidden)),
        .weight = check_at(weight),
        .hidden = hidden,
        .top_k = top_k,
        .tokens = tokens,
        .normalise = 1,
    };
    char what[96];

    for (uint32_t i = 0; i < tokens * top_k; i++)
        weight[i] = 0.1f + fabsf(weight[i]);
    snprintf(what, sizeof(what), "%u of %u, %u tokens", top_k, hidden, tokens);
    check_launch(c, MP_CUDA_KERNEL_combine, &p, what);
    p.shared = check_at(check_floats(c, (size_t)tokens * hidden));
    p.normalise = 0;
    check_launch(c, MP_CUDA_KERNEL_combine, &p, what);
    p.gate = check_at(check_floats(c, tokens));
    check_launch(c, MP_CUDA_KERNEL_combine, &p, what);
    check_end(c);
}

void check_layers(struct check *c, bool few)
{
    static const uint32_t widths[] = { 1, 33, 257, 768, 2048 };

    for (size_t i = 0; i < (few ? 3 : MP_ARRAY_LEN(widths)); i++) {
        rows(c, widths[i], 5, 0);
        rows(c, widths[i], 9, 3);
        elementwise(c, widths[i], 5);
        moved(c, widths[i], 5);
        combine(c, widths[i], 8, 3);
    }
    for (unsigned type = 0; type < MP_WTYPE_PLAIN_COUNT; type++) {
        embed(c, type, 33, 3);
        embed(c, type, few ? 256 : 2048, few ? 1 : 64);
    }
#define X(TYPE, name) embed(c, MP_WTYPE_##TYPE, 512, few ? 1 : 64);
    MP_CUDA_QUANT_MAP(X)
#undef X
}

/* ---- attention */

struct shape {
    uint32_t heads, kv_heads, dim;
    uint32_t ctx, sequences;
    uint32_t tokens, first; /* positions first, first + 1, ... of each sequence in turn */
};

static void near_attention(struct check *c, enum mp_cuda_kernel kernel, enum mp_wtype type,
                           const struct mp_cuda_attend *p, const char *what)
{
    const uint32_t *sequence = (const uint32_t *)(uintptr_t)p->sequence;
    const uint32_t *position = (const uint32_t *)(uintptr_t)p->position;
    const uint32_t D = p->head_dim, K = p->kv_heads * D, Q = p->heads * D;
    const uint32_t shared = p->heads / p->kv_heads;
    float *want = check_want((size_t)p->tokens * Q), *scores = check_want((size_t)p->ctx * shared);

    for (uint32_t t = 0; t < p->tokens; t++) {
        const size_t row = (size_t)sequence[t] * p->ctx;

        for (uint32_t g = 0; g < p->kv_heads; g++) {
            const size_t q = (size_t)t * Q + (size_t)g * shared * D;

            const struct mp_attention attention = {
                .out = want + q,
                .q = at(p->q) + q,
                .k = (const void *)(uintptr_t)(p->k_cache + mp_wtype_bytes(type, row * K + g * D)),
                .v = (const void *)(uintptr_t)(p->v_cache + mp_wtype_bytes(type, row * K + g * D)),
                .type = type,
                .kv_stride = K,
                .heads = shared,
                .dim = D,
                .positions = position[t] + 1,
                .scale = p->scale,
                .scores = scores,
            };

            mp_kernels_ref.attend(&attention);
        }
    }
    free(scores);
    check_near(c, kernel, at(p->out), Q, want, Q, p->tokens, what);
}

static void attention(struct check *c, const struct shape *s, enum mp_wtype type, bool norm)
{
    const uint32_t K = s->kv_heads * s->dim, T = s->tokens;
    const size_t cache = (size_t)s->sequences * s->ctx * K;
    const size_t turn_bytes = (size_t)T * s->heads * sizeof(uint32_t);
    void *turn = check_space(c, turn_bytes);
    uint32_t *sequence = check_space(c, T * sizeof(*sequence));
    uint32_t *position = check_space(c, T * sizeof(*position));
    struct mp_cuda_place place = {
        .q = check_at(check_floats(c, (size_t)T * s->heads * s->dim)),
        .k = check_at(check_floats(c, (size_t)T * K)),
        .v = check_at(check_floats(c, (size_t)T * K)),
        .cosine = check_at(check_floats(c, (size_t)s->ctx * s->dim / 2)),
        .sine = check_at(check_floats(c, (size_t)s->ctx * s->dim / 2)),
        .k_cache = check_at(check_weights(c, type, cache)),
        .v_cache = check_at(check_weights(c, type, cache)),
        .sequence = check_at(sequence),
        .position = check_at(position),
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .head_dim = s->dim,
        .tokens = T,
        .ctx = s->ctx,
        .eps = 1e-6f,
        .type = type,
    };
    struct mp_cuda_attend attend = {
        .q = place.q,
        .out = check_at(check_space(c, (size_t)T * s->heads * s->dim * sizeof(float))),
        .k_cache = place.k_cache,
        .v_cache = place.v_cache,
        .sequence = place.sequence,
        .position = place.position,
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .head_dim = s->dim,
        .tokens = T,
        .ctx = s->ctx,
        .scale = 1 / sqrtf((float)s->dim),
    };
    char what[96];
    uint64_t part;

    for (uint32_t t = 0; t < T; t++) {
        sequence[t] = t % s->sequences;
        position[t] = s->first + t / s->sequences;
    }
    if (norm)
        place.q_norm = place.k_norm = check_at(check_floats(c, s->dim));
    part = check_at(check_space(c, mp_cuda_attend_part_bytes(&attend)));
    attend.turn = check_at(memset(turn, 0, turn_bytes));
    snprintf(what, sizeof(what),
             "%s, %u / %u heads of %u, %u tokens from position %u of %u sequences",
             mp_wtype_name(type), s->heads, s->kv_heads, s->dim, T, s->first, s->sequences);
    check_launch(c, MP_CUDA_KERNEL_place, &place, what);
    for (int split = 0; split < 2; split++) {
        const enum mp_cuda_kernel kernel = mp_cuda_attend(type);

        attend.part = split ? part : 0;
        memset((void *)(uintptr_t)attend.out, 0, sizeof(float)); /* it is written anew */
        check_launch(c, kernel, &attend, what);
        near_attention(c, kernel, type, &attend, what);
    }
    check_end(c);
}

/* A token alone, a batch of sequences, a prompt, and a long context that all streams share. */
void check_attention(struct check *c, bool few)
{
    static const struct shape small[] = { { 4, 4, 32, 3, 1, 1, 0 },
                                          { 6, 2, 64, 44, 2, 5, 40 },
                                          { 3, 1, 34, 40, 1, 33, 0 } };
    static const struct shape large[] = { { 32, 4, 128, 302, 1, 1, 300 },
                                          { 32, 4, 128, 130, 4, 8, 100 },
                                          { 32, 4, 128, 70, 1, 67, 0 },
                                          { 8, 1, 256, 1200, 1, 2, 1100 } };

    for (unsigned type = 0; type < MP_WTYPE_PLAIN_COUNT; type++) {
        for (size_t i = 0; i < MP_ARRAY_LEN(small); i++)
            attention(c, &small[i], type, i % 2 == 0);
        for (size_t i = 0; !few && i < MP_ARRAY_LEN(large); i++)
            attention(c, &large[i], type, true);
    }
}
