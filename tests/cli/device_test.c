/*
 * --device: which one a run uses and what it says of it, on the CUDA driver without a device, whose
 * folder is in FAKECUDA_DIR.
 */
#include "tests/cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/test.h"

static char driver[4200];

static json_t *run_on(const char *device, const char *budget)
{
    const struct cli cli = {
        .args = { "run", "--model", CLI_MODEL, "--prompt", "sort 5 3 9 1 ->", "--max-tokens", "6",
                  "--ctx", "64", "--json", "--device", device, "--budget", budget },
        .env = { driver },
    };

    return cli_json(&cli);
}

static const char *text_of(json_t *json, const char *key)
{
    const char *text = json_string_value(json_object_get(json, key));

    CHECK(text != NULL);
    return text;
}

static void a_device_gives_the_cpus_text_and_is_named(void)
{
    json_t *cpu = run_on("cpu", "all"), *cuda = run_on("cuda", "all"), *small, *any;

    small = run_on("cuda:0", "50%");
    any = run_on("auto", "all");
    CHECK_STR(text_of(cpu, "device"), "cpu");
    CHECK_STR(text_of(cuda, "device"), "Fake device 0");
    CHECK_STR(text_of(any, "device"), "Fake device 0");
    CHECK_STR(text_of(cuda, "text"), text_of(cpu, "text"));
    CHECK_STR(text_of(small, "text"), text_of(cpu, "text"));
    CHECK_STR(text_of(any, "text"), text_of(cpu, "text"));
    json_decref(cpu);
    json_decref(cuda);
    json_decref(small);
    json_decref(any);
}

static void a_device_that_is_not_there_is_refused(void)
{
    const struct cli third = { .args = { "run", "--model", CLI_MODEL, "--prompt", "a", "--device",
                                         "cuda:3" },
                               .env = { driver } };
    const struct cli no_driver = { .args = { "run", "--model", CLI_MODEL, "--prompt", "a",
                                             "--device", "cuda" },
                                   .env = { driver, "FAKECUDA_INIT=100" } };

    cli_expect(&third, 2, "error[E_CUDA_DEVICE]: there is no CUDA device 3; the driver sees 1");
    cli_expect(&no_driver, 2, "error[E_CUDA_OFF]: CUDA is off");
}

static void auto_without_a_device_says_why_if_asked(void)
{
    const struct cli cli = { .args = { "run", "--model", CLI_MODEL, "--prompt", "a", "--max-tokens",
                                       "1" },
                             .env = { driver, "FAKECUDA_INIT=100", "MOEPAGER_LOG=info" } };
    struct cli_result result;

    cli_run(&cli, &result);
    CHECK_EQ(result.exit_code, 0);
    CHECK(strstr(result.err, "the CPU computes: CUDA is off") != NULL);
    cli_free(&result);
}

static void the_timeline_has_a_track_for_each_executor(void)
{
    const char *path = cli_path("timeline.json");
    const struct cli cli = { .args = { "run", "--model", CLI_MODEL, "--prompt", "a", "--max-tokens",
                                       "2", "--ctx", "64", "--device", "cuda", "--budget", "50%",
                                       "--timeline", path },
                             .env = { driver } };
    struct cli_result result;
    size_t bytes;
    char *text;

    cli_run(&cli, &result);
    CHECK_EQ(result.exit_code, 0);
    CHECK(strstr(result.err, "cuda:0 Fake device 0") != NULL);
    cli_free(&result);
    text = cli_read(path, &bytes);
    CHECK(strstr(text, "\"gpu\"") != NULL && strstr(text, "\"gpu in place\"") != NULL);
    CHECK(strstr(text, "\"cpu\"") != NULL && strstr(text, "\"forward\"") != NULL);
    free(text);
}

int main(int argc, char **argv)
{
    cli_init(argc, argv);
    CHECK(getenv("FAKECUDA_DIR") != NULL);
    snprintf(driver, sizeof(driver), "LD_LIBRARY_PATH=%s", getenv("FAKECUDA_DIR"));
    RUN(a_device_gives_the_cpus_text_and_is_named);
    RUN(a_device_that_is_not_there_is_refused);
    RUN(auto_without_a_device_says_why_if_asked);
    RUN(the_timeline_has_a_track_for_each_executor);
    return 0;
}
