/* check_kernels: choices (experts, their places, the next token) and the kernels for measuring. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tools/gpu/check.h"
#include "vmm/base/compiler.h"

/* `ties`: few different values. */
static float *scores(struct check *c, size_t count, bool ties)
{
    float *x = check_floats(c, count);

    for (size_t i = 0; i < count; i++)
        x[i] = ties ? floorf(x[i] * 8) / 8 : x[i] * 6;
    return x;
}

static void best(struct check *c, uint32_t experts, uint32_t top_k, uint32_t tokens, bool ties)
{
    const struct mp_cuda_top_k p = {
        .scores = check_at(scores(c, (size_t)tokens * experts, ties)),
        .expert = check_at(check_space(c, tokens * top_k * sizeof(uint32_t))),
        .weight = check_at(check_space(c, tokens * top_k * sizeof(float))),
        .experts = experts,
        .top_k = top_k,
        .tokens = tokens,
    };
    char what[96];

    snprintf(what, sizeof(what), "%u of %u, %u tokens%s", top_k, experts, tokens,
             ties ? ", ties" : "");
    check_launch(c, MP_CUDA_KERNEL_top_k, &p, what);
    check_end(c);
}

/* Every third expert is not there. */
static void resolve(struct check *c, uint32_t experts, uint32_t top_k, uint32_t tokens)
{
    const uint32_t ranks = tokens * top_k, works = ranks < experts ? ranks : experts;
    uint32_t *expert = check_space(c, ranks * sizeof(*expert));
    uint32_t *chosen = check_space(c, experts * sizeof(*chosen));
    struct mp_cuda_place_of *table = check_space(c, experts * sizeof(*table));
    struct mp_cuda_resolve p = {
        .expert = check_at(expert),
        .table = check_at(table),
        .work = check_at(check_space(c, works * sizeof(struct mp_cuda_expert))),
        .row = check_at(check_space(c, ranks * sizeof(uint32_t))),
        .misses = check_at(check_space(c, sizeof(uint32_t))),
        .experts = experts,
        .top_k = top_k,
        .tokens = tokens,
        .channels = 768,
        .works = works,
    };
    char what[96];

    for (uint32_t i = 0; i < ranks; i++)
        expert[i] = (i / top_k * 5 + i % top_k * 2) % experts;
    for (uint32_t e = 0; e < experts; e++) {
        chosen[e] = e;
        table[e] = (struct mp_cuda_place_of){ 16 * e, 16 * e + 1, 16 * e + 2, e % 3 != 1 };
    }
    snprintf(what, sizeof(what), "%u of %u, %u tokens", top_k, experts, tokens);
    check_launch(c, MP_CUDA_KERNEL_resolve, &p, what); /* as the graph does it */
    p.chosen = check_at(chosen);
    p.accumulate = 1;
    check_launch(c, MP_CUDA_KERNEL_resolve, &p, what);
    check_end(c);
}

/* A router and all that follows; the last block of many must see what the others wrote. */
static void route(struct check *c, unsigned type, uint32_t experts, uint32_t cols, uint32_t top_k,
                  uint32_t tokens)
{
    const uint32_t ranks = tokens * top_k, works = ranks < experts ? ranks : experts;
    struct mp_cuda_place_of *table = check_space(c, experts * sizeof(*table));
    uint32_t *turn = check_space(c, sizeof(*turn));
    struct mp_cuda_route p = {
        .in = { .x = check_at(check_floats(c, (size_t)tokens * cols)),
                .norm = check_at(check_floats(c, cols)),
                .cols = cols,
                .tokens = tokens,
                .eps = 1e-6f },
        .w = check_at(check_weights(c, (enum mp_wtype)type, (size_t)experts * cols)),
        .out = check_at(check_space(c, (size_t)tokens * cols * sizeof(float))),
        .scores = check_at(check_space(c, (size_t)tokens * experts * sizeof(float))),
        .turn = check_at(turn),
        .choose = { .experts = experts, .tokens = tokens },
        .experts = experts,
    };
    char what[96];

    *turn = 0;
    for (uint32_t e = 0; e < experts; e++)
        table[e] = (struct mp_cuda_place_of){ 16 * e, 16 * e + 1, 16 * e + 2, e % 3 != 1 };
    snprintf(what, sizeof(what), "%u of %u, %u columns, %u tokens", top_k, experts, cols, tokens);
    check_launch(c, mp_cuda_route(type, tokens), &p, what); /* scores alone */
    p.kept = check_at(check_space(c, (size_t)tokens * cols * sizeof(float)));
    p.choose.scores = p.scores;
    p.choose.top_k = top_k;
    p.choose.expert = check_at(check_space(c, ranks * sizeof(uint32_t)));
    p.choose.weight = check_at(check_space(c, ranks * sizeof(float)));
    p.list = (struct mp_cuda_resolve){
        .expert = p.choose.expert,
        .table = check_at(table),
        .work = check_at(check_space(c, works * sizeof(struct mp_cuda_expert))),
        .row = check_at(check_space(c, ranks * sizeof(uint32_t))),
        .misses = check_at(check_space(c, sizeof(uint32_t))),
        .experts = experts,
        .top_k = top_k,
        .tokens = tokens,
        .channels = 768,
        .works = works,
    };
    p.next.w = check_at(check_weights(c, (enum mp_wtype)type, (size_t)experts * cols));
    p.next.norm = check_at(check_floats(c, cols));
    p.next.scores = check_at(check_space(c, (size_t)tokens * experts * sizeof(float)));
    for (unsigned again = 0; again < 3; again++) /* the count of blocks begins anew each time */
        check_launch(c, mp_cuda_route(type, tokens), &p, what);
    check_end(c);
}

static void next_token(struct check *c, uint32_t vocab, uint32_t tokens, bool ties)
{
    static const struct {
        uint32_t top_k;
        double top_p;
        float temperature;
    } ways[] = { { 0, 1, 0 }, { 0, 1, 1 }, { 20, 0.9, 0.7f }, { 0, 0.8, 1.3f } };
    const float *logits = scores(c, (size_t)tokens * vocab, ties);
    uint32_t *uniform = check_space(c, tokens * sizeof(*uniform));
    uint32_t *token = check_space(c, tokens * sizeof(*token));
    uint32_t *turn = check_space(c, tokens * sizeof(*turn));
    const struct mp_cuda_argmax argmax = { check_at(logits), check_at(token), vocab, tokens };
    char what[96];

    memset(turn, 0, tokens * sizeof(*turn));
    for (uint32_t t = 0; t < tokens; t++)
        uniform[t] = check_random(c);
    snprintf(what, sizeof(what), "%u of %u%s", tokens, vocab, ties ? ", ties" : "");
    check_launch(c, MP_CUDA_KERNEL_argmax, &argmax, what);
    for (size_t i = 0; i < MP_ARRAY_LEN(ways); i++) {
        struct mp_cuda_sample sample = {
            .logits = check_at(logits),
            .uniform = check_at(uniform),
            .token = check_at(token),
            .turn = check_at(turn),
            .top_p = (uint64_t)(ways[i].top_p * 0x1p32),
            .vocab = vocab,
            .tokens = tokens,
            .top_k = ways[i].top_k,
            .temperature = ways[i].temperature,
        };

        sample.part = check_at(check_space(c, mp_cuda_sample_part_bytes(&sample)));
        check_launch(c, MP_CUDA_KERNEL_sample_list, &sample, what);
        check_here(c, MP_CUDA_KERNEL_sample_list, &sample); /* launched or not */
        check_launch(c, MP_CUDA_KERNEL_sample, &sample, what);
    }
    check_end(c);
}

/*
 * The kernel waits until %globaltimer has moved on by that time. Some devices move it once in
 * 1.05 ms, so it may end one such tick early. What shares the device or the host may end it late;
 * only a wrong unit ends it a thousand times late.
 */
#define SPIN_MS 10
#define TICK_MS 1.1f
#define SPIN_MAX_MS (500 * SPIN_MS)

static void measuring(struct check *c)
{
    const struct mp_cuda_spin spin = { .ns = 1000000 * SPIN_MS };
    const size_t bytes = 80000;
    const struct mp_cuda_read read = {
        .src = check_at(check_floats(c, bytes / sizeof(float))),
        .bytes = bytes,
        .sum = check_at(check_space(c, 3 * sizeof(uint64_t))),
        .times = 2,
        .blocks = 3,
    };
    char what[96];
    float ms;

    check_launch(c, MP_CUDA_KERNEL_read, &read, "80000 bytes, three blocks");
    ms = check_time(c, MP_CUDA_KERNEL_spin, &spin);
    snprintf(what, sizeof(what), "%d ms: it took %.3f ms", SPIN_MS, (double)ms);
    check_case(c, MP_CUDA_KERNEL_spin, ms >= SPIN_MS - TICK_MS && ms < SPIN_MAX_MS, what);
    check_end(c);
}

void check_choices(struct check *c, bool few)
{
    best(c, 61, 6, 3, true);
    best(c, 128, 8, 5, false);
    best(c, 257, 8, 9, true);
    resolve(c, 8, 2, 1);
    resolve(c, 128, 8, 1);
    resolve(c, 128, 8, 8);
    if (!few)
        resolve(c, 1024, 6, 3);
    for (unsigned type = 0; type < MP_WTYPE_PLAIN_COUNT; type++) {
        route(c, type, 16, 72, 2, 2);
        route(c, type, 8, 40, 2, 3);
        route(c, type, 33, 33, 4, 5);
        route(c, type, few ? 36 : 128, few ? 264 : 2048, 8, 1);
        if (!few)
            route(c, type, 512, 2048, 10, 8);
    }
    next_token(c, 700, 5, true);
    next_token(c, few ? 1999 : 32000, 2, false);
    if (!few)
        next_token(c, 151936, 1, false);
    measuring(c);
}
