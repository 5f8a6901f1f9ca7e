/*
 * Symptom: the texts of a batch ended at their first NUL byte, with exit code 0.
 * Cause: they were printed as C strings; prompts and generated text are bytes with a length.
 */
#include "tests/system/cli/cli.h"
#include "tests/support/test.h"

static void nul_is_printed_like_any_byte(void)
{
    static const char prompts[] = "left\0right\nother\n", shown[] = "[0] left\0right";
    const char *path = cli_path("prompts");
    const struct cli cli = {
        .args = { "run", "--model", CLI_MODEL, "--max-tokens", "2", "--batch-file", path },
    };
    struct cli_result result;

    cli_write(path, prompts, sizeof(prompts) - 1);
    cli_run(&cli, &result);
    CHECK_EQ(result.exit_code, 0);
    CHECK(result.out_bytes >= sizeof(shown) - 1);
    CHECK(memcmp(result.out, shown, sizeof(shown) - 1) == 0);
    cli_free(&result);
}

/* Found with it: an error before the first token left an empty line in the output. */
static void a_refused_prompt_prints_nothing(void)
{
    const struct cli cli = {
        .args = { "run", "--model", CLI_MODEL, "--ctx", "2", "--prompt", "far too long" },
    };
    struct cli_result result;

    cli_run(&cli, &result);
    CHECK_EQ(result.exit_code, 2);
    CHECK_EQ(result.out_bytes, 0);
    cli_free(&result);
}

int main(int argc, char **argv)
{
    cli_init(argc, argv);
    RUN(nul_is_printed_like_any_byte);
    RUN(a_refused_prompt_prints_nothing);
    return 0;
}
