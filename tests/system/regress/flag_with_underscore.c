/*
 * Symptom: `--max_tokens 2` ended with "got '' ... ((null))", and `--temp` with the name of
 * another flag than --temperature.
 * Cause: to find the nearest name, the flags were made up as options without a config and then one
 * of them was set; a name that is known but for its dashes was found and written to.
 */
#include "tests/system/cli/cli.h"
#include "tests/support/test.h"

#define RUN_WITH(...)                                                          \
    (&(const struct cli){                                                      \
        .args = { "run", "--model", CLI_MODEL, "--prompt", "a", __VA_ARGS__ }, \
    })

static void underscores(void)
{
    cli_expect(RUN_WITH("--max_tokens", "2"), 2,
               "unknown option '--max_tokens'; did you mean '--max-tokens'?");
    cli_expect(RUN_WITH("--top_k=2"), 2, "unknown option '--top_k'; did you mean '--top-k'?");
    cli_expect(RUN_WITH("--PROMPT_FILE", "a"), 2, "did you mean '--prompt-file'?");
}

static void names_of_other_programs(void)
{
    cli_expect(RUN_WITH("--temp", "0", "-n", "1"), 0, "1 generated");
    cli_expect(RUN_WITH("--n-predict", "1"), 0, "1 generated");
    cli_expect(RUN_WITH("--n_predict=1", "-c", "8"), 0, "1 generated");
    cli_expect(RUN_WITH("-x"), 2, "'-x' is not a flag; flags begin with --");
    /* Only what the command has. */
    cli_expect(&(const struct cli){ .args = { "info", "-n", "1" } }, 2, "'-n' is not a flag");
}

int main(int argc, char **argv)
{
    cli_init(argc, argv);
    RUN(underscores);
    RUN(names_of_other_programs);
    return 0;
}
