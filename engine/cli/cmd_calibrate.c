/*
 * `moepager calibrate`: learn from a text what policies want to know of a model, or from a trace
 * which experts are hot, and show how well predictors do.
 */
#include <libgen.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/calibrate/calibrate.h"
#include "engine/cli/commands.h"
#include "engine/session/evaluate.h"
#include "engine/session/text_run.h"
#include "vmm/base/error.h"
#include "vmm/base/json_out.h"
#include "vmm/base/out.h"

#define STREAMS 32 /* windows at once; the batch of PreScope's evaluation */
#define FEATURES_NAME "moepager-features.safetensors"
#define PREDICTORS_MAX 16

struct calibrate {
    const struct mp_args *args;
    const struct mp_settings *settings;
    struct mp_clock *clock;
    struct mp_session session;
    struct mp_progress_bar bar;
    struct mp_model_id id;
    struct mp_ids ids;
    char *text; /* owned */
    size_t text_bytes;

    char out[PATH_MAX], features_path[PATH_MAX];
    struct mp_calibrator *calibrator;
    struct mp_features *features; /* or NULL */
    struct mp_calibration_data *data;
    struct mp_calibration_summary summary;

    struct mp_evaluator *evaluator;
    uint32_t predictor_count;
    const char *predictors[PREDICTORS_MAX];
    struct mp_evaluation *results; // (predictors, layers)
};

static void on_layer(void *ctx, const struct mp_layer_seen *seen)
{
    struct calibrate *c = ctx;

    mp_calibrator_seen(c->calibrator, seen);
    if (c->features != NULL)
        mp_features_seen(c->features, seen);
}

static void on_progress(void *ctx, uint64_t done_tokens, uint64_t total_tokens)
{
    struct calibrate *c = ctx;

    mp_progress_bar_show(&c->bar, done_tokens, total_tokens);
}

static enum mp_status encode_text(void *ctx)
{
    struct calibrate *c = ctx;
    uint64_t used_bytes;

    return mp_encode_text(c->args, &c->session, c->text, c->text_bytes, &c->ids, &used_bytes);
}

static enum mp_status open_session(struct calibrate *c)
{
    const struct mp_progress progress = mp_loading_progress(&c->bar);
    const struct mp_session_config config = {
        .model = c->args->model,
        .sequences = STREAMS,
        .tokenizer = c->args->route_from == NULL,
        .before_load = c->args->route_from == NULL ? encode_text : NULL,
        .before_load_ctx = c,
        .progress = &progress,
        .clock = c->clock,
        .cancel = &mp_interrupted,
        /* What is to be made anew is not read, so that a wrong one can be replaced. */
        .no_sidecars = !c->args->evaluate,
        .route_from = c->args->route_from,
        .no_engine = c->args->route_from != NULL,
    };
    enum mp_status status;

    mp_progress_bar_begin(&c->bar, "loading", NULL, c->clock);
    status = mp_session_open(c->settings, &config, &c->session);
    mp_progress_bar_end(&c->bar);
    if (status == MP_OK)
        mp_model_id_make(&c->session.model, c->session.weights, &c->id);
    return status;
}

/* The model's own routing, whatever the settings name: what is learned is about the model. */
static enum mp_status run_text(struct calibrate *c, const char *predictor,
                               const struct mp_observer *observer)
{
    struct mp_profile policies = c->session.engine_config.policies;
    struct mp_text_run run = {
        .ids = &c->ids,
        .window = (uint32_t)c->args->window,
        .streams = STREAMS,
        .on_progress = on_progress,
        .ctx = c,
    };
    enum mp_status status;

    policies.policy[MP_POLICY_ROUTE] = "exact";
    policies.policy[MP_POLICY_PREDICT] = predictor;
    policies.policy[MP_POLICY_PREFETCH] = c->args->evaluate ? "top" : "none";
    status = mp_session_renew(&c->session, &policies, observer);
    if (status != MP_OK)
        return status;
    run.engine = c->session.engine;
    mp_progress_bar_begin(&c->bar, c->args->evaluate ? predictor : "calibrating", "tokens",
                          c->clock);
    status = mp_text_run(&run);
    mp_progress_bar_end(&c->bar);
    return status;
}

/* <model>/moepager-calibration.safetensors unless --out says otherwise; features beside it. Can
 * they be written? */
static enum mp_status name_files(struct calibrate *c)
{
    char copy[PATH_MAX];
    int length, other;
    enum mp_status status;

    if (c->args->out != NULL)
        length = snprintf(c->out, sizeof(c->out), "%s", c->args->out);
    else
        length = snprintf(c->out, sizeof(c->out), "%s/%s", c->args->model, MP_CALIBRATION_NAME);
    snprintf(copy, sizeof(copy), "%s", c->out);
    other =
        snprintf(c->features_path, sizeof(c->features_path), "%s/%s", dirname(copy), FEATURES_NAME);
    if ((size_t)length >= sizeof(c->out) || (size_t)other >= sizeof(c->features_path))
        return mp_fail(MP_ERR_CONFIG, "E_USAGE", "--out: the path is too long");
    status = mp_out_check(c->out, true);
    return status == MP_OK && c->args->features ? mp_out_check(c->features_path, true) : status;
}

/* Each layer's choices without what was computed: groups are thirds, and nothing is alike. */
static enum mp_status calibrate_trace(struct calibrate *c)
{
    enum mp_status status = mp_calibration_create(&c->id, &c->data);

    if (status == MP_OK)
        status = mp_calibrator_create(&c->id, 1, 1, &c->calibrator);
    if (status == MP_OK)
        status = mp_calibrator_trace(c->calibrator, c->session.route_from, c->args->tokens);
    if (status != MP_OK)
        return status;
    mp_calibrator_finish(c->calibrator, c->data, &c->summary);
    c->summary.similar_pairs = 0;
    for (uint32_t l = 0; l < c->id.layers; l++)
        c->data->groups[l] = c->id.layers < 3 ? l : 3 * l / c->id.layers;
    return mp_calibration_write(c->out, c->data, &c->id, c->summary.tokens);
}

static enum mp_status calibrate(struct calibrate *c)
{
    const struct mp_observer observer = { .ctx = c, .layer = on_layer };
    enum mp_status status = mp_calibration_create(&c->id, &c->data);

    if (status == MP_OK)
        status = mp_calibrator_create(&c->id, STREAMS, STREAMS, &c->calibrator);
    if (status == MP_OK && c->args->features)
        status = mp_features_open(c->features_path, &c->id, c->ids.count, STREAMS, &c->features);
    if (status == MP_OK)
        status = run_text(c, "none", &observer);
    if (status != MP_OK)
        return status;
    mp_calibrator_finish(c->calibrator, c->data, &c->summary);
    if (c->features != NULL) {
        struct mp_features *features = c->features;

        c->features = NULL;
        status = mp_features_commit(features);
    }
    if (status == MP_OK)
        status = mp_calibration_write(c->out, c->data, &c->id, c->summary.tokens);
    return status;
}

static enum mp_status evaluate(struct calibrate *c)
{
    const struct mp_policy_info *info;
    enum mp_status status = mp_evaluator_create(&c->id, STREAMS, &c->evaluator);

    c->results = calloc(PREDICTORS_MAX * (size_t)c->id.layers, sizeof(*c->results));
    if (status == MP_OK && c->results == NULL)
        status = mp_fail_no_memory("the results", PREDICTORS_MAX * c->id.layers);
    for (size_t i = 0; status == MP_OK && (info = mp_policy_builtin(MP_POLICY_PREDICT, i)) != NULL;
         i++) {
        if (((const struct mp_predict_ops *)info)->predict == NULL ||
            c->predictor_count == PREDICTORS_MAX)
            continue;
        mp_evaluator_reset(c->evaluator);
        status = run_text(c, info->name, mp_evaluator_observer(c->evaluator));
        for (uint32_t l = 0; l < c->id.layers; l++)
            mp_evaluator_result(c->evaluator, l,
                                &c->results[c->predictor_count * (size_t)c->id.layers + l]);
        c->predictors[c->predictor_count++] = info->name;
    }
    return status;
}

static void print_calibration(const struct calibrate *c, double seconds)
{
    printf("%s: %llu tokens in %.1f s\n", c->out, (unsigned long long)c->summary.tokens, seconds);
    if (c->args->features)
        printf("%s: training data of the same tokens\n", c->features_path);
    if (c->args->route_from != NULL) {
        printf("choices of a trace: nothing is known of similarities, residuals and groups\n");
        return;
    }
    printf("%-6s %-8s %22s %22s\n", "layer", "group", "like the layer before",
           "best expert's share");
    for (uint32_t l = 0; l < c->id.layers; l++) {
        static const char *const groups[] = { "input", "middle", "output" };

        printf("%-6u %-8s %22.3f %22.3f\n", l,
               c->id.layers < 3 ? "-" : groups[c->data->groups[l] % 3],
               mp_calibrator_cosine(c->calibrator, l), mp_calibrator_top_share(c->calibrator, l));
    }
    printf("output similarity is known of %.1f %% of the pairs of experts\n",
           100 * c->summary.similar_pairs);
}

static void json_calibration(const struct calibrate *c, double seconds)
{
    const bool traced = c->args->route_from != NULL;
    struct mp_json_out json;

    mp_json_begin(&json, stdout, true);
    mp_json_object_begin(&json, NULL);
    mp_json_put_string(&json, "out", c->out);
    mp_json_put_string(&json, "features", c->args->features ? c->features_path : NULL);
    mp_json_put_u64(&json, "tokens", c->summary.tokens);
    mp_json_put_f64(&json, "seconds", seconds);
    mp_json_put_f64(&json, "similar_pairs", c->summary.similar_pairs);
    mp_json_array_begin(&json, "layers");
    for (uint32_t l = 0; l < c->id.layers; l++) {
        mp_json_object_begin(&json, NULL);
        mp_json_put_u64(&json, "group", c->data->groups[l]);
        mp_json_put_f64(&json, "cosine_with_layer_before",
                        traced ? NAN : mp_calibrator_cosine(c->calibrator, l));
        mp_json_put_f64(&json, "best_expert_share",
                        traced ? NAN : mp_calibrator_top_share(c->calibrator, l));
        mp_json_object_end(&json);
    }
    mp_json_array_end(&json);
    mp_json_object_end(&json);
    mp_json_end(&json);
}

/* The mean over the layers after the first, which most policies never guess; entry `layers` of a
 * column. */
static struct mp_evaluation mean(const struct calibrate *c, uint32_t predictor)
{
    const struct mp_evaluation *results = c->results + predictor * (size_t)c->id.layers;
    struct mp_evaluation sum = { 0 };
    uint32_t count = 0;

    for (uint32_t l = 1; l < c->id.layers; l++) {
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

static void print_table(const struct calibrate *c, const char *title, size_t field)
{
    printf("%s\n%-7s", title, "layer");
    for (uint32_t p = 0; p < c->predictor_count; p++)
        printf(" %11s", c->predictors[p]);
    for (uint32_t l = 0; l <= c->id.layers; l++) {
        if (l == c->id.layers)
            printf("\n%-7s", "mean 1-");
        else
            printf("\n%-7u", l);
        for (uint32_t p = 0; p < c->predictor_count; p++) {
            const struct mp_evaluation result =
                l == c->id.layers ? mean(c, p) : c->results[p * (size_t)c->id.layers + l];

            if (result.tokens == 0)
                printf(" %11s", "-");
            else
                printf(" %9.1f %%", 100 * *(const double *)((const char *)&result + field));
        }
    }
    printf("\n");
}

static void print_evaluation(const struct calibrate *c)
{
    printf("%zu tokens in windows of %llu, %u at once; experts in RAM: %.0f %%\n", c->ids.count,
           (unsigned long long)c->args->window,
           mp_text_run_streams(&c->ids, c->args->window, STREAMS),
           100.0 * (double)c->session.memory.budget_bytes / (double)c->session.memory.expert_bytes);
    print_table(c, "\na token's experts among its best predicted ones, as many as it has",
                offsetof(struct mp_evaluation, recall));
    print_table(c, "\nthe batch's predicted best 4 within its true best 6",
                offsetof(struct mp_evaluation, hot));
}

static void json_evaluation(const struct calibrate *c)
{
    struct mp_json_out json;

    mp_json_begin(&json, stdout, true);
    mp_json_object_begin(&json, NULL);
    mp_json_put_u64(&json, "tokens", c->ids.count);
    mp_json_put_u64(&json, "window", c->args->window);
    mp_json_put_u64(&json, "batch", mp_text_run_streams(&c->ids, c->args->window, STREAMS));
    mp_json_put_u64(&json, "budget_bytes", c->session.memory.budget_bytes);
    mp_json_object_begin(&json, "predictors");
    for (uint32_t p = 0; p < c->predictor_count; p++) {
        mp_json_array_begin(&json, c->predictors[p]);
        for (uint32_t l = 0; l < c->id.layers; l++) {
            const struct mp_evaluation *result = &c->results[p * (size_t)c->id.layers + l];

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

/* A text or a trace; the latter has only who was chosen. */
static enum mp_status read_source(struct calibrate *c)
{
    const struct mp_args *args = c->args;

    if (args->route_from == NULL)
        return mp_require_text(args, &c->text, &c->text_bytes);
    if (args->text != NULL || args->features || args->evaluate)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE", "--route-from does not go with --%s",
                       args->text != NULL ? "text"
                       : args->features   ? "features"
                                          : "evaluate");
    return MP_OK;
}

static enum mp_status learn(struct calibrate *c)
{
    if (c->args->route_from != NULL)
        return calibrate_trace(c);
    return c->args->evaluate ? evaluate(c) : calibrate(c);
}

static enum mp_status run_all(struct calibrate *c)
{
    const uint64_t start_ns = mp_clock_now_ns(c->clock);
    double seconds;
    enum mp_status status = read_source(c);

    /* Beside a model: once it is known to be one. */
    if (status == MP_OK && !c->args->evaluate && c->args->out != NULL)
        status = name_files(c);
    if (status == MP_OK)
        status = open_session(c);
    if (status == MP_OK && !c->args->evaluate && c->args->out == NULL)
        status = name_files(c);
    if (status == MP_OK)
        status = learn(c);
    if (status != MP_OK)
        return status;
    seconds = (double)(mp_clock_now_ns(c->clock) - start_ns) * 1e-9;
    if (c->args->evaluate && c->args->json)
        json_evaluation(c);
    else if (c->args->evaluate)
        print_evaluation(c);
    else if (c->args->json)
        json_calibration(c, seconds);
    else
        print_calibration(c, seconds);
    return mp_check_stdout();
}

enum mp_status mp_cmd_calibrate(const struct mp_args *args, const struct mp_settings *settings)
{
    struct calibrate *c;
    enum mp_status status = mp_require_model(args);

    if (status != MP_OK)
        return status;
    c = calloc(1, sizeof(*c));
    if (c == NULL)
        return mp_fail_no_memory("the calibration", sizeof(*c));
    c->args = args;
    c->settings = settings;
    c->clock = mp_clock_monotonic();
    status = run_all(c);
    mp_session_close(&c->session);
    mp_features_abandon(c->features);
    mp_calibrator_destroy(c->calibrator);
    mp_calibration_destroy(c->data);
    mp_evaluator_destroy(c->evaluator);
    mp_ids_free(&c->ids);
    free(c->results);
    free(c->text);
    free(c);
    return status;
}
