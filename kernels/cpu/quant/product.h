/*
 * Products with quantised weights, once, for the file of a variant, which includes this at its end
 * (there is no other use and hence no guard). It defines VARIANT (the table to define),
 * VARIANT_NAME, VARIANT_KERNELS, V_WIDE, and three operations: v_dot(), sums of 4 products of
 * bytes, v_add_scaled(), such sums times their scales, and v_or_masked(). With V_TILE_8 tiles of
 * eight tokens are wider than 32 bytes, where it is 1.
 *
 * Exactness. A product is a sum of partial sums of columns, in order. A partial sum is one vector
 * of 8 floats, to which each block of weights adds 8 whole numbers, times its scale and that of the
 * activations; number i is the sum over columns 4i to 4i + 3 of each 32. So tiles may be cut
 * anywhere, and all variants give the same bits.
 */
#define CHUNK_COLS MP_QUANT_PART_COLS
#define RUN_TOKENS 64 /* that are rounded together */
#define CHUNKS_MAX 64 /* chunks of columns times tokens */
#define TILE_ROWS_MAX 4
#define TOKENS_MAX 4 /* of a tile */
#define UNITS_MAX (CHUNK_COLS / 256)
#define TILE_SUMS_MAX 8
#define FEW 4        /* tokens */
#define ROW_BLOCK 96 /* rows whose columns stay in the second level cache */

/* How far ahead of the weights in use, in bytes of its row, the stream of a row is fetched. */
#define STREAM_AHEAD 512

#include "kernels/cpu/quant/blocks.h"

/* Those of tokens [t, t + tokens) and columns [c, c + cols): chunk i of token j is
 * x[i * tokens + j]. */
struct panel {
    struct chunk *x;
    size_t t, tokens, c, cols;
};

/* ---- tiles */

/* Sums of products that are added to y: of columns [c, c + cols) of a chunk for some rows and
 * tokens. Columns of the rows that come next, `ahead` bytes on, are fetched: hardware does not see
 * through the short rows of experts. */
struct part {
    const unsigned char *w;
    const struct chunk *x; /* of the tokens, one after the other */
    float *y;
    size_t w_apart_bytes, y_apart; /* from row to row */
    size_t ahead, c, cols, y_stride;
    int add; /* 0: y is set */
};

/* A prefetch cannot fault, so it may run over the end. */
TILE void fetch(const unsigned char *w, size_t apart_bytes, size_t ahead, size_t bytes, int rows)
{
    UNROLL
    for (int r = 0; r < rows; r++) {
        const uintptr_t at = (uintptr_t)w + (size_t)r * apart_bytes + ahead;

        UNROLL
        for (size_t b = 0; b < bytes; b += 64)
            _mm_prefetch((const void *)(at + b), _MM_HINT_T0);
    }
}

#include "kernels/cpu/quant/tile_32.h"
#include "kernels/cpu/quant/tile_k.h"

TILE void part(const struct part *p, enum mp_wtype type, int rows, int tokens)
{
    _Alignas(32) float sums[TILE_SUMS_MAX];
    __m256 acc[TILE_SUMS_MAX];

    UNROLL
    for (int i = 0; i < rows * tokens; i++)
        acc[i] = _mm256_setzero_ps();
    if (is_block_32(type))
        add_part_32(acc, p, type, rows, tokens);
    else
        add_part_k(acc, p, type, rows, tokens);
    if (rows * tokens == 8) {
        _mm256_store_ps(sums, fold_8(acc, FOLD_FLOATS));
    } else {
        UNROLL
        for (int i = 0; i < rows * tokens; i++)
            sums[i] = add_lanes(acc[i]);
    }
    UNROLL
    for (int i = 0; i < rows * tokens; i++) {
        float *to = p->y + (size_t)(i % tokens) * p->y_stride + (size_t)(i / tokens) * p->y_apart;

        *to = p->add ? *to + sums[i] : sums[i];
    }
}

/* Functions of their own, so that each has all registers for its loop. */
#define PART(TYPE, name, rows, tokens)                                                          \
    static __attribute__((noinline)) void part_##name##_##rows##_##tokens(const struct part *p) \
    {                                                                                           \
        part(p, MP_WTYPE_##TYPE, rows, tokens);                                                 \
    }
#define X(TYPE, name, ...) \
    PART(TYPE, name, 1, 1) \
    PART(TYPE, name, 1, 2) \
    PART(TYPE, name, 1, 4) \
    PART(TYPE, name, 2, 1) \
    PART(TYPE, name, 2, 2) \
    PART(TYPE, name, 2, 4) \
    PART(TYPE, name, 4, 1)
MP_QUANT_MAP(X)
#undef X

#if V_TILE_8
#include "kernels/cpu/quant/tile_8.h"
#define PART_2_8(name) part_##name##_2_8
#else
#define PART_2_8(name) NULL
#endif

struct parts {
    enum mp_wtype type;
    void (*one)(const struct part *part);      /* 4 rows, 1 token */
    void (*of[2][3])(const struct part *part); /* 1 or 2 rows; 1, 2 or 4 tokens */
    void (*eight)(const struct part *part);    /* 2 rows, 8 tokens; or NULL */
};

/* ---- order */

/* All columns of the panel for rows r, r + apart, .. and the tile at token t of the panel. */
static void tile(const struct mp_quant_product *p, const struct panel *q, const struct parts *parts,
                 size_t r, size_t apart, size_t t, int rows, int tokens)
{
    struct part part = {
        .y = p->y + (q->t + t) * p->y_stride + r,
        .w_apart_bytes = apart * p->w_row_bytes,
        .y_apart = apart,
        .ahead = q->tokens > FEW ? (size_t)rows * p->w_row_bytes : STREAM_AHEAD,
        .y_stride = p->y_stride,
    };

    for (size_t c = 0; c == 0 || c < q->cols; c += p->block_cols) { /* no columns: zero */
        part.w = p->w + r * p->w_row_bytes +
                 (q->c + c) / block_elements(parts->type) * block_bytes_of(parts->type);
        part.x = q->x + c / CHUNK_COLS * q->tokens + t;
        part.c = c % CHUNK_COLS;
        part.cols = min_size(q->cols - c, p->block_cols);
        part.add = p->accumulate || q->c + c > 0;
        if (rows == 4)
            parts->one(&part);
        else if (tokens == 8)
            parts->eight(&part);
        else
            parts->of[rows - 1][tokens / 2](&part);
    }
}

/* Rows [r, r + rows) for tokens [t, t + tokens) of the panel, in two streams. Of one row no tile
 * has eight tokens. */
static void tile_pairs(const struct mp_quant_product *p, const struct panel *q,
                       const struct parts *parts, size_t r, size_t rows, size_t t, int tokens)
{
    const int far = q->tokens <= FEW;
    const size_t each = rows / 2;

    for (size_t i = 0; i < each; i++)
        tile(p, q, parts, far ? r + i : r + 2 * i, far ? each : 1, t, 2, tokens);
    for (int i = 0; rows % 2 != 0 && i < tokens; i += 4)
        tile(p, q, parts, r + rows - 1, 1, t + (size_t)i, 1, tokens < 4 ? tokens : 4);
}

/*
 * All rows for one panel, in blocks. With many tokens the activations of four stay in the first
 * level cache, and the block's weights in the second. With few, the rows of a tile stand far apart,
 * so that a block is read as that many streams from end to end, which is the fastest way to read
 * memory, also where rows are short.
 */
static void multiply_panel(const struct mp_quant_product *p, const struct panel *q,
                           const struct parts *parts)
{
    for (size_t r = 0, rows; r < p->rows; r += rows) {
        size_t i = 0, t = 0;

        rows = min_size(p->rows - r, ROW_BLOCK);
        for (; q->tokens == 1 && i < rows / 4; i++)
            tile(p, q, parts, r + i, rows / 4, 0, 4, 1);
        i *= 4;
        for (; parts->eight != NULL && t + 8 <= q->tokens; t += 8)
            tile_pairs(p, q, parts, r, rows, t, 8);
        for (; t + 4 <= q->tokens; t += 4)
            tile_pairs(p, q, parts, r, rows, t, 4);
        for (; t + 2 <= q->tokens; t += 2)
            tile_pairs(p, q, parts, r, rows, t, 2);
        if (t < q->tokens)
            tile_pairs(p, q, parts, r + i, rows - i, t, 1);
    }
}

/* One panel after the other: as many columns as there is room for the tokens' activations. */
static void multiply(const struct mp_quant_product *p, const struct parts *parts)
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
                                q.tokens == 1 ? CHUNK_COLS : p->x_stride,
                                min_size(q.cols - i, CHUNK_COLS), parts->type);
            }
            multiply_panel(p, &q, parts);
        } while ((q.c += q.cols) < p->cols);
    }
}

#define X(TYPE, name, ...)                                                   \
    static void multiply_##name(const struct mp_quant_product *p)            \
    {                                                                        \
        static const struct parts parts = {                                  \
            MP_WTYPE_##TYPE,                                                 \
            part_##name##_4_1,                                               \
            { { part_##name##_1_1, part_##name##_1_2, part_##name##_1_4 },   \
              { part_##name##_2_1, part_##name##_2_2, part_##name##_2_4 } }, \
            PART_2_8(name),                                                  \
        };                                                                   \
                                                                             \
        multiply(p, &parts);                                                 \
    }
MP_QUANT_MAP(X)
#undef X

#define X(TYPE, name, ...) .multiply[MP_WTYPE_##TYPE] = multiply_##name,
const struct mp_quant VARIANT = { .name = VARIANT_NAME,
                                  .kernels = VARIANT_KERNELS,
                                  MP_QUANT_MAP(X) };
#undef X
