/*
 * Attention. A block has the query heads of one token that share keys and values (grouped-query
 * attention), so each row of those is read once for all of them; where they are more than a block
 * has registers for, several blocks have some each. A warp takes units of 32 positions: its lanes
 * share the elements of a head, so rows are read whole, and each lane keeps the scores of one
 * position. A stream is every 256th unit, summed as it goes (a new maximum scales what was summed
 * before); the eight streams of a part are added in order, those without a position left out, and
 * then part after part, again as they come. Which heads a block has, and whether it has all parts
 * or one, changes no bit. `type`, a constant of the caller, is that of the cache: what is read
 * becomes floats, and from there on nothing depends on it.
 */
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/dot.cuh"

/* A lane has quads of a head's elements: 4 l to 4 l + 3, and the same from 128 on. The kernels have
 * constants for `quads` (1 or 2) and `heads` (1, 4 or 8, those that a warp computes); elements and
 * heads that are not there are 0. */
#define MP_ATTEND_QUADS_MAX (MP_ATTEND_DIM_MAX / 4 / MP_LANES)
#define MP_ATTEND_SUMS_MAX (MP_ATTEND_Q / MP_LANES)
/* Rows that a warp loads at once: 128 bytes a lane with one head; with more, whose sums take its
 * registers, 64 or 32 (of keys 16), but then 64 more are asked for. No model has heads that are not
 * fast. */
#define MP_ATTEND_ROWS(type, fast, quads, heads)                              \
    (!(fast) ? 1u                                                             \
             : ((type) == MP_WTYPE_F32 ? 8u : (uint32_t)MP_ATTEND_ROWS_MAX) / \
                   ((quads) * ((heads) > 4   ? 4                              \
                               : (heads) > 1 ? 2                              \
                                             : 1)))
#define MP_ATTEND_ROWS_MAX 16
#define MP_ATTEND_DOTS 16 /* dot products that the lanes add up at once */

/* The heads of a block. */
struct mp_group {
    const MP_GLOBAL char *k, *v; /* of position 0 */
    const float *q;              /* shared: MP_ATTEND_WIDTH(dim) of each head */
    uint32_t stride;             /* bytes */
    uint32_t positions, dim;
    uint32_t token, head, count; /* its first one, and how many */
    float scale;
};

/* A lane's elements as they are in memory. */
struct mp_row {
    uint32_t word[4 * MP_ATTEND_QUADS_MAX];
};

struct mp_stream {
    float max, total; /* in lane h those of head h */
    float sum[MP_ATTEND_SUMS_MAX];
};

MP_DEVICE float mp_element(const MP_GLOBAL char *row, const int type, uint32_t i)
{
    return type == MP_WTYPE_F32 ? ((const MP_GLOBAL float *)row)[i] : mp_weight(row, type, i);
}

/* Rows at the lane's elements; computed anew, as what two kinds of rows have takes registers. */
MP_DEVICE const MP_GLOBAL char *mp_rows_of_lane(const MP_GLOBAL char *rows, const int type)
{
    return rows + mp_here(4 * mp_lane()) * mp_type_bytes(type);
}

/* Of position `at`, beyond the last one that. rows: mp_rows_of_lane(). */
MP_DEVICE void mp_row_load(struct mp_row *to, const MP_GLOBAL char *rows,
                           const struct mp_group *group, const int type, const int fast,
                           const uint32_t quads, uint32_t at)
{
    const MP_GLOBAL char *row = rows + mp_min(at, group->positions - 1) * (uint64_t)group->stride;

    MP_UNROLL
    for (uint32_t j = 0; j < quads; j++) {
        const uint32_t e = j * 4 * MP_LANES + 4 * mp_lane();

        MP_UNROLL
        for (uint32_t i = 0; i < 4; i++)
            to->word[4 * j + i] = 0;
        if (fast && e < group->dim) {
            const MP_GLOBAL char *quad = row + j * 4 * MP_LANES * mp_type_bytes(type);
            const struct mp_words words = type == MP_WTYPE_F32 ? mp_load(quad) : mp_load_pair(quad);

            MP_UNROLL
            for (uint32_t i = 0; i < 4; i++)
                to->word[4 * j + i] = words.word[i];
        }
        if (!fast) {
            MP_UNROLL
            for (uint32_t i = 0; i < 4; i++) {
                if (e + i < group->dim)
                    to->word[4 * j + i] = mp_as_bits(mp_element(row, type, j * 4 * MP_LANES + i));
            }
        }
    }
}

/* Element e of the lane's. */
MP_DEVICE float mp_row_at(const struct mp_row *row, const int type, const int fast,
                          const uint32_t e)
{
    if (!fast || type == MP_WTYPE_F32)
        return mp_as_float(row->word[e]);
    return mp_widen_half(row->word[e / 4 * 4 + e % 4 / 2], type, e % 2);
}

/* score[h] of the lanes at, at + 1 ... := head h with the rows of their positions, `rows` of them.
 */
MP_DEVICE void mp_row_scores(float *score, const struct mp_group *group, const struct mp_row *row,
                             const int type, const int fast, const uint32_t quads,
                             const uint32_t heads, const uint32_t rows, uint32_t at)
{
    const uint32_t lane = mp_here(mp_lane()); /* queries are read again, and take no registers */
    const float *mine_of = group->q + 4 * lane;
    float dot[MP_ATTEND_DOTS], mine;

    MP_UNROLL
    for (uint32_t i = 0; i < rows * heads; i++)
        dot[i] = 0;
    MP_UNROLL
    for (uint32_t j = 0; j < quads; j++) {
        MP_UNROLL
        for (uint32_t h = 0; h < heads; h++) {
            const uint32_t e = j * 4 * MP_LANES;
            float q[4];

            MP_UNROLL
            for (uint32_t i = 0; i < 4; i++)
                q[i] = fast || e + 4 * lane + i < group->dim
                           ? mine_of[h * 4 * MP_LANES * quads + e + i]
                           : 0.0f;
            MP_UNROLL
            for (uint32_t r = 0; r < rows; r++) {
                MP_UNROLL
                for (uint32_t i = 0; i < 4; i++)
                    dot[h * rows + r] =
                        mp_fma(q[i], mp_row_at(&row[r], type, fast, 4 * j + i), dot[h * rows + r]);
            }
        }
    }
    mine = mp_warp_sums(dot, rows * heads);
    MP_UNROLL
    for (uint32_t h = 0; h < heads; h++) {
        const float its =
            mp_shuffle_float(mine, (h * rows + lane % rows) * (MP_LANES / (rows * heads)));

        score[h] = lane / rows == at / rows ? its : score[h];
    }
}

/*
 * Ask for rows of a unit before they are wanted, a line by a lane: `rows` from number `at` on,
 * where the unit's 32 rows of values follow on its 32 of keys. One head has as much on its way
 * without.
 */
MP_DEVICE void mp_rows_ask(const struct mp_group *group, const int type, const uint32_t rows,
                           uint32_t first, uint32_t at)
{
    const uint32_t bytes = group->dim * mp_type_bytes(type);
    const uint32_t lane = mp_here(mp_lane()), row = at + lane % rows;
    const uint32_t byte = lane / rows * MP_LINE_BYTES; /* of a row; lanes are enough for all */
    const uint32_t position = first + row % MP_ATTEND_UNIT;
    const MP_GLOBAL char *of = row < MP_ATTEND_UNIT ? group->k : group->v;

    if (byte < bytes && row < 2 * MP_ATTEND_UNIT && position < group->positions)
        mp_ask(of + (position * (uint64_t)group->stride + byte));
}

/* Scores of the unit's positions, lane l those of first + l; beyond the last one anything. */
MP_DEVICE void mp_unit_scores(float *score, const struct mp_group *group, const int type,
                              const int fast, const uint32_t quads, const uint32_t heads,
                              uint32_t first)
{
    const uint32_t rows = MP_ATTEND_ROWS(type, fast, quads, heads) / (heads > 4 ? 2 : 1);
    const uint32_t most = MP_ATTEND_DOTS / heads, some = rows < most ? rows : most;

    MP_UNROLL
    for (uint32_t h = 0; h < heads; h++)
        score[h] = 0;
    MP_NO_UNROLL
    for (uint32_t g = 0; g < MP_ATTEND_UNIT; g += rows) {
        const MP_GLOBAL char *k = mp_rows_of_lane(group->k, type);
        struct mp_row row[MP_ATTEND_ROWS_MAX];

        if (heads > 1)
            mp_rows_ask(group, type, rows, first, g + rows * (heads > 4 ? 4 : 1));
        MP_UNROLL
        for (uint32_t i = 0; i < rows; i++)
            mp_row_load(&row[i], k, group, type, fast, quads, first + g + i);
        MP_UNROLL
        for (uint32_t i = 0; i < rows; i += some)
            mp_row_scores(score, group, row + i, type, fast, quads, heads, some, g + i);
    }
    MP_UNROLL
    for (uint32_t h = 0; h < heads; h++)
        score[h] = score[h] * group->scale;
}

/* score[h] becomes the weight of the lane's position; what was summed is scaled to the maximum. */
MP_DEVICE void mp_stream_scale(struct mp_stream *stream, float *score, const uint32_t quads,
                               const uint32_t heads, int mine, int is_first)
{
    MP_UNROLL
    for (uint32_t h = 0; h < heads; h++) {
        const float before = mp_shuffle_float(stream->max, h);
        const float highest = mp_warp_max(mine ? score[h] : -__builtin_inff());
        const float max = is_first || highest > before ? highest : before;
        const float kept = is_first ? 0.0f : mp_exp(before - max);
        const float weight = mine ? mp_exp(score[h] - max) : 0.0f;
        const float total = stream->total * kept + mp_warp_sum(weight);

        stream->max = mp_lane() == h ? max : stream->max;
        stream->total = mp_lane() == h ? total : stream->total;
        MP_UNROLL
        for (uint32_t e = 0; e < 4 * quads; e++)
            stream->sum[h * 4 * quads + e] = stream->sum[h * 4 * quads + e] * kept;
        score[h] = weight;
    }
}

/* Add the positions of one unit. */
MP_DEVICE void mp_stream_add(struct mp_stream *stream, const struct mp_group *group, const int type,
                             const int fast, const uint32_t quads, const uint32_t heads,
                             uint32_t first)
{
    const uint32_t rows = MP_ATTEND_ROWS(type, fast, quads, heads);
    const uint32_t count = mp_min(group->positions - first, MP_ATTEND_UNIT);
    float weight[MP_ATTEND_WARPS];

    mp_unit_scores(weight, group, type, fast, quads, heads, first);
    mp_stream_scale(stream, weight, quads, heads, mp_lane() < count,
                    first < MP_ATTEND_STREAMS * MP_ATTEND_UNIT);
    MP_NO_UNROLL
    for (uint32_t g = 0; g < count; g += rows) {
        const MP_GLOBAL char *v = mp_rows_of_lane(group->v, type);
        struct mp_row row[MP_ATTEND_ROWS_MAX];

        if (heads > 1)
            mp_rows_ask(group, type, rows, first, MP_ATTEND_UNIT + g + rows * (heads > 4 ? 2 : 1));
        MP_UNROLL
        for (uint32_t i = 0; i < rows; i++)
            mp_row_load(&row[i], v, group, type, fast, quads, first + g + i);
        MP_UNROLL
        for (uint32_t i = 0; i < rows; i++) {
            MP_UNROLL
            for (uint32_t h = 0; h < heads; h++) {
                const float w = mp_shuffle_float(weight[h], g + i);

                MP_UNROLL
                for (uint32_t e = 0; e < 4 * quads; e++) {
                    float *sum = &stream->sum[h * 4 * quads + e];

                    *sum =
                        g + i < count ? mp_fma(w, mp_row_at(&row[i], type, fast, e), *sum) : *sum;
                }
            }
        }
    }
}

/* Stream number `number` of the heads, to (count, 2 + dim). */
MP_DEVICE void mp_stream_run(float *to, const struct mp_group *group, const int type,
                             const int fast, const uint32_t quads, const uint32_t heads,
                             uint32_t number)
{
    struct mp_stream stream;
    uint32_t lane, stride;

    stream.max = 0;
    stream.total = 0;
    MP_UNROLL
    for (uint32_t e = 0; e < 4 * quads * heads; e++)
        stream.sum[e] = 0;
    MP_NO_UNROLL
    for (uint32_t first = number * MP_ATTEND_UNIT; first < group->positions;
         first += MP_ATTEND_STREAMS * MP_ATTEND_UNIT)
        mp_stream_add(&stream, group, type, fast, quads, heads, first);
    lane = mp_here(mp_lane()); /* else the compiler knows all addresses before the first unit */
    stride = mp_here(MP_ATTEND_HEAD + group->dim);
    if (lane < group->count) {
        to[lane * stride] = stream.max;
        to[lane * stride + 1] = stream.total;
    }
    MP_UNROLL
    for (uint32_t i = 0; i < 4 * quads * heads; i++) {
        const uint32_t h = i / (4 * quads), e = i % (4 * quads);
        const uint32_t at = MP_ATTEND_HEAD + e / 4 * 4 * MP_LANES + 4 * lane + e % 4;

        if (h < group->count && at < stride)
            to[h * stride + at] = stream.sum[i];
    }
}

/* The same, by what heads there are. */
MP_DEVICE void mp_stream_choose(float *to, const struct mp_group *group, const int type,
                                uint32_t number)
{
    const uint64_t bytes = 4 * mp_type_bytes(type);

    if ((((uint64_t)group->k | (uint64_t)group->v) % bytes | group->dim % 4) != 0) {
        struct mp_group one = *group;

        one.count = 1;
        MP_NO_UNROLL
        for (uint32_t h = 0; h < group->count; h++) {
            one.q = group->q + h * MP_ATTEND_WIDTH(group->dim);
            mp_stream_run(to + h * (MP_ATTEND_HEAD + group->dim), &one, type, 0,
                          MP_ATTEND_QUADS_MAX, 1, number);
        }
    } else if (MP_ATTEND_WIDTH(group->dim) > 4 * MP_LANES) {
        mp_stream_run(to, group, type, 1, 2, 4, number);
    } else if (group->count > 4) {
        mp_stream_run(to, group, type, 1, 1, 8, number);
    } else if (group->count > 1) {
        mp_stream_run(to, group, type, 1, 1, 4, number);
    } else {
        mp_stream_run(to, group, type, 1, 1, 1, number);
    }
}

/* ---- of a block */

/* Which heads the block has; computed anew at each call, so that it takes no registers between. */
MP_DEVICE void mp_group_find(struct mp_group *group, const struct mp_cuda_attend *p, const int type)
{
    const uint32_t dim = mp_here(p->head_dim), kv_heads = mp_here(p->kv_heads);
    const uint32_t per = p->heads / kv_heads, groups = MP_ATTEND_GROUPS(per, dim);
    const uint32_t each = MP_ATTEND_HEADS(per, dim), block = mp_here(mp_block_x());
    const uint32_t i = block / groups, kv = i % kv_heads; /* i: of all tokens' */
    const uint32_t before = block % groups * each;
    const uint64_t row = (uint64_t)dim * mp_type_bytes(type);

    group->token = i / kv_heads;
    group->head = kv * per + before;
    group->count = mp_here(mp_min(per - before, each));
    group->stride = (uint32_t)(kv_heads * row);
    const uint64_t start =
        (uint64_t)((const MP_GLOBAL uint32_t *)p->sequence)[group->token] * p->ctx * group->stride +
        kv * row;

    group->k = (const MP_GLOBAL char *)p->k_cache + start;
    group->v = (const MP_GLOBAL char *)p->v_cache + start;
    group->q = (const float *)mp_shared();
    group->positions = ((const MP_GLOBAL uint32_t *)p->position)[group->token] + 1;
    group->dim = dim;
    group->scale = p->scale;
}

/* Their queries to shared memory. */
MP_DEVICE void mp_group_queries(const struct mp_cuda_attend *p, const struct mp_group *group)
{
    const uint32_t width = MP_ATTEND_WIDTH(p->head_dim);
    const MP_GLOBAL float *from = (const MP_GLOBAL float *)p->q +
                                  ((uint64_t)group->token * p->heads + group->head) * p->head_dim;
    float *q = (float *)mp_shared();

    for (uint32_t at = mp_thread(); at < MP_ATTEND_Q; at += mp_threads()) {
        const uint32_t h = at / width, e = at % width;

        q[at] = h < group->count && e < p->head_dim ? from[h * p->head_dim + e] : 0.0f;
    }
}

/* How two sums become one: both are scaled to the higher maximum. */
struct mp_both {
    float max, kept, added;
};

MP_DEVICE struct mp_both mp_both_of(float max, float other)
{
    struct mp_both both;

    both.max = other > max ? other : max;
    both.kept = mp_exp(max - both.max);
    both.added = mp_exp(other - both.max);
    return both;
}

/*
 * to (count, 2 + dim) := the `streams` streams at `from` together, or with `more` those added to
 * what `to` has. factor: shared, MP_ATTEND_FACTORS floats. All threads of the block come here.
 */
MP_DEVICE void mp_part_join(float *to, const struct mp_group *group, const float *from,
                            uint32_t streams, int more, float *factor)
{
    const uint32_t thread = mp_here(mp_thread()), lane = thread % MP_LANES, h = thread / MP_LANES;
    const uint32_t stride = MP_ATTEND_HEAD + group->dim;
    float *scale = factor + MP_ATTEND_WARPS * MP_ATTEND_WARPS; /* two of each head */

    if (h < group->count) { /* a head to a warp, a stream to a lane */
        const int mine = lane < streams;
        const float *stream = from + (lane * group->count + h) * stride;
        const float max = mine ? stream[0] : -__builtin_inff(), its = mine ? stream[1] : 0.0f;
        const float highest = mp_warp_max(max); /* all lanes */
        const float its_factor = mine ? mp_exp(max - highest) : 0.0f;
        float total = 0;

        MP_UNROLL
        for (uint32_t s = 0; s < MP_ATTEND_WARPS; s++) {
            const float a = mp_shuffle_float(its, s), b = mp_shuffle_float(its_factor, s);

            total = s < streams ? mp_fma(a, b, total) : total;
        }
        if (lane < MP_ATTEND_WARPS)
            factor[h * MP_ATTEND_WARPS + lane] = its_factor;
        if (lane == 0) {
            const struct mp_both both = mp_both_of(more ? to[h * stride] : highest, highest);

            scale[2 * h] = both.kept;
            scale[2 * h + 1] = both.added;
            to[h * stride + 1] =
                more ? mp_fma(total, both.added, to[h * stride + 1] * both.kept) : total;
            to[h * stride] = both.max;
        }
    }
    mp_sync();
    for (uint32_t i = thread; i < group->count * group->dim; i += mp_threads()) {
        const uint32_t head = i / group->dim;
        const uint32_t at = head * stride + MP_ATTEND_HEAD + i % group->dim;
        float sum = 0;

        for (uint32_t s = 0; s < streams; s++)
            sum = mp_fma(from[s * group->count * stride + at], factor[head * MP_ATTEND_WARPS + s],
                         sum);
        to[at] = more ? mp_fma(sum, scale[2 * head + 1], to[at] * scale[2 * head]) : sum;
    }
    mp_sync();
}

MP_DEVICE void mp_group_write(const struct mp_cuda_attend *p, const struct mp_group *group,
                              uint32_t i, float value)
{
    ((MP_GLOBAL float *)
         p->out)[((uint64_t)group->token * p->heads + group->head) * p->head_dim + i] = value;
}

/* out := the parts at `from` together, as mp_part_join() adds them. table: shared, three floats of
 * each part of each head. */
MP_DEVICE void mp_parts_finish(const struct mp_cuda_attend *p, const struct mp_group *group,
                               const float *from, uint32_t parts, float *table)
{
    const uint32_t stride = MP_ATTEND_HEAD + group->dim, size = group->count * stride;
    const uint32_t h = mp_warp();

    if (h < group->count) { /* a head to a warp, a part to a lane */
        const int mine = mp_lane() < parts;
        const float max = mine ? from[mp_lane() * size + h * stride] : 0.0f;
        const float its = mine ? from[mp_lane() * size + h * stride + 1] : 0.0f;
        float *head = table + h * 2 * MP_ATTEND_PARTS;
        float high = mp_shuffle_float(max, 0), total = mp_shuffle_float(its, 0);

        for (uint32_t s = 1; s < parts; s++) {
            const struct mp_both both = mp_both_of(high, mp_shuffle_float(max, s));

            high = both.max;
            total = mp_fma(mp_shuffle_float(its, s), both.added, total * both.kept);
            if (mp_lane() == 0) {
                head[2 * s] = both.kept;
                head[2 * s + 1] = both.added;
            }
        }
        if (mp_lane() == 0)
            head[0] = total;
    }
    mp_sync();
    for (uint32_t i = mp_thread(); i < group->count * group->dim; i += mp_threads()) {
        const float *head = table + i / group->dim * 2 * MP_ATTEND_PARTS;
        const float *at = from + i / group->dim * stride + MP_ATTEND_HEAD + i % group->dim;
        float sum = at[0];

        for (uint32_t s = 1; s < parts; s++)
            sum = mp_fma(at[s * size], head[2 * s + 1], sum * head[2 * s]);
        mp_group_write(p, group, i, mp_divide(sum, head[0]));
    }
}

MP_DEVICE uint32_t mp_group_units(const struct mp_group *group)
{
    return (group->positions + MP_ATTEND_UNIT - 1) / MP_ATTEND_UNIT;
}

MP_DEVICE uint32_t mp_group_parts(const struct mp_group *group)
{
    return mp_min(MP_ATTEND_PARTS, (mp_group_units(group) + MP_ATTEND_WARPS - 1) / MP_ATTEND_WARPS);
}

/* Shared memory: queries, factors, what the parts are together, then streams (count, 2 + dim). */
MP_DEVICE float *mp_group_factors(void)
{
    return (float *)mp_shared() + MP_ATTEND_Q;
}

MP_DEVICE float *mp_group_sum(void)
{
    return mp_group_factors() + MP_ATTEND_FACTORS;
}

MP_DEVICE uint32_t mp_group_size(const struct mp_group *group)
{
    return group->count * (MP_ATTEND_HEAD + group->dim);
}

/* In device memory, (parts, count, 2 + dim) of the block's heads. */
MP_DEVICE float *mp_group_part(const struct mp_cuda_attend *p, const struct mp_group *group)
{
    return (float *)p->part + ((uint64_t)group->token * p->heads + group->head) *
                                  (MP_ATTEND_HEAD + group->dim) * MP_ATTEND_PARTS_OF(p->ctx);
}

/* Are the parts shared out? */
MP_DEVICE int mp_group_is_split(const struct mp_cuda_attend *p, const struct mp_group *group)
{
    return p->part != 0 && mp_group_parts(group) > 1;
}

/* One part; its streams are summed by a warp each, with nothing else in registers. Returns the next
 * part of this block. */
MP_DEVICE uint32_t mp_attend_part(const struct mp_cuda_attend *p, const int type, uint32_t part)
{
    struct mp_group group;
    uint32_t stream, units;
    float *to;
    int split;

    part = mp_here(part);
    mp_group_find(&group, p, type);
    stream = part * MP_ATTEND_WARPS + mp_warp();
    if (stream < mp_group_units(&group))
        mp_stream_choose(mp_group_sum() + (1 + mp_warp()) * mp_group_size(&group), &group, type,
                         stream);
    mp_sync();
    mp_group_find(&group, p, type);
    units = mp_group_units(&group) - part * MP_ATTEND_WARPS;
    split = mp_group_is_split(p, &group);
    to = split ? mp_group_part(p, &group) + part * mp_group_size(&group) : mp_group_sum();
    mp_part_join(to, &group, mp_group_sum() + mp_group_size(&group), mp_min(units, MP_ATTEND_WARPS),
                 !split && part > 0, mp_group_factors());
    return split ? MP_ATTEND_PARTS : part + 1;
}

/*
 * Without p->part a block has all positions; with it the parts are shared out, as many as there are
 * positions for, and the block that ends last adds them.
 */
MP_DEVICE void mp_attend(const struct mp_cuda_attend *p, const int type)
{
    struct mp_group group;
    uint32_t part = mp_block_y();

    mp_group_find(&group, p, type);
    if (part >= mp_group_parts(&group))
        return;
    mp_group_queries(p, &group);
    mp_sync();
    do {
        part = mp_attend_part(p, type, part);
        mp_group_find(&group, p, type);
    } while (part < mp_group_parts(&group));
    if (!mp_group_is_split(p, &group)) {
        const float *sum = mp_group_sum();

        for (uint32_t i = mp_thread(); i < group.count * group.dim; i += mp_threads()) {
            const float *head = sum + i / group.dim * (MP_ATTEND_HEAD + group.dim);

            mp_group_write(p, &group, i, mp_divide(head[MP_ATTEND_HEAD + i % group.dim], head[1]));
        }
    } else if (mp_is_last_block((MP_GLOBAL uint32_t *)p->turn + mp_block_x(),
                                mp_group_parts(&group), (uint32_t *)mp_group_factors())) {
        mp_parts_finish(p, &group, mp_group_part(p, &group), mp_group_parts(&group),
                        mp_group_sum() + mp_group_size(&group));
    }
}

#define MP_ATTEND(name, type)                                                 \
    MP_KERNEL(mp_attend_##name, mp_cuda_attend, MP_ATTEND_WARPS *MP_LANES, 2) \
    {                                                                         \
        mp_attend(&p, type);                                                  \
    }

MP_ATTEND(f32, MP_WTYPE_F32)
MP_ATTEND(bf16, MP_WTYPE_BF16)
MP_ATTEND(f16, MP_WTYPE_F16)
