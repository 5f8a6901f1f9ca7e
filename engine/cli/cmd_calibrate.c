/*
 * `moepager calibrate`: measure statistics of a model for policies on a text, or which experts are
 * hot from a trace. If interrupted, it writes nothing.
 */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/calibrate/calibrate.h"
#include "engine/cli/commands.h"
#include "engine/model/sidecar/token_heat.h"
#include "engine/session/teacher_forcing.h"
#include "vmm/base/error.h"
#include "vmm/output/json_out.h"
#include "vmm/output/out.h"

#define STREAMS 32 /* windows at once; the batch of PreScope's evaluation */

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

    char out[PATH_MAX], features_path[PATH_MAX], heat_path[PATH_MAX];
    struct mp_calibrator *calibrator;
    struct mp_features *features; /* or NULL */
    struct mp_heat *heat;         /* or NULL */
    struct mp_calibration_data *data;
    struct mp_calibration_summary summary;
};

static void on_layer(void *ctx, const struct mp_layer_seen *seen)
{
    struct calibrate *c = ctx;

    mp_calibrator_seen(c->calibrator, seen);
    if (c->features != NULL)
        mp_features_seen(c->features, seen);
    for (uint32_t t = 0; c->heat != NULL && t < seen->batch->count; t++)
        mp_heat_learn(c->heat, seen->layer, seen->batch->token[t],
                      seen->experts + (size_t)t * seen->k);
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
        .tokenizer = c->args->from_trace == NULL,
        .before_load = c->args->from_trace == NULL ? encode_text : NULL,
        .before_load_ctx = c,
        .progress = &progress,
        .clock = c->clock,
        .cancel = &mp_interrupted,
        /* What is to be made anew is not read, so that a wrong one can be replaced. */
        .no_sidecars = true,
        .forced_routing = c->args->from_trace,
        .no_engine = c->args->from_trace != NULL,
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
static enum mp_status run_text(struct calibrate *c, const struct mp_observer *observer)
{
    struct mp_profile policies = c->session.engine_config.policies;
    struct mp_teacher_forcing run = {
        .ids = &c->ids,
        .window = (uint32_t)c->args->window,
        .streams = STREAMS,
        .on_progress = on_progress,
        .ctx = c,
    };
    enum mp_status status;

    policies.policy[MP_POLICY_ROUTE] = "exact";
    policies.policy[MP_POLICY_PREDICT] = "none";
    policies.policy[MP_POLICY_PREFETCH] = "none";
    status = mp_session_renew(&c->session, &policies, observer);
    if (status != MP_OK)
        return status;
    run.engine = c->session.engine;
    mp_progress_bar_begin(&c->bar, "calibrating", "tokens", c->clock);
    status = mp_teacher_force(&run);
    mp_progress_bar_end(&c->bar);
    return status;
}

/* <model>/moepager-calibration.safetensors unless --out says otherwise; the others beside it. Can
 * they be written? */
static enum mp_status name_files(struct calibrate *c)
{
    int length;
    enum mp_status status;

    if (c->args->out != NULL)
        length = snprintf(c->out, sizeof(c->out), "%s", c->args->out);
    else
        length = snprintf(c->out, sizeof(c->out), "%s/%s", c->args->model, MP_CALIBRATION_NAME);
    if ((size_t)length >= sizeof(c->out) ||
        !mp_sidecar_beside(c->out, MP_FEATURES_NAME, c->features_path, sizeof(c->features_path)) ||
        !mp_sidecar_beside(c->out, MP_TOKEN_HEAT_NAME, c->heat_path, sizeof(c->heat_path)))
        return mp_fail(MP_ERR_CONFIG, "E_USAGE", "--out: the path is too long");
    status = mp_out_check(c->out, true);
    if (status == MP_OK && c->args->features)
        status = mp_out_check(c->features_path, true);
    return status == MP_OK && c->args->token_heat ? mp_out_check(c->heat_path, true) : status;
}

/* Each layer's choices without what was computed: groups are thirds, and nothing is alike. */
static enum mp_status calibrate_trace(struct calibrate *c)
{
    enum mp_status status = mp_calibration_create(&c->id, &c->data);

    if (status == MP_OK)
        status = mp_calibrator_create(&c->id, 1, 1, &c->calibrator);
    if (status == MP_OK)
        status = mp_calibrator_trace(c->calibrator, c->session.forced_routing, c->args->tokens);
    if (status != MP_OK)
        return status;
    mp_calibrator_finish(c->calibrator, c->data, &c->summary);
    c->summary.similar_pairs = 0;
    for (uint32_t l = 0; l < c->id.layers; l++)
        c->data->groups[l] = c->id.layers < 3 ? l : 3 * l / c->id.layers;
    return mp_calibration_write(c->out, c->data, &c->id, c->summary.tokens);
}

static enum mp_status open_heat(struct calibrate *c)
{
    const struct mp_heat_shape shape = { c->id.layers, c->id.experts, c->id.top_k,
                                         c->session.model.vocab };

    return c->args->token_heat ? mp_heat_create(&shape, &c->heat) : MP_OK;
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
        status = open_heat(c);
    if (status == MP_OK)
        status = run_text(c, &observer);
    if (status != MP_OK)
        return status;
    mp_calibrator_finish(c->calibrator, c->data, &c->summary);
    if (c->heat != NULL)
        status = mp_token_heat_write(c->heat_path, c->heat, &c->id, c->summary.tokens);
    if (status == MP_OK && c->features != NULL) {
        struct mp_features *features = c->features;

        c->features = NULL;
        status = mp_features_commit(features);
    }
    if (status == MP_OK)
        status = mp_calibration_write(c->out, c->data, &c->id, c->summary.tokens);
    return status;
}

static void print_calibration(const struct calibrate *c, double seconds)
{
    printf("%s: %llu tokens in %.1f s\n", c->out, (unsigned long long)c->summary.tokens, seconds);
    if (c->args->features)
        printf("%s: training data of the same tokens\n", c->features_path);
    if (c->args->token_heat)
        printf("%s: experts by token id\n", c->heat_path);
    if (c->args->from_trace != NULL) {
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
    const bool traced = c->args->from_trace != NULL;
    struct mp_json_out json;

    mp_json_begin(&json, stdout, true);
    mp_json_object_begin(&json, NULL);
    mp_json_put_string(&json, "out", c->out);
    mp_json_put_string(&json, "features", c->args->features ? c->features_path : NULL);
    mp_json_put_string(&json, "token_heat", c->args->token_heat ? c->heat_path : NULL);
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

/* A text or a trace; the latter holds only who was chosen. */
static enum mp_status read_source(struct calibrate *c)
{
    const struct mp_args *args = c->args;

    if (args->from_trace == NULL)
        return mp_require_text(args, &c->text, &c->text_bytes);
    if (args->text != NULL || args->features || args->token_heat)
        return mp_fail(MP_ERR_CONFIG, "E_USAGE", "--from-trace does not go with --%s",
                       args->text != NULL ? "text" : (args->features ? "features" : "by-token"));
    return MP_OK;
}

static enum mp_status run_all(struct calibrate *c)
{
    const uint64_t start_ns = mp_clock_now_ns(c->clock);
    double seconds;
    enum mp_status status = read_source(c);

    /* Beside a model: once it is known to be one. */
    if (status == MP_OK && c->args->out != NULL)
        status = name_files(c);
    if (status == MP_OK)
        status = open_session(c);
    if (status == MP_OK && c->args->out == NULL)
        status = name_files(c);
    if (status == MP_OK)
        status = c->args->from_trace != NULL ? calibrate_trace(c) : calibrate(c);
    if (status != MP_OK)
        return status;
    seconds = (double)(mp_clock_now_ns(c->clock) - start_ns) * 1e-9;
    if (c->args->json)
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
    mp_heat_destroy(c->heat);
    mp_calibrator_destroy(c->calibrator);
    mp_calibration_destroy(c->data);
    mp_ids_free(&c->ids);
    free(c->text);
    free(c);
    return status;
}
