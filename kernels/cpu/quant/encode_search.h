/*
 * Searches for the scales of a block. For given codes the best scale is that of least squares; for
 * a given scale the best codes are the nearest ones. Neither step makes the error larger, and both
 * stop at the next local minimum, so they begin at several scales, those that map the largest
 * number to about the last code.
 *
 * Scales are tried side by side, each in a lane of a vector. A lane adds up in the order of the
 * elements, so bits do not depend on how many there are. Where a number is NaN, v_max() and v_min()
 * give their second operand.
 */
#define SCALES 9 /* tried on each side of the first one */
#define REFINEMENTS 3
#define ELEMENTS_MAX 32 /* that share a scale */
#define TRIED_MAX 48    /* whole vectors */

INLINE vec v_round(vec value)
{
    return value + v_set1(0x1.8p23f) - v_set1(0x1.8p23f);
}

/* The numbers that are nearest, or their codes. */
INLINE vec nearest(const struct encode_levels *levels, vec value, int codes)
{
    const signed char *list = levels->list;
    vec number;

    if (list == NULL) {
        value = v_max(v_set1((float)levels->low), value);
        return v_round(v_min(v_set1((float)levels->high), value));
    }
    number = v_set1((float)(codes ? levels->low : list[0]));
    for (int i = 0; i < levels->high - levels->low; i++) { /* the middle between two parts them */
        const vec step = v_set1((float)(codes ? 1 : list[i + 1] - list[i]));

        number +=
            v_if_less(v_set1((float)(list[i] + list[i + 1])), value * v_set1(2), step, v_set1(0));
    }
    return number;
}

/* Codes under a given scale; all that of 0 if the scale is 0. Lists: for whole vectors. */
INLINE void put_codes(const struct encode_levels *levels, const float *x, float scale,
                      signed char *q, size_t count)
{
    float inverse = scale != 0 ? 1 / scale : 0, codes[LANES];

    inverse = isfinite(inverse) ? inverse : 0;
    for (size_t i = 0; levels->list != NULL && i < count; i += LANES) {
        v_store(codes, nearest(levels, v_load(x + i) * v_set1(inverse), 1));
        for (size_t j = 0; j < LANES; j++)
            q[i + j] = (signed char)codes[j];
    }
    for (size_t i = 0; levels->list == NULL && i < count; i++) {
        const float low = (float)levels->low, high = (float)levels->high, value = x[i] * inverse;

        q[i] = (signed char)encode_round(value < low ? low : value > high ? high : value);
    }
}

/* Sums over x times level and level squared under some codes; and by how much the squared error
 * becomes less than with all zero. */
struct fit {
    float product, square, gain;
};

/* The same for some scales. */
struct fits {
    float product[TRIED_MAX], square[TRIED_MAX], gain[TRIED_MAX];
};

INLINE void fit_scales(const struct encode_levels *levels, const float *x, const float *weight,
                       size_t count, const float *inverses, size_t tried, struct fits *fits)
{
    for (size_t k = 0; k < tried; k += LANES) {
        const vec inverse = v_load(inverses + k), zero = v_set1(0);
        vec product = zero, square = zero;

        for (size_t i = 0; i < count; i++) {
            const vec level = nearest(levels, v_set1(x[i]) * inverse, 0);

            product += v_set1(weight[i] * x[i]) * level;
            square += v_set1(weight[i]) * level * level;
        }
        v_store(fits->product + k, product);
        v_store(fits->square + k, square);
        v_store(fits->gain + k, v_if_less(zero, square, product / square * product, zero));
    }
}

INLINE struct fit better(struct fit best, const struct fits *fits, size_t k)
{
    if (!(fits->gain[k] > best.gain))
        return best;
    return (struct fit){ fits->product[k], fits->square[k], fits->gain[k] };
}

INLINE float largest_of(const float *x, size_t count)
{
    float largest = 0;

    for (size_t i = 0; i < count; i++)
        largest = fabsf(x[i]) > fabsf(largest) ? x[i] : largest;
    return largest;
}

/* The scale with which the levels come nearest to x; 0: all x are. */
INLINE float best_scale(const struct encode_levels *levels, const float *x, const float *weight,
                        size_t count)
{
    const float largest = largest_of(x, count);
    const float ends[2] = { encode_level(levels, levels->low), encode_level(levels, levels->high) };
    float inverses[TRIED_MAX] = { 0 };
    struct fit best = { 0, 0, 0 };
    struct fits fits;
    size_t tried = 0;

    if (largest == 0)
        return 0;
    for (unsigned end = 0; end < 2; end++) {
        const float step = fabsf(ends[end]) > 8 ? ends[end] / 80 : copysignf(0.1f, ends[end]);

        for (int k = -SCALES; k <= SCALES; k++)
            inverses[tried++] = (ends[end] + step * (float)k) / largest;
    }
    fit_scales(levels, x, weight, count, inverses, tried, &fits);
    for (size_t k = 0; k < tried; k++)
        best = isfinite(inverses[k]) ? better(best, &fits, k) : best;
    for (int i = 0; i < REFINEMENTS && best.product != 0; i++) {
        const float gain = best.gain;

        inverses[0] = best.square / best.product;
        fit_scales(levels, x, weight, count, inverses, 1, &fits);
        best = better(best, &fits, 0);
        if (!(best.gain > gain))
            break;
    }
    return best.square > 0 ? best.product / best.square : 0;
}

/* x is about scale * code - least, codes 0 to `most`, scale >= 0. */
struct line {
    float scale, least;
};

INLINE void put_line_codes(int most, const float *x, struct line line, signed char *q, size_t count)
{
    float inverse = line.scale > 0 ? 1 / line.scale : 0;

    inverse = isfinite(inverse) ? inverse : 0;
    for (size_t i = 0; i < count; i++) {
        const float value = (x[i] + line.least) * inverse;

        q[i] = (signed char)encode_round(value > 0 ? value < (float)most ? value : (float)most : 0);
    }
}

/* Elements that share a line. */
struct group {
    const float *x, *weight;
    size_t count;
    float weights, weighted; /* sums of weights, and of x times them */
    int most, below;         /* below: least >= 0 */
};

/* Some lines and their squared errors. */
struct lines {
    float scale[TRIED_MAX], least[TRIED_MAX], error[TRIED_MAX];
};

/* Sums over codes, codes squared, and x times codes. */
struct line_sums {
    vec q1, q2, xq;
};

/* The line of least squares; without `least` where it is not finite or negative. */
INLINE void solve_line(const struct group *g, struct line_sums s, vec *scale_p, vec *least_p)
{
    const vec n = v_set1(g->weights), x1 = v_set1(g->weighted), zero = v_set1(0);
    const vec infinite = v_set1(INFINITY), alone = s.xq / s.q2;
    const vec scale = (n * s.xq - x1 * s.q1) / (n * s.q2 - s.q1 * s.q1);
    const vec least = (s.q1 * scale - x1) / n;
    vec a = scale, b = least;

    if (g->below) {
        a = v_if_less(least, zero, alone, a);
        b = v_if_less(least, zero, zero, b);
    }
    a = v_if_less(v_max(least, -least), infinite, a, alone);
    b = v_if_less(v_max(least, -least), infinite, b, zero);
    *scale_p = v_if_less(v_max(scale, -scale), infinite, a, alone);
    *least_p = v_if_less(v_max(scale, -scale), infinite, b, zero);
}

/* Lines of least squares through the codes that those of `from` give. */
INLINE void fit_lines(const struct group *g, const struct lines *from, size_t tried,
                      struct lines *to)
{
    const vec zero = v_set1(0), infinite = v_set1(INFINITY), most = v_set1((float)g->most);

    for (size_t k = 0; k < tried; k += LANES) {
        const vec inverse = v_set1(1) / v_load(from->scale + k), shift = v_load(from->least + k);
        vec codes[ELEMENTS_MAX], scale, least, error = zero;
        struct line_sums s = { zero, zero, zero };

        for (size_t i = 0; i < g->count; i++) {
            const vec value = v_min(v_max((v_set1(g->x[i]) + shift) * inverse, zero), most);
            const vec q = v_round(value), wq = v_set1(g->weight[i]) * q;

            codes[i] = q;
            s.q1 += wq;
            s.q2 += wq * q;
            s.xq += v_set1(g->weight[i] * g->x[i]) * q;
        }
        solve_line(g, s, &scale, &least);
        for (size_t i = 0; i < g->count; i++) {
            const vec rest = v_set1(g->x[i]) - (scale * codes[i] - least);

            error += v_set1(g->weight[i]) * rest * rest;
        }
        error = v_if_less(zero, scale, v_if_less(scale, infinite, error, infinite), infinite);
        v_store(to->scale + k, scale);
        v_store(to->least + k, least);
        v_store(to->error + k, error);
    }
}

INLINE struct line refine(const struct group *g, struct line line, float error)
{
    for (int i = 0; i < REFINEMENTS; i++) {
        struct lines from = { { line.scale }, { line.least }, { 0 } }, to;

        fit_lines(g, &from, 1, &to);
        if (!(to.error[0] < error))
            break;
        error = to.error[0];
        line = (struct line){ to.scale[0], to.least[0] };
    }
    return line;
}

INLINE struct line best_line(int most, int below, const float *x, const float *weight, size_t count)
{
    struct group g = { x, weight, count, 0, 0, most, below };
    float low = x[0], high = x[0], error = INFINITY;
    struct line best = { 0, 0 };
    struct lines from = { { 0 }, { 0 }, { 0 } }, to;
    size_t tried = 0;

    for (size_t i = 0; i < count; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
        g.weights += weight[i];
        g.weighted += weight[i] * x[i];
    }
    if (below && low > 0)
        low = 0;
    best.least = -low;
    for (int k = -SCALES; high > low && k <= 2 * SCALES; k++, tried++) {
        from.scale[tried] = (high - low) / ((float)most + 0.1f * (float)k);
        from.least[tried] = -low;
    }
    fit_lines(&g, &from, tried, &to);
    for (size_t k = 0; k < tried; k++) {
        if (from.scale[k] > 0 && isfinite(1 / from.scale[k]) && to.error[k] < error) {
            error = to.error[k];
            best = (struct line){ to.scale[k], to.least[k] };
        }
    }
    return isfinite(error) ? refine(&g, best, error) : best;
}
