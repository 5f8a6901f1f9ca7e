/* The order in which numbers are chosen: greatest first, equal ones by number. */
#ifndef MP_BEST_CUH
#define MP_BEST_CUH

#include "kernels/cuda/math.cuh"

/* Whether (a, i) comes before (b, j): greater, or equal with the lower number. NaN never does. */
MP_DEVICE int mp_is_before(float a, uint32_t i, float b, uint32_t j)
{
    return a > b || (a == b && i < j);
}

/* Of all lanes' (value, index) the one before all others; index 0xffffffff: none. */
MP_DEVICE void mp_warp_best(float *value, uint32_t *index)
{
    MP_UNROLL
    for (uint32_t d = 16; d > 0; d /= 2) {
        const float other = mp_shuffle_xor_float(*value, d);
        const uint32_t other_index = mp_shuffle_xor(*index, d);

        if (other_index != 0xffffffffu &&
            (*index == 0xffffffffu || mp_is_before(other, other_index, *value, *index))) {
            *value = other;
            *index = other_index;
        }
    }
}

#endif
