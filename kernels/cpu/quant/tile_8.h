/*
 * Tiles of product.h of two rows and eight tokens, in vectors of 64 bytes: the first row is the low
 * half of each, the second row the high half. The halves compute what the narrow tiles compute.
 */
#define EIGHT 8

INLINE __m512i pair(__m256i low, __m256i high)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

INLINE __m512 pair_ps(__m256 low, __m256 high)
{
    return _mm512_castsi512_ps(pair(_mm256_castps_si256(low), _mm256_castps_si256(high)));
}

/* The same 32 bytes in both halves. */
INLINE __m512i both(const void *p)
{
    return _mm512_broadcast_i64x4(_mm256_loadu_si256(p));
}

INLINE __m512 both_ps(const float *p)
{
    return _mm512_castsi512_ps(both(p));
}

/* Element i of each half, everywhere in that half. */
INLINE __m512i spread_index(int i)
{
    return pair(_mm256_set1_epi32(i), _mm256_set1_epi32(i + 8));
}

/* q with the signs of the numbers that have these. */
INLINE __m512i signed_by(__m512i q, __mmask64 negative)
{
    return _mm512_mask_sub_epi8(q, negative, _mm512_setzero_si512(), q);
}

/* out[2 * t + r] = add_lanes() of half r of acc[t], by the same additions. */
INLINE void add_lanes_8(float out[2 * EIGHT], const __m512 acc[EIGHT])
{
    /* Quarters are rows 0 and 1 of an even token, then of the next one. */
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512 a[EIGHT / 2], b[EIGHT / 4], all;

    UNROLL
    for (int i = 0; i < EIGHT / 2; i++)
        a[i] = _mm512_add_ps(_mm512_shuffle_f32x4(acc[2 * i], acc[2 * i + 1], 0x88),
                             _mm512_shuffle_f32x4(acc[2 * i], acc[2 * i + 1], 0xdd));
    UNROLL
    for (int i = 0; i < EIGHT / 4; i++)
        b[i] = _mm512_add_ps(_mm512_shuffle_ps(a[2 * i], a[2 * i + 1], 0x44),
                             _mm512_shuffle_ps(a[2 * i], a[2 * i + 1], 0xee));
    all = _mm512_add_ps(_mm512_shuffle_ps(b[0], b[1], 0x88), _mm512_shuffle_ps(b[0], b[1], 0xdd));
    _mm512_storeu_ps(out, _mm512_permutexvar_ps(order, all));
}

/* ---- blocks of 32 */

/* What scales_of_32() makes of 8 blocks (or 1), for both rows. */
struct scales_8 {
    __m512 d, m;
};

/* Those of the weights alone. */
INLINE struct scales_8 weights_of_8(const unsigned char *w, size_t apart_bytes, enum mp_wtype type,
                                    int blocks)
{
    const unsigned char *high = w + apart_bytes;
    struct scales_8 s = { _mm512_setzero_ps(), _mm512_setzero_ps() };

    if (blocks == 1) {
        s.d = pair_ps(_mm256_set1_ps(scale_32(w, type)), _mm256_set1_ps(scale_32(high, type)));
        if (has_min_32(type))
            s.m = pair_ps(_mm256_set1_ps(half_at(w + 2)), _mm256_set1_ps(half_at(high + 2)));
        return s;
    }
    s.d = pair_ps(block_scales_8(w, type), block_scales_8(high, type));
    if (has_min_32(type))
        s.m = pair_ps(halves_8(w + 2, block_bytes_of(type)),
                      halves_8(high + 2, block_bytes_of(type)));
    return s;
}

/* Times those of a token's activations. */
INLINE struct scales_8 times_token_8(struct scales_8 s, const struct chunk *x, size_t c,
                                     enum mp_wtype type, int blocks)
{
    const float *scales = x->scales + c / 32;
    const int16_t *sums = x->sums + c / 32;
    const __m512 scale = blocks == 1 ? _mm512_set1_ps(scales[0]) : both_ps(scales);
    __m256i whole;

    s.d = _mm512_mul_ps(s.d, scale);
    if (!has_min_32(type))
        return s;
    whole = blocks == 1 ? _mm256_set1_epi32(sums[0])
                        : _mm256_cvtepi16_epi32(_mm_loadu_si128((const void *)sums));
    s.m = _mm512_mul_ps(_mm512_mul_ps(s.m, scale), _mm512_cvtepi32_ps(pair(whole, whole)));
    return s;
}

TILE void add_blocks_8(__m512 acc[EIGHT], const unsigned char *w, size_t apart_bytes,
                       const struct chunk *x, size_t c, enum mp_wtype type, int blocks)
{
    const struct scales_8 weights = weights_of_8(w, apart_bytes, type, blocks);
    struct scales_8 s[EIGHT];

    UNROLL
    for (int t = 0; t < EIGHT; t++)
        s[t] = times_token_8(weights, &x[t], c, type, blocks);
    for (int b = 0; b < blocks; b++, w += block_bytes_of(type), c += 32) {
        const __m512i bytes = pair(bytes_32(w, type), bytes_32(w + apart_bytes, type));
        const __m512i of = spread_index(b);

        UNROLL
        for (int t = 0; t < EIGHT; t++) {
            const __m512i base =
                offset_32(type) != 0 ? both(x[t].base + c / 4) : _mm512_setzero_si512();
            const __m512i sums = _mm512_dpbusd_epi32(base, bytes, both(x[t].q + c));

            acc[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), _mm512_permutexvar_ps(of, s[t].d),
                                     acc[t]);
            if (has_min_32(type))
                acc[t] = _mm512_add_ps(acc[t], _mm512_maskz_permutexvar_ps(0x0101, of, s[t].m));
        }
    }
}

TILE void add_part_8_32(__m512 acc[EIGHT], const struct part *p, enum mp_wtype type)
{
    const size_t bytes = block_bytes_of(type), end = p->c + p->cols;
    const unsigned char *w = p->w;
    size_t c = p->c;

    for (; c + 256 <= end; c += 256, w += 8 * bytes) {
        fetch(w, p->w_apart_bytes, p->ahead, 8 * bytes, 2);
        add_blocks_8(acc, w, p->w_apart_bytes, p->x, c, type, 8);
    }
    for (; c < end; c += 32, w += bytes)
        add_blocks_8(acc, w, p->w_apart_bytes, p->x, c, type, 1);
}

/* ---- blocks of 256 */

/* Scales of both rows, and what is subtracted. */
struct scales_8k {
    __m512i scales, mins;
    __m512 d, dmin;
};

INLINE struct scales_8k scales_of_8k(const unsigned char *w, size_t apart_bytes, enum mp_wtype type)
{
    struct scales_k low, high;
    struct scales_8k s;

    scales_of_k(w, type, &low);
    scales_of_k(w + apart_bytes, type, &high);
    s.scales = has_pairs_k(type)
                   ? pair(load_32((const void *)low.pairs), load_32((const void *)high.pairs))
                   : pair(low.scales, high.scales);
    s.mins = mins_of(type) != MINS_NONE ? pair(low.mins, high.mins) : _mm512_setzero_si512();
    s.d = pair_ps(_mm256_set1_ps(low.d), _mm256_set1_ps(high.d));
    s.dmin = mins_of(type) == MINS_SCALED
                 ? pair_ps(_mm256_set1_ps(low.dmin), _mm256_set1_ps(high.dmin))
                 : _mm512_setzero_ps();
    return s;
}

INLINE __m512i scale_8k(const struct scales_8k *s, enum mp_wtype type, int j)
{
    if (has_pairs_k(type))
        return _mm512_permutexvar_epi32(spread_index(j), s->scales);
    return _mm512_shuffle_epi8(s->scales, _mm512_set1_epi16((short)(0x0100 + 0x0202 * j)));
}

TILE void add_block_8k(__m512 acc[EIGHT], const struct scales_8k *s, const unsigned char *w,
                       size_t apart_bytes, const struct chunk *x, size_t c, enum mp_wtype type)
{
    const __m512i zero = _mm512_setzero_si512();
    __m512i whole[EIGHT];

    UNROLL
    for (int t = 0; t < EIGHT; t++)
        whole[t] =
            mins_of(type) == MINS_WHOLE
                ? _mm512_sub_epi32(zero, _mm512_madd_epi16(s->mins, both(x[t].sums + c / 16)))
                : zero;
    UNROLL
    for (int j = 0; j < 8; j++) {
        const __m512i bytes = pair(bytes_k(w, type, j), bytes_k(w + apart_bytes, type, j));
        const __mmask64 negative = _mm512_movepi8_mask(bytes);
        const __m512i large = is_signed_k(type) ? _mm512_abs_epi8(bytes) : bytes;
        const __m512i scale = scale_8k(s, type, j);

        UNROLL
        for (int t = 0; t < EIGHT; t++) {
            const __m512i q = both(x[t].q + c + 32 * (size_t)j);
            const __m512i pairs =
                _mm512_maddubs_epi16(large, is_signed_k(type) ? signed_by(q, negative) : q);

            whole[t] = _mm512_dpwssd_epi32(whole[t], pairs, scale);
        }
    }
    UNROLL
    for (int t = 0; t < EIGHT; t++) {
        const __m512 scale = _mm512_set1_ps(x[t].scales[c / 256]);

        acc[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole[t]), _mm512_mul_ps(s->d, scale), acc[t]);
        if (mins_of(type) == MINS_SCALED) {
            const __m512i mins = _mm512_madd_epi16(s->mins, both(x[t].sums + c / 16));

            acc[t] =
                _mm512_fnmadd_ps(_mm512_cvtepi32_ps(mins), _mm512_mul_ps(s->dmin, scale), acc[t]);
        }
    }
}

TILE void add_part_8_k(__m512 acc[EIGHT], const struct part *p, enum mp_wtype type)
{
    const size_t bytes = block_bytes_of(type), units = p->cols / 256;
    const unsigned char *w = p->w;

    for (size_t u = 0; u < units; u++, w += bytes) {
        const struct scales_8k s = scales_of_8k(w, p->w_apart_bytes, type);

        fetch(w, p->w_apart_bytes, p->ahead, bytes, 2);
        add_block_8k(acc, &s, w, p->w_apart_bytes, p->x, p->c + u * 256, type);
    }
}

TILE void part_8(const struct part *p, enum mp_wtype type)
{
    float sums[2 * EIGHT];
    __m512 acc[EIGHT];

    UNROLL
    for (int t = 0; t < EIGHT; t++)
        acc[t] = _mm512_setzero_ps();
    if (is_block_32(type))
        add_part_8_32(acc, p, type);
    else
        add_part_8_k(acc, p, type);
    add_lanes_8(sums, acc);
    UNROLL
    for (int i = 0; i < 2 * EIGHT; i++) {
        float *to = p->y + (size_t)(i / 2) * p->y_stride + (size_t)(i % 2) * p->y_apart;

        *to = p->add ? *to + sums[i] : sums[i];
    }
}

#define X(TYPE, name, ...)                                                        \
    static __attribute__((noinline)) void part_##name##_2_8(const struct part *p) \
    {                                                                             \
        part_8(p, MP_WTYPE_##TYPE);                                               \
    }
MP_QUANT_MAP(X)
#undef X
