/*
 * Symptom: `bench` with the default of three runs showed 3.22 ms per step beside 742 tokens/s, and
 * below it an unnamed report with other figures.
 * Cause: each column was a median of its own over the warm runs, a mean where these are two, and
 * the report was that of the last run.
 */
#include "tests/system/cli/cli.h"
#include "tests/support/test.h"

#include <math.h>
#include <string.h>

#define BENCH "bench", "--model", CLI_MODEL, "--prompt-tokens", "8", "--gen-tokens", "8"

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    CHECK(json_is_number(value));
    return json_number_value(value);
}

static void json_agrees(void)
{
    static const char *const keys[] = { "ttft_ms",  "tpot_ms",         "tokens_per_s",
                                        "hit_rate", "exposed_wait_ms", "prefill_tokens_per_s" };
    json_t *json = cli_json(&(const struct cli){ .args = { BENCH, "--json", "--repeat", "5" } });
    const json_t *median = json_object_get(json, "median"), *runs = json_object_get(json, "runs");
    const size_t at = (size_t)number(median, "run");
    const json_t *run = json_array_get(runs, at);
    unsigned faster = 0, slower = 0;

    CHECK(at >= 1 && at < 5);
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        CHECK(number(median, keys[i]) == number(run, keys[i]));
    CHECK(fabs(number(median, "tokens_per_s") * number(median, "tpot_ms") - 1000) < 1e-3);
    for (size_t i = 1; i < 5; i++) {
        const double ms = number(json_array_get(runs, i), "tpot_ms");

        faster += ms < number(run, "tpot_ms");
        slower += ms > number(run, "tpot_ms");
    }
    CHECK(faster <= 2 && slower <= 1);
    json_decref(json);
}

/* The line and the report below it are of one run, which is named. */
static void text_agrees(void)
{
    struct cli_result result;
    double prefill, decode, ms, report_ms, report_decode;
    unsigned run, runs;
    const char *at;

    cli_run(&(const struct cli){ .args = { BENCH } }, &result);
    CHECK_EQ(result.exit_code, 0);
    at = strstr(result.out, "\nmedian  ");
    CHECK(at != NULL);
    CHECK_EQ(sscanf(at, " median %lf %lf %lf", &prefill, &decode, &ms), 3);
    CHECK(fabs(decode * ms / 1000 - 1) < 0.01);
    at = strstr(result.out, "median is run ");
    CHECK(at != NULL);
    CHECK_EQ(sscanf(at, "median is run %u of %u", &run, &runs), 2);
    CHECK(run >= 2 && run <= 3 && runs == 3);
    at = strstr(at, ", then ");
    CHECK(at != NULL);
    CHECK_EQ(sscanf(at, ", then %lf ms per step (%lf tokens/s)", &report_ms, &report_decode), 2);
    CHECK(fabs(report_ms - ms) < 0.01 && fabs(report_decode - decode) < 0.11);
    cli_free(&result);
}

int main(int argc, char **argv)
{
    cli_init(argc, argv);
    RUN(json_agrees);
    RUN(text_agrees);
    return 0;
}
