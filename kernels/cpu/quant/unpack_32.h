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
    const __m128i a = _mm_loadu_si128((const void *)p);

    return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(a, 4), a), _mm256_set1_epi8(15));
}

/* All ones in byte i where bit i of the 4 bytes is set. */
INLINE __m256i bit_mask(const unsigned char *p)
{
    const __m256i spread =
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    uint32_t bits;
    __m256i a;

    memcpy(&bits, p, sizeof(bits));
    a = _mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), spread);
    return _mm256_cmpeq_epi8(_mm256_and_si256(a, bit), bit);
}

/* Number q of a list of 16. */
INLINE __m256i listed(const signed char list[16], __m256i q)
{
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)list)), q);
}

INLINE __m256i bytes_32(const unsigned char *p, enum mp_wtype type)
{
    switch (type) {
    case MP_WTYPE_Q4_0: return _mm256_sub_epi8(nibbles(p + 2), _mm256_set1_epi8(8));
    case MP_WTYPE_Q4_1: return nibbles(p + 4);
    case MP_WTYPE_Q5_0: /* without its fifth bit an element is 16 less */
        return _mm256_or_si256(nibbles(p + 6),
                               _mm256_andnot_si256(bit_mask(p + 2), _mm256_set1_epi8(-16)));
    case MP_WTYPE_Q5_1:
        return _mm256_or_si256(nibbles(p + 8),
                               _mm256_and_si256(bit_mask(p + 4), _mm256_set1_epi8(16)));
    case MP_WTYPE_IQ4_NL: return listed(mp_quant_iq4, nibbles(p + 2));
    case MP_WTYPE_MXFP4: return listed(mp_quant_fp4, nibbles(p + 1));
    default: return _mm256_loadu_si256((const void *)(p + 2));
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

/* Does it add something to all elements, which are not negative then? */
INLINE int has_min_32(enum mp_wtype type)
{
    return type == MP_WTYPE_Q4_1 || type == MP_WTYPE_Q5_1;
}
