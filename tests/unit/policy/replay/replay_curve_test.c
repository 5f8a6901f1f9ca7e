/*
 * The curve accounting against the curves that others published of two real models: every row of
 * the five deterministic policies, to the printed decimal. The data is not part of this tree.
 */
#include <unistd.h>

#include "policy/replay/replay.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

#define DIRECTORY "../shared/traces/"

static double percent(uint64_t part, uint64_t whole)
{
    return 100.0 * (double)part / (double)whole;
}

/* How many rows agree; ends the test at the first that does not. */
static unsigned compare(const char *trace_path, const char *curve_path)
{
    char line[256], expected[256], name[32], got[256];
    FILE *file = fopen(curve_path, "re");
    struct mp_replay_trace trace;
    unsigned rows = 0, budget_mib;

    CHECK(file != NULL);
    CHECK_EQ(mp_replay_trace_read(trace_path, &trace), MP_OK);
    CHECK(fgets(line, sizeof(line), file) != NULL);
    CHECK_STR(line, "budget_mib,policy,hit_pct_cum,hit_pct_decode,read_mib\n");
    while (fgets(line, sizeof(line), file) != NULL) {
        struct mp_replay_result r;
        struct mp_replay_config config = { .evict = name, .accounting = MP_REPLAY_CURVE };

        CHECK_EQ(sscanf(line, "%u,%31[a-z],%255s", &budget_mib, name, expected), 3);
        if (!strcmp(name, "random"))
            continue;
        config.budget_bytes = (uint64_t)budget_mib << 20;
        CHECK_EQ(mp_replay(&trace, &config, &r), MP_OK);
        snprintf(got, sizeof(got), "%.3f,%.3f,%.1f", percent(r.hits, r.lookups),
                 percent(r.decode_hits, r.decode_lookups),
                 (double)r.bytes_read / (double)(1 << 20));
        if (strcmp(got, expected) != 0)
            fprintf(stderr, "%s at %u MiB\n", name, budget_mib);
        CHECK_STR(got, expected);
        rows++;
    }
    fclose(file);
    mp_replay_trace_fini(&trace);
    return rows;
}

static void qwen_equals_the_published_curve(void)
{
    CHECK_EQ(compare(DIRECTORY "qwen.route.csv", DIRECTORY "qwen-curve.csv"), 55);
}

static void gptoss_equals_the_published_curve(void)
{
    CHECK_EQ(compare(DIRECTORY "gptoss.route.csv", DIRECTORY "gptoss-curve.csv"), 55);
}

/* Belady of the curves always admits what missed; the bound need not. */
static void the_bound_is_above_belady_without_bypass(void)
{
    const struct mp_replay_config config = { .evict = "belady",
                                             .accounting = MP_REPLAY_CURVE,
                                             .budget_bytes = UINT64_C(250) << 20 };
    struct mp_replay_trace trace;
    struct mp_replay_result r;

    CHECK_EQ(mp_replay_trace_read(DIRECTORY "qwen.route.csv", &trace), MP_OK);
    CHECK_EQ(mp_replay(&trace, &config, &r), MP_OK);
    CHECK(r.bound_decode_hits > r.decode_hits);
    mp_replay_trace_fini(&trace);
}

int main(void)
{
    if (access(DIRECTORY "qwen-curve.csv", R_OK) != 0)
        SKIP("no published curves in " DIRECTORY);
    RUN(qwen_equals_the_published_curve);
    RUN(gptoss_equals_the_published_curve);
    RUN(the_bound_is_above_belady_without_bypass);
    return 0;
}
