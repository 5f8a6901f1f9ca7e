/* Blocks of 32 elements, as decode_32.c describes them. */
static void put_nibbles(unsigned char *p, const signed char *q, int offset)
{
    for (size_t i = 0; i < 16; i++)
        p[i] = (unsigned char)(((q[i] + offset) & 15) | ((q[i + 16] + offset) & 15) << 4);
}

static void put_fifth_bits(unsigned char *p, const signed char *q, int offset)
{
    for (size_t i = 0; i < 32; i++)
        p[i / 8] |= (unsigned char)(((q[i] + offset) >> 4 & 1) << i % 8);
}

/* One scale; codes from low to high, or of a list. */
static void scaled_32(const struct encode_levels *levels, unsigned char *p, const float *x,
                      const float *weight, signed char q[32])
{
    const float scale = best_scale(levels, x, weight, 32);

    encode_put_half(p, scale);
    put_codes(levels, x, encode_half(scale), q, 32);
}

static void line_32(int most, unsigned char *p, const float *x, const float *weight,
                    signed char q[32])
{
    struct line line = best_line(most, 0, x, weight, 32);

    encode_put_half(p, line.scale);
    encode_put_half(p + 2, -line.least);
    line = (struct line){ encode_half(line.scale), encode_half(line.least) };
    put_line_codes(most, x, line, q, 32);
}

/* The exponent of 2 whose numbers have the least error, from those that the largest x suggests. */
static void mxfp4(unsigned char *p, const float *x, const float *weight)
{
    static const signed char list[15] = { -12, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8, 12 };
    static const struct encode_levels levels = { list, 0, 14 };
    float largest = 0, least_error = INFINITY, codes[32];
    signed char q[32];

    for (size_t i = 0; i < 32; i++)
        largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
    for (int e = -1; e < 3; e++) {
        const int exponent = (largest > 0 ? ilogbf(largest) : -126) - 3 + e;
        const float scale = ldexpf(1, exponent < -127 ? -127 : exponent > 126 ? 126 : exponent);
        float error = 0, numbers[32];

        for (size_t i = 0; i < 32; i += LANES)
            v_store(numbers + i, nearest(&levels, v_load(x + i) / v_set1(scale), 0));
        for (size_t i = 0; i < 32; i++) {
            const float rest = x[i] - scale * numbers[i];

            error += weight[i] * rest * rest;
        }
        if (error < least_error) {
            least_error = error;
            p[0] = (unsigned char)(ilogbf(scale) + 128);
        }
    }
    for (size_t i = 0; i < 32; i += LANES)
        v_store(codes + i, nearest(&levels, v_load(x + i) / v_set1(ldexpf(1, p[0] - 128)), 1));
    for (size_t i = 0; i < 32; i++)
        q[i] = (signed char)(codes[i] >= 7 ? codes[i] - 7 : 15 - codes[i]);
    put_nibbles(p + 1, q, 0);
}

static void block_32(enum mp_wtype type, unsigned char *p, const float *x, const float *weight)
{
    static const struct encode_levels four = { NULL, -8, 7 }, five = { NULL, -16, 15 },
                                      eight = { NULL, -127, 127 }, iq4 = { mp_quant_iq4, 0, 15 };
    signed char q[32];

    switch (type) {
    case MP_WTYPE_Q4_0:
        scaled_32(&four, p, x, weight, q);
        put_nibbles(p + 2, q, 8);
        break;
    case MP_WTYPE_Q5_0:
        scaled_32(&five, p, x, weight, q);
        put_fifth_bits(p + 2, q, 16);
        put_nibbles(p + 6, q, 16);
        break;
    case MP_WTYPE_Q4_1:
        line_32(15, p, x, weight, q);
        put_nibbles(p + 4, q, 0);
        break;
    case MP_WTYPE_Q5_1:
        line_32(31, p, x, weight, q);
        put_fifth_bits(p + 4, q, 0);
        put_nibbles(p + 8, q, 0);
        break;
    case MP_WTYPE_Q8_0:
        scaled_32(&eight, p, x, weight, q);
        memcpy(p + 2, q, 32);
        break;
    case MP_WTYPE_IQ4_NL:
        scaled_32(&iq4, p, x, weight, q);
        put_nibbles(p + 2, q, 0);
        break;
    default: mxfp4(p, x, weight); break;
    }
}
