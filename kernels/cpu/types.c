/*
 * The table of number types, and what their bytes mean, in plain C. Not the fast loops: those are
 * in product.h, once for every instruction set.
 */
#include "kernels/cpu/types.h"

#include <stdint.h>
#include <string.h>

#include "kernels/cpu/quant/quant.h"

static uint32_t f16_to_f32_bits(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t exponent = (half >> 10) & 0x1f, mantissa = half & 0x3ff;

    if (exponent == 0x1f) /* Like the hardware, a signalling NaN becomes quiet. */
        return sign | 0x7f800000 | mantissa << 13 | (mantissa != 0 ? 0x400000 : 0);
    if (exponent == 0) {
        if (mantissa == 0)
            return sign;
        for (exponent = 1; (mantissa & 0x400) == 0; exponent--)
            mantissa <<= 1;
        mantissa &= 0x3ff;
    }
    return sign | (exponent + 112) << 23 | mantissa << 13;
}

static void convert_f32(float *dst, const void *src, size_t count)
{
    if (count > 0)
        memcpy(dst, src, count * sizeof(*dst));
}

/* These work on bits, not floats, so that every NaN comes through as it is. */
static void convert_bf16(float *dst, const void *src, size_t count)
{
    const unsigned char *from = src;

    for (size_t i = 0; i < count; i++) {
        uint16_t half;
        uint32_t bits;

        memcpy(&half, from + i * sizeof(half), sizeof(half));
        bits = (uint32_t)half << 16;
        memcpy(&dst[i], &bits, sizeof(bits));
    }
}

static void convert_f16(float *dst, const void *src, size_t count)
{
    const unsigned char *from = src;

    for (size_t i = 0; i < count; i++) {
        uint16_t half;
        uint32_t bits;

        memcpy(&half, from + i * sizeof(half), sizeof(half));
        bits = f16_to_f32_bits(half);
        memcpy(&dst[i], &bits, sizeof(bits));
    }
}

static const struct mp_wtype_info types[MP_WTYPE_COUNT] = {
    [MP_WTYPE_F32] = { "f32", 1, 4, convert_f32, 0 },
    [MP_WTYPE_BF16] = { "bf16", 1, 2, convert_bf16, 0 },
    [MP_WTYPE_F16] = { "f16", 1, 2, convert_f16, 0 },
#define X(TYPE, name, elements, bytes) \
    [MP_WTYPE_##TYPE] = { #name, elements, bytes, mp_quant_decode_##name, elements },
    MP_QUANT_MAP(X)
#undef X
};

const struct mp_wtype_info *mp_wtype_info(enum mp_wtype type)
{
    return (unsigned)type < MP_WTYPE_COUNT ? &types[type] : NULL;
}
