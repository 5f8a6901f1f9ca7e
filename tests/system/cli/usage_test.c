/*
 * What the command line refuses, with which sentence and exit code, and what it explains. Every
 * failing call is checked to say exactly one line.
 */
#include "tests/system/cli/cli.h"
#include "tests/system/cli/refused.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/test.h"

static void commands_and_flags_are_distinguished(void)
{
    REFUSED(2, "error[E_USAGE]: no command", NULL);
    REFUSED(2, "unknown command 'frobnicate'; moepager --help lists them", "frobnicate");
    REFUSED(2, "unknown command 'runn'; did you mean 'run'?", "runn");
    REFUSED(2, "unknown command 'calibarte'; did you mean 'calibrate'?", "calibarte");
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
    REFUSED(2, "--types: got 'q8_0,q5', need types such as bf16", "probe", "--types", "q8_0,q5",
            "--device", "cuda");
    REFUSED(2, "--device: got 'cpu', but what is measured is a GPU: need cuda or cuda:N", "probe",
            "--device", "cpu");
    REFUSED(2, "--skip needs --child", "probe", "--skip", "maps");
    REFUSED(2, "--json, --markdown and --page exclude each other", "env", "--json", "--markdown");
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
    REFUSED(2, "--place needs --cluster", "simulate", "--place", "prism");
    REFUSED(2, "--requests needs --cluster", "simulate", "--requests", "r");
    REFUSED(2, "--machine and --cluster exclude", "simulate", "--machine", "h200", "--cluster",
            "c");
    REFUSED(2, "unknown placement 'best'; known: prism, uniform", "simulate", "--cluster", "c",
            "--place", "prism,best");
    REFUSED(3, "file 'c'", "simulate", "--cluster", "c");
    REFUSED(2, "--set: got 'gen=2', need one list with commas: it is there twice", "simulate",
            "--set", "copies=2", "--set", "gen=2");
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
    REFUSED(3, "is neither a GGUF file nor a directory", "info", "--model", "CMakeLists.txt");
    CHECK_EQ(mkdir(dir, 0700), 0);
    REFUSED(3, "E_", "info", "--model", dir);
    snprintf(file, sizeof(file), "%s/model.safetensors", dir);
    cli_write(file, "version https://git-lfs.github.com/spec/v1\noid", 46);
    REFUSED(3, "Git LFS pointer", "info", "--model", dir);
    cli_write(file, "1234567", 7);
    REFUSED(3, "E_ST_SHORT", "info", "--model", dir);
}

/* Its configuration is one model's, its weights are another's; said before a device is opened. */
static void a_model_with_other_weights_is_not_probed(void)
{
    const char *dir = cli_path("mixed");
    char from[4200], to[4300], here[2048];

    CHECK(getcwd(here, sizeof(here)) != NULL);
    CHECK_EQ(mkdir(dir, 0700), 0);
    snprintf(from, sizeof(from), "%s/" CLI_MODEL "/config.json", here);
    snprintf(to, sizeof(to), "%s/config.json", dir);
    CHECK_EQ(symlink(from, to), 0);
    snprintf(from, sizeof(from), "%s/tests/data/models/mixtral-tiny/model.safetensors", here);
    snprintf(to, sizeof(to), "%s/model.safetensors", dir);
    CHECK_EQ(symlink(from, to), 0);
    REFUSED(3, "tensor", "probe", "--model", dir, "--device", "cuda");
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

static void simulated_requests_are_those_of_the_cluster(void)
{
    cli_write(cli_path("few"), "0 0.5 1 7\n", 10);
    REFUSED(2, "has 1 requests for server 0", "simulate", "--cluster",
            "tools/machines/bigbench.cluster", "--requests", cli_path("few"));
    cli_write(cli_path("few"), "3 0.5 1 7\n", 10);
    REFUSED(2, "no server of the cluster", "simulate", "--cluster",
            "tools/machines/bigbench.cluster", "--requests", cli_path("few"));
    REFUSED(2, "--from-trace with --cluster needs --requests", "simulate", "--cluster",
            "tools/machines/bigbench.cluster", "--from-trace", "t");
}

int main(int argc, char **argv)
{
    cli_init(argc, argv);
    RUN(commands_and_flags_are_distinguished);
    RUN(numbers_are_read_whole_and_in_range);
    RUN(sizes_are_read_whole_and_in_range);
    RUN(a_budget_below_two_slots_is_refused);
    RUN(prompts_that_cannot_be_used_are_refused);
    RUN(token_files_that_cannot_be_used_are_refused);
    RUN(lists_are_read_before_the_first_simulation);
    RUN(simulated_requests_are_those_of_the_cluster);
    RUN(a_trace_does_not_undo_what_was_set);
    RUN(a_model_that_is_none_is_refused);
    RUN(a_model_with_other_weights_is_not_probed);
    RUN(a_wrong_variable_warns_or_ends);
    RUN(a_flag_goes_before_the_environment);
    RUN(a_log_file_that_cannot_be_used_is_no_obstacle);
    return 0;
}
