/*
 * Grouped experts on a device, run on the CPU: values against sums in double; bits do not depend on
 * the other experts of a list, on the other rows of an expert, or on slices.
 */
#include "tests/unit/kernels/cuda/cuda_run.h"

#define TOP_K 3
#define EXPERTS 5

struct problem {
    enum mp_wtype type;
    uint32_t hidden, channels, tokens, x_stride;
    const char *gate[EXPERTS], *up[EXPERTS], *down[EXPERTS];
    const float *x;
};

static struct problem problem_make(enum mp_wtype type, uint32_t hidden, uint32_t channels,
                                   uint32_t tokens)
{
    struct problem p = { type, hidden, channels, tokens, hidden + 4, { 0 }, { 0 }, { 0 }, 0 };

    for (int e = 0; e < EXPERTS; e++) {
        p.gate[e] = weights(type, (size_t)channels * hidden);
        p.up[e] = weights(type, (size_t)channels * hidden);
        p.down[e] = weights(type, (size_t)channels * hidden);
    }
    p.x = floats((size_t)tokens * p.x_stride);
    return p;
}

/* Run a list with the kernels for so many rows of an expert, or more where one has more; ranks that
 * it does not name stay as they are. */
static void run_with(uint32_t rows_max, const struct problem *p, const struct mp_cuda_expert *list,
                     uint32_t works, const uint32_t *rows, uint32_t row_count, float *rank)
{
    struct mp_cuda_expert *work = operand(works * sizeof(*work));
    uint32_t *row = operand(row_count * sizeof(*row) + 4);
    struct mp_cuda_experts params = {
        .work = at(work),
        .row = at(row),
        .x = at(p->x),
        .act = at(operand((size_t)row_count * p->channels * sizeof(float))),
        .rank = at(rank),
        .type = p->type,
        .works = works,
        .hidden = p->hidden,
        .channels = p->channels,
        .top_k = TOP_K,
        .x_stride = p->x_stride,
        .rows_max = rows_max,
    };

    memcpy(work, list, works * sizeof(*work));
    memcpy(row, rows, row_count * sizeof(*row));
    for (uint32_t i = 0; i < works; i++)
        params.rows_max = list[i].count > params.rows_max ? list[i].count : params.rows_max;
    launch(mp_cuda_experts_up(p->type, params.rows_max), &params);
    launch(mp_cuda_experts_down(p->type, params.rows_max), &params);
}

static void run(const struct problem *p, const struct mp_cuda_expert *list, uint32_t works,
                const uint32_t *rows, uint32_t row_count, float *rank)
{
    run_with(0, p, list, works, rows, row_count, rank);
}

static struct mp_cuda_expert entry(const struct problem *p, int e, uint32_t first, uint32_t count)
{
    return (struct mp_cuda_expert){
        at(p->gate[e]), at(p->up[e]), at(p->down[e]), first, count, p->channels, 0
    };
}

static float *new_ranks(const struct problem *p)
{
    const size_t count = (size_t)p->tokens * TOP_K * p->hidden;
    float *rank = operand(count * sizeof(*rank));

    for (size_t i = 0; i < count; i++)
        rank[i] = 77;
    return rank;
}

/* One output row in double: within a few roundings of each sum. */
static void check_row(const struct problem *p, int e, uint32_t row, const float *rank)
{
    const size_t F = p->channels, H = p->hidden;
    float *gate = widen(p->gate[e], p->type, F * H), *up = widen(p->up[e], p->type, F * H);
    float *down = widen(p->down[e], p->type, F * H);
    double *act = calloc(F, sizeof(*act)), *error = calloc(F, sizeof(*error));
    const float *x = p->x + (size_t)(row / TOP_K) * p->x_stride;

    CHECK(act != NULL && error != NULL);
    for (size_t c = 0; c < F; c++) {
        double g = 0, u = 0, g_sum = 0, u_sum = 0;
        const double eps = ((double)H / 256 * 8 + 16) * 0x1p-24;

        for (size_t i = 0; i < H; i++) {
            g += (double)gate[c * H + i] * (double)x[i];
            u += (double)up[c * H + i] * (double)x[i];
            g_sum += fabs((double)gate[c * H + i] * (double)x[i]);
            u_sum += fabs((double)up[c * H + i] * (double)x[i]);
        }
        act[c] = g / (1 + exp(-g)) * u;
        error[c] = eps * (1.2 * g_sum * fabs(u) + u_sum * fabs(g) + fabs(act[c]));
    }
    for (size_t h = 0; h < H; h++) {
        double sum = 0, limit = 0;

        for (size_t c = 0; c < F; c++) {
            sum += (double)down[h * F + c] * act[c];
            limit += fabs((double)down[h * F + c]) *
                     (error[c] + ((double)F / 256 + 16) * 0x1p-24 * fabs(act[c]));
        }
        CHECK(fabs((double)rank[(size_t)row * H + h] - sum) <= limit);
    }
    free(gate);
    free(up);
    free(down);
    free(act);
    free(error);
}

/* Experts with 0 to 17 rows, which stand in any order. */
static void lists(enum mp_wtype type, uint32_t hidden, uint32_t channels)
{
    static const uint32_t counts[EXPERTS] = { 3, 0, 17, 1, 9 };
    const struct problem p = problem_make(type, hidden, channels, 12);
    struct mp_cuda_expert list[EXPERTS];
    uint32_t rows[36], used = 0, expert_of[36];
    float *rank = new_ranks(&p), *alone = new_ranks(&p), *last;

    for (uint32_t i = 0; i < 36; i++)
        rows[i] = i * 7 % 36;
    for (int e = 0; e < EXPERTS; e++) {
        list[e] = entry(&p, e, used, counts[e]);
        for (uint32_t i = 0; i < counts[e]; i++)
            expert_of[used++] = (uint32_t)e;
    }
    run(&p, list, EXPERTS, rows, used, rank);
    for (uint32_t i = 0; i < 36; i++) {
        if (i < used && i % 5 == 0)
            check_row(&p, (int)expert_of[i], rows[i], rank);
        if (i >= used) {
            for (uint32_t h = 0; h < hidden; h++)
                CHECK(same(rank[(size_t)rows[i] * hidden + h], 77));
        }
    }
    for (uint32_t i = 0; i < used; i++) { /* each row alone */
        const struct mp_cuda_expert one = entry(&p, (int)expert_of[i], 0, 1);

        if (i % 3 == 0) {
            run(&p, &one, 1, &rows[i], 1, alone);
            last = alone + (size_t)rows[i] * hidden;
            CHECK(memcmp(last, rank + (size_t)rows[i] * hidden, hidden * sizeof(*last)) == 0);
            for (int n = 0; n < 3; n++)
                guarded_free(&operands[--operand_count].memory);
        }
    }
    free_operands();
}

static void values_and_lists(void)
{
    for (int type = 0; type < MP_WTYPE_PLAIN_COUNT; type++) {
        lists((enum mp_wtype)type, 64, 264);
        lists((enum mp_wtype)type, 33, 31); /* not aligned */
        lists((enum mp_wtype)type, 8, 7);
    }
}

static void is_kernel(enum mp_cuda_kernel kernel, const char *what, const char *rows, int type)
{
    static const char *const types[] = {
        [MP_WTYPE_F32] = "f32", [MP_WTYPE_BF16] = "bf16", [MP_WTYPE_F16] = "f16"
    };
    char name[64];

    snprintf(name, sizeof(name), "mp_%s%s_%s", what, rows, types[type]);
    CHECK_STR(mp_cuda_kernel_name(kernel), name);
}

/* Steps of few tokens have kernels for 1, 2, 4 and 8, which give each other's bits. */
static void few_tokens(void)
{
    static const char *const rows_of[] = { "", "1", "2", "4", "4", "8", "8", "8", "8", "" };
    const uint32_t shape[2][2] = { { 64, 264 }, { 33, 31 } };

    for (int type = 0; type < MP_WTYPE_PLAIN_COUNT; type++) {
        for (uint32_t most = 1; most <= 9; most++) {
            const uint32_t *size = shape[most % 4 == 3];
            const uint32_t counts[EXPERTS] = { 1, most, 0, (most + 1) / 2, most > 1 ? 2 : 1 };
            const struct problem p =
                problem_make((enum mp_wtype)type, size[0], size[1], most * 2 + 1);
            float *few = new_ranks(&p), *any = new_ranks(&p);
            struct mp_cuda_expert list[EXPERTS];
            uint32_t rows[3 * 19], used = 0;

            is_kernel(mp_cuda_experts_up(p.type, most), "experts_up", rows_of[most], type);
            is_kernel(mp_cuda_experts_down(p.type, most), "experts_down", rows_of[most], type);
            if (most <= 8)
                is_kernel(mp_cuda_route(p.type, most), "route", rows_of[most], type);
            for (uint32_t i = 0; i < p.tokens * TOP_K; i++)
                rows[i] = p.tokens * TOP_K - 1 - i;
            for (int e = 0; e < EXPERTS; e++) {
                list[e] = entry(&p, e, used, counts[e]);
                used += counts[e];
            }
            run(&p, list, EXPERTS, rows, used, few);
            run_with(9, &p, list, EXPERTS, rows, used, any);
            CHECK(memcmp(few, any, (size_t)p.tokens * TOP_K * p.hidden * sizeof(*any)) == 0);
            check_row(&p, 1, rows[most], few); /* its last one */
            free_operands();
        }
    }
}

/* Weights at odd addresses give the bits of aligned ones. */
static void addresses(void)
{
    for (int type = 0; type < MP_WTYPE_PLAIN_COUNT; type++) {
        struct problem p = problem_make((enum mp_wtype)type, 40, 520, 4);
        const size_t bytes = mp_wtype_bytes(p.type, (size_t)p.channels * p.hidden);
        const uint32_t rows[] = { 0, 5, 10 };
        float *aligned = new_ranks(&p), *odd = new_ranks(&p);
        struct mp_cuda_expert e = entry(&p, 0, 0, 3);

        run(&p, &e, 1, rows, 3, aligned);
        for (int i = 0; i < 3; i++) {
            const void *from = i == 0 ? p.gate[0] : (i == 1 ? p.up[0] : p.down[0]);
            char *to = operand(bytes + 2);

            memcpy(to, from, bytes);
            *(i == 0 ? &e.gate : (i == 1 ? &e.up : &e.down)) = at(to);
        }
        run(&p, &e, 1, rows, 3, odd);
        CHECK(memcmp(aligned, odd, (size_t)p.tokens * TOP_K * p.hidden * sizeof(*odd)) == 0);
        free_operands();
    }
}

/* An expert cut at a multiple of 256 channels, its parts one after another. */
static void slices(void)
{
    for (int type = 0; type < MP_WTYPE_PLAIN_COUNT; type++) {
        const struct problem p = problem_make((enum mp_wtype)type, 40, 600, 4);
        const size_t bytes = mp_wtype_bytes(p.type, 1);
        const uint32_t rows[] = { 7, 2, 4 };
        float *whole = new_ranks(&p), *parts = new_ranks(&p);
        const struct mp_cuda_expert all = entry(&p, 0, 0, 3);

        run(&p, &all, 1, rows, 3, whole);
        for (uint32_t first = 0; first < p.channels;) {
            const uint32_t n = first == 0 ? 256 : p.channels - first;
            char *down = operand(n * p.hidden * bytes);
            const struct mp_cuda_expert slice = {
                at(p.gate[0] + first * p.hidden * bytes),
                at(p.up[0] + first * p.hidden * bytes),
                at(down),
                0,
                3,
                n,
                first > 0,
            };

            for (uint32_t h = 0; h < p.hidden; h++)
                memcpy(down + h * n * bytes, p.down[0] + (h * p.channels + first) * bytes,
                       n * bytes);
            run(&p, &slice, 1, rows, 3, parts);
            first += n;
        }
        CHECK(memcmp(whole, parts, (size_t)p.tokens * TOP_K * p.hidden * sizeof(*parts)) == 0);
        free_operands();
    }
}

int main(void)
{
    each_order("values_and_lists", values_and_lists);
    each_order("few_tokens", few_tokens);
    RUN(addresses);
    each_order("slices", slices);
    return 0;
}
