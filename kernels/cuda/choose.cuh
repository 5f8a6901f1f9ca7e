/* Choices: the best experts of a token, where they are, the next token. */
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/math.cuh"

/* Whether (a, i) comes before (b, j): greater, or equal with the lower number. NaN never does. */
MP_DEVICE int mp_is_before(float a, uint32_t i, float b, uint32_t j)
{
    return a > b || (a == b && i < j);
}

/* Of all lanes' (value, index) the one before all others; index 0xffffffff: none. */
MP_DEVICE void mp_warp_best(float *value, uint32_t *index)
{
    MP_UNROLL
    for (uint32_t d = 16; d > 0; d /= 2) {
        const float other = mp_shuffle_xor_float(*value, d);
        const uint32_t other_index = mp_shuffle_xor(*index, d);

        if (other_index != 0xffffffffu &&
            (*index == 0xffffffffu || mp_is_before(other, other_index, *value, *index))) {
            *value = other;
            *index = other_index;
        }
    }
}

/* As policy/route_exact.c, step by step: what it does with NaN depends on the order. */
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

/* A warp for each token; each round finds the best of those that come after the last one found. */
MP_KERNEL(mp_top_k, mp_cuda_top_k, MP_ROW_WARPS *MP_LANES, 1)
{
    const uint32_t t = mp_block_x() * MP_ROW_WARPS + mp_warp();
    const MP_GLOBAL float *scores = (const MP_GLOBAL float *)p.scores + (uint64_t)t * p.experts;
    MP_GLOBAL uint32_t *expert = (MP_GLOBAL uint32_t *)p.expert + (uint64_t)t * p.top_k;
    MP_GLOBAL float *weight = (MP_GLOBAL float *)p.weight + (uint64_t)t * p.top_k;
    float last = 0;
    uint32_t last_index = 0xffffffffu;
    int is_nan = 0;

    if (t >= p.tokens)
        return;
    for (uint32_t e = mp_lane(); e < p.experts; e += MP_LANES)
        is_nan |= scores[e] != scores[e];
    if (mp_ballot(is_nan) != 0) {
        if (mp_lane() == 0)
            mp_top_k_insert(scores, expert, weight, p.experts, p.top_k);
        return;
    }
    for (uint32_t r = 0; r < p.top_k; r++) {
        float best = 0;
        uint32_t index = 0xffffffffu;

        for (uint32_t e = mp_lane(); e < p.experts; e += MP_LANES) {
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

/* One block, a thread for each expert. */
MP_KERNEL(mp_resolve, mp_cuda_resolve, MP_RESOLVE_EXPERTS, 1)
{
    const MP_GLOBAL uint32_t *expert = (const MP_GLOBAL uint32_t *)p.expert;
    const uint32_t e = mp_thread(), ranks = p.tokens * p.top_k, warps = mp_threads() / MP_LANES;
    uint32_t *rows_of_warp = (uint32_t *)mp_shared(), *misses_of_warp = rows_of_warp + warps;
    struct mp_cuda_place_of place = { 0, 0, 0, 0 };
    uint32_t count = 0, rows, before, at, missing;

    for (uint32_t i = 0; e < p.experts && i < ranks; i++)
        count += expert[i] == e;
    if (e < p.experts)
        place = ((const struct mp_cuda_place_of *)p.table)[e];
    rows = place.valid != 0 ? count : 0;
    missing = mp_count_bits(mp_ballot(count > 0 && place.valid == 0));

    /* Rows of the experts before this one: in the warp, then in the warps before. */
    before = rows;
    for (uint32_t d = 1; d < MP_LANES; d *= 2) {
        const uint32_t below = mp_shuffle(before, mp_lane() >= d ? mp_lane() - d : mp_lane());

        before += mp_lane() >= d ? below : 0;
    }
    if (mp_lane() == MP_LANES - 1) {
        rows_of_warp[mp_warp()] = before;
        misses_of_warp[mp_warp()] = missing;
    }
    before -= rows;
    mp_sync();
    for (uint32_t i = 0; i < mp_warp(); i++)
        before += rows_of_warp[i];
    if (e == 0) {
        missing = 0;
        for (uint32_t i = 0; i < warps; i++)
            missing += misses_of_warp[i];
        *(MP_GLOBAL uint32_t *)p.misses = missing;
    }
    if (e >= p.experts)
        return;

    MP_GLOBAL struct mp_cuda_expert *work = (MP_GLOBAL struct mp_cuda_expert *)p.work + e;

    work->gate = place.gate;
    work->up = place.up;
    work->down = place.down;
    work->first = before;
    work->count = rows;
    work->channels = p.channels;
    work->accumulate = 0;
    at = before;
    for (uint32_t i = 0; rows > 0 && i < ranks; i++) {
        if (expert[i] == e)
            ((MP_GLOBAL uint32_t *)p.row)[at++] = i;
    }
    for (uint32_t t = 0; p.chosen != 0 && count > 0 && t < p.tokens; t++) {
        uint32_t is = 0;

        for (uint32_t r = 0; r < p.top_k; r++)
            is |= expert[t * p.top_k + r] == e;
        ((MP_GLOBAL uint32_t *)p.chosen)[e] += is;
    }
}

MP_KERNEL(mp_argmax, mp_cuda_argmax, MP_ARGMAX_THREADS, 1)
{
    const MP_GLOBAL float *logits =
        (const MP_GLOBAL float *)p.logits + (uint64_t)mp_block_x() * p.vocab;
    float *best_of_warp = (float *)mp_shared(), best = 0;
    uint32_t *index_of_warp = (uint32_t *)(best_of_warp + MP_ARGMAX_THREADS / MP_LANES);
    uint32_t index = 0xffffffffu;

    for (uint32_t i = mp_thread(); i < p.vocab; i += MP_ARGMAX_THREADS) {
        const float v = logits[i];

        if (v == v && (index == 0xffffffffu || v > best)) {
            best = v;
            index = i;
        }
    }
    mp_warp_best(&best, &index);
    if (mp_lane() == 0) {
        best_of_warp[mp_warp()] = best;
        index_of_warp[mp_warp()] = index;
    }
    mp_sync();
    if (mp_warp() != 0)
        return;
    index = mp_lane() < MP_ARGMAX_THREADS / MP_LANES ? index_of_warp[mp_lane()] : 0xffffffffu;
    best = mp_lane() < MP_ARGMAX_THREADS / MP_LANES ? best_of_warp[mp_lane()] : 0.0f;
    mp_warp_best(&best, &index);
    if (mp_lane() == 0)
        ((MP_GLOBAL uint32_t *)p.token)[mp_block_x()] = index == 0xffffffffu ? 0 : index;
}
