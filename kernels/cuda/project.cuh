/*
 * Products of a norm's result with 1 to 8 tokens: up to three matrices in one launch. Each block
 * computes the factors of the norm for itself, from the same sums as mp_rmsnorm, and activations
 * are normed as they are read; so the bits are those of a norm and products one by one.
 */
#ifndef MP_PROJECT_CUH
#define MP_PROJECT_CUH

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/dot.cuh"
#include "kernels/cuda/rows.cuh"

/* parts (shared) := those of all tokens. */
MP_DEVICE void mp_normed_parts(float *parts, const struct mp_cuda_normed *in)
{
    MP_NO_UNROLL
    for (uint32_t t = 0; t < in->tokens; t++)
        mp_norm_parts(parts + t * MP_NORM_PARTS,
                      (const MP_GLOBAL float *)in->x + (uint64_t)t * in->cols, in->cols);
    mp_sync();
}

MP_DEVICE float mp_normed_scale(const float *parts, const struct mp_cuda_normed *in, uint32_t token)
{
    return mp_norm_of(parts + token * MP_NORM_PARTS, in->cols, in->eps);
}

MP_DEVICE void mp_part_store(const struct mp_cuda_part *part, uint32_t row, uint32_t token, float y)
{
    if (part->bias != 0)
        y = y + ((const MP_GLOBAL float *)part->bias)[row];
    ((MP_GLOBAL float *)part->y)[(uint64_t)token * part->rows + row] = y;
}

/* y for rows [row, row + rows) and all tokens, as far as there are any */
MP_DEVICE void mp_part_tile(const struct mp_cuda_normed *in, const struct mp_cuda_part *part,
                            const float *parts, const int type, const int rows, const int tokens,
                            uint32_t row)
{
    const uint32_t lanes = MP_LANES / (uint32_t)(rows * tokens), index = mp_lane() / lanes;
    const uint32_t r = row + index / (uint32_t)tokens, t = index % (uint32_t)tokens;
    const uint64_t stride = (uint64_t)in->cols * mp_type_bytes(type);
    struct mp_tile tile;
    float y;

    MP_UNROLL
    for (int i = 0; i < rows; i++)
        tile.w[i] =
            (const MP_GLOBAL char *)part->w + mp_min(row + (uint32_t)i, part->rows - 1) * stride;
    tile.x = (const MP_GLOBAL float *)in->x;
    tile.norm = (const MP_GLOBAL float *)in->norm;
    MP_UNROLL
    for (int i = 0; i < tokens; i++) {
        const uint32_t token = mp_min((uint32_t)i, in->tokens - 1);

        tile.x_at[i] = token * in->cols;
        tile.scale[i] = mp_normed_scale(parts, in, token);
    }
    y = mp_tile_dot(&tile, type, 1, rows, tokens, 0, in->cols, 0);
    if (mp_lane() % lanes == 0 && r < part->rows && t < in->tokens)
        mp_part_store(part, r, t, y);
}

/* The same for operands that are not aligned. */
MP_DEVICE void mp_part_slow(const struct mp_cuda_normed *in, const struct mp_cuda_part *part,
                            const float *parts, const int type, uint32_t row, uint32_t rows)
{
    const uint64_t stride = (uint64_t)in->cols * mp_type_bytes(type);

    MP_NO_UNROLL
    for (uint32_t r = row; r < mp_min(row + rows, part->rows); r++) {
        MP_NO_UNROLL
        for (uint32_t t = 0; t < in->tokens; t++) {
            const struct mp_slow_x x = { (const MP_GLOBAL float *)in->x + (uint64_t)t * in->cols,
                                         (const MP_GLOBAL float *)in->norm,
                                         mp_normed_scale(parts, in, t) };
            const float y =
                mp_dot_slow((const MP_GLOBAL char *)part->w + r * stride, x, type, 0, in->cols, 0);

            if (mp_lane() == 0)
                mp_part_store(part, r, t, y);
        }
    }
}

MP_DEVICE int mp_part_is_fast(const struct mp_cuda_normed *in, const struct mp_cuda_part *part,
                              const int type)
{
    return mp_tile_is_fast(part->w | in->norm, (uint64_t)in->cols * mp_type_bytes(type), in->x,
                           in->cols, in->cols);
}

/* As mp_gemv_rows(). */
MP_DEVICE void mp_part_rows(const struct mp_cuda_normed *in, const struct mp_cuda_part *part,
                            const float *parts, const int type, const int rows, uint32_t row)
{
    if (in->tokens == 1)
        mp_part_tile(in, part, parts, type, rows, 1, row);
    else if (in->tokens == 2 && type != MP_WTYPE_F32)
        mp_part_tile(in, part, parts, type, rows, 2, row);
    else if (in->tokens <= 4 && type != MP_WTYPE_F32 && rows > 1)
        mp_part_tile(in, part, parts, type, rows, 4, row);
    else
        mp_part_tile(in, part, parts, type, rows, 8, row);
}

/* Block number `block` of a matrix. */
MP_DEVICE void mp_part_block(const struct mp_cuda_normed *in, const struct mp_cuda_part *part,
                             const float *parts, const int type, const int rows, uint32_t block)
{
    const uint32_t row = (block * MP_GEMV_WARPS + mp_warp()) * (uint32_t)rows;

    if (row >= part->rows)
        return;
    if (mp_part_is_fast(in, part, type))
        mp_part_rows(in, part, parts, type, rows, row);
    else
        mp_part_slow(in, part, parts, type, row, (uint32_t)rows);
}

MP_DEVICE void mp_project(const struct mp_cuda_project *p, const int type)
{
    const uint32_t first = MP_GEMV_BLOCKS(p->part[0].rows, p->in.tokens);
    const uint32_t second = first + MP_GEMV_BLOCKS(p->part[1].rows, p->in.tokens);
    float *parts = (float *)mp_shared();
    struct mp_cuda_part part = p->part[0];
    uint32_t block = mp_block_x();

    if (block >= second) {
        part = p->part[2];
        block -= second;
    } else if (block >= first) {
        part = p->part[1];
        block -= first;
    }
    mp_normed_parts(parts, &p->in);
    if (MP_GEMV_ROWS(part.rows, p->in.tokens) == 1)
        mp_part_block(&p->in, &part, parts, type, 1, block);
    else
        mp_part_block(&p->in, &part, parts, type, MP_TILE_ROWS, block);
}

#define MP_PROJECT(name, type)                                                \
    MP_KERNEL(mp_project_##name, mp_cuda_project, MP_GEMV_WARPS *MP_LANES, 3) \
    {                                                                         \
        mp_project(&p, type);                                                 \
    }

MP_PROJECT(f32, MP_WTYPE_F32)
MP_PROJECT(bf16, MP_WTYPE_BF16)
MP_PROJECT(f16, MP_WTYPE_F16)

#endif
