/*
 * Blocks of 32 elements as vectors, for product.h: the 32 numbers in order, one byte each, their
 * scale, and for some what is added to all. Layouts are in decode_32.c.
 */

INLINE float half_at(const unsigned char *p)
{
    uint16_t half;

    memcpy(&half, p, sizeof(half));
    return _cvtsh_ss(half);
}

/* 4 bits of bytes i and, from element 16 on, the other 4. */
INLINE __m256i nibbles(const unsigned char *p)
{
    const __m256i a = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)p));
    const __m256i shift = _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4);

    return _mm256_and_si256(_mm256_srlv_epi32(a, shift), _mm256_set1_epi8(15));
}

/* Bits [shift, shift + log2(mask + 1)) of each byte. */
INLINE __m256i bits_of(__m256i a, int shift, int mask)
{
    return _mm256_and_si256(_mm256_srli_epi16(a, shift), _mm256_set1_epi8((char)mask));
}

/* All ones in byte i where bit i is set. */
INLINE __m256i mask_of(uint32_t bits)
{
    const __m256i spread =
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    const __m256i a = _mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), spread);

    return _mm256_cmpeq_epi8(_mm256_and_si256(a, bit), bit);
}

INLINE __m256i bit_mask(const unsigned char *p)
{
    uint32_t bits;

    memcpy(&bits, p, sizeof(bits));
    return mask_of(bits);
}

/* Number q of a list of 16, plus `offset`. */
INLINE __m256i listed(const signed char list[16], int offset, __m256i q)
{
    const __m128i all =
        _mm_add_epi8(_mm_loadu_si128((const void *)list), _mm_set1_epi8((char)offset));

    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(all), q);
}

/* How much larger than elements the bytes are that bytes_32() makes of them, so that none is
 * negative: multiplication wants that. What it adds to products, `base` of activations takes off.
 * Without V_WIDE products of large bytes would not fit. */
INLINE int offset_32(enum mp_wtype type)
{
    switch (type) {
    case MP_WTYPE_Q4_0: return 8;
    case MP_WTYPE_Q5_0: return 16;
    case MP_WTYPE_MXFP4: return 12;
    case MP_WTYPE_IQ4_NL:
    case MP_WTYPE_Q8_0: return V_WIDE ? 128 : 0;
    default: return 0;
    }
}

/* Does it add something to all elements, which are not negative then? */
INLINE int has_min_32(enum mp_wtype type)
{
    return type == MP_WTYPE_Q4_1 || type == MP_WTYPE_Q5_1;
}

/* Are the bytes that bytes_32() makes signed? */
INLINE int is_signed_32(enum mp_wtype type)
{
    return !V_WIDE && (type == MP_WTYPE_IQ4_NL || type == MP_WTYPE_Q8_0);
}

/* Do the vectors of a tile of so many tokens hold halves of two blocks, numbers b and b + 4 of 8?
 * Then their sums need not change places. Where they take longer to make, four tokens pay for it.
 * Activations have that order, too (activations.h). */
INLINE int has_halves_32(enum mp_wtype type, size_t tokens)
{
    return !V_WIDE && (tokens == 4 || type == MP_WTYPE_Q4_0 || type == MP_WTYPE_Q4_1 ||
                       type == MP_WTYPE_IQ4_NL || type == MP_WTYPE_MXFP4);
}

INLINE __m256i two_16(const unsigned char *p, const unsigned char *q)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const void *)p)),
                                   _mm_loadu_si128((const void *)q), 1);
}

/* All ones in byte i of each half where bit i of the 16 at p, or at q, is set. */
INLINE __m256i two_bit_masks(const unsigned char *p, const unsigned char *q)
{
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0, 0x0101010101010101);
    uint16_t a, b;

    memcpy(&a, p, sizeof(a));
    memcpy(&b, q, sizeof(b));
    return _mm256_cmpeq_epi8(
        _mm256_and_si256(_mm256_shuffle_epi8(
                             _mm256_setr_m128i(_mm_cvtsi32_si128(a), _mm_cvtsi32_si128(b)), spread),
                         bit),
        bit);
}

/* As bytes_32() of the blocks at p and at q: elements 0 to 15 of both, then 16 to 31 of both. */
INLINE void bytes_of_two_32(__m256i bytes[2], const unsigned char *p, const unsigned char *q,
                            enum mp_wtype type)
{
    const int fifth = type == MP_WTYPE_Q5_0 ? 2 : type == MP_WTYPE_Q5_1 ? 4 : 0;
    const int head = type == MP_WTYPE_MXFP4 ? 1 : fifth != 0 ? fifth + 4 : has_min_32(type) ? 4 : 2;

    UNROLL
    for (int i = 0; i < 2; i++) {
        if (type == MP_WTYPE_Q8_0) {
            bytes[i] = two_16(p + head + 16 * i, q + head + 16 * i);
            continue;
        }
        bytes[i] = bits_of(two_16(p + head, q + head), 4 * i, 15);
        if (fifth != 0)
            bytes[i] = v_or_masked(bytes[i], two_bit_masks(p + fifth + 2 * i, q + fifth + 2 * i),
                                   _mm256_set1_epi8(16));
        else if (type == MP_WTYPE_IQ4_NL)
            bytes[i] = listed(mp_quant_iq4, offset_32(type), bytes[i]);
        else if (type == MP_WTYPE_MXFP4)
            bytes[i] = listed(mp_quant_fp4, offset_32(type), bytes[i]);
    }
}

INLINE __m256i bytes_32(const unsigned char *p, enum mp_wtype type)
{
    const __m256i fifth = _mm256_set1_epi8(16);

    switch (type) {
    case MP_WTYPE_Q4_0: return nibbles(p + 2);
    case MP_WTYPE_Q4_1: return nibbles(p + 4);
    case MP_WTYPE_Q5_0: return v_or_masked(nibbles(p + 6), bit_mask(p + 2), fifth);
    case MP_WTYPE_Q5_1: return v_or_masked(nibbles(p + 8), bit_mask(p + 4), fifth);
    case MP_WTYPE_IQ4_NL: return listed(mp_quant_iq4, offset_32(type), nibbles(p + 2));
    case MP_WTYPE_MXFP4: return listed(mp_quant_fp4, offset_32(type), nibbles(p + 1));
    default:
        return _mm256_xor_si256(_mm256_loadu_si256((const void *)(p + 2)),
                                _mm256_set1_epi8((char)offset_32(type)));
    }
}

INLINE float scale_32(const unsigned char *p, enum mp_wtype type)
{
    if (type == MP_WTYPE_MXFP4) { /* 2^(exponent - 128), below 2^-126 a denormal number */
        const uint32_t bits = p[0] < 2 ? 0x200000u << p[0] : (uint32_t)(p[0] - 1) << 23;
        float scale;

        memcpy(&scale, &bits, sizeof(scale));
        return scale;
    }
    return half_at(p);
}
