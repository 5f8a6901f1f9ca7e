/*
 * Symptom: what does not fit was refused only after all weights had been read: `--top-p 0`, an
 * empty `--stop`, files that cannot be written; prompts and texts longer than the context or empty.
 * Cause: what is checked when it is used was not looked at before.
 */
#include "tests/system/cli/cli.h"
#include "tests/support/test.h"

#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* A model that is not there shows what is looked at first. */
#define RUN_WITH(flag, value)                                                       \
    (&(const struct cli){                                                           \
        .args = { "run", "--model", "/nonexistent", "--prompt", "a", flag, value }, \
    })

/* A file beside the weights that is looked at after them, and is broken, shows what is looked at
 * before. */
#define COMMAND(command, ...) \
    (&(const struct cli){ .args = { command, "--ctx", "8", "--model", broken(), __VA_ARGS__ } })
#define BROKEN "moepager-calibration.safetensors"

static const char *broken(void)
{
    static const char *const others[] = { "config.json", "tokenizer.json", "tokenizer_config.json",
                                          "model.safetensors" };
    static char dir[PATH_MAX];
    char to[PATH_MAX + 64], from[PATH_MAX + 64], top[PATH_MAX];

    if (dir[0] != '\0')
        return dir;
    snprintf(dir, sizeof(dir), "%s", cli_path("broken"));
    CHECK_EQ(mkdir(dir, 0700), 0);
    CHECK(realpath(CLI_MODEL, top) != NULL);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        snprintf(from, sizeof(from), "%s/%s", top, others[i]);
        snprintf(to, sizeof(to), "%s/%s", dir, others[i]);
        CHECK_EQ(symlink(from, to), 0);
    }
    snprintf(to, sizeof(to), "%s/" BROKEN, dir);
    cli_write(to, "x", 1);
    return dir;
}

static void flags(void)
{
    cli_expect(RUN_WITH("--top-p", "0"), 2, "error[E_SAMPLING]: top-p 0 is not above 0");
    cli_expect(RUN_WITH("--stop", ""), 2, "error[E_STOP_EMPTY]");
    cli_expect(RUN_WITH("--trace", "/nonexistent/t"), 6, "error[E_OUTPUT]");
    cli_expect(RUN_WITH("--logits-out", "/nonexistent/t"), 6, "error[E_OUTPUT]");
    cli_expect(RUN_WITH("--timeline", "/nonexistent/t"), 6, "error[E_OUTPUT]");
    cli_expect(RUN_WITH("--trace-scores", NULL), 2, "error[E_USAGE]: --trace-scores needs --trace");
    cli_expect(RUN_WITH("--trace", "/dev/null"), 3, "error[E_CKPT_DIR]");
    cli_expect(RUN_WITH("--top-p", "1"), 3, "error[E_CKPT_DIR]");
}

static void texts(void)
{
    const char *long_text = cli_path("long"), *short_text = cli_path("short"),
               *ids = cli_path("ids");

    cli_write(long_text, "one two three four five six seven eight nine ten", 48);
    cli_write(short_text, "", 0);
    cli_write(ids, "1 2 3 99999999", 14);
    cli_expect(COMMAND("run", "--prompt-file", long_text), 2, "error[E_PROMPT_LONG]");
    cli_expect(COMMAND("run", "--prompt", ""), 2, "error[E_PROMPT_EMPTY]");
    cli_expect(COMMAND("run", "--prompt", "a"), 3, BROKEN);
    cli_expect(COMMAND("bench", "--prompt-tokens", "9", "--gen-tokens", "1"), 2,
               "error[E_PROMPT_LONG]");
    cli_expect(COMMAND("bench", "--tokens-file", ids, "--prompt-tokens", "2", "--gen-tokens", "2"),
               2, "is beyond the model's vocabulary");
    cli_expect(COMMAND("bench", "--prompt-tokens", "4", "--gen-tokens", "4"), 3, BROKEN);
    cli_expect(COMMAND("eval", "--perplexity", "--text", long_text, "--window", "9"), 2,
               "error[E_CTX]");
    cli_expect(COMMAND("eval", "--perplexity", "--text", short_text, "--window", "8"), 2,
               "error[E_PROMPT_EMPTY]");
    cli_expect(COMMAND("eval", "--perplexity", "--text", long_text, "--window", "8"), 3, BROKEN);
    cli_expect(COMMAND("eval", "--predictors", "--text", long_text, "--window", "9"), 2,
               "error[E_CTX]");
    cli_expect(COMMAND("eval", "--predictors", "--text", short_text, "--window", "8"), 2,
               "error[E_PROMPT_EMPTY]");
    cli_expect(COMMAND("eval", "--predictors", "--text", long_text, "--window", "8"), 3, BROKEN);
}

int main(int argc, char **argv)
{
    cli_init(argc, argv);
    RUN(flags);
    RUN(texts);
    return 0;
}
