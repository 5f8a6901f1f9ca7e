/*
 * `moepager eval --perplexity`: how well a model predicts a text, with the model's routing or one
 * that substitutes experts; for several values of a setting one after the other, as in SMoE's table
 * IV.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "engine/cli/eval.h"
#include "engine/session/report.h"
#include "vmm/base/error.h"
#include "vmm/output/json_out.h"

#define VALUES_MAX 64

struct row {
    const char *value; /* of the swept setting; NULL: no sweep */
    uint64_t tokens;   /* predicted */
    double nats;       /* sum */
    uint64_t choices, substituted;
    double hit_rate, seconds;
};

struct perplexity {
    struct mp_eval *eval;
    char name[64]; /* of the swept setting */
    char *values;  /* owned; cut at the commas */
    struct row rows[VALUES_MAX];
    uint32_t row_count; /* to be run; then those that ended */
    struct row *row;    /* in work */
};

/* -log p(token) by logits over the vocabulary, in double so that long sums keep their digits. */
static double nats_of(const float *logits, uint32_t vocab, uint32_t token)
{
    double max = (double)logits[0], sum = 0;

    for (uint32_t i = 1; i < vocab; i++)
        max = (double)logits[i] > max ? (double)logits[i] : max;
    for (uint32_t i = 0; i < vocab; i++)
        sum += exp((double)logits[i] - max);
    return log(sum) + max - (double)logits[token];
}

static enum mp_status on_batch(void *ctx, const struct mp_batch *batch, const float *logits,
                               const uint32_t *next)
{
    struct perplexity *p = ctx;
    const uint32_t vocab = p->eval->session.model.vocab;

    for (uint32_t t = 0; t < batch->count; t++) {
        if (!batch->want[t])
            continue;
        p->row->nats += nats_of(logits, vocab, next[t]);
        p->row->tokens++;
        logits += vocab;
    }
    return MP_OK;
}

static enum mp_status run_row(struct perplexity *p)
{
    const uint64_t start_ns = mp_clock_now_ns(p->eval->clock);
    const char *label = p->row->value != NULL ? p->row->value : "perplexity";
    const enum mp_status status = mp_eval_run(p->eval, label, on_batch, p);
    const struct mp_counters *counters = mp_engine_counters(p->eval->session.engine);

    p->row->choices = counters->route_choices;
    p->row->substituted = counters->route_substituted;
    p->row->hit_rate = counters->hits + counters->misses > 0
                           ? (double)counters->hits / (double)(counters->hits + counters->misses)
                           : 1;
    p->row->seconds = (double)(mp_clock_now_ns(p->eval->clock) - start_ns) * 1e-9;
    return status;
}

/* Budgets and the like are fixed when the model is opened: only what policies read can be swept. */
static enum mp_status check_swept(const struct perplexity *p)
{
    const struct mp_opt_group *group;
    const struct mp_opt *opt = mp_opt_find(p->eval->settings->groups, p->name, &group);
    bool fits = opt != NULL &&
                (strcmp(group->prefix, "MOEPAGER_") != 0 || strcmp(opt->name, "PROFILE") == 0);
    char quoted[MP_QUOTE_BYTES];

    if (opt != NULL) {
        for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT; kind++)
            fits = fits || strcasecmp(opt->name, mp_policy_kind_name(kind)) == 0;
    }
    if (!fits)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "--sweep: '%s' is not a setting of a policy, nor the choice of one",
                       mp_quote(quoted, p->name, strlen(p->name)));
    return MP_OK;
}

/* "smoe-alpha=0,0.1" into name and rows. */
static enum mp_status split_sweep(struct perplexity *p)
{
    const char *equals = p->eval->args->sweep != NULL ? strchr(p->eval->args->sweep, '=') : NULL;
    char *save = NULL;
    enum mp_status status;

    p->row_count = 1;
    if (p->eval->args->sweep == NULL)
        return MP_OK;
    if (equals == NULL || equals == p->eval->args->sweep || equals[1] == '\0' ||
        (size_t)(equals - p->eval->args->sweep) >= sizeof(p->name))
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "--sweep needs a setting and values, such as smoe-alpha=0,0.1,0.2");
    memcpy(p->name, p->eval->args->sweep, (size_t)(equals - p->eval->args->sweep));
    p->values = strdup(equals + 1);
    if (p->values == NULL)
        return mp_fail_no_memory("the values of --sweep", strlen(equals));
    status = check_swept(p);
    if (status != MP_OK)
        return status;
    p->row_count = 0;
    for (char *at = strtok_r(p->values, ",", &save); at != NULL; at = strtok_r(NULL, ",", &save)) {
        if (p->row_count == VALUES_MAX)
            return mp_fail(MP_ERR_CONFIG, "E_USAGE", "--sweep has more than %d values", VALUES_MAX);
        p->rows[p->row_count++].value = at;
    }
    if (p->row_count == 0)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "--sweep needs a setting and values, such as smoe-alpha=0,0.1,0.2");
    /* All of them are tried before the first run. */
    for (uint32_t i = p->row_count; i-- > 0 && status == MP_OK;)
        status = mp_opt_set(p->eval->settings->groups, p->name, p->rows[i].value);
    return status;
}

static enum mp_status run_rows(struct perplexity *p)
{
    const struct mp_settings *settings = p->eval->settings;
    const uint32_t count = p->row_count;
    enum mp_status status = MP_OK;

    p->row_count = 0;
    while (p->row_count < count && status == MP_OK) {
        struct mp_profile policies;

        p->row = &p->rows[p->row_count];
        if (p->row->value != NULL)
            status = mp_opt_set(settings->groups, p->name, p->row->value);
        if (status == MP_OK)
            status = mp_settings_policies(settings, &policies);
        if (status == MP_OK)
            status = mp_session_renew(&p->eval->session, &policies, NULL);
        if (status == MP_OK)
            status = run_row(p);
        p->row_count += status == MP_OK;
    }
    return status;
}

static double per(double sum, uint64_t count)
{
    return count > 0 ? sum / (double)count : 0;
}

static double bits_per_byte(const struct perplexity *p, const struct row *row)
{
    const uint64_t bytes = p->eval->text_bytes;

    return bytes > 0 ? row->nats / log(2) / (double)bytes : 0;
}

static void print_text(const struct perplexity *p)
{
    const struct mp_profile *policies = &p->eval->session.engine_config.policies;

    mp_eval_print_head(p->eval);
    printf("routing %s, eviction %s\n", policies->policy[MP_POLICY_ROUTE],
           policies->policy[MP_POLICY_EVICT]);
    printf("%-16s %12s %12s %12s %10s\n", p->name, "perplexity", "nats/token", "substituted",
           "hit rate");
    for (uint32_t i = 0; i < p->row_count; i++) {
        const struct row *row = &p->rows[i];

        printf("%-16s %12.4f %12.5f %10.2f %% %8.1f %%\n", row->value != NULL ? row->value : "",
               exp(per(row->nats, row->tokens)), per(row->nats, row->tokens),
               100 * per((double)row->substituted, row->choices), 100 * row->hit_rate);
    }
}

static void print_json(const struct perplexity *p)
{
    const struct mp_profile *policies = &p->eval->session.engine_config.policies;
    struct mp_json_out json;

    mp_json_begin(&json, stdout, true);
    mp_json_object_begin(&json, NULL);
    mp_eval_json_head(p->eval, &json);
    mp_json_put_string(&json, "route", policies->policy[MP_POLICY_ROUTE]);
    mp_json_put_string(&json, "setting", p->values != NULL ? p->name : NULL);
    mp_json_array_begin(&json, "rows");
    for (uint32_t i = 0; i < p->row_count; i++) {
        const struct row *row = &p->rows[i];

        mp_json_object_begin(&json, NULL);
        mp_json_put_string(&json, "value", row->value);
        mp_json_put_f64(&json, "perplexity", exp(per(row->nats, row->tokens)));
        mp_json_put_f64(&json, "nats_per_token", per(row->nats, row->tokens));
        mp_json_put_f64(&json, "bits_per_byte", bits_per_byte(p, row));
        mp_json_put_u64(&json, "predicted_tokens", row->tokens);
        mp_json_put_f64(&json, "substituted", per((double)row->substituted, row->choices));
        mp_json_put_f64(&json, "hit_rate", row->hit_rate);
        mp_json_put_f64(&json, "seconds", row->seconds);
        mp_json_object_end(&json);
    }
    mp_json_array_end(&json);
    mp_json_object_end(&json);
    mp_json_end(&json);
}

static enum mp_status run_all(struct perplexity *p)
{
    const struct mp_args *args = p->eval->args;
    enum mp_status status = split_sweep(p);

    if (status == MP_OK)
        status = mp_eval_open(p->eval, args->batch > 0 ? (uint32_t)args->batch : 1);
    if (status != MP_OK)
        return status;
    status = run_rows(p);
    if (status != MP_OK && !(status == MP_ERR_CANCELED && p->row_count > 0))
        return status;
    if (args->json)
        print_json(p);
    else
        print_text(p);
    return mp_printed(status);
}

enum mp_status mp_eval_perplexity(struct mp_eval *eval)
{
    struct perplexity *p = calloc(1, sizeof(*p));
    enum mp_status status;

    if (p == NULL)
        return mp_fail_no_memory("the rows", sizeof(*p));
    p->eval = eval;
    status = run_all(p);
    free(p->values);
    free(p);
    return status;
}
