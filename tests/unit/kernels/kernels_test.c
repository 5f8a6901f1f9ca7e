/*
 * Matrix products: values against an independent sum in double, bits against other cuts of the same
 * product, no access outside the operands.
 */
#include "tests/unit/kernels/common.h"

static const size_t shapes[] = { 1,  2,  3,  7,   8,   15,  16,  17,  31,  33,  63,
                                 64, 65, 96, 100, 127, 128, 129, 255, 256, 257, 768 };
static const size_t row_counts[] = { 0, 1, 2, 3, 4, 5, 6, 7, 12, 13, 17 };
static const size_t token_counts[] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 64 };

/* Written from the definition of the formats, without what the kernels use. */
static double decode(const unsigned char *p, enum mp_wtype type)
{
    uint16_t h;
    float f;

    if (type == MP_WTYPE_F32) {
        memcpy(&f, p, 4);
        return (double)f;
    }
    memcpy(&h, p, 2);
    if (type == MP_WTYPE_BF16)
        return (double)bits_float((uint32_t)h << 16);
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    double v = exponent == 31  ? (mantissa != 0 ? NAN : INFINITY)
               : exponent == 0 ? ldexp(mantissa, -24)
                               : ldexp(1024 + mantissa, exponent - 25);
    return h & 0x8000 ? -v : v;
}

/* A random finite weight of magnitude about 1 or less. */
static void put_weight(unsigned char *p, enum mp_wtype type)
{
    float f = random_float();
    uint16_t h = (uint16_t)(float_bits(f) >> 16);

    if (type == MP_WTYPE_F16)
        h = (uint16_t)((random_u32() & 0x83ff) | (random_u32() % 15) << 10);
    if (type == MP_WTYPE_F32)
        memcpy(p, &f, 4);
    else
        memcpy(p, &h, 2);
}

/* One product with all its operands; gaps between rows hold NaN (0xFF bytes) as bait. */
struct problem {
    enum mp_wtype type;
    enum mp_math math; /* of the implementation */
    size_t rows, cols, tokens, w_stride, x_stride, y_stride, bytes;
    struct guarded w_mem, x_mem, y_mem;
    unsigned char *w;
    float *x, *y;
};

static size_t span(size_t count, size_t stride, size_t width)
{
    return count == 0 ? 0 : (count - 1) * stride + width;
}

/* w_shift: bytes between the end of the weights and the unreadable page. */
static struct problem problem_create(enum mp_wtype type, size_t rows, size_t cols, size_t tokens,
                                     size_t gap, size_t w_shift)
{
    struct problem p = { .type = type, .rows = rows, .cols = cols, .tokens = tokens };

    p.bytes = mp_wtype_bytes(type, 1);
    p.w_stride = cols + gap;
    p.x_stride = cols + 2 * gap;
    p.y_stride = rows + 3 * gap;
    p.w_mem = guarded_alloc(span(rows, p.w_stride, cols) * p.bytes + w_shift);
    p.x_mem = guarded_alloc(span(tokens, p.x_stride, cols) * 4);
    p.y_mem = guarded_alloc(span(tokens, p.y_stride, rows) * 4);
    memset(p.w_mem.p, 0xFF, p.w_mem.bytes);
    memset(p.x_mem.p, 0xFF, p.x_mem.bytes);
    p.w = p.w_mem.p;
    p.x = p.x_mem.p;
    p.y = p.y_mem.p;
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++)
            put_weight(p.w + (r * p.w_stride + c) * p.bytes, type);
    for (size_t t = 0; t < tokens; t++)
        fill_random(p.x + t * p.x_stride, cols, 1);
    return p;
}

static void problem_destroy(struct problem *p)
{
    guarded_free(&p->w_mem);
    guarded_free(&p->x_mem);
    guarded_free(&p->y_mem);
}

/* To the nearest BF16, ties to even: what BF16 weights are multiplied with, but in F32. */
static double activation(const struct problem *p, float x)
{
    uint32_t bits = float_bits(x);

    if (p->math == MP_MATH_F32 || p->type != MP_WTYPE_BF16)
        return (double)x;
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
    return (double)bits_float(bits);
}

/* The sum and the sum of magnitudes, which bounds the error of any order of summation. */
static double oracle(const struct problem *p, size_t r, size_t t, double *magnitude_p)
{
    double sum = 0, magnitude = 0;

    for (size_t c = 0; c < p->cols; c++) {
        double a = decode(p->w + (r * p->w_stride + c) * p->bytes, p->type) *
                   activation(p, p->x[t * p->x_stride + c]);

        sum += a;
        magnitude += fabs(a);
    }
    *magnitude_p = magnitude;
    return sum;
}

/*
 * Tolerance: partial sums of at least 8 lanes, each addition off by half an ulp of at most the sum
 * of magnitudes. `start` is what y held before.
 */
static void check_product(const struct problem *p, float start)
{
    for (size_t t = 0; t < p->tokens; t++) {
        for (size_t r = 0; r < p->rows; r++) {
            double magnitude, want = oracle(p, r, t, &magnitude) + (double)start;
            double roundings = (double)p->cols / 8 + 8;
            double limit = roundings * 0x1p-24 * (magnitude + fabs((double)start));

            CHECK(fabs((double)p->y[t * p->y_stride + r] - want) <= limit);
        }
        if (t + 1 < p->tokens) {
            for (size_t r = p->rows; r < p->y_stride; r++)
                CHECK_EQ(float_bits(p->y[t * p->y_stride + r]), 0xA5A5A5A5);
        }
    }
}

static void fill_y(const struct problem *p, float value)
{
    for (size_t t = 0; t < p->tokens; t++)
        for (size_t r = 0; r < p->rows; r++)
            p->y[t * p->y_stride + r] = value;
}

static void multiply(const struct mp_kernels *k, const struct problem *p, int blocked,
                     int accumulate)
{
    if (blocked)
        k->matmul_blocked(p->y, p->y_stride, p->w, p->type, p->w_stride, p->x, p->x_stride, p->rows,
                          p->cols, p->tokens, accumulate);
    else
        k->matmul(p->y, p->y_stride, p->w, p->type, p->w_stride, p->x, p->x_stride, p->rows,
                  p->cols, p->tokens);
}

static void check_shape(const struct mp_kernels *k, enum mp_wtype type, size_t rows, size_t cols,
                        size_t tokens, size_t variant)
{
    struct problem p =
        problem_create(type, rows, cols, tokens, variant % 3 * 3, (variant + 1) / 2 % 4);

    p.math = k->math;
    fill_y(&p, NAN);
    multiply(k, &p, 0, 0);
    check_product(&p, 0);
    fill_y(&p, NAN);
    multiply(k, &p, 1, 0);
    check_product(&p, 0);
    fill_y(&p, 0.5f);
    multiply(k, &p, 1, 1);
    check_product(&p, 0.5f);
    problem_destroy(&p);
}

static void products_of_all_shapes(const struct mp_kernels *k)
{
    size_t variant = 0;

    for (int type = 0; type < MP_WTYPE_PLAIN_COUNT; type++)
        for (size_t c = 0; c < LEN(shapes); c++)
            for (size_t r = 0; r < LEN(row_counts); r++)
                for (size_t t = 0; t < LEN(token_counts); t++, variant++)
                    if (shapes[c] < 20 || variant % 5 == 0)
                        check_shape(k, (enum mp_wtype)type, row_counts[r], shapes[c],
                                    token_counts[t], variant);
    for (size_t r = 0; r < LEN(shapes); r++)
        check_shape(k, (enum mp_wtype)(r % MP_WTYPE_PLAIN_COUNT), shapes[r], 100, 3, r);
    /* More activations than one run of tokens. */
    check_shape(k, MP_WTYPE_BF16, 7, 8200, 19, 1);
}

static void no_columns_is_zero(const struct mp_kernels *k)
{
    float y[2] = { 5, 5 }, x = 0;

    k->matmul(y, 1, &x, MP_WTYPE_BF16, 0, &x, 0, 1, 0, 2);
    CHECK(same(y[0], 0) && same(y[1], 0));
    y[0] = y[1] = 5;
    k->matmul_blocked(y, 1, &x, MP_WTYPE_BF16, 0, &x, 0, 1, 0, 2, 1);
    CHECK(same(y[0], 5) && same(y[1], 5));
    k->matmul_blocked(y, 1, &x, MP_WTYPE_BF16, 0, &x, 0, 1, 0, 2, 0);
    CHECK(same(y[0], 0) && same(y[1], 0));
}

/* The same product in cuts of `rows_step` by `tokens_step`, operands copied to other addresses. */
static void check_cut(const struct mp_kernels *k, const struct problem *p, int blocked,
                      size_t rows_step, size_t tokens_step, size_t shift)
{
    unsigned char *w = malloc(p->w_mem.bytes + 64);
    float *x = malloc(p->x_mem.bytes + 64), *y = calloc(p->tokens * p->rows, sizeof(*y));

    CHECK(w != NULL && x != NULL && y != NULL);
    memcpy(w + shift, p->w, p->w_mem.bytes);
    memcpy(x + shift % 16, p->x, p->x_mem.bytes);
    for (size_t t = 0; t < p->tokens; t += tokens_step) {
        for (size_t r = 0; r < p->rows; r += rows_step) {
            struct problem part = *p;

            part.w = w + shift + r * p->w_stride * p->bytes;
            part.x = x + shift % 16 + t * p->x_stride;
            part.y = y + t * p->rows + r;
            part.y_stride = p->rows;
            part.rows = p->rows - r < rows_step ? p->rows - r : rows_step;
            part.tokens = p->tokens - t < tokens_step ? p->tokens - t : tokens_step;
            multiply(k, &part, blocked, 0);
        }
    }
    for (size_t t = 0; t < p->tokens; t++)
        CHECK(memcmp(y + t * p->rows, p->y + t * p->y_stride, p->rows * sizeof(*y)) == 0);
    free(w);
    free(x);
    free(y);
}

static void cuts_keep_bits(const struct mp_kernels *k)
{
    static const size_t steps[] = { 1, 2, 3, 4, 5, 6, 7, 8, 11, 100 };
    static const size_t cols[] = { 1, 13, 16, 100, 129, 300, 512, 768, 1024 };

    for (int type = 0; type < MP_WTYPE_PLAIN_COUNT; type++) {
        for (size_t c = 0; c < LEN(cols); c++) {
            struct problem p = problem_create((enum mp_wtype)type, 29, cols[c], 23, 1, 0);

            for (int blocked = 0; blocked < 2; blocked++) {
                multiply(k, &p, blocked, 0);
                for (size_t i = 0; i < LEN(steps); i++)
                    for (size_t j = 0; j < LEN(steps); j++)
                        check_cut(k, &p, blocked, steps[i], steps[j], (7 * i + j) % 64);
            }
            problem_destroy(&p);
        }
    }
}

/* Activations that a cache has no room for, or the buffer for them. */
static void long_rows_keep_bits(const struct mp_kernels *k)
{
    static const size_t cols[] = { 3840, 4096, 4128, 8224, 33000 };

    for (int type = 0; type < MP_WTYPE_PLAIN_COUNT; type++) {
        for (size_t c = 0; c < LEN(cols); c++) {
            struct problem p = problem_create((enum mp_wtype)type, 13, cols[c], 5, 1, 0);

            for (int blocked = 0; blocked < 2; blocked++) {
                multiply(k, &p, blocked, 0);
                check_cut(k, &p, blocked, 13, 1, 0);
                check_cut(k, &p, blocked, 4, 1, 32);
                check_cut(k, &p, blocked, 1, 5, 2);
            }
            problem_destroy(&p);
        }
    }
}

/* Two calls that split the columns at `at` give the bits that one call gave. */
static void check_column_split(const struct mp_kernels *k, const struct problem *p,
                               const float *whole, size_t at)
{
    struct problem part = *p;

    fill_y(p, NAN);
    part.cols = at;
    multiply(k, &part, 1, 0);
    part.cols = p->cols - at;
    part.w += at * p->bytes;
    part.x += at;
    multiply(k, &part, 1, 1);
    CHECK(memcmp(whole, p->y, p->y_mem.bytes) == 0);
}

static void blocked_sums_blocks_in_order(const struct mp_kernels *k)
{
    static const size_t cols[] = { 100, 128, 129, 256, 300, 512, 768, 1024 };

    for (int type = 0; type < MP_WTYPE_PLAIN_COUNT; type++) {
        for (size_t i = 0; i < LEN(cols); i++) {
            struct problem p = problem_create((enum mp_wtype)type, 13, cols[i], 9, 0, 0);
            struct problem block = p;
            float *whole = malloc(p.y_mem.bytes), sums[13 * 9] = { 0 };

            CHECK(whole != NULL);
            multiply(k, &p, 1, 0);
            memcpy(whole, p.y, p.y_mem.bytes);
            for (size_t at = 0; at <= cols[i]; at += MP_KERNEL_BLOCK_COLS)
                check_column_split(k, &p, whole, at);
            for (size_t c = 0; c < cols[i]; c += MP_KERNEL_BLOCK_COLS) {
                block.w = p.w + c * p.bytes;
                block.x = p.x + c;
                block.cols =
                    cols[i] - c < MP_KERNEL_BLOCK_COLS ? cols[i] - c : MP_KERNEL_BLOCK_COLS;
                multiply(k, &block, 0, 0);
                for (size_t j = 0; j < LEN(sums); j++)
                    sums[j] += p.y[j];
            }
            CHECK(memcmp(whole, sums, sizeof(sums)) == 0);
            free(whole);
            problem_destroy(&p);
        }
    }
}

/* Every 16-bit pattern, from a misaligned address, in one go and one by one. */
static void convert_is_exact(const struct mp_kernels *k)
{
    unsigned char *src = malloc(2 * 65536 + 1);
    float *dst = malloc(65536 * sizeof(*dst)), one;

    CHECK(src != NULL && dst != NULL);
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t)i;

        memcpy(src + 1 + 2 * i, &h, 2);
    }
    for (enum mp_wtype type = MP_WTYPE_BF16; type <= MP_WTYPE_F16; type++) {
        k->convert(dst, src + 1, type, 65536);
        for (uint32_t i = 0; i < 65536; i++) {
            double want = decode(src + 1 + 2 * i, type);

            k->convert(&one, src + 1 + 2 * i, type, 1);
            CHECK(float_bits(one) == float_bits(dst[i]));
            CHECK(isnan(want) ? isnan(dst[i]) : (double)dst[i] == want);
            CHECK(!!signbit(dst[i]) == (i >= 32768));
        }
    }
    for (uint32_t i = 0; i < 16384; i++) {
        uint32_t bits = i << 18 | 1;

        memcpy(src + 1 + 4 * i, &bits, 4);
    }
    k->convert(dst, src + 1, MP_WTYPE_F32, 16384);
    CHECK(memcmp(dst, src + 1, 4 * 16384) == 0);
    free(src);
    free(dst);
}

static void convert_stays_inside(const struct mp_kernels *k)
{
    for (int type = 0; type < MP_WTYPE_PLAIN_COUNT; type++) {
        size_t bytes = mp_wtype_bytes((enum mp_wtype)type, 1);

        for (size_t n = 0; n < 70; n++) {
            struct guarded src = guarded_alloc(n * bytes), dst = guarded_alloc(n * 4);

            memset(src.p, 0x3f, src.bytes);
            k->convert(dst.p, src.p, (enum mp_wtype)type, n);
            for (size_t i = 0; i < n; i++)
                CHECK((double)((float *)dst.p)[i] == decode(src.p, (enum mp_wtype)type));
            guarded_free(&src);
            guarded_free(&dst);
        }
    }
}

/* One unusual value at every column, in body and tail: only its row and token see it. */
static void special_values_stay_in_their_place(const struct mp_kernels *k)
{
    static const uint16_t inf[MP_WTYPE_PLAIN_COUNT] = { 0, 0x7f80, 0x7c00 };

    for (enum mp_wtype type = MP_WTYPE_BF16; type <= MP_WTYPE_F16; type++) {
        struct problem p = problem_create(type, 7, 35, 9, 2, 0);

        for (size_t c = 0; c < p.cols; c++) {
            uint16_t old, nan = (uint16_t)(inf[type] | 1);
            float *x = p.x + 4 * p.x_stride + c, x_old = *x;
            unsigned char *w = p.w + (2 * p.w_stride + c) * 2;

            memcpy(&old, w, 2);
            memcpy(w, &inf[type], 2);
            multiply(k, &p, 0, 0);
            for (size_t i = 0; i < 63; i++) {
                float y = p.y[i / 7 * p.y_stride + i % 7];

                CHECK(i % 7 == 2 ? isinf(y) && (y > 0) == (p.x[i / 7 * p.x_stride + c] > 0)
                                 : isfinite(y));
            }
            *x = 0; /* infinity times zero */
            multiply(k, &p, 1, 0);
            CHECK(isnan(p.y[4 * p.y_stride + 2]) && isinf(p.y[2]) && isfinite(p.y[1]));
            memcpy(w, &old, 2);
            *x = NAN;
            multiply(k, &p, 0, 0);
            for (size_t i = 0; i < 63; i++)
                CHECK(!isnan(p.y[i / 7 * p.y_stride + i % 7]) == (i / 7 != 4));
            *x = x_old;
            memcpy(w, &nan, 2);
            multiply(k, &p, 1, 0);
            for (size_t i = 0; i < 63; i++)
                CHECK(!isnan(p.y[i / 7 * p.y_stride + i % 7]) == (i % 7 != 2));
            memcpy(w, &old, 2);
        }
        problem_destroy(&p);
    }
}

static void extremes_are_not_flushed(const struct mp_kernels *k)
{
    static const struct {
        enum mp_wtype type;
        uint32_t w;
        float x, y;
    } cases[] = {
        { MP_WTYPE_BF16, 0x0001, 1.0f, 0x1p-133f },
        { MP_WTYPE_BF16, 0x3f80, 0x1p-149f, 0x1p-149f },
        { MP_WTYPE_BF16, 0x7f7f, 1.0f, 0x1.fep127f },
        { MP_WTYPE_BF16, 0xff7f, 2.0f, -INFINITY },
        { MP_WTYPE_F16, 0x0001, 1.0f, 0x1p-24f },
        { MP_WTYPE_F16, 0x03ff, 1.0f, 0x1.ff8p-15f },
        { MP_WTYPE_F16, 0x7bff, 1.0f, 65504.0f },
        { MP_WTYPE_F16, 0xfbff, 1.0f, -65504.0f },
        { MP_WTYPE_F32, 0x00000001, 1.0f, 0x1p-149f },
        { MP_WTYPE_F32, 0x7f7fffff, 1.0f, 0x1.fffffep127f },
        { MP_WTYPE_F32, 0x80000000, 1.0f, 0.0f },
    };

    for (size_t i = 0; i < LEN(cases); i++) {
        unsigned char w[20 * 4] = { 0 };
        float x[20] = { 0 }, y;

        /* Where BF16 is multiplied denormals count as zeros. */
        if (k->math != MP_MATH_F32 && cases[i].type == MP_WTYPE_BF16 &&
            fabsf(cases[i].y) < 0x1p-126f)
            continue;

        for (size_t c = 0; c < 20; c += 19) { /* in the body and in the tail */
            memset(w, 0, sizeof(w));
            memset(x, 0, sizeof(x));
            memcpy(w + mp_wtype_bytes(cases[i].type, c), &cases[i].w,
                   mp_wtype_bytes(cases[i].type, 1));
            x[c] = cases[i].x;
            k->matmul(&y, 1, w, cases[i].type, 20, x, 20, 1, 20, 1);
            CHECK(same(y, cases[i].y));
        }
    }
}

static void names_and_choice(void)
{
    size_t i = 0;

    CHECK(mp_kernels_find("ref") == &mp_kernels_ref);
    CHECK(mp_kernels_find("none") == NULL && mp_kernels_find("") == NULL);
    while (mp_kernels_find(mp_kernels_names[i]) == NULL ||
           mp_kernels_find(mp_kernels_names[i])->math != MP_MATH_F32)
        i++;
    CHECK(mp_kernels_best() == mp_kernels_find(mp_kernels_names[i]));
    CHECK(!mp_kernels_announced("none"));
    for (i = 0; mp_kernels_names[i] != NULL; i++) {
        CHECK((mp_kernels_find(mp_kernels_names[i]) != NULL) ==
              mp_kernels_announced(mp_kernels_names[i])); /* else untested by all that follows */
        if (mp_kernels_find(mp_kernels_names[i]) != NULL)
            CHECK_STR(mp_kernels_find(mp_kernels_names[i])->name, mp_kernels_names[i]);
    }
    CHECK_STR(mp_kernels_names[i - 1], "ref");
    CHECK_EQ(mp_wtype_bytes(MP_WTYPE_F32, 3), 12);
    CHECK_EQ(mp_wtype_bytes(MP_WTYPE_BF16, 3), 6);
    CHECK_EQ(mp_wtype_bytes(MP_WTYPE_F16, 3), 6);
    CHECK_EQ(mp_wtype_bytes(MP_WTYPE_COUNT, 3), 0);
    CHECK_STR(mp_wtype_name(MP_WTYPE_BF16), "bf16");
    CHECK_STR(mp_wtype_name(MP_WTYPE_COUNT), "unknown");
}

int main(void)
{
    RUN(names_and_choice);
    each_kernels("products_of_all_shapes", products_of_all_shapes);
    each_kernels("no_columns_is_zero", no_columns_is_zero);
    each_kernels("cuts_keep_bits", cuts_keep_bits);
    each_kernels("long_rows_keep_bits", long_rows_keep_bits);
    each_kernels("blocked_sums_blocks_in_order", blocked_sums_blocks_in_order);
    each_kernels("convert_is_exact", convert_is_exact);
    each_kernels("convert_stays_inside", convert_stays_inside);
    each_kernels("special_values_stay_in_their_place", special_values_stay_in_their_place);
    each_kernels("extremes_are_not_flushed", extremes_are_not_flushed);
    return 0;
}
