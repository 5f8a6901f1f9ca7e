/* Kernels whose work is small: embedding, norms, positions, softmax, sums of vectors. */
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/dot.cuh"
#include "kernels/cuda/rows.cuh"

MP_KERNEL(mp_embed, mp_cuda_embed, MP_EACH_THREADS, 1)
{
    const uint32_t i = mp_block_x() * MP_EACH_THREADS + mp_thread(), t = mp_block_y();
    const uint32_t token = ((const MP_GLOBAL uint32_t *)p.token)[t];

    if (i < p.width && token < p.vocab)
        ((MP_GLOBAL float *)p.x)[(uint64_t)t * p.width + i] =
            mp_weight((const MP_GLOBAL char *)p.table, (int)p.type, (uint64_t)token * p.width + i);
}

/* One block for a token. */
MP_KERNEL(mp_rmsnorm, mp_cuda_rmsnorm, MP_NORM_THREADS, 1)
{
    const MP_GLOBAL float *x = (const MP_GLOBAL float *)p.x + (uint64_t)mp_block_x() * p.x_stride;
    const MP_GLOBAL float *w = (const MP_GLOBAL float *)p.w;
    MP_GLOBAL float *out = (MP_GLOBAL float *)p.out + (uint64_t)mp_block_x() * p.out_stride;
    float *parts = (float *)mp_shared(), scale;

    mp_norm_parts(parts, x, p.width);
    mp_sync();
    scale = mp_norm_of(parts, p.width, p.eps);
    for (uint32_t i = mp_thread(); i < p.width; i += MP_NORM_THREADS)
        out[i] = x[i] * scale * w[i];
}

/* Element i of a row, rounded to its type. */
MP_DEVICE void mp_keep(MP_GLOBAL char *row, uint32_t type, uint64_t i, float value)
{
    if (type == MP_WTYPE_F32)
        ((MP_GLOBAL float *)row)[i] = value;
    else
        ((MP_GLOBAL uint16_t *)row)[i] =
            type == MP_WTYPE_BF16 ? mp_to_bf16(value) : mp_to_half(value);
}

/* One head of queries or keys: its norm, then each pair (i, i + D/2) turned; to a row of `type`. */
MP_DEVICE void mp_place_head(const struct mp_cuda_place *p, MP_GLOBAL char *to, uint32_t type,
                             const MP_GLOBAL float *from, uint64_t norm_at, uint32_t position)
{
    const MP_GLOBAL float *norm = (const MP_GLOBAL float *)norm_at;
    const uint32_t half = p->head_dim / 2;
    const MP_GLOBAL float *cosine = (const MP_GLOBAL float *)p->cosine + (uint64_t)position * half;
    const MP_GLOBAL float *sine = (const MP_GLOBAL float *)p->sine + (uint64_t)position * half;
    float scale = 1.0f;

    if (norm_at != 0) {
        float sum = 0;

        for (uint32_t i = mp_lane(); i < half; i += MP_LANES) {
            sum = mp_fma(from[i], from[i], sum);
            sum = mp_fma(from[half + i], from[half + i], sum);
        }
        sum = mp_warp_sum(sum);
        scale = mp_norm_scale(sum, p->head_dim, p->eps);
    }
    for (uint32_t i = mp_lane(); i < half; i += MP_LANES) {
        const float c = cosine[i], s = sine[i];
        float a = from[i], b = from[half + i];

        if (norm_at != 0) {
            a = a * scale * norm[i];
            b = b * scale * norm[half + i];
        }
        mp_keep(to, type, i, mp_fma(-b, s, a * c));
        mp_keep(to, type, half + i, mp_fma(a, s, b * c));
    }
}

/* A warp for each head of queries, then of keys, then of values. */
MP_KERNEL(mp_place, mp_cuda_place, MP_PLACE_WARPS *MP_LANES, 1)
{
    const uint32_t head = mp_block_x() * MP_PLACE_WARPS + mp_warp(), t = mp_block_y();
    const uint32_t position = ((const MP_GLOBAL uint32_t *)p.position)[t];
    const uint32_t sequence = ((const MP_GLOBAL uint32_t *)p.sequence)[t];
    const uint64_t D = p.head_dim, K = p.kv_heads * D;
    const uint64_t row = ((uint64_t)sequence * p.ctx + position) * K * mp_type_bytes((int)p.type);

    if (head < p.heads) {
        MP_GLOBAL float *q = (MP_GLOBAL float *)p.q + (t * (uint64_t)p.heads + head) * D;

        mp_place_head(&p, (MP_GLOBAL char *)q, MP_WTYPE_F32, q, p.q_norm, position);
    } else if (head < p.heads + p.kv_heads) {
        const uint64_t at = (head - p.heads) * D;

        mp_place_head(&p, (MP_GLOBAL char *)p.k_cache + row + at * mp_type_bytes((int)p.type),
                      p.type, (const MP_GLOBAL float *)p.k + t * K + at, p.k_norm, position);
    } else if (head < p.heads + 2 * p.kv_heads) {
        const uint64_t at = (head - p.heads - p.kv_heads) * D;

        for (uint64_t i = at + mp_lane(); i < at + D; i += MP_LANES)
            mp_keep((MP_GLOBAL char *)p.v_cache + row, p.type, i,
                    ((const MP_GLOBAL float *)p.v)[t * K + i]);
    }
}

/* A warp for each row. */
MP_KERNEL(mp_softmax, mp_cuda_softmax, MP_ROW_WARPS *MP_LANES, 1)
{
    const uint32_t t = mp_block_x() * MP_ROW_WARPS + mp_warp();

    if (t < p.tokens)
        mp_softmax_row((MP_GLOBAL float *)p.x + (uint64_t)t * p.stride, p.width);
}

MP_KERNEL(mp_gather_rows, mp_cuda_rows, MP_EACH_THREADS, 1)
{
    const uint32_t i = mp_block_x() * MP_EACH_THREADS + mp_thread(), r = mp_block_y();
    const uint64_t from = ((const MP_GLOBAL uint32_t *)p.row)[r] / p.top_k;

    if (i < p.width)
        ((MP_GLOBAL float *)p.to)[(uint64_t)r * p.width + i] =
            ((const MP_GLOBAL float *)p.from)[from * p.width + i];
}

MP_KERNEL(mp_scatter_rows, mp_cuda_rows, MP_EACH_THREADS, 1)
{
    const uint32_t i = mp_block_x() * MP_EACH_THREADS + mp_thread(), r = mp_block_y();
    const uint64_t to = ((const MP_GLOBAL uint32_t *)p.row)[r];
    MP_GLOBAL float *y = (MP_GLOBAL float *)p.to + to * p.width + i;
    float x;

    if (i >= p.width)
        return;
    x = ((const MP_GLOBAL float *)p.from)[(uint64_t)r * p.width + i];
    *y = p.accumulate ? *y + x : x;
}

MP_KERNEL(mp_silu_mul, mp_cuda_silu_mul, MP_EACH_THREADS, 1)
{
    const uint64_t i = (uint64_t)mp_block_x() * MP_EACH_THREADS + mp_thread();

    if (i >= p.count)
        return;

    MP_GLOBAL float *gate = (MP_GLOBAL float *)p.gate + i;

    *gate = mp_silu(*gate) * ((const MP_GLOBAL float *)p.up)[i];
}

MP_KERNEL(mp_combine, mp_cuda_combine, MP_EACH_THREADS, 1)
{
    const uint32_t i = mp_block_x() * MP_EACH_THREADS + mp_thread(), t = mp_block_y();
    const MP_GLOBAL float *weight = (const MP_GLOBAL float *)p.weight + (uint64_t)t * p.top_k;
    const MP_GLOBAL float *rank =
        (const MP_GLOBAL float *)p.rank + (uint64_t)t * p.top_k * p.hidden + i;
    const uint64_t at = (uint64_t)t * p.hidden + i;
    float total = 0, sum = 0;

    if (i >= p.hidden)
        return;
    for (uint32_t r = 0; r < p.top_k; r++)
        total = total + weight[r];
    for (uint32_t r = 0; r < p.top_k; r++) {
        const float share = p.normalise ? mp_divide(weight[r], total) : weight[r];

        sum = mp_fma(share, rank[(uint64_t)r * p.hidden], sum);
    }
    if (p.shared != 0) {
        float shared = ((const MP_GLOBAL float *)p.shared)[at];

        if (p.gate != 0) /* added to 0, as the CPU does: there is no -0 */
            shared = mp_fma(mp_sigmoid(((const MP_GLOBAL float *)p.gate)[t]), shared, 0.0f);
        sum = sum + shared;
    }
    ((MP_GLOBAL float *)p.x)[at] = ((const MP_GLOBAL float *)p.x)[at] + sum;
}

#define MP_ROUND(name, round)                                                              \
    MP_KERNEL(mp_round_##name, mp_cuda_round, MP_EACH_THREADS, 1)                          \
    {                                                                                      \
        const uint32_t i = mp_block_x() * MP_EACH_THREADS + mp_thread(), t = mp_block_y(); \
                                                                                           \
        if (i < p.width)                                                                   \
            ((MP_GLOBAL uint16_t *)p.to)[(uint64_t)t * p.width + i] =                      \
                round(((const MP_GLOBAL float *)p.x)[(uint64_t)t * p.x_stride + i]);       \
    }

MP_ROUND(bf16, mp_to_bf16)
MP_ROUND(f16, mp_to_half)
