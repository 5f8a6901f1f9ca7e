/*
 * `moepager eval --predictors`: the accuracy of each predict policy, layer by layer. The model's
 * own routing is used, whatever the settings name.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/cli/eval.h"
#include "engine/session/evaluate.h"
#include "vmm/base/error.h"
#include "vmm/output/json_out.h"

#define STREAMS 32 /* the batch of PreScope's evaluation */
#define PREDICTORS_MAX 16

struct predictors {
    struct mp_eval *eval;
    struct mp_model_id id;
    struct mp_evaluator *evaluator;
    uint32_t count; /* that have run to the end */
    const char *names[PREDICTORS_MAX];
    struct mp_evaluation *results; // (PREDICTORS_MAX, layers)
};

static enum mp_status run_one(struct predictors *p, const char *predictor)
{
    struct mp_profile policies = p->eval->session.engine_config.policies;
    enum mp_status status;

    policies.policy[MP_POLICY_ROUTE] = "exact";
    policies.policy[MP_POLICY_PREDICT] = predictor;
    policies.policy[MP_POLICY_PREFETCH] = "top";
    mp_evaluator_reset(p->evaluator);
    status = mp_session_renew(&p->eval->session, &policies, mp_evaluator_observer(p->evaluator));
    if (status == MP_OK)
        status = mp_eval_run(p->eval, predictor, NULL, NULL);
    if (status != MP_OK)
        return status;
    for (uint32_t l = 0; l < p->id.layers; l++)
        mp_evaluator_result(p->evaluator, l, &p->results[p->count * (size_t)p->id.layers + l]);
    p->names[p->count++] = predictor;
    return MP_OK;
}

static enum mp_status run_each(struct predictors *p)
{
    const struct mp_policy_info *info;
    enum mp_status status = mp_evaluator_create(&p->id, p->eval->streams, &p->evaluator);

    if (status != MP_OK)
        return status;
    p->results = calloc(PREDICTORS_MAX * (size_t)p->id.layers, sizeof(*p->results));
    if (p->results == NULL)
        return mp_fail_no_memory("the results", PREDICTORS_MAX * p->id.layers);
    for (size_t i = 0; status == MP_OK && p->count < PREDICTORS_MAX; i++) {
        info = mp_policy_builtin(MP_POLICY_PREDICT, i);
        if (info == NULL)
            break;
        if (((const struct mp_predict_ops *)info)->predict != NULL)
            status = run_one(p, info->name);
    }
    return status;
}

/* The mean over the layers after the first, which most policies never guess. */
static struct mp_evaluation mean(const struct predictors *p, uint32_t predictor)
{
    const struct mp_evaluation *results = p->results + predictor * (size_t)p->id.layers;
    struct mp_evaluation sum = { 0 };
    uint32_t count = 0;

    for (uint32_t l = 1; l < p->id.layers; l++) {
        if (results[l].tokens == 0)
            continue;
        sum.tokens += results[l].tokens;
        sum.recall += results[l].recall;
        sum.hot += results[l].hot;
        count++;
    }
    sum.recall /= count > 0 ? count : 1;
    sum.hot /= count > 0 ? count : 1;
    return sum;
}

/* `field`: offset of the share to show. */
static void print_table(const struct predictors *p, const char *title, size_t field)
{
    printf("%s\n%-7s", title, "layer");
    for (uint32_t i = 0; i < p->count; i++)
        printf(" %11s", p->names[i]);
    for (uint32_t l = 0; l <= p->id.layers; l++) {
        if (l == p->id.layers)
            printf("\n%-7s", "mean 1-");
        else
            printf("\n%-7u", l);
        for (uint32_t i = 0; i < p->count; i++) {
            const struct mp_evaluation result =
                l == p->id.layers ? mean(p, i) : p->results[i * (size_t)p->id.layers + l];

            if (result.tokens == 0)
                printf(" %11s", "-");
            else
                printf(" %9.1f %%", 100 * *(const double *)((const char *)&result + field));
        }
    }
    printf("\n");
}

static void print_text(const struct predictors *p)
{
    mp_eval_print_head(p->eval);
    print_table(p, "\na token's experts among its best predicted ones, as many as it has",
                offsetof(struct mp_evaluation, recall));
    print_table(p, "\nthe batch's predicted best 4 within its true best 6",
                offsetof(struct mp_evaluation, hot));
}

static void print_json(const struct predictors *p)
{
    struct mp_json_out json;

    mp_json_begin(&json, stdout, true);
    mp_json_object_begin(&json, NULL);
    mp_eval_json_head(p->eval, &json);
    mp_json_object_begin(&json, "predictors");
    for (uint32_t i = 0; i < p->count; i++) {
        mp_json_array_begin(&json, p->names[i]);
        for (uint32_t l = 0; l < p->id.layers; l++) {
            const struct mp_evaluation *result = &p->results[i * (size_t)p->id.layers + l];

            mp_json_object_begin(&json, NULL);
            mp_json_put_u64(&json, "layer", l);
            mp_json_put_u64(&json, "tokens", result->tokens);
            mp_json_put_f64(&json, "recall", result->recall);
            mp_json_put_f64(&json, "hot", result->hot);
            mp_json_object_end(&json);
        }
        mp_json_array_end(&json);
    }
    mp_json_object_end(&json);
    mp_json_object_end(&json);
    mp_json_end(&json);
}

enum mp_status mp_eval_predictors(struct mp_eval *eval)
{
    struct predictors p = { .eval = eval };
    enum mp_status status =
        mp_eval_open(eval, eval->args->batch > 0 ? (uint32_t)eval->args->batch : STREAMS);

    if (status == MP_OK) {
        mp_model_id_make(&eval->session.model, eval->session.weights, &p.id);
        status = run_each(&p);
    }
    if (status == MP_OK || (status == MP_ERR_CANCELED && p.count > 0)) {
        if (eval->args->json)
            print_json(&p);
        else
            print_text(&p);
        status = mp_printed(status);
    }
    mp_evaluator_destroy(p.evaluator);
    free(p.results);
    return status;
}
