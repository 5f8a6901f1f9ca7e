/*
 * Symptom: `run --trace /dev/full --logits-out logits.npy` left .moepager-PID-N.tmp behind.
 * Cause: when the first of several outputs could not be finished, the others were neither finished
 * nor given up.
 */
#include "tests/system/cli/cli.h"
#include "tests/support/test.h"

#include <sys/stat.h>

int main(int argc, char **argv)
{
    const char *dir = cli_path("outputs"), *logits = cli_path("outputs/logits.npy");
    const struct cli cli = {
        .args = { "run", "--model", CLI_MODEL, "--prompt", "a", "--max-tokens", "1", "--trace",
                  "/dev/full", "--logits-out", logits },
    };
    struct cli_result result;

    cli_init(argc, argv);
    CHECK_EQ(mkdir(dir, 0700), 0);
    cli_run(&cli, &result);
    CHECK_EQ(result.exit_code, 6);
    CHECK(strstr(result.err, "cannot write '/dev/full'") != NULL);
    CHECK_EQ(cli_count_entries(dir), 0);
    cli_free(&result);
    return 0;
}
