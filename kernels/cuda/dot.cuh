/*
 * Dot products of a warp: rows of weights with tokens. A lane owns 8 columns of each 256: the first
 * lane columns 0 to 7, the next 8 to 15. It sums its products of a part of the columns in ascending
 * order; then lanes are added (mp_warp_sum()), then parts in order. `type`, `rows`, `tokens` and so
 * on are constants of the caller, so that each use becomes straight code; no bit of a sum depends
 * on them.
 *
 * Little's law: HBM3e at 4.8 TB/s that answers after some 800 ns wants 3.8 MB asked for at any
 * time, 29 KiB in each of 132 multiprocessors, and about twice that where requests come in waves.
 * With one token a lane asks for 16 bytes of each of four rows at once, and 40 warps of 48
 * registers have 80 KiB in flight. That is as good as fewer warps which each ask further ahead, and
 * takes fewer registers; only where sums let few warps run is the next step asked for ahead.
 *
 * Quantised weights become floats in registers (kernels/cuda/blocks.cuh) and are multiplied as
 * those are: the bits are those of the decoded weights in F32. Four rows are 8 to 34 bytes of a
 * lane, so with one token, too, next steps are asked for, the more the fewer bits a weight has.
 */
#ifndef MP_DOT_CUH
#define MP_DOT_CUH

#include "kernels/cuda/blocks.cuh"
#include "kernels/cpu/kernels.h"

/* What a warp multiplies: rows of weights and of activations. */
struct mp_tile {
    const MP_GLOBAL char *w[2];  /* the first half of the rows, the second */
    uint32_t w_at[MP_TILE_ROWS]; /* bytes from there: half as many registers as addresses */
    const MP_GLOBAL float *x;
    uint32_t x_at[MP_TILE_TOKENS]; /* elements from x */
    const MP_GLOBAL float *norm;   /* where activations are normed as they are read: its weights */
    const float *scale;            /* and the factors of tokens, mp_norm_scale() */
    int again;                     /* constant: these weights are read again soon */
    int asks;                      /* ask for weights before they are wanted, also for those of */
    uint32_t next;                 /* the rows so many bytes further on; 0: not */
};

/* Whether rows at `w`, `w_stride` bytes apart, and at `x` can be read 8 columns at a time. */
MP_DEVICE int mp_tile_is_fast(const int type, uint64_t w, uint64_t w_stride, uint64_t x,
                              uint32_t x_stride, uint32_t cols)
{
    return ((w | w_stride) % mp_type_align(type) | x % 16 | x_stride % 4 | cols % 8) == 0;
}

/* Columns c to c + 8 of a row that begins `row` bytes behind w. */
MP_DEVICE void mp_load_eight(struct mp_eight *to, const int type, const MP_GLOBAL char *w,
                             uint32_t row, uint32_t c, const int again)
{
    const MP_GLOBAL char *at = w + (row + c / mp_block_cols(type) * mp_block_bytes(type));
    struct mp_words a;

    if (mp_is_quant(type)) {
        mp_load_block(to, type, at, c % mp_block_cols(type), mp_type_align(type));
        return;
    }
    a = again ? mp_load(at) : mp_load_once(at);
    MP_UNROLL
    for (int i = 0; i < 4; i++)
        to->word[i] = a.word[i];
    if (type == MP_WTYPE_F32) {
        const struct mp_words b = again ? mp_load(at + 16) : mp_load_once(at + 16);

        MP_UNROLL
        for (int i = 0; i < 4; i++)
            to->word[4 + i] = b.word[i];
    }
}

/* The lower number of a word, or the higher one. */
MP_DEVICE float mp_widen_half(uint32_t word, const int type, const int high)
{
    if (type == MP_WTYPE_BF16)
        return mp_as_float(high ? word & 0xffff0000u : word << 16);
    return high ? mp_half_high(word) : mp_half_low(word);
}

MP_DEVICE float mp_widen(const struct mp_eight *from, const int type, const int i)
{
    const uint32_t word = from->word[type == MP_WTYPE_F32 ? i : i / 2];

    if (mp_is_quant(type))
        return mp_decoded(from, type, from->word[i / 4], (uint32_t)i);
    if (type == MP_WTYPE_F32)
        return mp_as_float(word);
    return mp_widen_half(word, type, i % 2);
}

MP_DEVICE void mp_tile_load(struct mp_eight *to, const struct mp_tile *tile, const int type,
                            const int rows, uint32_t c)
{
    MP_UNROLL
    for (int r = 0; r < rows; r++)
        mp_load_eight(&to[r], type, tile->w[r * 2 / rows], tile->w_at[r], c, tile->again);
}

/* Is more asked for than two steps? Of Q5_1 and Q5_K no register is left for it. */
MP_DEVICE int mp_asks_far(const int type)
{
    return mp_is_quant(type) && type != MP_WTYPE_Q5_1 && type != MP_WTYPE_Q5_K;
}

/* A constant. */
MP_DEVICE int mp_ask_steps(const int type)
{
    const int steps = MP_ASK_BYTES / (int)mp_bytes_of(type, MP_STEP_COLS);

    return mp_asks_far(type) && steps > MP_ASK_STEPS ? steps : MP_ASK_STEPS;
}

/* Where quantised rows are read, ask for what is there some steps later: a lane for the block that
 * it reads then, of blocks with the columns of a step for an eighth byte of it. What is added to
 * an address is constant or the lane's, so it takes few registers. */
MP_DEVICE void mp_tile_ask_blocks(const struct mp_tile *tile, const int type, const int rows,
                                  uint32_t c, uint32_t end)
{
    const uint32_t at = c / mp_block_cols(type) * mp_block_bytes(type);
    const uint32_t in_block = mp_block_cols(type) == MP_STEP_COLS ? c % MP_STEP_COLS : 0;
    const uint32_t cols = (uint32_t)mp_ask_steps(type) * MP_STEP_COLS;
    const uint32_t ahead = (uint32_t)mp_bytes_of(type, cols) + in_block;

    if (c + cols >= end || in_block >= mp_block_bytes(type))
        return;
    MP_UNROLL
    for (int r = 0; r < rows; r++)
        mp_ask(tile->w[r * 2 / rows] + (tile->w_at[r] + at) + ahead);
}

/* Ask for `steps` steps of columns [c, end) of rows `further` bytes behind these: a line by a lane.
 */
MP_DEVICE void mp_tile_ask(const struct mp_tile *tile, const int type, const int rows,
                           const int steps, uint32_t c, uint32_t end, uint32_t further)
{
    const uint32_t step_bytes = (uint32_t)mp_bytes_of(type, MP_STEP_COLS);
    const uint32_t lines = ((uint32_t)steps * step_bytes + MP_LINE_BYTES - 1) / MP_LINE_BYTES;
    const uint32_t lane = mp_here(mp_lane()), r = lane / lines; /* lines: of a row */
    const MP_GLOBAL char *at = tile->w[0];

    if (mp_is_quant(type))
        c = c / MP_STEP_COLS * step_bytes + lane % lines * MP_LINE_BYTES; /* bytes from here on */
    else
        c += lane % lines * (MP_LINE_BYTES / mp_type_bytes(type));
    further += tile->w_at[0];
    MP_UNROLL
    for (int i = 1; i < rows; i++) {
        at = r == (uint32_t)i ? tile->w[i * 2 / rows] : at;
        further += r == (uint32_t)i ? tile->w_at[i] - tile->w_at[0] : 0;
    }
    if (mp_is_quant(type) && r < (uint32_t)rows && c < (uint32_t)mp_bytes_of(type, end))
        mp_ask(at + (further + c));
    if (!mp_is_quant(type) && r < (uint32_t)rows && c < end)
        mp_ask(at + (further + c * mp_type_bytes(type)));
}

/* Token t's activations at x_at, normed or as they are. */
MP_DEVICE struct mp_words mp_tile_x(const struct mp_tile *tile, const int normed, const int t,
                                    uint32_t c, const struct mp_words *norm)
{
    struct mp_words x = mp_load(tile->x + (tile->x_at[t] + c));

    MP_UNROLL
    for (int i = 0; normed && i < 4; i++)
        x.word[i] =
            mp_as_bits(mp_as_float(x.word[i]) * tile->scale[t] * mp_as_float(norm->word[i]));
    return x;
}

/* sum[r * tokens + t] += this lane's 8 columns from c on of row r with those of token t; 4 at a
 * time, which saves registers. */
MP_DEVICE void mp_tile_add(float *sum, const struct mp_eight *w, const struct mp_tile *tile,
                           const int type, const int normed, const int rows, const int tokens,
                           uint32_t c)
{
    MP_UNROLL
    for (int half = 0; half < 8; half += 4) {
        const uint32_t at = mp_here(c + (uint32_t)half); /* not the addresses of both halves */
        struct mp_words norm = { { 0, 0, 0, 0 } };
        float wide[MP_TILE_ROWS * 4];

        if (normed)
            norm = mp_load(tile->norm + at);
        MP_UNROLL
        for (int i = 0; i < rows * 4; i++)
            wide[i] = mp_widen(&w[i / 4], type, half + i % 4);
        MP_UNROLL
        for (int t = 0; t < tokens; t++) {
            const struct mp_words x = mp_tile_x(tile, normed, t, at, &norm);

            MP_UNROLL
            for (int i = 0; i < rows * 4; i++)
                sum[i / 4 * tokens + t] =
                    mp_fma(wide[i], mp_as_float(x.word[i % 4]), sum[i / 4 * tokens + t]);
        }
    }
}

/*
 * The dot product of row r with token t over columns [first, end), rows * tokens <= 32 of them:
 * lane l returns that of r * tokens + t = l / (32 / (rows * tokens)). total = start + the sum of
 * the first `part` columns, + that of the next ... `first` and `part` are multiples of
 * MP_STEP_COLS. Operands as mp_tile_is_fast() says.
 */
MP_DEVICE float mp_tile_dot(const struct mp_tile *tile, const int type, const int normed,
                            const int rows, const int tokens, uint32_t part, uint32_t first,
                            uint32_t end, float start)
{
    const uint32_t step = 8 * mp_lane();
    uint32_t part_end = first + part;
    struct mp_eight w[MP_TILE_ROWS];
    float sum[MP_TILE_ROWS * MP_TILE_TOKENS];

    MP_UNROLL
    for (int i = 0; i < rows * tokens; i++)
        sum[i] = 0;
    MP_UNROLL
    for (int i = 0; i < rows * 8; i++)
        w[i / 8].word[i % 8] = 0;
    if (tile->asks && mp_asks_far(type))
        mp_tile_ask(tile, type, rows, mp_ask_steps(type) - 1, first + MP_STEP_COLS, end, 0);
    if (tile->asks && tile->next > 0)
        mp_tile_ask(tile, type, rows, mp_ask_steps(type), first, end, tile->next);
    MP_NO_UNROLL
    for (uint32_t c = first; c < end;
         c += MP_STEP_COLS) { /* all lanes, because they meet in the sum */
        if (tile->asks && !mp_asks_far(type))
            mp_tile_ask(tile, type, rows, 1, c + MP_ASK_STEPS * MP_STEP_COLS, end, 0);
        if (c + step < end) {
            mp_tile_load(w, tile, type, rows, c + step);
            if (tile->asks && mp_asks_far(type))
                mp_tile_ask_blocks(tile, type, rows, mp_here(c + step), end);
            mp_tile_add(sum, w, tile, type, normed, rows, tokens, c + step);
        }
        if (c + MP_STEP_COLS >= mp_min(part_end, end)) {
            part_end += part;
            start = start + mp_warp_sums(sum, (uint32_t)(rows * tokens));
            MP_UNROLL
            for (int i = 0; i < rows * tokens; i++)
                sum[i] = 0;
        }
    }
    return start;
}

/* One weight at any address. */
MP_DEVICE float mp_weight(const MP_GLOBAL char *row, const int type, uint64_t i)
{
    const MP_GLOBAL uint16_t *at =
        (const MP_GLOBAL uint16_t *)row + i * (type == MP_WTYPE_F32 ? 2 : 1);

    if (mp_is_quant(type))
        return mp_block_weight(row, type, i);
    if (type == MP_WTYPE_F32)
        return mp_as_float(at[0] | (uint32_t)at[1] << 16);
    if (type == MP_WTYPE_BF16)
        return mp_as_float((uint32_t)at[0] << 16);
    return mp_half_low(at[0]);
}

/* Activations at any address; norm 0: as they are. */
struct mp_slow_x {
    const MP_GLOBAL float *x, *norm;
    float scale;
};

/* One such dot product of all columns, with operands at any address and any number of columns;
 * every lane has it. */
MP_DEVICE float mp_dot_slow(const MP_GLOBAL char *w, struct mp_slow_x x, const int type,
                            uint32_t part, uint32_t cols, float start)
{
    MP_NO_UNROLL
    for (uint32_t first = 0; first < cols; first += part) {
        const uint32_t end = mp_min(first + part, cols);
        float sum = 0;

        MP_NO_UNROLL
        for (uint32_t c = first + 8 * mp_lane(); c < end; c += MP_STEP_COLS) {
            MP_NO_UNROLL
            for (uint32_t i = c; i < mp_min(c + 8, cols); i++)
                sum = mp_fma(mp_weight(w, type, i),
                             x.norm != 0 ? x.x[i] * x.scale * x.norm[i] : x.x[i], sum);
        }
        start = start + mp_warp_sum(sum);
    }
    return start;
}

#endif
