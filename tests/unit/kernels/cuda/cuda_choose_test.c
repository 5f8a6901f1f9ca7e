/*
 * Choices on a device, run on the CPU: the best experts as policy/route/exact.c says, work lists,
 * the next token; and the kernels for measuring.
 */
#include "tests/unit/kernels/cuda/cuda_run.h"

#include <float.h>
#include <time.h>

/* policy/route/exact.c, written once more. */
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

/* Of E experts those with number % 3 == 1 are not resident. The list has no gaps, and nothing
 * behind it. */
static void resolve_of(uint32_t experts, uint32_t k, uint32_t tokens)
{
    const uint32_t ranks = tokens * k, works = ranks < experts ? ranks : experts;
    uint32_t *expert = operand(ranks * sizeof(uint32_t)), *row = operand(ranks * sizeof(uint32_t));
    uint32_t *misses = operand(sizeof(uint32_t)), *chosen = operand(experts * sizeof(uint32_t));
    struct mp_cuda_place_of *table = operand(experts * sizeof(*table));
    struct mp_cuda_expert *work = operand(works * sizeof(*work));
    const struct mp_cuda_resolve p = { at(expert), at(table),  at(work), at(row),
                                       at(misses), at(chosen), experts,  k,
                                       tokens,     77,         k & 1,    works };
    uint32_t used = 0, missing = 0, listed = 0;

    for (uint32_t i = 0; i < ranks; i++)
        expert[i] = (i / k * 5 + i % k * 2) % experts;
    for (uint32_t e = 0; e < experts; e++) {
        chosen[e] = e;
        table[e] = (struct mp_cuda_place_of){ 16 * e, 16 * e + 1, 16 * e + 2, e % 3 != 1 };
    }
    launch(MP_CUDA_KERNEL_resolve, &p);
    for (uint32_t e = 0; e < experts; e++) {
        const struct mp_cuda_expert *entry = &work[listed];
        uint32_t count = 0, tokens_with = 0;

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
        if (count == 0 || e % 3 == 1)
            continue;
        CHECK_EQ(entry->first, used);
        CHECK_EQ(entry->count, count);
        CHECK_EQ(entry->channels, 77);
        CHECK_EQ(entry->accumulate, k & 1);
        CHECK_EQ(entry->down, 16 * e + 2);
        used += count;
        listed++;
    }
    CHECK_EQ(*misses, missing);
    for (; listed < works; listed++)
        CHECK_EQ(work[listed].count, 0);
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

static const float *ranked;

static int compare_tokens(const void *a, const void *b)
{
    const uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;

    if (ranked[i] != ranked[j])
        return ranked[i] > ranked[j] ? -1 : 1;
    return i < j ? -1 : 1;
}

/* The token that engine/forward/sampler.h asks for, in long double; *is_close: a sum that decides
 * lies so near to where it changes the result that the kernel may give another one. */
static uint32_t sample_expected(const float *logits, const struct mp_cuda_sample *p,
                                uint32_t uniform, bool *is_close)
{
    const long double near = 0x1p-16L, top_p = (long double)p->top_p * 0x1p-32L;
    uint32_t count = p->top_k > 0 && p->top_k < p->vocab ? p->top_k : p->vocab, kept = 0, i = 0;
    uint32_t *order = malloc(p->vocab * sizeof(*order));
    long double *sum = malloc((p->vocab + 1) * sizeof(*sum)), at;

    CHECK(order != NULL && sum != NULL);
    for (uint32_t v = 0; v < p->vocab; v++)
        order[v] = v;
    ranked = logits;
    qsort(order, p->vocab, sizeof(*order), compare_tokens);
    sum[0] = 0;
    for (uint32_t v = 0; v < count; v++)
        sum[v + 1] = sum[v] + expl(((long double)logits[order[v]] - (long double)logits[order[0]]) /
                                   (long double)p->temperature);
    while (kept == 0 || (kept < count && sum[kept] < top_p * sum[count]))
        kept++;
    *is_close = false;
    if (top_p < 1) {
        for (uint32_t v = 1; v <= count; v++)
            *is_close |= fabsl(sum[v] - top_p * sum[count]) < near * sum[count];
    }
    at = (long double)uniform * 0x1p-32L * sum[kept];
    while (i + 1 < kept && sum[i + 1] <= at)
        i++;
    *is_close |= fabsl(sum[i] - at) < near * sum[count] && i > 0;
    *is_close |= fabsl(sum[i + 1] - at) < near * sum[count];
    i = order[i];
    free(order);
    free(sum);
    return i;
}

/* One launch makes what the next one reads, and leaves the turns at 0. */
static void sample_tokens(struct mp_cuda_sample *p)
{
    uint32_t *turn = operand(p->tokens * sizeof(*turn));

    memset(turn, 0, p->tokens * sizeof(*turn));
    p->turn = at(turn);
    p->part = at(operand(mp_cuda_sample_part_bytes(p)));
    launch(MP_CUDA_KERNEL_sample_list, p);
    launch(MP_CUDA_KERNEL_sample, p);
    for (uint32_t t = 0; t < p->tokens; t++)
        CHECK_EQ(turn[t], 0);
}

/* kind 0: any logits, 1: many are equal, 2: some are -inf, 3: two of one value, and none near. */
static void sample_of(uint32_t V, int kind, uint32_t top_k, double top_p, float temperature)
{
    const uint32_t tokens = 5;
    float *logits = floats((size_t)tokens * V);
    uint32_t *token = operand(tokens * sizeof(*token)), *uniform = operand(tokens * sizeof(*token));
    struct mp_cuda_sample p = {
        .logits = at(logits),
        .uniform = at(uniform),
        .token = at(token),
        .top_p = (uint64_t)(top_p * 0x1p32),
        .vocab = V,
        .tokens = tokens,
        .top_k = top_k,
        .temperature = temperature,
    };
    unsigned close = 0;

    for (uint32_t i = 0; i < tokens * V; i++) {
        logits[i] *= 6;
        if (kind == 1)
            logits[i] = floorf(logits[i]) * (random_u32() % 2 == 0 ? 1.0f : -1.0f);
        if (kind == 2 && random_u32() % 3 == 0 && i % V != V / 2)
            logits[i] = -INFINITY;
        if (kind == 3)
            logits[i] = i % V == V / 3 || i % V == V - 1 ? 3 : -300;
    }
    for (uint32_t t = 0; t < tokens; t++)
        uniform[t] = t == 0 ? 0 : t == 1 ? UINT32_MAX : random_u32();
    sample_tokens(&p);
    for (uint32_t t = 0; t < tokens; t++) {
        bool is_close;
        const uint32_t want = sample_expected(logits + t * V, &p, uniform[t], &is_close);

        CHECK(token[t] < V);
        if (!is_close)
            CHECK_EQ(token[t], want);
        close += is_close && t > 1;
    }
    CHECK(close < tokens - 2 || V == 1);
    free_operands();
}

static void sample(void)
{
    static const uint32_t widths[] = { 1, 2, 33, 513, 1531 };

    for (size_t i = 0; i < LEN(widths); i++) {
        const uint32_t V = widths[i];

        sample_of(V, 0, 0, 1, 1);
        sample_of(V, 0, 0, 0.9, 0.7f);
        sample_of(V, 1, 40, 1, 1.5f);
        sample_of(V, 1, V / 2 + 1, 0.6, 1);
        sample_of(V, 2, 3, 0.95, 0.8f);
        sample_of(V, 3, 0, 0.99, 100);
        sample_of(V, 0, 30, 0.99, 0.05f);
    }
    sample_of(17000, 0, 40, 0.95, 0.8f); /* as many blocks as there may be */
}

/* Greedy, and logits that are no numbers. */
static void sample_without_chance(void)
{
    const uint32_t V = 700, tokens = 5;
    float *logits = floats(tokens * V);
    uint32_t *token = operand(tokens * sizeof(*token)), *uniform = operand(tokens * sizeof(*token));
    struct mp_cuda_sample p = {
        .logits = at(logits),
        .uniform = at(uniform),
        .token = at(token),
        .top_p = 1ull << 32,
        .vocab = V,
        .tokens = tokens,
    };

    for (uint32_t t = 0; t < tokens; t++)
        uniform[t] = random_u32();
    logits[600] = logits[333] = 50;
    logits[V] = -0.0f; /* and 0 are equal */
    for (uint32_t i = 1; i < V; i++)
        logits[V + i] = i == 9 ? 0.0f : -1 - fabsf(logits[V + i]);
    logits[2 * V + 699] = copysignf(NAN, -1); /* in the order it would be the last */
    logits[3 * V + 512] = INFINITY;
    for (uint32_t i = 0; i < V; i++)
        logits[4 * V + i] = -INFINITY;
    for (int hot = 0; hot < 2; hot++) {
        p.temperature = hot ? FLT_MIN : 0;
        p.top_k = hot ? 1 : 7;
        sample_tokens(&p);
        CHECK_EQ(token[0], 333);
        CHECK_EQ(token[1], 0);
        CHECK_EQ(token[2], UINT32_MAX);
        CHECK_EQ(token[3], UINT32_MAX);
        CHECK_EQ(token[4], UINT32_MAX);
    }
    free_operands();
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
    for (int i = 0; i < MP_CUDA_QUANT_FIRST; i++) {
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
        char bytes[512];
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
    each_order("sample", sample);
    each_order("sample_without_chance", sample_without_chance);
    each_order("measuring", measuring);
    RUN(image);
    RUN(no_work);
    return 0;
}
