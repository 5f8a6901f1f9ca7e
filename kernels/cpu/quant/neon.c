/*
 * Products with quantised weights on ARM, with instructions for sums of products of bytes: the
 * arithmetic of product.h, operation by operation, with its bits. Blocks of a row are read in plain
 * C, once for all tokens of a panel. Not tuned, not measured.
 */
#include <arm_neon.h>
#include <math.h>

#include "kernels/cpu/inline.h"
#include "kernels/cpu/quant/quant.h"

#define CHUNK_COLS MP_QUANT_PART_COLS
#define CHUNKS_MAX 64 /* chunks of columns times tokens */
#define RUN_TOKENS 64 /* that are rounded together */
#define TILE_TOKENS 4

/* Activations of one token, rounded; scales of each 32 or 256 columns. */
struct chunk {
    signed char q[CHUNK_COLS];
    int16_t sums[CHUNK_COLS / 16]; /* of the q of each 16 */
    float scales[CHUNK_COLS / 32];
};

/* Columns of a row that are one partial sum. */
struct row {
    signed char q[CHUNK_COLS];
    struct mp_quant_block blocks[CHUNK_COLS / 32];
};

/* What all elements have in common beside the scale, by type: nothing; m is added to all of 32;
 * 256 are stored `offset` too large; m * mins is added. */
enum extra { EXTRA_NONE, EXTRA_M, EXTRA_OFFSET, EXTRA_MINS };

INLINE int is_block_32(enum mp_wtype type)
{
    return type < MP_WTYPE_Q2_K; /* the order of the table */
}

INLINE enum extra extra_of(enum mp_wtype type)
{
    switch (type) {
    case MP_WTYPE_Q4_1:
    case MP_WTYPE_Q5_1: return EXTRA_M;
    case MP_WTYPE_Q3_K:
    case MP_WTYPE_Q6_K: return EXTRA_OFFSET;
    case MP_WTYPE_Q2_K:
    case MP_WTYPE_Q4_K:
    case MP_WTYPE_Q5_K: return EXTRA_MINS;
    default: return EXTRA_NONE;
    }
}

/* The sum of 16 products. */
INLINE int32_t dot_16(const signed char *a, const signed char *b)
{
    return vaddvq_s32(vdotq_s32(vdupq_n_s32(0), vld1q_s8(a), vld1q_s8(b)));
}

/* sum + block `b` of a row times that of a token at column c of the chunk. */
INLINE float add_block_32(float sum, const struct mp_quant_block *b, const signed char *q,
                          const struct chunk *x, size_t c, enum extra extra)
{
    const int32_t whole = dot_16(q, x->q + c) + dot_16(q + 16, x->q + c + 16);
    const float scale = x->scales[c / 32];

    sum = fmaf((float)whole, b->d * scale, sum);
    if (extra == EXTRA_M)
        sum += b->m * scale * (float)(x->sums[c / 16] + x->sums[c / 16 + 1]);
    return sum;
}

/* Sums of 16 activations times numbers of a block. */
INLINE int32_t dot_sums(const int16_t numbers[16], const int16_t sums[16])
{
    int32_t sum = 0;

    for (size_t i = 0; i < 16; i++)
        sum += numbers[i] * sums[i];
    return sum;
}

/* Of 256. */
INLINE float block_256(const struct mp_quant_block *b, const signed char *q, const struct chunk *x,
                       size_t c, enum extra extra)
{
    const float scale = x->scales[c / 256];
    int32_t whole = 0;
    float sum;

    if (extra == EXTRA_OFFSET)
        whole = -b->offset * dot_sums(b->scales, x->sums + c / 16);
    for (size_t i = 0; i < 16; i++)
        whole += dot_16(q + 16 * i, x->q + c + 16 * i) * b->scales[i];
    sum = (float)whole * (b->d * scale);
    if (extra == EXTRA_MINS)
        sum = fmaf((float)dot_sums(b->mins, x->sums + c / 16), b->m * scale, sum);
    return sum;
}

/* All 8 floats, always in the same order. */
INLINE float add_lanes(const float a[8])
{
    return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
}

/* Four blocks of 256. */
INLINE float add_units(const float a[8])
{
    return (a[0] + a[2]) + (a[1] + a[3]);
}

/* One y for each of some tokens: of `cols` columns, from column c of the chunk on. */
TILE void tile(float *y, size_t y_stride, int add, const struct row *row, const struct chunk *x,
               size_t c, size_t cols, enum mp_wtype type, int tokens)
{
    const size_t elements = is_block_32(type) ? 32 : 256;
    float sums[TILE_TOKENS][8] = { { 0 } };

    for (size_t i = 0; i < cols; i += elements) {
        const struct mp_quant_block *b = &row->blocks[i / elements];
        const size_t at = i / elements % 8;

        UNROLL
        for (int t = 0; t < tokens; t++) {
            if (is_block_32(type))
                sums[t][at] =
                    add_block_32(sums[t][at], b, row->q + i, &x[t], c + i, extra_of(type));
            else
                sums[t][at] = block_256(b, row->q + i, &x[t], c + i, extra_of(type));
        }
    }
    UNROLL
    for (int t = 0; t < tokens; t++, y += y_stride) {
        const float sum = is_block_32(type) ? add_lanes(sums[t]) : add_units(sums[t]);

        *y = add ? *y + sum : sum;
    }
}

static void round_chunk(struct chunk *to, const float *x, size_t cols, size_t block)
{
    for (size_t c = 0; c < cols; c += block)
        to->scales[c / block] = mp_quant_round(to->q + c, x + c, block, block == 32);
    for (size_t c = 0; c < cols; c += 16)
        to->sums[c / 16] = vaddlvq_s8(vld1q_s8(to->q + c));
}

/* A row and the tokens [t, t + tokens), whose activations of columns [at, at + cols) are rounded:
 * chunk i of token j is x[i * tokens + j]. */
INLINE void multiply_row(const struct mp_quant_product *p, const struct chunk *x, size_t r,
                         size_t at, size_t cols, size_t t, size_t tokens, enum mp_wtype type,
                         void (*read)(struct mp_quant_block *, signed char *,
                                      const unsigned char *))
{
    const struct mp_wtype_info *info = mp_wtype_info(type);
    const unsigned char *w = p->w + r * p->w_row_bytes + mp_wtype_bytes(type, at);
    struct row row;

    for (size_t c = 0; c == 0 || c < cols; c += p->block_cols) { /* no columns: zero */
        const struct chunk *of = x + c / CHUNK_COLS * tokens;
        const size_t part = min_size(cols - c, p->block_cols), from = c % CHUNK_COLS;
        const int add = p->accumulate || at + c > 0;
        float *y = p->y + t * p->y_stride + r;
        size_t i = 0;

        for (; i < part; i += info->block_elements, w += info->block_bytes)
            read(&row.blocks[i / info->block_elements], row.q + i, w);
        for (i = 0; i + TILE_TOKENS <= tokens; i += TILE_TOKENS)
            tile(y + i * p->y_stride, p->y_stride, add, &row, of + i, from, part, type,
                 TILE_TOKENS);
        for (; i < tokens; i++)
            tile(y + i * p->y_stride, p->y_stride, add, &row, of + i, from, part, type, 1);
    }
}

/* One panel after the other: as many columns as there is room for the tokens' activations. */
INLINE void multiply(const struct mp_quant_product *p, enum mp_wtype type,
                     void (*read)(struct mp_quant_block *, signed char *, const unsigned char *))
{
    struct chunk x[CHUNKS_MAX];

    for (size_t t = 0, tokens; t < p->tokens; t += tokens) {
        size_t c = 0, cols;

        tokens = min_size(p->tokens - t, RUN_TOKENS);
        do {
            cols = min_size(p->cols - c, CHUNKS_MAX / tokens * CHUNK_COLS);
            for (size_t i = 0; i < cols; i += CHUNK_COLS) {
                for (size_t j = 0; j < tokens; j++)
                    round_chunk(&x[i / CHUNK_COLS * tokens + j],
                                p->x + (t + j) * p->x_stride + c + i,
                                min_size(cols - i, CHUNK_COLS), is_block_32(type) ? 32 : 256);
            }
            for (size_t r = 0; r < p->rows; r++)
                multiply_row(p, x, r, c, cols, t, tokens, type, read);
        } while ((c += cols) < p->cols);
    }
}

#define X(TYPE, name, ...)                                        \
    static void multiply_##name(const struct mp_quant_product *p) \
    {                                                             \
        multiply(p, MP_WTYPE_##TYPE, mp_quant_read_##name);       \
    }
MP_QUANT_MAP(X)
#undef X

#define X(TYPE, name, ...) .multiply[MP_WTYPE_##TYPE] = multiply_##name,
const struct mp_quant mp_quant_dotprod = { .name = "dotprod", .kernels = "neon", MP_QUANT_MAP(X) };
#undef X
