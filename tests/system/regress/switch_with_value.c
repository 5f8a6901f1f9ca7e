/*
 * Symptom: `--uring off` was refused with "'off' is not a flag", though every other setting takes
 * its value that way.
 * Cause: a flag that may stand alone took a value after '=' only.
 */
#include "tests/system/cli/cli.h"
#include "tests/support/test.h"

#define RUN_WITH(...)                                          \
    (&(const struct cli){                                      \
        .args = { "info", "--model", CLI_MODEL, __VA_ARGS__ }, \
    })

int main(int argc, char **argv)
{
    cli_init(argc, argv);
    cli_expect(RUN_WITH("--uring", "off"), 0, NULL);
    cli_expect(RUN_WITH("--uring", "on", "--deterministic"), 0, NULL);
    cli_expect(RUN_WITH("--deterministic", "--uring=off"), 0, NULL);
    cli_expect(RUN_WITH("--uring", "sometimes"), 2, "'sometimes' is not a flag");
    return 0;
}
