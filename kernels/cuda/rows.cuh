/* A row of activations as a whole: its norm, its softmax. */
#ifndef MP_ROWS_CUH
#define MP_ROWS_CUH

#include "kernels/cuda/math.cuh"

#define MP_NORM_PARTS (MP_NORM_THREADS / MP_LANES) /* of a row */

/* The factor of a norm. Where the sum of squares has overflowed it is NaN (inf - inf), as zeros
 * would look like a result. */
MP_DEVICE float mp_norm_scale(float sum, uint32_t width, float eps)
{
    return mp_divide(1.0f, mp_sqrt(mp_divide(sum, (float)width) + eps)) + (sum - sum);
}

/*
 * parts (shared) := the sums of squares of a row: 256 of every 256th element, added by warps. All
 * threads of the block, 256 or fewer, come here; the bits do not depend on how many they are.
 */
MP_DEVICE void mp_norm_parts(float *parts, const MP_GLOBAL float *x, uint32_t width)
{
    for (uint32_t first = 0; first < MP_NORM_THREADS; first += mp_threads()) {
        const uint32_t thread = first + mp_thread();
        float sum = 0;

        for (uint32_t i = thread; i < width; i += MP_NORM_THREADS)
            sum = mp_fma(x[i], x[i], sum);
        sum = mp_warp_sum(sum);
        if (mp_lane() == 0)
            parts[thread / MP_LANES] = sum;
    }
}

/* The factor of the row with these parts, which are added in order. */
MP_DEVICE float mp_norm_of(const float *parts, uint32_t width, float eps)
{
    float sum = 0;

    for (uint32_t i = 0; i < MP_NORM_PARTS; i++)
        sum = sum + parts[i];
    return mp_norm_scale(sum, width, eps);
}

/* A warp's row becomes its softmax. */
MP_DEVICE void mp_softmax_row(MP_GLOBAL float *x, uint32_t width)
{
    float max = -__builtin_inff(), sum = 0;

    for (uint32_t i = mp_lane(); i < width; i += MP_LANES)
        max = x[i] > max ? x[i] : max;
    max = mp_warp_max(max);
    for (uint32_t i = mp_lane(); i < width; i += MP_LANES) {
        const float e = mp_exp(x[i] - max);

        x[i] = e;
        sum = sum + e;
    }
    sum = mp_warp_sum(sum);
    for (uint32_t i = mp_lane(); i < width; i += MP_LANES)
        x[i] = mp_divide(x[i], sum);
}

#endif
