/*
 * Blocks of 256 elements as vectors, for product.h: 8 times 32 numbers in order, one byte each, and
 * the whole numbers that are the scales of 16 elements each. Layouts are in decode_k.c.
 */

/*
 * Scales stand in 16-bit lanes: those of elements 0 to 15 of each 32 in the low half, of the others
 * in the high half. So do the sums of 16 activations, which `mins` are multiplied with.
 */
struct scales_k {
    __m256i scales, mins;
    float d, dmin;
};

/* What is subtracted: nothing; mins, as whole numbers; dmin * mins. */
enum { MINS_NONE, MINS_WHOLE, MINS_SCALED };

INLINE int mins_of(enum mp_wtype type)
{
    return type == MP_WTYPE_IQ4_XS                          ? MINS_NONE
           : type == MP_WTYPE_Q6_K || type == MP_WTYPE_Q3_K ? MINS_WHOLE
                                                            : MINS_SCALED;
}

/* Are elements below zero? */
INLINE int is_signed_k(enum mp_wtype type)
{
    return type == MP_WTYPE_IQ4_XS;
}

/* 16 signed bytes as 16-bit lanes, those of even numbers in the low half. */
INLINE __m256i even_odd(__m128i bytes)
{
    const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);

    return _mm256_cvtepi8_epi16(_mm_shuffle_epi8(bytes, order));
}

/* 8 bytes as 16-bit lanes, in both halves. */
INLINE __m256i both_halves(uint64_t bytes)
{
    return _mm256_broadcastsi128_si256(_mm_cvtepi8_epi16(_mm_cvtsi64_si128((long long)bytes)));
}

INLINE uint64_t pair(uint32_t low, uint32_t high)
{
    return (uint64_t)high << 32 | low;
}

/* Of Q4_K and Q5_K. */
INLINE void scales_6(const unsigned char *p, struct scales_k *s)
{
    uint32_t a[3];

    memcpy(a, p, sizeof(a));
    s->scales =
        both_halves(pair(a[0] & 0x3f3f3f3f, (a[2] & 0x0f0f0f0f) | (a[0] >> 2 & 0x30303030)));
    s->mins =
        both_halves(pair(a[1] & 0x3f3f3f3f, (a[2] >> 4 & 0x0f0f0f0f) | (a[1] >> 2 & 0x30303030)));
}

/* Of Q3_K: elements are stored 4 too large. */
INLINE void scales_3(const unsigned char *p, struct scales_k *s)
{
    const uint32_t low = 0x0f0f0f0f, high = 0x30303030;
    uint32_t a[3];
    __m128i bytes;

    memcpy(a, p, sizeof(a));
    bytes = _mm_setr_epi32(
        (int)((a[0] & low) | (a[2] << 4 & high)), (int)((a[1] & low) | (a[2] << 2 & high)),
        (int)((a[0] >> 4 & low) | (a[2] & high)), (int)((a[1] >> 4 & low) | (a[2] >> 2 & high)));
    s->scales = even_odd(_mm_sub_epi8(bytes, _mm_set1_epi8(32)));
    s->mins = _mm256_slli_epi16(s->scales, 2);
}

/* Of IQ4_XS. */
INLINE void scales_iq4(const unsigned char *p, struct scales_k *s)
{
    uint64_t bytes = 0;

    for (unsigned i = 0; i < 4; i++) {
        const unsigned high = p[2 + i / 2] >> i % 2 * 4;

        bytes |= (uint64_t)((p[4 + i] & 15) | (high & 3) << 4) << 16 * i;
        bytes |= (uint64_t)(p[4 + i] >> 4 | (high & 12) << 2) << (16 * i + 8);
    }
    s->scales = _mm256_sub_epi16(both_halves(bytes), _mm256_set1_epi16(32));
}

INLINE void scales_of(const unsigned char *p, enum mp_wtype type, struct scales_k *s)
{
    __m128i a;

    switch (type) {
    case MP_WTYPE_Q2_K:
        a = _mm_loadu_si128((const void *)p);
        s->scales = even_odd(_mm_and_si128(a, _mm_set1_epi8(15)));
        s->mins = even_odd(_mm_and_si128(_mm_srli_epi16(a, 4), _mm_set1_epi8(15)));
        s->d = half_at(p + 80);
        s->dmin = half_at(p + 82);
        return;
    case MP_WTYPE_Q3_K:
        scales_3(p + 96, s);
        s->d = half_at(p + 108);
        return;
    case MP_WTYPE_Q6_K: /* elements are stored 32 too large */
        s->scales = even_odd(_mm_loadu_si128((const void *)(p + 192)));
        s->mins = _mm256_slli_epi16(s->scales, 5);
        s->d = half_at(p + 208);
        return;
    case MP_WTYPE_IQ4_XS:
        scales_iq4(p, s);
        s->d = half_at(p);
        return;
    default:
        scales_6(p + 4, s);
        s->d = half_at(p);
        s->dmin = half_at(p + 2);
    }
}

INLINE __m256i load_32(const unsigned char *p)
{
    return _mm256_loadu_si256((const void *)p);
}

/* Bits [shift, shift + log2(mask + 1)) of each byte. */
INLINE __m256i bits_of(__m256i a, int shift, int mask)
{
    return _mm256_and_si256(_mm256_srli_epi16(a, shift), _mm256_set1_epi8((char)mask));
}

/* Bit `bit` of each byte becomes bit `to`. */
INLINE __m256i move_bit(__m256i a, int bit, int to)
{
    const __m256i one = _mm256_set1_epi8((char)(1 << to));

    return _mm256_and_si256(
        bit > to ? _mm256_srli_epi16(a, bit - to) : _mm256_slli_epi16(a, to - bit), one);
}

/* Elements [32 j, 32 j + 32). */
INLINE __m256i bytes_k(const unsigned char *p, enum mp_wtype type, int j)
{
    switch (type) {
    case MP_WTYPE_Q2_K: return bits_of(load_32(p + 16 + j / 4 * 32), j % 4 * 2, 3);
    case MP_WTYPE_Q3_K:
        return _mm256_or_si256(bits_of(load_32(p + 32 + j / 4 * 32), j % 4 * 2, 3),
                               move_bit(load_32(p), j, 2));
    case MP_WTYPE_Q5_K:
        return _mm256_or_si256(bits_of(load_32(p + 48 + j / 2 * 32), j % 2 * 4, 15),
                               move_bit(load_32(p + 16), j, 4));
    case MP_WTYPE_Q6_K:
        return _mm256_or_si256(
            bits_of(load_32(p + j / 4 * 64 + j % 2 * 32), j % 4 / 2 * 4, 15),
            _mm256_slli_epi16(bits_of(load_32(p + 128 + j / 4 * 32), j % 4 * 2, 3), 4));
    case MP_WTYPE_IQ4_XS: return listed(mp_quant_iq4, nibbles(p + 8 + j * 16));
    default: return bits_of(load_32(p + 16 + j / 2 * 32), j % 2 * 4, 15);
    }
}
