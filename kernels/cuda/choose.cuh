/* The next token. */
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/best.cuh"

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
