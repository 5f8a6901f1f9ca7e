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

INLINE void unpack_row_32(struct weights *to, size_t r, const unsigned char *p, size_t cols,
                          enum mp_wtype type)
{
    for (size_t j = 0; j < cols / 32; j++, p += block_bytes_of(type)) {
        put_bytes(to, j, r, bytes_32(p, type), offset_32(type));
        to->d[j][r] = scale_32(p, type);
        if (has_min_32(type))
            to->m[j][r] = half_at(p + 2);
    }
}

/* The scales of one block: those of elements 0 to 15 of each 32 stand before all the others. */
INLINE void unpack_scales_k(struct weights *to, size_t group, size_t r, const struct scales_k *s,
                            enum mp_wtype type)
{
    const size_t halves = 32 / group_cols(type);
    int16_t scales[16], mins[16];

    if (has_pairs_k(type)) {
        for (int j = 0; j < 8; j++)
            scales[j] = (int16_t)s->pairs[j];
    } else {
        _mm256_storeu_si256((void *)scales, s->scales);
    }
    if (has_mins(type))
        _mm256_storeu_si256((void *)mins, s->mins);
    for (size_t j = 0; j < 8; j++) {
        for (size_t half = 0; half < halves; half++) {
            const size_t g = (group + j) * halves + half;

            to->d[g][r] = s->d * (float)scales[8 * half + j];
            if (has_mins(type))
                to->m[g][r] = -s->dmin * (float)mins[8 * half + j];
        }
    }
}

INLINE void unpack_row_k(struct weights *to, size_t r, const unsigned char *p, size_t cols,
                         enum mp_wtype type)
{
    for (size_t j = 0; j < cols / 32; j += 8, p += block_bytes_of(type)) {
        struct scales_k s;

        scales_of_k(p, type, &s);
        unpack_scales_k(to, j, r, &s, type);
        UNROLL
        for (int i = 0; i < 8; i++)
            put_bytes(to, j + (size_t)i, r, bytes_k(p, type, i), offset_k(type));
    }
}

/* 16 rows at most, of one partial sum. */
TILE void unpack(struct weights *to, const unsigned char *w, size_t row_bytes, size_t rows,
                 size_t cols, enum mp_wtype type)
{
    for (size_t r = 0; r < rows; r++, w += row_bytes) {
        if (is_block_32(type))
            unpack_row_32(to, r, w, cols, type);
        else
            unpack_row_k(to, r, w, cols, type);
    }
}
