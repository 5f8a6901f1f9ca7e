/*
 * From floats to a type: plain numbers here, blocks by the variant for this processor.
 * MP_KERNELS_X86 comes from the build: whether the vector files are part of it.
 */
#include "kernels/cpu/quant/encode.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/quant/encode_int.h"
#include "kernels/cpu/quant/quant.h"

#define BLOCK_MAX 256

extern const struct mp_encode mp_encode_plain;

#if MP_KERNELS_X86
extern const struct mp_encode mp_encode_avx2, mp_encode_avx512;

const char *const mp_encode_names[] = { "avx512", "avx2", "plain", NULL };

static const struct mp_encode *const variants[] = { &mp_encode_avx512, &mp_encode_avx2,
                                                    &mp_encode_plain };
#else
const char *const mp_encode_names[] = { "plain", NULL };

static const struct mp_encode *const variants[] = { &mp_encode_plain };
#endif

/* What the kernels called so need is what the variant needs. */
const struct mp_encode *mp_encode_find(const char *name)
{
    for (size_t i = 0; mp_encode_names[i] != NULL; i++) {
        if (strcmp(mp_encode_names[i], name) == 0)
            return variants[i] == &mp_encode_plain || mp_kernels_find(name) != NULL ? variants[i]
                                                                                    : NULL;
    }
    return NULL;
}

static const struct mp_encode *best_variant(void)
{
    static _Atomic(const struct mp_encode *) kept; /* threads that race find the same */
    const struct mp_encode *best = atomic_load_explicit(&kept, memory_order_relaxed);

    for (size_t i = 0; best == NULL; i++)
        best = mp_encode_find(mp_encode_names[i]);
    atomic_store_explicit(&kept, best, memory_order_relaxed);
    return best;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* Round to nearest, ties to even; what has no 16-bit float is infinite. */
static uint16_t half_bits(float value)
{
    const uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000;
    const float size = fabsf(value);

    if (isnan(value))
        return (uint16_t)(sign | 0x7e00);
    if (size >= 65520)
        return (uint16_t)(sign | 0x7c00);
    if (size < 0x1p-14f)
        return (uint16_t)(sign | (uint32_t)nearbyintf(size * 0x1p24f));
    return (uint16_t)(sign | (((bits & 0x7fffffff) - 0x38000000 + 0xfff + (bits >> 13 & 1)) >> 13));
}

static uint16_t bfloat_bits(float value)
{
    const uint32_t bits = bits_of(value);

    if (isnan(value))
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

uint16_t encode_half_bits(float value)
{
    return half_bits(value > 65504 ? 65504 : value < -65504 ? -65504 : value);
}

float encode_half(float value)
{
    unsigned char bytes[2];
    float half;

    encode_put_half(bytes, value);
    mp_wtype_info(MP_WTYPE_F16)->convert(&half, bytes, 1);
    return half;
}

static void encode_plain(enum mp_wtype type, unsigned char *dst, const float *x, size_t count)
{
    if (type == MP_WTYPE_F32) {
        memcpy(dst, x, count * sizeof(*x));
        return;
    }
    for (size_t i = 0; i < count; i++) {
        const uint16_t bits = type == MP_WTYPE_F16 ? half_bits(x[i]) : bfloat_bits(x[i]);

        dst[2 * i] = (unsigned char)(bits & 0xff);
        dst[2 * i + 1] = (unsigned char)(bits >> 8);
    }
}

/* Where weights are given, numbers that are large in their block count more than the others: they
 * decide the sums that the weights were measured for. */
static void weigh(float *out, const float *x, const float *weight, size_t count)
{
    float squares = 0;

    for (size_t i = 0; i < count; i++)
        squares += x[i] * x[i];
    for (size_t i = 0; i < count; i++)
        out[i] = weight != NULL ? weight[i] * sqrtf(squares / (float)count + x[i] * x[i]) : 1;
}

void mp_quant_encode(enum mp_wtype type, void *dst, const float *x, const float *weight,
                     size_t count)
{
    const struct mp_wtype_info *info = mp_wtype_info(type);
    const struct mp_encode *encode = best_variant();
    unsigned char *p = dst;
    float weights[BLOCK_MAX];

    if (type < MP_WTYPE_PLAIN_COUNT) {
        encode_plain(type, p, x, count);
        return;
    }
    for (size_t i = 0; i < count; i += info->block_elements, p += info->block_bytes) {
        weigh(weights, x + i, weight != NULL ? weight + i : NULL, info->block_elements);
        memset(p, 0, info->block_bytes);
        if (info->block_elements == 32)
            encode->block_32(type, p, x + i, weights);
        else
            encode->block_256(type, p, x + i, weights);
    }
}

void mp_kernels_store(enum mp_wtype type, void *dst, const float *x, size_t count)
{
    unsigned char *p = dst;
    signed char q[32];

    if (type < MP_WTYPE_PLAIN_COUNT) {
        encode_plain(type, p, x, count);
        return;
    }
    for (size_t i = 0; i < count; i += 32, p += 34) {
        const float scale = mp_quant_round(q, x + i, 32, 1);

        encode_plain(MP_WTYPE_F16, p, &scale, 1);
        memcpy(p + 2, q, 32);
    }
}
