/*
 * Decision logs that are damaged, of other versions or with numbers out of bounds are refused by
 * name.
 */
#include "policy/record/decisions.h"
#include "tests/unit/policy/record/decisions_play.h"

#include <glob.h>
#include <inttypes.h>
#include <stdint.h>
#include <unistd.h>

#include "tests/support/random.h"
#include "tests/support/test.h"
#include "tests/unit/policy/groups.h"
#include "vmm/base/error.h"

/* `text` of a file with "\nKEY ...\n" replaced by another value, written to `path`. */
static void write_head(const char *path, const char *text, size_t count, const char *key,
                       uint64_t value)
{
    const char *at = memmem(text, count, key, strlen(key)), *end = strchr(at + 1, '\n');
    FILE *file = fopen(path, "wbe");

    CHECK(file != NULL);
    fwrite(text, 1, (size_t)(at - text), file);
    fprintf(file, "%s %" PRIu64, key, value);
    fwrite(end, 1, count - (size_t)(end - text), file);
    CHECK_EQ(fclose(file), 0);
}

/* A log of no calls, whose shape is not what was recorded. */
static void numbers_of_the_head_have_bounds(void)
{
    static const struct {
        const char *key;
        uint64_t min, max;
    } cases[] = {
        { "\nlayers", 1, 4096 },   { "\nexperts", TOP_K, 4096 },
        { "\ntop_k", 1, EXPERTS }, { "\ntokens_max", 1, 65536 },
        { "\nslots", 1, 1 << 24 }, { "\nunit_bytes", 1, UINT64_C(1) << 40 },
        { "\nslices", 0, 16 },     { "\ncosts", 0, 1 },
        { "\ncalibration", 0, 1 },
    };
    const struct mp_profile chosen = make_profile(MP_POLICY_EVICT, "lru");
    const char *path = path_of("bare"), *changed = path_of("changed");
    struct mp_decisions_report report;
    struct mp_shape bare = shape;
    struct mp_decisions *log;
    char text[4096 * 4];
    size_t count;

    bare.calibration = NULL;
    bare.costs = NULL;
    CHECK_EQ(mp_decisions_create(path, &chosen, &bare, test_default_groups(), &log), MP_OK);
    CHECK_EQ(mp_decisions_close(log), MP_OK);
    mp_decisions_destroy(log);
    count = read_file(path, text, sizeof(text));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const uint64_t values[] = { cases[i].min, cases[i].max, cases[i].max + 1,
                                    cases[i].min - 1 };

        for (unsigned n = 0; n < 4 - (cases[i].min == 0); n++) {
            mp_error_clear();
            write_head(changed, text, count, cases[i].key, values[n]);
            if (mp_decisions_replay(changed, NULL, &report) == MP_OK) {
                CHECK(n < 2);
                continue;
            }
            CHECK_STR(mp_error_last()->code, "E_DECISION_LOG");
            /* Where costs or a calibration should follow there are none. */
            CHECK_EQ(strstr(mp_error_last()->text, "of the head is missing or out") != NULL, n > 1);
            CHECK(n > 1 || !strcmp(cases[i].key, "\ncosts") ||
                  !strcmp(cases[i].key, "\ncalibration"));
        }
    }
}

/* Partitions are asked with slots and bytes of their own. */
static void numbers_of_a_partition_have_bounds(void)
{
    static const struct {
        uint32_t slots;
        uint64_t expert_bytes;
        const char *says;
    } cases[] = {
        { 1, 1, NULL },
        { 1 << 24, UINT64_C(1) << 40, NULL },
        { 0, 1, "a number is out of range" },
        { (1 << 24) + 1, 1, "a number is out of range" },
        { 1, (UINT64_C(1) << 40) + 1, "a number is out of range" },
        { 1, 0, "experts have no bytes" },
    };
    const struct mp_profile chosen = make_profile(MP_POLICY_PARTITION, "uniform");
    const char *path = path_of("shares");

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mp_decisions_report report;
        struct mp_shape asked = shape;
        struct mp_policies set;
        struct mp_decisions *log;
        uint32_t quota[LAYERS];

        asked.slots = cases[i].slots;
        asked.expert_bytes = cases[i].expert_bytes;
        CHECK_EQ(create(&chosen, &set), MP_OK);
        CHECK_EQ(mp_decisions_create(path, &chosen, &shape, test_default_groups(), &log), MP_OK);
        mp_decisions_record(log, &set);
        set.partition_ops->quota(set.partition, &asked, quota);
        CHECK_EQ(mp_decisions_close(log), MP_OK);
        mp_policies_destroy(&set);
        mp_decisions_destroy(log);
        CHECK_EQ(mp_decisions_replay(path, NULL, &report),
                 cases[i].says == NULL ? MP_OK : MP_ERR_MODEL);
        CHECK(cases[i].says == NULL || strstr(mp_error_last()->text, cases[i].says) != NULL);
    }
}

/* One bit of each byte turned over: refused, or found to differ, or a fact that changes nothing. */
static void no_damage_is_believed(void)
{
    static char bytes[1 << 17];
    const struct mp_profile chosen = make_profile(MP_POLICY_EVICT, "layer-lfu");
    const char *path = path_of("whole"), *damaged = path_of("damaged");
    struct mp_decisions_report report;
    unsigned refused = 0, differs = 0;
    size_t count;

    record(&chosen, 3, path);
    count = read_file(path, bytes, sizeof(bytes));
    for (size_t i = 0; i < count; i++) {
        enum mp_status status;

        bytes[i] ^= (char)(1 << i % 8);
        write_file(damaged, bytes, count);
        bytes[i] ^= (char)(1 << i % 8);
        mp_error_clear();
        status = mp_decisions_replay(damaged, NULL, &report);
        CHECK(status == MP_OK || status == MP_ERR_MODEL || status == MP_ERR_UNSUPPORTED ||
              status == MP_ERR_NO_MEMORY);
        differs += status == MP_ERR_MODEL && !strcmp(mp_error_last()->code, "E_DECISION_DIFFERS");
        refused += status != MP_OK;
    }
    CHECK(differs > 100 && refused > differs + 100);
    for (size_t cut = 0; cut < count; cut += 1 + cut / 50) {
        write_file(damaged, bytes, cut);
        CHECK_EQ(mp_decisions_replay(damaged, NULL, &report), MP_ERR_MODEL);
    }
    memcpy(bytes + count, "x", 1);
    write_file(damaged, bytes, count + 1);
    CHECK_EQ(mp_decisions_replay(damaged, NULL, &report), MP_ERR_MODEL);
}

/* A policy or an option that this version does not have. */
static void logs_of_other_versions_are_named(void)
{
    static const char *const parts[][2] = {
        { "# moepager decisions v4\n", "# moepager decisions v2\n" },
        { "\nabi 5\n", "\nabi 4\n" },
        { "\nevict best\n", "\nevict besx\n" },
        { "option RANKS ", "option RANGS " },
    };
    static char bytes[1 << 17];
    const struct mp_profile chosen = make_profile(MP_POLICY_PREFETCH, "top");
    const char *path = path_of("version");
    struct mp_decisions_report report;
    size_t count;

    record(&chosen, 1, path);
    count = read_file(path, bytes, sizeof(bytes));
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        char *at = memmem(bytes, count, parts[i][0], strlen(parts[i][0]));

        CHECK(at != NULL);
        memcpy(at, parts[i][1], strlen(parts[i][1]));
        write_file(path, bytes, count);
        CHECK(mp_decisions_is_log(path));
        CHECK_EQ(mp_decisions_replay(path, NULL, &report), MP_ERR_UNSUPPORTED);
        CHECK_STR(mp_error_last()->code, "E_DECISION_VERSION");
        memcpy(at, parts[i][0], strlen(parts[i][0]));
    }
}

static void files_that_cannot_be_are_errors(void)
{
    const struct mp_profile chosen = make_profile(MP_POLICY_EVICT, "lru");
    const volatile sig_atomic_t stop = 1;
    const char *path = path_of("abandoned");
    struct mp_decisions_report report;
    struct mp_decisions *log;

    CHECK_EQ(mp_decisions_replay(path_of("missing"), NULL, &report), MP_ERR_IO);
    CHECK_EQ(mp_decisions_replay("tests", NULL, &report), MP_ERR_IO);
    CHECK(!mp_decisions_is_log(path_of("missing")) && !mp_decisions_is_log("README.md"));
    CHECK_EQ(mp_decisions_create("/nonexistent/x", &chosen, &shape, test_default_groups(), &log),
             MP_ERR_IO);
    CHECK_EQ(mp_decisions_create(path, &chosen, &shape, test_default_groups(), &log), MP_OK);
    mp_decisions_destroy(log);
    mp_decisions_destroy(NULL);
    CHECK(access(path, F_OK) != 0);
    if (access("/dev/full", W_OK) == 0) {
        CHECK_EQ(mp_decisions_create("/dev/full", &chosen, &shape, test_default_groups(), &log),
                 MP_OK);
        CHECK_EQ(mp_decisions_close(log), MP_ERR_IO);
        mp_decisions_destroy(log);
    }
    record(&chosen, 2, path);
    CHECK_EQ(mp_decisions_replay(path, &stop, &report), MP_ERR_CANCELED);
}

/* What the fuzzer starts from would be of no use in a format that is not read any more. */
static void the_corpus_of_the_fuzzer_can_be_read(void)
{
    struct mp_decisions_report report;
    unsigned equal = 0;
    glob_t files;

    CHECK_EQ(glob("tests/data/fuzz/decision_log_fuzz/*", 0, NULL, &files), 0);
    for (size_t i = 0; i < files.gl_pathc; i++)
        equal += mp_decisions_replay(files.gl_pathv[i], NULL, &report) == MP_OK;
    CHECK(equal >= 7 && equal + 1 >= files.gl_pathc); /* but for size-of-earlier */
    globfree(&files);
}

int main(void)
{
    make_facts();
    RUN(numbers_of_the_head_have_bounds);
    RUN(numbers_of_a_partition_have_bounds);
    RUN(no_damage_is_believed);
    RUN(logs_of_other_versions_are_named);
    RUN(files_that_cannot_be_are_errors);
    RUN(the_corpus_of_the_fuzzer_can_be_read);
    return 0;
}
