/* Layer groups; the rule is in calibrate.h. */
#include <math.h>

#include "engine/calibrate/calibrate.h"

#define NUMBERS 2

/* Sums over the first l layers, so that a group's squared distances cost no loop. */
struct sums {
    double x[MP_LAYERS_MAX + 1][NUMBERS];
    double xx[MP_LAYERS_MAX + 1];
};

/* How like layer l's input is to its neighbours'. */
static double neighbours(const double *cosine, uint32_t layers, uint32_t l)
{
    if (l == 0)
        return cosine[1];
    return l + 1 < layers ? (cosine[l] + cosine[l + 1]) / 2 : cosine[l];
}

/* Mean 0 and variance 1; numbers that do not vary count as 0. */
static void scale(double *values, uint32_t count)
{
    double mean = 0, squares = 0;

    for (uint32_t i = 0; i < count; i++)
        mean += values[i] / count;
    for (uint32_t i = 0; i < count; i++)
        squares += (values[i] - mean) * (values[i] - mean) / count;
    for (uint32_t i = 0; i < count; i++)
        values[i] = squares > 1e-12 * mean * mean ? (values[i] - mean) / sqrt(squares) : 0;
}

static double distances(const struct sums *sums, uint32_t begin, uint32_t end)
{
    double result = sums->xx[end] - sums->xx[begin];

    for (int n = 0; n < NUMBERS; n++) {
        const double sum = sums->x[end][n] - sums->x[begin][n];

        result -= sum * sum / (end - begin);
    }
    return result;
}

void mp_calibrate_groups(const double *cosine, const double *top_share, uint32_t layers,
                         uint32_t *group)
{
    static struct sums sums; /* too large for a stack; one thread calibrates */
    double values[NUMBERS][MP_LAYERS_MAX];
    uint32_t first = 1, second = 2;
    double best = INFINITY;

    if (layers < 3) {
        for (uint32_t l = 0; l < layers; l++)
            group[l] = l;
        return;
    }
    for (uint32_t l = 0; l < layers; l++) {
        values[0][l] = neighbours(cosine, layers, l);
        values[1][l] = top_share[l];
    }
    for (int n = 0; n < NUMBERS; n++)
        scale(values[n], layers);
    for (uint32_t l = 0; l < layers; l++) {
        sums.xx[l + 1] = sums.xx[l];
        for (int n = 0; n < NUMBERS; n++) {
            sums.x[l + 1][n] = sums.x[l][n] + values[n][l];
            sums.xx[l + 1] += values[n][l] * values[n][l];
        }
    }
    for (uint32_t a = 1; a + 1 < layers; a++) {
        for (uint32_t b = a + 1; b < layers; b++) {
            const double cost =
                distances(&sums, 0, a) + distances(&sums, a, b) + distances(&sums, b, layers);

            if (cost < best - 1e-9) {
                best = cost;
                first = a;
                second = b;
            }
        }
    }
    for (uint32_t l = 0; l < layers; l++)
        group[l] = l < first ? 0 : l < second ? 1 : 2;
}
