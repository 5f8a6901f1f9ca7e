/* How activations are rounded, in plain C: the scales are those of llama.cpp, so that results can
 * be compared. */
#include <math.h>

#include "kernels/cpu/quant/quant.h"

/* To the nearest 16-bit float; what is too large for one stays as it is. */
static float to_half(float value)
{
    const double quantum = value < 0x1p-14f ? 0x1p-24 : ldexp(1, ilogbf(value) - 10);
    const double rounded = nearbyint((double)value / quantum) * quantum;

    return rounded < 0x1p16 ? (float)rounded : value;
}

float mp_quant_round(signed char *q, const float *x, size_t count, int half)
{
    float largest = 0, bad = 0, inverse = 0, scale = 0;

    for (size_t i = 0; i < count; i++) {
        bad += x[i] * 0;
        largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
    }
    if (half && largest > 0) {
        scale = largest / 127;
        inverse = 1 / scale;
        scale = to_half(scale);
    } else if (largest > 0) {
        inverse = 127 / largest;
        scale = 1 / inverse;
    }
    for (size_t i = 0; i < count; i++) { /* Beyond the range, where the scale is 0 or NaN. */
        const float value = x[i] * inverse;

        q[i] = (signed char)(fabsf(value) <= 127.5f ? nearbyintf(value) : -128);
    }
    return scale + bad;
}

void mp_quant_rounded(double *out, const float *x, const struct mp_wtype_info *type, size_t count)
{
    signed char q[256]; /* the largest block */

    for (size_t i = 0; i < count; i += type->x_block) {
        const double scale = (double)mp_quant_round(q, x + i, type->x_block, type->x_block == 32);

        for (size_t j = 0; j < type->x_block; j++)
            out[i + j] = scale * q[j];
    }
}
