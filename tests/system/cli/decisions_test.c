/*
 * Decision logs of real runs: each profile, with and without --deterministic, is decided again in
 * the same way, and a log with another result is not.
 */
#include <string.h>
#include <unistd.h>

#include "tests/system/cli/cli.h"
#include "tests/support/test.h"

#define ARGS(...)                \
    (&(const struct cli){        \
        .args = { __VA_ARGS__ }, \
    })

#define BENCH "bench", "--model", CLI_MODEL, "--prompt-tokens", "9", "--gen-tokens", "12", "--json"

static void replay_equals(const char *log, const char *kind, const char *policy)
{
    json_t *json = cli_json(ARGS("replay", log, "--json"));
    const char *name = json_string_value(json_object_get(json_object_get(json, "policies"), kind));

    CHECK(json_is_true(json_object_get(json, "equal")));
    CHECK(json_integer_value(json_object_get(json, "results")) > 300);
    CHECK(json_integer_value(json_object_get(json, "calls")) >
          json_integer_value(json_object_get(json, "results")));
    CHECK(policy == NULL || !strcmp(name, policy));
    json_decref(json);
}

/* False: this model or this program lacks what the profile is about, which it said. */
static bool bench_profile(const char *profile, const char *budget, const char *log,
                          const char *more)
{
    struct cli_result result;
    bool ran;

    cli_run(ARGS(BENCH, "--repeat", "1", "--profile", profile, "--budget", budget, "--decision-log",
                 log, more),
            &result);
    ran = result.exit_code == 0;
    if (!ran) {
        fprintf(stderr, "    cannot run %s: %s", profile, result.err);
        CHECK(result.exit_code == 2 && access(log, F_OK) != 0);
    }
    cli_free(&result);
    return ran;
}

/* Profiles as `info` lists them, so that new ones are tried too. */
static void every_profile_is_decided_again_in_the_same_way(void)
{
    json_t *info = cli_json(ARGS("info", "--json")), *profile;
    char log[4200];
    unsigned ran = 0;
    size_t i;

    snprintf(log, sizeof(log), "%s", cli_path("log"));
    json_array_foreach(json_object_get(info, "profiles"), i, profile)
    {
        const char *name = json_string_value(profile);

        if (!bench_profile(name, "20%", log, NULL))
            continue;
        replay_equals(log, "route", NULL);
        CHECK(bench_profile(name, "8%", log, "--deterministic"));
        replay_equals(log, "route", NULL);
        CHECK_EQ(unlink(log), 0);
        ran++;
    }
    CHECK(ran >= 2);
    json_decref(info);
}

/* Options count, and are in the log: the replay does not look at the environment. */
static void options_come_from_the_log(void)
{
    const char *log = cli_path("options");
    struct cli replay = { .args = { "replay", log, "--json" },
                          .env = { "MOEPAGER_TOP_RANKS=1", "MOEPAGER_EVICT=lfu" } };
    char *text;

    json_decref(cli_json(ARGS(BENCH, "--repeat", "1", "--budget", "25%", "--top-ranks", "3",
                              "--evict", "random", "--seed", "42", "--decision-log", log)));
    text = cli_read(log, NULL);
    CHECK(strstr(text, "\nprefetch top\noption RANKS 3\n") != NULL);
    CHECK(strstr(text, "\nseed 42\n") != NULL);
    free(text);
    json_decref(cli_json(&replay));
    replay_equals(log, "evict", "random");
}

/* The same run with and without a log gives the same text, and two deterministic logs are equal. */
static void a_log_changes_nothing(void)
{
    const char *a = cli_path("a"), *b = cli_path("b");
    struct cli_result bare, logged;
    char *first, *second;
    size_t first_bytes, second_bytes;

    cli_run(ARGS("run", "--model", CLI_MODEL, "--prompt", "def f(", "--max-tokens", "20",
                 "--budget", "20%", "--deterministic"),
            &bare);
    for (int i = 0; i < 2; i++) {
        cli_run(ARGS("run", "--model", CLI_MODEL, "--prompt", "def f(", "--max-tokens", "20",
                     "--budget", "20%", "--deterministic", "--decision-log", i == 0 ? a : b),
                &logged);
        CHECK_EQ(logged.exit_code, 0);
        CHECK_STR(logged.out, bare.out);
        cli_free(&logged);
    }
    cli_free(&bare);
    first = cli_read(a, &first_bytes);
    second = cli_read(b, &second_bytes);
    CHECK_EQ(first_bytes, second_bytes);
    CHECK_EQ(memcmp(first, second, first_bytes), 0);
    free(first);
    free(second);
}

#define PLACES 40

/* A bit of a byte somewhere: most bytes are scores, of which many change no result, so it is tried
 * all over the log; which is the same in every run. */
static void a_changed_log_is_not_believed(void)
{
    struct cli_result result;
    unsigned refused = 0;
    size_t bytes;
    char log[4200], *text;

    snprintf(log, sizeof(log), "%s", cli_path("changed"));
    json_decref(cli_json(
        ARGS(BENCH, "--repeat", "1", "--budget", "15%", "--deterministic", "--decision-log", log)));
    text = cli_read(log, &bytes);
    for (size_t i = 0; i < PLACES; i++) {
        const size_t at = bytes / 4 + i * (bytes / 2 / PLACES);

        text[at] ^= 1;
        cli_write(log, text, bytes);
        text[at] ^= 1;
        cli_run(ARGS("replay", log), &result);
        CHECK(result.exit_code == 0 || result.exit_code == 3);
        if (result.exit_code == 3) {
            CHECK(strstr(result.err, "error[E_DECISION_") != NULL);
            CHECK(strstr(result.err, ", call ") != NULL);
            refused++;
        }
        cli_free(&result);
    }
    printf("    %u of %d refused\n", refused, PLACES);
    CHECK(refused > 0);
    free(text);
}

static void wrong_uses_are_explained(void)
{
    const char *log = cli_path("use");

    cli_expect(ARGS("run", "--model", CLI_MODEL, "--prompt", "a", "--max-tokens", "1", "--json",
                    "--decision-log", "/nonexistent/x"),
               6, "/nonexistent/x");
    cli_expect(&(const struct cli){ .args = { "run", "--model", CLI_MODEL, "--prompt", "a",
                                              "--max-tokens", "0", "--decision-log", log } },
               2, "--max-tokens: got '0'");
    CHECK(access(log, F_OK) != 0);
    json_decref(cli_json(ARGS(BENCH, "--repeat", "1", "--decision-log", log)));
    cli_expect(ARGS("replay", log, "--budget", "25%"), 2, "with its own policies");
    cli_expect(ARGS("replay", log, "--csv"), 2, "with its own policies");
}

int main(int argc, char **argv)
{
    cli_init(argc, argv);
    RUN(every_profile_is_decided_again_in_the_same_way);
    RUN(options_come_from_the_log);
    RUN(a_log_changes_nothing);
    RUN(a_changed_log_is_not_believed);
    RUN(wrong_uses_are_explained);
    return 0;
}
