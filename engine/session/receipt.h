#ifndef MP_RECEIPT_H
#define MP_RECEIPT_H

#include "engine/session/generate.h"
#include "engine/session/session.h"
#include "vmm/base/json_out.h"

/*
 * What a routing that substitutes experts did to the model's output: the logits of a run are kept,
 * then the same tokens go through the model again with its own routing, and both are compared.
 */
#define MP_RECEIPT_BYTES_MAX (UINT64_C(8) << 30)

struct mp_receipt {
    uint32_t count, vocab;
    uint64_t max_tokens;
    float *logits;     // (count, max_tokens, vocab); pages come when they are touched
    uint32_t sequence; /* being compared */

    uint64_t compared, agreed; /* tokens; where the likeliest is the same */
    double kl_sum, kl_max;     /* KL(own || used), nats */
};

/* MP_ERR_CONFIG E_USAGE: the logits would be more than MP_RECEIPT_BYTES_MAX. */
enum mp_status mp_receipt_init(struct mp_receipt *receipt, uint32_t count, uint64_t max_tokens,
                               uint32_t vocab) MP_MUST_CHECK;
/* Safe on a zeroed one. */
void mp_receipt_fini(struct mp_receipt *receipt);

/* Keep the logits from which token number `step` of a sequence is chosen. */
void mp_receipt_keep(struct mp_receipt *receipt, uint32_t sequence, uint32_t step,
                     const float *logits);

/* Replace the session's engine by one with exact routing, run prompts and outputs, compare. */
enum mp_status mp_receipt_compare(struct mp_receipt *receipt, struct mp_session *session,
                                  struct mp_clock *clock, const struct mp_ids *prompts,
                                  const struct mp_output *outputs) MP_MUST_CHECK;

void mp_receipt_print(const struct mp_receipt *receipt, FILE *out);
void mp_receipt_json(const struct mp_receipt *receipt, struct mp_json_out *json, const char *key);

#endif
