#ifndef MP_SAMPLER_H
#define MP_SAMPLER_H

#include <stdint.h>

#include "vmm/base/error.h"

/*
 * Choose the next token from logits.
 *
 * Temperature 0 is greedy: the highest logit, ties to the lower id. Otherwise logits are divided by
 * the temperature, cut to the top_k highest (0: no cut), then to the smallest set whose
 * probabilities reach top_p, and one is sampled. Each sequence has its own random number generator,
 * so that its samples do not depend on the other sequences of a batch.
 *
 * Thread safety: a sampler belongs to one thread at a time.
 */
struct mp_sampling {
    double temperature; /* 0..100 */
    uint32_t top_k;     /* 0: all */
    double top_p;       /* 0 < top_p <= 1 */
    uint64_t seed;
};

/* MP_ERR_CONFIG E_SAMPLING for values out of range. */
enum mp_status mp_sampling_check(const struct mp_sampling *sampling) MP_MUST_CHECK;

struct mp_sampler;

/* `vocab` >= 1 logits per call, `sequences` generators. Also checks `sampling`. */
enum mp_status mp_sampler_create(const struct mp_sampling *sampling, uint32_t vocab,
                                 uint32_t sequences, struct mp_sampler **sampler_p) MP_MUST_CHECK;
void mp_sampler_destroy(struct mp_sampler *sampler);

/*
 * For tokens that are sampled elsewhere (on a device). uniform: consume and return the random
 * number, in units of 2^-32, with which mp_sampler_pick() would sample the sequence's next token.
 * refuse: set and return the error for logits that are not finite.
 */
uint32_t mp_sampler_uniform(struct mp_sampler *sampler, uint32_t sequence);
enum mp_status mp_sampler_refuse(uint32_t sequence) MP_MUST_CHECK;

/* Give back the last `count` random numbers of the sequence: they come again. */
void mp_sampler_rewind(struct mp_sampler *sampler, uint32_t sequence, uint32_t count);

/* MP_ERR_MODEL E_LOGITS_NAN if a logit is NaN, or the highest one is infinite. */
enum mp_status mp_sampler_pick(struct mp_sampler *sampler, uint32_t sequence, const float *logits,
                               uint32_t *token_p) MP_MUST_CHECK;

#endif
