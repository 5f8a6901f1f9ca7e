#ifndef MP_DIVERGENCE_H
#define MP_DIVERGENCE_H

#include <stdio.h>

#include "vmm/base/status.h"
#include "vmm/output/json_out.h"

/*
 * The divergence report: how a routing that substitutes experts, or other weights, change a model's
 * output. The logits of a run with those are kept; then the same tokens are processed by the
 * original, in the same order, and each row is compared with the kept one.
 */
#define MP_DIVERGENCE_BYTES_MAX (UINT64_C(8) << 30)

struct mp_divergence {
    uint32_t vocab;
    uint64_t rows;              /* capacity, in rows */
    float *logits;              // (rows, vocab); pages are allocated when they are touched
    uint64_t kept;              /* rows */
    uint64_t compared;          /* of them */
    uint64_t agreed;            /* of those: the most likely token is the same */
    double kl_sum, kl_max;      /* KL(own || used), nats */
    double used_nats, own_nats; /* -log p of the tokens that follow, sums over those compared */
};

/* MP_ERR_CONFIG E_USAGE: the logits would be more than MP_DIVERGENCE_BYTES_MAX. */
enum mp_status mp_divergence_init(struct mp_divergence *divergence, uint64_t rows,
                                  uint32_t vocab) MP_MUST_CHECK;
/* Safe on a zeroed one. */
void mp_divergence_fini(struct mp_divergence *divergence);

/* Keep the next row of the first run: logits(vocab). At most `rows` of them. */
void mp_divergence_keep(struct mp_divergence *divergence, const float *logits);

/* Compare the next row of the second run with the row kept for it; `next`: the token that follows.
 */
void mp_divergence_compare(struct mp_divergence *divergence, const float *own, uint32_t next);

/* `from`: what is diverged from, such as "the model's own routing". */
void mp_divergence_print(const struct mp_divergence *divergence, const char *from, FILE *out);
void mp_divergence_json(const struct mp_divergence *divergence, struct mp_json_out *json,
                        const char *key);

#endif
