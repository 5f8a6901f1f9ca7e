/*
 * Symptom: threads that did not fit under `ulimit -v` were said to need `ulimit -u`; an empty
 * config.json was "\'[\' or \'{\' expected"; `--budget 25` said nothing of 25%; `info
 * --check-values` was content with a tokenizer that no run could open.
 * Cause: one each: the advice was the same for every limit, a text of the JSON library was quoted
 * as if it came from the file, a small number is a valid size, and the tokenizer was not opened.
 */
#include "tests/system/cli/cli.h"
#include "tests/support/test.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[4300];

static const char *in_dir(const char *name)
{
    static char path[4400];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return path;
}

static void make_model(void)
{
    static const char *const names[] = { "config.json", "tokenizer.json", "tokenizer_config.json",
                                         "generation_config.json", "model.safetensors" };
    char from[4400], *text;
    size_t bytes;

    snprintf(dir, sizeof(dir), "%s", cli_path("model"));
    CHECK_EQ(mkdir(dir, 0700), 0);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(from, sizeof(from), CLI_MODEL "/%s", names[i]);
        text = cli_read(from, &bytes);
        cli_write(in_dir(names[i]), text, bytes);
        free(text);
    }
}

static void threads_that_need_addresses(void)
{
    const struct cli cli = { .args = { "run", "--model", CLI_MODEL, "--prompt", "a", "--threads",
                                       "64" },
                             .address_space_bytes = 256u << 20 };

    if (!cli_is_sanitized())
        cli_expect(&cli, 4, "raise the limit on address space (ulimit -v)");
}

static void a_budget_that_was_meant_as_a_share(void)
{
    const struct cli few = { .args = { "run", "--model", CLI_MODEL, "--prompt", "a", "--budget",
                                       "25" } };
    const struct cli more = { .args = { "run", "--model", CLI_MODEL, "--prompt", "a", "--budget",
                                        "2500" } };
    struct cli_result result;

    cli_expect(&few, 2, "did you mean --budget 25%?");
    cli_run(&more, &result);
    CHECK_EQ(result.exit_code, 2);
    CHECK(strstr(result.err, "raise --budget\n") != NULL);
    cli_free(&result);
}

static void a_tokenizer_that_is_broken(void)
{
    const struct cli sizes = { .args = { "info", "--model", dir, "--json" } };
    const struct cli values = { .args = { "info", "--model", dir, "--check-values", "--json" } };

    cli_expect(&values, 0, NULL);
    cli_write(in_dir("tokenizer.json"), "{\"model\": 7}", 12);
    cli_expect(&sizes, 0, NULL);
    cli_expect(&values, 3, "tokenizer.json");
    /* Without one the model serves what needs none. */
    CHECK_EQ(unlink(in_dir("tokenizer.json")), 0);
    cli_expect(&values, 0, NULL);
}

static void a_config_that_is_empty(void)
{
    const struct cli cli = { .args = { "info", "--model", dir } };

    cli_write(in_dir("config.json"), "", 0);
    cli_expect(&cli, 3, "'config.json' at byte 0 is not valid JSON: '[' or '{' expected near end");
}

int main(int argc, char **argv)
{
    cli_init(argc, argv);
    make_model();
    RUN(threads_that_need_addresses);
    RUN(a_budget_that_was_meant_as_a_share);
    RUN(a_tokenizer_that_is_broken);
    RUN(a_config_that_is_empty);
    return 0;
}
