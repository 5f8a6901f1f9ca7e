/*
 * Symptom: with room for all experts the report said that no prefetched byte was wasted, though
 * some had never been needed.
 * Cause: a wrong guess was counted when it was evicted or the pager ended, and the report is made
 * before that.
 */
#include "tests/system/cli/cli.h"
#include "tests/support/test.h"

static long long get(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    CHECK(json_is_integer(value));
    return json_integer_value(value);
}

/* Deterministic: no read is on the way when the run ends, so the bytes add up exactly. */
static void check_books(const char *budget)
{
    const struct cli cli = {
        .args = { "run", "--model", CLI_MODEL, "--prompt", "def main(args):", "--max-tokens", "40",
                  "--prefetch", "top", "--deterministic", "--json", "--budget", budget },
    };
    json_t *json = cli_json(&cli);
    const json_t *counters = json_object_get(json, "counters");
    const long long unit_bytes = get(json, "expert_bytes") / (8 * 32);
    const long long unused = get(json, "bytes_prefetched_unused");

    CHECK(unused > 0);
    CHECK_EQ(get(counters, "prefetch_bytes"), get(counters, "prefetch_used") * unit_bytes + unused);
    CHECK_EQ(get(counters, "prefetch_unused_bytes"), unused);
    json_decref(json);
}

static void what_lies_unused_at_the_end_is_wasted(void)
{
    check_books("all");
}

static void so_is_what_was_evicted(void)
{
    check_books("25%");
}

int main(int argc, char **argv)
{
    cli_init(argc, argv);
    RUN(what_lies_unused_at_the_end_is_wasted);
    RUN(so_is_what_was_evicted);
    return 0;
}
