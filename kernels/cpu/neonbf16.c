/*
 * The kernels in vectors of 8 floats on ARM, but products with BF16 weights round activations to
 * BF16 and multiply pairs (BFDOT): class `native`. The instruction takes denormals for zeros and
 * rounds products and sums to odd.
 */
#include "kernels/cpu/neon.h"

#define VECTOR_NAME "neonbf16"
#define VECTOR_KERNELS mp_kernels_neonbf16
#define BF16_PAIRS 1

/* Of the 2 * LANES weights at p: those of the half as they are multiplied. */
INLINE vec w_part(const unsigned char *p, enum mp_wtype type, int half)
{
    return type == MP_WTYPE_BF16 ? w_widen(p, MP_WTYPE_F32) : w_load(p, type, half);
}

INLINE vec w_part_n(const unsigned char *p, enum mp_wtype type, int half, size_t n)
{
    unsigned char some[4 * LANES] = { 0 };

    if (type != MP_WTYPE_BF16)
        return w_load_n(p, type, half, n);
    memcpy(some, p, 2 * n);
    return w_part(some, type, half);
}

/* sum + two products for each lane. */
INLINE float32x4_t add_pairs(float32x4_t sum, float32x4_t w, float32x4_t x)
{
    return vbfdotq_f32(sum, vreinterpretq_bf16_f32(w), vreinterpretq_bf16_f32(x));
}

/* sum + w * x */
INLINE vec w_fma(vec w, vec x, vec sum, enum mp_wtype type)
{
    if (type == MP_WTYPE_BF16)
        return v_of(add_pairs(sum.val[0], w.val[0], x.val[0]),
                    add_pairs(sum.val[1], w.val[1], x.val[1]));
    return v_fma(w, x, sum);
}

INLINE float32x4_t round_pairs(vec a)
{
    return vreinterpretq_f32_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(a.val[0]), a.val[1]));
}

/* The 2 * LANES activations of a step as they are multiplied: for BF16 all of them are in *a. */
INLINE void x_parts(vec *a, vec *b, enum mp_wtype type)
{
    if (type == MP_WTYPE_BF16)
        *a = v_of(round_pairs(*a), round_pairs(*b));
}

#include "kernels/cpu/vector.h"
