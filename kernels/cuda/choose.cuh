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

/* Shared memory behind that of mp_block_sums(): a place and a mass for each thread, and two words. */
MP_DEVICE uint64_t *mp_behind_sums(void)
{
    return (uint64_t *)((char *)mp_shared() + MP_SAMPLE_SUMS);
}

/* Token i of those that a block has, which `blocks` of them share out by 32 in turn. */
MP_DEVICE uint32_t mp_shared_out(uint32_t i, uint32_t block, uint32_t blocks)
{
    return (i / MP_LANES * blocks + block) * MP_LANES + i % MP_LANES;
}

MP_DEVICE uint64_t mp_warp_best_place(uint64_t place)
{
    MP_UNROLL
    for (uint32_t d = 16; d > 0; d /= 2) {
        const uint64_t other = mp_shuffle_xor_long(place, d);

        place = other > place ? other : place;
    }
    return place;
}

/* The greatest of all threads of the block, for all of them. */
MP_DEVICE uint64_t mp_block_best_place(uint64_t place)
{
    const uint32_t warps = MP_ARGMAX_THREADS / MP_LANES;
    uint64_t *of_warp = (uint64_t *)mp_shared();

    place = mp_warp_best_place(place);
    mp_sync(); /* what was there has been read */
    if (mp_lane() == 0)
        of_warp[mp_warp()] = place;
    mp_sync();
    return mp_warp_best_place(mp_lane() < warps ? of_warp[mp_lane()] : 0);
}

MP_DEVICE MP_GLOBAL struct mp_cuda_sample_part *mp_parts_of(const struct mp_cuda_sample *p)
{
    return (MP_GLOBAL struct mp_cuda_sample_part *)p->part +
           (uint64_t)mp_block_y() * mp_blocks_x();
}

/* Places of the first tokens in the order of a block's share. */
MP_KERNEL(mp_sample_list, mp_cuda_sample, MP_ARGMAX_THREADS, 1)
{
    const MP_GLOBAL float *logits =
        (const MP_GLOBAL float *)p.logits + (uint64_t)mp_block_y() * p.vocab;
    MP_GLOBAL struct mp_cuda_sample_part *part = mp_parts_of(&p) + mp_block_x();
    uint64_t before = ~0ull;

    MP_NO_UNROLL
    for (uint32_t n = 0; n < MP_SAMPLE_LISTED; n++) {
        uint64_t best = 0;
        uint32_t v;

        MP_NO_UNROLL
        for (uint32_t i = mp_thread(); (v = mp_shared_out(i, mp_block_x(), mp_blocks_x())) < p.vocab;
             i += MP_ARGMAX_THREADS) {
            const uint64_t place = mp_place_of(logits[v], v);

            best = place < before && place > best ? place : best;
        }
        before = mp_block_best_place(best);
        if (mp_thread() == 0)
            part->place[n] = before;
    }
}

/* The sum of the probabilities of a block's share, and whether a logit is NaN. */
MP_DEVICE void mp_sample_sum(const struct mp_cuda_sample *p, const MP_GLOBAL float *logits,
                             float best, MP_GLOBAL struct mp_cuda_sample_part *part)
{
    uint64_t sums[MP_SAMPLE_DIGITS];
    const uint64_t *of_digit;
    uint32_t v;

    MP_UNROLL
    for (uint32_t d = 0; d < MP_SAMPLE_DIGITS; d++)
        sums[d] = 0;
    MP_NO_UNROLL
    for (uint32_t i = mp_thread(); (v = mp_shared_out(i, mp_block_x(), mp_blocks_x())) < p->vocab;
         i += MP_ARGMAX_THREADS) {
        const float logit = logits[v];

        if (logit != logit)
            sums[1]++;
        else if (best - best == 0.0f && p->temperature > 0)
            sums[0] += mp_mass(logit, best, p->temperature);
    }
    of_digit = mp_block_sums(sums);
    if (mp_thread() == 0) {
        part->mass = of_digit[0];
        part->nan = of_digit[1];
    }
}

/* What the last block of a token has of it: one listed token a thread. */
struct mp_candidate {
    uint64_t place, mass; /* 0: none */
    uint64_t sum;         /* of those before it */
    uint32_t number;      /* of those before it */
};

/* Write value for all threads if `is` in one of them, and return it; ~0: in none. */
MP_DEVICE uint64_t mp_of_one(int is, uint64_t value)
{
    uint64_t *found = mp_behind_sums() + 2 * MP_ARGMAX_THREADS;

    mp_sync();
    if (mp_thread() == 0)
        *found = ~0ull;
    mp_sync();
    if (is)
        *found = value;
    mp_sync();
    return *found;
}

/*
 * Listed tokens are complete down to the first that some block has listed last. Each counts those
 * before it and adds up their probabilities; *count, *mass: of all.
 */
MP_DEVICE struct mp_candidate mp_rank_listed(const struct mp_cuda_sample *p,
                                          const MP_GLOBAL float *logits, float best,
                                          uint64_t *count, uint64_t *mass)
{
    const MP_GLOBAL struct mp_cuda_sample_part *part = mp_parts_of(p);
    const uint32_t block = mp_thread() / MP_SAMPLE_LISTED;
    uint64_t *places = mp_behind_sums();
    uint64_t *masses = places + MP_ARGMAX_THREADS, sums[MP_SAMPLE_DIGITS], last;
    const uint64_t *of_digit;
    struct mp_candidate mine = { 0, 0, 0, 0 };

    last = mp_warp_best_place(
        mp_lane() < mp_blocks_x() ? part[mp_lane()].place[MP_SAMPLE_LISTED - 1] : 0);
    if (block < mp_blocks_x())
        mine.place = part[block].place[mp_thread() % MP_SAMPLE_LISTED];
    if (mine.place < last)
        mine.place = 0;
    if (mine.place != 0)
        mine.mass = mp_mass(logits[0xffffffu - (uint32_t)(mine.place & 0xffffffu)], best,
                            p->temperature);
    places[mp_thread()] = mine.place;
    masses[mp_thread()] = mine.mass;
    MP_UNROLL
    for (uint32_t d = 0; d < MP_SAMPLE_DIGITS; d++)
        sums[d] = d == 0 ? mine.mass : d == 1 ? mine.place != 0 : 0;
    of_digit = mp_block_sums(sums);
    *mass = of_digit[0];
    *count = of_digit[1];
    MP_NO_UNROLL
    for (uint32_t i = 0; i < MP_ARGMAX_THREADS; i++) {
        const int is_before = places[i] > mine.place;

        mine.sum += is_before ? masses[i] : 0;
        mine.number += is_before ? 1 : 0;
    }
    return mine;
}

/* The place of the sampled token if it and all that decides are listed, or 0. What mp_search()
 * finds is the same. all: the sum of all probabilities. */
MP_DEVICE uint64_t mp_sample_listed(const struct mp_cuda_sample *p, const MP_GLOBAL float *logits,
                                    float best, uint32_t uniform, uint64_t all)
{
    uint64_t count, mass, kept = all, target;
    const struct mp_candidate mine = mp_rank_listed(p, logits, best, &count, &mass);
    const int is_listed = mine.place != 0;

    if (p->top_k != 0 && p->top_k < p->vocab) {
        if (p->top_k <= count)
            kept = mp_of_one(is_listed && mine.number == p->top_k - 1, mine.sum + mine.mass);
        else if (mass != all) /* what is not listed would matter */
            return 0;
    }
    if (p->top_p >> 32 == 0) {
        target = mp_scale(kept, p->top_p);
        target = target > 0 ? target - 1 : 0;
        kept = mp_of_one(is_listed && mine.sum <= target && target < mine.sum + mine.mass,
                         mine.sum + mine.mass);
        if (kept == ~0ull)
            return 0;
    }
    target = mp_scale(kept, uniform);
    target = mp_of_one(is_listed && mine.sum <= target && target < mine.sum + mine.mass,
                       mine.place);
    return target == ~0ull ? 0 : target;
}

/* The same in all tokens; places of the order that are cut off are below `last`. */
MP_DEVICE uint64_t mp_sample_all(const struct mp_cuda_sample *p, const MP_GLOBAL float *logits,
                                 float best, uint32_t uniform)
{
    uint64_t last = 0;

    MP_NO_UNROLL
    for (uint32_t what = MP_SEARCH_TOP_K; what < MP_SEARCHES; what++) {
        if ((what == MP_SEARCH_TOP_K && (p->top_k == 0 || p->top_k >= p->vocab)) ||
            (what == MP_SEARCH_TOP_P && p->top_p >> 32 != 0))
            continue;
        last = mp_search(p, logits, best, uniform, what, last);
    }
    return last;
}

/* After mp_sample_list. The last block of a token chooses. */
MP_KERNEL(mp_sample, mp_cuda_sample, MP_ARGMAX_THREADS, 1)
{
    const MP_GLOBAL float *logits =
        (const MP_GLOBAL float *)p.logits + (uint64_t)mp_block_y() * p.vocab;
    const uint32_t uniform = ((const MP_GLOBAL uint32_t *)p.uniform)[mp_block_y()];
    MP_GLOBAL struct mp_cuda_sample_part *part = mp_parts_of(&p);
    uint64_t place, all = 0, nan = 0;
    uint32_t token;
    float best;

    place = mp_warp_best_place(mp_lane() < mp_blocks_x() ? part[mp_lane()].place[0] : 0);
    token = 0xffffffu - (uint32_t)(place & 0xffffffu);
    best = logits[token];
    mp_sample_sum(&p, logits, best, part + mp_block_x());
    if (!mp_is_last_block((MP_GLOBAL uint32_t *)p.turn + mp_block_y(), mp_blocks_x(),
                          (uint32_t *)(mp_behind_sums() + 2 * MP_ARGMAX_THREADS + 1)))
        return;
    MP_NO_UNROLL
    for (uint32_t b = 0; b < mp_blocks_x(); b++) {
        all += part[b].mass;
        nan += part[b].nan;
    }
    if (nan != 0 || best - best != 0.0f) {
        token = 0xffffffffu;
    } else if (p.temperature > 0) {
        place = mp_sample_listed(&p, logits, best, uniform, all);
        if (place == 0)
            place = mp_sample_all(&p, logits, best, uniform);
        token = 0xffffffu - (uint32_t)(place & 0xffffffu);
    }
    if (mp_thread() == 0)
        ((MP_GLOBAL uint32_t *)p.token)[mp_block_y()] = token;
}
