/*
 * Vectors of 8 floats on ARM, for the two files that include this one (there is no other use and
 * hence no guard): two registers of 4, so that sums are made in the order of avx2.c and results
 * have its bits. Nothing here is tuned.
 */
#include "kernels/cpu/inline.h"
#include "kernels/cpu/kernels.h"

#include <arm_neon.h>
#include <math.h>
#include <string.h>

#define LANES 8
#define TILE_TOKENS 4
#define TILE_ROWS_OF(tokens) ((tokens) == 4 ? 3 : 6)
#define IN_ORDER 0
#define TILE_ROWS_MAX 6
#define TILE_SUMS_MAX 16
#define VECTOR_QUANT "neon"

typedef float32x4x2_t vec;

INLINE vec v_of(float32x4_t low, float32x4_t high)
{
    vec a = { { low, high } };

    return a;
}

INLINE vec v_set1(float a)
{
    return v_of(vdupq_n_f32(a), vdupq_n_f32(a));
}

INLINE vec v_load(const float *p)
{
    return v_of(vld1q_f32(p), vld1q_f32(p + 4));
}

/* A load that compilers do not repeat for each use. */
INLINE vec v_load_once(const float *p)
{
    vec a = v_load(p);

    __asm__("" : "+w"(a.val[0]), "+w"(a.val[1]));
    return a;
}

INLINE void v_store(float *p, vec a)
{
    vst1q_f32(p, a.val[0]);
    vst1q_f32(p + 4, a.val[1]);
}

/* The first n lanes, n < LANES; the others are zero and their memory is not touched. */
INLINE vec v_load_n(const float *p, size_t n)
{
    float some[LANES] = { 0 };

    memcpy(some, p, n * sizeof(*p));
    return v_load(some);
}

INLINE void v_store_n(float *p, size_t n, vec a)
{
    float all[LANES];

    v_store(all, a);
    memcpy(p, all, n * sizeof(*p));
}

/* Lanes from n on are replaced by those of `other`. */
INLINE vec v_keep_n(vec a, size_t n, vec other)
{
    float all[LANES];

    v_store(all, other);
    v_store_n(all, n, a);
    return v_load(all);
}

INLINE float32x4_t bf16_at(const unsigned char *p)
{
    const uint16x4_t a = vreinterpret_u16_u8(vld1_u8(p));

    return vreinterpretq_f32_u32(vshll_n_u16(a, 16));
}

INLINE float32x4_t f16_at(const unsigned char *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}

/* LANES weights in order. */
INLINE vec w_widen(const unsigned char *p, enum mp_wtype type)
{
    if (type == MP_WTYPE_F32)
        return v_of(vreinterpretq_f32_u8(vld1q_u8(p)), vreinterpretq_f32_u8(vld1q_u8(p + 16)));
    if (type == MP_WTYPE_F16)
        return v_of(f16_at(p), f16_at(p + 8));
    return v_of(bf16_at(p), bf16_at(p + 8));
}

/* The first n, n < LANES, as v_load_n(). */
INLINE vec w_widen_n(const unsigned char *p, enum mp_wtype type, size_t n)
{
    unsigned char some[4 * LANES] = { 0 };

    memcpy(some, p, n * (type == MP_WTYPE_F32 ? 4 : 2));
    return w_widen(some, type);
}

/* Pairs of BF16 as floats: the even columns (half 0) by a shift, the odd ones by a mask. */
INLINE vec w_pairs(const unsigned char *p, int half)
{
    const uint32x4_t low = vreinterpretq_u32_u8(vld1q_u8(p));
    const uint32x4_t high = vreinterpretq_u32_u8(vld1q_u8(p + 16));
    const uint32x4_t mask = vdupq_n_u32(0xffff0000);

    if (half == 0)
        return v_of(vreinterpretq_f32_u32(vshlq_n_u32(low, 16)),
                    vreinterpretq_f32_u32(vshlq_n_u32(high, 16)));
    return v_of(vreinterpretq_f32_u32(vandq_u32(low, mask)),
                vreinterpretq_f32_u32(vandq_u32(high, mask)));
}

/* Of the 2 * LANES weights at p: even and odd columns of BF16, first and second half of others. */
INLINE vec w_load(const unsigned char *p, enum mp_wtype type, int half)
{
    if (type == MP_WTYPE_BF16)
        return w_pairs(p, half);
    return w_widen(p + (size_t)half * LANES * (type == MP_WTYPE_F32 ? 4 : 2), type);
}

/* The same of the first n, n < 2 * LANES; the others are zero and their memory is not touched. */
INLINE vec w_load_n(const unsigned char *p, enum mp_wtype type, int half, size_t n)
{
    unsigned char some[8 * LANES] = { 0 };

    memcpy(some, p, n * (type == MP_WTYPE_F32 ? 4 : 2));
    return w_load(some, type, half);
}

/* 2 * LANES floats in order become the even and the odd ones. */
INLINE void x_split(vec *a, vec *b)
{
    const vec even = v_of(vuzp1q_f32(a->val[0], a->val[1]), vuzp1q_f32(b->val[0], b->val[1]));
    const vec odd = v_of(vuzp2q_f32(a->val[0], a->val[1]), vuzp2q_f32(b->val[0], b->val[1]));

    *a = even;
    *b = odd;
}

INLINE vec v_add(vec a, vec b)
{
    return v_of(vaddq_f32(a.val[0], b.val[0]), vaddq_f32(a.val[1], b.val[1]));
}

INLINE vec v_sub(vec a, vec b)
{
    return v_of(vsubq_f32(a.val[0], b.val[0]), vsubq_f32(a.val[1], b.val[1]));
}

INLINE vec v_mul(vec a, vec b)
{
    return v_of(vmulq_f32(a.val[0], b.val[0]), vmulq_f32(a.val[1], b.val[1]));
}

INLINE vec v_div(vec a, vec b)
{
    return v_of(vdivq_f32(a.val[0], b.val[0]), vdivq_f32(a.val[1], b.val[1]));
}

/* a * b + c and c - a * b, rounded once. */
INLINE vec v_fma(vec a, vec b, vec c)
{
    return v_of(vfmaq_f32(c.val[0], a.val[0], b.val[0]), vfmaq_f32(c.val[1], a.val[1], b.val[1]));
}

INLINE vec v_fnma(vec a, vec b, vec c)
{
    return v_of(vfmsq_f32(c.val[0], a.val[0], b.val[0]), vfmsq_f32(c.val[1], a.val[1], b.val[1]));
}

/* The instruction for a maximum would make NaN of any NaN. */
INLINE float32x4_t larger(float32x4_t a, float32x4_t b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}

/* Where a or b is NaN the result is b. */
INLINE vec v_max(vec a, vec b)
{
    return v_of(larger(a.val[0], b.val[0]), larger(a.val[1], b.val[1]));
}

INLINE vec v_min(vec a, vec b)
{
    return v_of(vbslq_f32(vcltq_f32(a.val[0], b.val[0]), a.val[0], b.val[0]),
                vbslq_f32(vcltq_f32(a.val[1], b.val[1]), a.val[1], b.val[1]));
}

/* To the nearest whole number. */
INLINE vec v_round(vec a)
{
    return v_of(vrndnq_f32(a.val[0]), vrndnq_f32(a.val[1]));
}

/* 2^n for whole n that it has an exponent for. */
INLINE float32x4_t power_of_2(int32x4_t n)
{
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23));
}

INLINE float32x4_t scale_4(float32x4_t a, float32x4_t n)
{
    const int32x4_t whole = vcvtnq_s32_f32(n), half = vshrq_n_s32(whole, 1);

    return vmulq_f32(vmulq_f32(a, power_of_2(half)), power_of_2(vsubq_s32(whole, half)));
}

/*
 * a * 2^n, rounded once, for whole n in [-200, 200] and a near 1. Two factors, because 2^n itself
 * may be out of range; only the second product can round.
 */
INLINE vec v_scale(vec a, vec n)
{
    return v_of(scale_4(a.val[0], n.val[0]), scale_4(a.val[1], n.val[1]));
}

/* All lanes, always in the same order. */
INLINE float v_sum(vec a)
{
    const float32x4_t four = vaddq_f32(a.val[0], a.val[1]);
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));

    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

INLINE float32x4_t fold_twos(float32x4_t a, float32x4_t b)
{
    return vaddq_f32(vcombine_f32(vget_low_f32(a), vget_high_f32(b)),
                     vcombine_f32(vget_high_f32(a), vget_low_f32(b)));
}

INLINE float32x4_t fold_ones(float32x4_t a, float32x4_t b)
{
    return vaddq_f32(vtrn1q_f32(a, b), vtrn2q_f32(a, b));
}

/*
 * One level of adding up lanes, of two vectors at once: lanes of `a` and `b` that are 4 >> level
 * apart are added; where that bit of the lane's number is 0 the result is of `a`, else of `b`.
 */
INLINE vec v_fold(vec a, vec b, int level)
{
    if (level == 0)
        return v_of(vaddq_f32(a.val[0], a.val[1]), vaddq_f32(b.val[0], b.val[1]));
    if (level == 1)
        return v_of(fold_twos(a.val[0], b.val[0]), fold_twos(a.val[1], b.val[1]));
    return v_of(fold_ones(a.val[0], b.val[0]), fold_ones(a.val[1], b.val[1]));
}

/* After all levels vector i is in the lane whose number is i with the bits in reverse. */
INLINE void v_store_folded(float *p, vec a)
{
    v_store(p, v_of(vtrn1q_f32(a.val[0], a.val[1]), vtrn2q_f32(a.val[0], a.val[1])));
}

INLINE float v_max_lane(vec a)
{
    float32x4_t b = larger(a.val[0], a.val[1]);

    b = larger(b, vextq_f32(b, b, 2));
    return vgetq_lane_f32(larger(b, vextq_f32(b, b, 1)), 0);
}
