/*
 * Choosing a token from logits on the host: the best one, or one sampled from the best. Devices
 * sample by a kernel of their own (mp_cuda_sample).
 */
#include "engine/forward/sampler.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "vmm/base/arena.h"

struct candidate {
    float logit;
    uint32_t token;
};

struct mp_sampler {
    struct mp_sampling sampling;
    uint32_t vocab;
    struct candidate *candidates; // (vocab)
    double *probability;          // (vocab)
    uint64_t *state;              // (sequences)
    void *block;                  /* of all these arrays */
};

#define RANDOM_STEP 0x9e3779b97f4a7c15u

/* splitmix64: one step of the generator. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t v = *state += RANDOM_STEP;

    v = (v ^ v >> 30) * 0xbf58476d1ce4e5b9u;
    v = (v ^ v >> 27) * 0x94d049bb133111ebu;
    return v ^ v >> 31;
}

enum mp_status mp_sampling_check(const struct mp_sampling *sampling)
{
    if (!(sampling->temperature >= 0 && sampling->temperature <= 100))
        return mp_fail(MP_ERR_CONFIG, "E_SAMPLING", "temperature %g is not between 0 and 100",
                       sampling->temperature);
    if (!(sampling->top_p > 0 && sampling->top_p <= 1))
        return mp_fail(MP_ERR_CONFIG, "E_SAMPLING", "top-p %g is not above 0 and at most 1",
                       sampling->top_p);
    return MP_OK;
}

static void take_arrays(struct mp_sampler *sampler, uint32_t sequences, struct mp_arena *arena)
{
    sampler->candidates = mp_arena_take(arena, sampler->vocab, sizeof(*sampler->candidates));
    sampler->probability = mp_arena_take(arena, sampler->vocab, sizeof(*sampler->probability));
    sampler->state = mp_arena_take(arena, sequences, sizeof(*sampler->state));
}

enum mp_status mp_sampler_create(const struct mp_sampling *sampling, uint32_t vocab,
                                 uint32_t sequences, struct mp_sampler **sampler_p)
{
    struct mp_arena arena = { 0 };
    struct mp_sampler *sampler;
    enum mp_status status = mp_sampling_check(sampling);

    if (status != MP_OK)
        return status;
    sampler = calloc(1, sizeof(*sampler));
    if (sampler == NULL)
        return mp_fail_no_memory("the sampler", sizeof(*sampler));
    sampler->sampling = *sampling;
    sampler->vocab = vocab;
    take_arrays(sampler, sequences, &arena);
    status = mp_arena_open(&arena, "the sampler");
    if (status != MP_OK) {
        free(sampler);
        return status;
    }
    take_arrays(sampler, sequences, &arena);
    sampler->block = arena.block;
    for (uint32_t s = 0; s < sequences; s++) {
        uint64_t start = sampling->seed;

        for (uint32_t i = 0; i <= s; i++)
            sampler->state[s] = next_random(&start);
    }
    *sampler_p = sampler;
    return MP_OK;
}

void mp_sampler_destroy(struct mp_sampler *sampler)
{
    if (sampler == NULL)
        return;
    free(sampler->block);
    free(sampler);
}

/* The highest logit, ties to the lower id; false if one is NaN, or the highest is infinite. One NaN
 * is enough: to pass over it would be another text than the model's, and nobody would know. */
static bool find_best(const float *logits, uint32_t vocab, uint32_t *token_p)
{
    uint32_t best = 0;

    for (uint32_t i = 0; i < vocab; i++) {
        if (isnan(logits[i]))
            return false;
        if (logits[i] > logits[best])
            best = i;
    }
    *token_p = best;
    return isfinite(logits[best]);
}

/* Higher logit first, then lower id. */
static bool before(const struct candidate *a, const struct candidate *b)
{
    return a->logit > b->logit || (a->logit == b->logit && a->token < b->token);
}

/* Restore the heap order below `at`: the root is the one that comes last by before(). */
static void sift(struct candidate *heap, uint32_t count, uint32_t at)
{
    for (;;) {
        uint32_t child = 2 * at + 1;
        struct candidate swap;

        if (child >= count)
            return;
        if (child + 1 < count && before(&heap[child], &heap[child + 1]))
            child++;
        if (!before(&heap[at], &heap[child]))
            return;
        swap = heap[at];
        heap[at] = heap[child];
        heap[child] = swap;
        at = child;
    }
}

/* The `keep` best candidates, best first, at the front. Heap sort: bounded time, no memory. */
static uint32_t select_best(struct mp_sampler *sampler, const float *logits, uint32_t keep)
{
    struct candidate *heap = sampler->candidates;
    uint32_t count = 0;

    for (uint32_t i = 0; i < sampler->vocab; i++) {
        const struct candidate one = { logits[i], i };

        if (count < keep) {
            heap[count++] = one;
            if (count == keep) {
                for (uint32_t at = count / 2; at-- > 0;)
                    sift(heap, count, at);
            }
        } else if (before(&one, &heap[0])) {
            heap[0] = one;
            sift(heap, count, 0);
        }
    }
    for (uint32_t at = count / 2; at-- > 0;)
        sift(heap, count, at);
    for (uint32_t end = count; end-- > 1;) {
        const struct candidate swap = heap[0];

        heap[0] = heap[end];
        heap[end] = swap;
        sift(heap, end, 0);
    }
    return count;
}

static uint32_t sample(struct mp_sampler *sampler, uint32_t sequence, const float *logits)
{
    const struct mp_sampling *s = &sampler->sampling;
    const uint32_t keep = s->top_k > 0 && s->top_k < sampler->vocab ? s->top_k : sampler->vocab;
    const uint32_t count = select_best(sampler, logits, keep);
    const double top = sampler->candidates[0].logit;
    double total = 0, cut = 0, at;
    uint32_t kept = 0;

    for (uint32_t i = 0; i < count; i++) {
        sampler->probability[i] = exp((sampler->candidates[i].logit - top) / s->temperature);
        total += sampler->probability[i];
    }
    while (kept < count && (kept == 0 || cut < s->top_p * total))
        cut += sampler->probability[kept++];
    at = (double)(next_random(&sampler->state[sequence]) >> 11) * 0x1p-53 * cut;
    for (uint32_t i = 0; i < kept; i++) {
        at -= sampler->probability[i];
        if (at < 0)
            return sampler->candidates[i].token;
    }
    return sampler->candidates[kept - 1].token;
}

uint32_t mp_sampler_uniform(struct mp_sampler *sampler, uint32_t sequence)
{
    return (uint32_t)(next_random(&sampler->state[sequence]) >> 32);
}

void mp_sampler_rewind(struct mp_sampler *sampler, uint32_t sequence, uint32_t count)
{
    sampler->state[sequence] -= count * RANDOM_STEP;
}

enum mp_status mp_sampler_refuse(uint32_t sequence)
{
    return mp_fail(MP_ERR_MODEL, "E_LOGITS_NAN",
                   "the logits of sequence %u are not finite numbers; the weights are damaged or "
                   "overflow",
                   sequence);
}

enum mp_status mp_sampler_pick(struct mp_sampler *sampler, uint32_t sequence, const float *logits,
                               uint32_t *token_p)
{
    if (!find_best(logits, sampler->vocab, token_p))
        return mp_sampler_refuse(sequence);
    if (sampler->sampling.temperature > 0)
        *token_p = sample(sampler, sequence, logits);
    return MP_OK;
}
