/*
 * Agreement, KL divergence and perplexities of two runs' logits. Runs no model itself.
 */
#include "engine/session/divergence.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/base/assert.h"
#include "vmm/base/checked.h"
#include "vmm/base/error.h"

enum mp_status mp_divergence_init(struct mp_divergence *divergence, uint64_t rows, uint32_t vocab)
{
    uint64_t bytes = sizeof(float);

    if (!mp_mul_u64(bytes, rows, &bytes) || !mp_mul_u64(bytes, vocab, &bytes) ||
        bytes > MP_DIVERGENCE_BYTES_MAX)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "--divergence keeps the logits of every token, here more than %llu bytes; "
                       "lower --tokens",
                       (unsigned long long)MP_DIVERGENCE_BYTES_MAX);
    *divergence = (struct mp_divergence){ .rows = rows, .vocab = vocab };
    divergence->logits = calloc(bytes, 1);
    return divergence->logits != NULL ? MP_OK : mp_fail_no_memory("the logits to compare", bytes);
}

void mp_divergence_fini(struct mp_divergence *divergence)
{
    free(divergence->logits);
    memset(divergence, 0, sizeof(*divergence));
}

void mp_divergence_keep(struct mp_divergence *divergence, const float *logits)
{
    mp_assert(divergence->kept < divergence->rows);
    memcpy(divergence->logits + divergence->kept * divergence->vocab, logits,
           divergence->vocab * sizeof(float));
    divergence->kept++;
}

/* Log of the sum of exponentials; *best_p := the most likely token, the first of equal ones. */
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

void mp_divergence_compare(struct mp_divergence *divergence, const float *own, uint32_t next)
{
    const float *used = divergence->logits + divergence->compared * divergence->vocab;
    uint32_t own_best, used_best;
    const double own_sum = log_sum(own, divergence->vocab, &own_best);
    const double used_sum = log_sum(used, divergence->vocab, &used_best);
    double kl = 0;

    mp_assert(divergence->compared < divergence->kept);
    for (uint32_t i = 0; i < divergence->vocab; i++) {
        const double log_p = (double)own[i] - own_sum;

        kl += exp(log_p) * (log_p - ((double)used[i] - used_sum));
    }
    divergence->compared++;
    divergence->own_nats += own_sum - (double)own[next];
    divergence->used_nats += used_sum - (double)used[next];
    divergence->agreed += own_best == used_best;
    divergence->kl_sum += kl;
    divergence->kl_max = kl > divergence->kl_max ? kl : divergence->kl_max;
}

static double per_token(const struct mp_divergence *divergence, double sum)
{
    return divergence->compared > 0 ? sum / (double)divergence->compared : 0;
}

void mp_divergence_print(const struct mp_divergence *divergence, const char *from, FILE *out)
{
    fprintf(out,
            "divergence from %s: %.2f %% of %llu tokens have the same most likely next token; KL "
            "%.6f nats per token, at most %.6f; perplexity %.4f, there %.4f\n",
            from, 100 * per_token(divergence, (double)divergence->agreed),
            (unsigned long long)divergence->compared, per_token(divergence, divergence->kl_sum),
            divergence->kl_max, exp(per_token(divergence, divergence->used_nats)),
            exp(per_token(divergence, divergence->own_nats)));
}

void mp_divergence_json(const struct mp_divergence *divergence, struct mp_json_out *json,
                        const char *key)
{
    mp_json_object_begin(json, key);
    mp_json_put_u64(json, "tokens", divergence->compared);
    mp_json_put_f64(json, "agreement", per_token(divergence, (double)divergence->agreed));
    mp_json_put_f64(json, "kl_nats", per_token(divergence, divergence->kl_sum));
    mp_json_put_f64(json, "kl_nats_max", divergence->kl_max);
    mp_json_put_f64(json, "perplexity", exp(per_token(divergence, divergence->used_nats)));
    mp_json_put_f64(json, "perplexity_there", exp(per_token(divergence, divergence->own_nats)));
    mp_json_object_end(json);
}
