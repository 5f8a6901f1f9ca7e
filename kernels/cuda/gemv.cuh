/*
 * Products with 1 to 8 tokens: each weight is read once. The activations may be those of a norm, by
 * which they are multiplied as they are read; then the bits are those of a norm and a product one
 * by one.
 */
#ifndef MP_GEMV_CUH
#define MP_GEMV_CUH

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/dot.cuh"
#include "kernels/cuda/rows.cuh"

struct mp_gemv {
    struct mp_cuda_matmul m;
    const MP_GLOBAL float *norm; /* 0: activations as they are */
    const float *scale;          /* of each token's norm, mp_norm_scale() */
};

MP_DEVICE const MP_GLOBAL char *mp_matmul_w(const struct mp_cuda_matmul *p, const int type,
                                            uint32_t row)
{
    return (const MP_GLOBAL char *)p->w + mp_bytes_of(type, (uint64_t)row * p->w_stride);
}

MP_DEVICE const MP_GLOBAL float *mp_matmul_x(const struct mp_cuda_matmul *p, uint32_t token)
{
    return (const MP_GLOBAL float *)p->x + (uint64_t)token * p->x_stride;
}

MP_DEVICE void mp_matmul_store(const struct mp_cuda_matmul *p, uint32_t row, uint32_t token,
                               float y)
{
    MP_GLOBAL float *to = (MP_GLOBAL float *)p->y + (uint64_t)token * p->y_stride + row;

    if (p->bias != 0)
        y = y + ((const MP_GLOBAL float *)p->bias)[row];
    *to = p->accumulate ? *to + y : y;
}

MP_DEVICE int mp_matmul_is_fast(const struct mp_cuda_matmul *p, const int type)
{
    return mp_tile_is_fast(type, p->w, mp_bytes_of(type, p->w_stride), p->x, p->x_stride, p->cols);
}

/* What is left of a row for this warp: all parts of its columns, or one of them. */
struct mp_gemv_cut {
    uint32_t row, first, end;
    int split;
};

MP_DEVICE struct mp_gemv_cut mp_gemv_cut_of(const struct mp_gemv *g, uint32_t block)
{
    const uint32_t row = block * MP_GEMV_BLOCK_ROWS(g->m.rows, g->m.cols);
    const uint32_t part = MP_DOT_PART_COLS(g->m.cols);
    const int split = MP_GEMV_IS_SPLIT(g->m.rows, g->m.cols);
    const struct mp_gemv_cut cut = {
        split ? row : row + mp_warp() * MP_TILE_ROWS,
        split ? mp_min(mp_warp() * part, g->m.cols) : 0,
        split ? mp_min((mp_warp() + 1) * part, g->m.cols) : g->m.cols,
        split,
    };

    return cut;
}

/* Rows `add` to add + rows of those of the warp with tokens [first, first + tokens): stored, or a
 * part of them put into shared memory. again: another call has the same rows. */
MP_DEVICE void mp_gemv_tile(const struct mp_gemv *g, const int type, const int normed,
                            const int rows, const int tokens, const int again, uint32_t block,
                            uint32_t add, uint32_t first)
{
    const uint32_t lanes = MP_LANES / (uint32_t)(rows * tokens);
    struct mp_gemv_cut cut = mp_gemv_cut_of(g, mp_here(block));
    const uint32_t row = cut.row + add;
    uint32_t index, r, t; /* of the dot product that this lane gets */
    struct mp_tile tile;
    float y;

    MP_UNROLL
    for (int i = 0; i < rows; i++)
        tile.w_at[i] = (uint32_t)mp_bytes_of(type, mp_min((uint32_t)i, g->m.rows - 1 - row) *
                                                       g->m.w_stride);
    tile.w[0] = tile.w[1] = mp_matmul_w(&g->m, type, row);
    tile.x = mp_matmul_x(&g->m, first);
    tile.norm = g->norm;
    tile.scale = normed ? g->scale + first : 0;
    MP_UNROLL
    for (int i = 0; i < tokens; i++)
        tile.x_at[i] = mp_min((uint32_t)i, g->m.tokens - 1 - first) * g->m.x_stride;
    tile.again = again;
    tile.asks = (rows < MP_TILE_ROWS || mp_is_quant(type)) && first == 0;
    tile.next = add + (uint32_t)rows < MP_TILE_ROWS && row + 2 * (uint32_t)rows <= g->m.rows
                    ? (uint32_t)mp_bytes_of(type, (uint32_t)rows * g->m.w_stride)
                    : 0;
    y = mp_tile_dot(&tile, type, normed, rows, tokens, MP_DOT_PART_COLS(g->m.cols), cut.first,
                    cut.end, 0);
    if (mp_lane() % lanes != 0)
        return;
    mp_forget();
    cut = mp_gemv_cut_of(g, mp_here(block));
    index = mp_here(mp_lane()) / lanes;
    r = add + index / (uint32_t)tokens;
    t = first + index % (uint32_t)tokens;
    if (cut.split)
        ((float *)mp_shared())[(mp_warp() * MP_TILE_ROWS + r) * MP_TILE_TOKENS + t] = y;
    else if (cut.row + r < g->m.rows && t < g->m.tokens)
        mp_matmul_store(&g->m, cut.row + r, t, y);
}

/* The four rows of a warp with up to `tokens`: as many of both at a time as registers hold. The
 * second four tokens find the rows in the first-level cache. */
MP_DEVICE void mp_gemv_rows(const struct mp_gemv *g, const int type, const int normed,
                            const int tokens, uint32_t block)
{
    const int rows = MP_GEMV_ROWS(type, normed, tokens);
    const int at_once = MP_GEMV_TOKENS(type, normed, tokens);
    const uint32_t passes = (uint32_t)(tokens / at_once);

    MP_NO_UNROLL
    for (uint32_t i = 0; i < MP_TILE_ROWS / (uint32_t)rows * passes; i++) {
        const uint32_t add = i / passes * (uint32_t)rows, first = i % passes * (uint32_t)at_once;

        if (first < g->m.tokens && mp_gemv_cut_of(g, block).row + add < g->m.rows)
            mp_gemv_tile(g, type, normed, rows, at_once, passes > 1, block, add, first);
    }
}

/* Operands that are not aligned: a warp computes rows [row, end) for itself. */
MP_DEVICE void mp_gemv_slow(const struct mp_gemv *g, const int type, const int normed, uint32_t row,
                            uint32_t end)
{
    MP_NO_UNROLL
    for (uint32_t r = mp_here(row); r < end; r++) {
        MP_NO_UNROLL
        for (uint32_t t = 0; t < g->m.tokens; t++) {
            const struct mp_slow_x x = { mp_matmul_x(&g->m, t), g->norm, normed ? g->scale[t] : 0 };
            const float y = mp_dot_slow(mp_matmul_w(&g->m, type, r), x, type,
                                        MP_DOT_PART_COLS(g->m.cols), g->m.cols, 0);

            if (mp_lane() == 0)
                mp_matmul_store(&g->m, r, t, y);
        }
    }
}

/* The parts that warps have put into shared memory, added in order. */
MP_DEVICE void mp_gemv_join(const struct mp_gemv *g, uint32_t row)
{
    const uint32_t r = row + mp_thread() / MP_TILE_TOKENS, t = mp_thread() % MP_TILE_TOKENS;
    float y = 0;

    mp_sync();
    if (mp_warp() > 0 || r >= g->m.rows || t >= g->m.tokens)
        return;
    for (uint32_t i = 0; i < MP_DOT_PARTS; i++)
        y = y + ((const float *)mp_shared())[i * MP_TILE_ROWS * MP_TILE_TOKENS + mp_thread()];
    mp_matmul_store(&g->m, r, t, y);
}

/* Block number `block` of a product with at most `tokens`. Its first MP_GEMV_SHARED bytes of shared
 * memory are used. */
MP_DEVICE void mp_gemv_block(const struct mp_gemv *g, const int type, const int normed,
                             const int tokens, uint32_t block)
{
    const int fast = mp_matmul_is_fast(&g->m, type) && (!normed || (uint64_t)g->norm % 16 == 0);
    const int split = MP_GEMV_IS_SPLIT(g->m.rows, g->m.cols);
    const uint32_t row = mp_gemv_cut_of(g, block).row;

    if (!fast && split)
        mp_gemv_slow(g, type, normed, row + mp_warp(), mp_min(row + mp_warp() + 1, g->m.rows));
    else if (!fast)
        mp_gemv_slow(g, type, normed, row, mp_min(row + MP_TILE_ROWS, g->m.rows));
    else
        mp_gemv_rows(g, type, normed, tokens, block);
    if (fast && split)
        mp_gemv_join(g, mp_gemv_cut_of(g, mp_here(block)).row);
}

#endif
