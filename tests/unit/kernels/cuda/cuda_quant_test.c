/*
 * Kernels for quantised weights on a device, run on the CPU: every bit is that of the kernels for
 * F32 with the weights that kernels/cpu/quant decodes in plain C. So what holds for those
 * (cuda_matmul_test, cuda_experts_test, cuda_fused_test) holds for these; values are held against
 * sums in double here, too.
 */
#include "tests/device/simt/simt_thread.h"
#include "tests/unit/kernels/cuda/cuda_run.h"

static const enum mp_wtype types[] = {
#define X(TYPE, name) MP_WTYPE_##TYPE,
    MP_CUDA_QUANT_MAP(X)
#undef X
};

/* The decoded weights as an operand. */
static float *decoded(const void *w, enum mp_wtype type, size_t count)
{
    float *p = operand(count * sizeof(*p));

    mp_wtype_info(type)->convert(p, w, count);
    return p;
}

/* The same bytes so many further on than a multiple of 16. */
static char *shifted(const void *from, size_t bytes, size_t shift)
{
    char *p = operand(bytes + 16 + shift);

    p += (16 - (uintptr_t)p % 16) % 16 + shift;
    memcpy(p, from, bytes);
    return p;
}

/* ---- rows of a table */

/* Blocks of all kinds: any bytes are one, also with scales that are denormal, infinite or NaN. */
static void any_bytes_are_what_they_are_on_the_cpu(void)
{
    const uint32_t width = 512, vocab = 40;

    for (size_t i = 0; i < LEN(types); i++) {
        const size_t bytes = mp_wtype_bytes(types[i], (size_t)vocab * width);
        uint32_t *token = operand(vocab * sizeof(*token));
        unsigned char *table = operand(bytes);
        float *x = operand(sizeof(*x) * vocab * width), *want;
        const struct mp_cuda_embed p = { .table = at(table),
                                         .token = at(token),
                                         .x = at(x),
                                         .type = types[i],
                                         .width = width,
                                         .tokens = vocab,
                                         .vocab = vocab };

        for (size_t b = 0; b < bytes; b++)
            table[b] = next_byte();
        for (uint32_t t = 0; t < vocab; t++)
            token[t] = (t * 7 + 3) % vocab;
        launch(MP_CUDA_KERNEL_embed, &p);
        want = decoded(table, types[i], (size_t)vocab * width);
        for (uint32_t t = 0; t < vocab; t++) {
            for (uint32_t c = 0; c < width; c++)
                CHECK(same(x[t * width + c], want[token[t] * width + c]));
        }
        free_operands();
    }
}

/* ---- matrices */

static float *product(enum mp_cuda_kernel kernel, enum mp_wtype type, const void *w, const float *x,
                      uint32_t rows, uint32_t cols, uint32_t tokens)
{
    float *y = operand(sizeof(*y) * tokens * rows);
    const struct mp_cuda_matmul p = { .w = at(w),
                                      .x = at(x),
                                      .y = at(y),
                                      .type = type,
                                      .rows = rows,
                                      .cols = cols,
                                      .tokens = tokens,
                                      .w_stride = cols,
                                      .x_stride = cols,
                                      .y_stride = rows };

    launch(kernel, &p);
    return y;
}

static void check_values(const float *y, const float *w, const float *x, uint32_t rows,
                         uint32_t cols, uint32_t tokens)
{
    const double limit = (cols / 256 * 8 + 8 + 6 + 4) * 0x1p-24;

    for (uint32_t i = 0; i < rows * tokens; i++) {
        double sum = 0, magnitude = 0;

        for (uint32_t c = 0; c < cols; c++) {
            const double a =
                (double)w[i % rows * cols + c] * (double)x[(size_t)(i / rows) * cols + c];

            sum += a;
            magnitude += fabs(a);
        }
        CHECK(fabs((double)y[i] - sum) <= limit * magnitude);
    }
}

/* GEMM and GEMV with 1 to 8 tokens, of weights and activations that are aligned or not. */
static void products_of(enum mp_wtype type, uint32_t rows, uint32_t cols, uint32_t tokens)
{
    const size_t count = (size_t)rows * cols, bytes = mp_wtype_bytes(type, count);
    const void *w = weights(type, count);
    const char *odd_w[2] = { shifted(w, bytes, 2), shifted(w, bytes, 3) };
    const float *wide = decoded(w, type, count), *x = floats((size_t)tokens * cols), *want, *y;
    float *odd_x = floats((size_t)tokens * cols + 1);
    const enum mp_cuda_kernel gemm = mp_cuda_type(type)->gemm;

    memcpy(odd_x, x, (size_t)tokens * cols * sizeof(*x));
    want = product(MP_CUDA_KERNEL_gemm_f32, MP_WTYPE_F32, wide, x, rows, cols, tokens);
    check_values(want, wide, x, rows, cols, tokens);
    for (int i = 0; i < 4; i++) {
        y = product(gemm, type, i % 2 == 0 ? w : odd_w[i / 2], i < 2 ? x : odd_x, rows, cols,
                    tokens);
        CHECK(memcmp(y, want, sizeof(*y) * rows * tokens) == 0);
    }
    for (uint32_t n = 1; n <= 8 && n <= tokens; n++) {
        const uint32_t t = (tokens - n) / 2;

        y = product(mp_cuda_gemv(type, n), type, n % 2 == 0 ? w : odd_w[n / 2 % 2], x + t * cols,
                    rows, cols, n);
        CHECK(memcmp(y, want + t * rows, sizeof(*y) * rows * n) == 0);
    }
    free_operands();
}

static void products(void)
{
    for (size_t i = 0; i < LEN(types); i++) {
        const uint32_t block = (uint32_t)mp_wtype_info(types[i])->block_elements;

        products_of(types[i], 5, 256, 9);
        products_of(types[i], 18, block, 3);
        products_of(types[i], 6, 1024 + block, 8); /* parts shared out, the last one short */
    }
}

/* ---- a norm and products that read it */

static void project(void)
{
    static const uint32_t rows[3] = { 18, 9, 3 };

    for (size_t i = 0; i < LEN(types) * 3; i++) {
        const enum mp_wtype type = types[i / 3];
        const uint32_t tokens = (uint32_t)(i % 3) * 3 + 1, cols = i % 2 == 0 ? 256 : 1280;
        struct mp_cuda_project p = { .in = { .x = at(floats((size_t)tokens * cols)),
                                             .norm = at(floats(cols)),
                                             .cols = cols,
                                             .tokens = tokens,
                                             .eps = 1e-6f } };
        struct mp_cuda_project wide = p;

        for (unsigned k = 0; k < 3; k++) {
            const size_t count = (size_t)rows[k] * cols;
            const void *w = weights(type, count);
            const uint64_t bias = k == 1 ? at(floats(rows[k])) : 0;

            p.part[k] = (struct mp_cuda_part){ at(w), at(operand(sizeof(float) * tokens * rows[k])),
                                               bias, rows[k], 0 };
            wide.part[k] = (struct mp_cuda_part){ at(decoded(w, type, count)),
                                                  at(operand(sizeof(float) * tokens * rows[k])),
                                                  bias, rows[k], 0 };
        }
        launch(mp_cuda_project(type, tokens), &p);
        launch(mp_cuda_project(MP_WTYPE_F32, tokens), &wide);
        for (unsigned k = 0; k < 3; k++)
            CHECK(memcmp((const void *)(uintptr_t)p.part[k].y,
                         (const void *)(uintptr_t)wide.part[k].y,
                         sizeof(float) * tokens * rows[k]) == 0);
        free_operands();
    }
}

/* ---- experts */

#define TOP_K 2
#define EXPERTS 3
#define HIDDEN 256u /* a block */
#define TOKENS 12u

/* act and rank of a list, for gates and ups of one type and downs of another. */
struct results {
    float *act, *rank;
};

static struct results run_experts(const struct mp_cuda_expert *list, const uint32_t *rows,
                                  uint32_t row_count, const float *x, uint32_t channels,
                                  enum mp_wtype up, enum mp_wtype down, float *rank)
{
    struct mp_cuda_expert *work = operand(EXPERTS * sizeof(*work));
    uint32_t *row = operand(row_count * sizeof(*row));
    const struct results to = { operand(sizeof(float) * row_count * channels), rank };
    struct mp_cuda_experts p = {
        .work = at(work),
        .row = at(row),
        .x = at(x),
        .act = at(to.act),
        .rank = at(to.rank),
        .type = up,
        .works = EXPERTS,
        .hidden = HIDDEN,
        .channels = channels,
        .top_k = TOP_K,
        .x_stride = HIDDEN,
    };

    memcpy(work, list, EXPERTS * sizeof(*work));
    memcpy(row, rows, row_count * sizeof(*row));
    for (int e = 0; e < EXPERTS; e++)
        p.rows_max = list[e].count > p.rows_max ? list[e].count : p.rows_max;
    launch(mp_cuda_experts_up(up, p.rows_max), &p);
    p.type = down;
    launch(mp_cuda_experts_down(down, p.rows_max), &p);
    return to;
}

static void experts_of(enum mp_wtype up, enum mp_wtype down, const uint32_t counts[EXPERTS],
                       uint32_t channels, bool odd)
{
    const size_t count = (size_t)channels * HIDDEN, ranks = (size_t)TOKENS * TOP_K * HIDDEN;
    struct mp_cuda_expert list[EXPERTS], wide[EXPERTS];
    float *rank = floats(ranks), *wide_rank = floats(ranks);
    const float *x = floats((size_t)TOKENS * HIDDEN);
    uint32_t rows[TOKENS * TOP_K], used = 0;
    struct results a, b;

    memcpy(wide_rank, rank, ranks * sizeof(*rank));
    for (uint32_t i = 0; i < LEN(rows); i++)
        rows[i] = i * 5 % (uint32_t)LEN(rows);
    for (uint32_t e = 0; e < EXPERTS; e++) {
        uint64_t from[3], to[3];

        for (int m = 0; m < 3; m++) {
            const enum mp_wtype type = m == 2 ? down : up;
            const void *w = weights(type, count);

            to[m] = at(decoded(w, type, count));
            from[m] = odd ? at(shifted(w, mp_wtype_bytes(type, count), 2)) : at(w);
        }
        list[e] = (struct mp_cuda_expert){ from[0],   from[1],  from[2],   used,
                                           counts[e], channels, e % 2 == 1 };
        wide[e] =
            (struct mp_cuda_expert){ to[0], to[1], to[2], used, counts[e], channels, e % 2 == 1 };
        used += counts[e];
    }
    a = run_experts(list, rows, used, x, channels, up, down, rank);
    b = run_experts(wide, rows, used, x, channels, MP_WTYPE_F32, MP_WTYPE_F32, wide_rank);
    CHECK(memcmp(a.act, b.act, sizeof(float) * used * channels) == 0);
    CHECK(memcmp(a.rank, b.rank, sizeof(float) * ranks) == 0);
    free_operands();
}

/* One row, up to 8 and more of an expert; a further slice, which goes on with what there is. */
static void experts(void)
{
    static const uint32_t counts[][EXPERTS] = { { 1, 1, 0 }, { 3, 8, 2 }, { 0, 17, 4 } };

    for (size_t i = 0; i < LEN(types) * LEN(counts); i++) {
        const enum mp_wtype up = types[i / LEN(counts)];
        const enum mp_wtype down = i % 2 == 0 ? up : types[(i / LEN(counts) + 1) % LEN(types)];
        const uint32_t channels = i % LEN(counts) == 1 ? 512 : 256;

        experts_of(up, down, counts[i % LEN(counts)], channels, i % 2 == 1);
    }
}

#define DOWNS 8u /* rows */

/* How often a matrix of downs asks the second-level cache ahead, for so many rows of an expert. */
static uint64_t asks_of(enum mp_wtype type, uint32_t rows, uint32_t channels)
{
    struct mp_cuda_expert *work = operand(sizeof(*work));
    uint32_t *row = operand(rows * sizeof(*row));
    const struct mp_cuda_experts p = {
        .work = at(work),
        .row = at(row),
        .act = at(floats((size_t)rows * channels)),
        .rank = at(operand(sizeof(float) * rows * DOWNS)),
        .type = type,
        .works = 1,
        .hidden = DOWNS,
        .channels = channels,
        .top_k = 1,
        .rows_max = rows,
    };

    *work = (struct mp_cuda_expert){ .down = at(weights(type, (size_t)channels * DOWNS)),
                                     .count = rows,
                                     .channels = channels };
    for (uint32_t i = 0; i < rows; i++)
        row[i] = i;
    mp_simt_asks = 0;
    launch(mp_cuda_experts_down(type, rows), &p);
    free_operands();
    return mp_simt_asks;
}

/* A lane asks once for each step of a row, however many rows of the expert read it; the first ones,
 * at most 8, are asked for before the row begins. Not so of Q5_1 and Q5_K. */
static void experts_ask_ahead(void)
{
    for (size_t i = 0; i < LEN(types); i++) {
        const struct mp_wtype_info *info = mp_wtype_info(types[i]);
        const uint64_t lanes = info->block_elements == 256 ? (info->block_bytes + 7) / 8 : 32;

        for (uint32_t rows = 1; rows <= 8 && types[i] != MP_WTYPE_Q5_1 && types[i] != MP_WTYPE_Q5_K;
             rows += rows < 2 ? 1 : 6)
            CHECK_EQ(asks_of(types[i], rows, 2816) - asks_of(types[i], rows, 2048),
                     3 * DOWNS * lanes);
    }
}

/* ---- what the host knows of them */

static void images(void)
{
    CHECK_EQ(LEN(types), MP_WTYPE_COUNT - MP_WTYPE_PLAIN_COUNT);
    for (size_t i = 0; i < LEN(types); i++) {
        const struct mp_cuda_type *type = mp_cuda_type(types[i]);
        const char *name = mp_wtype_name(types[i]);

        CHECK(strstr(type->image, ".target sm_75") != NULL);
        CHECK_EQ(type->end - type->first, 11);
        for (unsigned k = type->first; k < type->end; k++) {
            const char *kernel = mp_cuda_kernel_name((enum mp_cuda_kernel)k);
            char text[80];

            CHECK_STR(kernel + strlen(kernel) - strlen(name), name);
            snprintf(text, sizeof(text), ".entry %s(", kernel);
            CHECK(strstr(type->image, text) != NULL);
            CHECK(strstr(mp_cuda_image, text) == NULL);
        }
        CHECK_EQ(mp_cuda_route(types[i], 1), MP_CUDA_KERNEL_COUNT);
        CHECK_EQ(type->round, MP_CUDA_KERNEL_COUNT);
    }
    CHECK(mp_cuda_type(MP_WTYPE_BF16)->image == NULL);
    CHECK(mp_cuda_type(MP_WTYPE_COUNT) == NULL);
}

int main(void)
{
    RUN(any_bytes_are_what_they_are_on_the_cpu);
    RUN(products);
    RUN(project);
    RUN(experts);
    RUN(experts_ask_ahead);
    RUN(images);
    return 0;
}
