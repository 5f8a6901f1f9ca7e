/*
 * What the command line explains: help, flags, environment, info.
 */
#include "tests/system/cli/cli.h"
#include "tests/system/cli/refused.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/test.h"

static void a_slip_gets_the_nearest_name(void)
{
    REFUSED(2, "'--promt'; did you mean '--prompt'?", RUN_MODEL, "--promt", "a");
    REFUSED(2, "'--modle'; did you mean '--model'?", "info", "--modle", "a");
    REFUSED(2, "'--evct'; did you mean '--evict'?", RUN_MODEL, "--prompt", "a", "--evct", "lru");
    REFUSED(2, "unknown command 'rnu'; did you mean 'run'?", "rnu");
    REFUSED(2, "unknown command 'srevr'; did you mean 'serve'?", "srevr");
    REFUSED(2, "unknown command 'helpp'; did you mean 'help'?", "helpp");
    REFUSED(2, "unknown option '--frobnicate'", RUN_MODEL, "--frobnicate");
    REFUSED(2, "unknown option '--repeat'", RUN_MODEL, "--prompt", "a", "--repeat", "2");
    REFUSED(2, "known are lru, lfu", RUN_MODEL, "--prompt", "a", "--evict", "lrru");
    REFUSED(2, "unknown profile 'fast'", RUN_MODEL, "--prompt", "a", "--profile", "fast");
    REFUSED(2, "no kernels 'sse'", RUN_MODEL, "--prompt", "a", "--kernels", "sse");
    REFUSED(2, "kernels ref are of class f32, but math is amx", RUN_MODEL, "--prompt", "a",
            "--math", "amx", "--kernels", "ref");
    REFUSED(2, "kernels ref are of class f32, but math is native", RUN_MODEL, "--prompt", "a",
            "--math", "native", "--kernels", "ref");
    REFUSED(2, "option '--kv-type': got 'q4_0', need one of f32, f16, bf16, q8_0", RUN_MODEL,
            "--prompt", "a", "--kv-type", "q4_0");
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

static const char *const commands[] = { "run",    "bench",    "info",      "env",
                                        "repack", "simulate", "calibrate", "eval",
                                        "probe",  "replay",   "preload" };

#define COMMANDS (sizeof(commands) / sizeof(commands[0]))

/* The arguments that are no flags, as usage shows them. */
static const char *words_of(const char *command)
{
    if (!strcmp(command, "replay"))
        return " TRACE";
    if (!strcmp(command, "run") || !strcmp(command, "tokenize"))
        return " [MODEL] [PROMPT]";
    return !strcmp(command, "env") || !strcmp(command, "preload") ? "" : " [MODEL]";
}

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
                 words_of(commands[i]), i == 10 ? " -- COMMAND [ARGUMENT]..." : "");
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
    CHECK(strstr(page.out, "settings, among others\n  --") != NULL);
    CHECK(strstr(page.out, "also understood\n    -m for --model") != NULL);
    cli_free(&page);
    cli_run(ARGS("top", "--help"), &page); /* has no settings that matter */
    CHECK(strstr(page.out, "settings, among") == NULL && strstr(page.out, "also und") == NULL);
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

/* A cache as Hugging Face's programs leave it. */
static void models_of_a_cache_are_listed_and_run(void)
{
    char cache[4200], model[4200];
    struct cli cli = { .args = { "info", "--json" }, .env = { cache, "LLAMA_CACHE=/nowhere" } };
    json_t *json, *listed;

    snprintf(cache, sizeof(cache), "HF_HUB_CACHE=%s", cli_path("hub"));
    CHECK_EQ(mkdir(cli_path("hub"), 0755), 0);
    CHECK_EQ(mkdir(cli_path("hub/models--Org--Tiny"), 0755), 0);
    CHECK_EQ(mkdir(cli_path("hub/models--Org--Tiny/snapshots"), 0755), 0);
    CHECK(realpath(CLI_MODEL, model) != NULL);
    CHECK_EQ(symlink(model, cli_path("hub/models--Org--Tiny/snapshots/abc")), 0);
    json = cli_json(&cli);
    listed = json_object_get(json, "cached_models");
    CHECK_EQ(json_array_size(listed), 1);
    CHECK_STR(json_string_value(json_object_get(json_array_get(listed, 0), "name")), "Org/Tiny");
    json_decref(json);
    cli = (struct cli){ .args = { "bench", "--model", "Org/Tiny", "--prompt-tokens", "4",
                                  "--gen-tokens", "2", "--json" },
                        .env = { cache, "LLAMA_CACHE=/nowhere" } };
    json_decref(cli_json(&cli));
    cli.args[2] = "Org/Tinny";
    cli_expect(&cli, 2, "in no cache: 'Org/Tinny'");
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
    RUN(a_slip_gets_the_nearest_name);
    RUN(an_old_name_gets_the_new_one);
    RUN(env_shows_what_a_profile_stands_for);
    RUN(help_names_every_flag_and_examples);
    RUN(a_flag_has_one_meaning);
    RUN(experts_find_more_in_help_all);
    RUN(info_shows_sizes_and_what_is_missing);
    RUN(models_of_a_cache_are_listed_and_run);
    RUN(info_lists_cuda_devices);
    return 0;
}
