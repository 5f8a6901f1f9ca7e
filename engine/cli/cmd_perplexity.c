/*
 * `moepager perplexity`: how well a model predicts a text, with the model's routing or one that
 * substitutes experts; for several values of a setting one after the other, as in SMoE's table IV.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "engine/cli/commands.h"
#include "engine/session/report.h"
#include "engine/session/text_run.h"
#include "vmm/base/error.h"
#include "vmm/base/json_out.h"

#define VALUES_MAX 64

struct row {
    const char *value; /* of the swept setting; NULL: no sweep */
    uint64_t tokens;   /* predicted */
    double nats;       /* sum */
    uint64_t choices, substituted;
    double hit_rate, seconds;
};

struct perplexity {
    const struct mp_args *args;
    const struct mp_settings *settings; /* its groups are set for each value */
    struct mp_clock *clock;
    struct mp_session session;
    struct mp_progress_bar bar;
    struct mp_ids ids;
    char *text; /* owned */
    size_t read_bytes;
    uint64_t text_bytes; /* that the tokens came from */
    char name[64];       /* of the swept setting */
    char *values;        /* owned; cut at the commas */
    struct row rows[VALUES_MAX];
    uint32_t row_count;
    struct row *row; /* in work */
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
    const uint32_t vocab = p->session.model.vocab;

    for (uint32_t t = 0; t < batch->count; t++) {
        if (!batch->want[t])
            continue;
        p->row->nats += nats_of(logits, vocab, next[t]);
        p->row->tokens++;
        logits += vocab;
    }
    return MP_OK;
}

static void on_progress(void *ctx, uint64_t done_tokens, uint64_t total_tokens)
{
    struct perplexity *p = ctx;

    mp_progress_bar_show(&p->bar, done_tokens, total_tokens);
}

static enum mp_status run_row(struct perplexity *p)
{
    const uint64_t start_ns = mp_clock_now_ns(p->clock);
    const struct mp_text_run run = {
        .engine = p->session.engine,
        .ids = &p->ids,
        .window = (uint32_t)p->args->window,
        .streams = (uint32_t)p->args->batch,
        .logits = true,
        .on_batch = on_batch,
        .on_progress = on_progress,
        .ctx = p,
    };
    struct mp_counters counters;
    enum mp_status status;

    mp_progress_bar_begin(&p->bar, p->row->value != NULL ? p->row->value : "perplexity", "tokens",
                          p->clock);
    status = mp_text_run(&run);
    mp_progress_bar_end(&p->bar);
    counters = *mp_engine_counters(p->session.engine);
    p->row->choices = counters.route_choices;
    p->row->substituted = counters.route_substituted;
    p->row->hit_rate = counters.hits + counters.misses > 0
                           ? (double)counters.hits / (double)(counters.hits + counters.misses)
                           : 1;
    p->row->seconds = (double)(mp_clock_now_ns(p->clock) - start_ns) * 1e-9;
    return status;
}

/* Budgets and the like are fixed when the model is opened: only what policies read can be swept. */
static enum mp_status check_swept(const struct perplexity *p)
{
    const struct mp_opt_group *group;
    const struct mp_opt *opt = mp_opt_find(p->settings->groups, p->name, &group);
    bool fits = opt != NULL &&
                (strcmp(group->prefix, "MOEPAGER_") != 0 || strcmp(opt->name, "PROFILE") == 0);
    char quoted[MP_QUOTE_BYTES];

    for (unsigned kind = 0; opt != NULL && kind < MP_POLICY_KIND_COUNT; kind++)
        fits = fits || strcasecmp(opt->name, mp_policy_kind_name(kind)) == 0;
    if (!fits)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "--sweep: '%s' is not a setting of a policy, nor the choice of one",
                       mp_quote(quoted, p->name, strlen(p->name)));
    return MP_OK;
}

/* "smoe-alpha=0,0.1" into name and rows. */
static enum mp_status split_sweep(struct perplexity *p)
{
    const char *equals = p->args->sweep != NULL ? strchr(p->args->sweep, '=') : NULL;
    char *save = NULL;
    enum mp_status status;

    p->row_count = 1;
    if (p->args->sweep == NULL)
        return MP_OK;
    if (equals == NULL || equals == p->args->sweep || equals[1] == '\0' ||
        (size_t)(equals - p->args->sweep) >= sizeof(p->name))
        return mp_fail(MP_ERR_CONFIG, "E_USAGE",
                       "--sweep needs a setting and values, such as smoe-alpha=0,0.1,0.2");
    memcpy(p->name, p->args->sweep, (size_t)(equals - p->args->sweep));
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
        status = mp_opt_set(p->settings->groups, p->name, p->rows[i].value);
    return status;
}

static enum mp_status encode_text(void *ctx)
{
    struct perplexity *p = ctx;

    return mp_encode_text(p->args, &p->session, p->text, p->read_bytes, &p->ids, &p->text_bytes);
}

static enum mp_status open_session(struct perplexity *p)
{
    const struct mp_progress progress = mp_loading_progress(&p->bar);
    const struct mp_session_config config = {
        .model = p->args->model,
        .sequences = (uint32_t)p->args->batch,
        .tokenizer = true,
        .before_load = encode_text,
        .before_load_ctx = p,
        .progress = &progress,
        .clock = p->clock,
        .cancel = &mp_interrupted,
        .probe = true,
    };
    enum mp_status status;

    mp_progress_bar_begin(&p->bar, "loading", NULL, p->clock);
    status = mp_session_open(p->settings, &config, &p->session);
    mp_progress_bar_end(&p->bar);
    return status;
}

static enum mp_status run_rows(struct perplexity *p)
{
    enum mp_status status = MP_OK;

    for (uint32_t i = 0; i < p->row_count && status == MP_OK; i++) {
        struct mp_profile policies;

        p->row = &p->rows[i];
        if (p->row->value != NULL)
            status = mp_opt_set(p->settings->groups, p->name, p->row->value);
        if (status == MP_OK)
            status = mp_settings_policies(p->settings, &policies);
        if (status == MP_OK)
            status = mp_session_renew(&p->session, &policies, NULL);
        if (status == MP_OK)
            status = run_row(p);
    }
    return status;
}

static unsigned at_once(const struct perplexity *p)
{
    return mp_text_run_streams(&p->ids, p->args->window, (uint32_t)p->args->batch);
}

static double per(double sum, uint64_t count)
{
    return count > 0 ? sum / (double)count : 0;
}

static double bits_per_byte(const struct perplexity *p, const struct row *row)
{
    return p->text_bytes > 0 ? row->nats / log(2) / (double)p->text_bytes : 0;
}

static void print_text(const struct perplexity *p)
{
    const struct mp_profile *policies = &p->session.engine_config.policies;

    printf("%zu tokens in windows of %llu, %u at once; routing %s, eviction %s, experts in RAM: "
           "%.0f %%\n",
           p->ids.count, (unsigned long long)p->args->window, at_once(p),
           policies->policy[MP_POLICY_ROUTE], policies->policy[MP_POLICY_EVICT],
           100.0 * (double)p->session.memory.budget_bytes / (double)p->session.memory.expert_bytes);
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
    struct mp_json_out json;

    mp_json_begin(&json, stdout, true);
    mp_json_object_begin(&json, NULL);
    mp_json_put_u64(&json, "tokens", p->ids.count);
    mp_json_put_u64(&json, "text_bytes", p->text_bytes);
    mp_json_put_u64(&json, "window", p->args->window);
    mp_json_put_u64(&json, "batch", at_once(p));
    mp_json_put_u64(&json, "budget_bytes", p->session.memory.budget_bytes);
    mp_json_put_string(&json, "route", p->session.engine_config.policies.policy[MP_POLICY_ROUTE]);
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
    enum mp_status status = mp_require_text(p->args, &p->text, &p->read_bytes);

    if (status == MP_OK)
        status = split_sweep(p);
    if (status == MP_OK)
        status = open_session(p);
    if (status == MP_OK)
        status = run_rows(p);
    if (status != MP_OK)
        return status;
    if (p->args->json)
        print_json(p);
    else
        print_text(p);
    return mp_check_stdout();
}

enum mp_status mp_cmd_perplexity(const struct mp_args *args, const struct mp_settings *settings)
{
    struct perplexity *p;
    enum mp_status status = mp_require_model(args);

    if (status != MP_OK)
        return status;
    p = calloc(1, sizeof(*p));
    if (p == NULL)
        return mp_fail_no_memory("the run", sizeof(*p));
    p->args = args;
    p->settings = settings;
    p->clock = mp_clock_monotonic();
    status = run_all(p);
    mp_session_close(&p->session);
    mp_ids_free(&p->ids);
    free(p->text);
    free(p->values);
    free(p);
    return status;
}
