/*
 * `moepager replay` as a person uses it: tables, CSV and JSON of a trace that the program itself
 * has written, and what is said about wrong arguments.
 */
#include "tests/system/cli/cli.h"

#include <string.h>

#include "tests/support/test.h"

#define ARGS(...)                \
    (&(const struct cli){        \
        .args = { __VA_ARGS__ }, \
    })

#define EXPERT_BYTES 73728
#define ALL_BYTES (8 * 32 * EXPERT_BYTES)

static const char *plain, *scored; /* traces */

static void make_traces(void)
{
    static char plain_path[4200], scored_path[4200];

    snprintf(plain_path, sizeof(plain_path), "%s", cli_path("plain"));
    snprintf(scored_path, sizeof(scored_path), "%s", cli_path("scored"));
    plain = plain_path;
    scored = scored_path;
    json_decref(
        cli_json(ARGS("bench", "--model", CLI_MODEL, "--prompt-tokens", "12", "--gen-tokens", "24",
                      "--repeat", "1", "--json", "--math", "f32", "--trace", plain)));
    json_decref(cli_json(ARGS("bench", "--model", CLI_MODEL, "--prompt-tokens", "12",
                              "--gen-tokens", "24", "--repeat", "1", "--json", "--math", "f32",
                              "--trace", scored, "--trace-scores")));
}

static void json_has_the_promised_keys(void)
{
    static const char *const names[] = { "belady", "lru", "layer-lfu" };
    static const json_int_t budgets[] = { 36 * EXPERT_BYTES, ALL_BYTES / 4, ALL_BYTES };
    json_t *json = cli_json(ARGS("replay", plain, "--evict", "belady,lru,layer-lfu", "--partition",
                                 "uniform", "--budget", "2592KiB,25%,all", "--json"));
    json_t *rows = json_object_get(json, "rows"), *row;
    size_t i;

    CHECK_EQ(json_integer_value(json_object_get(json, "token_cycle_bytes")), 8 * 4 * EXPERT_BYTES);
    CHECK_EQ(json_array_size(rows), 9);
    json_array_foreach(rows, i, row)
    {
        const double decode = json_number_value(json_object_get(row, "hit_rate_decode"));
        const double bound = json_number_value(json_object_get(row, "bound_hit_rate_decode"));

        CHECK_EQ(json_object_size(row), 7);
        CHECK_STR(json_string_value(json_object_get(row, "evict")), names[i % 3]);
        CHECK_STR(json_string_value(json_object_get(row, "partition")), "uniform");
        CHECK_EQ(json_integer_value(json_object_get(row, "budget_bytes")), budgets[i / 3]);
        CHECK(json_is_real(json_object_get(row, "hit_rate_all")));
        CHECK(json_integer_value(json_object_get(row, "bytes_read")) % EXPERT_BYTES == 0);
        CHECK(decode >= 0 && decode <= bound && bound <= 1);
    }
    json_decref(json);
}

/* The same numbers in each form; the default is every policy. Those that need more than the trace
 * has are named without numbers. */
static void csv_and_table_agree(void)
{
    static const char head[] = "evict,partition,budget_bytes,hit_rate_decode,hit_rate_all,"
                               "bytes_read,bound_hit_rate_decode,profile\nbelady,global,4718592,";
    struct cli_result csv, table;
    const char *line;
    unsigned lines = 0, numbers = 0;

    cli_run(ARGS("replay", plain, "--budget", "25%", "--csv"), &csv);
    cli_run(ARGS("replay", plain, "--budget", "25%"), &table);
    CHECK_EQ(csv.exit_code, 0);
    CHECK_EQ(table.exit_code, 0);
    CHECK_EQ(strncmp(csv.out, head, sizeof(head) - 1), 0);
    CHECK_EQ(strncmp(table.out, "token cycle 2.2 MiB; hit rates in percent\nevict ", 48), 0);
    for (line = strchr(csv.out, '\n') + 1; *line != '\0'; line = strchr(line, '\n') + 1) {
        double decode, all;
        char percent[32];

        lines++;
        if (strncmp(strchr(line, ','), ",,4718592,,,,,", 14) == 0)
            continue;
        numbers++;
        CHECK_EQ(sscanf(line, "%*[^,],%*[^,],4718592,%lf,%lf", &decode, &all), 2);
        snprintf(percent, sizeof(percent), " %8.3f %8.3f ", 100 * decode, 100 * all);
        CHECK(strstr(table.out, percent) != NULL);
    }
    CHECK(lines > numbers && numbers >= 6);
    CHECK(strstr(csv.out, "\nlru,global,") != NULL);
    CHECK(strstr(csv.out, "\nlayer-lfu,global,") != NULL);
    cli_free(&csv);
    cli_free(&table);
}

/* Every built-in profile and policy has a row, with numbers where the trace has the scores. */
static void profiles_are_replayed(void)
{
    json_t *json =
        cli_json(ARGS("replay", scored, "--profile", "lru,gate-lru", "--budget", "20%", "--json"));
    json_t *rows = json_object_get(json, "rows"), *row;

    CHECK_EQ(json_array_size(rows), 2);
    row = json_array_get(rows, 1);
    CHECK_STR(json_string_value(json_object_get(row, "profile")), "gate-lru");
    CHECK_STR(json_string_value(json_object_get(row, "evict")), "lru");
    CHECK(json_is_real(json_object_get(row, "hit_rate_decode")));
    json_decref(json);
    cli_expect(ARGS("replay", plain, "--profile", "nothing", "--budget", "1MiB"), 2,
               "error[E_PROFILE]: unknown profile 'nothing'; known are gate-best, gate-ema");
}

/* Scores change nothing for policies that do not look at them. */
static void traces_with_and_without_scores_agree(void)
{
    struct cli_result a, b;

    cli_run(ARGS("replay", plain, "--evict", "belady,lru", "--budget", "10%,40%", "--csv"), &a);
    cli_run(ARGS("replay", scored, "--evict", "belady,lru", "--budget", "10%,40%", "--csv"), &b);
    CHECK_EQ(a.exit_code, 0);
    CHECK_STR(a.out, b.out);
    cli_free(&a);
    cli_free(&b);
    cli_expect(ARGS("bench", "--model", CLI_MODEL, "--trace-scores"), 2,
               "--trace-scores needs --trace");
}

static void wrong_arguments_are_explained(void)
{
    cli_expect(ARGS("replay"), 2, "need a trace and --budget");
    cli_expect(ARGS("replay", plain), 2, "need a trace and --budget");
    cli_expect(ARGS("replay", plain, "--budget", "10%", "--evict", "lru,lrru"), 2,
               "error[E_POLICY]: unknown evict policy 'lrru'; known are belady, lru, ");
    cli_expect(ARGS("replay", plain, "--budget", "10%", "--partition", "nobody"), 2,
               "unknown partition policy 'nobody'");
    cli_expect(ARGS("replay", plain, "--budget", "much"), 2, "--budget: got 'much', need a size");
    cli_expect(ARGS("replay", plain, "--budget", "10KiB"), 2, "error[E_REPLAY]");
    cli_expect(ARGS("replay", plain, "--budget", "10%", "--json", "--csv"), 2, "exclude");
    cli_expect(ARGS("replay", plain, "--budget", "10%", "--plot", "lines.svg"), 2,
               "option '--plot' is now '--csv, drawn by moepager plot hits'");
    cli_expect(ARGS("replay", plain, "--budget", "10%", "--accounting", "mine"), 2,
               "need pager or curve");
    cli_expect(
        ARGS("replay", plain, "--budget", "10%", "--accounting", "curve", "--partition", "uniform"),
        2, "cannot be chosen");
    cli_expect(ARGS("replay", cli_path("missing"), "--budget", "10%"), 6, "error[E_TRACE_READ]");
    cli_expect(ARGS("replay", "README.md", "--budget", "10%"), 3, "error[E_TRACE_LINE]");
    cli_expect(ARGS("replay", plain, plain, "--budget", "10%"), 2, "is not a flag");
}

int main(int argc, char **argv)
{
    cli_init(argc, argv);
    make_traces();
    RUN(json_has_the_promised_keys);
    RUN(csv_and_table_agree);
    RUN(profiles_are_replayed);
    RUN(traces_with_and_without_scores_agree);
    RUN(wrong_arguments_are_explained);
    return 0;
}
