/*
 * Many tokens, for product.h: some rows are the lanes of vectors. A part of their columns is taken
 * apart once for all tokens of a panel; then 4 bytes of each row are multiplied with the same 4 of
 * a token's activations, so that the sum of a block is one of vectors.
 */
#define LANES 16
#define GROUP 8 /* tokens side by side */
#define SIDE 32 /* numbers of a row beside the elements of 256 columns */

/* A part of the rows: elements of each 4 columns; then for each 256 columns the numbers beside them
 * and, of blocks of 256, what those are multiplied with. */
struct lanes {
    _Alignas(64) unsigned char w[CHUNK_COLS / 4][LANES * 4];
    _Alignas(64) int32_t side[UNITS_MAX][SIDE][LANES];
    _Alignas(64) float d[UNITS_MAX][LANES], dmin[UNITS_MAX][LANES];
};

/* 256 columns of one row, or fewer. */
struct row {
    _Alignas(64) unsigned char w[256];
    _Alignas(64) int32_t side[SIDE];
};

/* Where numbers stand in `side`: blocks of 32: scales, and what is added. Of 256: scales of 32
 * columns each, or of 16 in the order of struct scales_k; pairs of 16-bit numbers for the sums of
 * activations. */
enum { SIDE_D = 0, SIDE_M = 8, SIDE_SCALES = 0, SIDE_MINS = 8, SIDE_MINS_16 = 16 };

INLINE int mins_at(enum mp_wtype type)
{
    return has_pairs_k(type) ? SIDE_MINS : SIDE_MINS_16;
}

/* How much larger elements are made, so that none is below zero. What that adds to sums is taken
 * off as mins are. */
INLINE int offset_k(enum mp_wtype type)
{
    return is_signed_k(type) ? 128 : 0;
}

/* ---- rows to lanes */

/* Lane r of to[k] is number k of the row that begins r * apart_bytes behind `from`. */
static __attribute__((noinline)) void transpose(void *to, const void *from, size_t apart_bytes)
{
    const unsigned char *p = from;
    __m512i a[LANES], b[LANES];

    UNROLL
    for (int i = 0; i < LANES; i++)
        a[i] = _mm512_load_si512(p + (size_t)i * apart_bytes);
    UNROLL
    for (int i = 0; i < LANES; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    UNROLL
    for (int i = 0; i < LANES; i += 4) {
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        b[i] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88);
        b[i + 4] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd);
        b[i + 8] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88);
        b[i + 12] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        _mm512_store_si512((char *)to + 64 * i, _mm512_shuffle_i32x4(b[i], b[i + 8], 0x88));
        _mm512_store_si512((char *)to + 64 * (i + 8), _mm512_shuffle_i32x4(b[i], b[i + 8], 0xdd));
        _mm512_store_si512((char *)to + 64 * (i + 4),
                           _mm512_shuffle_i32x4(b[i + 4], b[i + 12], 0x88));
        _mm512_store_si512((char *)to + 64 * (i + 12),
                           _mm512_shuffle_i32x4(b[i + 4], b[i + 12], 0xdd));
    }
}

INLINE void read_32(struct row *row, const unsigned char *w, size_t blocks, enum mp_wtype type)
{
    for (size_t b = 0; b < blocks; b++)
        _mm256_store_si256((void *)(row->w + 32 * b), bytes_32(w + b * block_bytes_of(type), type));
    _mm256_store_ps((float *)(row->side + SIDE_D), scales_of_32(w, type, blocks));
    if (has_min_32(type))
        _mm256_store_ps((float *)(row->side + SIDE_M), mins_of_32(w, type, blocks));
}

INLINE void read_k(struct row *row, float *d, float *dmin, const unsigned char *w,
                   enum mp_wtype type)
{
    struct scales_k s;

    UNROLL
    for (int j = 0; j < 8; j++)
        _mm256_store_si256(
            (void *)(row->w + 32 * j),
            _mm256_xor_si256(bytes_k(w, type, j), _mm256_set1_epi8((char)offset_k(type))));
    if (has_6_bits(type)) {
        const __m256i heads = heads_6(w, w), bytes = bytes_6(heads);

        _mm256_store_si256((void *)(row->side + SIDE_SCALES),
                           _mm256_cvtepu8_epi32(_mm256_castsi256_si128(bytes)));
        _mm256_store_si256((void *)(row->side + SIDE_MINS),
                           _mm256_unpackhi_epi8(bytes, _mm256_setzero_si256()));
        d_of_6(s.d, heads);
        *d = s.d[0][0];
        *dmin = s.d[0][1];
        return;
    }
    scales_of_k(w, type, &s, 0);
    if (has_pairs_k(type)) { /* a number twice becomes one of 32 bits; elements are signed */
        const __m256i once = _mm256_srai_epi32(load_32((const void *)s.pairs[0]), 16);
        const __m128i all =
            _mm_packs_epi32(_mm256_castsi256_si128(once), _mm256_extracti128_si256(once, 1));

        _mm256_store_si256((void *)(row->side + SIDE_SCALES), once);
        s.mins[0] = _mm256_slli_epi16(_mm256_broadcastsi128_si256(all), 7);
    } else {
        _mm256_store_si256((void *)(row->side + SIDE_SCALES),
                           _mm256_cvtepi16_epi32(_mm256_castsi256_si128(s.scales[0])));
        _mm256_store_si256((void *)(row->side + SIDE_SCALES + 8),
                           _mm256_cvtepi16_epi32(_mm256_extracti128_si256(s.scales[0], 1)));
        if (is_signed_k(type))
            s.mins[0] = _mm256_slli_epi16(s.scales[0], 7);
    }
    _mm256_store_si256((void *)(row->side + mins_at(type)), s.mins[0]);
    *d = s.d[0][0];
    if (mins_of(type) == MINS_SCALED)
        *dmin = s.d[0][1];
}

/* Columns that begin at w of `rows` rows, LANES at the most; the last one stands for those that are
 * missing. */
INLINE void take_apart(struct lanes *l, const unsigned char *w, size_t row_bytes, size_t rows,
                       size_t cols, enum mp_wtype type)
{
    struct row row[LANES];

    for (size_t u = 0; u * 256 < cols;
         u++, w += 256 / block_elements(type) * block_bytes_of(type)) {
        const size_t blocks = min_size(cols - u * 256, 256) / 32;

        for (size_t r = 0; r < LANES; r++) {
            const unsigned char *from = w + (r < rows ? r : rows - 1) * row_bytes;

            fetch(2, from, 0, LANES * row_bytes, 256 / block_elements(type) * block_bytes_of(type),
                  1);
            if (!is_block_32(type))
                read_k(&row[r], &l->d[u][r], &l->dmin[u][r], from, type);
            else if (blocks == 8)
                read_32(&row[r], from, 8, type);
            else
                read_32(&row[r], from, blocks, type);
        }
        for (size_t i = 0; i < 256; i += LANES * 4)
            transpose(l->w[u * 64 + i / 4], row[0].w + i, sizeof(row[0]));
        for (size_t i = 0; i < (size_t)(is_block_32(type) || has_pairs_k(type) ? 16 : SIDE);
             i += LANES)
            transpose(l->side[u][i], row[0].side + i, sizeof(row[0]));
    }
}

/* ---- products */

/* The 4 bytes at p in all lanes. */
INLINE __m512i spread(const void *p)
{
    int32_t bits;

    memcpy(&bits, p, sizeof(bits));
    return _mm512_set1_epi32(bits);
}

/* sums[t] += 4 * count columns of the rows times those of tokens. */
TILE void add_columns(__m512i *sums, const unsigned char (*w)[LANES * 4], const struct chunk *x,
                      size_t c, int count, int tokens)
{
    UNROLL
    for (int j = 0; j < count; j++) {
        const __m512i bytes = _mm512_load_si512(w[j]);

        UNROLL
        for (int t = 0; t < tokens; t++)
            sums[t] = _mm512_dpbusd_epi32(sums[t], bytes, spread(x[t].q + c + 4 * (size_t)j));
    }
}

/* Block i of each 8 adds to sum i. */
TILE void lanes_32(__m512 *y, const struct lanes *l, const struct chunk *x, size_t c, size_t cols,
                   enum mp_wtype type, int tokens)
{
    __m512 of[8][GROUP];

    for (size_t b = 0; b < 8; b++) {
        __m512 acc[GROUP];

        UNROLL
        for (int t = 0; t < tokens; t++)
            acc[t] = _mm512_setzero_ps();
        for (size_t at = 32 * b; at < cols; at += 256) {
            const float *d = (const float *)l->side[at / 256][SIDE_D + b];
            const float *m = (const float *)l->side[at / 256][SIDE_M + b];
            __m512i sums[GROUP];

            UNROLL
            for (int t = 0; t < tokens; t++)
                sums[t] = offset_32(type) != 0 ? spread(&x[t].base[(c + at) / 32])
                                               : _mm512_setzero_si512();
            add_columns(sums, l->w + at / 4, x, c + at, 8, tokens);
            UNROLL
            for (int t = 0; t < tokens; t++) {
                const __m512 scale = _mm512_set1_ps(x[t].scales[(c + at) / 32]);

                acc[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[t]),
                                         _mm512_mul_ps(_mm512_loadu_ps(d), scale), acc[t]);
                if (has_min_32(type))
                    acc[t] = _mm512_add_ps(
                        acc[t], _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(m), scale),
                                              _mm512_set1_ps((float)x[t].sums[(c + at) / 32])));
            }
        }
        UNROLL
        for (int t = 0; t < tokens; t++)
            of[b][t] = acc[t];
    }
    UNROLL
    for (int t = 0; t < tokens; t++)
        y[t] = _mm512_add_ps(
            _mm512_add_ps(_mm512_add_ps(of[0][t], of[4][t]), _mm512_add_ps(of[2][t], of[6][t])),
            _mm512_add_ps(_mm512_add_ps(of[1][t], of[5][t]), _mm512_add_ps(of[3][t], of[7][t])));
}

/* One block of 256. */
TILE void lanes_block_k(__m512 *of, const struct lanes *l, size_t u, const struct chunk *x,
                        size_t c, enum mp_wtype type, int tokens)
{
    const int groups = has_pairs_k(type) ? 8 : 16, count = 64 / groups;
    const int pairs = has_6_bits(type) ? 4 : 8; /* of mins */
    __m512i whole[GROUP], mins[GROUP];

    UNROLL
    for (int t = 0; t < tokens; t++)
        whole[t] = _mm512_setzero_si512();
    for (int g = 0; g < groups; g++) {
        const int i = has_pairs_k(type) ? g : g % 2 * 8 + g / 2;
        const __m512i scale = _mm512_load_si512(l->side[u][SIDE_SCALES + i]);
        __m512i sums[GROUP];

        UNROLL
        for (int t = 0; t < tokens; t++)
            sums[t] = _mm512_setzero_si512();
        add_columns(sums, l->w + u * 64 + (size_t)(g * count), x, c + (size_t)(g * count * 4),
                    count, tokens);
        UNROLL
        for (int t = 0; t < tokens; t++)
            whole[t] = _mm512_add_epi32(whole[t], _mm512_mullo_epi32(sums[t], scale));
    }
    UNROLL
    for (int t = 0; t < tokens; t++)
        mins[t] = _mm512_setzero_si512();
    UNROLL
    for (int i = 0; i < pairs; i++) {
        const __m512i of_rows = _mm512_load_si512(l->side[u][mins_at(type) + i]);

        UNROLL
        for (int t = 0; t < tokens; t++)
            mins[t] =
                _mm512_dpwssd_epi32(mins[t], of_rows, spread(&x[t].sums[c / 16 + 2 * (size_t)i]));
    }
    UNROLL
    for (int t = 0; t < tokens; t++) {
        const __m512 scale = _mm512_set1_ps(x[t].scales[c / 256]);

        if (mins_of(type) != MINS_SCALED)
            whole[t] = _mm512_sub_epi32(whole[t], mins[t]);
        of[t] = _mm512_mul_ps(_mm512_cvtepi32_ps(whole[t]),
                              _mm512_mul_ps(_mm512_loadu_ps(l->d[u]), scale));
        if (mins_of(type) == MINS_SCALED)
            of[t] = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(mins[t]),
                                     _mm512_mul_ps(_mm512_loadu_ps(l->dmin[u]), scale), of[t]);
    }
}

TILE void lanes_k(__m512 *y, const struct lanes *l, const struct chunk *x, size_t c, size_t cols,
                  enum mp_wtype type, int tokens)
{
    __m512 of[UNITS_MAX][GROUP];

    for (size_t u = 0; u < UNITS_MAX; u++) {
        if (u * 256 < cols) {
            lanes_block_k(of[u], l, u, x, c + u * 256, type, tokens);
            continue;
        }
        UNROLL
        for (int t = 0; t < tokens; t++)
            of[u][t] = _mm512_setzero_ps();
    }
    UNROLL
    for (int t = 0; t < tokens; t++)
        y[t] = _mm512_add_ps(_mm512_add_ps(of[0][t], of[2][t]), _mm512_add_ps(of[1][t], of[3][t]));
}

/* Columns [c, c + cols) of a chunk for some rows and tokens. */
struct lanes_part {
    const struct lanes *l;
    const struct chunk *x; /* of the tokens, one after the other */
    float *y;
    size_t y_stride, rows, c, cols;
    int add; /* 0: y is set */
};

static __attribute__((noinline)) void to_y(const struct lanes_part *p, const float *sums,
                                           size_t tokens)
{
    for (size_t t = 0; t < tokens; t++, sums += LANES) {
        float *to = p->y + t * p->y_stride;

        for (size_t r = 0; r < p->rows; r++)
            to[r] = p->add ? to[r] + sums[r] : sums[r];
    }
}

TILE void lanes_part(const struct lanes_part *p, enum mp_wtype type, int tokens)
{
    float sums[GROUP * LANES];
    __m512 y[GROUP];

    if (is_block_32(type))
        lanes_32(y, p->l, p->x, p->c, p->cols, type, tokens);
    else
        lanes_k(y, p->l, p->x, p->c, p->cols, type, tokens);
    UNROLL
    for (int t = 0; t < tokens; t++)
        _mm512_storeu_ps(sums + t * LANES, y[t]);
    to_y(p, sums, (size_t)tokens);
}

/* Functions of their own, so that each has all registers for its loop. */
#define LANES_PART(TYPE, name, tokens)                                                        \
    static __attribute__((noinline)) void lanes_##name##_##tokens(const struct lanes_part *p) \
    {                                                                                         \
        lanes_part(p, MP_WTYPE_##TYPE, tokens);                                               \
    }
#define X(TYPE, name, ...)                                                                   \
    LANES_PART(TYPE, name, 1)                                                                \
    LANES_PART(TYPE, name, 2)                                                                \
    LANES_PART(TYPE, name, 4)                                                                \
    LANES_PART(TYPE, name, 8)                                                                \
    static __attribute__((noinline)) void take_apart_##name(                                 \
        struct lanes *l, const unsigned char *w, size_t row_bytes, size_t rows, size_t cols) \
    {                                                                                        \
        take_apart(l, w, row_bytes, rows, cols, MP_WTYPE_##TYPE);                            \
    }
MP_QUANT_MAP(X)
#undef X

struct lanes_of {
    void (*take_apart)(struct lanes *l, const unsigned char *w, size_t row_bytes, size_t rows,
                       size_t cols);
    void (*of[4])(const struct lanes_part *p); /* 1, 2, 4, 8 tokens */
};

#define X(TYPE, name, ...)                                                          \
    static const struct lanes_of lanes_of_##name = {                                \
        take_apart_##name,                                                          \
        { lanes_##name##_1, lanes_##name##_2, lanes_##name##_4, lanes_##name##_8 }, \
    };
MP_QUANT_MAP(X)
#undef X

/* All rows for one panel. */
static void lanes_panel(const struct mp_quant_product *p, const struct panel *q,
                        const struct lanes_of *of, enum mp_wtype type)
{
    struct lanes l;

    for (size_t r = 0; r < p->rows; r += LANES) {
        const unsigned char *w =
            p->w + r * p->w_row_bytes + q->c / block_elements(type) * block_bytes_of(type);
        struct lanes_part part = { &l, NULL, NULL, p->y_stride, min_size(p->rows - r, LANES),
                                   0,  0,    0 };

        for (size_t c = 0; c == 0 || c < q->cols; c += p->block_cols) { /* no columns: zero */
            part.c = c % CHUNK_COLS;
            part.cols = min_size(q->cols - c, p->block_cols);
            part.add = p->accumulate || q->c + c > 0;
            of->take_apart(&l, w, p->w_row_bytes, part.rows, part.cols);
            w += part.cols / block_elements(type) * block_bytes_of(type);
            for (size_t t = 0, i = 3; t < q->tokens; t += (size_t)1 << i) {
                while ((size_t)1 << i > q->tokens - t)
                    i--;
                part.x = q->x + c / CHUNK_COLS * q->tokens + t;
                part.y = p->y + (q->t + t) * p->y_stride + r;
                of->of[i](&part);
            }
        }
    }
}
