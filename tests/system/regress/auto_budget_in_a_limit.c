/*
 * Symptom: in a control group of 300 MiB `--budget auto` took two slots, without a word, where
 * `--budget 10%`, twenty-five times as much, ran; and `ulimit -v` did not count at all.
 * Cause: 256 MiB were left for the rest of the process, however little there was.
 */
#include "tests/system/cli/cli.h"
#include "tests/support/test.h"

#include <string.h>

#define MIB ((size_t)1 << 20)
#define FULL_BYTES (8 * 32 * 73728)
#define SMALLEST_BYTES (2 * 73728)

/* How much is enough differs between machines, so the limit is tried from little upwards: there is
 * one at which a part of the experts fits, and the run that takes this part ends well. */
int main(int argc, char **argv)
{
    unsigned parts = 0, reported = 0;

    cli_init(argc, argv);
    if (cli_is_sanitized())
        SKIP("a sanitizer needs more address space than any limit leaves");
    for (size_t mib = 24; mib <= 320; mib += 4) {
        const struct cli cli = { .args = { "run", "--model", CLI_MODEL, "--prompt", "def",
                                           "--max-tokens", "4", "--json", "--threads", "2" },
                                 .address_space_bytes = mib * MIB };
        struct cli_result result;
        json_error_t error;
        json_t *json;
        long long budget;

        cli_run(&cli, &result);
        json = json_loadb(result.out, result.out_bytes, 0, &error);
        budget = json_integer_value(json_object_get(json, "budget_bytes"));
        if (json != NULL) {
            CHECK(budget >= SMALLEST_BYTES && budget <= FULL_BYTES);
            parts += budget > SMALLEST_BYTES && budget < FULL_BYTES;
            if (budget == SMALLEST_BYTES) {
                CHECK(strstr(result.err, "--budget auto takes the smallest budget") != NULL);
                reported++;
            } else {
                CHECK(strstr(result.err, "--budget auto") == NULL);
            }
        }
        json_decref(json);
        cli_free(&result);
    }
    fprintf(stderr, "    %u with a part of the experts, %u with the least\n", parts, reported);
    CHECK(parts > 0);
    return 0;
}
