/*
 * Symptom: `bench` with more tokens than the context holds said "generated 100" and measured 13,
 * with exit code 0.
 * Cause: generation ends by itself when the context is full, and the report printed what was asked.
 */
#include "tests/system/cli/cli.h"
#include "tests/support/test.h"

#define BENCH(prompt, generated)                                                           \
    (&(const struct cli){                                                                  \
        .args = { "bench", "--model", CLI_MODEL, "--ctx", "32", "--repeat", "1", "--json", \
                  "--prompt-tokens", prompt, "--gen-tokens", generated },                  \
    })

static void what_does_not_fit_is_refused(void)
{
    static const char text[] = "do not fit into the context of 32; raise --ctx";

    cli_expect(BENCH("24", "10"), 2, text);
    cli_expect(BENCH("32", "1"), 2, text);
    cli_expect(BENCH("16777216", "16777216"), 2, text);
    cli_expect(
        &(const struct cli){ .args = { "bench", "--model", CLI_MODEL, "--prompt-tokens", "2048" } },
        2, "do not fit into the context of 2048; lower --prompt-tokens");
}

/* The last token is chosen and not processed, so it needs no position. */
static void what_just_fits_is_generated(void)
{
    json_t *json = cli_json(BENCH("24", "9"));
    json_t *run = json_array_get(json_object_get(json, "runs"), 0);

    CHECK_EQ(json_integer_value(json_object_get(run, "generated_tokens")), 9);
    json_decref(json);
}

int main(int argc, char **argv)
{
    cli_init(argc, argv);
    RUN(what_does_not_fit_is_refused);
    RUN(what_just_fits_is_generated);
    return 0;
}
