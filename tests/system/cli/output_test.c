/*
 * What the command line writes: JSON, timeline, trace, logits; and that it says so and leaves
 * nothing behind when it cannot write, or when there is no memory.
 */
#include "tests/system/cli/cli.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "policy/record/trace.h"
#include "tests/support/npy.h"
#include "tests/support/test.h"

#define RUN_MODEL "run", "--model", CLI_MODEL, "--prompt", "sort 5 3 9 1 ->", "--max-tokens", "6"
#define ARGS(...)                \
    (&(const struct cli){        \
        .args = { __VA_ARGS__ }, \
    })

static void json_has_the_promised_keys(void)
{
    static const char *const numbers[] = {
        "ttft_ms",      "tpot_ms",         "tokens_per_s",
        "hit_rate",     "bytes_loaded",    "bytes_prefetched_unused",
        "lost_bytes",   "exposed_wait_ms", "budget_bytes",
        "expert_bytes",
    };
    json_t *json = cli_json(ARGS(RUN_MODEL, "--json", "--budget", "25%")), *id, *tokens;
    size_t i;

    CHECK(json_is_string(json_object_get(json, "text")));
    tokens = json_object_get(json, "tokens");
    CHECK_EQ(json_array_size(tokens), 6);
    json_array_foreach(tokens, i, id)
    {
        CHECK(json_is_integer(id) && json_integer_value(id) >= 0 && json_integer_value(id) < 2048);
    }
    for (i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        if (!json_is_number(json_object_get(json, numbers[i])))
            CHECK_STR(numbers[i], "a number");
    }
    CHECK_EQ(json_integer_value(json_object_get(json, "expert_bytes")), 8 * 32 * 73728);
    CHECK_EQ(json_integer_value(json_object_get(json, "budget_bytes")), 8 * 32 * 73728 / 4);
    CHECK(json_number_value(json_object_get(json, "hit_rate")) >= 0);
    CHECK(json_number_value(json_object_get(json, "hit_rate")) <= 1);
    CHECK(json_integer_value(json_object_get(json, "bytes_loaded")) >= 73728);
    json_decref(json);
}

static void plain_text_and_report_go_separate_ways(void)
{
    json_t *json = cli_json(ARGS(RUN_MODEL, "--json"));
    struct cli_result result;
    const char *text = json_string_value(json_object_get(json, "text"));

    cli_run(ARGS(RUN_MODEL), &result);
    CHECK_EQ(result.exit_code, 0);
    CHECK_EQ(result.out_bytes, strlen(text) + 1);
    CHECK_EQ(memcmp(result.out, text, strlen(text)), 0);
    CHECK(strstr(result.err, "hit rate") != NULL && strstr(result.err, "exposed wait") != NULL);
    cli_free(&result);
    json_decref(json);
}

static void a_timeline_has_its_tracks(void)
{
    json_t *json, *events, *event;
    json_error_t error;
    bool compute = false, transfers = false, layers = false;
    size_t i, spans = 0;

    cli_expect(ARGS(RUN_MODEL, "--budget", "20%", "--timeline", cli_path("timeline.json")), 0,
               "tokens");
    json = json_load_file(cli_path("timeline.json"), 0, &error);
    CHECK(json != NULL);
    events = json_is_array(json) ? json : json_object_get(json, "traceEvents");
    CHECK(json_is_array(events));
    json_array_foreach(events, i, event)
    {
        const char *phase = json_string_value(json_object_get(event, "ph"));
        const char *name =
            json_string_value(json_object_get(json_object_get(event, "args"), "name"));

        CHECK(phase != NULL);
        if (!strcmp(phase, "M") && name != NULL) {
            compute = compute || !strcmp(name, "compute");
            transfers = transfers || !strcmp(name, "transfers");
            layers = layers || !strcmp(name, "layers");
        }
        spans += !strcmp(phase, "X");
    }
    CHECK(compute && transfers && layers);
    CHECK(spans > 6 * 8);
    json_decref(json);
}

static void a_trace_holds_every_choice(void)
{
    json_t *json = cli_json(ARGS(RUN_MODEL, "--json", "--trace", cli_path("trace")));
    const size_t tokens = (size_t)json_integer_value(json_object_get(json, "prompt_tokens")) +
                          json_array_size(json_object_get(json, "tokens")) -
                          1; /* the last one is not run */
    struct mp_trace_reader *reader;
    struct mp_trace_row row;
    size_t rows = 0;

    CHECK_EQ(mp_trace_open(cli_path("trace"), &reader), MP_OK);
    CHECK_EQ(mp_trace_get_shape(reader)->layers, 8);
    CHECK_EQ(mp_trace_get_shape(reader)->experts, 32);
    CHECK_EQ(mp_trace_get_shape(reader)->top_k, 4);
    CHECK_EQ(mp_trace_get_shape(reader)->expert_bytes, 73728);
    for (;;) {
        CHECK_EQ(mp_trace_read(reader, &row), MP_OK);
        if (row.experts == NULL)
            break;
        rows++;
    }
    CHECK_EQ(rows, tokens * 8);
    mp_trace_reader_destroy(reader);
    json_decref(json);
}

/* Row i is what token i was chosen from: its largest value stands at the token's id. */
static void logits_are_those_of_the_tokens(void)
{
    json_t *json = cli_json(ARGS(RUN_MODEL, "--json", "--logits-out", cli_path("logits.npy")));
    json_t *tokens = json_object_get(json, "tokens");
    struct npy npy = { 0 };

    CHECK(npy_read(cli_path("logits.npy"), &npy));
    CHECK_EQ(npy.type, NPY_F32);
    CHECK_EQ(npy.n_dims, 2);
    CHECK_EQ(npy.dims[0], 6);
    CHECK_EQ(npy.dims[1], 2048);
    for (size_t i = 0; i < 6; i++) {
        const float *row = npy.f32 + i * 2048;
        size_t best = 0;

        for (size_t j = 1; j < 2048; j++)
            best = row[j] > row[best] ? j : best;
        CHECK_EQ(best, json_integer_value(json_array_get(tokens, i)));
    }
    npy_free(&npy);
    json_decref(json);
}

static void an_output_that_is_gone_is_an_error(void)
{
    struct cli full = { .args = { RUN_MODEL }, .output = CLI_FULL };
    struct cli closed = { .args = { RUN_MODEL }, .output = CLI_CLOSED };
    static const char *const others[] = { "info", "env", "--help", "--version" };

    cli_expect(&full, 6, "error[E_OUTPUT]");
    cli_expect(&closed, 6, "error[E_OUTPUT]");
    full.args[7] = closed.args[7] = "--json";
    cli_expect(&full, 6, "\"E_OUTPUT\"");
    cli_expect(&closed, 6, "\"E_OUTPUT\"");
    for (size_t i = 0; i < 4; i++) {
        const struct cli other = { .args = { others[i] }, .output = CLI_FULL };

        cli_expect(&other, 6, "error[E_OUTPUT]");
    }
}

/* As `| head` ends: whatever the command, nothing is said. */
static void a_reader_that_has_seen_enough_is_no_error(void)
{
    static const char *const all[][10] = {
        { "--help" },
        { "--version" },
        { "run", "--help" },
        { "env" },
        { "env", "--markdown" },
        { "info" },
        { "info", "--model", CLI_MODEL, "--json" },
        { "bench", "--model", CLI_MODEL, "--prompt-tokens", "2", "--gen-tokens", "2", "--json" },
        { "simulate", "--machine", "h200", "--model", "mixtral-8x7b", "--profile", "lru" },
        { RUN_MODEL },
        { RUN_MODEL, "--json" },
    };
    const char *trace = cli_path("unread-trace");
    const struct cli files = { .args = { RUN_MODEL, "--trace", trace }, .output = CLI_UNREAD };
    struct mp_trace_reader *reader;
    struct cli_result result;

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        struct cli unread = { .output = CLI_UNREAD };

        memcpy(unread.args, all[i], sizeof(all[i]));
        cli_run(&unread, &result);
        if (result.exit_code != 0)
            fprintf(stderr, "%s: %d: %s\n", all[i][0], result.exit_code, result.err);
        CHECK_EQ(result.exit_code, 0);
        CHECK(strstr(result.err, "error[") == NULL);
        cli_free(&result);
    }
    cli_run(&files, &result); /* goes on for its file */
    CHECK_EQ(result.exit_code, 0);
    cli_free(&result);
    CHECK_EQ(mp_trace_open(trace, &reader), MP_OK);
    mp_trace_reader_destroy(reader);
}

static void info_says_whether_a_model_drafts(void)
{
    static const char *const models[] = { CLI_MODEL, "tests/data/models/glm4_moe-draft" };
    struct cli_result result;

    for (size_t i = 0; i < 2; i++) {
        json_t *info = cli_json(ARGS("info", "--model", models[i], "--json"));
        json_t *layer = json_object_get(json_object_get(info, "model"), "drafting_layer");

        CHECK(json_is_boolean(layer) && json_is_true(layer) == (i == 1));
        json_decref(info);
        cli_run(ARGS("info", "--model", models[i]), &result);
        CHECK((strstr(result.out, "--draft-model mtp") != NULL) == (i == 1));
        cli_free(&result);
    }
}

static void a_model_drafts_for_itself(void)
{
    json_t *json = cli_json(ARGS("bench", "--model", "tests/data/models/glm4_moe-draft",
                                 "--draft-model", "mtp", "--draft-tokens", "2", "--deterministic",
                                 "--prompt-tokens", "4", "--gen-tokens", "8", "--json"));
    json_t *run = json_array_get(json_object_get(json, "runs"), 0);

    CHECK(json_integer_value(json_object_get(run, "drafted_tokens")) > 0);
    json_decref(json);
}

/* The same code and one line, whoever is asked. */
static void a_model_that_is_missing_is_the_same_error_everywhere(void)
{
    static const char *const all[][8] = {
        { "run", "--prompt", "a" },
        { "run", "--chat", "--prompt", "a" },
        { "bench" },
        { "info" },
        { "probe" },
        { "repack", "--out", "/nonexistent/out" },
        { "calibrate", "--text", "README.md" },
        { "eval", "--perplexity", "--text", "README.md" },
    };
    static const char *const models[] = { "/nonexistent/model", "README.md" };

    for (size_t m = 0; m < 2; m++) {
        for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
            struct cli cli = { .args = { NULL } };
            struct cli_result result;
            size_t count = 0;

            for (; all[i][count] != NULL; count++)
                cli.args[count] = all[i][count];
            cli.args[count] = "--model";
            cli.args[count + 1] = models[m];
            cli_run(&cli, &result);
            CHECK_EQ(result.exit_code, 3);
            CHECK(strncmp(result.err, "moepager: error[E_CKPT_DIR]: ", 29) == 0);
            CHECK(strchr(result.err, '\n') == result.err + strlen(result.err) - 1);
            cli_free(&result);
        }
    }
}

static void files_that_cannot_be_written_are_named(void)
{
    static const char *const flags[] = { "--timeline", "--trace", "--logits-out",
                                         "--decision-log" };
    const char *dir = cli_path("out"), *link = cli_path("out-link");
    char inside[4300], keep[4300];

    CHECK_EQ(mkdir(dir, 0700), 0);
    cli_write(cli_path("precious"), "mine", 4);
    CHECK_EQ(symlink(cli_path("precious"), link), 0);
    snprintf(inside, sizeof(inside), "%s/file", dir);
    snprintf(keep, sizeof(keep), "%s", link);
    for (size_t i = 0; i < 4; i++) {
        char *text;

        cli_expect(ARGS("run", "--model", CLI_MODEL, "--prompt", "a", "--max-tokens", "1", "--json",
                        flags[i], "/nonexistent/dir/file"),
                   6, "/nonexistent/dir/file");
        cli_expect(ARGS("run", "--model", CLI_MODEL, "--prompt", "a", "--max-tokens", "1", "--json",
                        flags[i], keep),
                   6, "out-link");
        text = cli_read(cli_path("precious"), NULL);
        CHECK_STR(text, "mine");
        free(text);
        /* A run that fails after its files were opened leaves none of them. */
        cli_expect(
            &(const struct cli){ .args = { RUN_MODEL, flags[i], inside }, .output = CLI_FULL }, 6,
            "E_OUTPUT");
        CHECK_EQ(cli_count_entries(dir), 0);
    }
}

/* With all three closed a file of the run would get number 1 or 2 if nobody held them. */
static void closed_descriptors_are_not_reused(void)
{
    const char *trace = cli_path("trace-closed"), *logits = cli_path("logits-closed");
    const struct cli cli = { .args = { RUN_MODEL, "--trace", trace, "--logits-out", logits },
                             .env = { "MOEPAGER_LOG=debug" },
                             .input_closed = true,
                             .errors_closed = true };
    struct mp_trace_reader *reader;
    struct mp_trace_row row = { .experts = &row.step };
    struct cli_result result;
    struct npy npy = { 0 };

    cli_run(&cli, &result);
    CHECK_EQ(result.exit_code, 0);
    cli_free(&result);
    CHECK_EQ(mp_trace_open(trace, &reader), MP_OK);
    while (row.experts != NULL)
        CHECK_EQ(mp_trace_read(reader, &row), MP_OK);
    mp_trace_reader_destroy(reader);
    CHECK(npy_read(logits, &npy));
    npy_free(&npy);
}

/* How much is enough differs between machines, so the limit is tried from nothing upwards. */
static void no_memory_is_reported_and_ends_with_4(void)
{
    unsigned failures = 0;

    if (cli_is_sanitized())
        return; /* the sanitizer itself needs more than any limit */
    for (size_t mib = 4; mib <= 160; mib += 4) {
        const struct cli cli = { .args = { RUN_MODEL }, .address_space_bytes = mib << 20 };
        struct cli_result result;
        bool ended_early;

        cli_run(&cli, &result);
        /* Below some limit the program or its libraries cannot even be loaded; libnuma ends the
         * process itself. */
        ended_early = failures == 0 && (result.exit_code == 127 || result.exit_code == -1 ||
                                        strstr(result.err, "allocating bitmask") != NULL);
        if (!ended_early && result.exit_code != 0) {
            CHECK_EQ(result.exit_code, 4);
            CHECK(strstr(result.err, "error[E_") != NULL); /* one line, after a warning */
            CHECK(strchr(strstr(result.err, "error[E_"), '\n') ==
                  result.err + result.err_bytes - 1);
            failures++;
        }
        cli_free(&result);
    }
    CHECK(failures > 0);
}

/* A context that the machine cannot hold is refused before it is tried. */
static void a_context_beyond_the_machine_is_refused_with_the_sum(void)
{
    static const char *const files[] = { "tokenizer.json", "tokenizer_config.json",
                                         "generation_config.json", "model.safetensors" };
    const char *dir = cli_path("large");
    char from[4300], to[4300], *text, *at, *config;
    size_t bytes;

    CHECK_EQ(mkdir(dir, 0700), 0);
    for (size_t i = 0; i < 4; i++) {
        snprintf(from, sizeof(from), CLI_MODEL "/%s", files[i]);
        snprintf(to, sizeof(to), "%s/%s", dir, files[i]);
        text = cli_read(from, &bytes);
        cli_write(to, text, bytes);
        free(text);
    }
    text = cli_read(CLI_MODEL "/config.json", &bytes);
    at = strstr(text, "\"max_position_embeddings\": 2048");
    CHECK(at != NULL);
    config = malloc(bytes + 64);
    CHECK(config != NULL);
    snprintf(config, bytes + 64, "%.*s\"max_position_embeddings\": 16000000%s", (int)(at - text),
             text, at + strlen("\"max_position_embeddings\": 2048"));
    snprintf(to, sizeof(to), "%s/config.json", dir);
    cli_write(to, config, strlen(config));
    cli_write(cli_path("many"), "a\nb\nc\nd\ne\nf\ng\nh\n", 16);
    cli_expect(ARGS("run", "--model", dir, "--batch-file", cli_path("many"), "--ctx", "16000000"),
               4, "error[E_RAM]: not enough RAM: weights");
    free(config);
    free(text);
}

/* The rows behind a text do not depend on which part of it was the prompt; they do on the text. */
static void bench_takes_the_tokens_of_a_file(void)
{
    const char *whole = cli_path("whole.npy"), *cut = cli_path("cut.npy");
    const char *other = cli_path("other.npy");
    struct npy a, b, c;
    size_t row;

    cli_write(cli_path("ids"), " 17 400\n\t5 99 1203 7 7 64\n", 26);
    cli_write(cli_path("others"), "17 400 5 99 1204 7 7 64", 23);
    cli_expect(ARGS("bench", "--model", CLI_MODEL, "--tokens-file", cli_path("ids"),
                    "--prompt-tokens", "4", "--gen-tokens", "4", "--repeat", "2", "--json",
                    "--logits-out", whole),
               0, NULL);
    cli_expect(ARGS("bench", "--model", CLI_MODEL, "--tokens-file", cli_path("ids"),
                    "--prompt-tokens", "6", "--gen-tokens", "2", "--repeat", "1", "--json",
                    "--logits-out", cut),
               0, NULL);
    cli_expect(ARGS("bench", "--model", CLI_MODEL, "--tokens-file", cli_path("others"),
                    "--prompt-tokens", "4", "--gen-tokens", "4", "--repeat", "1", "--json",
                    "--logits-out", other),
               0, NULL);
    CHECK(npy_read(whole, &a) && npy_read(cut, &b) && npy_read(other, &c));
    CHECK(a.dims[0] == 4 && b.dims[0] == 2 && c.dims[0] == 4);
    row = a.dims[1];
    CHECK(memcmp(a.f32 + 2 * row, b.f32, 2 * row * sizeof(float)) == 0);
    CHECK(memcmp(a.f32, c.f32, row * sizeof(float)) == 0);
    CHECK(memcmp(a.f32 + row, c.f32 + row, row * sizeof(float)) != 0);
    npy_free(&a);
    npy_free(&b);
    npy_free(&c);
}

int main(int argc, char **argv)
{
    cli_init(argc, argv);
    RUN(json_has_the_promised_keys);
    RUN(plain_text_and_report_go_separate_ways);
    RUN(a_timeline_has_its_tracks);
    RUN(a_trace_holds_every_choice);
    RUN(logits_are_those_of_the_tokens);
    RUN(bench_takes_the_tokens_of_a_file);
    RUN(an_output_that_is_gone_is_an_error);
    RUN(a_reader_that_has_seen_enough_is_no_error);
    RUN(info_says_whether_a_model_drafts);
    RUN(a_model_drafts_for_itself);
    RUN(a_model_that_is_missing_is_the_same_error_everywhere);
    RUN(files_that_cannot_be_written_are_named);
    RUN(closed_descriptors_are_not_reused);
    RUN(no_memory_is_reported_and_ends_with_4);
    RUN(a_context_beyond_the_machine_is_refused_with_the_sum);
    return 0;
}
