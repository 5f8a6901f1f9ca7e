/*
 * The self-test of an implementation: products of every plain type against plain C, on shapes that
 * reach each kind of tile and the last few columns; of quantised types too where they are its own
 * (those of kernels/cpu/quant have their own test). It is no replacement for the unit tests.
 */
#include "kernels/cpu/kernels.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#define ROWS 13
#define TOKENS 15 /* 8, 4, 2 and 1 */
#define COLS 301  /* a block of 256, whole steps, and 13 more */

struct operands {
    unsigned char w[ROWS * COLS * sizeof(float)];
    float x[TOKENS * COLS], rounded[TOKENS * COLS], want[TOKENS * ROWS], got[TOKENS * ROWS];
};

/* To the nearest BF16, ties to even; x is finite and no denormal. */
static float round_bf16(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* In [1/4, 1/2) or its negative: in every type. */
static void put(unsigned char *w, enum mp_wtype type, uint32_t random)
{
    const uint32_t f32 = (random & 0x807fffff) | 0x3e800000;
    const uint16_t bf16 = (uint16_t)(f32 >> 16);
    const uint16_t f16 = (uint16_t)((random >> 16 & 0x83ff) | 0x3400);

    if (type == MP_WTYPE_F32)
        memcpy(w, &f32, sizeof(f32));
    else
        memcpy(w, type == MP_WTYPE_BF16 ? &bf16 : &f16, sizeof(bf16));
}

static void fill(struct operands *o, enum mp_wtype type, uint32_t *state)
{
    const size_t bytes = mp_wtype_bytes(type, 1);

    for (size_t i = 0; i < ROWS * COLS; i++) {
        *state = *state * 1664525 + 1013904223;
        put(o->w + i * bytes, type, *state);
    }
    for (size_t i = 0; i < TOKENS * COLS; i++) {
        *state = *state * 1664525 + 1013904223;
        o->x[i] = (float)((int32_t)(*state | 1)) * 0x1p-31f;
        o->rounded[i] = round_bf16(o->x[i]);
    }
}

/* Sums of 301 products of at most 1/2 each in float; the largest sums are about 5. */
static int agree(const struct operands *o)
{
    for (size_t i = 0; i < TOKENS * ROWS; i++) {
        if (!(fabsf(o->want[i] - o->got[i]) <= 0x1p-12f))
            return 0;
    }
    return 1;
}

#define BLOCK_COLS 256

/* Any bytes are a block, but its 16-bit floats shall be moderate. */
static void fill_blocks(struct operands *o, size_t bytes, uint32_t *state)
{
    for (size_t i = 0; i < bytes; i++) {
        *state = *state * 1664525 + 1013904223;
        o->w[i] = (unsigned char)(*state >> 24 & 0x3f);
    }
}

static int agree_about(const struct operands *o, size_t count)
{
    float largest = 0;

    for (size_t i = 0; i < count; i++)
        largest = fabsf(o->want[i]) > largest ? fabsf(o->want[i]) : largest;
    for (size_t i = 0; i < count; i++) {
        if (!(fabsf(o->want[i] - o->got[i]) <= largest * 0x1p-14f))
            return 0;
    }
    return 1;
}

/* Many tokens, and one, which may be computed in another way. */
static int pass_quantised(const struct mp_kernels *k, struct operands *o, enum mp_wtype type,
                          uint32_t *state)
{
    fill_blocks(o, ROWS * mp_wtype_bytes(type, BLOCK_COLS), state);
    for (size_t tokens = TOKENS; tokens > 0; tokens = tokens > 1) {
        mp_kernels_ref.matmul(o->want, ROWS, o->w, type, BLOCK_COLS, o->x, COLS, ROWS, BLOCK_COLS,
                              tokens);
        k->matmul(o->got, ROWS, o->w, type, BLOCK_COLS, o->x, COLS, ROWS, BLOCK_COLS, tokens);
        if (!agree_about(o, tokens * ROWS))
            return 0;
    }
    return 1;
}

int mp_kernels_pass(const struct mp_kernels *k)
{
    struct operands o;
    uint32_t state = 1;

    for (int i = 0; i < MP_WTYPE_PLAIN_COUNT; i++) {
        const enum mp_wtype type = (enum mp_wtype)i;
        const int rounds = k->math != MP_MATH_F32 && type == MP_WTYPE_BF16;

        fill(&o, type, &state);
        mp_kernels_ref.matmul(o.want, ROWS, o.w, type, COLS, rounds ? o.rounded : o.x, COLS, ROWS,
                              COLS, TOKENS);
        k->matmul(o.got, ROWS, o.w, type, COLS, o.x, COLS, ROWS, COLS, TOKENS);
        if (!agree(&o))
            return 0;
        k->matmul_blocked(o.got, ROWS, o.w, type, COLS, o.x, COLS, ROWS, COLS, TOKENS, 0);
        if (!agree(&o))
            return 0;
    }
    for (int i = MP_WTYPE_PLAIN_COUNT; k->math == MP_MATH_AMX && i < MP_WTYPE_COUNT; i++) {
        if (!pass_quantised(k, &o, (enum mp_wtype)i, &state))
            return 0;
    }
    return 1;
}
