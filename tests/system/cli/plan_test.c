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

/* Of a model that is there, sizes are those of its files; a run of it gives times and routing. */
static void a_model_gives_its_own_sizes(void)
{
    json_t *info = cli_json(ARGS("info", "--model", CLI_MODEL, "--json"));
    json_t *plan = cli_json(ARGS("plan", "--model", CLI_MODEL, "--gen-tokens", "4", "--budget",
                                 "100%", "--profile", "lru", "--json"));
    json_t *row = json_array_get(json_object_get(plan, "rows"), 0), *step;

    CHECK(
        fabs(number(row, "budget_bytes") / number(json_object_get(info, "model"), "expert_bytes") -
             1) < 0.01);
    CHECK(number(plan, "measured_disk_gbps") > 0);
    CHECK_STR(json_string_value(json_object_get(plan, "routing")), "measured");
    CHECK_STR(json_string_value(json_object_get(plan, "machine")), "this machine");
    step = json_object_get(plan, "measured_step_ms");
    CHECK(number(step, "none_read") > 0);
    CHECK(number(step, "one_per_layer") >= number(step, "none_read"));
    CHECK(number(step, "all_read") >= number(step, "one_per_layer"));
    /* With all experts resident, a token takes what it took: attention to four tokens costs little.
     */
    CHECK(fabs(number(row, "simulated_tpot_ms") / number(step, "none_read") - 1) < 0.2);
    CHECK(number(row, "runs") >= 1 && number(row, "hit_rate") == 1);
    json_decref(plan);
    plan = cli_json(ARGS("plan", "--model", CLI_MODEL, "--gen-tokens", "4", "--budget", "100%",
                         "--profile", "lru", "--machine", "host-disk", "--json"));
    CHECK_STR(json_string_value(json_object_get(plan, "routing")), "synthetic");
    CHECK(json_object_get(plan, "measured_step_ms") == NULL);
    CHECK(number(plan, "measured_disk_gbps") == 0);
    json_decref(plan);
    json_decref(info);
}

/* Of a budget between two that were run, the simulated time is scaled as theirs were. */
static void what_was_run_scales_the_rest(void)
{
    json_t *plan = cli_json(ARGS("plan", "--model", CLI_MODEL, "--gen-tokens", "8", "--budget",
                                 "10%,100%", "--profile", "lru", "--json"));
    json_t *rows = json_object_get(plan, "rows"), *least;
    double scale[2], sum = 0, now;
    char text[32];

    for (size_t i = 0; i < 2; i++)
        sum += number(json_array_get(rows, i), "tpot_ms");
    json_decref(plan);
    snprintf(text, sizeof(text), "%.3fms", sum / 2);
    plan = cli_json(ARGS("plan", "--model", CLI_MODEL, "--gen-tokens", "8", "--budget", "10%,100%",
                         "--profile", "lru", "--target-tpot", text, "--json"));
    rows = json_object_get(plan, "rows");
    for (size_t i = 0; i < 2; i++) {
        json_t *row = json_array_get(rows, i);

        CHECK(number(row, "runs") >= 1);
        scale[i] = number(row, "tpot_ms") / number(row, "simulated_tpot_ms");
    }
    least = json_object_get(plan, "least");
    if (json_is_true(json_object_get(least, "possible"))) { /* if the machine was as fast again */
        now = number(least, "tpot_ms") / number(least, "simulated_tpot_ms");
        CHECK(now > 0.999 * fmin(scale[0], scale[1]) && now < 1.001 * fmax(scale[0], scale[1]));
    }
    json_decref(plan);
}

/* The bundled model has 18 MiB of experts: a table in GiB would be one of zeros. */
static void sizes_have_the_unit_that_fits(void)
{
    static const char *const wanted[] = { "\n    50.0    9.0 MiB", "\n   100.0   18.0 MiB",
                                          "token: budget 144.0 KiB (0.8 %), ",
                                          " MiB of it for all but experts" };
    struct cli_result result;

    cli_run(ARGS("plan", "--model", CLI_MODEL, "--gen-tokens", "2", "--budget", "50%,100%",
                 "--target-tpot", "10s", "--profile", "lru"),
            &result);
    CHECK_EQ(result.exit_code, 0);
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
        CHECK(strstr(result.out, wanted[i]) != NULL);
    cli_free(&result);
}

/* Policies warn of small budgets; nobody has chosen these. */
static void simulated_budgets_warn_of_nothing(void)
{
    cli_expect(ARGS("plan", "--model", CLI_MODEL, "--gen-tokens", "2", "--budget", "2%,4%"), 0,
               NULL);
    cli_expect(ARGS(PLAN, "--budget", "2%,4%"), 0, NULL);
}

/* Where there is too little memory to run a model, it is planned all the same, and the plan says
 * so. How much is too little differs between machines. */
static void what_does_not_run_here_is_planned(void)
{
    unsigned planned = 0;

    if (cli_is_sanitized())
        return; /* needs more address space than any limit leaves */
    for (size_t mib = 24; mib <= 64 && planned == 0; mib += 4) {
        const struct cli cli = { .args = { "plan", "--model", CLI_MODEL, "--gen-tokens", "2",
                                           "--budget", "50%", "--profile", "lru", "--threads", "1",
                                           "--json" },
                                 .address_space_bytes = mib << 20 };
        struct cli_result result;
        json_t *plan;

        cli_run(&cli, &result);
        plan = json_loadb(result.out, result.out_bytes, 0, NULL);
        if (plan != NULL && json_object_get(plan, "not_measured") != NULL) {
            CHECK_STR(json_string_value(json_object_get(plan, "machine")), "host-disk");
            CHECK_STR(json_string_value(json_object_get(plan, "routing")), "synthetic");
            CHECK_EQ(result.exit_code, 0);
            planned++;
        }
        json_decref(plan);
        cli_free(&result);
    }
    CHECK(planned > 0);
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
    RUN(what_was_run_scales_the_rest);
    RUN(sizes_have_the_unit_that_fits);
    RUN(simulated_budgets_warn_of_nothing);
    RUN(what_does_not_run_here_is_planned);
    RUN(wrong_arguments_are_explained);
    return 0;
}
