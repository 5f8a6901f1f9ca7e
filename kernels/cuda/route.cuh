/*
 * From a router's scores to a list of work: the best experts of each token, where their bytes are,
 * and which rows each has. Kernels for each of these, and one that does all of it (mp_route).
 */
#include "kernels/cuda/best.cuh"
#include "kernels/cuda/project.cuh"

/* As policy/route/exact.c, step by step: what it does with NaN depends on the order. */
MP_DEVICE void mp_top_k_insert(const MP_GLOBAL float *scores, MP_GLOBAL uint32_t *expert,
                               MP_GLOBAL float *weight, uint32_t experts, uint32_t k)
{
    uint32_t count = 0;

    for (uint32_t e = 0; e < experts; e++) {
        uint32_t at = count;

        while (at > 0 && weight[at - 1] < scores[e])
            at--;
        if (at == k)
            continue;
        if (count < k)
            count++;
        for (uint32_t i = count - 1; i > at; i--) {
            expert[i] = expert[i - 1];
            weight[i] = weight[i - 1];
        }
        expert[at] = e;
        weight[at] = scores[e];
    }
}

/* A warp's token; each round finds the best of those that come after the last one found. */
MP_DEVICE void mp_top_k_row(const struct mp_cuda_top_k *p, uint32_t t)
{
    const MP_GLOBAL float *scores = (const MP_GLOBAL float *)p->scores + (uint64_t)t * p->experts;
    MP_GLOBAL uint32_t *expert = (MP_GLOBAL uint32_t *)p->expert + (uint64_t)t * p->top_k;
    MP_GLOBAL float *weight = (MP_GLOBAL float *)p->weight + (uint64_t)t * p->top_k;
    float last = 0;
    uint32_t last_index = 0xffffffffu;
    int is_nan = 0;

    for (uint32_t e = mp_lane(); e < p->experts; e += MP_LANES)
        is_nan |= scores[e] != scores[e];
    if (mp_ballot(is_nan) != 0) {
        if (mp_lane() == 0)
            mp_top_k_insert(scores, expert, weight, p->experts, p->top_k);
        return;
    }
    for (uint32_t r = 0; r < p->top_k; r++) {
        float best = 0;
        uint32_t index = 0xffffffffu;

        for (uint32_t e = mp_lane(); e < p->experts; e += MP_LANES) {
            if (r > 0 && !mp_is_before(last, last_index, scores[e], e))
                continue;
            if (index == 0xffffffffu || mp_is_before(scores[e], e, best, index)) {
                best = scores[e];
                index = e;
            }
        }
        mp_warp_best(&best, &index);
        if (mp_lane() == 0) {
            expert[r] = index;
            weight[r] = best;
        }
        last = best;
        last_index = index;
    }
}

MP_KERNEL(mp_top_k, mp_cuda_top_k, MP_ROW_WARPS *MP_LANES, 1)
{
    const uint32_t t = mp_block_x() * MP_ROW_WARPS + mp_warp();

    if (t < p.tokens)
        mp_top_k_row(&p, t);
}

/* What the list has of experts before this one: in total, and in the warps of this round. */
struct mp_listed {
    uint32_t rows, works;
};

/* Of a round: what each warp's experts have, in shared memory. */
struct mp_list_sums {
    struct mp_listed of_warp[MP_RESOLVE_EXPERTS / MP_LANES];
    uint32_t misses[MP_RESOLVE_EXPERTS / MP_LANES];
};

/* before := rows and works of the experts before this thread's in its warp; the warp's own go to
 * shared memory. */
MP_DEVICE void mp_list_count(struct mp_listed *before, struct mp_list_sums *sums, uint32_t rows,
                             int missing)
{
    const uint32_t has = mp_ballot(rows > 0), misses = mp_ballot(missing);

    before->rows = rows;
    for (uint32_t d = 1; d < MP_LANES; d *= 2) {
        const uint32_t below = mp_shuffle(before->rows, mp_lane() >= d ? mp_lane() - d : mp_lane());

        before->rows += mp_lane() >= d ? below : 0;
    }
    before->works = mp_count_bits(has & ((1u << mp_lane()) - 1));
    if (mp_lane() == MP_LANES - 1) {
        sums->of_warp[mp_warp()].rows = before->rows;
        sums->of_warp[mp_warp()].works = mp_count_bits(has);
        sums->misses[mp_warp()] = mp_count_bits(misses);
    }
    before->rows -= rows;
}

/* Entry number `at` of the list: expert e with `rows` rows from `first` on. */
MP_DEVICE void mp_list_add(const struct mp_cuda_resolve *p, uint32_t at, uint32_t e, uint32_t first,
                           uint32_t rows, const struct mp_cuda_place_of *place)
{
    const MP_GLOBAL uint32_t *expert = (const MP_GLOBAL uint32_t *)p->expert;
    MP_GLOBAL struct mp_cuda_expert *work = (MP_GLOBAL struct mp_cuda_expert *)p->work + at;

    work->gate = place->gate;
    work->up = place->up;
    work->down = place->down;
    work->first = first;
    work->count = rows;
    work->channels = p->channels;
    work->accumulate = p->accumulate;
    for (uint32_t i = 0; i < p->tokens * p->top_k; i++) {
        if (expert[i] == e)
            ((MP_GLOBAL uint32_t *)p->row)[first++] = i;
    }
}

MP_DEVICE void mp_note_chosen(const struct mp_cuda_resolve *p, uint32_t e)
{
    const MP_GLOBAL uint32_t *expert = (const MP_GLOBAL uint32_t *)p->expert;

    for (uint32_t t = 0; t < p->tokens; t++) {
        uint32_t is = 0;

        for (uint32_t r = 0; r < p->top_k; r++)
            is |= expert[t * p->top_k + r] == e;
        ((MP_GLOBAL uint32_t *)p->chosen)[e] += is;
    }
}

/* One block, a thread for each expert of a round. */
MP_DEVICE void mp_resolve_all(const struct mp_cuda_resolve *p, struct mp_list_sums *sums)
{
    const MP_GLOBAL uint32_t *expert = (const MP_GLOBAL uint32_t *)p->expert;
    const uint32_t ranks = p->tokens * p->top_k, warps = mp_threads() / MP_LANES;
    struct mp_listed all = { 0, 0 };
    uint32_t misses = 0;

    MP_NO_UNROLL
    for (uint32_t first = 0; first < p->experts; first += mp_threads()) {
        const uint32_t e = first + mp_thread();
        struct mp_cuda_place_of place = { 0, 0, 0, 0 };
        struct mp_listed before;
        uint32_t count = 0, rows;

        for (uint32_t i = 0; e < p->experts && i < ranks; i++)
            count += expert[i] == e;
        if (e < p->experts)
            place = ((const struct mp_cuda_place_of *)p->table)[e];
        rows = place.valid != 0 ? count : 0;
        mp_sync(); /* the sums of the round before have been read */
        mp_list_count(&before, sums, rows, count > 0 && place.valid == 0);
        mp_sync();
        before.rows += all.rows;
        before.works += all.works;
        for (uint32_t i = 0; i < warps; i++) {
            before.rows += i < mp_warp() ? sums->of_warp[i].rows : 0;
            before.works += i < mp_warp() ? sums->of_warp[i].works : 0;
            all.rows += sums->of_warp[i].rows;
            all.works += sums->of_warp[i].works;
            misses += sums->misses[i];
        }
        if (rows > 0)
            mp_list_add(p, before.works, e, before.rows, rows, &place);
        if (p->chosen != 0 && count > 0)
            mp_note_chosen(p, e);
    }
    if (mp_thread() == 0)
        *(MP_GLOBAL uint32_t *)p->misses = misses;
    for (uint32_t i = all.works + mp_thread(); i < p->works; i += mp_threads())
        ((MP_GLOBAL struct mp_cuda_expert *)p->work)[i].count = 0;
}

MP_KERNEL(mp_resolve, mp_cuda_resolve, MP_RESOLVE_EXPERTS, 1)
{
    mp_resolve_all(&p, (struct mp_list_sums *)mp_shared());
}

/* The block's share of the normed input, and of the input as it is. */
MP_DEVICE void mp_route_input(const struct mp_cuda_route *p, const struct mp_norms *norms)
{
    const MP_GLOBAL float *x = (const MP_GLOBAL float *)p->in.x;
    const MP_GLOBAL float *norm = (const MP_GLOBAL float *)p->in.norm;
    const uint32_t step = mp_blocks_x() * mp_threads();

    for (uint32_t t = 0; t < p->in.tokens; t++) {
        const float scale = norms->scale[t];

        for (uint32_t i = mp_block_x() * mp_threads() + mp_thread(); i < p->in.cols; i += step) {
            const uint64_t at = (uint64_t)t * p->in.cols + i;

            ((MP_GLOBAL float *)p->out)[at] = x[at] * scale * norm[i];
            if (p->kept != 0)
                ((MP_GLOBAL float *)p->kept)[at] = x[at];
        }
    }
}

/* The row of token t's scores; behind those of the router, the next one's. */
MP_DEVICE MP_GLOBAL float *mp_route_row(const struct mp_cuda_route *p, uint32_t t)
{
    const int next = t >= p->in.tokens;

    return (MP_GLOBAL float *)(next ? p->next.scores : p->scores) +
           (uint64_t)(next ? t - p->in.tokens : t) * p->experts;
}

/* Scores; then the last block does what needs all of them. The next router's blocks are behind
 * those of the first. */
MP_DEVICE void mp_route(const struct mp_cuda_route *p, const int type, const int tokens)
{
    const uint32_t blocks = MP_GEMV_BLOCKS(p->experts, p->in.cols);
    const int next = mp_block_x() >= blocks;
    struct mp_norms *norms = mp_norms_shared();
    struct mp_cuda_part part = { p->w, p->scores, 0, p->experts, 0 };
    struct mp_cuda_normed in = p->in;

    if (next) {
        part.w = p->next.w;
        part.y = p->next.scores;
        in.norm = p->next.norm;
    }
    mp_part_gemv(norms, &in, &part);
    mp_norms_fill(norms, &in);
    mp_route_input(p, norms);
    mp_gemv_block(&norms->gemv, type, 1, tokens, mp_block_x() - (next ? blocks : 0));
    if (!mp_is_last_block((MP_GLOBAL uint32_t *)p->turn, mp_blocks_x(), (uint32_t *)(norms + 1)))
        return;
    MP_NO_UNROLL
    for (uint32_t t = mp_warp(); t < p->in.tokens * (p->next.w != 0 ? 2u : 1u); t += MP_GEMV_WARPS)
        mp_softmax_row(mp_route_row(p, t), p->experts);
    if (p->choose.top_k == 0)
        return;
    mp_sync();
    MP_NO_UNROLL
    for (uint32_t t = mp_warp(); t < p->in.tokens; t += MP_GEMV_WARPS)
        mp_top_k_row(&p->choose, t);
    mp_sync();
    mp_resolve_all(&p->list, (struct mp_list_sums *)mp_shared());
}

#define MP_ROUTE(name, type, tokens)                                             \
    MP_KERNEL(mp_route##tokens##_##name, mp_cuda_route, MP_GEMV_WARPS *MP_LANES, \
              MP_GEMV_RESIDENT(type, 1, tokens))                                 \
    {                                                                            \
        mp_route(&p, type, tokens);                                              \
    }

MP_ROUTE(f32, MP_WTYPE_F32, 1)
MP_ROUTE(f32, MP_WTYPE_F32, 2)
MP_ROUTE(f32, MP_WTYPE_F32, 4)
MP_ROUTE(f32, MP_WTYPE_F32, 8)
MP_ROUTE(bf16, MP_WTYPE_BF16, 1)
MP_ROUTE(bf16, MP_WTYPE_BF16, 2)
MP_ROUTE(bf16, MP_WTYPE_BF16, 4)
MP_ROUTE(bf16, MP_WTYPE_BF16, 8)
MP_ROUTE(f16, MP_WTYPE_F16, 1)
MP_ROUTE(f16, MP_WTYPE_F16, 2)
MP_ROUTE(f16, MP_WTYPE_F16, 4)
MP_ROUTE(f16, MP_WTYPE_F16, 8)
