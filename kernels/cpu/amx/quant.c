/*
 * Quantised weights by tiles of bytes. Numbers of 16 rows are brought into tiles once for up to 64
 * tokens; each group of columns is one multiplication of tiles, whose whole numbers are then
 * scaled and added as floats. One token alone has tiles of one column, and the same operations on
 * the same floats.
 */
#include "kernels/cpu/amx/amx.h"
#include "kernels/cpu/amx/tiles.h"

#define CHUNK_COLS MP_QUANT_PART_COLS
#define V_WIDE 0

/* a | (b & mask) */
INLINE __m256i v_or_masked(__m256i a, __m256i b, __m256i mask)
{
    return _mm256_ternarylogic_epi32(a, b, mask, 0xf8);
}

#include "kernels/cpu/quant/blocks.h"

#include "kernels/cpu/amx/weights.h"

#define TILE_GROUPS_MAX (RUN_TOKENS / SIDE)
#define BATCH 8       /* groups of columns whose sums wait to be scaled */
#define CHUNKS_MAX 16 /* of one token, rounded together */

/* What a type needs at run time. */
struct form {
    enum mp_wtype type;
    size_t group; /* columns with a scale of their own */
    int mins;
    void (*unpack)(struct weights *to, const unsigned char *w, size_t row_bytes, size_t rows,
                   size_t cols);
};

/* The rounded activations of 16 tokens, of one partial sum; what is beyond the last token is zero.
 * sums: of a group's numbers, times their scale. */
struct tokens {
    _Alignas(64) int32_t q[CHUNK_COLS / 4][SIDE];
    _Alignas(64) float scales[CHUNK_COLS / 32][SIDE];
    _Alignas(64) float sums[GROUPS_MAX][SIDE];
};

/* What is added to y: of rows and tokens, 16 at most. */
struct target {
    float *y;
    size_t stride, rows, tokens;
    int add;
};

static void configure(size_t group, size_t tokens)
{
    struct tile_config config = { .palette = 1 };

    for (int i = 0; i < 4; i++)
        configure_tile(&config, i, SIDE, tokens * 4);
    configure_tile(&config, 4, SIDE, group);
    configure_tile(&config, 5, SIDE, group);
    configure_tile(&config, 6, group / 4, tokens * 4);
    configure_tile(&config, 7, group / 4, tokens * 4);
    load_config(&config);
}

/* ---- activations */

/* Scale of the 32 columns from c on. */
INLINE float scale_at(const struct chunk *x, size_t c, enum mp_wtype type)
{
    return x->scales[c / block_elements(type)];
}

/* The sum of the numbers of a group, times their scale. */
INLINE float sum_at(const struct chunk *x, size_t c, const struct form *form)
{
    const float scale = scale_at(x, c, form->type);
    const int16_t *sums = x->sums + c / 256 * 16 + c % 256 / 32;

    if (is_block_32(form->type))
        return scale * (float)x->sums[c / 32];
    if (form->group == 32)
        return scale * (float)(sums[0] + sums[8]);
    return scale * (float)sums[c % 32 / 16 * 8];
}

static void put_token(struct tokens *to, size_t t, const struct chunk *x, size_t cols,
                      const struct form *form)
{
    for (size_t c = 0; c < cols; c += 32)
        to->scales[c / 32][t] = scale_at(x, c, form->type);
    for (size_t c = 0; form->mins && c < cols; c += form->group)
        to->sums[c / form->group][t] = sum_at(x, c, form);
}

/* 16 tokens at most: rounded, then four columns of each side by side. */
static void pack(struct tokens *to, const float *x, size_t stride, size_t tokens, size_t cols,
                 const struct form *form)
{
    struct chunk rounded[SIDE];

    memset(rounded, 0, sizeof(rounded));
    for (size_t t = 0; t < SIDE; t++) {
        if (t < tokens)
            round_chunk(&rounded[t], x + t * stride, stride, cols, form->type, 1);
        put_token(to, t, &rounded[t], cols, form);
    }
    for (size_t c = 0; c < cols; c += 64) { /* what is behind the last columns is not used */
        __m512i a[SIDE];

        for (int t = 0; t < SIDE; t++)
            a[t] = _mm512_loadu_si512(rounded[t].q + c);
        transpose(a);
        for (int i = 0; i < SIDE; i++)
            _mm512_store_si512(to->q[c / 4 + (size_t)i], a[i]);
    }
}

/* ---- products */

/* Where the bytes of group g are, and the whole numbers of group i of a batch. */
#define WEIGHTS_OF(g) (&w->q[(g)*group / COLS_OF_TILE][0][(g)*group % COLS_OF_TILE])
#define TOKENS_OF(g) (x + (g)*group * width)
#define SUMS_OF(i) (sums + (size_t)(i)*SIDE * width)

#define DOT(i, sum, a, b)                                  \
    do {                                                   \
        _tile_zero(sum);                                   \
        _tile_loadd(a, WEIGHTS_OF(g + (i)), COLS_OF_TILE); \
        _tile_loadd(b, TOKENS_OF(g + (i)), 4 * width);     \
        _tile_dpbssd(sum, a, b);                           \
        _tile_stored(sum, SUMS_OF(i), 4 * width);          \
    } while (0)

/* sums[i][r][t] of groups g + i, i < count: whole numbers of 16 rows and `width` tokens. */
INLINE void dot(int32_t *sums, const struct weights *w, const signed char *x, size_t g,
                size_t count, size_t group, size_t width)
{
    write_out(w);
    write_out(x);
    for (; count >= 4; count -= 4, g += 4, sums += 4 * SIDE * width) {
        DOT(0, 0, 4, 6);
        DOT(1, 1, 5, 7);
        DOT(2, 2, 4, 6);
        DOT(3, 3, 5, 7);
    }
    for (; count > 0; count--, g++, sums += SIDE * width)
        DOT(0, 0, 4, 6);
}

/* One partial sum of 16 rows and 16 tokens. */
INLINE void multiply_many(const struct target *to, const struct weights *w, const struct tokens *x,
                          size_t cols, size_t group, int mins)
{
    _Alignas(64) int32_t sums[BATCH][SIDE][SIDE];
    __m512 acc[SIDE];

    UNROLL
    for (int r = 0; r < SIDE; r++)
        acc[r] = _mm512_setzero_ps();
    for (size_t g = 0, count; g < cols / group; g += count) {
        count = min_size(cols / group - g, BATCH);
        dot(sums[0][0], w, (const signed char *)x->q, g, count, group, SIDE);
        for (size_t i = 0; i < count; i++) {
            const __m512 scale = _mm512_load_ps(x->scales[(g + i) * group / 32]);

            UNROLL
            for (int r = 0; r < SIDE; r++)
                acc[r] =
                    _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums[i][r])),
                                    _mm512_mul_ps(_mm512_set1_ps(w->d[g + i][r]), scale), acc[r]);
            UNROLL
            for (int r = 0; mins && r < SIDE; r++)
                acc[r] = _mm512_fmadd_ps(_mm512_set1_ps(w->m[g + i][r]),
                                         _mm512_load_ps(x->sums[g + i]), acc[r]);
        }
    }
    add_sums(to->y, to->stride, acc, to->rows, to->tokens, to->add);
}

/* The same of one token: the rows are side by side. */
INLINE void multiply_one(const struct target *to, const struct weights *w, const struct chunk *x,
                         size_t cols, const struct form *form, size_t group, int mins)
{
    _Alignas(64) int32_t sums[BATCH][SIDE];
    __m512 acc = _mm512_setzero_ps();

    for (size_t g = 0, count; g < cols / group; g += count) {
        count = min_size(cols / group - g, BATCH);
        dot(sums[0], w, x->q, g, count, group, 1);
        for (size_t i = 0; i < count; i++) {
            const size_t c = (g + i) * group;
            const __m512 scale = _mm512_set1_ps(scale_at(x, c, form->type));

            acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums[i])),
                                  _mm512_mul_ps(_mm512_load_ps(w->d[g + i]), scale), acc);
            if (mins)
                acc = _mm512_fmadd_ps(_mm512_load_ps(w->m[g + i]),
                                      _mm512_set1_ps(sum_at(x, c, form)), acc);
        }
    }
    if (to->add)
        acc = _mm512_add_ps(_mm512_maskz_loadu_ps(first_of(to->rows), to->y), acc);
    _mm512_mask_storeu_ps(to->y, first_of(to->rows), acc);
}

static void many(const struct target *to, const struct weights *w, const struct tokens *x,
                 size_t cols, const struct form *form)
{
    if (form->group == 16 && form->mins)
        multiply_many(to, w, x, cols, 16, 1);
    else if (form->group == 16)
        multiply_many(to, w, x, cols, 16, 0);
    else if (form->mins)
        multiply_many(to, w, x, cols, 32, 1);
    else
        multiply_many(to, w, x, cols, 32, 0);
}

static void one(const struct target *to, const struct weights *w, const struct chunk *x,
                size_t cols, const struct form *form)
{
    if (form->group == 16)
        multiply_one(to, w, x, cols, form, 16, form->mins);
    else
        multiply_one(to, w, x, cols, form, 32, form->mins);
}

/* ---- order */

/* The weights of one partial sum, from column c on, of rows [r, r + 16) or fewer. */
static void unpack_rows(struct weights *to, const struct mp_quant_product *p, size_t r, size_t c,
                        size_t cols, const struct form *form)
{
    const struct mp_wtype_info *info = mp_wtype_info(form->type);
    const size_t rows = min_size(p->rows - r, SIDE);

    if (rows < SIDE)
        memset(to, 0, sizeof(*to));
    form->unpack(to, p->w + r * p->w_row_bytes + c / info->block_elements * info->block_bytes,
                 p->w_row_bytes, rows, cols);
}

static void multiply_token(const struct mp_quant_product *p, const struct form *form)
{
    struct chunk x[CHUNKS_MAX];
    struct weights w;
    size_t c = 0, cols;

    configure(form->group, 1);
    do { /* no columns: zero */
        cols = min_size(p->cols - c, (size_t)CHUNKS_MAX * p->block_cols);
        for (size_t i = 0; i < cols; i += p->block_cols)
            round_chunk(&x[i / p->block_cols], p->x + c + i, p->block_cols,
                        min_size(cols - i, p->block_cols), form->type, 1);
        for (size_t r = 0; r < p->rows; r += SIDE) {
            for (size_t i = 0; i == 0 || i < cols; i += p->block_cols) {
                const size_t part = min_size(cols - i, p->block_cols);
                const struct target to = { .y = p->y + r,
                                           .rows = min_size(p->rows - r, SIDE),
                                           .add = p->accumulate || c + i > 0 };

                unpack_rows(&w, p, r, c + i, part, form);
                one(&to, &w, &x[i / p->block_cols], part, form);
            }
        }
    } while ((c += cols) < p->cols);
    _tile_release();
}

/* One partial sum of all rows, for some tokens. */
static void multiply_panel(const struct mp_quant_product *p, const struct form *form, size_t t,
                           size_t tokens, size_t c, size_t cols)
{
    struct tokens x[TILE_GROUPS_MAX];
    struct weights w;

    for (size_t i = 0; i < tokens; i += SIDE)
        pack(&x[i / SIDE], p->x + (t + i) * p->x_stride + c, p->x_stride,
             min_size(tokens - i, SIDE), cols, form);
    for (size_t r = 0; r < p->rows; r += SIDE) {
        unpack_rows(&w, p, r, c, cols, form);
        for (size_t i = 0; i < tokens; i += SIDE) {
            const struct target to = { .y = p->y + (t + i) * p->y_stride + r,
                                       .stride = p->y_stride,
                                       .rows = min_size(p->rows - r, SIDE),
                                       .tokens = min_size(tokens - i, SIDE),
                                       .add = p->accumulate || c > 0 };

            many(&to, &w, &x[i / SIDE], cols, form);
        }
    }
}

static void multiply_tokens(const struct mp_quant_product *p, const struct form *form)
{
    configure(form->group, SIDE);
    for (size_t t = 0; t < p->tokens; t += RUN_TOKENS) {
        size_t c = 0;

        do {
            multiply_panel(p, form, t, min_size(p->tokens - t, RUN_TOKENS), c,
                           min_size(p->cols - c, p->block_cols));
        } while ((c += p->block_cols) < p->cols);
    }
    _tile_release();
}

#define X(TYPE, name, ...)                                                                      \
    static __attribute__((noinline)) void unpack_##name(                                        \
        struct weights *to, const unsigned char *w, size_t row_bytes, size_t rows, size_t cols) \
    {                                                                                           \
        unpack(to, w, row_bytes, rows, cols, MP_WTYPE_##TYPE);                                  \
    }
MP_QUANT_MAP(X)
#undef X

static void (*const unpack_of[MP_WTYPE_COUNT])(struct weights *, const unsigned char *, size_t,
                                               size_t, size_t) = {
#define X(TYPE, name, ...) [MP_WTYPE_##TYPE] = unpack_##name,
    MP_QUANT_MAP(X)
#undef X
};

void mp_amx_multiply_quantised(const struct mp_quant_product *p, enum mp_wtype type)
{
    const struct form form = {
        .type = type, .group = group_cols(type), .mins = has_mins(type), .unpack = unpack_of[type]
    };

    if (p->tokens == 1)
        multiply_token(p, &form);
    else
        multiply_tokens(p, &form);
}
