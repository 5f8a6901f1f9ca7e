/*
 * `moepager calibrate` and `eval` as a person uses them: a calibration is
 * made beside a model and taken up by later runs; damaged and foreign files are refused by name;
 * a trace gives one too.
 */
#include "tests/system/cli/cli.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/test.h"

#define ARGS(...)                \
    (&(const struct cli){        \
        .args = { __VA_ARGS__ }, \
    })

#define FILE_NAME "moepager-calibration.safetensors"
#define FEATURES_NAME "moepager-features.safetensors"
#define SMOE "--route", "smoe", "--evict", "score", "--budget", "25%"

static char model[4200], text[4200], sidecar[8600]; /* a copy of the model, in links */

static void make_model(void)
{
    static const char *const files[] = { "config.json", "generation_config.json",
                                         "model.safetensors", "tokenizer.json",
                                         "tokenizer_config.json" };
    char top[2048], from[4200], to[8600], words[4096] = "";

    CHECK(getcwd(top, sizeof(top)) != NULL);
    snprintf(model, sizeof(model), "%s", cli_path("model"));
    snprintf(text, sizeof(text), "%s", cli_path("text"));
    snprintf(sidecar, sizeof(sidecar), "%s/" FILE_NAME, model);
    CHECK_EQ(mkdir(model, 0755), 0);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        snprintf(from, sizeof(from), "%s/" CLI_MODEL "/%s", top, files[i]);
        snprintf(to, sizeof(to), "%s/%s", model, files[i]);
        CHECK_EQ(symlink(from, to), 0);
    }
    for (int i = 0; i < 40; i++)
        sprintf(words + strlen(words), "def f%d(x):\n    return x * %d + sum(range(x))\n", i, i);
    cli_write(text, words, strlen(words));
}

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    if (!json_is_number(value)) {
        fprintf(stderr, "no number '%s'\n", key);
        exit(1);
    }
    return json_number_value(value);
}

/* The file appears beside the model, says how many tokens it is of, and is there only when whole.
 */
static void calibrate_writes_beside_the_model(void)
{
    json_t *json = cli_json(ARGS("calibrate", "--model", model, "--text", text, "--json"));
    json_t *layers = json_object_get(json, "layers"), *layer;
    const unsigned entries = cli_count_entries(model);
    double last_group = 0;
    size_t i;

    CHECK_STR(json_string_value(json_object_get(json, "out")), sidecar);
    CHECK(json_is_null(json_object_get(json, "features")));
    CHECK(number(json, "tokens") > 400);
    CHECK(number(json, "similar_pairs") > 0 && number(json, "similar_pairs") <= 1);
    CHECK(number(json, "seconds") > 0);
    CHECK_EQ(json_array_size(layers), 8);
    json_array_foreach(layers, i, layer)
    {
        CHECK(number(layer, "group") >= last_group && number(layer, "group") <= 2);
        CHECK(fabs(number(layer, "cosine_with_layer_before")) <= 1);
        CHECK(number(layer, "best_expert_share") > 0 && number(layer, "best_expert_share") <= 1);
        last_group = number(layer, "group");
    }
    CHECK_EQ(last_group, 2);
    CHECK_EQ(entries, 6);
    CHECK_EQ(access(sidecar, R_OK), 0);
    json_decref(json);
}

/* The same text twice is the same file, to the byte, wherever it is written. */
static void a_calibration_can_be_repeated(void)
{
    char *here, *there;
    const char *out = cli_path("again.safetensors");
    size_t here_bytes, there_bytes;

    json_decref(cli_json(ARGS("calibrate", "--model", model, "--text", text, "--out", out,
                              "--threads", "1", "--features", "--json")));
    here = cli_read(sidecar, &here_bytes);
    there = cli_read(out, &there_bytes);
    CHECK_EQ(there_bytes, here_bytes);
    CHECK_EQ(memcmp(here, there, here_bytes), 0);
    free(here);
    free(there);
    there = cli_read(cli_path(FEATURES_NAME), &there_bytes); /* beside --out */
    CHECK(there_bytes > 8 * 400 * (128 * 2 + 4 * 8));
    CHECK(strstr(there + 8, "layer.7.experts") != NULL);
    free(there);
    CHECK_EQ(cli_count_entries(model), 6);
}

/* What was written is found: the policy that needs it does not warn any more. */
static void a_run_takes_the_calibration_up(void)
{
    struct cli_result with, without;

    cli_run(ARGS("run", "--model", model, "--prompt", "def", "--max-tokens", "4", "--budget", "30%",
                 "--predict", "residual"),
            &with);
    cli_run(ARGS("run", "--model", model, "--prompt", "def", "--max-tokens", "4", "--budget", "30%",
                 "--predict", "residual", "--calibration", "none"),
            &without);
    CHECK_EQ(with.exit_code, 0);
    CHECK_EQ(without.exit_code, 0);
    CHECK(strstr(with.err, "warn:") == NULL);
    CHECK(strstr(without.err, "'residual' has no calibration") != NULL);
    CHECK_STR(with.out, without.out);
    cli_free(&with);
    cli_free(&without);
}

static const json_t *layer_of(const json_t *predictors, const char *name, size_t layer)
{
    return json_array_get(json_object_get(predictors, name), layer);
}

/* `gate-around` is `gate` where that speaks, and the only one that guesses the first layer. */
static void check_first_layer(const json_t *predictors)
{
    CHECK(number(layer_of(predictors, "gate-around", 0), "tokens") > 0);
    CHECK(number(layer_of(predictors, "gate-around", 0), "recall") > 0);
    CHECK_EQ(number(layer_of(predictors, "gate", 0), "tokens"), 0);
    for (size_t i = 1; i < 8; i++)
        CHECK(number(layer_of(predictors, "gate-around", i), "recall") ==
              number(layer_of(predictors, "gate", i), "recall"));
}

/* Every predict policy, every layer but the first; what knows the next layer's arithmetic guesses
 * better than what only remembers. */
static void eval_shows_every_predictor(void)
{
    static const char *const names[] = { "gate", "history", "residual", "partial" };
    json_t *json = cli_json(ARGS("eval", "--predictors", "--model", model, "--text", text,
                                 "--tokens", "256", "--window", "32", "--budget", "50%", "--json"));
    json_t *predictors = json_object_get(json, "predictors");
    double mean[4] = { 0 };

    CHECK_EQ(number(json, "tokens"), 256);
    CHECK_EQ(number(json, "window"), 32);
    CHECK_EQ(number(json, "batch"), 8); /* windows, of up to 32 at once */
    for (size_t p = 0; p < 4; p++) {
        json_t *layers = json_object_get(predictors, names[p]), *layer;
        size_t i;

        CHECK_EQ(json_array_size(layers), 8);
        json_array_foreach(layers, i, layer)
        {
            CHECK_EQ(number(layer, "layer"), i);
            CHECK(number(layer, "recall") >= 0 && number(layer, "recall") <= 1);
            CHECK(number(layer, "hot") >= 0 && number(layer, "hot") <= 1);
            mean[p] += i > 0 ? number(layer, "recall") / 7 : 0;
        }
    }
    CHECK(mean[0] > mean[1]);
    CHECK(mean[3] > mean[0]);
    check_first_layer(predictors);
    json_decref(json);
    cli_expect(ARGS("eval", "--predictors", "--model", model, "--text", text, "--tokens", "64"), 0,
               "'llapor' has no trained predictors of this model and asks policy 'residual';");
    cli_expect(ARGS("run", "--model", model, "--prompt", "def", "--max-tokens", "1", "--predict",
                    "llapor", "--calibration", "none"),
               0, "'llapor' has no trained predictors of this model and asks the next gate;");
}

static double at(const json_t *json, const char *name, size_t index)
{
    return json_number_value(json_array_get(json_object_get(json, name), index));
}

/* A token's own id says more of its experts than the token before; guessed ids say less the farther
 * they are; and what is known of the next four tokens gives hits. */
static void eval_shows_what_tokens_ahead_are_worth(void)
{
    json_t *json = cli_json(ARGS("eval", "--tokens-ahead", "--model", model, "--text", text,
                                 "--tokens", "256", "--window", "256", "--json"));
    const json_t *hits = json_object_get(json, "hits");

    CHECK_EQ(json_array_size(json_object_get(json, "ids")), 9);
    CHECK(at(json, "ids", 0) > at(json, "last", 0));
    CHECK(at(json, "drafts", 0) == 0);
    CHECK(at(json, "drafts", 1) > 0 && at(json, "drafts", 1) <= at(json, "ids", 1));
    CHECK(at(json, "right_drafts", 1) > 0 && at(json, "right_drafts", 1) < 1);
    CHECK(json_object_get(json, "draft_model") == NULL);
    CHECK(json_object_get(json, "right_draft_model") == NULL);
    CHECK_EQ(json_array_size(hits), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *share = json_array_get(hits, i);

        CHECK_EQ(number(share, "percent"), i == 0 ? 10 : 25);
        CHECK(number(share, "perfect") > number(share, "nothing"));
        CHECK(number(share, "ids") > number(share, "nothing"));
    }
    json_decref(json);
    cli_expect(ARGS("eval", "--tokens-ahead", "--model", model, "--text", text, "--tokens", "3"), 2,
               "it needs at least 4");
}

/* A draft model guesses ids, less well the farther they are; in windows as the model's. */
static void eval_shows_what_a_draft_model_guesses(void)
{
    json_t *json = cli_json(ARGS("eval", "--tokens-ahead", "--model", model, "--draft-model", model,
                                 "--text", text, "--tokens", "200", "--window", "80", "--json"));

    CHECK_EQ(json_array_size(json_object_get(json, "draft_model")), 9);
    CHECK(at(json, "draft_model", 0) == 0);
    CHECK(at(json, "draft_model", 1) > at(json, "draft_model", 8));
    CHECK(at(json, "draft_model", 1) <= at(json, "ids", 1));
    CHECK(at(json, "right_draft_model", 1) > at(json, "right_draft_model", 8));
    CHECK(at(json, "right_draft_model", 1) < 1);
    json_decref(json);
    cli_expect(ARGS("eval", "--tokens-ahead", "--model", model, "--draft-model", "/nowhere/at/all",
                    "--text", text, "--tokens", "80"),
               3, "/nowhere/at/all");
}

/* What repeats is guessed from the text, whatever the distance. */
static void all_drafts_of_a_text_that_repeats_are_right(void)
{
    static const char line[] = "\nright draft  0.0 % 100.0 % 100.0 % 100.0 % 100.0 % 100.0 % "
                               "100.0 % 100.0 % 100.0 %\n";
    const char *path = cli_path("repeats");
    struct cli_result result;
    char all[800];

    for (size_t i = 0; i < sizeof(all); i++)
        all[i] = i % 2 == 0 ? ' ' : 'a';
    cli_write(path, all, sizeof(all));
    cli_run(ARGS("eval", "--tokens-ahead", "--model", model, "--text", path, "--tokens", "256",
                 "--window", "256"),
            &result);
    CHECK_EQ(result.exit_code, 0);
    CHECK(strstr(result.out, line) != NULL);
    cli_free(&result);
}

/* Replace text of the file by text of the same length. */
static void damage(const char *from, const char *to)
{
    size_t bytes;
    char *all = cli_read(sidecar, &bytes), *at = memmem(all, bytes, from, strlen(from));

    CHECK(at != NULL && strlen(from) == strlen(to));
    memcpy(at, to, strlen(to));
    cli_write(sidecar, all, bytes);
    free(all);
}

static void refused(const char *code)
{
    cli_expect(ARGS("run", "--model", model, "--prompt", "def", "--max-tokens", "1"), 3, code);
    /* It says which file, and there is a way to do without. */
    cli_expect(ARGS("run", "--model", model, "--prompt", "def", "--max-tokens", "1"), 3, FILE_NAME);
    json_decref(cli_json(ARGS("run", "--model", model, "--prompt", "def", "--max-tokens", "1",
                              "--calibration", "none", "--json")));
}

static void damaged_and_foreign_files_are_refused(void)
{
    size_t bytes;
    char *whole = cli_read(sidecar, &bytes);

    damage("\"similarity\"", "\"similaritx\"");
    refused("error[E_SIDECAR]");
    cli_write(sidecar, whole, bytes);
    damage("calibration 1", "calibration 7");
    refused("error[E_SIDECAR]");
    cli_write(sidecar, whole, bytes / 2);
    refused("error[E_ST_END]");
    cli_write(sidecar, "", 0);
    refused("error[E_ST_");
    cli_expect(ARGS("bench", "--model", "tests/data/models/qwen3moe-tiny", "--gen-tokens", "1",
                    "--calibration", cli_path("again.safetensors")),
               3, "error[E_SIDECAR_MODEL]");
    cli_expect(ARGS("run", "--model", model, "--prompt", "a", "--calibration", "none", "--llapor",
                    cli_path("again.safetensors")),
               3, "error[E_SIDECAR]");
    cli_expect(ARGS("run", "--model", model, "--prompt", "a", "--calibration", cli_path("no-file")),
               6, "no-file");

    /* What is wrong can be made anew. */
    json_decref(cli_json(ARGS("calibrate", "--model", model, "--text", text, "--json")));
    free(whole);
    json_decref(
        cli_json(ARGS("run", "--model", model, "--prompt", "def", "--max-tokens", "1", "--json")));
}

static double hit_rate(const char *trace, const char *calibration, const char *partition)
{
    json_t *json = cli_json(ARGS("bench", "--model", CLI_MODEL, "--device", "cpu", "--budget",
                                 "25%", "--prompt-tokens", "4", "--gen-tokens", "24", "--repeat",
                                 "1", "--ctx", "64", "--from-trace", trace, "--profile", "static",
                                 "--calibration", calibration, "--partition", partition, "--json"));
    const double rate = number(json_array_get(json_object_get(json, "runs"), 0), "hit_rate");

    json_decref(json);
    return rate;
}

/* Needs no text. The experts that the trace names are those that stay: they are chosen more often
 * than those of the first layers, which are chosen as often as there are places. */
static void a_trace_gives_a_table_of_hot_experts(void)
{
    const char *trace = cli_path("hot.trace"), *out = cli_path("hot.safetensors");
    json_t *json, *layer;
    size_t i;

    json_decref(
        cli_json(ARGS("run", "--model", CLI_MODEL, "--device", "cpu", "--prompt", "sort 5 3 9 1 ->",
                      "--max-tokens", "24", "--ignore-eos", "--trace", trace, "--json")));
    json = cli_json(ARGS("calibrate", "--model", CLI_MODEL, "--from-trace", trace, "--out", out,
                         "--tokens", "20", "--json"));
    CHECK_EQ(number(json, "tokens"), 20);
    CHECK_EQ(number(json, "similar_pairs"), 0);
    json_array_foreach(json_object_get(json, "layers"), i, layer)
    {
        CHECK_EQ(number(layer, "group"), 3 * i / 8);
        CHECK(json_is_null(json_object_get(layer, "best_expert_share")));
    }
    CHECK_EQ(i, 8);
    json_decref(json);
    CHECK(hit_rate(trace, out, "hot-table") > 1.3 * hit_rate(trace, out, "static-layers"));

    cli_expect(ARGS("calibrate", "--model", CLI_MODEL, "--from-trace", trace, "--out", out), 0,
               NULL);
    cli_expect(ARGS("calibrate", "--model", CLI_MODEL, "--from-trace", trace, "--text", text), 2,
               "--from-trace does not go with --text");
    cli_expect(ARGS("calibrate", "--model", CLI_MODEL, "--from-trace", trace, "--features"), 2,
               "--from-trace does not go with --features");
    cli_expect(ARGS("calibrate", "--model", "tests/data/models/qwen3moe-tiny", "--from-trace",
                    trace, "--out", out),
               2, "error[E_FORCED_ROUTING]");
    cli_expect(ARGS("bench", "--model", "tests/data/models/qwen3moe-tiny", "--gen-tokens", "1",
                    "--calibration", out),
               3, "error[E_SIDECAR_MODEL]");
}

static void perplexity_by_alpha(void)
{
    json_t *json = cli_json(ARGS("eval", "--perplexity", "--model", model, "--text", text,
                                 "--tokens", "256", "--window", "64", "--batch", "4", SMOE,
                                 "--sweep", "smoe-alpha=0,0.6", "--json"));
    json_t *rows = json_object_get(json, "rows"), *none, *much, *exact;
    struct cli_result table;

    CHECK_STR(json_string_value(json_object_get(json, "setting")), "smoe-alpha");
    CHECK_STR(json_string_value(json_object_get(json, "route")), "smoe");
    CHECK_EQ(json_array_size(rows), 2);
    none = json_array_get(rows, 0);
    much = json_array_get(rows, 1);
    CHECK_STR(json_string_value(json_object_get(much, "value")), "0.6");
    CHECK_EQ(number(none, "predicted_tokens"), 256 - 4); /* not the first one of a window */
    CHECK(fabs(exp(number(none, "nats_per_token")) - number(none, "perplexity")) < 1e-6);
    CHECK(number(none, "bits_per_byte") > 0);
    CHECK_EQ(number(none, "substituted"), 0);
    CHECK(number(much, "substituted") > 0.01 && number(much, "substituted") < 1);
    CHECK(number(much, "hit_rate") > number(none, "hit_rate"));

    /* Alpha 0 substitutes nothing: it is the model's own routing. */
    exact = cli_json(ARGS("eval", "--perplexity", "--model", model, "--text", text, "--tokens",
                          "256", "--window", "64", "--batch", "4", "--json"));
    CHECK_EQ(json_array_size(json_object_get(exact, "rows")), 1);
    CHECK(json_is_null(json_object_get(exact, "setting")));
    CHECK(number(json_array_get(json_object_get(exact, "rows"), 0), "perplexity") ==
          number(none, "perplexity"));
    CHECK_EQ(number(json_array_get(json_object_get(exact, "rows"), 0), "substituted"), 0);
    CHECK(number(much, "perplexity") != number(none, "perplexity"));
    json_decref(exact);
    json_decref(json);

    cli_run(ARGS("eval", "--perplexity", "--model", model, "--text", text, "--tokens", "64"),
            &table);
    CHECK_EQ(table.exit_code, 0);
    CHECK(strstr(table.out, "perplexity") != NULL && strstr(table.out, "routing exact") != NULL);
    cli_free(&table);
}

static void wrong_sweeps_are_refused(void)
{
#define SWEEP(text_of)                                                                             \
    ARGS("eval", "--perplexity", "--model", CLI_MODEL, "--text", text, "--tokens", "8", "--sweep", \
         text_of)
    cli_expect(SWEEP("smoe-alpha"), 2, "--sweep needs a setting and values");
    cli_expect(SWEEP("smoe-alpha=,"), 2, "--sweep needs a setting and values");
    cli_expect(SWEEP("budget=10%,20%"), 2, "'budget' is not a setting of a policy");
    cli_expect(SWEEP("smoe-alpha=0,7"), 2, "'smoe-alpha': got '7'");
    cli_expect(ARGS("eval", "--perplexity", "--model", CLI_MODEL), 2, "--text");
    cli_expect(ARGS("eval", "--perplexity", "--model", CLI_MODEL, "--text", text, "--window", "512",
                    "--ctx", "64"),
               2, "error[E_CTX]");
}

/* What the command line names is looked at before a model is, which may take minutes to read. */
static void texts_and_outputs_are_tried_first(void)
{
    cli_expect(ARGS("calibrate", "--model", "/nonexistent", "--text", "/no-text"), 6,
               "error[E_PROMPT_FILE]");
    cli_expect(ARGS("eval", "--divergence", "--model", "/nonexistent", "--text", "/no-text"), 6,
               "error[E_PROMPT_FILE]");
    cli_expect(ARGS("calibrate", "--model", "/nonexistent", "--text", text, "--out", "/no/file"), 6,
               "cannot create '/no/file'");
    cli_expect(ARGS("calibrate", "--model", "/nonexistent", "--text", text), 3,
               "error[E_CKPT_DIR]");
    cli_expect(ARGS("calibrate", "--model", CLI_MODEL, "--text", text, "--ctx", "64", "--out",
                    cli_path("unused"), "--window", "65"),
               2, "windows of 65 tokens do not fit into the context of 64; lower --window");
    CHECK(access(cli_path("unused"), F_OK) != 0);
}

static json_t *divergence(const char *alpha)
{
    return cli_json(ARGS("eval", "--divergence", "--model", model, "--text", text, "--tokens", "96",
                         "--window", "32", "--batch", "2", SMOE, "--smoe-alpha", alpha, "--math",
                         "f32", "--json"));
}

static void divergence_shows_what_routing_changed(void)
{
    json_t *json = divergence("0.6"), *none;
    const json_t *found = json_object_get(json, "divergence");
    struct cli_result shown;

    CHECK_STR(json_string_value(json_object_get(json, "route")), "smoe");
    CHECK_EQ(number(json, "batch"), 2);
    CHECK(number(json, "substituted") > 0);
    CHECK_EQ(number(found, "tokens"), 96 - 3); /* not the last one of a window */
    CHECK(number(found, "agreement") > 0 && number(found, "agreement") <= 1);
    CHECK(number(found, "kl_nats") > 0);
    CHECK(number(found, "kl_nats_max") >= number(found, "kl_nats"));
    json_decref(json);

    /* Nothing is substituted: the same bits. */
    none = divergence("0");
    found = json_object_get(none, "divergence");
    CHECK_EQ(number(none, "substituted"), 0);
    CHECK(number(found, "agreement") == 1);
    CHECK(number(found, "kl_nats") == 0 && number(found, "kl_nats_max") == 0);
    json_decref(none);

    cli_run(ARGS("eval", "--divergence", "--model", model, "--text", text, "--tokens", "16",
                 "--math", "f32"),
            &shown);
    CHECK_EQ(shown.exit_code, 0);
    CHECK(strstr(shown.out, "100.00 % of 15 tokens have the same most likely next token") != NULL);
    CHECK(strstr(shown.out, "routing exact, math f32: 0.00 % of the chosen experts substituted") !=
          NULL);
    cli_free(&shown);
}

/* A class that rounds activations is a little off f32, and not much. */
static void class_diverges_a_little(const char *math, const char *fact, const char *refusal)
{
    json_t *info = cli_json(ARGS("info", "--json")), *json;
    const bool here = json_is_string(json_object_get(info, fact));
    const json_t *found;

    json_decref(info);
    if (!here) {
        cli_expect(ARGS("eval", "--divergence", "--model", model, "--text", text, "--math", math),
                   2, refusal);
        return;
    }
    json = cli_json(ARGS("eval", "--divergence", "--model", model, "--text", text, "--tokens", "96",
                         "--math", math, "--json"));
    found = json_object_get(json, "divergence");
    CHECK_STR(json_string_value(json_object_get(json, "math")), math);
    CHECK(number(found, "kl_nats") > 0 && number(found, "kl_nats") < 0.01);
    CHECK(number(found, "agreement") > 0.9);
    json_decref(json);
}

static void divergence_shows_what_the_class_of_arithmetic_changed(void)
{
    class_diverges_a_little("native", "math_native", "this CPU does not multiply BF16");
    class_diverges_a_little("amx", "math_amx", "this CPU has no AMX");
}

/* The quantised model against its source, and the source against a copy of itself. */
static void divergence_from_a_reference(void)
{
    char quantised[4200], q8[4200];
    json_t *json;
    const json_t *found;
    struct cli_result shown;

    snprintf(quantised, sizeof(quantised), "%s", cli_path("quantised.gguf"));
    snprintf(q8, sizeof(q8), "%s", cli_path("q8.gguf"));
    json_decref(
        cli_json(ARGS("repack", "--model", model, "--type", "q4_0", "--out", quantised, "--json")));
    json_decref(
        cli_json(ARGS("repack", "--model", model, "--type", "q8_0", "--out", q8, "--json")));
    json =
        cli_json(ARGS("eval", "--divergence", "--model", quantised, "--reference", model, "--text",
                      text, "--tokens", "96", "--window", "32", "--batch", "2", "--json"));
    found = json_object_get(json, "divergence");
    CHECK_STR(json_string_value(json_object_get(json, "reference")), model);
    CHECK_EQ(number(found, "tokens"), 96 - 3);
    const double kl = number(found, "kl_nats"), there = number(found, "perplexity_there");
    CHECK(kl > 1e-5 && kl < 1 && number(found, "agreement") > 0.5);
    CHECK(fabs(log(number(found, "perplexity") / there)) < 0.5);
    CHECK(number(found, "perplexity") != there);
    json_decref(json);

    /* More bits lose less, and the source's perplexity is the one that --perplexity shows. */
    json = cli_json(ARGS("eval", "--divergence", "--model", q8, "--reference", model, "--text",
                         text, "--tokens", "96", "--window", "32", "--batch", "2", "--json"));
    found = json_object_get(json, "divergence");
    CHECK(number(found, "kl_nats") < kl / 4 && number(found, "kl_nats") > 0);
    CHECK(number(found, "perplexity_there") == there);
    json_decref(json);
    json = cli_json(ARGS("eval", "--perplexity", "--model", model, "--text", text, "--tokens", "96",
                         "--window", "32", "--batch", "2", "--json"));
    CHECK(fabs(number(json_array_get(json_object_get(json, "rows"), 0), "perplexity") / there - 1) <
          1e-12);
    json_decref(json);

    cli_run(ARGS("eval", "--divergence", "--model", model, "--reference", model, "--text", text,
                 "--tokens", "16"),
            &shown);
    CHECK_EQ(shown.exit_code, 0);
    CHECK(strstr(shown.out, "divergence from the reference: 100.00 % of 15 tokens") != NULL);
    CHECK(strstr(shown.out, "KL 0.000000 nats per token, at most 0.000000; perplexity") != NULL);
    cli_free(&shown);
}

static void wrong_references_are_refused(void)
{
    cli_expect(ARGS("eval", "--perplexity", "--model", model, "--reference", model, "--text", text),
               2, "--reference needs --divergence");
    cli_expect(ARGS("eval", "--divergence", "--model", model, "--reference", "Org/Nothing",
                    "--text", text),
               2, "error[E_MODEL_NAME]");
    cli_expect(ARGS("eval", "--divergence", "--model", model, "--reference", "/nonexistent",
                    "--text", text, "--tokens", "8"),
               3, "error[E_CKPT_DIR]");
    cli_expect(ARGS("eval", "--divergence", "--model", model, "--reference",
                    "tests/data/models/olmoe-a", "--text", text, "--tokens", "8"),
               2, "tokens in its vocabulary, the model has");
    cli_expect(ARGS("eval", "--divergence", "--model", model, "--reference",
                    "tests/data/models/mixtral-tiny", "--text", text, "--tokens", "8", "--window",
                    "8"),
               2, "error[E_REFERENCE]");
}

static void one_measurement_at_a_time(void)
{
    const char *need = "need exactly one of --perplexity, --divergence, --predictors";

    cli_expect(ARGS("eval", "--model", CLI_MODEL, "--text", text), 2, need);
    cli_expect(ARGS("eval", "--perplexity", "--divergence", "--model", CLI_MODEL), 2, need);
    cli_expect(ARGS("eval", "--predictors", "--model", CLI_MODEL, "--sweep", "evict=lru,lfu"), 2,
               "--sweep needs --perplexity");
    cli_expect(ARGS("eval", "--predictors", "--text", text), 2, "no model");
}

int main(int argc, char **argv)
{
    cli_init(argc, argv);
    make_model();
    RUN(calibrate_writes_beside_the_model);
    RUN(a_calibration_can_be_repeated);
    RUN(a_run_takes_the_calibration_up);
    RUN(eval_shows_every_predictor);
    RUN(eval_shows_what_tokens_ahead_are_worth);
    RUN(eval_shows_what_a_draft_model_guesses);
    RUN(all_drafts_of_a_text_that_repeats_are_right);
    RUN(damaged_and_foreign_files_are_refused);
    RUN(a_trace_gives_a_table_of_hot_experts);
    RUN(perplexity_by_alpha);
    RUN(wrong_sweeps_are_refused);
    RUN(texts_and_outputs_are_tried_first);
    RUN(divergence_shows_what_routing_changed);
    RUN(divergence_shows_what_the_class_of_arithmetic_changed);
    RUN(divergence_from_a_reference);
    RUN(wrong_references_are_refused);
    RUN(one_measurement_at_a_time);
    return 0;
}
