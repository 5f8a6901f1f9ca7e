/*
 * Classes of arithmetic: what class native rounds and what it leaves alone; the self-test refuses
 * implementations that are wrong anywhere.
 */
#include "tests/unit/kernels/common.h"

enum { ROWS = 9, COLS = 1100, TOKENS = 11 };

static float x[TOKENS * COLS], rounded[TOKENS * COLS], want[TOKENS * ROWS], got[TOKENS * ROWS];
static unsigned char w[ROWS * COLS * sizeof(float)];

static void fill(void)
{
    for (size_t i = 0; i < sizeof(w); i += 2) { /* numbers of moderate size in every type */
        const uint16_t h = (uint16_t)((random_u32() & 0x83ff) | 0x3400);

        memcpy(w + i, &h, 2);
    }
    fill_random(x, LEN(x), 3);
    for (size_t i = 0; i < LEN(x); i++) {
        const uint32_t bits = float_bits(x[i]);

        rounded[i] = bits_float((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000);
    }
}

static void multiply(const struct mp_kernels *k, float *y, enum mp_wtype type, const float *from)
{
    k->matmul(y, ROWS, w, type, COLS, from, COLS, ROWS, COLS, TOKENS);
}

static void rounds_activations_of_bf16_once(enum mp_math math)
{
    const struct mp_kernels *k = mp_kernels_of(math);

    if (k == NULL) {
        fprintf(stderr, "  %s: not on this CPU\n", mp_math_name(math));
        return;
    }
    CHECK(k->math == math);
    fill();
    multiply(k, want, MP_WTYPE_BF16, x);
    multiply(k, got, MP_WTYPE_BF16, rounded);
    CHECK(memcmp(want, got, sizeof(want)) == 0);
    multiply(&mp_kernels_ref, got, MP_WTYPE_BF16, x); /* differs, or nothing was rounded */
    CHECK(memcmp(want, got, sizeof(want)) != 0);
    x[0] = 3.4e38f; /* beyond the largest BF16 */
    multiply(k, got, MP_WTYPE_BF16, x);
    for (size_t r = 0; r < ROWS; r++)
        CHECK(isinf(got[r]));
    CHECK(memcmp(want + ROWS, got + ROWS, sizeof(want) - ROWS * sizeof(*want)) == 0);
}

static void leaves_other_plain_types_alone(enum mp_math math)
{
    const struct mp_kernels *k = mp_kernels_of(math);

    if (k == NULL)
        return;
    fill();
    for (int i = 0; i < MP_WTYPE_PLAIN_COUNT; i++) {
        const enum mp_wtype type = (enum mp_wtype)i;

        multiply(k, got, type, x);
        multiply(mp_kernels_best(), want, type, x);
        CHECK((memcmp(want, got, sizeof(want)) == 0) == (type != MP_WTYPE_BF16));
    }
}

/* Implementations that are wrong in one place: they do as plain C does, but for `spoil`. */
static struct {
    enum mp_wtype type;
    int blocked;
    size_t row, token;
    float by;
} spoil;

static void wrong_matmul(float *y, size_t y_stride, const void *weights, enum mp_wtype type,
                         size_t w_stride, const float *from, size_t x_stride, size_t rows,
                         size_t cols, size_t tokens)
{
    mp_kernels_ref.matmul(y, y_stride, weights, type, w_stride, from, x_stride, rows, cols, tokens);
    if (!spoil.blocked && type == spoil.type)
        y[spoil.token * y_stride + spoil.row] += spoil.by;
}

static void wrong_blocked(float *y, size_t y_stride, const void *weights, enum mp_wtype type,
                          size_t w_stride, const float *from, size_t x_stride, size_t rows,
                          size_t cols, size_t tokens, int accumulate)
{
    mp_kernels_ref.matmul_blocked(y, y_stride, weights, type, w_stride, from, x_stride, rows, cols,
                                  tokens, accumulate);
    if (spoil.blocked && type == spoil.type)
        y[spoil.token * y_stride + spoil.row] += spoil.by;
}

static void wrong_quantised(float *y, size_t y_stride, const void *weights, enum mp_wtype type,
                            size_t w_stride, const float *from, size_t x_stride, size_t rows,
                            size_t cols, size_t tokens)
{
    mp_kernels_of(MP_MATH_AMX)
        ->matmul(y, y_stride, weights, type, w_stride, from, x_stride, rows, cols, tokens);
    if (type == spoil.type && tokens == 1) /* one token may go another way */
        y[0] += spoil.by;
}

static void the_self_test_finds_what_is_wrong(void)
{
    struct mp_kernels k = mp_kernels_ref;

    k.matmul = wrong_matmul;
    k.matmul_blocked = wrong_blocked;
    CHECK(mp_kernels_pass(&k)); /* nothing is spoiled */
    for (int type = 0; type < MP_WTYPE_PLAIN_COUNT; type++) {
        for (int i = 0; i < 8; i++) {
            spoil.type = (enum mp_wtype)type;
            spoil.blocked = i & 1;
            spoil.row = i & 2 ? 12 : 0;
            spoil.token = i & 4 ? 14 : 0;
            spoil.by = i & 1 ? NAN : 0.001f;
            CHECK(!mp_kernels_pass(&k));
        }
    }
    spoil.by = 0;
    k.math = MP_MATH_NATIVE; /* says that it rounds, and does not */
    CHECK(!mp_kernels_pass(&k));
}

/* What the class that has its own products with quantised weights gets wrong there. */
static void the_self_test_looks_at_quantised_types_of_class_amx(void)
{
    const struct mp_kernels *amx = mp_kernels_of(MP_MATH_AMX);
    struct mp_kernels k;

    if (amx == NULL)
        return;
    k = *amx;
    k.matmul = wrong_quantised;
    spoil.token = spoil.row = 0;
    spoil.by = 0;
    CHECK(mp_kernels_pass(&k));
    spoil.by = 1e6f;
    for (int type = MP_WTYPE_PLAIN_COUNT; type < MP_WTYPE_COUNT; type++) {
        spoil.type = (enum mp_wtype)type;
        CHECK(!mp_kernels_pass(&k));
    }
}

static void everything_here_passes(const struct mp_kernels *k)
{
    CHECK(mp_kernels_pass(k));
}

static void classes_round_activations_of_bf16_once(void)
{
    rounds_activations_of_bf16_once(MP_MATH_NATIVE);
    rounds_activations_of_bf16_once(MP_MATH_AMX);
}

static void classes_leave_other_plain_types_alone(void)
{
    leaves_other_plain_types_alone(MP_MATH_NATIVE);
    leaves_other_plain_types_alone(MP_MATH_AMX);
}

int main(void)
{
    RUN(classes_round_activations_of_bf16_once);
    RUN(classes_leave_other_plain_types_alone);
    RUN(the_self_test_finds_what_is_wrong);
    RUN(the_self_test_looks_at_quantised_types_of_class_amx);
    each_kernels("passes", everything_here_passes);
    return 0;
}
