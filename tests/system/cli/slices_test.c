/*
 * Experts in slices as a person meets them: `repack --slices`, the copy in `info`, `run`, `bench`
 * and `repack`, and `--slices` of `replay` and `simulate`; each wrong number has its sentence.
 */
#include "tests/system/cli/cli.h"

#include <string.h>

#include "tests/support/test.h"

#define ARGS(...)                \
    (&(const struct cli){        \
        .args = { __VA_ARGS__ }, \
    })
#define PROMPT "--prompt", "def main():", "--max-tokens", "12", "--ignore-eos"

static char sliced[4200], whole[4200], trace[4200]; /* four slices; made of it again; of a run */

static json_int_t number(const json_t *root, const char *key)
{
    CHECK(json_is_integer(json_object_get(root, key)));
    return json_integer_value(json_object_get(root, key));
}

static void repack_says_what_it_made(void)
{
    struct cli_result repacked;
    json_t *json =
        cli_json(ARGS("repack", "--model", CLI_MODEL, "--slices", "4", "--out", sliced, "--json"));

    CHECK_EQ(number(json, "slices_before"), 1);
    CHECK_EQ(number(json, "slices"), 4);
    CHECK(json_is_false(json_object_get(json, "same_bits_as_whole")));
    json_decref(json);

    cli_run(ARGS("repack", "--model", sliced, "--slices", "2", "--out", cli_path("two")),
            &repacked);
    CHECK_EQ(repacked.exit_code, 0);
    CHECK(strstr(repacked.out,
                 "each expert in 2 slices, for moepager only; the last bits of results "
                 "differ from those of whole experts\n") != NULL);
    cli_free(&repacked);

    json = cli_json(ARGS("repack", "--model", sliced, "--out", whole, "--json"));
    CHECK_EQ(number(json, "slices_before"), 4);
    CHECK_EQ(number(json, "slices"), 1);
    json_decref(json);
}

static void wrong_numbers_are_refused(void)
{
    const char *out = cli_path("never");

#define REPACK(n) ARGS("repack", "--model", CLI_MODEL, "--slices", n, "--out", out)
    cli_expect(REPACK("17"), 2, "error[E_OPTION]: option '--slices': got '17', need");
    cli_expect(REPACK("-1"), 2, "error[E_OPTION]: option '--slices': got '-1', need");
    cli_expect(REPACK("four"), 2, "error[E_OPTION]: option '--slices': got 'four', need");
    cli_expect(REPACK("15"), 2,
               "error[E_SLICES]: experts of 96 channels cannot have 15 slices, at most 16 that all "
               "have some; choose another --slices");
    cli_expect(ARGS("repack", "--model", CLI_MODEL, "--out", out, "--slices"), 2,
               "error[E_USAGE]: '--slices' needs a value");
    cli_expect(ARGS("run", "--model", sliced, PROMPT, "--slices", "2"), 2,
               "error[E_SLICES]: --slices 2: the experts of");
    cli_expect(ARGS("run", "--model", sliced, PROMPT, "--slices", "1"), 2, "are stored in 4;");
    cli_expect(ARGS("run", "--model", CLI_MODEL, PROMPT, "--slices", "4"), 2,
               "are stored in 1; write a copy with: moepager repack --model DIR --slices 4");
    cli_expect(ARGS("replay", trace, "--budget", "25%", "--slices", "17"), 2,
               "error[E_OPTION]: option '--slices': got '17', need");
    cli_expect(ARGS("simulate", "--machine", "h200", "--model", "mixtral-8x7b", "--slices", "17"),
               2, "error[E_OPTION]: option '--slices': got '17', need");
}

static json_t *run(const char *model, const char *profile, const char *budget)
{
    return cli_json(
        ARGS("run", "--model", model, PROMPT, "--profile", profile, "--budget", budget, "--json"));
}

static const char *text_of(const json_t *run)
{
    CHECK(json_is_string(json_object_get(run, "text")));
    return json_string_value(json_object_get(run, "text"));
}

/* Reported only where there are slices. */
static json_int_t partial_hits(const json_t *report)
{
    return json_integer_value(json_object_get(json_object_get(report, "counters"), "partial_hits"));
}

/* One text at every budget; MoEpic's parts of experts are found. */
static void a_sliced_model_runs(void)
{
    json_t *all = run(sliced, "lru", "all"), *some = run(sliced, "moepic", "25%");
    json_t *again = run(whole, "lru", "25%"), *first = run(CLI_MODEL, "lru", "25%");
    json_t *info = cli_json(ARGS("info", "--model", sliced, "--json"));

    CHECK(strlen(text_of(all)) > 5);
    CHECK_STR(text_of(some), text_of(all));
    CHECK_STR(text_of(again), text_of(first));
    CHECK(partial_hits(some) > 0);
    CHECK_EQ(partial_hits(first), 0);
    CHECK_EQ(number(json_object_get(info, "model"), "slices"), 4);
    json_decref(all);
    json_decref(some);
    json_decref(again);
    json_decref(first);
    json_decref(info);
}

static json_t *replayed_row(const char *slices)
{
    json_t *json = cli_json(ARGS("replay", trace, "--profile", "moepic", "--budget", "25%",
                                 "--json", "--slices", slices));
    json_t *row = json_incref(json_array_get(json_object_get(json, "rows"), 0));

    json_decref(json);
    return row;
}

/* The trace of a run on slices is one of whole experts, to be replayed in any slices. */
static void its_trace_is_replayed(void)
{
    json_t *in_four, *in_one;

    json_decref(cli_json(ARGS("bench", "--model", sliced, "--prompt-tokens", "12", "--gen-tokens",
                              "24", "--repeat", "1", "--json", "--trace", trace)));
    in_four = replayed_row("4");
    in_one = replayed_row("1");
    CHECK(number(in_four, "partial_hits") > 0);
    CHECK(json_object_get(in_one, "partial_hits") == NULL);
    CHECK_EQ(number(in_one, "bytes_read") % 73728, 0);
    CHECK(number(in_four, "bytes_read") != number(in_one, "bytes_read"));
    json_decref(in_four);
    json_decref(in_one);
}

/* MoEpic has sixteen slices where nothing else is said, all others whole experts. */
static void simulated_experts_have_slices(void)
{
    static const struct {
        const char *slices;
        json_int_t moepic, lru;
    } cases[] = { { "0", 16, 1 }, { "4", 4, 4 }, { "1", 1, 1 } };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        json_t *json =
            cli_json(ARGS("simulate", "--machine", "rtx3090-epyc7532", "--model", "mixtral-8x7b",
                          "--profile", "moepic,lru", "--budget", "25%", "--prompt-tokens", "4",
                          "--gen-tokens", "4", "--json", "--slices", cases[i].slices));
        json_t *rows = json_object_get(json, "rows"), *moepic = json_array_get(rows, 0);

        CHECK_EQ(json_array_size(rows), 2);
        CHECK_EQ(number(moepic, "slices"), cases[i].moepic);
        CHECK_EQ(number(json_array_get(rows, 1), "slices"), cases[i].lru);
        CHECK_EQ(partial_hits(moepic) > 0, cases[i].moepic > 1);
        json_decref(json);
    }
}

int main(int argc, char **argv)
{
    cli_init(argc, argv);
    snprintf(sliced, sizeof(sliced), "%s", cli_path("sliced"));
    snprintf(whole, sizeof(whole), "%s", cli_path("whole"));
    snprintf(trace, sizeof(trace), "%s", cli_path("trace"));
    RUN(repack_says_what_it_made);
    RUN(a_sliced_model_runs);
    RUN(its_trace_is_replayed);
    RUN(wrong_numbers_are_refused);
    RUN(simulated_experts_have_slices);
    return 0;
}
