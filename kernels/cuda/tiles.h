#ifndef MP_CUDA_TILES_H
#define MP_CUDA_TILES_H

#include <stdint.h>

/* How the kernels cut their work: what device code and launch.c must agree on. */
#define MP_LANES 32

/* A warp multiplies so many rows of weights with so many tokens at once, so many columns a step. */
#define MP_TILE_ROWS 4
#define MP_TILE_TOKENS 8
#define MP_STEP_COLS 256

#define MP_GEMV_WARPS 4
#define MP_GEMM_WARPS 4

/* Fewer rows than this are spread over more warps, one row each. */
#define MP_GEMV_WIDE_ROWS 4096
#define MP_GEMV_WIDE_ROWS_TOKENS 1024 /* of 3 and more tokens */
#define MP_GEMV_ROWS(rows, tokens) \
    ((rows) >= ((tokens) <= 2 ? MP_GEMV_WIDE_ROWS : MP_GEMV_WIDE_ROWS_TOKENS) ? MP_TILE_ROWS : 1)

#define MP_GEMV_BLOCKS(rows, tokens)                                       \
    (((rows) + MP_GEMV_WARPS * (uint32_t)MP_GEMV_ROWS(rows, tokens) - 1) / \
     (MP_GEMV_WARPS * (uint32_t)MP_GEMV_ROWS(rows, tokens)))

#define MP_EXPERT_WARPS 4
#define MP_EXPERT_UP_CHANNELS (MP_EXPERT_WARPS * MP_TILE_ROWS / 2)
#define MP_EXPERT_DOWN_ROWS (MP_EXPERT_WARPS * MP_TILE_ROWS)

/*
 * Attention: positions are cut into units of 32; unit u belongs to stream u % 32. Each stream is
 * summed in ascending order, then streams are, whatever computes them: so bits do not depend on
 * the launch.
 */
#define MP_ATTEND_UNIT 32
#define MP_ATTEND_STREAMS 32
#define MP_ATTEND_WARPS 8
#define MP_ATTEND_SPLIT (MP_ATTEND_STREAMS / MP_ATTEND_WARPS) /* blocks of a head */
#define MP_ATTEND_DIM_MAX 256
#define MP_ATTEND_HEAD 2 /* floats of a stream before its sums: maximum, total */

#define MP_PLACE_WARPS 4
#define MP_ROW_WARPS 4 /* softmax and top_k: a warp for each token */
#define MP_NORM_THREADS 256
#define MP_ARGMAX_THREADS 512
#define MP_SAMPLE_DIGITS 16 /* values of a digit of what a search goes by */
#define MP_EACH_THREADS 256
#define MP_RESOLVE_EXPERTS 1024
#define MP_READ_THREADS 256

/* Bytes of dynamic shared memory. */
#define MP_NORM_SHARED (MP_NORM_THREADS / MP_LANES * 4)
#define MP_ARGMAX_SHARED (MP_ARGMAX_THREADS / MP_LANES * 12)
#define MP_SAMPLE_SHARED ((MP_ARGMAX_THREADS / MP_LANES + 1) * MP_SAMPLE_DIGITS * 8)
#define MP_PROJECT_SHARED (MP_TILE_TOKENS * MP_NORM_SHARED)
#define MP_RESOLVE_SHARED (MP_RESOLVE_EXPERTS / MP_LANES * 12)
#define MP_ROUTE_SHARED \
    (MP_PROJECT_SHARED + 4 > MP_RESOLVE_SHARED ? MP_PROJECT_SHARED + 4 : MP_RESOLVE_SHARED)
#define MP_READ_SHARED (MP_READ_THREADS / MP_LANES * 8)
#define MP_ATTEND_SPLIT_SHARED ((MP_ATTEND_STREAMS + 2) * 4)
#define MP_ATTEND_SHARED(dim) \
    ((MP_ATTEND_STREAMS * (MP_ATTEND_HEAD + (dim)) + MP_ATTEND_STREAMS + 1) * 4)

#endif
