#ifndef MP_CUDA_TILES_H
#define MP_CUDA_TILES_H

#include <stdint.h>

/* How the kernels cut their work: what device code and launch.c must agree on. */
#define MP_LANES 32

/* A warp multiplies so many rows of weights with so many tokens at once, so many columns a step. */
#define MP_TILE_ROWS 4
#define MP_TILE_TOKENS 8
#define MP_STEP_COLS 256

/* What it will read so many steps later is asked for, a line of the second-level cache by a lane;
 * of a quantised row so many bytes later, and two steps at least. */
#define MP_ASK_STEPS 2
#define MP_ASK_BYTES 512
#define MP_LINE_BYTES 128

#define MP_GEMV_WARPS 4
#define MP_GEMM_WARPS 4

/*
 * The columns of a row are cut into at most four parts, each a multiple of a step. A part is summed
 * for itself, then parts are added in order, whether one warp has all of them or four have one
 * each: so bits do not depend on the launch.
 */
#define MP_DOT_PARTS MP_GEMV_WARPS
#define MP_DOT_PART_COLS(cols) \
    (((cols) + MP_DOT_PARTS * MP_STEP_COLS - 1) / (MP_DOT_PARTS * MP_STEP_COLS) * MP_STEP_COLS)

/* Kernels for 1, 2, 4 and 8 tokens: rows and tokens that a warp multiplies at once, and blocks
 * whose registers a multiprocessor has: 10 of 48 registers a thread, 8 of 64. */
#define MP_GEMV_ROWS(type, normed, tokens)            \
    ((tokens) > 1 && (type) == MP_WTYPE_F32       ? 1 \
     : (tokens) > 1 || (type) == MP_WTYPE_F32     ? 2 \
     : (normed) && (type) >= MP_WTYPE_PLAIN_COUNT ? 2 \
                                                  : 4)
#define MP_GEMV_TOKENS(type, normed, tokens) \
    ((tokens) > 2 && ((normed) || (type) == MP_WTYPE_F32) ? 2 : (tokens) > 4 ? 4 : (tokens))
#define MP_GEMV_RESIDENT(type, normed, tokens) \
    ((type) != MP_WTYPE_F32 && (type) < MP_WTYPE_PLAIN_COUNT && !(normed) && (tokens) == 1 ? 10 : 8)

/* GEMV: the four warps of a block share out the parts of four rows, or, where rows are many or
 * parts few, take four rows each. */
#define MP_GEMV_SPLIT_ROWS_MAX 16384
#define MP_GEMV_SPLIT_COLS_MIN (MP_DOT_PARTS * MP_STEP_COLS)
#define MP_GEMV_IS_SPLIT(rows, cols) \
    ((rows) < MP_GEMV_SPLIT_ROWS_MAX && (cols) >= MP_GEMV_SPLIT_COLS_MIN)
#define MP_GEMV_BLOCK_ROWS(rows, cols) \
    (MP_TILE_ROWS * (MP_GEMV_IS_SPLIT(rows, cols) ? 1u : (uint32_t)MP_GEMV_WARPS))
#define MP_GEMV_BLOCKS(rows, cols) \
    (((rows) + MP_GEMV_BLOCK_ROWS(rows, cols) - 1) / MP_GEMV_BLOCK_ROWS(rows, cols))

/*
 * Tensor cores: a block multiplies so many tokens (or rows of an expert) with so many rows of
 * weights, so many columns a step; a warp all of the tokens with its share of the rows. Shared
 * memory holds two steps, one to multiply while the next is on its way. A row there has padding, so
 * that 8 rows at 4 words each are in 32 different banks.
 */
#define MP_TENSOR_WARPS 4
#define MP_TENSOR_TOKENS 64
#define MP_TENSOR_ROWS 64
#define MP_TENSOR_CHANNELS (MP_TENSOR_ROWS / 2) /* of gate and up each */
#define MP_TENSOR_COLS 32
#define MP_TENSOR_STRIDE (MP_TENSOR_COLS / 2 + 4) /* words */
#define MP_TENSOR_STEP ((MP_TENSOR_TOKENS + MP_TENSOR_ROWS) * MP_TENSOR_STRIDE)

#define MP_EXPERT_WARPS 4
#define MP_EXPERT_UP_CHANNELS (MP_EXPERT_WARPS * MP_TILE_ROWS / 2)
#define MP_EXPERT_DOWN_ROWS (MP_EXPERT_WARPS * MP_TILE_ROWS)

/*
 * Attention: positions are cut into units of 32; unit u belongs to stream u % 256, streams 8 p to 8
 * p + 7 are part p. Each stream is summed in ascending order, then those of a part, then parts,
 * whatever computes them: so bits do not depend on the launch.
 */
#define MP_ATTEND_UNIT 32
#define MP_ATTEND_WARPS 8 /* a stream of a part each; then a head each */
#define MP_ATTEND_PARTS 32
#define MP_ATTEND_STREAMS (MP_ATTEND_PARTS * MP_ATTEND_WARPS)
#define MP_ATTEND_PART_POSITIONS (MP_ATTEND_WARPS * MP_ATTEND_UNIT)
#define MP_ATTEND_PARTS_OF(positions)                               \
    ((positions) > (MP_ATTEND_PARTS - 1) * MP_ATTEND_PART_POSITIONS \
         ? (uint32_t)MP_ATTEND_PARTS                                \
         : ((positions) + MP_ATTEND_PART_POSITIONS - 1) / MP_ATTEND_PART_POSITIONS)
#define MP_ATTEND_DIM_MAX 256
#define MP_ATTEND_HEAD 2 /* floats of a stream before its sums: maximum, total */

/* Of `per` query heads that share keys and values a block has so many, as many as registers hold
 * the sums of; and so many blocks have them all. */
#define MP_ATTEND_WIDTH(dim) \
    ((dim) <= MP_ATTEND_DIM_MAX / 2 ? MP_ATTEND_DIM_MAX / 2 : MP_ATTEND_DIM_MAX)
#define MP_ATTEND_HEADS_MAX(dim) (MP_ATTEND_Q / MP_ATTEND_WIDTH(dim))
#define MP_ATTEND_GROUPS(per, dim) \
    (((per) + MP_ATTEND_HEADS_MAX(dim) - 1) / MP_ATTEND_HEADS_MAX(dim))
#define MP_ATTEND_HEADS(per, dim) \
    (((per) + MP_ATTEND_GROUPS(per, dim) - 1) / MP_ATTEND_GROUPS(per, dim))
#define MP_ATTEND_Q 1024 /* floats of the queries of a block */
#define MP_ATTEND_FACTORS (MP_ATTEND_WARPS * (MP_ATTEND_WARPS + 2))

#define MP_PLACE_WARPS 4
#define MP_ROW_WARPS 4 /* softmax and top_k: a warp for each token */
#define MP_NORM_THREADS 256
#define MP_ARGMAX_THREADS 512
#define MP_SAMPLE_DIGITS 16 /* values of a digit of what a search goes by */
/* Blocks share out the vocabulary, by 32 tokens in turn; each lists so many of its own. */
#define MP_SAMPLE_LISTED 16
#define MP_SAMPLE_BLOCKS_MAX (MP_ARGMAX_THREADS / MP_SAMPLE_LISTED)
#define MP_SAMPLE_BLOCKS(vocab)                                  \
    ((vocab) < MP_SAMPLE_BLOCKS_MAX * MP_ARGMAX_THREADS          \
         ? ((vocab) + MP_ARGMAX_THREADS - 1) / MP_ARGMAX_THREADS \
         : (uint32_t)MP_SAMPLE_BLOCKS_MAX)
#define MP_EACH_THREADS 256
#define MP_RESOLVE_EXPERTS 1024
#define MP_READ_THREADS 256

/* Bytes of dynamic shared memory. */
#define MP_NORM_SHARED (MP_NORM_THREADS / MP_LANES * 4)
#define MP_ARGMAX_SHARED (MP_ARGMAX_THREADS / MP_LANES * 12)
#define MP_SAMPLE_SUMS ((MP_ARGMAX_THREADS / MP_LANES + 1) * MP_SAMPLE_DIGITS * 8)
#define MP_SAMPLE_SHARED (MP_SAMPLE_SUMS + 16 * MP_ARGMAX_THREADS + 32)
#define MP_TENSOR_SHARED (2 * MP_TENSOR_STEP * 4)
#define MP_GEMV_SHARED (MP_DOT_PARTS * MP_TILE_ROWS * MP_TILE_TOKENS * 4)
#define MP_PROJECT_SHARED (MP_GEMV_SHARED + MP_TILE_TOKENS * (4 + MP_NORM_SHARED) + 96)
#define MP_RESOLVE_SHARED (MP_RESOLVE_EXPERTS / MP_LANES * 12)
#define MP_ROUTE_SHARED \
    (MP_PROJECT_SHARED + 4 > MP_RESOLVE_SHARED ? MP_PROJECT_SHARED + 4 : MP_RESOLVE_SHARED)
#define MP_READ_SHARED (MP_READ_THREADS / MP_LANES * 8)
/* Queries, factors, the sums of all parts and of eight streams; where parts are added, a table. */
#define MP_ATTEND_SHARED(per, dim)                                                    \
    ((MP_ATTEND_Q + MP_ATTEND_FACTORS +                                               \
      MP_ATTEND_HEADS(per, dim) *                                                     \
          ((MP_ATTEND_WARPS + 1) * (MP_ATTEND_HEAD + (dim)) + 2 * MP_ATTEND_PARTS)) * \
     4)

#endif
