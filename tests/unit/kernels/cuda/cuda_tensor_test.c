/*
 * Products for tensor cores, run on the CPU with an mma.sync made after its documentation
 * (tests/device/simt/mp_device.h): values against sums in double with the tolerance that
 * kernels/cuda/cuda_kernels.h gives, for every type of weights that has them; bits do not depend on
 * other rows and tokens, on addresses, on the other experts of a list, or on slices. What a
 * device's tensor cores give only a device shows (tools/gpu/check_products.c).
 */
#include "tests/unit/kernels/cuda/cuda_run.h"

#define TOP_K 3
#define TYPES_FIRST MP_WTYPE_BF16 /* and all behind it: the types that tensor cores take */

static bool is_quant(enum mp_wtype type)
{
    return type >= MP_WTYPE_PLAIN_COUNT;
}

/* Columns of a block. */
static uint32_t block_of(enum mp_wtype type)
{
    return (uint32_t)mp_wtype_info(type)->block_elements;
}

/* What rounding the operands of a product to 16 bits costs at most: an activation, and a weight
 * that was decoded. */
static double unit_of(enum mp_wtype type)
{
    return type == MP_WTYPE_BF16 ? 0x1p-8 : is_quant(type) ? 0x1p-10 + 0x1p-22 : 0x1p-11;
}

/* The same where one of them is below 2^-14. */
static double least_of(enum mp_wtype type, double w, double x)
{
    return is_quant(type) ? 0x1p-25 * (fabs(w) + fabs(x)) : 0;
}

static float *product(enum mp_wtype type, const void *w, uint32_t w_stride, const float *x,
                      uint32_t x_stride, uint32_t rows, uint32_t cols, uint32_t tokens)
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

    launch(mp_cuda_type(type)->tensor, &p);
    for (uint32_t t = 0; t + 1 < tokens; t++)
        for (uint32_t i = 0; i < 3; i++)
            CHECK_EQ(float_bits(y[t * (rows + 3) + rows + i]), 0xA5A5A5A5u);
    return y;
}

static float rounded(enum mp_wtype type, float v)
{
    uint16_t bits;
    float to;

    type = type == MP_WTYPE_BF16 ? type : MP_WTYPE_F16;
    mp_kernels_store(type, &bits, &v, 1);
    mp_kernels_ref.convert(&to, &bits, type, 1);
    return to;
}

/* Against the rounded operands, which leaves only what the sums cost (here one rounding for 16
 * columns), and against those that are not. */
static void check_values(enum mp_wtype type, const float *y, const float *w, uint32_t w_stride,
                         const float *x, uint32_t x_stride, uint32_t rows, uint32_t cols,
                         uint32_t tokens)
{
    const double sums = (cols / 16 + 2) * 0x1p-24;

    for (uint32_t t = 0; t < tokens; t++) {
        for (uint32_t r = 0; r < rows; r++) {
            double exact = 0, near = 0, magnitude = 0, got = (double)y[t * (rows + 3) + r];
            double least = 0;

            for (uint32_t c = 0; c < cols; c++) {
                const float weight = w[(size_t)r * w_stride + c], in = x[t * x_stride + c];
                const double a = (double)weight;

                exact += a * (double)in;
                near += (double)rounded(type, weight) * (double)rounded(type, in);
                magnitude += fabs(a * (double)in);
                least += least_of(type, a, (double)in);
            }
            CHECK(fabs(got - near) <= sums * ((1 + unit_of(type)) * magnitude + least));
            CHECK(fabs(got - exact) <=
                  (sums * (1 + unit_of(type)) + unit_of(type)) * magnitude + least);
        }
    }
}

/* Shapes around those of tiles and fragments, and steps; every other one cannot be read by 16
 * bytes. */
static void values(void)
{
    static const uint32_t shapes[][3] = { /* rows, columns, tokens */
                                          { 1, 1, 1 },    { 7, 8, 9 },    { 8, 7, 16 },
                                          { 16, 32, 17 }, { 17, 33, 15 }, { 64, 64, 32 },
                                          { 65, 31, 65 }, { 9, 264, 33 }, { 130, 40, 8 }
    };

    for (size_t i = 0; i < 2 * LEN(shapes); i++) {
        const enum mp_wtype type = i % 2 == 0 ? MP_WTYPE_BF16 : MP_WTYPE_F16;
        const uint32_t *s = shapes[i / 2], gap = i / 2 % 2 == 0 ? 0 : 3, stride = s[1] + gap;
        const void *w = weights(type, (size_t)s[0] * stride);
        const float *x = floats((size_t)s[2] * stride);
        float *wide = widen(w, type, (size_t)s[0] * stride);
        const float *y = product(type, w, stride, x, stride, s[0], s[1], s[2]);

        check_values(type, y, wide, stride, x, stride, s[0], s[1], s[2]);
        free(wide);
        free_operands();
    }
}

/* Every quantised type: rows of one block to several, with and without gaps between them, which
 * are blocks. */
static void values_of_blocks(void)
{
    static const uint32_t shapes[][4] = { /* rows, blocks, tokens, blocks between rows */
                                          { 1, 1, 1, 0 },
                                          { 17, 2, 9, 1 },
                                          { 65, 1, 67, 0 },
                                          { 8, 5, 33, 3 }
    };

    for (int i = MP_WTYPE_PLAIN_COUNT; i < MP_WTYPE_COUNT; i++) {
        const enum mp_wtype type = (enum mp_wtype)i;

        for (size_t k = 0; k < LEN(shapes); k++) {
            const uint32_t *s = shapes[k], cols = s[1] * block_of(type);
            const uint32_t stride = (s[1] + s[3]) * block_of(type);
            const void *w = weights(type, (size_t)s[0] * stride);
            const float *x = floats((size_t)s[2] * (cols + s[3]));
            float *wide = widen(w, type, (size_t)s[0] * stride);
            const float *y = product(type, w, stride, x, cols + s[3], s[0], cols, s[2]);

            check_values(type, y, wide, stride, x, cols + s[3], s[0], cols, s[2]);
            free(wide);
            free_operands();
        }
    }
}

/* A part of the rows and tokens, in other places of the tile, at other addresses. */
static void bits_are_those_of_the_element(void)
{
    for (int i = TYPES_FIRST; i < MP_WTYPE_COUNT; i++) {
        const enum mp_wtype type = (enum mp_wtype)i;
        const uint32_t rows = 37, cols = is_quant(type) ? 256 : 72, tokens = 21, r = 5, t = 3;
        const size_t bytes = mp_wtype_bytes(type, (size_t)rows * cols), shift = is_quant(type);
        const char *w = weights(type, (size_t)rows * cols);
        const float *x = floats((size_t)tokens * cols);
        char *odd_w = operand(bytes + 2);
        float *odd_x = floats((size_t)tokens * cols + 1);
        const float *all, *odd, *some;

        memcpy(odd_w + shift, w, bytes);
        memcpy(odd_x, x, (size_t)tokens * cols * sizeof(*x));
        all = product(type, w, cols, x, cols, rows, cols, tokens);
        odd = product(type, odd_w + shift, cols, odd_x, cols, rows, cols, tokens);
        some = product(type, w + mp_wtype_bytes(type, r * cols), cols, x + t * cols, cols, rows - r,
                       cols, tokens - t);
        for (uint32_t k = 0; k < tokens; k++) {
            CHECK(memcmp(all + k * (rows + 3), odd + k * (rows + 3), rows * sizeof(*all)) == 0);
            if (k >= t)
                CHECK(memcmp(all + k * (rows + 3) + r, some + (k - t) * (rows - r + 3),
                             (rows - r) * sizeof(*all)) == 0);
        }
        free_operands();
    }
}

static void bias_and_what_was_there(void)
{
    const uint32_t rows = 35, cols = 40, tokens = 9;
    const void *w = weights(MP_WTYPE_F16, rows * cols);
    const float *x = floats(tokens * cols), *bias = floats(rows);
    const float *plain = product(MP_WTYPE_F16, w, cols, x, cols, rows, cols, tokens);
    float *y = floats(tokens * rows), before[9 * 35];
    struct mp_cuda_matmul p = {
        .w = at(w),
        .x = at(x),
        .y = at(y),
        .bias = at(bias),
        .type = MP_WTYPE_F16,
        .rows = rows,
        .cols = cols,
        .tokens = tokens,
        .w_stride = cols,
        .x_stride = cols,
        .y_stride = rows,
        .accumulate = 1,
    };

    memcpy(before, y, sizeof(before));
    launch(MP_CUDA_KERNEL_tensor_f16, &p);
    for (uint32_t i = 0; i < tokens * rows; i++)
        CHECK(same(y[i], before[i] + (plain[i / rows * (rows + 3) + i % rows] + bias[i % rows])));
    free_operands();
}

/* NaN and infinite activations are those of their token alone. */
static void what_is_no_number_stays_with_its_token(void)
{
    for (int i = TYPES_FIRST; i < MP_WTYPE_COUNT; i++) {
        const enum mp_wtype type = (enum mp_wtype)i;
        const uint32_t rows = 9, cols = is_quant(type) ? 256 : 36, tokens = 18;
        const void *w = weights(type, rows * cols);
        float *x = floats(tokens * cols);
        const float *y;

        x[2 * cols + 35] = NAN;
        x[17 * cols] = INFINITY;
        y = product(type, w, cols, x, cols, rows, cols, tokens);
        for (uint32_t t = 0; t < tokens; t++)
            for (uint32_t r = 0; r < rows; r++)
                CHECK_EQ(isfinite(y[t * (rows + 3) + r]), t != 2 && t != 17);
        free_operands();
    }
}

/* ---- experts */

#define EXPERTS 4

struct problem {
    enum mp_wtype type, down_type;
    uint32_t hidden, channels, tokens;
    const char *gate[EXPERTS], *up[EXPERTS], *down[EXPERTS];
    const float *x;
};

static struct problem problem_make(enum mp_wtype type, enum mp_wtype down_type, uint32_t hidden,
                                   uint32_t channels, uint32_t tokens)
{
    struct problem p = { type, down_type, hidden, channels, tokens, { 0 }, { 0 }, { 0 }, 0 };
    float *x;

    for (int e = 0; e < EXPERTS; e++) {
        p.gate[e] = weights(type, (size_t)channels * hidden);
        p.up[e] = weights(type, (size_t)channels * hidden);
        p.down[e] = weights(down_type, (size_t)channels * hidden);
    }
    x = floats((size_t)tokens * (hidden + 4));
    for (size_t i = 0; is_quant(type) && i < (size_t)tokens * (hidden + 4); i++)
        x[i] /= 16; /* act, too, is to be a number in F16 */
    p.x = x;
    return p;
}

static struct mp_cuda_expert entry(const struct problem *p, int e, uint32_t first, uint32_t count)
{
    return (struct mp_cuda_expert){
        at(p->gate[e]), at(p->up[e]), at(p->down[e]), first, count, p->channels, 0
    };
}

/* Run a list; ranks that it does not name stay as they are. Returns act. */
static const float *run(const struct problem *p, const struct mp_cuda_expert *list, uint32_t works,
                        const uint32_t *rows, uint32_t row_count, float *rank)
{
    struct mp_cuda_expert *work = operand(works * sizeof(*work));
    uint32_t *row = operand(row_count * sizeof(*row) + 4);
    const float *act = operand((size_t)row_count * p->channels * sizeof(float));
    struct mp_cuda_experts params = {
        .work = at(work),
        .row = at(row),
        .x = at(p->x),
        .act = at(act),
        .rank = at(rank),
        .type = p->type,
        .works = works,
        .hidden = p->hidden,
        .channels = p->channels,
        .top_k = TOP_K,
        .x_stride = p->hidden + 4,
    };

    memcpy(work, list, works * sizeof(*work));
    memcpy(row, rows, row_count * sizeof(*row));
    for (uint32_t i = 0; i < works; i++)
        params.rows_max = list[i].count > params.rows_max ? list[i].count : params.rows_max;
    launch(mp_cuda_type(p->type)->tensor_up, &params);
    params.type = p->down_type;
    launch(mp_cuda_type(p->down_type)->tensor_down, &params);
    return act;
}

static float *new_ranks(const struct problem *p)
{
    const size_t count = (size_t)p->tokens * TOP_K * p->hidden;
    float *rank = operand(count * sizeof(*rank));

    for (size_t i = 0; i < count; i++)
        rank[i] = 77;
    return rank;
}

/* act of one row by its input, and rank by act, each within the tolerance of its products. */
static void check_row(const struct problem *p, int e, uint32_t row, const float *act,
                      const float *rank)
{
    const size_t F = p->channels, H = p->hidden;
    const double unit = unit_of(p->type);
    float *gate = widen(p->gate[e], p->type, F * H), *up = widen(p->up[e], p->type, F * H);
    float *down = widen(p->down[e], p->down_type, F * H);
    const float *x = p->x + (size_t)(row / TOP_K) * (H + 4);

    for (size_t c = 0; c < F; c++) {
        double g = 0, u = 0, g_sum = 0, u_sum = 0, g_off, u_off;

        for (size_t i = 0; i < H; i++) {
            g += (double)gate[c * H + i] * (double)x[i];
            u += (double)up[c * H + i] * (double)x[i];
            g_sum += fabs((double)gate[c * H + i] * (double)x[i]);
            u_sum += fabs((double)up[c * H + i] * (double)x[i]);
        }
        g_off = (unit + (double)(H + 32) * 0x1p-22) * g_sum;
        u_off = (unit + (double)(H + 32) * 0x1p-22) * u_sum;
        /* The slope of silu is at most 1.1. */
        CHECK(fabs((double)act[c] - g / (1 + exp(-g)) * u) <=
              1.1 * g_off * (fabs(u) + u_off) + fabs(g) * u_off + 1e-6);
    }
    for (size_t h = 0; h < H; h++) {
        double sum = 0, magnitude = 0;

        for (size_t c = 0; c < F; c++) {
            sum += (double)down[h * F + c] * (double)act[c];
            magnitude += fabs((double)down[h * F + c] * (double)act[c]);
        }
        CHECK(fabs((double)rank[(size_t)row * H + h] - sum) <=
              (unit_of(p->down_type) + (double)(F + 32) * 0x1p-22) * magnitude);
    }
    free(gate);
    free(up);
    free(down);
}

/* Experts with 0 to 66 rows, more than a tile, which stand in any order. */
static void lists(enum mp_wtype type, enum mp_wtype down_type, uint32_t hidden, uint32_t channels)
{
    static const uint32_t counts[EXPERTS] = { 10, 0, 66, 1 };
    const struct problem p = problem_make(type, down_type, hidden, channels, 27);
    struct mp_cuda_expert list[EXPERTS], one;
    uint32_t rows[81], used = 0;
    float *rank = new_ranks(&p), *alone = new_ranks(&p);
    const float *act;

    for (uint32_t i = 0; i < 81; i++)
        rows[i] = i * 7 % 81;
    for (int e = 0; e < EXPERTS; e++) {
        list[e] = entry(&p, e, used, counts[e]);
        used += counts[e];
    }
    act = run(&p, list, EXPERTS, rows, used, rank);
    check_row(&p, 0, rows[9], act + (size_t)9 * channels, rank);
    check_row(&p, 2, rows[10], act + (size_t)10 * channels, rank);
    check_row(&p, 2, rows[75], act + (size_t)75 * channels, rank);
    check_row(&p, 3, rows[76], act + (size_t)76 * channels, rank);
    for (uint32_t i = used; i < 81; i++)
        for (uint32_t h = 0; h < hidden; h++)
            CHECK(same(rank[(size_t)rows[i] * hidden + h], 77));
    one = entry(&p, 2, 0, 9); /* some of its rows alone, elsewhere in the tile */
    run(&p, &one, 1, rows + 67, 9, alone);
    for (uint32_t i = 67; i < 76; i++)
        CHECK(memcmp(alone + (size_t)rows[i] * hidden, rank + (size_t)rows[i] * hidden,
                     hidden * sizeof(*rank)) == 0);
    free_operands();
}

static void values_and_lists(void)
{
    lists(MP_WTYPE_BF16, MP_WTYPE_BF16, 40, 72);
    lists(MP_WTYPE_F16, MP_WTYPE_F16, 72, 33);
    lists(MP_WTYPE_BF16, MP_WTYPE_BF16, 33, 7); /* not aligned */
    lists(MP_WTYPE_Q8_0, MP_WTYPE_Q5_1, 32, 96);
}

/* Every quantised type, with downs of the same or of the next one. */
static void lists_of_blocks(void)
{
    for (int type = MP_WTYPE_PLAIN_COUNT; type < MP_WTYPE_COUNT; type++) {
        const enum mp_wtype down = (enum mp_wtype)(type + (type % 2 && type + 1 < MP_WTYPE_COUNT));

        lists((enum mp_wtype)type, down, block_of((enum mp_wtype)type), block_of(down));
    }
}

/* An expert cut at a multiple of 16 channels, or at a block, its parts one after another. */
static void slices(void)
{
    for (int i = TYPES_FIRST; i < MP_WTYPE_COUNT; i++) {
        const enum mp_wtype type = (enum mp_wtype)i;
        const uint32_t block = block_of(type), cut = is_quant(type) ? 2 * block : 48;
        const struct problem p = problem_make(type, type, is_quant(type) ? block : 24,
                                              is_quant(type) ? 3 * block : 90, 4);
        const size_t H = p.hidden, row_bytes = mp_wtype_bytes(type, p.channels);
        const uint32_t rows[] = { 7, 2, 4 };
        float *whole = new_ranks(&p), *parts = new_ranks(&p);
        const struct mp_cuda_expert all = entry(&p, 0, 0, 3);

        run(&p, &all, 1, rows, 3, whole);
        for (uint32_t first = 0; first < p.channels;) {
            const uint32_t n = first == 0 ? cut : p.channels - first;
            const size_t bytes = mp_wtype_bytes(type, n), skipped = mp_wtype_bytes(type, first);
            char *down = operand(bytes * H);
            const struct mp_cuda_expert slice = {
                at(p.gate[0] + mp_wtype_bytes(type, first * H)),
                at(p.up[0] + mp_wtype_bytes(type, first * H)),
                at(down),
                0,
                3,
                n,
                first > 0,
            };

            for (size_t h = 0; h < H; h++)
                memcpy(down + h * bytes, p.down[0] + h * row_bytes + skipped, bytes);
            run(&p, &slice, 1, rows, 3, parts);
            first += n;
        }
        CHECK(memcmp(whole, parts, (size_t)p.tokens * TOP_K * p.hidden * sizeof(*parts)) == 0);
        free_operands();
    }
}

/* The images that the host loads for these kernels: one for types of 16 bits, one for each other.
 */
static void images(void)
{
    for (int i = TYPES_FIRST; i < MP_WTYPE_COUNT; i++) {
        const struct mp_cuda_type *type = mp_cuda_type((uint32_t)i);
        const bool quant = is_quant((enum mp_wtype)i);
        const char *image = quant ? type->tensor_image : mp_cuda_tensor_image;

        CHECK(strstr(image, ".target sm_80") != NULL);
        CHECK(quant || type->tensor_image == NULL);
        CHECK_EQ(type->tensor_down - type->tensor, 2);
        for (unsigned k = type->tensor; k <= type->tensor_down; k++) {
            const char *kernel = mp_cuda_kernel_name((enum mp_cuda_kernel)k);
            const char *name = mp_wtype_name((enum mp_wtype)i);
            char text[80];

            CHECK_STR(kernel + strlen(kernel) - strlen(name), name);
            snprintf(text, sizeof(text), ".entry %s(", kernel);
            CHECK(strstr(image, text) != NULL);
            CHECK(strstr(mp_cuda_image, text) == NULL);
            CHECK(!quant || strstr(type->image, text) == NULL);
            CHECK(!quant || strstr(mp_cuda_tensor_image, text) == NULL);
            CHECK_EQ(k < MP_CUDA_TENSOR_QUANT_FIRST, !quant);
        }
    }
    CHECK_EQ(mp_cuda_type(MP_WTYPE_F32)->tensor, MP_CUDA_KERNEL_COUNT);
    CHECK_EQ(mp_cuda_type(MP_WTYPE_COUNT - 1)->tensor_down + 1, MP_CUDA_KERNEL_COUNT);
}

int main(void)
{
    RUN(values);
    RUN(values_of_blocks);
    RUN(bits_are_those_of_the_element);
    RUN(bias_and_what_was_there);
    RUN(what_is_no_number_stays_with_its_token);
    each_order("values_and_lists", values_and_lists);
    RUN(lists_of_blocks);
    RUN(slices);
    RUN(images);
    return 0;
}
