/*
 * Products with quantised weights have the same bits with all compilers, options, versions and
 * processors: each variant against hashes, and the kernels, which choose one.
 */
#include "tests/unit/kernels/blocks.h"

enum { ROWS = 5, COLS = 1280, TOKENS = 9 };

/* By magnitude of activations: from 0.1 to 127; from 2^-140 to 2^66, from block to block. */
static const uint64_t pins[2] = { UINT64_C(0x852099af23e7c2bc), UINT64_C(0x4da69070ebf48803) };

/* Number `type` of the products, by a variant or, where that is NULL, by kernels. */
static void multiply(float *y, const unsigned char *w, const float *x, size_t tokens,
                     enum mp_wtype type, const struct mp_quant *quant, const struct mp_kernels *k)
{
    const int blocked = type % 2 != 0;
    const struct mp_quant_product product = {
        .y = y,
        .y_stride = ROWS,
        .w = w,
        .x = x,
        .x_stride = COLS,
        .rows = ROWS,
        .cols = COLS,
        .w_row_bytes = mp_wtype_bytes(type, COLS),
        .tokens = tokens,
        .block_cols = blocked ? MP_KERNEL_BLOCK_COLS : MP_QUANT_PART_COLS,
    };

    if (quant != NULL)
        quant->multiply[type](&product);
    else if (blocked)
        k->matmul_blocked(y, ROWS, w, type, COLS, x, COLS, ROWS, COLS, tokens, 0);
    else
        k->matmul(y, ROWS, w, type, COLS, x, COLS, ROWS, COLS, tokens);
}

static void check_bits(const char *name, const struct mp_quant *quant, const struct mp_kernels *k)
{
    static unsigned char w[ROWS * COLS * 2];
    static float x[TOKENS * COLS], y[TOKENS * ROWS];

    for (int wide = 0; wide < 2; wide++) {
        const size_t tokens = wide ? TOKENS : 3;
        uint64_t hash = HASH_START;

        lcg = 7;
        for (size_t c = 0; c < tokens * COLS; c += 32) {
            const int exponent = wide ? next_byte() % 200 - 140 : 0;

            for (size_t i = c; i < c + 32; i++) {
                const float number = (float)(next_byte() - 127);

                x[i] = wide ? ldexpf(number, exponent) : number / (float)(1 + next_byte() % 9);
            }
        }
        for (int type = MP_WTYPE_PLAIN_COUNT; type < MP_WTYPE_COUNT; type++) {
            random_blocks(w, (enum mp_wtype)type,
                          ROWS * COLS / mp_wtype_info((enum mp_wtype)type)->block_elements);
            multiply(y, w, x, tokens, (enum mp_wtype)type, quant, k);
            hash = (hash ^ hash_floats(y, tokens * ROWS)) * UINT64_C(0x100000001b3);
        }
        if (hash != pins[wide]) {
            fprintf(stderr, "%s: pins[%d] is UINT64_C(0x%016llx)\n", name, wide,
                    (unsigned long long)hash);
            exit(1);
        }
    }
}

static void variants_have_their_bits(void)
{
    for (size_t i = 0; mp_quant_names[i] != NULL; i++) {
        const struct mp_quant *quant = mp_quant_find(mp_quant_names[i]);

        fprintf(stderr, "  %s%s\n", mp_quant_names[i], quant == NULL ? " (not here)" : "");
        if (quant == NULL)
            continue;
        check_bits(quant->name, quant, NULL);
        CHECK(mp_kernels_find(quant->kernels) != NULL);
        check_bits(quant->kernels, NULL, mp_kernels_find(quant->kernels));
    }
}

/* Vector kernels without a variant multiply in plain C. */
static void without_a_variant_plain_c(void)
{
    static unsigned char w[ROWS * COLS * 2];
    static float x[COLS], y[ROWS], want[ROWS];
    const struct mp_kernels *k = mp_kernels_best();

    if (mp_quant_best(k->name) != NULL)
        return;
    fprintf(stderr, "  %s\n", k->name);
    fill_random(x, COLS, 1);
    for (int type = MP_WTYPE_PLAIN_COUNT; type < MP_WTYPE_COUNT; type++) {
        random_blocks(w, (enum mp_wtype)type,
                      ROWS * COLS / mp_wtype_info((enum mp_wtype)type)->block_elements);
        multiply(y, w, x, 1, (enum mp_wtype)type, NULL, k);
        multiply(want, w, x, 1, (enum mp_wtype)type, NULL, &mp_kernels_ref);
        CHECK(memcmp(y, want, sizeof(y)) == 0);
    }
}

int main(void)
{
    RUN(variants_have_their_bits);
    RUN(without_a_variant_plain_c);
    return 0;
}
