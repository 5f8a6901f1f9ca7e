/*
 * Products with quantised weights on ARM, with instructions for sums of products of bytes: the
 * arithmetic of product.h, operation by operation, with its bits. Blocks of a row are read in plain
 * C, once for all tokens of a panel. Not tuned, not measured.
 *
 * There is no second variant with the matrix instructions (I8MM): they add products of 8 columns,
 * and a partial sum has 4.
 */
#include <arm_neon.h>

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

/* 4 sums of 4 products each. */
INLINE int32x4_t dot_16(const signed char *a, const signed char *b)
{
    return vdotq_s32(vdupq_n_s32(0), vld1q_s8(a), vld1q_s8(b));
}

/* sum + whole * scale, rounded once */
INLINE void add_scaled(float32x4_t sum[2], const int32x4_t whole[2], float scale)
{
    UNROLL
    for (int i = 0; i < 2; i++)
        sum[i] = vfmaq_n_f32(sum[i], vcvtq_f32_s32(whole[i]), scale);
}

/* A block of 32 times that of a token at column c of the chunk. */
INLINE void add_block_32(float32x4_t sum[2], const struct mp_quant_block *b, const signed char *q,
                         const struct chunk *x, size_t c, enum extra extra)
{
    const int32x4_t whole[2] = { dot_16(q, x->q + c), dot_16(q + 16, x->q + c + 16) };
    const float scale = x->scales[c / 32];

    add_scaled(sum, whole, b->d * scale);
    if (extra == EXTRA_M) {
        const float all = (float)(x->sums[c / 16] + x->sums[c / 16 + 1]);
        const float32x4_t zero = vdupq_n_f32(0);

        sum[0] = vaddq_f32(sum[0], vsetq_lane_f32(b->m * scale * all, zero, 0));
        sum[1] = vaddq_f32(sum[1], zero);
    }
}

/* Sums of 16 activations times numbers of a block: groups 4i and 4i + 2 make number i of the first
 * vector, those behind them number i of the second. */
INLINE void dot_sums(int32x4_t whole[2], const int16_t numbers[16], const int16_t sums[16])
{
    const int16x4x4_t a = vld4_s16(numbers), b = vld4_s16(sums);

    whole[0] = vmlal_s16(vmull_s16(a.val[0], b.val[0]), a.val[2], b.val[2]);
    whole[1] = vmlal_s16(vmull_s16(a.val[1], b.val[1]), a.val[3], b.val[3]);
}

/* The same of 256. */
INLINE void add_block_256(float32x4_t sum[2], const struct mp_quant_block *b, const signed char *q,
                          const struct chunk *x, size_t c, enum extra extra)
{
    int32x4_t whole[2] = { vdupq_n_s32(0), vdupq_n_s32(0) };
    const float scale = x->scales[c / 256];

    if (extra == EXTRA_OFFSET) {
        dot_sums(whole, b->scales, x->sums + c / 16);
        whole[0] = vmulq_n_s32(whole[0], -b->offset);
        whole[1] = vmulq_n_s32(whole[1], -b->offset);
    }
    for (size_t i = 0; i < 16; i++)
        whole[i % 2] =
            vmlaq_n_s32(whole[i % 2], dot_16(q + 16 * i, x->q + c + 16 * i), b->scales[i]);
    add_scaled(sum, whole, b->d * scale);
    if (extra == EXTRA_MINS) {
        dot_sums(whole, b->mins, x->sums + c / 16);
        add_scaled(sum, whole, b->m * scale);
    }
}

/* All 8 floats, always in the same order. */
INLINE float add_lanes(const float32x4_t sum[2])
{
    const float32x4_t four = vaddq_f32(sum[0], sum[1]);
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));

    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

/* One y for each of some tokens: of `cols` columns, from column c of the chunk on. */
TILE void tile(float *y, size_t y_stride, int add, const struct row *row, const struct chunk *x,
               size_t c, size_t cols, enum mp_wtype type, int tokens)
{
    const size_t elements = is_block_32(type) ? 32 : 256;
    float32x4_t sums[TILE_TOKENS][2];

    UNROLL
    for (int t = 0; t < tokens; t++)
        sums[t][0] = sums[t][1] = vdupq_n_f32(0);
    for (size_t i = 0; i < cols; i += elements) {
        const struct mp_quant_block *b = &row->blocks[i / elements];

        UNROLL
        for (int t = 0; t < tokens; t++) {
            if (is_block_32(type))
                add_block_32(sums[t], b, row->q + i, &x[t], c + i, extra_of(type));
            else
                add_block_256(sums[t], b, row->q + i, &x[t], c + i, extra_of(type));
        }
    }
    UNROLL
    for (int t = 0; t < tokens; t++, y += y_stride)
        *y = add ? *y + add_lanes(sums[t]) : add_lanes(sums[t]);
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
