/*
 * Products with quantised weights, once, for the file of a variant, which includes this at its end
 * (there is no other use and hence no guard). It defines VARIANT (the table to define),
 * VARIANT_NAME, VARIANT_KERNELS, V_WIDE, and three operations: v_dot(), sums of 4 products of
 * bytes, v_add_pairs(), pairs times their scales, and v_or_masked(). Where V_LANES is 1, many
 * tokens have a way of their own (lanes.h).
 *
 * Exactness. A product is a sum of partial sums of columns, in order. Of a block of weights all
 * products with activations, times their scales, are one whole number, whatever the order; as a
 * float it is multiplied with the scale of the block and that of the activations. A partial sum has
 * 8 such floats side by side, to which blocks of 32 are added in turns, or 4, one for each block of
 * 256; add_lanes() and add_units() add them up. So tiles may be cut anywhere, and all variants give
 * the same bits.
 */
#define CHUNK_COLS MP_QUANT_PART_COLS
#define RUN_TOKENS 64 /* that are rounded together */
#define CHUNKS_MAX 64 /* chunks of columns times tokens */
#define TILE_ROWS_MAX 4
#define TOKENS_MAX 4 /* of a tile */
#define UNITS_MAX (CHUNK_COLS / 256)
#define TILE_SUMS_MAX 8
#define FEW 4        /* tokens: the rows of a tile stand far apart */
#define MANY_32 3    /* tokens from which on rows are lanes (lanes.h), of blocks of 32 */
#define MANY_K 5     /* and of 256 */
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

/* Tiles, one after the other: sums of products of some rows and tokens that are added to y, in
 * parts of block_cols columns. Columns of the rows that come next, `ahead` bytes on, are fetched:
 * hardware does not see through the short rows of experts. */
struct tiles {
    const unsigned char *w;
    const struct chunk *x; /* of the tokens, one after the other */
    float *y;
    size_t count, w_next_bytes, y_next; /* from tile to tile */
    size_t w_apart_bytes, y_apart;      /* from row to row of a tile */
    size_t x_apart;                     /* from chunk to chunk of a token */
    size_t ahead, cols, block_cols, y_stride;
    int add; /* 0: y is set */
};

/* Into the cache of that level. A prefetch cannot fault, so it may run over the end. */
TILE void fetch(int level, const unsigned char *w, size_t apart_bytes, size_t ahead, size_t bytes,
                int rows)
{
    UNROLL
    for (int r = 0; r < rows; r++) {
        const uintptr_t at = (uintptr_t)w + (size_t)r * apart_bytes + ahead;

        UNROLL
        for (size_t b = 0; b < bytes; b += 64) {
            if (level == 1)
                _mm_prefetch((const void *)(at + b), _MM_HINT_T0);
            else
                _mm_prefetch((const void *)(at + b), _MM_HINT_T1);
        }
    }
}

#include "kernels/cpu/quant/tile_32.h"
#include "kernels/cpu/quant/tile_k.h"

TILE void tiles(const struct tiles *p, enum mp_wtype type, int rows, int tokens)
{
    const unsigned char *first = p->w;
    float *y = p->y;

    for (size_t n = 0; n < p->count; n++, first += p->w_next_bytes, y += p->y_next) {
        const unsigned char *w = first;

        for (size_t c = 0; c == 0 || c < p->cols; c += p->block_cols) { /* no columns: zero */
            const struct chunk *x = p->x + c / CHUNK_COLS * p->x_apart;
            const size_t cols = min_size(p->cols - c, p->block_cols);
            _Alignas(32) float sums[TILE_SUMS_MAX];

            if (is_block_32(type))
                part_32(sums, p, w, x, c % CHUNK_COLS, cols, type, rows, tokens);
            else
                part_k(sums, p, w, x, c % CHUNK_COLS, cols, type, rows, tokens);
            w += cols / block_elements(type) * block_bytes_of(type);
            UNROLL
            for (int i = 0; i < rows * tokens; i++) {
                float *to =
                    y + (size_t)(i % tokens) * p->y_stride + (size_t)(i / tokens) * p->y_apart;

                *to = p->add || c > 0 ? *to + sums[i] : sums[i];
            }
        }
    }
}

/* Functions of their own, so that each has all registers for its loop. */
#define TILES(TYPE, name, rows, tokens)                                                           \
    static __attribute__((noinline)) void tiles_##name##_##rows##_##tokens(const struct tiles *p) \
    {                                                                                             \
        tiles(p, MP_WTYPE_##TYPE, rows, tokens);                                                  \
    }
#define X(TYPE, name, ...)  \
    TILES(TYPE, name, 1, 1) \
    TILES(TYPE, name, 1, 2) \
    TILES(TYPE, name, 1, 4) \
    TILES(TYPE, name, 2, 1) \
    TILES(TYPE, name, 2, 2) \
    TILES(TYPE, name, 2, 4) \
    TILES(TYPE, name, 4, 1)
MP_QUANT_MAP(X)
#undef X

#if V_LANES
#include "kernels/cpu/quant/lanes.h"
#define LANES_OF(name) &lanes_of_##name
#else
#define LANES_OF(name) NULL
#endif

struct parts {
    enum mp_wtype type;
    void (*one)(const struct tiles *p);      /* 4 rows, 1 token */
    void (*of[2][3])(const struct tiles *p); /* 1 or 2 rows; 1, 2 or 4 tokens */
    const struct lanes_of *lanes;            /* many tokens; or NULL */
};

/* ---- order */

/* Rows [r, r + rows * count) for tokens [t, t + tokens) of the panel: `count` tiles, whose rows
 * stand far apart or side by side. */
static void multiply_tiles(const struct mp_quant_product *p, const struct panel *q,
                           const struct parts *parts, size_t r, size_t count, int far, size_t t,
                           int rows, int tokens)
{
    const size_t apart = far ? count : 1, next = far ? 1 : (size_t)rows;
    const struct tiles tiles = {
        .w = p->w + r * p->w_row_bytes +
             q->c / block_elements(parts->type) * block_bytes_of(parts->type),
        .x = q->x + t,
        .y = p->y + (q->t + t) * p->y_stride + r,
        .count = count,
        .w_next_bytes = next * p->w_row_bytes,
        .y_next = next,
        .w_apart_bytes = apart * p->w_row_bytes,
        .y_apart = apart,
        .x_apart = q->tokens,
        .ahead = far ? STREAM_AHEAD : (size_t)rows * p->w_row_bytes,
        .cols = q->cols,
        .block_cols = p->block_cols,
        .y_stride = p->y_stride,
        .add = p->accumulate || q->c > 0,
    };

    if (rows == 4)
        parts->one(&tiles);
    else
        parts->of[rows - 1][tokens / 2](&tiles);
}

/* Rows [r, r + rows), two at a time. */
static void multiply_pairs(const struct mp_quant_product *p, const struct panel *q,
                           const struct parts *parts, size_t r, size_t rows, size_t t, int tokens)
{
    const int far = q->tokens <= FEW;

    multiply_tiles(p, q, parts, r, rows / 2, far, t, 2, tokens);
    multiply_tiles(p, q, parts, r + rows / 2 * 2, rows % 2, far, t, 1, tokens);
}

/*
 * All rows for one panel. With few tokens the rows of a tile stand far apart, so that weights are
 * read as that many streams from end to end, which is the fastest way to read memory, also where
 * rows are short: of one token all rows, of more a block whose weights stay in the second level
 * cache for the next tokens. With more than FEW the activations of four stay in the first level
 * cache.
 */
static void multiply_panel(const struct mp_quant_product *p, const struct panel *q,
                           const struct parts *parts)
{
#if V_LANES
    if (q->tokens >= (is_block_32(parts->type) ? MANY_32 : MANY_K)) {
        lanes_panel(p, q, parts->lanes, parts->type);
        return;
    }
#endif
    if (q->tokens == 1) {
        multiply_tiles(p, q, parts, 0, p->rows / 4, 1, 0, 4, 1);
        multiply_pairs(p, q, parts, p->rows / 4 * 4, p->rows % 4, 0, 1);
        return;
    }
    for (size_t r = 0, rows; r < p->rows; r += rows) {
        size_t t = 0;

        rows = min_size(p->rows - r, ROW_BLOCK);
        for (; t + 4 <= q->tokens; t += 4)
            multiply_pairs(p, q, parts, r, rows, t, 4);
        for (; t + 2 <= q->tokens; t += 2)
            multiply_pairs(p, q, parts, r, rows, t, 2);
        if (t < q->tokens)
            multiply_pairs(p, q, parts, r, rows, t, 1);
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
        if (q.tokens == 1) /* comes while activations are rounded */
            fetch(1, p->w, p->rows / 4 * p->w_row_bytes, 0, STREAM_AHEAD, 4);
        do {
            q.cols = min_size(p->cols - q.c, CHUNKS_MAX / q.tokens * CHUNK_COLS);
            for (size_t i = 0; i < q.cols; i += CHUNK_COLS) {
                for (size_t t = 0; t < q.tokens; t++)
                    round_chunk(
                        &x[i / CHUNK_COLS * q.tokens + t], p->x + (q.t + t) * p->x_stride + q.c + i,
                        q.tokens == 1 ? CHUNK_COLS : p->x_stride, min_size(q.cols - i, CHUNK_COLS),
                        parts->type, t < q.tokens / TOKENS_MAX * TOKENS_MAX ? TOKENS_MAX : 1);
            }
            multiply_panel(p, &q, parts);
        } while ((q.c += q.cols) < p->cols);
    }
}

#define X(TYPE, name, ...)                                                      \
    static void multiply_##name(const struct mp_quant_product *p)               \
    {                                                                           \
        static const struct parts parts = {                                     \
            MP_WTYPE_##TYPE,                                                    \
            tiles_##name##_4_1,                                                 \
            { { tiles_##name##_1_1, tiles_##name##_1_2, tiles_##name##_1_4 },   \
              { tiles_##name##_2_1, tiles_##name##_2_2, tiles_##name##_2_4 } }, \
            LANES_OF(name),                                                     \
        };                                                                      \
                                                                                \
        multiply(p, &parts);                                                    \
    }
MP_QUANT_MAP(X)
#undef X

#define X(TYPE, name, ...) .multiply[MP_WTYPE_##TYPE] = multiply_##name,
const struct mp_quant VARIANT = { .name = VARIANT_NAME,
                                  .kernels = VARIANT_KERNELS,
                                  MP_QUANT_MAP(X) };
#undef X
