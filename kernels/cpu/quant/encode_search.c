/*
 * Searches for the scales of a block. For given codes the best scale is that of least squares; for
 * a given scale the best codes are the nearest ones. Neither step makes the error larger, and both
 * stop at the next local minimum, so they begin at several scales, those that map the largest
 * number to about the last code.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/quant/encode_int.h"

#define SCALES 9 /* tried on each side of the first one */
#define REFINEMENTS 3

int encode_nearest(const struct encode_levels *levels, float value)
{
    int code = levels->low, end = levels->high;

    if (levels->list == NULL) {
        if (value <= (float)levels->low)
            return levels->low;
        return value >= (float)levels->high ? levels->high : (int)encode_round(value);
    }
    while (code < end) { /* code to end: the middle between two numbers parts them */
        const int middle = (code + end) / 2;
        const signed char *number = levels->list + (middle - levels->low);

        if (value * 2 > (float)(number[0] + number[1]))
            code = middle + 1;
        else
            end = middle;
    }
    return code;
}

/* Sums over x times level and level squared, under codes for x * inverse. */
struct fit {
    float product, square;
};

static struct fit fit_scale(const struct encode_levels *levels, const float *x, const float *weight,
                            size_t count, float inverse)
{
    const float low = (float)levels->low, high = (float)levels->high;
    struct fit fit = { 0, 0 };

    for (size_t i = 0; levels->list == NULL && i < count; i++) { /* the same, without branches */
        const float value = x[i] * inverse;
        const float level = encode_round(value < low ? low : value > high ? high : value);

        fit.product += weight[i] * x[i] * level;
        fit.square += weight[i] * level * level;
    }
    for (size_t i = 0; levels->list != NULL && i < count; i++) {
        const float level = encode_level(levels, encode_nearest(levels, x[i] * inverse));

        fit.product += weight[i] * x[i] * level;
        fit.square += weight[i] * level * level;
    }
    return fit;
}

/* By so much the squared error becomes less than with all zero. */
static float gain(struct fit fit)
{
    return fit.square > 0 ? fit.product / fit.square * fit.product : 0;
}

static float largest_of(const float *x, size_t count)
{
    float largest = 0;

    for (size_t i = 0; i < count; i++)
        largest = fabsf(x[i]) > fabsf(largest) ? x[i] : largest;
    return largest;
}

float encode_scale(const struct encode_levels *levels, const float *x, const float *weight,
                   size_t count)
{
    const float largest = largest_of(x, count);
    const float ends[2] = { encode_level(levels, levels->low), encode_level(levels, levels->high) };
    struct fit best = { 0, 0 };

    if (largest == 0)
        return 0;
    for (unsigned end = 0; end < 2; end++) {
        const float step = fabsf(ends[end]) > 8 ? ends[end] / 80 : copysignf(0.1f, ends[end]);

        for (int k = -SCALES; k <= SCALES; k++) {
            const float inverse = (ends[end] + step * (float)k) / largest;
            const struct fit fit =
                isfinite(inverse) ? fit_scale(levels, x, weight, count, inverse) : best;

            best = gain(fit) > gain(best) ? fit : best;
        }
    }
    for (int i = 0; i < REFINEMENTS && best.product != 0; i++) {
        const struct fit fit = fit_scale(levels, x, weight, count, best.square / best.product);

        if (!(gain(fit) > gain(best)))
            break;
        best = fit;
    }
    return best.square > 0 ? best.product / best.square : 0;
}

void encode_codes(const struct encode_levels *levels, const float *x, float scale, signed char *q,
                  size_t count)
{
    const float inverse = scale != 0 ? 1 / scale : 0;

    for (size_t i = 0; i < count; i++)
        q[i] = (signed char)encode_nearest(levels, isfinite(inverse) ? x[i] * inverse : 0);
}

static int line_code(int most, float x, struct encode_line line, float inverse)
{
    const float value = (x + line.least) * inverse;

    return (int)encode_round(value > 0 ? (value < (float)most ? value : (float)most) : 0);
}

void encode_line_codes(int most, const float *x, struct encode_line line, signed char *q,
                       size_t count)
{
    const float inverse = line.scale > 0 ? 1 / line.scale : 0;

    for (size_t i = 0; i < count; i++)
        q[i] = (signed char)line_code(most, x[i], line, isfinite(inverse) ? inverse : 0);
}

/* The line of least squares through the codes that `from` gives; its squared error. */
static float fit_line(int most, int below, const float *x, const float *weight, size_t count,
                      struct encode_line from, struct encode_line *line_p)
{
    const float inverse = 1 / from.scale;
    float n = 0, q1 = 0, q2 = 0, x1 = 0, xq = 0, error = 0;
    struct encode_line line;

    for (size_t i = 0; i < count; i++) {
        const float q = (float)line_code(most, x[i], from, inverse);

        n += weight[i];
        q1 += weight[i] * q;
        q2 += weight[i] * q * q;
        x1 += weight[i] * x[i];
        xq += weight[i] * x[i] * q;
    }
    line = (struct encode_line){ (n * xq - x1 * q1) / (n * q2 - q1 * q1), 0 };
    line.least = (q1 * line.scale - x1) / n;
    if (!isfinite(line.scale) || !isfinite(line.least) || (below && line.least < 0))
        line = (struct encode_line){ xq / q2, 0 };
    if (!isfinite(line.scale) || line.scale <= 0)
        return INFINITY;
    for (size_t i = 0; i < count; i++) {
        const float q = (float)line_code(most, x[i], from, inverse);
        const float rest = x[i] - (line.scale * q - line.least);

        error += weight[i] * rest * rest;
    }
    *line_p = line;
    return error;
}

static struct encode_line refine(int most, int below, const float *x, const float *weight,
                                 size_t count, struct encode_line line, float error)
{
    for (int i = 0; i < REFINEMENTS; i++) {
        struct encode_line next;
        const float now = fit_line(most, below, x, weight, count, line, &next);

        if (!(now < error))
            break;
        error = now;
        line = next;
    }
    return line;
}

struct encode_line encode_affine(int most, int below, const float *x, const float *weight,
                                 size_t count)
{
    float low = x[0], high = x[0], error = INFINITY;
    struct encode_line best = { 0, 0 };

    for (size_t i = 1; i < count; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    if (below && low > 0)
        low = 0;
    best.least = -low;
    for (int k = -SCALES; high > low && k <= 2 * SCALES; k++) {
        const struct encode_line from = { (high - low) / ((float)most + 0.1f * (float)k), -low };
        struct encode_line line;
        const float now = from.scale > 0 && isfinite(1 / from.scale)
                              ? fit_line(most, below, x, weight, count, from, &line)
                              : INFINITY;

        if (now < error) {
            error = now;
            best = line;
        }
    }
    return isfinite(error) ? refine(most, below, x, weight, count, best, error) : best;
}
