/*
 * BF16 weights by tiles: up to 32 rows by 32 tokens at a time in four tiles of sums, which stay in
 * registers through all columns of a partial sum. Weights are read where they are, activations are
 * rounded and packed first.
 */
#include "kernels/cpu/amx/amx.h"
#include "kernels/cpu/amx/tiles.h"

#define STEP_COLS 32 /* of one instruction */
#define STEP_PAIRS 16
#define STEP_BYTES 64
#define STEPS_MAX (MP_QUANT_PART_COLS / STEP_COLS) /* of a partial sum */
#define GROUPS_MAX (RUN_TOKENS / SIDE)
#define STREAM_AHEAD 512 /* bytes of a row that are fetched before they are used */
#define FEW 4            /* tokens */

typedef uint32_t step[STEP_PAIRS][SIDE]; /* pairs of columns by tokens */

/* The packed activations of one partial sum: step i of group g of 16 tokens. */
struct panel {
    _Alignas(64) step x[GROUPS_MAX][STEPS_MAX];
    size_t t, tokens, c, cols;
};

/* Rows [r, r + rows) of the product, 32 at most, by tokens of groups g and, if there are two, g +
 * 1, of the panel. */
struct block {
    const unsigned char *w;
    size_t rows, tokens, ahead, row_bytes;
    const step *x[2];
};

/* 32 columns of a token, as pairs of BF16; those from `cols` on are zero. */
static __m512i round_step(const float *x, size_t cols)
{
    const size_t second = cols > SIDE ? cols - SIDE : 0;
    const __m512 a = _mm512_maskz_loadu_ps(first_of(min_size(cols, SIDE)), x);
    const __m512 b = _mm512_maskz_loadu_ps(first_of(min_size(second, SIDE)), x + SIDE);

    return (__m512i)_mm512_cvtne2ps_pbh(b, a);
}

static void pack(const struct mp_quant_product *p, struct panel *q)
{
    for (size_t g = 0; g * SIDE < q->tokens; g++) {
        const float *x = p->x + (q->t + g * SIDE) * p->x_stride + q->c;
        const size_t tokens = min_size(q->tokens - g * SIDE, SIDE);

        for (size_t s = 0; s * STEP_COLS < q->cols; s++) {
            __m512i a[SIDE];

            for (size_t t = 0; t < SIDE; t++)
                a[t] = t < tokens ? round_step(x + t * p->x_stride + s * STEP_COLS,
                                               min_size(q->cols - s * STEP_COLS, STEP_COLS))
                                  : _mm512_setzero_si512();
            transpose(a);
            for (int i = 0; i < SIDE; i++)
                _mm512_store_si512(q->x[g][s][i], a[i]);
        }
    }
}

/* Tiles 0 to 3: sums of the first rows by both groups, of the second rows; 4 and 5: weights; 6 and
 * 7: activations. Of fewer than 32 rows only the first are there, or the second are not whole. */
static void configure(size_t rows)
{
    struct tile_config config = { .palette = 1 };
    const size_t first = min_size(rows, SIDE), second = rows > SIDE ? rows - SIDE : SIDE;

    configure_tile(&config, 0, first, STEP_BYTES);
    configure_tile(&config, 1, first, STEP_BYTES);
    configure_tile(&config, 2, second, STEP_BYTES);
    configure_tile(&config, 3, second, STEP_BYTES);
    configure_tile(&config, 4, first, STEP_BYTES);
    configure_tile(&config, 5, second, STEP_BYTES);
    configure_tile(&config, 6, STEP_PAIRS, STEP_BYTES);
    configure_tile(&config, 7, STEP_PAIRS, STEP_BYTES);
    load_config(&config);
}

/* Adds 32 columns. `second`: are there rows 16 to 31? */
INLINE void add_step(const unsigned char *w, size_t row_bytes, const struct block *b, size_t s,
                     int second)
{
    _tile_loadd(4, w, row_bytes);
    if (second)
        _tile_loadd(5, w + SIDE * row_bytes, row_bytes);
    _tile_loadd(6, b->x[0][s], STEP_BYTES);
    _tile_dpbf16ps(0, 4, 6);
    if (second)
        _tile_dpbf16ps(2, 5, 6);
    if (b->tokens <= SIDE)
        return;
    _tile_loadd(7, b->x[1][s], STEP_BYTES);
    _tile_dpbf16ps(1, 4, 7);
    if (second)
        _tile_dpbf16ps(3, 5, 7);
}

INLINE void add_steps(const struct block *b, size_t cols, int second)
{
    size_t s = 0;

    for (; (s + 1) * STEP_COLS <= cols; s++) {
        const unsigned char *w = b->w + s * STEP_BYTES;

        for (size_t r = 0; b->ahead != 0 && r < b->rows; r++) {
            const uintptr_t next = (uintptr_t)w + r * b->row_bytes + b->ahead;

            _mm_prefetch((const void *)next, _MM_HINT_T0); /* cannot fault */
        }
        add_step(w, b->row_bytes, b, s, second);
    }
    if (s * STEP_COLS < cols) { /* the last few columns, the others zero */
        _Alignas(64) unsigned char last[2 * SIDE][STEP_BYTES] = { { 0 } };

        for (size_t r = 0; r < b->rows; r++)
            memcpy(last[r], b->w + r * b->row_bytes + s * STEP_BYTES, (cols - s * STEP_COLS) * 2);
        write_out(last);
        add_step(last[0], STEP_BYTES, b, s, second);
    }
}

static void add_tile(const float sums[SIDE][SIDE], float *y, size_t y_stride, size_t rows,
                     size_t tokens, int add)
{
    __m512 a[SIDE];

    for (int i = 0; i < SIDE; i++)
        a[i] = _mm512_load_ps(sums[i]);
    add_sums(y, y_stride, a, rows, tokens, add);
}

/* One partial sum of some rows and tokens. */
static void multiply_block(const struct mp_quant_product *p, const struct panel *q, size_t r,
                           size_t rows, size_t g)
{
    _Alignas(64) float sums[4][SIDE][SIDE];
    const struct block b = {
        .w = p->w + r * p->w_row_bytes + q->c * 2,
        .rows = rows,
        .tokens = min_size(q->tokens - g * SIDE, (size_t)2 * SIDE),
        .ahead = q->tokens <= FEW ? STREAM_AHEAD : 0,
        .row_bytes = p->w_row_bytes,
        .x = { q->x[g], q->x[g + 1 < GROUPS_MAX ? g + 1 : g] },
    };
    const int add = p->accumulate || q->c > 0;
    float *y = p->y + (q->t + g * SIDE) * p->y_stride + r;

    write_out(q);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    if (rows > SIDE)
        add_steps(&b, q->cols, 1);
    else
        add_steps(&b, q->cols, 0);
    _tile_stored(0, sums[0], STEP_BYTES);
    _tile_stored(1, sums[1], STEP_BYTES);
    _tile_stored(2, sums[2], STEP_BYTES);
    _tile_stored(3, sums[3], STEP_BYTES);
    for (size_t i = 0; i < 2 && i * SIDE < rows; i++) {
        for (size_t j = 0; j < 2 && j * SIDE < b.tokens; j++)
            add_tile(sums[2 * i + j], y + j * SIDE * p->y_stride + i * SIDE, p->y_stride,
                     min_size(rows - i * SIDE, SIDE), min_size(b.tokens - j * SIDE, SIDE), add);
    }
}

static void multiply_panel(const struct mp_quant_product *p, const struct panel *q)
{
    size_t configured = 2 * SIDE;

    configure(configured);
    for (size_t r = 0, rows; r < p->rows; r += rows) {
        rows = min_size(p->rows - r, (size_t)2 * SIDE);
        if (rows != configured)
            configure(configured = rows);
        for (size_t g = 0; g * SIDE < q->tokens; g += 2)
            multiply_block(p, q, r, rows, g);
    }
}

void mp_amx_multiply_bf16(const struct mp_quant_product *p)
{
    struct panel q;

    for (q.t = 0; q.t < p->tokens; q.t += q.tokens) {
        q.tokens = min_size(p->tokens - q.t, RUN_TOKENS);
        q.c = 0;
        do { /* no columns: zero */
            q.cols = min_size(p->cols - q.c, p->block_cols);
            pack(p, &q);
            multiply_panel(p, &q);
        } while ((q.c += q.cols) < p->cols);
    }
    _tile_release();
}
