#include "engine/session/receipt.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/base/checked.h"
#include "vmm/base/error.h"

enum mp_status mp_receipt_init(struct mp_receipt *receipt, uint32_t count, uint64_t max_tokens,
                               uint32_t vocab)
{
    uint64_t bytes = sizeof(float);

    if (!mp_mul_u64(bytes, count, &bytes) || !mp_mul_u64(bytes, max_tokens, &bytes) ||
        !mp_mul_u64(bytes, vocab, &bytes) || bytes > MP_RECEIPT_BYTES_MAX)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "--receipt keeps the logits of every token, here more than %llu bytes; "
                       "lower --max-tokens",
                       (unsigned long long)MP_RECEIPT_BYTES_MAX);
    *receipt = (struct mp_receipt){ .count = count, .vocab = vocab, .max_tokens = max_tokens };
    receipt->logits = calloc(bytes, 1);
    return receipt->logits != NULL ? MP_OK : mp_fail_no_memory("the receipt", bytes);
}

void mp_receipt_fini(struct mp_receipt *receipt)
{
    free(receipt->logits);
    memset(receipt, 0, sizeof(*receipt));
}

static float *row_of(const struct mp_receipt *receipt, uint32_t sequence, uint32_t step)
{
    return receipt->logits + (sequence * receipt->max_tokens + step) * receipt->vocab;
}

void mp_receipt_keep(struct mp_receipt *receipt, uint32_t sequence, uint32_t step,
                     const float *logits)
{
    memcpy(row_of(receipt, sequence, step), logits, receipt->vocab * sizeof(float));
}

/* Log of the sum of exponentials; *best_p := the likeliest, the first of equal ones. */
static double log_sum(const float *logits, uint32_t vocab, uint32_t *best_p)
{
    double sum = 0;
    uint32_t best = 0;

    for (uint32_t i = 1; i < vocab; i++)
        best = logits[i] > logits[best] ? i : best;
    for (uint32_t i = 0; i < vocab; i++)
        sum += exp((double)logits[i] - (double)logits[best]);
    *best_p = best;
    return (double)logits[best] + log(sum);
}

static enum mp_status compare(void *ctx, uint32_t sequence, uint32_t step, const float *own)
{
    struct mp_receipt *receipt = ctx;
    const float *used = row_of(receipt, receipt->sequence, step);
    uint32_t own_best, used_best;
    const double own_sum = log_sum(own, receipt->vocab, &own_best);
    const double used_sum = log_sum(used, receipt->vocab, &used_best);
    double kl = 0;

    (void)sequence; /* each runs alone */
    for (uint32_t i = 0; i < receipt->vocab; i++) {
        const double log_p = (double)own[i] - own_sum;

        kl += exp(log_p) * (log_p - ((double)used[i] - used_sum));
    }
    receipt->compared++;
    receipt->agreed += own_best == used_best;
    receipt->kl_sum += kl;
    receipt->kl_max = kl > receipt->kl_max ? kl : receipt->kl_max;
    return MP_OK;
}

/* One sequence after the other: with the model's own routing they do not see each other. */
enum mp_status mp_receipt_compare(struct mp_receipt *receipt, struct mp_session *session,
                                  struct mp_clock *clock, const struct mp_ids *prompts,
                                  const struct mp_output *outputs)
{
    struct mp_profile policies = session->engine_config.policies;
    enum mp_status status;

    policies.policy[MP_POLICY_ROUTE] = "exact";
    status = mp_session_renew(session, &policies, NULL);
    for (uint32_t s = 0; s < receipt->count && status == MP_OK; s++) {
        const struct mp_generate_config config = {
            .engine = session->engine,
            .engine_config = &session->engine_config,
            .sampling = { .temperature = 0, .top_p = 1 },
            .max_tokens = (uint32_t)outputs[s].ids.count,
            .ignore_eos = true,
            .forced = outputs[s].ids.ids,
            .clock = clock,
            .on_logits = compare,
            .ctx = receipt,
        };
        struct mp_output again = { 0 };
        struct mp_generate_stats stats;

        receipt->sequence = s;
        status = mp_generate(&config, &prompts[s], 1, &again, &stats);
        mp_outputs_free(&again, 1);
    }
    return status;
}

static double per_token(const struct mp_receipt *receipt, double sum)
{
    return receipt->compared > 0 ? sum / (double)receipt->compared : 0;
}

void mp_receipt_print(const struct mp_receipt *receipt, FILE *out)
{
    fprintf(out,
            "receipt       %.2f %% of %llu tokens have the same likeliest as with the model's own "
            "routing; KL %.6f nats per token, at most %.6f\n",
            100 * per_token(receipt, (double)receipt->agreed),
            (unsigned long long)receipt->compared, per_token(receipt, receipt->kl_sum),
            receipt->kl_max);
}

void mp_receipt_json(const struct mp_receipt *receipt, struct mp_json_out *json, const char *key)
{
    mp_json_object_begin(json, key);
    mp_json_put_u64(json, "tokens", receipt->compared);
    mp_json_put_f64(json, "agreement", per_token(receipt, (double)receipt->agreed));
    mp_json_put_f64(json, "kl_nats", per_token(receipt, receipt->kl_sum));
    mp_json_put_f64(json, "kl_nats_max", receipt->kl_max);
    mp_json_object_end(json);
}
