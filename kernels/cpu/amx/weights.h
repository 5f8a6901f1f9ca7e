/*
 * Quantised weights as tiles of bytes, for quant.c (there is no other use and hence no guard):
 * numbers with their signs, and for each group of columns, 32 or 16, a scale and what is added to
 * every number of it.
 */
#define GROUPS_MAX (CHUNK_COLS / 16)
#define COLS_OF_TILE 32

/* 16 rows of one partial sum. Group g of row r has scale d[g][r]. */
struct weights {
    _Alignas(64) signed char q[CHUNK_COLS / COLS_OF_TILE][SIDE][COLS_OF_TILE];
    _Alignas(64) float d[GROUPS_MAX][SIDE];
    _Alignas(64) float m[GROUPS_MAX][SIDE]; /* where types have such: see has_mins() */
};

/* Columns that have a scale of their own. */
INLINE size_t group_cols(enum mp_wtype type)
{
    return is_block_32(type) || has_pairs_k(type) ? 32 : 16;
}

INLINE int has_mins(enum mp_wtype type)
{
    return is_block_32(type) ? has_min_32(type) : mins_of(type) == MINS_SCALED;
}

/* How much larger than the numbers the bytes of a block of 256 are. */
INLINE int offset_k(enum mp_wtype type)
{
    return type == MP_WTYPE_Q6_K ? 32 : type == MP_WTYPE_Q3_K ? 4 : 0;
}

INLINE void put_bytes(struct weights *to, size_t group, size_t r, __m256i bytes, int offset)
{
    if (offset != 0)
        bytes = _mm256_sub_epi8(bytes, _mm256_set1_epi8((char)offset));
    _mm256_store_si256((void *)to->q[group][r], bytes);
}

/* Of 8 blocks of 32: scales, then what is added. */
INLINE __m512i scales_of_blocks(const unsigned char *p, enum mp_wtype type)
{
    const __m256 m = has_min_32(type) ? halves_8(p + 2, block_bytes_of(type)) : _mm256_setzero_ps();

    return _mm512_castps_si512(
        _mm512_insertf32x8(_mm512_castps256_ps512(block_scales_8(p, type)), m, 1));
}

INLINE __m512 as_floats(__m256i whole, float scale)
{
    return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(whole)), _mm512_set1_ps(scale));
}

/* Of a block of 256 with a scale for each 32 columns: the same. */
INLINE __m512i pairs_of_block(const struct scales_k *s, enum mp_wtype type)
{
    __m128i scales = _mm256_cvtepi32_epi16(_mm256_loadu_si256((const void *)s->pairs[0]));
    __m512 d = as_floats(_mm256_castsi128_si256(scales), s->d[0][0]);

    if (has_mins(type))
        d = _mm512_mask_mov_ps(d, 0xff00,
                               as_floats(_mm256_permute4x64_epi64(s->mins[0], 0x44), -s->d[0][1]));
    return _mm512_castps_si512(d);
}

/* Scales, and what is added, of all rows: those of one group side by side. In `first` and `second`
 * they are row by row; of groups of 32 columns `second` is not used. */
INLINE void put_scales(struct weights *to, size_t group, __m512i first[SIDE], __m512i second[SIDE],
                       enum mp_wtype type)
{
    const size_t halves = 32 / group_cols(type);

    transpose(first);
    if (halves == 2 && has_mins(type))
        transpose(second);
    UNROLL
    for (size_t j = 0; j < 8; j++) {
        if (halves == 1) {
            _mm512_store_si512(to->d[group + j], first[j]);
            if (has_mins(type))
                _mm512_store_si512(to->m[group + j], first[8 + j]);
            continue;
        }
        UNROLL
        for (size_t half = 0; half < 2; half++) {
            const size_t g = 2 * (group + j) + half;

            _mm512_store_si512(to->d[g], first[8 * half + j]);
            if (has_mins(type))
                _mm512_store_si512(to->m[g], second[8 * half + j]);
        }
    }
}

/* 256 columns of 16 rows or fewer, from group of 32 columns `group` on. The rows that come next are
 * fetched; that cannot fault. */
INLINE void unpack_unit(struct weights *to, size_t group, const unsigned char *p, size_t row_bytes,
                        size_t rows, enum mp_wtype type)
{
    const size_t unit_bytes = 256 / block_elements(type) * block_bytes_of(type);
    __m512i first[SIDE], second[SIDE];

    for (size_t r = 0; r < SIDE; r++) {
        struct scales_k s;

        first[r] = second[r] = _mm512_setzero_si512();
        if (r >= rows)
            continue;
        for (size_t b = 0; b < unit_bytes; b += 64)
            _mm_prefetch((const void *)((uintptr_t)p + SIDE * row_bytes + b), _MM_HINT_T0);
        if (is_block_32(type)) {
            first[r] = scales_of_blocks(p, type);
        } else {
            scales_of_rows(p, NULL, type, &s);
            first[r] = has_pairs_k(type) ? pairs_of_block(&s, type)
                                         : _mm512_castps_si512(as_floats(s.scales[0], s.d[0][0]));
            if (!has_pairs_k(type) && has_mins(type))
                second[r] = _mm512_castps_si512(as_floats(s.mins[0], -s.d[0][1]));
        }
        UNROLL
        for (int i = 0; i < 8; i++)
            put_bytes(to, group + (size_t)i, r,
                      is_block_32(type) ? bytes_32(p + (size_t)i * block_bytes_of(type), type)
                                        : bytes_k(p, type, i),
                      is_block_32(type) ? offset_32(type) : offset_k(type));
        p += row_bytes;
    }
    put_scales(to, group, first, second, type);
}

/* The last few blocks of 32 of a row. */
INLINE void unpack_rest(struct weights *to, size_t group, size_t r, const unsigned char *p,
                        size_t end, enum mp_wtype type)
{
    for (; group < end; group++, p += block_bytes_of(type)) {
        put_bytes(to, group, r, bytes_32(p, type), offset_32(type));
        to->d[group][r] = scale_32(p, type);
        if (has_min_32(type))
            to->m[group][r] = half_at(p + 2);
    }
}

/* 16 rows at most, of one partial sum. */
TILE void unpack(struct weights *to, const unsigned char *w, size_t row_bytes, size_t rows,
                 size_t cols, enum mp_wtype type)
{
    const size_t unit_bytes = 256 / block_elements(type) * block_bytes_of(type);
    size_t group = 0;

    for (; group + 8 <= cols / 32; group += 8, w += unit_bytes)
        unpack_unit(to, group, w, row_bytes, rows, type);
    for (size_t r = 0; is_block_32(type) && r < rows; r++)
        unpack_rest(to, group, r, w + r * row_bytes, cols / 32, type);
}
