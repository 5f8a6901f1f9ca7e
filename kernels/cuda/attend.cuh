/*
 * Attention. A warp takes units of 32 positions: its lanes share the elements of a head, so rows of
 * keys and values are read whole, and each keeps the score of one position. A stream is every 32nd
 * unit, summed as it goes (a new maximum scales what was summed before); at the end streams are
 * added in order, those without a position left out. `type`, a constant of the caller, is that of
 * the cache: what is read becomes floats, and from there on nothing depends on it.
 */
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/dot.cuh"

#define MP_ATTEND_QUADS (MP_ATTEND_DIM_MAX / 4 / MP_LANES)
/* Rows that a warp has on their way: of heads of 128, 128 bytes a lane. No model has heads that are
 * not fast. */
#define MP_ATTEND_AT_ONCE(type, fast) \
    (!(fast) ? 1 : (type) == MP_WTYPE_F32 ? 8 : MP_ATTEND_AT_ONCE_MAX)
#define MP_ATTEND_AT_ONCE_MAX 16

/* One head of one token: lane l has elements 4 l to 4 l + 3, and the same from 128 on. */
struct mp_head {
    const MP_GLOBAL char *k, *v; /* of position 0 */
    uint32_t stride;             /* bytes */
    uint32_t positions, dim;
    float scale;
    float q[4 * MP_ATTEND_QUADS];
};

struct mp_stream {
    float max, total;
    float sum[4 * MP_ATTEND_QUADS];
};

/* Four elements at once. */
MP_DEVICE void mp_quad_load(float *to, const MP_GLOBAL char *at, const int type)
{
    const struct mp_words words = type == MP_WTYPE_F32 ? mp_load(at) : mp_load_pair(at);

    MP_UNROLL
    for (int i = 0; i < 4; i++)
        to[i] = type == MP_WTYPE_F32 ? mp_as_float(words.word[i])
                                     : mp_widen_half(words.word[i / 2], type, i % 2);
}

MP_DEVICE float mp_element(const MP_GLOBAL char *row, const int type, uint32_t i)
{
    return type == MP_WTYPE_F32 ? ((const MP_GLOBAL float *)row)[i] : mp_weight(row, type, i);
}

/* The lane's elements of a row; 0 beyond its end. */
MP_DEVICE void mp_head_load(float *to, const MP_GLOBAL char *row, const int type, const int fast,
                            uint32_t dim)
{
    MP_UNROLL
    for (uint32_t j = 0; j < MP_ATTEND_QUADS; j++) {
        const uint32_t at = j * 4 * MP_LANES + 4 * mp_lane();

        MP_UNROLL
        for (uint32_t i = 0; i < 4; i++)
            to[4 * j + i] = 0;
        if (fast && at < dim)
            mp_quad_load(to + 4 * j, row + at * mp_type_bytes(type), type);
        if (!fast) {
            MP_UNROLL
            for (uint32_t i = 0; i < 4; i++)
                to[4 * j + i] = at + i < dim ? mp_element(row, type, at + i) : 0.0f;
        }
    }
}

/* Scores of the unit's positions, lane l that of first + l; beyond the last one anything. */
MP_DEVICE float mp_unit_scores(const struct mp_head *head, const int type, const int fast,
                               uint32_t first)
{
    const uint32_t rows = MP_ATTEND_AT_ONCE(type, fast);
    float score = 0;

    MP_NO_UNROLL
    for (uint32_t g = 0; g < MP_ATTEND_UNIT; g += rows) {
        float dot[MP_ATTEND_AT_ONCE_MAX], mine;

        MP_UNROLL
        for (uint32_t i = 0; i < rows; i++) {
            const uint32_t at = mp_min(first + g + i, head->positions - 1);
            float k[4 * MP_ATTEND_QUADS];

            mp_head_load(k, head->k + at * (uint64_t)head->stride, type, fast, head->dim);
            dot[i] = 0;
            MP_UNROLL
            for (int e = 0; e < 4 * MP_ATTEND_QUADS; e++)
                dot[i] = mp_fma(head->q[e], k[e], dot[i]);
        }
        mine = mp_warp_sums(dot, rows);
        mine = mp_shuffle_float(mine, mp_lane() % rows * (MP_LANES / rows));
        if (mp_lane() / rows == g / rows)
            score = mine;
    }
    return score * head->scale;
}

/* Add the positions of one unit. */
MP_DEVICE void mp_stream_add(struct mp_stream *stream, const struct mp_head *head, const int type,
                             const int fast, uint32_t first, int is_first)
{
    const uint32_t rows = MP_ATTEND_AT_ONCE(type, fast);
    const uint32_t count = mp_min(head->positions - first, MP_ATTEND_UNIT);
    const int mine = mp_lane() < count;
    const float score = mp_unit_scores(head, type, fast, first);
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
    for (uint32_t g = 0; g < count; g += rows) {
        MP_UNROLL
        for (uint32_t i = 0; i < rows; i++) {
            const uint32_t at = mp_min(first + g + i, head->positions - 1);
            const float w = mp_shuffle_float(weight, g + i);
            float v[4 * MP_ATTEND_QUADS];

            mp_head_load(v, head->v + at * (uint64_t)head->stride, type, fast, head->dim);
            MP_UNROLL
            for (int e = 0; e < 4 * MP_ATTEND_QUADS; e++)
                stream->sum[e] = g + i < count ? mp_fma(w, v[e], stream->sum[e]) : stream->sum[e];
        }
    }
}

/* Stream number `number` of a head, to to[0 .. 2 + dim). */
MP_DEVICE void mp_stream_run(float *to, const struct mp_head *head, const int type, const int fast,
                             uint32_t number)
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
        mp_stream_add(&stream, head, type, fast, first, is_first);
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
MP_DEVICE void mp_attend_streams(const struct mp_cuda_attend *p, const int type, float *to,
                                 uint32_t first, uint32_t end)
{
    const uint32_t token = mp_block_x() / p->heads, h = mp_block_x() % p->heads;
    const uint64_t row = (uint64_t)p->head_dim * mp_type_bytes(type);
    const uint64_t width = p->kv_heads * row;
    const uint64_t start =
        (uint64_t)((const MP_GLOBAL uint32_t *)p->sequence)[token] * p->ctx * width +
        h / (p->heads / p->kv_heads) * row;
    const int fast = ((p->k_cache | p->v_cache) % (4 * mp_type_bytes(type)) | p->head_dim % 4) == 0;
    struct mp_head head;

    head.k = (const MP_GLOBAL char *)p->k_cache + start;
    head.v = (const MP_GLOBAL char *)p->v_cache + start;
    head.stride = (uint32_t)width;
    head.positions = mp_attend_positions(p, token);
    head.dim = p->head_dim;
    head.scale = p->scale;
    mp_head_load(head.q,
                 (const MP_GLOBAL char *)((const MP_GLOBAL float *)p->q +
                                          (uint64_t)mp_block_x() * p->head_dim),
                 MP_WTYPE_F32, 0, p->head_dim);
    MP_NO_UNROLL
    for (uint32_t s = first + mp_warp(); s < end; s += MP_ATTEND_WARPS) {
        float *stream = to + s * (MP_ATTEND_HEAD + p->head_dim);

        if (s * MP_ATTEND_UNIT >= head.positions)
            break;
        if (fast)
            mp_stream_run(stream, &head, type, 1, s);
        else
            mp_stream_run(stream, &head, type, 0, s);
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

MP_DEVICE void mp_attend(const struct mp_cuda_attend *p, const int type)
{
    float *streams = (float *)mp_shared();

    mp_attend_streams(p, type, streams, 0, MP_ATTEND_STREAMS);
    mp_sync();
    mp_attend_finish(p, streams, streams + MP_ATTEND_STREAMS * (MP_ATTEND_HEAD + p->head_dim));
}

/* Some streams to a block; the last of a head's blocks adds them. */
MP_DEVICE void mp_attend_split(const struct mp_cuda_attend *p, const int type)
{
    float *factor = (float *)mp_shared();

    mp_attend_streams(p, type, mp_attend_part_of(p), mp_block_y() * MP_ATTEND_WARPS,
                      (mp_block_y() + 1) * MP_ATTEND_WARPS);
    if (mp_is_last_block((MP_GLOBAL uint32_t *)p->turn + mp_block_x(), MP_ATTEND_SPLIT,
                         (uint32_t *)(factor + MP_ATTEND_STREAMS + 1)))
        mp_attend_finish(p, mp_attend_part_of(p), factor);
}

#define MP_ATTEND(name, type)                                                       \
    MP_KERNEL(mp_attend_##name, mp_cuda_attend, MP_ATTEND_WARPS *MP_LANES, 2)       \
    {                                                                               \
        mp_attend(&p, type);                                                        \
    }                                                                               \
    MP_KERNEL(mp_attend_split_##name, mp_cuda_attend, MP_ATTEND_WARPS *MP_LANES, 2) \
    {                                                                               \
        mp_attend_split(&p, type);                                                  \
    }

MP_ATTEND(f32, MP_WTYPE_F32)
MP_ATTEND(bf16, MP_WTYPE_BF16)
MP_ATTEND(f16, MP_WTYPE_F16)
