/*
 * `moepager eval --divergence`: how far the chosen routing and class of arithmetic change a model's
 * output from that of its own routing in F32, on a text, or how far a model's output is from that
 * of another one, its --reference. Both process the same tokens, so their logits can be compared
 * one by one.
 */
#include <stdio.h>

#include "engine/cli/eval.h"
#include "engine/session/divergence.h"
#include "engine/session/report.h"
#include "vmm/output/json_out.h"

struct divergence {
    struct mp_eval *eval;
    struct mp_divergence result;
    struct mp_counters counters; /* of the chosen routing */
    const char *route;           /* its name */
    enum mp_math math;           /* the chosen class */
};

static enum mp_status on_chosen(void *ctx, const struct mp_batch *batch, const float *logits,
                                const uint32_t *next)
{
    struct divergence *d = ctx;

    (void)next;
    for (uint32_t t = 0; t < batch->count; t++) {
        if (!batch->want[t])
            continue;
        mp_divergence_keep(&d->result, logits);
        logits += d->result.vocab;
    }
    return MP_OK;
}

static enum mp_status on_own(void *ctx, const struct mp_batch *batch, const float *logits,
                             const uint32_t *next)
{
    struct divergence *d = ctx;

    for (uint32_t t = 0; t < batch->count; t++) {
        if (!batch->want[t])
            continue;
        mp_divergence_compare(&d->result, logits, next[t]);
        logits += d->result.vocab;
    }
    return MP_OK;
}

static enum mp_status run_both(struct divergence *d)
{
    struct mp_session *session = &d->eval->session;
    struct mp_profile policies = session->engine_config.policies;
    enum mp_status status;

    d->route = policies.policy[MP_POLICY_ROUTE];
    d->math = session->engine_config.kernels->math;
    status = mp_eval_run(d->eval, d->eval->args->reference != NULL ? "model" : "chosen routing",
                         on_chosen, d);
    if (status != MP_OK)
        return status;
    d->counters = *mp_engine_counters(session->engine);
    if (d->eval->args->reference != NULL) {
        status = mp_eval_open_reference(d->eval);
        return status == MP_OK ? mp_eval_run(d->eval, "reference", on_own, d) : status;
    }
    policies.policy[MP_POLICY_ROUTE] = "exact";
    if (d->math != MP_MATH_F32)
        session->engine_config.kernels = mp_kernels_best();
    status = mp_session_renew(session, &policies, NULL);
    return status == MP_OK ? mp_eval_run(d->eval, "own routing, math f32", on_own, d) : status;
}

static double substituted(const struct divergence *d)
{
    const struct mp_counters *c = &d->counters;

    return c->route_choices > 0 ? (double)c->route_substituted / (double)c->route_choices : 0;
}

static void print_text(const struct divergence *d)
{
    mp_eval_print_head(d->eval);
    printf("routing %s, math %s: %.2f %% of the chosen experts substituted\n", d->route,
           mp_math_name(d->math), 100 * substituted(d));
    mp_divergence_print(&d->result,
                        d->eval->args->reference != NULL ? "the reference"
                        : d->math != MP_MATH_F32         ? "the model's own routing, math f32"
                                                         : "the model's own routing",
                        stdout);
}

static void print_json(const struct divergence *d)
{
    struct mp_json_out json;

    mp_json_begin(&json, stdout, true);
    mp_json_object_begin(&json, NULL);
    mp_eval_json_head(d->eval, &json);
    mp_json_put_string(&json, "route", d->route);
    mp_json_put_string(&json, "reference", d->eval->args->reference);
    mp_json_put_string(&json, "math", mp_math_name(d->math));
    mp_json_put_f64(&json, "substituted", substituted(d));
    mp_divergence_json(&d->result, &json, "divergence");
    mp_json_object_end(&json);
    mp_json_end(&json);
}

enum mp_status mp_eval_divergence(struct mp_eval *eval)
{
    struct divergence d = { .eval = eval };
    enum mp_status status =
        mp_eval_open(eval, eval->args->batch > 0 ? (uint32_t)eval->args->batch : 1);

    if (status == MP_OK)
        status = mp_divergence_init(&d.result, eval->ids.count, eval->session.model.vocab);
    if (status == MP_OK)
        status = run_both(&d);
    if (status == MP_OK) {
        if (eval->args->json)
            print_json(&d);
        else
            print_text(&d);
        status = mp_check_stdout();
    }
    mp_divergence_fini(&d.result);
    return status;
}
