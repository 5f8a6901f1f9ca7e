/*
 * Products on a device, run on the CPU: values against sums in double, bits against every other way
 * of computing the same element.
 */
#include "tests/unit/kernels/cuda/cuda_run.h"

static const uint32_t widths[] = { 1, 7, 8, 31, 33, 64, 100, 255, 256, 257, 264, 520, 776 };
static const uint32_t row_counts[] = { 1, 5, 33 };
static const uint32_t token_counts[] = { 1, 2, 3, 4, 5, 8 };

enum product { GEMV, GEMM };

/* y is made anew: stride rows + 3, so that what lies between rows is seen to stay. */
static float *product(enum product kind, enum mp_wtype type, const void *w, uint32_t w_stride,
                      const float *x, uint32_t x_stride, uint32_t rows, uint32_t cols,
                      uint32_t tokens)
{
    float *y = operand(((tokens - 1) * (rows + 3) + rows) * sizeof(*y));
    const struct mp_cuda_matmul p = {
        .w = at(w),
        .x = at(x),
        .y = at(y),
        .type = type,
        .rows = rows,
        .cols = cols,
        .tokens = tokens,
        .w_stride = w_stride,
        .x_stride = x_stride,
        .y_stride = rows + 3,
    };

    launch(kind == GEMV ? mp_cuda_gemv(type, tokens) : mp_cuda_type(type)->gemm, &p);
    for (uint32_t t = 0; t + 1 < tokens; t++)
        for (uint32_t i = 0; i < 3; i++)
            CHECK_EQ(float_bits(y[t * (rows + 3) + rows + i]), 0xA5A5A5A5u);
    return y;
}

/* 8 columns of a lane for each 256 of a part are added in a row, then 32 lanes, then parts. */
static void check_values(const float *y, const float *w, uint32_t w_stride, const float *x,
                         uint32_t x_stride, uint32_t rows, uint32_t cols, uint32_t tokens)
{
    const double limit = (cols / 256 * 8 + 8 + 6 + 4) * 0x1p-24;

    for (uint32_t t = 0; t < tokens; t++) {
        for (uint32_t r = 0; r < rows; r++) {
            double sum = 0, magnitude = 0;

            for (uint32_t c = 0; c < cols; c++) {
                const double a = (double)w[(size_t)r * w_stride + c] * (double)x[t * x_stride + c];

                sum += a;
                magnitude += fabs(a);
            }
            CHECK(fabs((double)y[t * (rows + 3) + r] - sum) <= limit * magnitude);
        }
    }
}

static void check_equal(const float *a, const float *b, uint32_t rows, uint32_t tokens)
{
    for (uint32_t t = 0; t < tokens; t++)
        CHECK(memcmp(a + t * (rows + 3), b + t * (rows + 3), rows * sizeof(*a)) == 0);
}

static void gemv_values(void)
{
    for (int type = 0; type < MP_WTYPE_PLAIN_COUNT; type++) {
        for (size_t j = 0; j < LEN(widths) * LEN(row_counts); j++) {
            const uint32_t cols = widths[j % LEN(widths)], rows = row_counts[j / LEN(widths)];
            const uint32_t tokens = token_counts[j % LEN(token_counts)];
            const uint32_t gap = j % 2 == 0 ? 0 : 3;
            const void *w = weights((enum mp_wtype)type, (size_t)rows * (cols + gap));
            const float *x = floats((size_t)tokens * (cols + gap));
            float *wide = widen(w, (enum mp_wtype)type, (size_t)rows * (cols + gap));
            const float *y = product(GEMV, (enum mp_wtype)type, w, cols + gap, x, cols + gap, rows,
                                     cols, tokens);

            check_values(y, wide, cols + gap, x, cols + gap, rows, cols, tokens);
            free(wide);
            free_operands();
        }
    }
}

/* Parts of the columns by one warp or four, one token or many, GEMV or GEMM, aligned or not. */
static void same_bits_always(enum mp_wtype type, uint32_t rows, uint32_t cols, uint32_t tokens,
                             uint32_t checked)
{
    const size_t bytes = mp_wtype_bytes(type, 1), count = (size_t)rows * cols;
    const void *w = weights(type, count);
    char *shifted_w = operand(count * bytes + 2);
    const float *x = floats((size_t)tokens * cols);
    float *shifted_x = floats((size_t)tokens * cols + 1);
    const float *all, *odd;

    memcpy(shifted_w, w, count * bytes); /* ends 2 bytes before a page */
    memcpy(shifted_x, x, (size_t)tokens * cols * sizeof(*x));
    all = product(GEMM, type, w, cols, x, cols, rows, cols, tokens);
    odd = product(GEMM, type, shifted_w, cols, shifted_x, cols, rows, cols, tokens);
    check_equal(all, odd, rows, tokens);
    for (uint32_t n = 1; n <= 8 && n <= tokens; n++) {
        const uint32_t t = (tokens - n) / 2;
        const float *some = product(GEMV, type, w, cols, x + t * cols, cols, rows, cols, n);
        const uint32_t r = rows - checked;
        const float *few = product(GEMV, type, (const char *)w + r * cols * bytes, cols,
                                   x + t * cols, cols, checked, cols, n);

        check_equal(all + t * (rows + 3), some, rows, n);
        for (uint32_t i = 0; i < n; i++)
            CHECK(memcmp(few + i * (checked + 3), some + i * (rows + 3) + r,
                         checked * sizeof(*few)) == 0);
    }
    free_operands();
}

static void bits_of_small_products(void)
{
    for (int type = 0; type < MP_WTYPE_PLAIN_COUNT; type++) {
        same_bits_always((enum mp_wtype)type, 5, 264, 9, 2);
        same_bits_always((enum mp_wtype)type, 33, 256, 8, 7);
        same_bits_always((enum mp_wtype)type, 3, 1000, 64, 3);
        same_bits_always((enum mp_wtype)type, 6, 1032, 9, 2); /* four parts, the last one short */
        same_bits_always((enum mp_wtype)type, 9, 2320, 8, 5);
        same_bits_always((enum mp_wtype)type, 7, 31, 17, 1);
    }
}

/* Many rows take all parts of four rows to a warp. */
static void bits_of_wide_products(void)
{
    same_bits_always(MP_WTYPE_BF16, MP_GEMV_SPLIT_ROWS_MAX + 3, 1024, 1, 3);
}

static void bias_and_accumulate(void)
{
    const uint32_t rows = 35, cols = 72, tokens = 9;
    const float *w = floats(rows * cols), *x = floats(tokens * cols), *bias = floats(rows);
    const float *plain = product(GEMM, MP_WTYPE_F32, w, cols, x, cols, rows, cols, tokens);
    struct mp_cuda_matmul p = {
        .w = at(w),
        .x = at(x),
        .bias = at(bias),
        .type = MP_WTYPE_F32,
        .rows = rows,
        .cols = cols,
        .w_stride = cols,
        .x_stride = cols,
        .y_stride = rows,
    };

    for (int n = 0; n < 2; n++) {
        float *y = floats(tokens * rows), before[9 * 35];

        memcpy(before, y, sizeof(before));
        p.y = at(y);
        p.tokens = n == 0 ? 8 : tokens;
        p.accumulate = (uint32_t)n;
        launch(n == 0 ? MP_CUDA_KERNEL_gemv8_f32 : MP_CUDA_KERNEL_gemm_f32, &p);
        for (uint32_t i = 0; i < p.tokens * rows; i++) {
            const float sum = plain[i / rows * (rows + 3) + i % rows] + bias[i % rows];

            CHECK(same(y[i], n == 0 ? sum : before[i] + sum));
        }
    }
    free_operands();
}

static void weights_of_every_kind(void)
{
    uint16_t *w = operand(65536 * 2);
    const float one = 1;
    float *x = operand(8 * sizeof(*x)), *wide;

    for (int i = 0; i < 8; i++)
        x[i] = i == 0 ? one : 0;
    for (uint32_t i = 0; i < 65536; i++)
        w[i] = (uint16_t)i;
    for (int type = MP_WTYPE_BF16; type <= MP_WTYPE_F16; type++) {
        const float *y;

        wide = widen(w, (enum mp_wtype)type, 65536);
        y = product(GEMV, (enum mp_wtype)type, w, 8, x, 0, 8192, 1, 1);
        for (uint32_t r = 0; r < 8192; r++)
            CHECK(same(y[r], wide[8 * r] + 0.0f));
        y = product(GEMV, (enum mp_wtype)type, w + 1, 1, x, 0, 65535, 1, 1);
        for (uint32_t r = 0; r < 65535; r++)
            CHECK(same(y[r], wide[r + 1] + 0.0f));
        /* The same in the eight columns of one lane, where the others' weights are finite. */
        for (uint32_t r = 0; r < 4096; r++)
            for (int i = 0; i < 8; i++)
                w[r * 8 + (uint32_t)i] = i == (int)r % 8 ? (uint16_t)(r * 16 + 5) : 0;
        for (int i = 0; i < 8; i++)
            x[i] = one;
        y = product(GEMV, (enum mp_wtype)type, w, 8, x, 8, 4096, 8, 1);
        for (uint32_t r = 0; r < 4096; r++)
            CHECK(same(y[r], wide[r * 16 + 5] + 0.0f));
        for (uint32_t i = 0; i < 65536; i++)
            w[i] = (uint16_t)i;
        free(wide);
    }
    free_operands();
}

int main(void)
{
    each_order("gemv_values", gemv_values);
    each_order("bits_of_small_products", bits_of_small_products);
    RUN(bits_of_wide_products);
    each_order("bias_and_accumulate", bias_and_accumulate);
    RUN(weights_of_every_kind);
    return 0;
}
