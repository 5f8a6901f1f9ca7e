/*
 * Attention. A warp takes units of 32 positions: its lanes share the elements of a head, so rows of
 * keys and values are read whole, and each keeps the score of one position. A stream is every 32nd
 * unit, summed as it goes (a new maximum scales what was summed before); at the end streams are
 * added in order, those without a position left out.
 */
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/math.cuh"

#define MP_ATTEND_QUADS (MP_ATTEND_DIM_MAX / 4 / MP_LANES)
#define MP_ATTEND_AT_ONCE 8 /* rows that a warp has on their way */

/* One head of one token: lane l has elements 4 l to 4 l + 3, and the same from 128 on. */
struct mp_head {
    const MP_GLOBAL float *k, *v; /* of position 0 */
    uint64_t stride;
    uint32_t positions, dim;
    float scale;
    float q[4 * MP_ATTEND_QUADS];
};

struct mp_stream {
    float max, total;
    float sum[4 * MP_ATTEND_QUADS];
};

/* The lane's elements of a row; 0 beyond its end. */
MP_DEVICE void mp_head_load(float *to, const MP_GLOBAL float *row, const int fast, uint32_t dim)
{
    MP_UNROLL
    for (uint32_t j = 0; j < MP_ATTEND_QUADS; j++) {
        const uint32_t at = j * 4 * MP_LANES + 4 * mp_lane();

        MP_UNROLL
        for (uint32_t i = 0; i < 4; i++)
            to[4 * j + i] = 0;
        if (fast && at < dim) {
            const struct mp_words words = mp_load(row + at);

            MP_UNROLL
            for (uint32_t i = 0; i < 4; i++)
                to[4 * j + i] = mp_as_float(words.word[i]);
        }
        if (!fast) {
            MP_UNROLL
            for (uint32_t i = 0; i < 4; i++)
                to[4 * j + i] = at + i < dim ? row[at + i] : 0.0f;
        }
    }
}

/* Scores of the unit's positions, lane l that of first + l; beyond the last one anything. */
MP_DEVICE float mp_unit_scores(const struct mp_head *head, const int fast, uint32_t first)
{
    float score = 0;

    MP_NO_UNROLL
    for (uint32_t g = 0; g < MP_ATTEND_UNIT; g += MP_ATTEND_AT_ONCE) {
        float dot[MP_ATTEND_AT_ONCE], mine;

        MP_UNROLL
        for (uint32_t i = 0; i < MP_ATTEND_AT_ONCE; i++) {
            const uint32_t at = mp_min(first + g + i, head->positions - 1);
            float k[4 * MP_ATTEND_QUADS];

            mp_head_load(k, head->k + at * head->stride, fast, head->dim);
            dot[i] = 0;
            MP_UNROLL
            for (int e = 0; e < 4 * MP_ATTEND_QUADS; e++)
                dot[i] = mp_fma(head->q[e], k[e], dot[i]);
        }
        mine = mp_warp_sums(dot, MP_ATTEND_AT_ONCE);
        mine =
            mp_shuffle_float(mine, mp_lane() % MP_ATTEND_AT_ONCE * (MP_LANES / MP_ATTEND_AT_ONCE));
        if (mp_lane() / MP_ATTEND_AT_ONCE == g / MP_ATTEND_AT_ONCE)
            score = mine;
    }
    return score * head->scale;
}

/* Add the positions of one unit. */
MP_DEVICE void mp_stream_add(struct mp_stream *stream, const struct mp_head *head, const int fast,
                             uint32_t first, int is_first)
{
    const uint32_t count = mp_min(head->positions - first, MP_ATTEND_UNIT);
    const int mine = mp_lane() < count;
    const float score = mp_unit_scores(head, fast, first);
    const float highest = mp_warp_max(mine ? score : -__builtin_inff());
    const float max = is_first || highest > stream->max ? highest : stream->max;
    const float kept = is_first ? 0.0f : mp_exp(stream->max - max);
    const float weight = mine ? mp_exp(score - max) : 0.0f;

    stream->max = max;
    stream->total = stream->total * kept + mp_warp_sum(weight);
    MP_UNROLL
    for (int e = 0; e < 4 * MP_ATTEND_QUADS; e++)
        stream->sum[e] = stream->sum[e] * kept;
    MP_NO_UNROLL
    for (uint32_t g = 0; g < count; g += MP_ATTEND_AT_ONCE) {
        MP_UNROLL
        for (uint32_t i = 0; i < MP_ATTEND_AT_ONCE; i++) {
            const uint32_t at = mp_min(first + g + i, head->positions - 1);
            const float w = mp_shuffle_float(weight, g + i);
            float v[4 * MP_ATTEND_QUADS];

            mp_head_load(v, head->v + at * head->stride, fast, head->dim);
            MP_UNROLL
            for (int e = 0; e < 4 * MP_ATTEND_QUADS; e++)
                stream->sum[e] = g + i < count ? mp_fma(w, v[e], stream->sum[e]) : stream->sum[e];
        }
    }
}

/* Stream number `number` of a head, to to[0 .. 2 + dim). */
MP_DEVICE void mp_stream_run(float *to, const struct mp_head *head, const int fast, uint32_t number)
{
    struct mp_stream stream;
    int is_first = 1;

    stream.max = 0;
    stream.total = 0;
    MP_UNROLL
    for (int e = 0; e < 4 * MP_ATTEND_QUADS; e++)
        stream.sum[e] = 0;
    MP_NO_UNROLL
    for (uint32_t first = number * MP_ATTEND_UNIT; first < head->positions;
         first += MP_ATTEND_STREAMS * MP_ATTEND_UNIT) {
        mp_stream_add(&stream, head, fast, first, is_first);
        is_first = 0;
    }
    if (is_first)
        return;
    if (mp_lane() == 0) {
        to[0] = stream.max;
        to[1] = stream.total;
    }
    MP_UNROLL
    for (uint32_t e = 0; e < 4 * MP_ATTEND_QUADS; e++) {
        const uint32_t at = e / 4 * 4 * MP_LANES + 4 * mp_lane() + e % 4;

        if (at < head->dim)
            to[MP_ATTEND_HEAD + at] = stream.sum[e];
    }
}

MP_DEVICE uint32_t mp_attend_positions(const struct mp_cuda_attend *p, uint32_t token)
{
    return ((const MP_GLOBAL uint32_t *)p->position)[token] + 1;
}

/* Streams first, first + step ... of the block's head, a warp each, to to[stream * (2 + dim)]. */
MP_DEVICE void mp_attend_streams(const struct mp_cuda_attend *p, float *to, uint32_t first,
                                 uint32_t end)
{
    const uint32_t token = mp_block_x() / p->heads, h = mp_block_x() % p->heads;
    const uint64_t width = (uint64_t)p->kv_heads * p->head_dim;
    const uint64_t start =
        (uint64_t)((const MP_GLOBAL uint32_t *)p->sequence)[token] * p->ctx * width +
        h / (p->heads / p->kv_heads) * p->head_dim;
    const int fast = ((p->q | p->k_cache | p->v_cache) % 16 | p->head_dim % 4) == 0;
    struct mp_head head;

    head.k = (const MP_GLOBAL float *)p->k_cache + start;
    head.v = (const MP_GLOBAL float *)p->v_cache + start;
    head.stride = width;
    head.positions = mp_attend_positions(p, token);
    head.dim = p->head_dim;
    head.scale = p->scale;
    mp_head_load(head.q, (const MP_GLOBAL float *)p->q + (uint64_t)mp_block_x() * p->head_dim, 0,
                 p->head_dim);
    MP_NO_UNROLL
    for (uint32_t s = first + mp_warp(); s < end; s += MP_ATTEND_WARPS) {
        float *stream = to + s * (MP_ATTEND_HEAD + p->head_dim);

        if (s * MP_ATTEND_UNIT >= head.positions)
            break;
        if (fast)
            mp_stream_run(stream, &head, 1, s);
        else
            mp_stream_run(stream, &head, 0, s);
    }
}

/* out := the streams at `from` together; factor: shared, 33 floats. */
MP_DEVICE void mp_attend_finish(const struct mp_cuda_attend *p, const float *from, float *factor)
{
    const uint32_t positions = mp_attend_positions(p, mp_block_x() / p->heads);
    const uint32_t units = (positions + MP_ATTEND_UNIT - 1) / MP_ATTEND_UNIT;
    const uint32_t streams = mp_min(units, MP_ATTEND_STREAMS);
    const uint32_t stride = MP_ATTEND_HEAD + p->head_dim;

    if (mp_warp() == 0) {
        const int mine = mp_lane() < streams;
        const float max = mine ? from[mp_lane() * stride] : -__builtin_inff();
        const float highest = mp_warp_max(max); /* all lanes */

        factor[mp_lane()] = mine ? mp_exp(max - highest) : 0.0f;
    }
    mp_sync();
    if (mp_thread() == 0) {
        float total = 0;

        for (uint32_t s = 0; s < streams; s++)
            total = mp_fma(from[s * stride + 1], factor[s], total);
        factor[MP_ATTEND_STREAMS] = total;
    }
    mp_sync();
    for (uint32_t i = mp_thread(); i < p->head_dim; i += mp_threads()) {
        float sum = 0;

        for (uint32_t s = 0; s < streams; s++)
            sum = mp_fma(from[s * stride + MP_ATTEND_HEAD + i], factor[s], sum);
        ((MP_GLOBAL float *)p->out)[(uint64_t)mp_block_x() * p->head_dim + i] =
            mp_divide(sum, factor[MP_ATTEND_STREAMS]);
    }
}

MP_DEVICE float *mp_attend_part_of(const struct mp_cuda_attend *p)
{
    return (float *)p->part +
           (uint64_t)mp_block_x() * MP_ATTEND_STREAMS * (MP_ATTEND_HEAD + p->head_dim);
}

MP_KERNEL(mp_attend, mp_cuda_attend, MP_ATTEND_WARPS *MP_LANES, 2)
{
    float *streams = (float *)mp_shared();

    mp_attend_streams(&p, streams, 0, MP_ATTEND_STREAMS);
    mp_sync();
    mp_attend_finish(&p, streams, streams + MP_ATTEND_STREAMS * (MP_ATTEND_HEAD + p.head_dim));
}

/* Some streams to a block; the last of a head's blocks adds them. */
MP_KERNEL(mp_attend_split, mp_cuda_attend, MP_ATTEND_WARPS *MP_LANES, 2)
{
    float *factor = (float *)mp_shared();

    mp_attend_streams(&p, mp_attend_part_of(&p), mp_block_y() * MP_ATTEND_WARPS,
                      (mp_block_y() + 1) * MP_ATTEND_WARPS);
    if (mp_is_last_block((MP_GLOBAL uint32_t *)p.turn + mp_block_x(), MP_ATTEND_SPLIT,
                         (uint32_t *)(factor + MP_ATTEND_STREAMS + 1)))
        mp_attend_finish(&p, mp_attend_part_of(&p), factor);
}
