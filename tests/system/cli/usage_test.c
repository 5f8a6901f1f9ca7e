/*
 * What the command line refuses, with which sentence and exit code, and what it explains. Every
 * failing call is checked to say exactly one line.
 */
#include "tests/system/cli/cli.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/test.h"

#define RUN_MODEL "run", "--model", CLI_MODEL
#define ARGS(...)                \
    (&(const struct cli){        \
        .args = { __VA_ARGS__ }, \
    })
#define REFUSED(code, part, ...) cli_expect(ARGS(__VA_ARGS__), code, part)

static void commands_and_flags_are_distinguished(void)
{
    REFUSED(2, "error[E_USAGE]: no command", NULL);
    REFUSED(2, "unknown command 'frobnicate'", "frobnicate");
    REFUSED(2, "'prompt' is not a flag", "run", "prompt");
    REFUSED(2, "need exactly one of --prompt", RUN_MODEL);
    REFUSED(2, "got 2 prompts", RUN_MODEL, "--prompt", "a", "--prompt-file", "b");
    REFUSED(2, "no model", "run", "--prompt", "a");
    REFUSED(2, "no model", "bench");
    REFUSED(2, "--prompt needs a value", RUN_MODEL, "--prompt");
    REFUSED(2, "--json: got 'yes', need no value", RUN_MODEL, "--json=yes");
    REFUSED(2, "from -1 to 1 (How far from the first expert not chosen", RUN_MODEL, "--smoe-alpha",
            "2");
    REFUSED(2, "'--budget' needs a value", RUN_MODEL, "--prompt", "a", "--budget");
    REFUSED(2, "--check-values needs --model", "info", "--check-values");
    REFUSED(2, "--channels: got '0', need a whole number from 1", "probe", "--channels", "0");
    REFUSED(2, "--device: got 'cpu', but what is measured is a GPU: need cuda or cuda:N", "probe",
            "--device", "cpu");
    REFUSED(2, "--skip needs --child", "probe", "--skip", "maps");
    REFUSED(2, "--json and --markdown exclude each other", "env", "--json", "--markdown");
}

static void a_slip_gets_the_nearest_name(void)
{
    REFUSED(2, "'--promt'; did you mean '--prompt'?", RUN_MODEL, "--promt", "a");
    REFUSED(2, "'--modle'; did you mean '--model'?", "info", "--modle", "a");
    REFUSED(2, "'--evct'; did you mean '--evict'?", RUN_MODEL, "--prompt", "a", "--evct", "lru");
    REFUSED(2, "unknown option '--frobnicate'", RUN_MODEL, "--frobnicate");
    REFUSED(2, "unknown option '--repeat'", RUN_MODEL, "--prompt", "a", "--repeat", "2");
    REFUSED(2, "known are lru, lfu", RUN_MODEL, "--prompt", "a", "--evict", "lrru");
    REFUSED(2, "unknown profile 'fast'", RUN_MODEL, "--prompt", "a", "--profile", "fast");
    REFUSED(2, "no kernels 'sse'", RUN_MODEL, "--prompt", "a", "--kernels", "sse");
    REFUSED(2, "MOEPAGER_BACKEND 'hots'", RUN_MODEL, "--prompt", "a", "--backend", "hots");
    REFUSED(2, "need auto, cpu, cuda or cuda:N", RUN_MODEL, "--prompt", "a", "--device", "gpu");
    REFUSED(2, "need auto, cpu, cuda or cuda:N", RUN_MODEL, "--prompt", "a", "--device", "cuda:x");
    REFUSED(2, "contradicts", RUN_MODEL, "--prompt", "a", "--device", "cpu", "--backend", "cuda");
}

static void an_old_name_gets_the_new_one(void)
{
    REFUSED(2, "error[E_OPTION]: option '--prompt' is now '--prompt-tokens'", "simulate",
            "--prompt", "8");
    REFUSED(2, "option '--gen' is now '--gen-tokens'", "simulate", "--gen=8");
    REFUSED(2, "option '--batch' is now '--batches'", "simulate", "--batch", "1,2");
    REFUSED(2, "option '--route-from' is now '--from-trace'", "bench", "--route-from", "t");
    REFUSED(2, "option '--route-from' is now '--from-trace'", "calibrate", "--route-from", "t");
    REFUSED(2, "option '--evaluate' is now 'moepager eval --predictors'", "calibrate",
            "--evaluate");
    REFUSED(2, "option '--receipt' is now 'moepager eval --divergence'", RUN_MODEL, "--receipt");
    REFUSED(2, "error[E_USAGE]: command 'perplexity' is now 'moepager eval --perplexity'",
            "perplexity", "--model", CLI_MODEL);
    REFUSED(2, "unknown option '--gen'", RUN_MODEL, "--gen", "8"); /* it never had that one */
}

static void numbers_are_read_whole_and_in_range(void)
{
    static const char *const counts[] = { "-1", "0", "1099511627776", "1.5", "1e3", "0x10", "",
                                          " 3", "3 " };

    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        REFUSED(2, "need a whole number from 1 to 16777216", RUN_MODEL, "--prompt", "a",
                "--max-tokens", counts[i]);
    REFUSED(2, "--temperature: got 'nan'", RUN_MODEL, "--prompt", "a", "--temperature", "nan");
    REFUSED(2, "--temperature: got '-1'", RUN_MODEL, "--prompt", "a", "--temperature", "-1");
    REFUSED(2, "--temperature: got '0,5'", RUN_MODEL, "--prompt", "a", "--temperature", "0,5");
    REFUSED(2, "--top-k: got '-5'", RUN_MODEL, "--prompt", "a", "--top-k", "-5");
    REFUSED(2, "--top-p: got '1.5'", RUN_MODEL, "--prompt", "a", "--top-p", "1.5");
    REFUSED(2, "'--seed': got '-1'", RUN_MODEL, "--prompt", "a", "--seed", "-1");
    REFUSED(2, "'--threads': got '1025'", RUN_MODEL, "--prompt", "a", "--threads", "1025");
    REFUSED(2, "--gen-tokens: got '0', need a whole number from 1", "bench", "--gen-tokens", "0");
    REFUSED(2, "from 0 to 1048576", "simulate", "--gen-tokens", "1048577");
    REFUSED(2, "--batch: got '65'", "bench", "--model", CLI_MODEL, "--batch", "65");
}

/* C4: one parser for sizes, whole strings only. */
static void sizes_are_read_whole_and_in_range(void)
{
    static const char *const bad[] = { "",    "-1",    "1e9",  "99999999999G", " 8 G", "0x10",
                                       "nan", "10,5M", "101%", "-1%",          "8 G",  "G" };
    static const char *const good[] = { "10G",     "10GB", "10GiB", "1.5M", "200K",
                                        "4000000", "25%",  "100%",  "all",  "auto" };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        REFUSED(2, "need a size such as 4096, 64K, 1.5M or 2GiB", RUN_MODEL, "--prompt", "a",
                "--budget", bad[i]);
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        cli_expect(ARGS("info", "--model", CLI_MODEL, "--budget", good[i]), 0, NULL);
}

/* C6: refused before anything large is read, with both numbers. */
static void a_budget_below_two_slots_is_refused(void)
{
    REFUSED(2, "budget of 1 bytes is below the smallest for this model: need 147456", RUN_MODEL,
            "--prompt", "a", "--budget", "1");
    REFUSED(2, "need 147456", RUN_MODEL, "--prompt", "a", "--budget", "0");
    REFUSED(2, "need 147456", "bench", "--model", CLI_MODEL, "--budget", "147455");
}

static void prompts_that_cannot_be_used_are_refused(void)
{
    const struct cli closed = { .args = { RUN_MODEL, "--prompt-file", "-" }, .input_closed = true };
    char lines[66 * 2];

    REFUSED(2, "the prompt is empty", RUN_MODEL, "--prompt", "");
    REFUSED(2, "the prompt is empty", RUN_MODEL, "--prompt-file", "/dev/null");
    REFUSED(6, "cannot open '/nonexistent'", RUN_MODEL, "--prompt-file", "/nonexistent");
    REFUSED(6, "E_PROMPT_FILE", RUN_MODEL, "--prompt-file", "tests");
    cli_expect(&closed, 2, "standard input, which is closed");
    REFUSED(2, "the context holds 4; raise --ctx", RUN_MODEL, "--ctx", "4", "--prompt",
            "more words than four tokens can hold, surely");
    REFUSED(2, "made for 1 to 2048", RUN_MODEL, "--prompt", "a", "--ctx", "2049");

    for (size_t i = 0; i < 65; i++)
        memcpy(lines + 2 * i, "a\n", 2);
    cli_write(cli_path("lines"), lines, 65 * 2);
    REFUSED(2, "more than 64 prompts", RUN_MODEL, "--batch-file", cli_path("lines"));
    cli_write(cli_path("lines"), "\n\n", 2);
    REFUSED(2, "the prompt is empty", RUN_MODEL, "--batch-file", cli_path("lines"));
}

#define BENCH_FILE(name) \
    "bench", "--model", CLI_MODEL, "--gen-tokens", "2", "--tokens-file", cli_path(name)

static void token_files_that_cannot_be_used_are_refused(void)
{
    static const char *const bad[] = { "1 2 x 4 5", "1 2 -3 4 5", "1 2 3.5 4 5",
                                       "1 2 4294967296 4 5", "1 2 99999999999999999999 4 5" };

    REFUSED(6, "cannot open", BENCH_FILE("nothing"));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        cli_write(cli_path("ids"), bad[i], strlen(bad[i]));
        REFUSED(2, "token 2 is no id; need 5 ids", BENCH_FILE("ids"), "--prompt-tokens", "3");
    }
    cli_write(cli_path("ids"), "1 2 3 4\n", 8);
    REFUSED(2, "token 4 is missing; need 5 ids", BENCH_FILE("ids"), "--prompt-tokens", "3");
    cli_write(cli_path("ids"), "1 2 2048 4", 10);
    REFUSED(2, "token 2 is beyond the model's vocabulary", BENCH_FILE("ids"), "--prompt-tokens",
            "2");
}

#define SIMULATE "simulate", "--machine", "h200", "--model", "mixtral-8x7b", "--budget", "25%"

/* All of both lists are looked at before the first simulation prints its row. */
static void lists_are_read_before_the_first_simulation(void)
{
    static const char *const bad[][2] = { { "1,,2", "lru" }, { "1", "lru,lrru" }, { "1", ",lru" } };
    struct cli_result result;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        cli_run(ARGS(SIMULATE, "--batches", bad[i][0], "--profile", bad[i][1]), &result);
        CHECK_EQ(result.exit_code, 2);
        CHECK_EQ(result.out_bytes, 0);
        cli_free(&result);
    }
    REFUSED(2, "description '--set': unknown key 'speed'", SIMULATE, "--set", "speed=1");
}

/* The header of the output says what --set changed, so that has to be what was simulated. */
static void a_trace_does_not_undo_what_was_set(void)
{
    const char *trace = cli_path("routing");

    json_decref(cli_json(
        ARGS(RUN_MODEL, "--prompt", "a", "--max-tokens", "2", "--json", "--trace", trace)));
    cli_expect(ARGS(SIMULATE, "--from-trace", trace, "--set", "layers=8,experts=32"), 0, NULL);
    cli_expect(ARGS(SIMULATE, "--trace", trace, "--set", "layers=8,experts=32"), 0, NULL);
    REFUSED(2, "--batches and --from-trace exclude each other", SIMULATE, "--trace", trace,
            "--batches", "2");
    REFUSED(2, "--warm and --from-trace exclude each other", SIMULATE, "--trace", trace, "--warm",
            "2");
    REFUSED(2, "the trace has 8 layers of 32 experts, 4 per token", SIMULATE, "--trace", trace,
            "--set", "layers=8,experts=32,top_k=2");
}

static void a_model_that_is_none_is_refused(void)
{
    const char *dir = cli_path("model");
    char file[4300];

    REFUSED(3, "cannot open the model directory '/nonexistent'", "run", "--prompt", "a", "--model",
            "/nonexistent");
    REFUSED(3, "is not a directory", "info", "--model", "CMakeLists.txt");
    CHECK_EQ(mkdir(dir, 0700), 0);
    REFUSED(3, "E_", "info", "--model", dir);
    snprintf(file, sizeof(file), "%s/model.safetensors", dir);
    cli_write(file, "version https://git-lfs.github.com/spec/v1\noid", 46);
    REFUSED(3, "Git LFS pointer", "info", "--model", dir);
    cli_write(file, "1234567", 7);
    REFUSED(3, "E_ST_SHORT", "info", "--model", dir);
}

/* A variable with a bad value ends the program as its flag does; an unknown one is warned of, and
 * ends it with MOEPAGER_STRICT. */
static void a_wrong_variable_warns_or_ends(void)
{
    struct cli cli = { .args = { "info" }, .env = { "MOEPAGER_BUGDET=1G" } };

    cli_expect(&cli, 0, "unknown variable MOEPAGER_BUGDET; did you mean MOEPAGER_BUDGET?");
    cli.env[0] = "MOEPAGER_BUDGET=lots";
    cli_expect(&cli, 2, "error[E_OPTION]: option 'MOEPAGER_BUDGET': got 'lots', need a size");
    cli.args[0] = "env";
    cli_expect(&cli, 2, "error[E_OPTION]: option 'MOEPAGER_BUDGET': got 'lots', need a size");
    cli.env[0] = "MOEPAGER_LRU_AGED_NONE=1";
    cli_expect(&cli, 0, "unknown variable MOEPAGER_LRU_AGED_NONE");
    cli.env[0] = "MOEPAGER_BUGDET=1G";
    cli.env[1] = "MOEPAGER_STRICT=1";
    {
        struct cli_result result;

        cli_run(&cli, &result);
        CHECK_EQ(result.exit_code, 2);
        CHECK(strstr(result.err, "MOEPAGER_STRICT is set") != NULL);
        CHECK_EQ(result.out_bytes, 0);
        cli_free(&result);
    }
    cli.env[0] = "MOEPAGER_BUDGET=1G";
    cli_expect(&cli, 0, NULL);
}

static void a_flag_goes_before_the_environment(void)
{
    const struct cli cli = { .args = { "env", "--json", "--seed", "9" },
                             .env = { "MOEPAGER_SEED=5", "MOEPAGER_CTX=77" } };
    json_t *json = cli_json(&cli), *option;
    size_t i, found = 0;

    json_array_foreach(json, i, option)
    {
        const char *name = json_string_value(json_object_get(option, "name"));
        const char *value = json_string_value(json_object_get(option, "value"));

        CHECK(name != NULL && value != NULL);
        if (!strcmp(name, "MOEPAGER_SEED")) {
            CHECK_STR(value, "9");
            found++;
        }
        if (!strcmp(name, "MOEPAGER_CTX")) {
            CHECK_STR(value, "77");
            found++;
        }
    }
    CHECK_EQ(found, 2);
    json_decref(json);
}

static void env_shows_what_a_profile_stands_for(void)
{
    const struct cli cli = { .args = { "env", "--json", "--profile", "dali", "--admit",
                                       "always" } };
    const struct cli plain = { .args = { "env" }, .env = { "MOEPAGER_PROFILE=dali" } };
    const struct cli bad = { .args = { "env" }, .env = { "MOEPAGER_PROFILE=dal" } };
    json_t *json = cli_json(&cli), *option;
    struct cli_result result;
    size_t i, found = 0;

    json_array_foreach(json, i, option)
    {
        const char *name = json_string_value(json_object_get(option, "name"));
        const char *value = json_string_value(json_object_get(option, "value"));
        const char *effective = json_string_value(json_object_get(option, "effective"));

        CHECK(name != NULL && value != NULL && effective != NULL);
        if (!strcmp(name, "MOEPAGER_ASSIGN")) {
            CHECK_STR(value, "");
            CHECK_STR(effective, "greedy");
            found++;
        }
        if (!strcmp(name, "MOEPAGER_ADMIT")) {
            CHECK_STR(effective, "always");
            found++;
        }
    }
    CHECK_EQ(found, 2);
    json_decref(json);
    cli_run(&plain, &result);
    CHECK_EQ(result.exit_code, 0);
    CHECK(strstr(result.out, "# in effect: greedy\nexport MOEPAGER_ASSIGN=\n") != NULL);
    cli_free(&result);
    cli_expect(&bad, 2, "unknown profile 'dal'");
}

/* C7: a log that cannot be written harms nobody, and a link is not followed. */
static void a_log_file_that_cannot_be_used_is_no_obstacle(void)
{
    struct cli cli = { .args = { "info" }, .env = { "MOEPAGER_LOG=info" } };
    char file[4300], victim[4300];
    char *text;

    snprintf(victim, sizeof(victim), "MOEPAGER_LOG_FILE=%s", cli_path("log-link"));
    cli_write(cli_path("log-victim"), "mine", 4);
    CHECK_EQ(symlink(cli_path("log-victim"), cli_path("log-link")), 0);
    cli.env[1] = victim;
    cli_expect(&cli, 0, "log-link");
    text = cli_read(cli_path("log-victim"), NULL);
    CHECK_STR(text, "mine");
    free(text);

    CHECK_EQ(mkfifo(cli_path("log-fifo"), 0600), 0);
    snprintf(file, sizeof(file), "MOEPAGER_LOG_FILE=%s", cli_path("log-fifo"));
    cli.env[1] = file;
    cli_expect(&cli, 0, "log-fifo");
    cli.env[1] = "MOEPAGER_LOG_FILE=/nonexistent/dir/log";
    cli_expect(&cli, 0, "/nonexistent/dir/log");
    cli.env[1] = "MOEPAGER_LOG_FILE=/dev/full";
    {
        struct cli_result result;

        cli_run(&cli, &result);
        CHECK_EQ(result.exit_code, 0);
        cli_free(&result);
    }
    /* A flag goes before the variable, and a level that is none is refused. */
    snprintf(file, sizeof(file), "%s", cli_path("log-of-flag"));
    cli_expect(ARGS("run", "--model", CLI_MODEL, "--device", "cpu", "--prompt", "a", "--max-tokens",
                    "1", "--log", "info", "--log-file", file),
               0, "hit rate");
    text = cli_read(file, NULL);
    CHECK(strstr(text, " info: reader: reading with ") != NULL);
    free(text);
    REFUSED(2, "error[E_OPTION]: option 'MOEPAGER_LOG' (--log) has 'loud', need error, warn,",
            "info", "--log", "warn,loud");
    cli.env[0] = "MOEPAGER_LOG=pager:";
    cli_expect(&cli, 2, "option 'MOEPAGER_LOG' (--log) has 'pager:', need error, warn,");
    cli.env[0] = "MOEPAGER_LOG=info";
    cli.env[1] = NULL;
    cli.errors_closed = true;
    cli_expect(&cli, 0, NULL);
}

static const char *const commands[] = { "run",    "bench",    "info",      "env",
                                        "repack", "simulate", "calibrate", "eval",
                                        "probe",  "replay",   "preload" };

#define COMMANDS (sizeof(commands) / sizeof(commands[0]))

static void help_names_every_flag_and_examples(void)
{
    struct cli cli = { .args = { "--help" } };
    struct cli_result result;

    cli_run(&cli, &result);
    CHECK_EQ(result.exit_code, 0);
    CHECK_EQ(result.err_bytes, 0);
    for (size_t i = 0; i < COMMANDS; i++) {
        struct cli page = { .args = { commands[i], "--help" } };
        struct cli_result shown;
        char usage[128];

        CHECK(strstr(result.out, commands[i]) != NULL);
        cli_run(&page, &shown);
        CHECK_EQ(shown.exit_code, 0);
        CHECK_EQ(shown.err_bytes, 0);
        CHECK(strstr(shown.out, "--json") != NULL);
        CHECK(strstr(shown.out, "examples\n  moepager") != NULL);
        snprintf(usage, sizeof(usage), "\nusage: moepager %s%s [--flag value]...%s\n", commands[i],
                 i == 9 ? " TRACE" : "", i == 10 ? " -- COMMAND [ARGUMENT]..." : "");
        CHECK(strstr(shown.out, usage) != NULL);
        CHECK_EQ(strstr(shown.out, "--slices N") != NULL, i == 4 || i == 5 || i == 9);
        CHECK_EQ(strstr(shown.out, "--prompt TEXT") != NULL, i == 0);
        CHECK(strlen(shown.out) < 4000);
        cli_free(&shown);
    }
    CHECK(strstr(result.out, "exit codes: 0 ok, 2 usage") != NULL);
    cli_free(&result);
    cli_run(ARGS("run", "-h"), &result);
    CHECK_EQ(result.exit_code, 0);
    CHECK(strstr(result.out, "usage: moepager run") != NULL);
    cli_free(&result);
    cli_expect(ARGS("--version"), 0, NULL);
}

/* The lines of a help page that begin with a flag, up to the settings. */
static unsigned flags_of_page(const char *command, const char *page_name, char lines[64][160])
{
    struct cli_result page;
    unsigned count = 0;
    char *save = NULL;

    cli_run(ARGS(command, page_name), &page);
    CHECK_EQ(page.exit_code, 0);
    CHECK_EQ(page.err_bytes, 0);
    for (char *line = strtok_r(page.out, "\n", &save); line != NULL && strncmp(line, "settings", 8);
         line = strtok_r(NULL, "\n", &save)) {
        CHECK(strlen(line) <= 100 && count < 64);
        if (strncmp(line, "  --", 4) == 0)
            snprintf(lines[count++], 160, "%s", line);
    }
    cli_free(&page);
    return count;
}

static bool same_flag(const char *a, const char *b)
{
    const size_t bytes = strcspn(a + 2, " ") + 2;

    return strncmp(a, b, bytes) == 0 && (b[bytes] == ' ' || b[bytes] == '\0');
}

/* No flag means one thing here and another there: all pages show it with the same words. A list of
 * a setting is the only flag that has a setting's name, and a file that others name by a variable.
 */
static void a_flag_has_one_meaning(void)
{
    static char all[COMMANDS][64][160];
    static const char *const lists[] = { "profile", "evict", "partition",
                                         "budget",  "trace", "timeline" };
    json_t *settings = cli_json(ARGS("env", "--json")), *setting;
    unsigned counts[COMMANDS], shared = 0;
    size_t i;

    for (unsigned c = 0; c < COMMANDS; c++)
        counts[c] = flags_of_page(commands[c], "--help-all", all[c]);
    for (unsigned c = 0; c < COMMANDS * COMMANDS; c++) {
        for (unsigned f = 0; f < counts[c / COMMANDS] * counts[c % COMMANDS]; f++) {
            const char *a = all[c / COMMANDS][f % counts[c / COMMANDS]];
            const char *b = all[c % COMMANDS][f / counts[c / COMMANDS]];

            if (same_flag(a, b)) {
                CHECK_STR(a, b);
                shared++;
            }
        }
    }
    CHECK(shared > 100);
    json_array_foreach(settings, i, setting)
    {
        const char *name = json_string_value(json_object_get(setting, "flag"));
        char flag[128];
        bool list = false;

        snprintf(flag, sizeof(flag), "  --%s", name);
        for (unsigned l = 0; l < sizeof(lists) / sizeof(lists[0]); l++)
            list = list || strcmp(lists[l], name) == 0;
        for (unsigned c = 0; c < COMMANDS; c++) {
            for (unsigned f = 0; f < counts[c]; f++)
                CHECK(list || !same_flag(flag, all[c][f]));
        }
    }
    json_decref(settings);
}

/* The short page is a part of the long one, which has every setting, too. */
static void experts_find_more_in_help_all(void)
{
    static char main_flags[64][160], all[64][160];
    const unsigned count = flags_of_page("run", "--help", main_flags);
    const unsigned all_count = flags_of_page("run", "--help-all", all);
    struct cli_result page;

    CHECK(count >= 10 && count < all_count);
    for (unsigned m = 0, a = 0; m < count; m++, a++) {
        while (a < all_count && strcmp(main_flags[m], all[a]) != 0)
            a++;
        CHECK(a < all_count);
    }
    cli_run(ARGS("run", "--help"), &page);
    CHECK(strstr(page.out, "--decision-log") == NULL && strstr(page.out, "--io-depth") == NULL);
    cli_free(&page);
    cli_run(ARGS("run", "--help-all"), &page);
    CHECK(strstr(page.out, "\n  --decision-log FILE ") != NULL);
    CHECK(strstr(page.out, "\n  --io-depth (16)\n      Reads in flight with io_uring.\n") != NULL);
    CHECK(strstr(page.out, "\n  --evict\n") != NULL);
    cli_free(&page);
    cli_run(ARGS("replay", "--help-all"), &page);
    CHECK(strstr(page.out, "\n  --evict A,B ") != NULL &&
          strstr(page.out, "\n  --evict\n") == NULL);
    cli_free(&page);
}

static void info_shows_sizes_and_what_is_missing(void)
{
    struct cli_result result;
    json_t *json = cli_json(ARGS("info", "--model", CLI_MODEL, "--json"));

    CHECK(json_object_get(json, "version") != NULL);
    CHECK(json_object_get(json, "machine") != NULL);
    CHECK(json_object_get(json, "model") != NULL);
    json_decref(json);
    cli_run(ARGS("info"), &result);
    CHECK_EQ(result.exit_code, 0);
    CHECK(strstr(result.out, "CUDA devices\n  ") != NULL);
    cli_free(&result);
    cli_run(ARGS("info", "--model", CLI_MODEL, "--check-values"), &result);
    CHECK_EQ(result.exit_code, 0);
    CHECK(strstr(result.out, "smallest budget 147456 bytes") != NULL);
    cli_free(&result);
}

/* With the driver of tests/device/fakecuda, whose folder is in FAKECUDA_DIR. */
static void info_lists_cuda_devices(void)
{
    struct cli cli = { .args = { "info" } };
    struct cli_result result;
    char path[4200];
    json_t *json;

    CHECK(getenv("FAKECUDA_DIR") != NULL);
    snprintf(path, sizeof(path), "LD_LIBRARY_PATH=%s", getenv("FAKECUDA_DIR"));
    cli.env[0] = path;
    cli.env[1] = "FAKECUDA_DEVICES=2";
    cli_run(&cli, &result);
    CHECK_EQ(result.exit_code, 0);
    CHECK(strstr(result.out, "cuda:1     Fake device 1, 256 MiB, capability 9.0") != NULL);
    cli_free(&result);
    cli.args[1] = "--json";
    json = cli_json(&cli);
    CHECK_EQ(json_array_size(json_object_get(json_object_get(json, "cuda"), "devices")), 2);
    json_decref(json);
    cli.env[1] = "FAKECUDA_INIT=100";
    json = cli_json(&cli);
    CHECK(strstr(json_string_value(json_object_get(json_object_get(json, "cuda"), "off")),
                 "CUDA_ERROR_NO_DEVICE") != NULL);
    json_decref(json);
}

int main(int argc, char **argv)
{
    cli_init(argc, argv);
    RUN(commands_and_flags_are_distinguished);
    RUN(a_slip_gets_the_nearest_name);
    RUN(an_old_name_gets_the_new_one);
    RUN(numbers_are_read_whole_and_in_range);
    RUN(sizes_are_read_whole_and_in_range);
    RUN(a_budget_below_two_slots_is_refused);
    RUN(prompts_that_cannot_be_used_are_refused);
    RUN(token_files_that_cannot_be_used_are_refused);
    RUN(lists_are_read_before_the_first_simulation);
    RUN(a_trace_does_not_undo_what_was_set);
    RUN(a_model_that_is_none_is_refused);
    RUN(a_wrong_variable_warns_or_ends);
    RUN(a_flag_goes_before_the_environment);
    RUN(env_shows_what_a_profile_stands_for);
    RUN(a_log_file_that_cannot_be_used_is_no_obstacle);
    RUN(help_names_every_flag_and_examples);
    RUN(a_flag_has_one_meaning);
    RUN(experts_find_more_in_help_all);
    RUN(info_shows_sizes_and_what_is_missing);
    RUN(info_lists_cuda_devices);
    return 0;
}
