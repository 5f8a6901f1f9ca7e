/*
 * Blocks of 256 elements, as decode_k.c describes them. Each group gets its best scale; those are
 * rounded to whole numbers of one that all share, codes follow, and the shared scale is fitted
 * again to what came out, as long as that helps.
 */
#define BLOCK 256
#define GROUPS_MAX 16

/* A block in the making: codes of its elements and groups, and the shared scales. */
struct block {
    size_t group; /* elements of one */
    signed char q[BLOCK], scales[GROUPS_MAX], mins[GROUPS_MAX];
    float d, dmin;
};

INLINE float squared_error(const struct block *b, const struct encode_levels *levels,
                           const float *x, const float *weight)
{
    float error = 0;

    for (size_t i = 0; i < BLOCK;) {
        const float scale = b->d * (float)b->scales[i / b->group];
        const float min = b->dmin * (float)b->mins[i / b->group];

        for (const size_t end = i + b->group; i < end; i++) {
            const float rest = x[i] - (scale * encode_level(levels, b->q[i]) - min);

            error += weight[i] * rest * rest;
        }
    }
    return error;
}

INLINE void code_scaled(struct block *b, const struct encode_levels *levels, const float *x)
{
    for (size_t i = 0; i < BLOCK; i += b->group)
        put_codes(levels, x + i, b->d * (float)b->scales[i / b->group], b->q + i, b->group);
}

/* The shared scale of least squares. */
INLINE float fit_scaled(const struct block *b, const struct encode_levels *levels, const float *x,
                        const float *weight)
{
    float product = 0, square = 0;

    for (size_t i = 0; i < BLOCK;) {
        const float scale = (float)b->scales[i / b->group];

        for (const size_t end = i + b->group; i < end; i++) {
            const float level = scale * encode_level(levels, b->q[i]);

            product += weight[i] * x[i] * level;
            square += weight[i] * level * level;
        }
    }
    return square > 0 ? product / square : 0;
}

/* Scales from low to -low - 1. */
INLINE void scaled_256(struct block *b, const struct encode_levels *levels, int low, const float *x,
                       const float *weight)
{
    const struct encode_levels scale_levels = { NULL, low, -low - 1 };
    float scales[GROUPS_MAX], largest = 0, error;

    for (size_t g = 0; g < BLOCK / b->group; g++) {
        scales[g] = best_scale(levels, x + g * b->group, weight + g * b->group, b->group);
        largest = fabsf(scales[g]) > fabsf(largest) ? scales[g] : largest;
    }
    b->d = encode_half(largest / (float)low);
    put_codes(&scale_levels, scales, b->d, b->scales, BLOCK / b->group);
    code_scaled(b, levels, x);
    error = squared_error(b, levels, x, weight);
    for (int i = 0; i < REFINEMENTS; i++) {
        struct block next = *b;
        float now;

        next.d = encode_half(fit_scaled(b, levels, x, weight));
        code_scaled(&next, levels, x);
        now = squared_error(&next, levels, x, weight);
        if (!(now < error))
            break;
        error = now;
        *b = next;
    }
}

INLINE void code_lines(struct block *b, int most, const float *x)
{
    for (size_t i = 0; i < BLOCK; i += b->group) {
        const size_t g = i / b->group;
        const struct line line = { b->d * (float)b->scales[g], b->dmin * (float)b->mins[g] };

        put_line_codes(most, x + i, line, b->q + i, b->group);
    }
}

/* Both shared scales of least squares, for x = d * (scale q) - dmin * (min). */
INLINE void fit_shared(const struct block *b, const float *x, const float *weight, float *d_p,
                       float *dmin_p)
{
    float ss = 0, sm = 0, mm = 0, xs = 0, xm = 0;

    for (size_t i = 0; i < BLOCK;) {
        const float scale = (float)b->scales[i / b->group], m = -(float)b->mins[i / b->group];

        for (const size_t end = i + b->group; i < end; i++) {
            const float s = scale * (float)b->q[i];

            ss += weight[i] * s * s;
            sm += weight[i] * s * m;
            mm += weight[i] * m * m;
            xs += weight[i] * x[i] * s;
            xm += weight[i] * x[i] * m;
        }
    }
    *d_p = (xs * mm - xm * sm) / (ss * mm - sm * sm);
    *dmin_p = (xm * ss - xs * sm) / (ss * mm - sm * sm);
}

/* Codes 0 to `most`, scales and subtrahends 0 to `scale_most`. */
INLINE void lines_256(struct block *b, int most, int scale_most, const float *x,
                      const float *weight)
{
    const struct encode_levels levels = { NULL, 0, most }, scale_levels = { NULL, 0, scale_most };
    float scales[GROUPS_MAX], mins[GROUPS_MAX], largest = 0, largest_min = 0, error;

    for (size_t g = 0; g < BLOCK / b->group; g++) {
        const struct line line =
            best_line(most, 1, x + g * b->group, weight + g * b->group, b->group);

        scales[g] = line.scale;
        mins[g] = line.least;
        largest = line.scale > largest ? line.scale : largest;
        largest_min = line.least > largest_min ? line.least : largest_min;
    }
    b->d = encode_half(largest / (float)scale_most);
    b->dmin = encode_half(largest_min / (float)scale_most);
    put_codes(&scale_levels, scales, b->d, b->scales, BLOCK / b->group);
    put_codes(&scale_levels, mins, b->dmin, b->mins, BLOCK / b->group);
    code_lines(b, most, x);
    error = squared_error(b, &levels, x, weight);
    for (int i = 0; i < REFINEMENTS; i++) {
        struct block next = *b;
        float now;

        fit_shared(b, x, weight, &next.d, &next.dmin);
        if (!isfinite(next.d) || !isfinite(next.dmin) || next.d <= 0 || next.dmin < 0)
            break;
        next.d = encode_half(next.d);
        next.dmin = encode_half(next.dmin);
        code_lines(&next, most, x);
        now = squared_error(&next, &levels, x, weight);
        if (!(now < error))
            break;
        error = now;
        *b = next;
    }
}

/* ---- bytes */

static void put_two_bits(unsigned char *p, size_t i, int bits)
{
    p[i / 128 * 32 + i % 32] |= (unsigned char)((bits & 3) << i % 128 / 32 * 2);
}

static void put_four_bits(unsigned char *p, size_t i, int bits)
{
    p[i / 64 * 32 + i % 32] |= (unsigned char)((bits & 15) << i % 64 / 32 * 4);
}

static void put_scales_6(unsigned char *p, const struct block *b)
{
    for (size_t g = 0; g < 8; g++) {
        const int s = b->scales[g], m = b->mins[g];

        if (g < 4) {
            p[g] |= (unsigned char)s;
            p[g + 4] |= (unsigned char)m;
        } else {
            p[g + 4] |= (unsigned char)((s & 15) | (m & 15) << 4);
            p[g - 4] |= (unsigned char)(s >> 4 << 6);
            p[g] |= (unsigned char)(m >> 4 << 6);
        }
    }
}

static void q2_k(unsigned char *p, const float *x, const float *weight)
{
    struct block b = { .group = 16 };

    lines_256(&b, 3, 15, x, weight);
    for (size_t g = 0; g < 16; g++)
        p[g] = (unsigned char)(b.scales[g] | b.mins[g] << 4);
    for (size_t i = 0; i < BLOCK; i++)
        put_two_bits(p + 16, i, b.q[i]);
    encode_put_half(p + 80, b.d);
    encode_put_half(p + 82, b.dmin);
}

static void q3_k(unsigned char *p, const float *x, const float *weight)
{
    static const struct encode_levels levels = { NULL, -4, 3 };
    struct block b = { .group = 16 };

    scaled_256(&b, &levels, -32, x, weight);
    for (size_t i = 0; i < BLOCK; i++) {
        p[i % 32] |= (unsigned char)(((b.q[i] + 4) >> 2 & 1) << i / 32);
        put_two_bits(p + 32, i, b.q[i] + 4);
    }
    for (size_t g = 0; g < 16; g++) {
        const int s = b.scales[g] + 32;

        p[96 + g % 8] |= (unsigned char)((s & 15) << (g < 8 ? 0 : 4));
        p[104 + g % 4] |= (unsigned char)(s >> 4 << g / 4 * 2);
    }
    encode_put_half(p + 108, b.d);
}

static void q4_k(unsigned char *p, const float *x, const float *weight)
{
    struct block b = { .group = 32 };

    lines_256(&b, 15, 63, x, weight);
    encode_put_half(p, b.d);
    encode_put_half(p + 2, b.dmin);
    put_scales_6(p + 4, &b);
    for (size_t i = 0; i < BLOCK; i++)
        put_four_bits(p + 16, i, b.q[i]);
}

static void q5_k(unsigned char *p, const float *x, const float *weight)
{
    struct block b = { .group = 32 };

    lines_256(&b, 31, 63, x, weight);
    encode_put_half(p, b.d);
    encode_put_half(p + 2, b.dmin);
    put_scales_6(p + 4, &b);
    for (size_t i = 0; i < BLOCK; i++) {
        p[16 + i % 32] |= (unsigned char)((b.q[i] >> 4 & 1) << i / 32);
        put_four_bits(p + 48, i, b.q[i]);
    }
}

static void q6_k(unsigned char *p, const float *x, const float *weight)
{
    static const struct encode_levels levels = { NULL, -32, 31 };
    struct block b = { .group = 16 };

    scaled_256(&b, &levels, -128, x, weight);
    for (size_t i = 0; i < BLOCK; i++) {
        const int code = b.q[i] + 32;

        p[i / 128 * 64 + i % 64] |= (unsigned char)((code & 15) << i % 128 / 64 * 4);
        put_two_bits(p + 128, i, code >> 4);
    }
    memcpy(p + 192, b.scales, 16);
    encode_put_half(p + 208, b.d);
}

static void iq4_xs(unsigned char *p, const float *x, const float *weight)
{
    static const struct encode_levels levels = { mp_quant_iq4, 0, 15 };
    struct block b = { .group = 32 };

    scaled_256(&b, &levels, -32, x, weight);
    encode_put_half(p, b.d);
    for (size_t g = 0; g < 8; g++) {
        const int s = b.scales[g] + 32;

        p[2 + g / 4] |= (unsigned char)(s >> 4 << g % 4 * 2);
        p[4 + g / 2] |= (unsigned char)((s & 15) << g % 2 * 4);
    }
    for (size_t i = 0; i < BLOCK; i++)
        p[8 + i / 32 * 16 + i % 16] |= (unsigned char)(b.q[i] << i % 32 / 16 * 4);
}

static void block_256(enum mp_wtype type, unsigned char *p, const float *x, const float *weight)
{
    switch (type) {
    case MP_WTYPE_Q2_K: q2_k(p, x, weight); break;
    case MP_WTYPE_Q3_K: q3_k(p, x, weight); break;
    case MP_WTYPE_Q4_K: q4_k(p, x, weight); break;
    case MP_WTYPE_Q5_K: q5_k(p, x, weight); break;
    case MP_WTYPE_Q6_K: q6_k(p, x, weight); break;
    default: iq4_xs(p, x, weight); break;
    }
}
