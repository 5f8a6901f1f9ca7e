/*
 * The experts of a work list: a block for some channels (up) or output rows (down) of one expert;
 * it takes 8 of the expert's rows at a time.
 */
#ifndef MP_EXPERTS_CUH
#define MP_EXPERTS_CUH

#include "kernels/cuda/dot.cuh"
#include "kernels/cuda/work.cuh"

/* act for rows / 2 channels and rows [i, i + tokens) of expert e */
MP_DEVICE void mp_expert_up_tile(const struct mp_cuda_experts *p,
                                 const MP_GLOBAL struct mp_cuda_expert *e, const int type,
                                 const int rows, const int tokens, uint32_t channel, uint32_t i,
                                 const int again, int asks, int more)
{
    const uint32_t lanes = MP_LANES / (uint32_t)(rows * tokens);
    const uint64_t stride = mp_bytes_of(type, p->hidden);
    const uint32_t from = mp_min(mp_here(channel), e->channels - 1);
    uint32_t index, c, t; /* of the dot product that this lane gets */
    struct mp_tile tile;
    float gate, up;

    MP_UNROLL
    for (int r = 0; r < rows; r++)
        tile.w_at[r] =
            mp_min((uint32_t)(r % (rows / 2)), e->channels - 1 - from) * (uint32_t)stride;
    tile.w[0] = (const MP_GLOBAL char *)e->gate + from * stride;
    tile.w[1] = (const MP_GLOBAL char *)e->up + from * stride;
    tile.x = (const MP_GLOBAL float *)p->x;
    MP_UNROLL
    for (int k = 0; k < tokens; k++)
        tile.x_at[k] = mp_expert_x(p, e, mp_min(i + k, e->count - 1));
    tile.again = again;
    tile.asks = asks;
    tile.next = more && from + rows / 2 < e->channels ? rows / 2 * (uint32_t)stride : 0;
    gate = mp_tile_dot(&tile, type, 0, rows, tokens, MP_DOT_PART_COLS(p->hidden), 0, p->hidden, 0);
    up = mp_shuffle_xor_float(gate, 16); /* the lower 16 lanes have gates, the others ups */
    mp_forget();
    index = mp_here(mp_lane()) / lanes;
    c = channel + index / (uint32_t)tokens;
    t = i + index % (uint32_t)tokens;
    if (mp_lane() < 16 && mp_lane() % lanes == 0 && c < e->channels && t < e->count)
        mp_expert_act(p, e, c, t, gate, up);
}

/* The same for operands that are not aligned. */
MP_DEVICE void mp_expert_up_slow(const struct mp_cuda_experts *p,
                                 const MP_GLOBAL struct mp_cuda_expert *e, const int type,
                                 uint32_t channel, uint32_t i)
{
    const uint64_t stride = mp_bytes_of(type, p->hidden);
    const uint32_t part = MP_DOT_PART_COLS(p->hidden);

    MP_NO_UNROLL
    for (uint32_t c = channel; c < mp_min(channel + MP_TILE_ROWS / 2, e->channels); c++) {
        const MP_GLOBAL char *w_gate = (const MP_GLOBAL char *)e->gate + c * stride;
        const MP_GLOBAL char *w_up = (const MP_GLOBAL char *)e->up + c * stride;

        MP_NO_UNROLL
        for (uint32_t t = i; t < mp_min(i + MP_TILE_TOKENS, e->count); t++) {
            const struct mp_slow_x x = { (const MP_GLOBAL float *)p->x + mp_expert_x(p, e, t), 0,
                                         0 };
            const float gate = mp_dot_slow(w_gate, x, type, part, p->hidden, 0);
            const float up = mp_dot_slow(w_up, x, type, part, p->hidden, 0);

            if (mp_lane() == 0)
                mp_expert_act(p, e, c, t, gate, up);
        }
    }
}

/* rank for `rows` output rows and rows [i, i + tokens) of expert e */
MP_DEVICE void mp_expert_down_tile(const struct mp_cuda_experts *p,
                                   const MP_GLOBAL struct mp_cuda_expert *e, const int type,
                                   const int rows, const int tokens, uint32_t row, uint32_t i,
                                   const int again, int asks, int more)
{
    const uint32_t lanes = MP_LANES / (uint32_t)(rows * tokens);
    const uint32_t index = mp_lane() / lanes;
    const uint32_t r = row + index / (uint32_t)tokens, t = i + index % (uint32_t)tokens;
    const int mine = mp_lane() % lanes == 0 && r < p->hidden && t < e->count;
    const uint64_t stride = mp_bytes_of(type, e->channels);
    const uint32_t from = mp_min(row, p->hidden - 1);
    MP_GLOBAL float *to = (MP_GLOBAL float *)p->rank +
                          (uint64_t)mp_expert_rows(p, e)[mp_min(t, e->count - 1)] * p->hidden + r;
    struct mp_tile tile;
    float sum = mine && e->accumulate ? *to : 0.0f;

    MP_UNROLL
    for (int k = 0; k < rows; k++)
        tile.w_at[k] = mp_min((uint32_t)k, p->hidden - 1 - from) * (uint32_t)stride;
    tile.w[0] = tile.w[1] = (const MP_GLOBAL char *)e->down + from * stride;
    tile.x = (const MP_GLOBAL float *)p->act + (uint64_t)(e->first + i) * p->channels;
    MP_UNROLL
    for (int k = 0; k < tokens; k++)
        tile.x_at[k] = mp_min(k, e->count - 1 - i) * p->channels;
    tile.again = again;
    tile.asks = asks;
    tile.next = more && from + 2 * rows <= p->hidden ? rows * (uint32_t)stride : 0;
    sum = mp_tile_dot(&tile, type, 0, rows, tokens, MP_STEP_COLS, 0, e->channels, sum);
    if (mine)
        *to = sum;
}

/* The same for operands that are not aligned. */
MP_DEVICE void mp_expert_down_slow(const struct mp_cuda_experts *p,
                                   const MP_GLOBAL struct mp_cuda_expert *e, const int type,
                                   uint32_t row, uint32_t i)
{
    const uint64_t stride = mp_bytes_of(type, e->channels);

    MP_NO_UNROLL
    for (uint32_t r = row; r < mp_min(row + MP_TILE_ROWS, p->hidden); r++) {
        MP_NO_UNROLL
        for (uint32_t t = i; t < mp_min(i + MP_TILE_TOKENS, e->count); t++) {
            MP_GLOBAL float *to =
                (MP_GLOBAL float *)p->rank + (uint64_t)mp_expert_rows(p, e)[t] * p->hidden + r;
            const struct mp_slow_x x = {
                (const MP_GLOBAL float *)p->act + (uint64_t)(e->first + t) * p->channels, 0, 0
            };
            const float sum = mp_dot_slow((const MP_GLOBAL char *)e->down + r * stride, x, type,
                                          MP_STEP_COLS, e->channels, e->accumulate ? *to : 0.0f);

            if (mp_lane() == 0)
                *to = sum;
        }
    }
}

/* Of an expert with up to 8 rows, at a time, and how often that is. What has registers for four
 * also has code for two and four rows of any number. */
#define MP_EXPERT_CUTS(type) ((type) != MP_WTYPE_F32 && (type) < MP_WTYPE_PLAIN_COUNT)
#define MP_EXPERT_FEW(type) (MP_EXPERT_CUTS(type) ? 4 : 2)
#define MP_EXPERT_PASSES(type) (MP_TILE_TOKENS / MP_EXPERT_FEW(type))

/*
 * EACH(rows of weights, rows of the expert, the first of the former and of the latter; are these
 * weights read again soon; ask ahead; are there more of them) for the warp's four rows of weights
 * and up to eight of the expert. `most`: an expert has 1, or up to 8, or any number; the first two
 * keep to 64 registers, and find weights in the first-level cache for all but the first few.
 */
#define MP_EXPERT_TILES(left, most, EACH)                                          \
    do {                                                                           \
        if ((most) == 1 || (left) == 1) {                                          \
            EACH(4, 1, 0, 0, 0, mp_is_quant(type), 0);                             \
        } else if ((most) == 8) {                                                  \
            MP_NO_UNROLL                                                           \
            for (uint32_t cut = 0; cut < 2 * MP_EXPERT_PASSES(type); cut++)        \
                if (cut % MP_EXPERT_PASSES(type) * MP_EXPERT_FEW(type) < (left))   \
                    EACH(2, MP_EXPERT_FEW(type), cut / MP_EXPERT_PASSES(type) * 2, \
                         cut % MP_EXPERT_PASSES(type) * MP_EXPERT_FEW(type), 1,    \
                         cut % MP_EXPERT_PASSES(type) == 0 &&                      \
                             (!mp_is_quant(type) || mp_asks_far(type)),            \
                         cut < MP_EXPERT_PASSES(type));                            \
        } else if ((left) == 2 && MP_EXPERT_CUTS(type)) {                          \
            EACH(4, 2, 0, 0, 0, 0, 0);                                             \
        } else if ((left) <= 4 && MP_EXPERT_CUTS(type)) {                          \
            EACH(4, 4, 0, 0, 0, 0, 0);                                             \
        } else {                                                                   \
            EACH(4, 8, 0, 0, 0, 0, 0);                                             \
        }                                                                          \
    } while (0)

/* The rows of an expert that a block begins with, and those after rows i. */
MP_DEVICE uint32_t mp_expert_first(const int most)
{
    return most == 0 ? mp_block_z() * MP_TILE_TOKENS : 0;
}

MP_DEVICE uint32_t mp_expert_next(const int most, uint32_t i)
{
    return most == 0 ? i + mp_blocks_z() * MP_TILE_TOKENS : 0xffffffffu;
}

MP_DEVICE void mp_experts_up(const struct mp_cuda_experts *p, const int type, const int most)
{
    const MP_GLOBAL struct mp_cuda_expert *e = mp_expert_of(p);
    const uint32_t channel = mp_block_x() * MP_EXPERT_UP_CHANNELS + mp_warp() * (MP_TILE_ROWS / 2);
    const int fast = mp_tile_is_fast(type, e->gate | e->up, mp_bytes_of(type, p->hidden), p->x,
                                     p->x_stride, p->hidden);

    if (channel >= e->channels)
        return;
    MP_NO_UNROLL
    for (uint32_t i = mp_expert_first(most); i < e->count; i = mp_expert_next(most, i)) {
#define UP(rows, tokens, row, token, again, asks, more) \
    mp_expert_up_tile(p, e, type, rows, tokens, channel + (row) / 2, i + (token), again, asks, more)
        if (fast)
            MP_EXPERT_TILES(e->count - i, most, UP);
        else
            mp_expert_up_slow(p, e, type, channel, i);
#undef UP
    }
}

MP_DEVICE void mp_experts_down(const struct mp_cuda_experts *p, const int type, const int most)
{
    const MP_GLOBAL struct mp_cuda_expert *e = mp_expert_of(p);
    const uint32_t row = mp_block_x() * MP_EXPERT_DOWN_ROWS + mp_warp() * MP_TILE_ROWS;
    const int fast = mp_tile_is_fast(type, e->down, mp_bytes_of(type, e->channels), p->act,
                                     p->channels, e->channels);

    if (row >= p->hidden)
        return;
    MP_NO_UNROLL
    for (uint32_t i = mp_expert_first(most); i < e->count; i = mp_expert_next(most, i)) {
#define DOWN(rows, tokens, first, token, again, asks, more) \
    mp_expert_down_tile(p, e, type, rows, tokens, row + (first), i + (token), again, asks, more)
        if (fast)
            MP_EXPERT_TILES(e->count - i, most, DOWN);
        else
            mp_expert_down_slow(p, e, type, row, i);
#undef DOWN
    }
}

/*
 * EACH() as above for experts with up to `most` rows, 2 or 4: two rows of weights with all of those
 * at a time (of F32 with two), so no weight is read twice where registers allow it. Functions of
 * their own, of which modules of quantised types have nothing.
 */
#define MP_EXPERT_AT_ONCE(type, most) ((most) == 4 && MP_EXPERT_CUTS(type) ? 4 : 2)
#define MP_EXPERT_TIMES(type, most) ((most) / MP_EXPERT_AT_ONCE(type, most))
#define MP_EXPERT_FEW_TILES(count, most, EACH)                                                    \
    do {                                                                                          \
        if ((count) == 1) {                                                                       \
            EACH(4, 1, 0, 0, 0, 0, 0);                                                            \
        } else {                                                                                  \
            MP_NO_UNROLL                                                                          \
            for (int cut = 0; cut < 2 * MP_EXPERT_TIMES(type, most); cut++)                       \
                if (cut % MP_EXPERT_TIMES(type, most) * MP_EXPERT_AT_ONCE(type, most) <           \
                    (int)(count))                                                                 \
                    EACH(2, MP_EXPERT_AT_ONCE(type, most),                                        \
                         (uint32_t)(cut / MP_EXPERT_TIMES(type, most) * 2),                       \
                         (uint32_t)(cut % MP_EXPERT_TIMES(type, most) *                           \
                                    MP_EXPERT_AT_ONCE(type, most)),                               \
                         MP_EXPERT_TIMES(type, most) > 1, cut % MP_EXPERT_TIMES(type, most) == 0, \
                         cut < MP_EXPERT_TIMES(type, most));                                      \
        }                                                                                         \
    } while (0)

MP_DEVICE void mp_experts_up_few(const struct mp_cuda_experts *p, const int type, const int most)
{
    const MP_GLOBAL struct mp_cuda_expert *e = mp_expert_of(p);
    const uint32_t channel = mp_block_x() * MP_EXPERT_UP_CHANNELS + mp_warp() * (MP_TILE_ROWS / 2);

    if (channel >= e->channels || e->count == 0)
        return;
#define UP(rows, tokens, row, token, again, asks, more) \
    mp_expert_up_tile(p, e, type, rows, tokens, channel + (row) / 2, token, again, asks, more)
    if (mp_tile_is_fast(type, e->gate | e->up, mp_bytes_of(type, p->hidden), p->x, p->x_stride,
                        p->hidden))
        MP_EXPERT_FEW_TILES(e->count, most, UP);
    else
        mp_expert_up_slow(p, e, type, channel, 0);
#undef UP
}

MP_DEVICE void mp_experts_down_few(const struct mp_cuda_experts *p, const int type, const int most)
{
    const MP_GLOBAL struct mp_cuda_expert *e = mp_expert_of(p);
    const uint32_t row = mp_block_x() * MP_EXPERT_DOWN_ROWS + mp_warp() * MP_TILE_ROWS;

    if (row >= p->hidden || e->count == 0)
        return;
#define DOWN(rows, tokens, first, token, again, asks, more) \
    mp_expert_down_tile(p, e, type, rows, tokens, row + (first), token, again, asks, more)
    if (mp_tile_is_fast(type, e->down, mp_bytes_of(type, e->channels), p->act, p->channels,
                        e->channels))
        MP_EXPERT_FEW_TILES(e->count, most, DOWN);
    else
        mp_expert_down_slow(p, e, type, row, 0);
#undef DOWN
}

#define MP_EXPERTS_FEW(name, type, most)                                                     \
    MP_KERNEL(mp_experts_up##most##_##name, mp_cuda_experts, MP_EXPERT_WARPS *MP_LANES, 8)   \
    {                                                                                        \
        mp_experts_up_few(&p, type, most);                                                   \
    }                                                                                        \
    MP_KERNEL(mp_experts_down##most##_##name, mp_cuda_experts, MP_EXPERT_WARPS *MP_LANES, 8) \
    {                                                                                        \
        mp_experts_down_few(&p, type, most);                                                 \
    }

/* `blocks` on one multiprocessor at a time: registers are shared out for that many. */
#define MP_EXPERTS(name, type, most, blocks)                                             \
    MP_KERNEL(mp_experts_up##name, mp_cuda_experts, MP_EXPERT_WARPS *MP_LANES, blocks)   \
    {                                                                                    \
        mp_experts_up(&p, type, most);                                                   \
    }                                                                                    \
    MP_KERNEL(mp_experts_down##name, mp_cuda_experts, MP_EXPERT_WARPS *MP_LANES, blocks) \
    {                                                                                    \
        mp_experts_down(&p, type, most);                                                 \
    }

#endif
