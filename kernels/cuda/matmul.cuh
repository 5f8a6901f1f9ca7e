/* Products of a matrix with 1 to 8 tokens (gemv) and with any number (gemm). */
#ifndef MP_MATMUL_CUH
#define MP_MATMUL_CUH

#include "kernels/cuda/gemv.cuh"

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
        tile.w_at[i] =
            (uint32_t)mp_bytes_of(type, mp_min((uint32_t)i, p->rows - 1 - row) * p->w_stride);
    tile.w[0] = tile.w[1] = mp_matmul_w(p, type, row);
    tile.x = mp_matmul_x(p, token);
    tile.again = tile.asks = 0;
    tile.next = 0;
    MP_UNROLL
    for (int i = 0; i < tokens; i++)
        tile.x_at[i] = mp_min(i, p->tokens - 1 - token) * p->x_stride;
    y = mp_tile_dot(&tile, type, 0, rows, tokens, MP_DOT_PART_COLS(p->cols), 0, p->cols, 0);
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
            const float y = mp_dot_slow(mp_matmul_w(p, type, r), x, type, MP_DOT_PART_COLS(p->cols),
                                        p->cols, 0);

            if (mp_lane() == 0)
                mp_matmul_store(p, r, t, y);
        }
    }
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

#define MP_GEMV(name, type, tokens)                                              \
    MP_KERNEL(mp_gemv##tokens##_##name, mp_cuda_matmul, MP_GEMV_WARPS *MP_LANES, \
              MP_GEMV_RESIDENT(type, 0, tokens))                                 \
    {                                                                            \
        const struct mp_gemv g = { p, 0, 0 };                                    \
                                                                                 \
        mp_gemv_block(&g, type, 0, tokens, mp_block_x());                        \
    }

#define MP_GEMM(name, type)                                               \
    MP_KERNEL(mp_gemm_##name, mp_cuda_matmul, MP_GEMM_WARPS *MP_LANES, 3) \
    {                                                                     \
        mp_gemm(&p, type);                                                \
    }

#endif
