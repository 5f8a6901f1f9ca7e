#ifndef MP_TESTS_DEVICE_H
#define MP_TESTS_DEVICE_H

/* Runs of the program on the driver without a device. */
#include "tests/system/cli/cli.h"

#include "tests/support/test.h"

static char driver[4200];

static inline json_t *run_on(const char *device, const char *budget)
{
    const struct cli cli = {
        .args = { "run", "--model", CLI_MODEL, "--prompt", "sort 5 3 9 1 ->", "--max-tokens", "6",
                  "--ctx", "64", "--json", "--device", device, "--budget", budget },
        .env = { driver },
    };

    return cli_json(&cli);
}

static inline const char *text_of(json_t *json, const char *key)
{
    const char *text = json_string_value(json_object_get(json, key));

    CHECK(text != NULL);
    return text;
}

#endif
