/* Products of a matrix with 1 to 8 tokens (gemv) and with any number (gemm). */
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/dot.cuh"

MP_DEVICE const MP_GLOBAL char *mp_matmul_w(const struct mp_cuda_matmul *p, const int type,
                                            uint32_t row)
{
    return (const MP_GLOBAL char *)p->w + (uint64_t)row * p->w_stride * mp_type_bytes(type);
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

/* y for rows [row, row + rows) and tokens [token, token + tokens), as far as there are any */
MP_DEVICE void mp_matmul_tile(const struct mp_cuda_matmul *p, const int type, const int rows,
                              const int tokens, uint32_t row, uint32_t token)
{
    const uint32_t lanes = MP_LANES / (uint32_t)(rows * tokens), index = mp_lane() / lanes;
    const uint32_t r = row + index / (uint32_t)tokens, t = token + index % (uint32_t)tokens;
    struct mp_tile tile;
    float y;

    MP_UNROLL
    for (int i = 0; i < rows; i++)
        tile.w[i] = mp_matmul_w(p, type, mp_min(row + i, p->rows - 1));
    tile.x = mp_matmul_x(p, token);
    MP_UNROLL
    for (int i = 0; i < tokens; i++)
        tile.x_at[i] = mp_min(i, p->tokens - 1 - token) * p->x_stride;
    y = mp_tile_dot(&tile, type, 0, rows, tokens, 0, p->cols, 0);
    if (mp_lane() % lanes == 0 && r < p->rows && t < p->tokens)
        mp_matmul_store(p, r, t, y);
}

/* The same for operands that are not aligned. */
MP_DEVICE void mp_matmul_slow(const struct mp_cuda_matmul *p, const int type, uint32_t row,
                              uint32_t rows, uint32_t token)
{
    MP_NO_UNROLL
    for (uint32_t r = row; r < mp_min(row + rows, p->rows); r++) {
        MP_NO_UNROLL
        for (uint32_t t = token; t < mp_min(token + MP_TILE_TOKENS, p->tokens); t++) {
            const struct mp_slow_x x = { mp_matmul_x(p, t), 0, 0 };
            const float y = mp_dot_slow(mp_matmul_w(p, type, r), x, type, 0, p->cols, 0);

            if (mp_lane() == 0)
                mp_matmul_store(p, r, t, y);
        }
    }
}

MP_DEVICE int mp_matmul_is_fast(const struct mp_cuda_matmul *p, const int type)
{
    return mp_tile_is_fast(p->w, (uint64_t)p->w_stride * mp_type_bytes(type), p->x, p->x_stride,
                           p->cols);
}

/* F32 is rare, and rows alone are few: they have fewer cuts, which are fewer to compile. */
MP_DEVICE void mp_gemv_rows(const struct mp_cuda_matmul *p, const int type, const int rows,
                            uint32_t row)
{
    if (p->tokens == 1)
        mp_matmul_tile(p, type, rows, 1, row, 0);
    else if (p->tokens == 2 && type != MP_WTYPE_F32)
        mp_matmul_tile(p, type, rows, 2, row, 0);
    else if (p->tokens <= 4 && type != MP_WTYPE_F32 && rows > 1)
        mp_matmul_tile(p, type, rows, 4, row, 0);
    else
        mp_matmul_tile(p, type, rows, 8, row, 0);
}

MP_DEVICE void mp_gemv(const struct mp_cuda_matmul *p, const int type)
{
    const uint32_t rows = MP_GEMV_ROWS(p->rows, p->tokens);
    const uint32_t row = (mp_block_x() * MP_GEMV_WARPS + mp_warp()) * rows;

    if (row >= p->rows)
        return;
    if (!mp_matmul_is_fast(p, type))
        mp_matmul_slow(p, type, row, rows, 0);
    else if (rows == 1)
        mp_gemv_rows(p, type, 1, row);
    else
        mp_gemv_rows(p, type, MP_TILE_ROWS, row);
}

MP_DEVICE void mp_gemm(const struct mp_cuda_matmul *p, const int type)
{
    const uint32_t row = (mp_block_x() * MP_GEMM_WARPS + mp_warp()) * MP_TILE_ROWS;
    const uint32_t token = mp_block_y() * MP_TILE_TOKENS;

    if (row >= p->rows)
        return;
    if (mp_matmul_is_fast(p, type))
        mp_matmul_tile(p, type, MP_TILE_ROWS, MP_TILE_TOKENS, row, token);
    else
        mp_matmul_slow(p, type, row, MP_TILE_ROWS, token);
}

#define MP_MATMULS(name, type)                                            \
    MP_KERNEL(mp_gemv_##name, mp_cuda_matmul, MP_GEMV_WARPS *MP_LANES, 3) \
    {                                                                     \
        mp_gemv(&p, type);                                                \
    }                                                                     \
    MP_KERNEL(mp_gemm_##name, mp_cuda_matmul, MP_GEMM_WARPS *MP_LANES, 3) \
    {                                                                     \
        mp_gemm(&p, type);                                                \
    }

MP_MATMULS(f32, MP_WTYPE_F32)
MP_MATMULS(bf16, MP_WTYPE_BF16)
MP_MATMULS(f16, MP_WTYPE_F16)
