/*
 * What blocks of quantised weights mean, against pins from another implementation (quant_pins.py),
 * and how activations are rounded.
 */
#include "tests/unit/kernels/blocks.h"

#define PIN_BLOCKS 64
#define GUARD 64 /* floats behind the last block that stay as they are */

static const struct {
    enum mp_wtype type;
    uint64_t hash;
} pins[] = {
#include "tests/unit/kernels/quant_pins.inc"
};

/* All fields of 64 random blocks of each type, element by element, and nothing behind them. */
static void blocks_mean_what_others_read(void)
{
    static unsigned char w[PIN_BLOCKS * 256];
    static float values[PIN_BLOCKS * 256 + GUARD];
    size_t count = 0;

    for (size_t i = 0; i < LEN(pins); i++) {
        const struct mp_wtype_info *info = mp_wtype_info(pins[i].type);

        const size_t elements = PIN_BLOCKS * info->block_elements;

        lcg = 1;
        random_blocks(w, pins[i].type, PIN_BLOCKS);
        for (size_t g = 0; g < GUARD; g++)
            values[elements + g] = 12345;
        info->convert(values, w, elements);
        for (size_t g = 0; g < GUARD; g++)
            CHECK(values[elements + g] == 12345);
        if (hash_floats(values, elements) != pins[i].hash) {
            fprintf(stderr, "%s: other values\n", info->name);
            exit(1);
        }
        count += info->x_block != 0;
    }
    CHECK_EQ(count, MP_WTYPE_COUNT - MP_WTYPE_PLAIN_COUNT);
}

/* The ends of MXFP4's exponent, which no random block has. */
static void exponents_of_mxfp4(void)
{
    unsigned char block[17] = { 0 };
    float values[32];

    block[1] = 0x97; /* element 0: 7, twice 6; element 16: 9, twice -0.5 */
    for (int e = 0; e < 256; e++) {
        block[0] = (unsigned char)e;
        mp_wtype_info(MP_WTYPE_MXFP4)->convert(values, block, 32);
        CHECK(values[0] == (float)ldexp(6, e - 127)); /* from 253 on infinity */
        CHECK(values[16] == (float)ldexp(-0.5, e - 127));
    }
}

/* ---- activations */

static void rounding_is_to_the_nearest(void)
{
    signed char q[256];
    float x[256];

    for (int half = 0; half < 2; half++) {
        const size_t count = half ? 32 : 256;

        for (int scale = -60; scale < 100; scale += 20) {
            float step;

            fill_random(x, count, ldexpf(1, scale));
            step = mp_quant_round(q, x, count, half);
            for (size_t i = 0; i < count && (!half || (scale > -14 && scale < 15)); i++)
                CHECK(fabs((double)step * q[i] - (double)x[i]) <=
                      (double)step * (half ? 0.57 : 0.5001));
        }
        memset(x, 0, sizeof(x));
        CHECK(mp_quant_round(q, x, count, half) == 0);
        x[5] = NAN;
        CHECK(isnan(mp_quant_round(q, x, count, half)));
        x[5] = -INFINITY;
        CHECK(isnan(mp_quant_round(q, x, count, half)));
        x[5] = -2;
        x[7] = 1;
        CHECK(mp_quant_round(q, x, count, half) > 0);
        CHECK(q[5] == -127 && (q[7] == 63 || q[7] == 64) && q[0] == 0);
    }
}

int main(void)
{
    RUN(blocks_mean_what_others_read);
    RUN(exponents_of_mxfp4);
    RUN(rounding_is_to_the_nearest);
    return 0;
}
