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
    work->accumulate = p.accumulate;
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

/* For all threads of the block: the lowest number of a greatest of row[0 .. count), and whether one
 * is NaN, which is less than all else; index 0xffffffff: all are. */
MP_DEVICE int mp_block_best(const MP_GLOBAL float *row, uint32_t count, float *best_p,
                            uint32_t *index_p)
{
    const uint32_t warps = MP_ARGMAX_THREADS / MP_LANES;
    float *best_of_warp = (float *)mp_shared(), best = 0;
    uint32_t *index_of_warp = (uint32_t *)(best_of_warp + warps), *nan_of_warp;
    uint32_t index = 0xffffffffu, is_nan = 0;

    nan_of_warp = index_of_warp + warps;
    for (uint32_t i = mp_thread(); i < count; i += MP_ARGMAX_THREADS) {
        const float v = row[i];

        is_nan |= v != v;
        if (v == v && (index == 0xffffffffu || v > best)) {
            best = v;
            index = i;
        }
    }
    mp_warp_best(&best, &index);
    is_nan = mp_ballot((int)is_nan);
    if (mp_lane() == 0) {
        best_of_warp[mp_warp()] = best;
        index_of_warp[mp_warp()] = index;
        nan_of_warp[mp_warp()] = is_nan;
    }
    mp_sync();
    index = mp_lane() < warps ? index_of_warp[mp_lane()] : 0xffffffffu;
    best = mp_lane() < warps ? best_of_warp[mp_lane()] : 0.0f;
    is_nan = mp_lane() < warps ? nan_of_warp[mp_lane()] : 0;
    mp_warp_best(&best, &index);
    *best_p = best;
    *index_p = index;
    return mp_ballot(is_nan != 0) != 0;
}

MP_KERNEL(mp_argmax, mp_cuda_argmax, MP_ARGMAX_THREADS, 1)
{
    uint32_t index;
    float best;

    (void)mp_block_best((const MP_GLOBAL float *)p.logits + (uint64_t)mp_block_x() * p.vocab,
                        p.vocab, &best, &index);
    if (mp_thread() == 0)
        ((MP_GLOBAL uint32_t *)p.token)[mp_block_x()] = index == 0xffffffffu ? 0 : index;
}

/* A token's place in the order, as a number: greater ones come first, no two are equal. */
#define MP_PLACE_BITS 56

MP_DEVICE uint64_t mp_place_of(float logit, uint32_t token)
{
    const uint32_t bits = mp_as_bits(logit + 0.0f); /* -0 is 0 */
    const uint32_t key = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;

    return (uint64_t)key << 24 | (0xffffffu - token);
}

/* exp((logit - best) / temperature) in 2^-40 */
MP_DEVICE uint64_t mp_mass(float logit, float best, float temperature)
{
    return (uint64_t)(mp_exp(mp_divide(logit - best, temperature)) * 1099511627776.0f);
}

/* floor(a * b / 2^32) for a < 2^63, b <= 2^32 */
MP_DEVICE uint64_t mp_scale(uint64_t a, uint64_t b)
{
    return (a >> 32) * b + ((a & 0xffffffffu) * b >> 32);
}

/* One step of mp_block_sums(): lanes d apart share out pairs of sums, or both keep the last one. */
MP_DEVICE void mp_halve_sums(uint64_t *sums, const uint32_t pairs, const uint32_t d)
{
    const int is_high = (mp_lane() & d) != 0;

    if (pairs == 0)
        sums[0] += mp_shuffle_xor_long(sums[0], d);
    MP_UNROLL
    for (uint32_t i = 0; i < pairs; i++) {
        const uint64_t low = sums[i], high = sums[i + pairs];

        sums[i] = (is_high ? high : low) + mp_shuffle_xor_long(is_high ? low : high, d);
    }
}

/* Result d, for all threads := the sum of their sums[d]; sums[] is used up. */
MP_DEVICE const uint64_t *mp_block_sums(uint64_t *sums)
{
    const uint32_t warps = MP_ARGMAX_THREADS / MP_LANES;
    uint64_t *of_warp = (uint64_t *)mp_shared(), *of_digit = of_warp + warps * MP_SAMPLE_DIGITS;

    mp_halve_sums(sums, 8, 16);
    mp_halve_sums(sums, 4, 8);
    mp_halve_sums(sums, 2, 4);
    mp_halve_sums(sums, 1, 2);
    mp_halve_sums(sums, 0, 1);
    mp_sync(); /* what was there has been read */
    if (mp_lane() % 2 == 0)
        of_warp[mp_warp() * MP_SAMPLE_DIGITS + mp_lane() / 2] = sums[0];
    mp_sync();
    if (mp_thread() < MP_SAMPLE_DIGITS) {
        uint64_t sum = 0;

        for (uint32_t w = 0; w < warps; w++)
            sum += of_warp[w * MP_SAMPLE_DIGITS + mp_thread()];
        of_digit[mp_thread()] = sum;
    }
    mp_sync();
    return of_digit;
}

enum { MP_SEARCH_TOP_K, MP_SEARCH_TOP_P, MP_SEARCH_SAMPLE, MP_SEARCHES };

/*
 * The place at which the sum of weights in order first exceeds a target, among places of at least
 * `last`; digit by digit, the greatest first. The target follows from the sum of all:
 *
 *     TOP_K    the top_k-th token: top_k - 1, by numbers
 *     TOP_P    the first that reaches top_p of the sum
 *     SAMPLE   the one that `uniform` of the sum falls on
 */
MP_DEVICE uint64_t mp_search(const struct mp_cuda_sample *p, const MP_GLOBAL float *logits,
                             float best, uint32_t uniform, uint32_t what, uint64_t last)
{
    uint64_t found = 0, before = 0, target = 0;

    MP_NO_UNROLL
    for (uint32_t shift = MP_PLACE_BITS; shift > 0;) {
        uint64_t sums[MP_SAMPLE_DIGITS];
        const uint64_t *of_digit;
        uint32_t digit = MP_SAMPLE_DIGITS - 1;

        shift -= 4;
        MP_UNROLL
        for (uint32_t d = 0; d < MP_SAMPLE_DIGITS; d++)
            sums[d] = 0;
        MP_NO_UNROLL
        for (uint32_t v = mp_thread(); v < p->vocab; v += MP_ARGMAX_THREADS) {
            const uint64_t place = mp_place_of(logits[v], v);
            uint64_t weight = 1;

            if (place < last || place >> shift >> 4 != found >> shift >> 4)
                continue;
            if (what != MP_SEARCH_TOP_K)
                weight = mp_mass(logits[v], best, p->temperature);
            MP_UNROLL
            for (uint32_t d = 0; d < MP_SAMPLE_DIGITS; d++)
                sums[d] += (place >> shift) % MP_SAMPLE_DIGITS == d ? weight : 0;
        }
        of_digit = mp_block_sums(sums);
        if (shift + 4 == MP_PLACE_BITS) {
            uint64_t all = 0;

            for (uint32_t d = 0; d < MP_SAMPLE_DIGITS; d++)
                all += of_digit[d];
            if (what == MP_SEARCH_TOP_K)
                target = p->top_k - 1;
            else if (what == MP_SEARCH_SAMPLE)
                target = mp_scale(all, uniform);
            else if (mp_scale(all, p->top_p) > 0)
                target = mp_scale(all, p->top_p) - 1;
        }
        while (digit > 0 && before + of_digit[digit] <= target)
            before += of_digit[digit--];
        found |= (uint64_t)digit << shift;
    }
    return found;
}

/* Places of the order that are cut off are below `last`. */
MP_KERNEL(mp_sample, mp_cuda_sample, MP_ARGMAX_THREADS, 1)
{
    const MP_GLOBAL float *logits =
        (const MP_GLOBAL float *)p.logits + (uint64_t)mp_block_x() * p.vocab;
    const uint32_t uniform = ((const MP_GLOBAL uint32_t *)p.uniform)[mp_block_x()];
    uint32_t token;
    uint64_t last = 0;
    float best;

    if (mp_block_best(logits, p.vocab, &best, &token) || token == 0xffffffffu ||
        best - best != 0.0f) {
        token = 0xffffffffu;
    } else if (p.temperature > 0) {
        MP_NO_UNROLL
        for (uint32_t what = MP_SEARCH_TOP_K; what < MP_SEARCHES; what++) {
            if ((what == MP_SEARCH_TOP_K && (p.top_k == 0 || p.top_k >= p.vocab)) ||
                (what == MP_SEARCH_TOP_P && p.top_p >> 32 != 0))
                continue;
            last = mp_search(&p, logits, best, uniform, what, last);
        }
        token = 0xffffffu - (uint32_t)(last & 0xffffffu);
    }
    if (mp_thread() == 0)
        ((MP_GLOBAL uint32_t *)p.token)[mp_block_x()] = token;
}
