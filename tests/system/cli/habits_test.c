/*
 * Habits from other programs: arguments that are no flags, short flags, help and -v; texts for
 * shells and man, made from the tables.
 */
#include <string.h>

#include "tests/support/test.h"
#include "tests/system/cli/cli.h"
#include "tests/system/cli/refused.h"

static void expect_same(const struct cli *one, const struct cli *other)
{
    struct cli_result a, b;

    cli_run(one, &a);
    cli_run(other, &b);
    CHECK_EQ(a.exit_code, 0);
    CHECK_EQ(b.exit_code, 0);
    CHECK_EQ(a.out_bytes > 0, true);
    CHECK_STR(a.out, b.out);
    cli_free(&a);
    cli_free(&b);
}

static void words_are_model_and_prompt(void)
{
    const struct cli *flags =
        ARGS(RUN_MODEL, "--prompt", "sort 5 3 9 1 ->", "--max-tokens", "6", "--temperature", "0");

    expect_same(flags, ARGS("run", CLI_MODEL, "sort 5 3 9 1 ->", "-n", "6", "--temp", "0"));
    expect_same(flags, ARGS("run", "-n", "6", "sort 5 3 9 1 ->", "-m", CLI_MODEL));
    expect_same(flags, ARGS("run", "-p", "sort 5 3 9 1 ->", "--n_predict=6", CLI_MODEL, "-t", "1",
                            "-c", "64", "-s", "3"));
    expect_same(ARGS("tokenize", CLI_MODEL, "abc"),
                ARGS("tokenize", "--model", CLI_MODEL, "--prompt", "abc"));
    cli_expect(ARGS("bench", CLI_MODEL, "-n", "3", "--prompt-tokens", "2", "--repeat", "1"), 0,
               NULL);
    REFUSED(2, "'b' is not a flag", RUN_MODEL, "--prompt", "a", "b");
    REFUSED(2, "'c' is not a flag", "run", CLI_MODEL, "a", "c");
    REFUSED(2, "'d' is not a flag", "run", CLI_MODEL, "a", "c", "d");
    REFUSED(2, "'a' is not a flag", "env", "a");
    REFUSED(2, "did you mean '--n-predict'?", RUN_MODEL, "--n-predit", "1");
}

static void standard_input_has_no_last_newline(void)
{
    const struct cli piped = { .args = { "tokenize", CLI_MODEL, "-f", "-" }, .input = "a b\n" };
    const struct cli dos = { .args = { "tokenize", CLI_MODEL, "-f", "-" }, .input = "a b\r\n" };

    expect_same(&piped, ARGS("tokenize", CLI_MODEL, "a b"));
    expect_same(&dos, &piped);
    cli_write(cli_path("text"), "a b\n", 4);
    expect_same(ARGS("tokenize", CLI_MODEL, "-f", cli_path("text")),
                ARGS("tokenize", CLI_MODEL, "a b\n"));
}

static size_t count_tokens(const struct cli *cli)
{
    json_t *shown = cli_json(cli);
    const size_t count = json_array_size(json_object_get(shown, "tokens"));

    json_decref(shown);
    return count;
}

static void special_tokens_are_asked_for(void)
{
    const size_t plain = count_tokens(ARGS("tokenize", CLI_MODEL, "<|endoftext|>", "--json"));
    const size_t special =
        count_tokens(ARGS("tokenize", CLI_MODEL, "<|endoftext|>", "--json", "--special"));

    CHECK_EQ(plain > special && special > 0, true);
    REFUSED(2, "exclude each other", RUN_MODEL, "-p", "a", "--special", "--chat");
}

static void chat_formats_are_named_or_read(void)
{
    static const char unknown[] = "{% include 'x' %}";

    cli_expect(ARGS("run", CLI_MODEL, "hi", "-n", "1", "--chat", "--chat-template", "chatml"), 0,
               "1 generated");
    cli_write(cli_path("jinja"), unknown, sizeof(unknown) - 1);
    REFUSED(3, "E_CHAT_TEMPLATE", "run", CLI_MODEL, "hi", "--chat", "--chat-template",
            cli_path("jinja"));
    REFUSED(6, "cannot open", "run", CLI_MODEL, "hi", "--chat", "--chat-template", "/nonexistent");
    REFUSED(2, "--chat-template needs --chat", "run", CLI_MODEL, "hi", "--chat-template", "chatml");
}

static void expect_in_output(const struct cli *cli, const char *const *parts)
{
    struct cli_result result;

    cli_run(cli, &result);
    CHECK_EQ(result.exit_code, 0);
    for (; *parts != NULL; parts++)
        CHECK_EQ(strstr(result.out, *parts) != NULL, true);
    cli_free(&result);
}

static void help_and_version_by_other_names(void)
{
    expect_same(ARGS("help"), ARGS("--help"));
    expect_same(ARGS("help", "run"), ARGS("run", "--help"));
    expect_same(ARGS("-v"), ARGS("--version"));
    expect_same(ARGS("version"), ARGS("--version"));
    REFUSED(2, "unknown command 'runn'; did you mean 'run'?", "help", "runn");
}

/* Every command, a flag and a setting of one, are in each text. */
static void pages_come_from_the_tables(void)
{
    static const char *const man[] = { ".SS preload", ".B \\-\\-max\\-tokens N",
                                       ".B \\-\\-budget, MOEPAGER_BUDGET", NULL };
    static const char *const bash[] = { " tokenize", " --max-tokens", " --budget",
                                        "complete -o filenames -F _moepager moepager", NULL };
    static const char *const zsh[] = { "#compdef moepager", "'--max-tokens[", "'--budget[", NULL };
    static const char *const fish[] = { "-a tokenize", "-l max-tokens", "-l budget", NULL };

    expect_in_output(ARGS("env", "--page", "man"), man);
    expect_in_output(ARGS("env", "--page", "bash"), bash);
    expect_in_output(ARGS("env", "--page", "zsh"), zsh);
    expect_in_output(ARGS("env", "--page", "fish"), fish);
    REFUSED(2, "--page: got 'csh', need man, bash, zsh or fish", "env", "--page", "csh");
    REFUSED(2, "exclude each other", "env", "--page", "man", "--json");
}

int main(int argc, char **argv)
{
    cli_init(argc, argv);
    RUN(words_are_model_and_prompt);
    RUN(standard_input_has_no_last_newline);
    RUN(special_tokens_are_asked_for);
    RUN(chat_formats_are_named_or_read);
    RUN(help_and_version_by_other_names);
    RUN(pages_come_from_the_tables);
    return 0;
}
