#ifndef MP_DIVERGENCE_H
#define MP_DIVERGENCE_H

#include "engine/session/generate.h"
#include "engine/session/session.h"
#include "vmm/base/json_out.h"

/*
 * What a routing that substitutes experts did to the model's output: the logits of a run are kept,
 * then the same tokens go through the model again with its own routing, and both are compared.
 */
#define MP_DIVERGENCE_BYTES_MAX (UINT64_C(8) << 30)

struct mp_divergence {
    uint32_t count, vocab;
    uint64_t max_tokens;
    float *logits;     // (count, max_tokens, vocab); pages come when they are touched
    uint32_t sequence; /* being compared */

    uint64_t compared, agreed; /* tokens; where the likeliest is the same */
    double kl_sum, kl_max;     /* KL(own || used), nats */
};

/* MP_ERR_CONFIG E_USAGE: the logits would be more than MP_DIVERGENCE_BYTES_MAX. */
enum mp_status mp_divergence_init(struct mp_divergence *receipt, uint32_t count,
                                  uint64_t max_tokens, uint32_t vocab) MP_MUST_CHECK;
/* Safe on a zeroed one. */
void mp_divergence_fini(struct mp_divergence *receipt);

/* Keep the logits from which token number `step` of a sequence is chosen. */
void mp_divergence_keep(struct mp_divergence *receipt, uint32_t sequence, uint32_t step,
                        const float *logits);

/* Replace the session's engine by one with exact routing, run prompts and outputs, compare. */
enum mp_status mp_divergence_compare(struct mp_divergence *receipt, struct mp_session *session,
                                     struct mp_clock *clock, const struct mp_ids *prompts,
                                     const struct mp_output *outputs) MP_MUST_CHECK;

void mp_divergence_print(const struct mp_divergence *receipt, FILE *out);
void mp_divergence_json(const struct mp_divergence *receipt, struct mp_json_out *json,
                        const char *key);

#endif
