/* Functions of one number or of the lanes of a warp. */
#ifndef MP_MATH_CUH
#define MP_MATH_CUH

#include <mp_device.h>

#include "kernels/cuda/tiles.h"

MP_DEVICE uint32_t mp_lane(void)
{
    return mp_thread() % MP_LANES;
}

MP_DEVICE uint32_t mp_warp(void)
{
    return mp_thread() / MP_LANES;
}

MP_DEVICE uint32_t mp_min(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/*
 * exp(x), at most 1 unit in the last place off: x = n ln 2 + r with |r| <= ln 2 / 2, e^r by its
 * Taylor polynomial, times 2^n in two steps because 2^-150 and 2^128 are no floats.
 */
MP_DEVICE float mp_exp(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
    float n, r, e;
    int32_t power, half;

    x = x < -105.0f ? -105.0f : x;
    x = x > 89.0f ? 89.0f : x;
    n = mp_fma(x, 1.44269502f, magic);
    power = (int32_t)(mp_as_bits(n) - 0x4b400000u);
    n = n - magic;
    r = mp_fma(-n, 0.693145752f, x); /* 0x1.62e4p-1 */
    r = mp_fma(-n, 1.42860677e-6f, r);
    e = 1.98412698e-4f;
    e = mp_fma(e, r, 1.38888889e-3f);
    e = mp_fma(e, r, 8.33333333e-3f);
    e = mp_fma(e, r, 4.16666667e-2f);
    e = mp_fma(e, r, 1.66666667e-1f);
    e = mp_fma(e, r, 0.5f);
    e = mp_fma(e, r, 1.0f);
    e = mp_fma(e, r, 1.0f);
    power = power < -152 ? -152 : power; /* NaN has any power */
    power = power > 129 ? 129 : power;
    half = power / 2;
    return e * mp_as_float((uint32_t)(half + 127) << 23) *
           mp_as_float((uint32_t)(power - half + 127) << 23);
}

MP_DEVICE float mp_sigmoid(float v)
{
    return mp_divide(1.0f, 1.0f + mp_exp(-v));
}

MP_DEVICE float mp_silu(float v)
{
    return mp_divide(v, 1.0f + mp_exp(-v));
}

/* To nearest, ties to even; NaN stays NaN. */
MP_DEVICE uint16_t mp_to_bf16(float v)
{
    const uint32_t bits = mp_as_bits(v);

    if (v != v)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

MP_DEVICE float mp_shuffle_float(float value, uint32_t lane)
{
    return mp_as_float(mp_shuffle(mp_as_bits(value), lane));
}

MP_DEVICE float mp_shuffle_xor_float(float value, uint32_t mask)
{
    return mp_as_float(mp_shuffle_xor(mp_as_bits(value), mask));
}

MP_DEVICE uint64_t mp_shuffle_xor_long(uint64_t value, uint32_t mask)
{
    const uint64_t high = mp_shuffle_xor((uint32_t)(value >> 32), mask);

    return high << 32 | mp_shuffle_xor((uint32_t)value, mask);
}

/* The sum over all lanes, the same in each: lanes 16 apart are added first, then 8, 4, 2, 1. */
MP_DEVICE float mp_warp_sum(float v)
{
    MP_UNROLL
    for (uint32_t d = 16; d > 0; d /= 2)
        v = v + mp_shuffle_xor_float(v, d);
    return v;
}

MP_DEVICE float mp_warp_max(float v)
{
    MP_UNROLL
    for (uint32_t d = 16; d > 0; d /= 2) {
        const float other = mp_shuffle_xor_float(v, d);

        v = other > v ? other : v;
    }
    return v;
}

/* One step of mp_warp_sums(): lanes d apart share out pairs of values, or both keep the last one.
 */
MP_DEVICE void mp_warp_halve(float *v, const uint32_t pairs, const uint32_t d)
{
    const int is_high = (mp_lane() & d) != 0;

    if (pairs == 0)
        v[0] = v[0] + mp_shuffle_xor_float(v[0], d);
    MP_UNROLL
    for (uint32_t i = 0; i < pairs; i++) {
        const float low = v[i], high = v[i + pairs];
        const float other = mp_shuffle_xor_float(is_high ? low : high, d);

        v[i] = (is_high ? high : low) + other;
    }
}

/*
 * mp_warp_sum() of each of v[0 .. count), count 1, 2, 4 ... 32, with the same additions: lane l
 * returns that of v[l / (32 / count)]. v is used up.
 */
MP_DEVICE float mp_warp_sums(float *v, const uint32_t count)
{
    mp_warp_halve(v, count / 2, 16);
    mp_warp_halve(v, count / 4, 8);
    mp_warp_halve(v, count / 8, 4);
    mp_warp_halve(v, count / 16, 2);
    mp_warp_halve(v, count / 32, 1);
    return v[0];
}

/*
 * Whether this block is the last of `blocks` that come here: then its threads see all that the
 * others wrote before. *turn is 0 before and after. flag: in shared memory, nothing else's until
 * all threads have gone on.
 */
MP_DEVICE int mp_is_last_block(MP_GLOBAL uint32_t *turn, uint32_t blocks, uint32_t *flag)
{
    mp_sync();
    if (mp_thread() == 0) {
        mp_fence();
        *flag = mp_take_turn(turn) + 1 == blocks;
        mp_fence();
        if (*flag)
            *turn = 0;
    }
    mp_sync();
    return *flag != 0;
}

#endif
