/*
 * `moepager plan`: the table against `moepager simulate`, the least budget, and what is refused.
 */
#include "tests/system/cli/cli.h"

#include <math.h>
#include <string.h>

#include "tests/support/test.h"

#define ARGS(...)                \
    (&(const struct cli){        \
        .args = { __VA_ARGS__ }, \
    })
#define PLAN                                                                                 \
    "plan", "--model", "qwen1.5-moe", "--prompt-tokens", "4", "--gen-tokens", "8", "--json", \
        "--profile", "lru"

static double number(json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);

    CHECK(json_is_number(value));
    return json_number_value(value);
}

/* A row is what the simulator says of the same run. */
static void rows_are_simulated_runs(void)
{
    json_t *plan = cli_json(ARGS(PLAN, "--budget", "20%,60%"));
    json_t *run = cli_json(ARGS("simulate", "--machine", "host-disk", "--model", "qwen1.5-moe",
                                "--profile", "lru", "--budget", "60%", "--prompt-tokens", "4",
                                "--gen-tokens", "8", "--warm", "64", "--json"));
    json_t *rows = json_object_get(plan, "rows"), *row = json_array_get(rows, 1);
    json_t *simulated = json_array_get(json_object_get(run, "rows"), 0);
    static const char *const keys[] = { "budget_bytes", "ttft_ms", "tpot_ms", "tokens_per_s",
                                        "hit_rate" };

    CHECK_EQ(json_array_size(rows), 2);
    CHECK(json_is_true(json_object_get(plan, "simulated")));
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        CHECK(number(row, keys[i]) == number(simulated, keys[i]));
    CHECK(number(row, "memory_bytes") == number(row, "budget_bytes") + number(plan, "fixed_bytes"));
    CHECK(number(json_array_get(rows, 0), "tpot_ms") > number(row, "tpot_ms"));
    CHECK(json_array_size(json_object_get(plan, "gpus")) >= 5);
    json_decref(plan);
    json_decref(run);
}

/* The least budget reaches the target that lies between two rows, and is between them. */
static void the_least_budget_reaches_the_target(void)
{
    json_t *plan = cli_json(ARGS(PLAN, "--budget", "20%,60%"));
    json_t *rows = json_object_get(plan, "rows"), *least;
    const double low = number(json_array_get(rows, 0), "budget_bytes");
    const double high = number(json_array_get(rows, 1), "budget_bytes");
    const double target =
        (number(json_array_get(rows, 0), "tpot_ms") + number(json_array_get(rows, 1), "tpot_ms")) /
        2;
    char text[32];

    json_decref(plan);
    snprintf(text, sizeof(text), "%.3fms", target);
    plan = cli_json(ARGS(PLAN, "--budget", "20%,60%", "--target-tpot", text));
    least = json_object_get(plan, "least");
    CHECK(number(least, "tpot_ms") <= target);
    CHECK(number(least, "budget_bytes") > low && number(least, "budget_bytes") < high);
    json_decref(plan);
    plan = cli_json(ARGS(PLAN, "--budget", "20%", "--target-tpot", "0.001ms"));
    CHECK(json_is_false(json_object_get(json_object_get(plan, "least"), "possible")));
    json_decref(plan);
}

/* Of a model that is there, sizes are those of its files, and the disk is measured. */
static void a_model_gives_its_own_sizes(void)
{
    json_t *info = cli_json(ARGS("info", "--model", CLI_MODEL, "--json"));
    json_t *plan = cli_json(ARGS("plan", "--model", CLI_MODEL, "--gen-tokens", "4", "--budget",
                                 "100%", "--profile", "lru", "--json"));
    json_t *row = json_array_get(json_object_get(plan, "rows"), 0);

    CHECK(
        fabs(number(row, "budget_bytes") / number(json_object_get(info, "model"), "expert_bytes") -
             1) < 0.01);
    CHECK(number(plan, "measured_disk_gbps") > 0);
    json_decref(plan);
    json_decref(info);
}

static void wrong_arguments_are_explained(void)
{
    cli_expect(ARGS("plan"), 2, "no model: give --model");
    cli_expect(ARGS(PLAN, "--target-tpot", "5x"), 2, "--target-tpot: got '5x', need a time");
    cli_expect(ARGS(PLAN, "--budget", "5y"), 2, "--budget: got '5y', need a size");
    cli_expect(ARGS(PLAN, "--machine", "none-such"), 2, "unknown description 'none-such'");
    cli_expect(ARGS(PLAN, "--profile", "lru,nothing"), 2, "unknown profile 'nothing'");
}

int main(int argc, char **argv)
{
    cli_init(argc, argv);
    RUN(rows_are_simulated_runs);
    RUN(the_least_budget_reaches_the_target);
    RUN(a_model_gives_its_own_sizes);
    RUN(wrong_arguments_are_explained);
    return 0;
}
