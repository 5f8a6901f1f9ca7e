/*
 * Products with quantised weights, once, for the file of a variant, which includes this at its end
 * (there is no other use and hence no guard). It defines VARIANT (the table to define),
 * VARIANT_NAME, VARIANT_KERNELS, and two operations on whole numbers: v_dot(), sums of 4 products
 * of bytes, and v_add_scaled(), such sums times their scales.
 *
 * Exactness. A product is a sum of partial sums of columns, in order. A partial sum is one vector
 * of 8 floats, to which each block of weights adds 8 whole numbers, times its scale and that of the
 * activations; number i is the sum over columns 4i to 4i + 3 of each 32. So tiles may be cut
 * anywhere, and all variants give the same bits.
 */
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/quant/unpack_32.h"
#include "kernels/cpu/quant/unpack_k.h"

#define CHUNK_COLS MP_QUANT_PART_COLS
#define RUN_TOKENS 64 /* that are rounded together */
#define CHUNKS_MAX 64 /* chunks of columns times tokens */
#define TILE_TOKENS 4
#define TILE_SUMS_MAX 8
#define FEW 4        /* tokens */
#define ROW_BLOCK 96 /* rows whose columns stay in the second level cache */

/* How far ahead of the weights in use, in bytes of its row, the stream of a row is fetched. */
#define STREAM_AHEAD 512

/* Instrumented builds keep loops, as compilers need many minutes for unrolled checks. */
#if MP_KERNELS_LOOPS
#define TILE static __attribute__((noinline))
#define UNROLL
#else
#define TILE INLINE
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif
#endif

/* Activations of one token, rounded. */
struct chunk {
    _Alignas(32) signed char q[CHUNK_COLS];
    int16_t sums[CHUNK_COLS / 16]; /* of the q of each 16, as in struct scales_k; of each 32 */
    float scales[CHUNK_COLS / 32];
};

/* Those of tokens [t, t + tokens) and columns [c, c + cols): chunk i of token j is
 * x[i * tokens + j]. */
struct panel {
    struct chunk *x;
    size_t t, tokens, c, cols;
};

INLINE size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

INLINE int is_block_32(enum mp_wtype type)
{
    return type < MP_WTYPE_Q2_K; /* the order of the table */
}

INLINE size_t block_elements(enum mp_wtype type)
{
    return is_block_32(type) ? 32 : 256;
}

INLINE size_t block_bytes_of(enum mp_wtype type)
{
    switch (type) {
#define X(TYPE, name, elements, bytes) \
    case MP_WTYPE_##TYPE: return bytes;
        MP_QUANT_MAP(X)
#undef X
    default: return 0;
    }
}

/* All 8 floats, always in the same order. */
INLINE float add_lanes(__m256 a)
{
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));

    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* ---- activations */

struct range {
    __m256 largest, bad; /* bad: zeros, NaN where a value is not finite */
};

INLINE void widen_range(struct range *range, const float *x)
{
    const __m256 a = _mm256_loadu_ps(x);

    range->largest = _mm256_max_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a), range->largest);
    range->bad = _mm256_add_ps(range->bad, _mm256_mul_ps(a, _mm256_setzero_ps()));
}

INLINE float largest_lane(__m256 a)
{
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));

    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

INLINE __m256i round_8(const float *x, __m256 inverse)
{
    return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), inverse));
}

/* As mp_quant_round() of 32 elements, and the sums of both halves. */
INLINE void round_32(signed char *q, const float *x, __m256 inverse, int sums[2])
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i a = _mm256_packs_epi32(round_8(x, inverse), round_8(x + 8, inverse));
    const __m256i b = _mm256_packs_epi32(round_8(x + 16, inverse), round_8(x + 24, inverse));
    __m128i low, high;

    a = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b), order);
    _mm256_storeu_si256((void *)q, a);
    a = _mm256_maddubs_epi16(_mm256_set1_epi8(1), a);
    a = _mm256_madd_epi16(a, _mm256_set1_epi16(1));
    low = _mm256_castsi256_si128(a);
    high = _mm256_extracti128_si256(a, 1);
    low = _mm_hadd_epi32(low, high);
    low = _mm_hadd_epi32(low, low);
    sums[0] = _mm_cvtsi128_si32(low);
    sums[1] = _mm_extract_epi32(low, 1);
}

INLINE float invert(float largest, int half, float *scale_p)
{
    float inverse = 0, scale = 0;

    if (largest > 0 && half) {
        scale = largest / 127;
        inverse = 1 / scale;
        if (scale < 65520) /* else it is too large for 16 bits */
            scale = _cvtsh_ss(_cvtss_sh(scale, _MM_FROUND_TO_NEAREST_INT));
    } else if (largest > 0) {
        inverse = 127 / largest;
        scale = 1 / inverse;
    }
    *scale_p = scale;
    return inverse;
}

INLINE void round_chunk(struct chunk *to, const float *x, size_t cols, enum mp_wtype type)
{
    const size_t block = block_elements(type);

    for (size_t i = 0; i < cols; i += block) {
        struct range range = { _mm256_setzero_ps(), _mm256_setzero_ps() };
        float inverse, scale;

        for (size_t j = 0; j < block; j += 8)
            widen_range(&range, x + i + j);
        inverse = invert(largest_lane(range.largest), is_block_32(type), &scale);
        to->scales[i / block] = scale + add_lanes(range.bad);
        for (size_t j = i; j < i + block; j += 32) {
            int sums[2];

            round_32(to->q + j, x + j, _mm256_set1_ps(inverse), sums);
            if (is_block_32(type)) {
                to->sums[j / 32] = (int16_t)(sums[0] + sums[1]);
                continue;
            }
            to->sums[i / 16 + (j - i) / 32] = (int16_t)sums[0];
            to->sums[i / 16 + 8 + (j - i) / 32] = (int16_t)sums[1];
        }
    }
}

/* ---- tiles */

/* One row's block of 32: acc[t] += w . x[t]. */
TILE void add_block_32(__m256 *acc, const unsigned char *w, const struct chunk *x, size_t c,
                       enum mp_wtype type, int tokens)
{
    const __m256i bytes = bytes_32(w, type);
    const __m256i large = has_min_32(type) ? bytes : _mm256_abs_epi8(bytes);
    const float d = scale_32(w, type);

    UNROLL
    for (int t = 0; t < tokens; t++) {
        const __m256i q = load_32((const void *)(x[t].q + c));
        const float scale = x[t].scales[c / 32];
        const __m256i sums = v_dot(large, has_min_32(type) ? q : _mm256_sign_epi8(q, bytes));

        acc[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), _mm256_set1_ps(d * scale), acc[t]);
        if (has_min_32(type))
            acc[t] = _mm256_add_ps(acc[t], _mm256_zextps128_ps256(_mm_set_ss(
                                               half_at(w + 2) * scale * (float)x[t].sums[c / 32])));
    }
}

/* The same for a block of 256. */
TILE void add_block_k(__m256 *acc, const unsigned char *w, const struct chunk *x, size_t c,
                      enum mp_wtype type, int tokens)
{
    const __m256i first = _mm256_set1_epi16(0x0100), two = _mm256_set1_epi16(0x0202);
    __m256i whole[TILE_TOKENS], pick = first;
    struct scales_k s = { .dmin = 0 };

    scales_of(w, type, &s);
    UNROLL
    for (int t = 0; t < tokens; t++)
        whole[t] = _mm256_setzero_si256();
    UNROLL
    for (int j = 0; j < 8; j++) {
        const __m256i bytes = bytes_k(w, type, j);
        const __m256i large = is_signed_k(type) ? _mm256_abs_epi8(bytes) : bytes;
        const __m256i scale = _mm256_shuffle_epi8(s.scales, pick);

        UNROLL
        for (int t = 0; t < tokens; t++) {
            const __m256i q = load_32((const void *)(x[t].q + c + 32 * (size_t)j));

            whole[t] = v_add_scaled(whole[t], large,
                                    is_signed_k(type) ? _mm256_sign_epi8(q, bytes) : q, scale);
        }
        pick = _mm256_add_epi8(pick, two);
    }
    UNROLL
    for (int t = 0; t < tokens; t++) {
        const float scale = x[t].scales[c / 256];
        const __m256i mins = _mm256_madd_epi16(s.mins, load_32((const void *)(x[t].sums + c / 16)));

        if (mins_of(type) == MINS_WHOLE)
            whole[t] = _mm256_sub_epi32(whole[t], mins);
        acc[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole[t]), _mm256_set1_ps(s.d * scale), acc[t]);
        if (mins_of(type) == MINS_SCALED)
            acc[t] =
                _mm256_fnmadd_ps(_mm256_cvtepi32_ps(mins), _mm256_set1_ps(s.dmin * scale), acc[t]);
    }
}

/* The partial sums of columns [c, c + cols) of a chunk are added to y. The same columns of the rows
 * that come next are fetched: hardware does not see through the short rows of experts. A prefetch
 * cannot fault, so it may run over the end. */
TILE void part(const struct mp_quant_product *p, const unsigned char *w, size_t apart_bytes,
               size_t ahead, const struct chunk *x, size_t c, size_t cols, float *y, size_t apart,
               enum mp_wtype type, int add, int rows, int tokens)
{
    const size_t block_bytes = block_bytes_of(type);
    __m256 acc[TILE_SUMS_MAX];

    UNROLL
    for (int i = 0; i < rows * tokens; i++)
        acc[i] = _mm256_setzero_ps();
    for (size_t i = c; i < c + cols; i += block_elements(type), w += block_bytes) {
        UNROLL
        for (int r = 0; r < rows; r++) {
            const unsigned char *from = w + (size_t)r * apart_bytes;

            UNROLL
            for (size_t b = 0; b < block_bytes; b += 64)
                _mm_prefetch((const void *)((uintptr_t)from + ahead + b), _MM_HINT_T0);
            if (is_block_32(type))
                add_block_32(acc + r * tokens, from, x, i, type, tokens);
            else
                add_block_k(acc + r * tokens, from, x, i, type, tokens);
        }
    }
    UNROLL
    for (int i = 0; i < rows * tokens; i++) {
        float *to = y + (size_t)(i % tokens) * p->y_stride + (size_t)(i / tokens) * apart;
        const float sum = add_lanes(acc[i]);

        *to = add ? *to + sum : sum;
    }
}

/* All columns of the panel for rows r, r + apart, .. and the tile at token t of the panel. */
TILE void tile(const struct mp_quant_product *p, const struct panel *q, enum mp_wtype type,
               size_t r, size_t apart, size_t t, int rows, int tokens)
{
    const size_t ahead = q->tokens > FEW ? (size_t)rows * p->w_row_bytes : STREAM_AHEAD;
    const unsigned char *w = p->w + r * p->w_row_bytes;
    float *y = p->y + (q->t + t) * p->y_stride + r;

    for (size_t c = 0; c == 0 || c < q->cols; c += p->block_cols) { /* no columns: zero */
        const struct chunk *x = q->x + c / CHUNK_COLS * q->tokens + t;
        const size_t at = (q->c + c) / block_elements(type) * block_bytes_of(type);

        part(p, w + at, apart * p->w_row_bytes, ahead, x, c % CHUNK_COLS,
             min_size(q->cols - c, p->block_cols), y, apart, type, p->accumulate || q->c + c > 0,
             rows, tokens);
    }
}

/* `rows` rows, `apart` from each other, for all tokens of the panel. */
TILE void tile_rows(const struct mp_quant_product *p, const struct panel *q, enum mp_wtype type,
                    size_t r, size_t apart, int rows)
{
    size_t t = 0;

    for (; t + 4 <= q->tokens; t += 4)
        tile(p, q, type, r, apart, t, rows, 4);
    for (; t + 2 <= q->tokens; t += 2)
        tile(p, q, type, r, apart, t, rows, 2);
    if (t < q->tokens)
        tile(p, q, type, r, apart, t, rows, 1);
}

/*
 * All rows for one panel, in blocks. With many tokens the weights of a tile stay in the first level
 * cache. With few, the rows of a tile stand far apart, so that a block is read as that many streams
 * from end to end, which is the fastest way to read memory, also where rows are short.
 */
TILE void multiply_panel(const struct mp_quant_product *p, const struct panel *q,
                         enum mp_wtype type)
{
    for (size_t r = 0, rows; r < p->rows; r += rows) {
        size_t i = 0, streams = q->tokens == 1 ? 4 : 2, each;

        rows = min_size(p->rows - r, ROW_BLOCK);
        each = rows / streams;
        for (; q->tokens == 1 && i < each; i++)
            tile(p, q, type, r + i, each, 0, 4, 1);
        for (; q->tokens > 1 && q->tokens <= FEW && i < each; i++)
            tile_rows(p, q, type, r + i, each, 2);
        for (; q->tokens > FEW && i < each; i++)
            tile_rows(p, q, type, r + 2 * i, 1, 2);
        for (i = each * streams; i < rows; i++)
            tile_rows(p, q, type, r + i, 1, 1);
    }
}

/* One panel after the other: as many columns as there is room for the tokens' activations. */
TILE void multiply(const struct mp_quant_product *p, enum mp_wtype type)
{
    struct chunk x[CHUNKS_MAX];
    struct panel q = { .x = x };

    for (; q.t < p->tokens; q.t += q.tokens) {
        q.tokens = min_size(p->tokens - q.t, RUN_TOKENS);
        q.c = 0;
        do {
            q.cols = min_size(p->cols - q.c, CHUNKS_MAX / q.tokens * CHUNK_COLS);
            for (size_t i = 0; i < q.cols; i += CHUNK_COLS) {
                for (size_t t = 0; t < q.tokens; t++)
                    round_chunk(&x[i / CHUNK_COLS * q.tokens + t],
                                p->x + (q.t + t) * p->x_stride + q.c + i,
                                min_size(q.cols - i, CHUNK_COLS), type);
            }
            multiply_panel(p, &q, type);
        } while ((q.c += q.cols) < p->cols);
    }
}

#define X(TYPE, name, ...)                                        \
    static void multiply_##name(const struct mp_quant_product *p) \
    {                                                             \
        multiply(p, MP_WTYPE_##TYPE);                             \
    }
MP_QUANT_MAP(X)
#undef X

#define X(TYPE, name, ...) .multiply[MP_WTYPE_##TYPE] = multiply_##name,
const struct mp_quant VARIANT = { .name = VARIANT_NAME,
                                  .kernels = VARIANT_KERNELS,
                                  MP_QUANT_MAP(X) };
#undef X
