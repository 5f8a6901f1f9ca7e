/*
 * Products on tensor cores (mma.sync m16n8k16): a matrix with many tokens, and the experts of a
 * work list. A block multiplies a tile of tokens with a tile of rows of weights, step by step of
 * columns. On their way into shared memory activations are rounded to the type of the weights, and
 * blocks of quantised weights are decoded and rounded to F16, as are activations for them. Sums are
 * floats; see MP_CUDA_TENSOR_FIRST for what that means for results.
 *
 * A token or a column that does not exist is zeros in shared memory; for a row of weights there is
 * the last one, whose sums go nowhere. Operands that cannot be read by 16 bytes, or blocks as they
 * are aligned in a matrix that is, are read piece by piece and multiplied in the same way: so
 * addresses change no bits.
 */
#ifndef MP_TENSOR_CUH
#define MP_TENSOR_CUH

#include "kernels/cuda/gemv.cuh"
#include "kernels/cuda/work.cuh"

#define MP_TENSOR_FRAGMENTS (MP_TENSOR_TOKENS / 16) /* of tokens; each with two of 8 rows */
#define MP_TENSOR_SUMS (MP_TENSOR_FRAGMENTS * 2 * 4)

#define MP_TENSOR_NONE 0xffffffffu

/* What a thread brings: rows of weights and of activations, by their distance from w in bytes and
 * from x in elements, which takes half as many registers as addresses; MP_TENSOR_NONE: there is no
 * such token. */
struct mp_tensor_tile {
    const MP_GLOBAL char *w;
    const MP_GLOBAL float *x;
    uint32_t w_at[2], x_at[4];
    uint32_t cols, tokens; /* tokens: of the tile, from its first */
    int fast;
};

/* A thread's share of a step, as it is in memory, or of blocks as mp_load_block() gives it: 8
 * numbers, scale, what is added. */
struct mp_tensor_part {
    struct mp_words w[2], x[4];
};

/* Which rows of a tile this thread brings: 4 threads to 64 bytes of weights, 8 to 128 of
 * activations. */
MP_DEVICE uint32_t mp_tensor_w_row(int i)
{
    return (uint32_t)i * 32 + mp_thread() / 4;
}

MP_DEVICE uint32_t mp_tensor_x_row(int i)
{
    return (uint32_t)i * 16 + mp_thread() / 8;
}

/* Columns c to c + 8 of a row of blocks. */
MP_DEVICE struct mp_words mp_tensor_block(const struct mp_tensor_tile *tile, int i, uint32_t c,
                                          const int type)
{
    const MP_GLOBAL char *block =
        tile->w + (tile->w_at[i] + c / mp_block_cols(type) * mp_block_bytes(type));
    struct mp_eight from = { { 0, 0, 0, 0, 0, 0, 0, 0 } };
    struct mp_words to;

    if (tile->fast)
        mp_load_block(&from, type, block, c % mp_block_cols(type), mp_type_align(type));
    else
        mp_load_block(&from, type, block, c % mp_block_cols(type), 1);
    MP_UNROLL
    for (int k = 0; k < 4; k++)
        to.word[k] = from.word[k];
    return to;
}

/* Columns c to c + 8 of a row of weights of 16 bits. */
MP_DEVICE struct mp_words mp_tensor_w(const struct mp_tensor_tile *tile, int i, uint32_t c)
{
    const MP_GLOBAL uint16_t *row = (const MP_GLOBAL uint16_t *)(tile->w + tile->w_at[i]);
    struct mp_words to = { { 0, 0, 0, 0 } };

    if (c >= tile->cols)
        return to;
    if (tile->fast)
        return mp_load_once(row + c);
    MP_UNROLL
    for (uint32_t k = 0; k < 8; k++)
        to.word[k / 2] |= (c + k < tile->cols ? (uint32_t)row[c + k] : 0) << (16 * (k % 2));
    return to;
}

/* Columns c to c + 4 of a row of activations. */
MP_DEVICE struct mp_words mp_tensor_x(const struct mp_tensor_tile *tile, int i, uint32_t c)
{
    const MP_GLOBAL float *row = tile->x + tile->x_at[i];
    struct mp_words to = { { 0, 0, 0, 0 } };

    if (tile->x_at[i] == MP_TENSOR_NONE || c >= tile->cols)
        return to;
    if (tile->fast)
        return mp_load(row + c);
    MP_UNROLL
    for (uint32_t k = 0; k < 4; k++)
        to.word[k] = c + k < tile->cols ? mp_as_bits(row[c + k]) : 0;
    return to;
}

/* Activations first: what unpacks blocks waits for them, and would hold back loads behind it. */
MP_DEVICE void mp_tensor_load(struct mp_tensor_part *to, const struct mp_tensor_tile *tile,
                              const int type, uint32_t first)
{
    const uint32_t c = first + mp_thread() % 4 * 8;

    MP_UNROLL
    for (int i = 0; i < 4; i++)
        to->x[i] = mp_tensor_x(tile, i, first + mp_thread() % 8 * 4);
    MP_UNROLL
    for (int i = 0; i < 2; i++)
        to->w[i] = mp_is_quant(type) ? mp_tensor_block(tile, i, c, type) : mp_tensor_w(tile, i, c);
}

MP_DEVICE uint32_t mp_tensor_pair(const struct mp_words *x, int i, const int type)
{
    const float low = mp_as_float(x->word[i]), high = mp_as_float(x->word[i + 1]);

    return type == MP_WTYPE_BF16 ? mp_pair_bf16(low, high) : mp_pair_f16(low, high);
}

/* 8 weights as pairs of 16 bits. */
MP_DEVICE void mp_tensor_put(uint32_t *to, const struct mp_words *w, const int type)
{
    const struct mp_eight e = { { 0, 0, w->word[2], w->word[3], 0, 0, 0, 0 } };

    MP_UNROLL
    for (int k = 0; k < 4; k++) {
        const uint32_t numbers = w->word[k / 2], i = (uint32_t)k * 2;

        to[k] = mp_is_quant(type) ? mp_pair_f16(mp_decoded(&e, type, numbers, i),
                                                mp_decoded(&e, type, numbers, i + 1))
                                  : w->word[k];
    }
}

/* A step in shared memory: rows of activations, then those of weights. */
MP_DEVICE void mp_tensor_store(uint32_t *step, const struct mp_tensor_part *part, const int type)
{
    MP_UNROLL
    for (int i = 0; i < 2; i++) {
        uint32_t *to =
            step + (MP_TENSOR_TOKENS + mp_tensor_w_row(i)) * MP_TENSOR_STRIDE + mp_thread() % 4 * 4;

        mp_tensor_put(to, &part->w[i], type);
    }
    MP_UNROLL
    for (int i = 0; i < 4; i++) {
        uint32_t *to = step + mp_tensor_x_row(i) * MP_TENSOR_STRIDE + mp_thread() % 8 * 2;

        to[0] = mp_tensor_pair(&part->x[i], 0, type);
        to[1] = mp_tensor_pair(&part->x[i], 2, type);
    }
}

/* sum[token fragment][row fragment][4] += a step; fragments without tokens are left out. */
MP_DEVICE void mp_tensor_add(float *sum, const uint32_t *step, uint32_t tokens, const int type)
{
    const uint32_t at = mp_lane() / 4 * MP_TENSOR_STRIDE + mp_lane() % 4;
    const uint32_t *x = step + at;
    const uint32_t *w = step + (MP_TENSOR_TOKENS + mp_warp() * 16) * MP_TENSOR_STRIDE + at;

    MP_UNROLL
    for (int k = 0; k < MP_TENSOR_COLS / 2; k += 8) { /* 16 columns are 8 words */
        uint32_t b[2][2];

        MP_UNROLL
        for (int n = 0; n < 2; n++) {
            b[n][0] = w[n * 8 * MP_TENSOR_STRIDE + k];
            b[n][1] = w[n * 8 * MP_TENSOR_STRIDE + k + 4];
        }
        MP_UNROLL
        for (int m = 0; m < MP_TENSOR_FRAGMENTS; m++) {
            const uint32_t *from = x + m * 16 * MP_TENSOR_STRIDE + k;
            uint32_t a[4];

            if ((uint32_t)m * 16 >= tokens)
                continue;
            a[0] = from[0];
            a[1] = from[8 * MP_TENSOR_STRIDE];
            a[2] = from[4];
            a[3] = from[8 * MP_TENSOR_STRIDE + 4];
            MP_UNROLL
            for (int n = 0; n < 2; n++) {
                if (type == MP_WTYPE_BF16)
                    mp_mma_bf16(sum + (m * 2 + n) * 4, a, b[n]);
                else
                    mp_mma_f16(sum + (m * 2 + n) * 4, a, b[n]);
            }
        }
    }
}

/* sum += the tile's products over all columns, in ascending order: a step is multiplied while the
 * next one is on its way. */
MP_DEVICE void mp_tensor_multiply(float *sum, const struct mp_tensor_tile *tile, const int type)
{
    uint32_t *shared = (uint32_t *)mp_shared(), step = 0;
    struct mp_tensor_part part;

    MP_NO_UNROLL
    for (uint32_t c = 0; c < tile->cols + MP_TENSOR_COLS; c += MP_TENSOR_COLS) {
        if (c < tile->cols)
            mp_tensor_load(&part, tile, type, c);
        if (c > 0)
            mp_tensor_add(sum, shared + step, tile->tokens, type);
        step = MP_TENSOR_STEP - step;
        if (c < tile->cols)
            mp_tensor_store(shared + step, &part, type);
        mp_sync();
    }
}

/* Where sum[m][n][i] belongs: the token of the tile, and the row of the warp's 8. */
MP_DEVICE uint32_t mp_tensor_token(int m, int i)
{
    return (uint32_t)m * 16 + mp_lane() / 4 + (uint32_t)i / 2 * 8;
}

MP_DEVICE uint32_t mp_tensor_row(int i)
{
    return mp_lane() % 4 * 2 + (uint32_t)i % 2;
}

/* Where the rows of a thread are: of weights, of which there are `rows`, w_stride bytes apart, and
 * of tokens. */
MP_DEVICE void mp_tensor_place(struct mp_tensor_tile *tile, uint32_t rows, uint32_t w_stride,
                               uint32_t x_stride)
{
    MP_UNROLL
    for (int i = 0; i < 2; i++)
        tile->w_at[i] = mp_min(mp_tensor_w_row(i), rows - 1) * w_stride;
    MP_UNROLL
    for (int i = 0; i < 4; i++) {
        const uint32_t t = mp_tensor_x_row(i);

        tile->x_at[i] = t < tile->tokens ? t * x_stride : MP_TENSOR_NONE;
    }
}

MP_DEVICE void mp_tensor(const struct mp_cuda_matmul *p, const int type)
{
    const uint32_t row = mp_block_x() * MP_TENSOR_ROWS, token = mp_block_y() * MP_TENSOR_TOKENS;
    struct mp_tensor_tile tile;
    float sum[MP_TENSOR_SUMS];

    tile.cols = p->cols;
    tile.tokens = p->tokens - token;
    tile.fast = mp_matmul_is_fast(p, type);
    tile.w = mp_matmul_w(p, type, row);
    tile.x = mp_matmul_x(p, token);
    mp_tensor_place(&tile, p->rows - row, (uint32_t)mp_bytes_of(type, p->w_stride), p->x_stride);
    MP_UNROLL
    for (int i = 0; i < MP_TENSOR_SUMS; i++)
        sum[i] = 0;
    mp_tensor_multiply(sum, &tile, type);
    MP_UNROLL
    for (int i = 0; i < MP_TENSOR_SUMS; i++) {
        const uint32_t t = token + mp_tensor_token(i / 8, i % 4);
        const uint32_t r = row + mp_warp() * 16 + (uint32_t)i % 8 / 4 * 8 + mp_tensor_row(i % 4);

        if (t < p->tokens && r < p->rows)
            mp_matmul_store(p, r, t, sum[i]);
    }
}

/* act for the tile's channels and rows [first, first + MP_TENSOR_TOKENS) of expert e. A warp has 8
 * channels: the first 8 of its rows of weights are gates, the others ups. */
MP_DEVICE void mp_tensor_up_tile(const struct mp_cuda_experts *p,
                                 const MP_GLOBAL struct mp_cuda_expert *e, const int type,
                                 uint32_t first)
{
    const uint32_t channel = mp_block_x() * MP_TENSOR_CHANNELS;
    const uint64_t stride = mp_bytes_of(type, p->hidden);
    struct mp_tensor_tile tile;
    float sum[MP_TENSOR_SUMS];

    tile.cols = p->hidden;
    tile.tokens = e->count - first;
    tile.fast = mp_tile_is_fast(type, e->gate | e->up, stride, p->x, p->x_stride, p->hidden);
    tile.w =
        (const MP_GLOBAL char *)(mp_tensor_w_row(0) % 16 < 8 ? e->gate : e->up) + channel * stride;
    tile.x = (const MP_GLOBAL float *)p->x;
    MP_UNROLL
    for (int i = 0; i < 2; i++) {
        const uint32_t row = mp_tensor_w_row(i), c = row / 16 * 8 + row % 8;

        tile.w_at[i] = mp_min(c, e->channels - 1 - channel) * (uint32_t)stride;
    }
    MP_UNROLL
    for (int i = 0; i < 4; i++) {
        const uint32_t t = first + mp_tensor_x_row(i);

        tile.x_at[i] = t < e->count ? mp_expert_x(p, e, t) : MP_TENSOR_NONE;
    }
    MP_UNROLL
    for (int i = 0; i < MP_TENSOR_SUMS; i++)
        sum[i] = 0;
    mp_tensor_multiply(sum, &tile, type);
    MP_UNROLL
    for (int i = 0; i < MP_TENSOR_SUMS / 2; i++) {
        const int m = i / 4, of = i % 4;
        const uint32_t t = first + mp_tensor_token(m, of);
        const uint32_t c = channel + mp_warp() * 8 + mp_tensor_row(of);

        if (t < e->count && c < e->channels)
            mp_expert_act(p, e, c, t, sum[m * 8 + of], sum[m * 8 + 4 + of]);
    }
}

/* Where sum[i] of a tile that begins with row `first` of the expert belongs in rank; 0: nowhere. */
MP_DEVICE MP_GLOBAL float *mp_tensor_rank(const struct mp_cuda_experts *p,
                                          const MP_GLOBAL struct mp_cuda_expert *e, uint32_t first,
                                          int i)
{
    const uint32_t t = first + mp_tensor_token(i / 8, i % 4);
    const uint32_t r = mp_block_x() * MP_TENSOR_ROWS + mp_warp() * 16 + (uint32_t)i % 8 / 4 * 8 +
                       mp_tensor_row(i % 4);

    if (t >= e->count || r >= p->hidden)
        return 0;
    return (MP_GLOBAL float *)p->rank + (uint64_t)mp_expert_rows(p, e)[t] * p->hidden + r;
}

/* rank for the tile's output rows and rows [first, first + MP_TENSOR_TOKENS) of expert e. A further
 * slice goes on with the sums that the one before has left: so slices that are cut at multiples of
 * 16 channels, or at whole blocks, have the bits of the whole. */
MP_DEVICE void mp_tensor_down_tile(const struct mp_cuda_experts *p,
                                   const MP_GLOBAL struct mp_cuda_expert *e, const int type,
                                   uint32_t first)
{
    const uint32_t row = mp_block_x() * MP_TENSOR_ROWS;
    const uint64_t stride = mp_bytes_of(type, e->channels);
    struct mp_tensor_tile tile;
    float sum[MP_TENSOR_SUMS];

    tile.cols = e->channels;
    tile.tokens = e->count - first;
    tile.fast = mp_tile_is_fast(type, e->down, stride, p->act, p->channels, e->channels);
    tile.w = (const MP_GLOBAL char *)e->down + row * stride;
    tile.x = (const MP_GLOBAL float *)p->act + (uint64_t)(e->first + first) * p->channels;
    mp_tensor_place(&tile, p->hidden - row, (uint32_t)stride, p->channels);
    MP_UNROLL
    for (int i = 0; i < MP_TENSOR_SUMS; i++) {
        const MP_GLOBAL float *from = e->accumulate ? mp_tensor_rank(p, e, first, i) : 0;

        sum[i] = from != 0 ? *from : 0;
    }
    mp_tensor_multiply(sum, &tile, type);
    first = mp_here(first); /* places are found again, not kept meanwhile */
    MP_UNROLL
    for (int i = 0; i < MP_TENSOR_SUMS; i++) {
        MP_GLOBAL float *to = mp_tensor_rank(p, e, first, i);

        if (to != 0)
            *to = sum[i];
    }
}

MP_DEVICE void mp_tensor_up(const struct mp_cuda_experts *p, const int type)
{
    const MP_GLOBAL struct mp_cuda_expert *e = mp_expert_of(p);
    const uint32_t first = mp_block_z() * MP_TENSOR_TOKENS;

    if (mp_block_x() * MP_TENSOR_CHANNELS < e->channels && first < e->count)
        mp_tensor_up_tile(p, e, type, first);
}

MP_DEVICE void mp_tensor_down(const struct mp_cuda_experts *p, const int type)
{
    const MP_GLOBAL struct mp_cuda_expert *e = mp_expert_of(p);
    const uint32_t first = mp_block_z() * MP_TENSOR_TOKENS;

    if (first < e->count)
        mp_tensor_down_tile(p, e, type, first);
}

/* Four blocks on one multiprocessor: at most 128 registers a thread. */
#define MP_TENSORS(name, type)                                                      \
    MP_KERNEL(mp_tensor_##name, mp_cuda_matmul, MP_TENSOR_WARPS *MP_LANES, 4)       \
    {                                                                               \
        mp_tensor(&p, type);                                                        \
    }                                                                               \
    MP_KERNEL(mp_tensor_up_##name, mp_cuda_experts, MP_TENSOR_WARPS *MP_LANES, 4)   \
    {                                                                               \
        mp_tensor_up(&p, type);                                                     \
    }                                                                               \
    MP_KERNEL(mp_tensor_down_##name, mp_cuda_experts, MP_TENSOR_WARPS *MP_LANES, 4) \
    {                                                                               \
        mp_tensor_down(&p, type);                                                   \
    }

#endif
