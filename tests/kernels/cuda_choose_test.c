/*
 * Choices on a device, run on the CPU: the best experts as policy/route_exact.c says, work lists,
 * the next token; and the kernels for measuring.
 */
#include "tests/kernels/cuda_run.h"

#include <time.h>

/* policy/route_exact.c, written once more. */
static void top_k_expected(const float *scores, uint32_t experts, uint32_t k, uint32_t *chosen,
                           float *weight)
{
    uint32_t count = 0;

    for (uint32_t e = 0; e < experts; e++) {
        uint32_t i = count;

        while (i > 0 && weight[i - 1] < scores[e])
            i--;
        if (i == k)
            continue;
        count += count < k;
        for (uint32_t j = count - 1; j > i; j--) {
            chosen[j] = chosen[j - 1];
            weight[j] = weight[j - 1];
        }
        chosen[i] = e;
        weight[i] = scores[e];
    }
}

/* kind 0: any scores, 1: few different ones, 2: all equal, 3: with NaN, 4: with infinities. */
static void top_k_of(uint32_t experts, uint32_t k, int kind)
{
    const uint32_t tokens = 9;
    float *scores = floats((size_t)tokens * experts), *weight = operand(tokens * k * sizeof(float));
    uint32_t *expert = operand(tokens * k * sizeof(uint32_t)), want[64];
    const struct mp_cuda_top_k p = { at(scores), at(expert), at(weight), experts, k, tokens, 0 };
    float want_weight[64];

    for (uint32_t i = 0; i < tokens * experts; i++) {
        if (kind == 1)
            scores[i] = (float)(random_u32() % 3) - 1; /* also -0 and 0 */
        if (kind == 1 && random_u32() % 4 == 0)
            scores[i] *= -1;
        if (kind == 2)
            scores[i] = 0.125f;
        if (kind == 3 && random_u32() % 8 == 0)
            scores[i] = NAN;
        if (kind == 4 && random_u32() % 4 == 0)
            scores[i] = random_u32() % 2 == 0 ? INFINITY : -INFINITY;
    }
    launch(MP_CUDA_KERNEL_top_k, &p);
    for (uint32_t t = 0; t < tokens; t++) {
        top_k_expected(scores + t * experts, experts, k, want, want_weight);
        for (uint32_t r = 0; r < k; r++) {
            CHECK_EQ(expert[t * k + r], want[r]);
            CHECK(same(weight[t * k + r], want_weight[r]));
        }
    }
    free_operands();
}

static void top_k(void)
{
    static const uint32_t experts[] = { 1, 2, 7, 8, 31, 33, 60, 128, 255, 257 };

    for (int kind = 0; kind < 5; kind++) {
        for (size_t i = 0; i < LEN(experts); i++) {
            top_k_of(experts[i], 1, kind);
            top_k_of(experts[i], experts[i] < 8 ? experts[i] : 8, kind);
        }
    }
    top_k_of(64, 64, 1);
}

/* Of E experts those with number % 3 == 1 are not resident. */
static void resolve_of(uint32_t experts, uint32_t k, uint32_t tokens)
{
    const uint32_t ranks = tokens * k;
    uint32_t *expert = operand(ranks * sizeof(uint32_t)), *row = operand(ranks * sizeof(uint32_t));
    uint32_t *misses = operand(sizeof(uint32_t)), *chosen = operand(experts * sizeof(uint32_t));
    struct mp_cuda_place_of *table = operand(experts * sizeof(*table));
    struct mp_cuda_expert *work = operand(experts * sizeof(*work));
    const struct mp_cuda_resolve p = { at(expert), at(table), at(work), at(row), at(misses),
                                       at(chosen), experts,   k,        tokens,  77 };
    uint32_t used = 0, missing = 0;

    for (uint32_t i = 0; i < ranks; i++)
        expert[i] = (i / k * 5 + i % k * 2) % experts;
    for (uint32_t e = 0; e < experts; e++) {
        chosen[e] = e;
        table[e] = (struct mp_cuda_place_of){ 16 * e, 16 * e + 1, 16 * e + 2, e % 3 != 1 };
    }
    launch(MP_CUDA_KERNEL_resolve, &p);
    for (uint32_t e = 0; e < experts; e++) {
        uint32_t count = 0, tokens_with = 0;

        CHECK_EQ(work[e].first, used);
        for (uint32_t t = 0; t < tokens; t++) {
            uint32_t here = 0;

            for (uint32_t r = 0; r < k; r++) {
                if (expert[t * k + r] != e)
                    continue;
                here++;
                if (e % 3 != 1)
                    CHECK_EQ(row[used + count], t * k + r);
                count++;
            }
            tokens_with += here > 0;
        }
        missing += count > 0 && e % 3 == 1;
        CHECK_EQ(chosen[e], e + tokens_with);
        CHECK_EQ(work[e].count, e % 3 == 1 ? 0 : count);
        CHECK_EQ(work[e].channels, 77);
        CHECK_EQ(work[e].accumulate, 0);
        CHECK_EQ(work[e].down, 16 * e + 2);
        used += work[e].count;
    }
    CHECK_EQ(*misses, missing);
    free_operands();
}

static void resolve(void)
{
    resolve_of(8, 2, 1);
    resolve_of(33, 4, 5);
    resolve_of(128, 8, 1);
    resolve_of(128, 8, 9);
    resolve_of(1024, 6, 3);
    resolve_of(3, 3, 2);
}

static void argmax(void)
{
    static const uint32_t widths[] = { 1, 31, 33, 255, 512, 513, 2000 };

    for (size_t j = 0; j < LEN(widths); j++) {
        const uint32_t V = widths[j], tokens = 3;
        float *logits = floats(tokens * V);
        uint32_t *token = operand(tokens * sizeof(*token));
        const struct mp_cuda_argmax p = { at(logits), at(token), V, tokens };

        for (uint32_t i = 0; i < V; i++) {
            logits[i] = floorf(logits[i] * 3);                      /* many are equal */
            logits[V + i] = i % 3 == 0 ? NAN : logits[V + i] - 100; /* NaN is less than all else */
            logits[2 * V + i] = i == V / 2 ? NAN : -INFINITY;
        }
        launch(MP_CUDA_KERNEL_argmax, &p);
        for (uint32_t t = 0; t < tokens; t++) {
            uint32_t want = 0;

            for (uint32_t i = 1; i < V; i++)
                if (logits[t * V + i] > logits[t * V + want] ||
                    (isnan(logits[t * V + want]) && !isnan(logits[t * V + i])))
                    want = i;
            CHECK_EQ(token[t], want);
        }
        free_operands();
    }
}

static void measuring(void)
{
    for (uint32_t blocks = 1; blocks <= 3; blocks++) {
        const uint64_t words = 2 * 2500;
        uint64_t *src = operand(words * sizeof(*src)), *sum = operand(blocks * sizeof(*sum));
        const struct mp_cuda_read p = { at(src), words * sizeof(*src), at(sum), 2, blocks };
        uint64_t want = 0, got = 0;

        for (uint64_t i = 0; i < words; i++)
            want += 2 * (src[i] = random_u32() * 0x100000001u);
        launch(MP_CUDA_KERNEL_read, &p);
        for (uint32_t i = 0; i < blocks; i++)
            got += sum[i];
        CHECK(got == want);
        free_operands();
    }

    const struct mp_cuda_spin spin = { 3000000 };
    struct timespec start, end;

    clock_gettime(CLOCK_MONOTONIC, &start);
    launch(MP_CUDA_KERNEL_spin, &spin);
    clock_gettime(CLOCK_MONOTONIC, &end);
    CHECK((end.tv_sec - start.tv_sec) * 1000000000 + end.tv_nsec - start.tv_nsec >= 3000000);
}

/* What the image says and what the host thinks of it. */
static void image(void)
{
    CHECK(strstr(mp_cuda_image, ".target sm_75") != NULL);
    for (int i = 0; i < MP_CUDA_KERNEL_COUNT; i++) {
        const char *name = mp_cuda_kernel_name((enum mp_cuda_kernel)i), *entry, *size;
        char text[80];

        snprintf(text, sizeof(text), ".entry %s(", name);
        entry = strstr(mp_cuda_image, text);
        CHECK(entry != NULL);
        snprintf(text, sizeof(text), "%s_param_0[", name);
        size = strstr(entry, text);
        CHECK(size != NULL);
        CHECK_EQ(strtoul(size + strlen(text), NULL, 10),
                 mp_cuda_kernel_bytes((enum mp_cuda_kernel)i));
    }
    CHECK(mp_cuda_kernel_name(MP_CUDA_KERNEL_COUNT) == NULL);
    CHECK_EQ(mp_cuda_kernel_bytes(MP_CUDA_KERNEL_COUNT), 0);
    CHECK(mp_simt_find("mp_nothing") == NULL);
}

/* A launch without work has a grid of 0. */
static void no_work(void)
{
    static const union {
        char bytes[256];
        uint64_t align;
    } zero;

    for (int i = 0; i < MP_CUDA_KERNEL_COUNT; i++) {
        const struct mp_cuda_grid grid = mp_cuda_kernel_grid((enum mp_cuda_kernel)i, &zero);

        CHECK(i == MP_CUDA_KERNEL_spin || (grid.x == 0 && grid.y == 0 && grid.z == 0) ||
              i == MP_CUDA_KERNEL_resolve);
    }
}

int main(void)
{
    each_order("top_k", top_k);
    each_order("resolve", resolve);
    each_order("argmax", argmax);
    each_order("measuring", measuring);
    RUN(image);
    RUN(no_work);
    return 0;
}
