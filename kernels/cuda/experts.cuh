/*
 * The experts of a work list: a block for some channels (up) or output rows (down) of one expert;
 * it takes 8 of the expert's rows at a time.
 */
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/dot.cuh"

MP_DEVICE const MP_GLOBAL uint32_t *mp_expert_rows(const struct mp_cuda_experts *p,
                                                   const struct mp_cuda_expert *e)
{
    return (const MP_GLOBAL uint32_t *)p->row + e->first;
}

MP_DEVICE struct mp_cuda_expert mp_expert_of(const struct mp_cuda_experts *p)
{
    return ((const struct mp_cuda_expert *)p->work)[mp_block_y()];
}

/* Where in x the input of the expert's row i is. */
MP_DEVICE uint32_t mp_expert_x(const struct mp_cuda_experts *p, const struct mp_cuda_expert *e,
                               uint32_t i)
{
    return mp_expert_rows(p, e)[i] / p->top_k * p->x_stride;
}

MP_DEVICE void mp_expert_act(const struct mp_cuda_experts *p, const struct mp_cuda_expert *e,
                             uint32_t channel, uint32_t i, float gate, float up)
{
    ((MP_GLOBAL float *)p->act)[(uint64_t)(e->first + i) * p->channels + channel] =
        mp_silu(gate) * up;
}

/* act for two channels and rows [i, i + tokens) of expert e */
MP_DEVICE void mp_expert_up_tile(const struct mp_cuda_experts *p, const struct mp_cuda_expert *e,
                                 const int type, const int tokens, uint32_t channel, uint32_t i)
{
    const uint32_t lanes = MP_LANES / (uint32_t)(MP_TILE_ROWS * tokens);
    const uint32_t index = mp_lane() / lanes;
    const uint32_t c = channel + index / (uint32_t)tokens, t = i + index % (uint32_t)tokens;
    const uint64_t stride = (uint64_t)p->hidden * mp_type_bytes(type);
    struct mp_tile tile;
    float gate, up;

    MP_UNROLL
    for (int r = 0; r < MP_TILE_ROWS; r++)
        tile.w[r] = (const MP_GLOBAL char *)(r < MP_TILE_ROWS / 2 ? e->gate : e->up) +
                    mp_min(channel + r % (MP_TILE_ROWS / 2), e->channels - 1) * stride;
    tile.x = (const MP_GLOBAL float *)p->x;
    MP_UNROLL
    for (int k = 0; k < tokens; k++)
        tile.x_at[k] = mp_expert_x(p, e, mp_min(i + k, e->count - 1));
    gate = mp_tile_dot(&tile, type, 0, MP_TILE_ROWS, tokens, 0, p->hidden, 0);
    up = mp_shuffle_xor_float(gate, 16); /* the lower 16 lanes have gates, the others ups */
    if (mp_lane() < 16 && mp_lane() % lanes == 0 && c < e->channels && t < e->count)
        mp_expert_act(p, e, c, t, gate, up);
}

/* The same for operands that are not aligned. */
MP_DEVICE void mp_expert_up_slow(const struct mp_cuda_experts *p, const struct mp_cuda_expert *e,
                                 const int type, uint32_t channel, uint32_t i)
{
    const uint64_t stride = (uint64_t)p->hidden * mp_type_bytes(type);

    MP_NO_UNROLL
    for (uint32_t c = channel; c < mp_min(channel + MP_TILE_ROWS / 2, e->channels); c++) {
        const MP_GLOBAL char *w_gate = (const MP_GLOBAL char *)e->gate + c * stride;
        const MP_GLOBAL char *w_up = (const MP_GLOBAL char *)e->up + c * stride;

        MP_NO_UNROLL
        for (uint32_t t = i; t < mp_min(i + MP_TILE_TOKENS, e->count); t++) {
            const struct mp_slow_x x = { (const MP_GLOBAL float *)p->x + mp_expert_x(p, e, t), 0,
                                         0 };
            const float gate = mp_dot_slow(w_gate, x, type, 0, p->hidden, 0);
            const float up = mp_dot_slow(w_up, x, type, 0, p->hidden, 0);

            if (mp_lane() == 0)
                mp_expert_act(p, e, c, t, gate, up);
        }
    }
}

/* rank for four output rows and rows [i, i + tokens) of expert e */
MP_DEVICE void mp_expert_down_tile(const struct mp_cuda_experts *p, const struct mp_cuda_expert *e,
                                   const int type, const int tokens, uint32_t row, uint32_t i)
{
    const uint32_t lanes = MP_LANES / (uint32_t)(MP_TILE_ROWS * tokens);
    const uint32_t index = mp_lane() / lanes;
    const uint32_t r = row + index / (uint32_t)tokens, t = i + index % (uint32_t)tokens;
    const int mine = mp_lane() % lanes == 0 && r < p->hidden && t < e->count;
    const uint64_t stride = (uint64_t)e->channels * mp_type_bytes(type);
    MP_GLOBAL float *to = (MP_GLOBAL float *)p->rank +
                          (uint64_t)mp_expert_rows(p, e)[mp_min(t, e->count - 1)] * p->hidden + r;
    struct mp_tile tile;
    float sum = mine && e->accumulate ? *to : 0.0f;

    MP_UNROLL
    for (int k = 0; k < MP_TILE_ROWS; k++)
        tile.w[k] = (const MP_GLOBAL char *)e->down + mp_min(row + k, p->hidden - 1) * stride;
    tile.x = (const MP_GLOBAL float *)p->act + (uint64_t)(e->first + i) * p->channels;
    MP_UNROLL
    for (int k = 0; k < tokens; k++)
        tile.x_at[k] = mp_min(k, e->count - 1 - i) * p->channels;
    sum = mp_tile_dot(&tile, type, 0, MP_TILE_ROWS, tokens, 1, e->channels, sum);
    if (mine)
        *to = sum;
}

/* The same for operands that are not aligned. */
MP_DEVICE void mp_expert_down_slow(const struct mp_cuda_experts *p, const struct mp_cuda_expert *e,
                                   const int type, uint32_t row, uint32_t i)
{
    const uint64_t stride = (uint64_t)e->channels * mp_type_bytes(type);

    MP_NO_UNROLL
    for (uint32_t r = row; r < mp_min(row + MP_TILE_ROWS, p->hidden); r++) {
        MP_NO_UNROLL
        for (uint32_t t = i; t < mp_min(i + MP_TILE_TOKENS, e->count); t++) {
            MP_GLOBAL float *to =
                (MP_GLOBAL float *)p->rank + (uint64_t)mp_expert_rows(p, e)[t] * p->hidden + r;
            const struct mp_slow_x x = {
                (const MP_GLOBAL float *)p->act + (uint64_t)(e->first + t) * p->channels, 0, 0
            };
            const float sum = mp_dot_slow((const MP_GLOBAL char *)e->down + r * stride, x, type, 1,
                                          e->channels, e->accumulate ? *to : 0.0f);

            if (mp_lane() == 0)
                *to = sum;
        }
    }
}

/* EACH(tokens) with what suits `left` rows. */
#define MP_EXPERT_TILES(left, EACH)                   \
    do {                                              \
        if ((left) == 1)                              \
            EACH(1);                                  \
        else if ((left) == 2 && type != MP_WTYPE_F32) \
            EACH(2);                                  \
        else if ((left) <= 4 && type != MP_WTYPE_F32) \
            EACH(4);                                  \
        else                                          \
            EACH(8);                                  \
    } while (0)

MP_DEVICE void mp_experts_up(const struct mp_cuda_experts *p, const int type)
{
    const struct mp_cuda_expert e = mp_expert_of(p);
    const uint32_t channel = mp_block_x() * MP_EXPERT_UP_CHANNELS + mp_warp() * (MP_TILE_ROWS / 2);
    const int fast = mp_tile_is_fast(e.gate | e.up, (uint64_t)p->hidden * mp_type_bytes(type), p->x,
                                     p->x_stride, p->hidden);

    if (channel >= e.channels)
        return;
    MP_NO_UNROLL
    for (uint32_t i = mp_block_z() * MP_TILE_TOKENS; i < e.count;
         i += mp_blocks_z() * MP_TILE_TOKENS) {
#define UP(tokens) mp_expert_up_tile(p, &e, type, tokens, channel, i)
        if (fast)
            MP_EXPERT_TILES(e.count - i, UP);
        else
            mp_expert_up_slow(p, &e, type, channel, i);
#undef UP
    }
}

MP_DEVICE void mp_experts_down(const struct mp_cuda_experts *p, const int type)
{
    const struct mp_cuda_expert e = mp_expert_of(p);
    const uint32_t row = mp_block_x() * MP_EXPERT_DOWN_ROWS + mp_warp() * MP_TILE_ROWS;
    const int fast = mp_tile_is_fast(e.down, (uint64_t)e.channels * mp_type_bytes(type), p->act,
                                     p->channels, e.channels);

    if (row >= p->hidden)
        return;
    MP_NO_UNROLL
    for (uint32_t i = mp_block_z() * MP_TILE_TOKENS; i < e.count;
         i += mp_blocks_z() * MP_TILE_TOKENS) {
#define DOWN(tokens) mp_expert_down_tile(p, &e, type, tokens, row, i)
        if (fast)
            MP_EXPERT_TILES(e.count - i, DOWN);
        else
            mp_expert_down_slow(p, &e, type, row, i);
#undef DOWN
    }
}

/* `blocks` on one multiprocessor at a time: registers are shared out for that many. */
#define MP_EXPERTS(name, type, blocks)                                                    \
    MP_KERNEL(mp_experts_up_##name, mp_cuda_experts, MP_EXPERT_WARPS *MP_LANES, blocks)   \
    {                                                                                     \
        mp_experts_up(&p, type);                                                          \
    }                                                                                     \
    MP_KERNEL(mp_experts_down_##name, mp_cuda_experts, MP_EXPERT_WARPS *MP_LANES, blocks) \
    {                                                                                     \
        mp_experts_down(&p, type);                                                        \
    }

MP_EXPERTS(f32, MP_WTYPE_F32, 2)
MP_EXPERTS(bf16, MP_WTYPE_BF16, 3)
MP_EXPERTS(f16, MP_WTYPE_F16, 3)
