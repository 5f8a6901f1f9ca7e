/*
 * Symptom: `--top-p 0`, an empty `--stop` and files that cannot be written were refused only after
 * all weights had been read. Cause: what is checked when it is used was not looked at before.
 */
#include "tests/cli/cli.h"
#include "tests/test.h"

/* A model that is not there shows what is looked at first. */
#define RUN_WITH(flag, value)                                                       \
    (&(const struct cli){                                                           \
        .args = { "run", "--model", "/nonexistent", "--prompt", "a", flag, value }, \
    })

int main(int argc, char **argv)
{
    cli_init(argc, argv);
    cli_expect(RUN_WITH("--top-p", "0"), 2, "error[E_SAMPLING]: top-p 0 is not above 0");
    cli_expect(RUN_WITH("--stop", ""), 2, "error[E_STOP_EMPTY]");
    cli_expect(RUN_WITH("--trace", "/nonexistent/t"), 6, "error[E_OUTPUT]");
    cli_expect(RUN_WITH("--logits-out", "/nonexistent/t"), 6, "error[E_OUTPUT]");
    cli_expect(RUN_WITH("--timeline", "/nonexistent/t"), 6, "error[E_OUTPUT]");
    cli_expect(RUN_WITH("--trace", "/dev/null"), 3, "error[E_CKPT_DIR]");
    cli_expect(RUN_WITH("--top-p", "1"), 3, "error[E_CKPT_DIR]");
    return 0;
}
