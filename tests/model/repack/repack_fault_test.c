/*
 * Every call that can fail while a model is repacked is made to fail, at every place that makes it;
 * then writes come short, go wrong silently, or find the disk full. After each failure: a status
 * with a text, no half model under a final name, nothing left open, and the same call again gives
 * the directory that a run without failures gives.
 */
#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "tests/model/repack_check.h"
#include "tests/model/tiny_model.h"
#include "tests/support/fault/wrap.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "vmm/base/error.h"

/* What writes: of the calls that no sweep fails, those that a copy makes. */
static const enum fault_call calls[] = {
    FAULT_write, FAULT_fsync,     FAULT_rename,         FAULT_renameat, FAULT_unlinkat,
    FAULT_mkdir, FAULT_fdopendir, FAULT_open_memstream, FAULT_close,
};

static char source[sizeof(test_tmpdir_path) + 16], want[sizeof(source)], out[sizeof(source)];

static struct mp_repack_config config(void)
{
    struct mp_repack_config made = repack_config(source, out);

    made.shard_bytes = 4096 + 480;
    return made;
}

static void remove_out(void)
{
    if (dir_has(out, "."))
        nftw(out, test_tmpdir_remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* What looks like a model is whole. */
static void check_no_half_model(void)
{
    struct mp_checkpoint *checkpoint;

    if (!dir_has(out, "model.safetensors") && !dir_has(out, "model.safetensors.index.json"))
        return;
    CHECK_EQ(mp_checkpoint_open(out, &checkpoint), MP_OK);
    CHECK_EQ(mp_checkpoint_check_values(checkpoint, NULL), MP_OK);
    mp_checkpoint_close(checkpoint);
}

static void check_failure(enum mp_status status)
{
    CHECK(status == MP_ERR_NO_MEMORY || status == MP_ERR_IO);
    CHECK_EQ(mp_error_last()->status, status);
    CHECK(mp_error_last()->text[0] != '\0');
    check_no_half_model();
}

static unsigned failed_runs;

static void body(const struct fault_plan *plan, void *ctx)
{
    const struct mp_repack_config c = config();
    struct mp_repack_report report;
    enum mp_status status;

    (void)ctx;
    mp_error_clear();
    fault_begin(plan);
    status = mp_repack(&c, &report);
    if (fault_end() == 0)
        CHECK_EQ(status, MP_OK);
    if (status != MP_OK) {
        check_failure(status);
        failed_runs++;
        repack_must(&c);
    }
    check_same_dirs(want, out);
    remove_out();
}

static void every_call_site(void)
{
    const uint32_t runs = fault_sweep(FAULT_ANY, body, NULL);

    fprintf(stderr, "    %u runs, %u failed, %u sites\n", runs, failed_runs,
            fault_sites_failed(FAULT_ANY));
    CHECK(failed_runs > 0);
}

/* One run in which what the plan says goes wrong; returns whether it came to that. */
static bool run_with(const struct fault_plan *plan, enum mp_status *status_p)
{
    const struct mp_repack_config c = config();
    struct mp_repack_report report;

    mp_error_clear();
    fault_begin(plan);
    *status_p = mp_repack(&c, &report);
    return fault_end() > 0;
}

static void every_call_number_of_what_writes(void)
{
    for (size_t i = 0; i < MP_ARRAY_LEN(calls); i++) {
        struct fault_plan plan = { .mode = FAULT_ONCE, .calls = UINT64_C(1) << calls[i] };
        const uint32_t fds = fault_open_fds();
        unsigned failed = 0;
        enum mp_status status;

        for (; run_with(&plan, &status); plan.skip++) {
            /* Some failures do no harm: a stale file that was not there, closing what was read. */
            if (status != MP_OK) {
                const struct mp_repack_config c = config();

                check_failure(status);
                failed++;
                repack_must(&c);
            }
            check_same_dirs(want, out);
            remove_out();
            CHECK_EQ(fault_open_fds(), fds);
        }
        fprintf(stderr, "    %s: %" PRIu64 " calls, %u fail the run\n", fault_call_name(calls[i]),
                plan.skip, failed);
        CHECK_EQ(status, MP_OK);
        CHECK(failed > 0);
        remove_out();
    }
}

static void short_writes_are_continued(void)
{
    struct fault_plan plan = {
        .mode = FAULT_ONCE,
        .calls = FAULT_BIT(write),
        .short_bytes = 1,
    };
    enum mp_status status;

    for (; run_with(&plan, &status); plan.skip++) {
        CHECK_EQ(status, MP_OK);
        check_same_dirs(want, out);
        remove_out();
    }
    CHECK(plan.skip > 40);
    remove_out();
}

static void wrong_bytes_on_the_disk_are_found(void)
{
    struct fault_plan plan = { .mode = FAULT_ONCE, .calls = FAULT_BIT(write), .corrupt = true };
    enum mp_status status;
    unsigned headers = 0;

    for (; run_with(&plan, &status); plan.skip++) {
        CHECK_EQ(status, MP_ERR_IO);
        CHECK_STR(mp_error_last()->code, "E_REPACK_VERIFY");
        headers += strstr(mp_error_last()->text, "the header") != NULL;
        check_no_half_model();
        remove_out();
    }
    CHECK(plan.skip > 40);
    CHECK(headers > 2 && headers < plan.skip / 2);
    remove_out();
}

static void a_full_disk_is_reported_before_and_while(void)
{
    static const struct fault_plan almost_full = {
        .mode = FAULT_ALWAYS,
        .calls = FAULT_BIT(fstatvfs),
        .short_bytes = 1,
    };
    static const struct fault_plan full = {
        .mode = FAULT_ONCE,
        .calls = FAULT_BIT(write),
        .skip = 30,
    };
    const struct mp_repack_config c = config();
    struct mp_repack_report report;
    enum mp_status status;

    CHECK(run_with(&almost_full, &status));
    CHECK_EQ(status, MP_ERR_IO);
    CHECK_STR(mp_error_last()->code, "E_REPACK_SPACE");
    CHECK(!dir_has(out, "."));

    CHECK(run_with(&full, &status));
    CHECK_EQ(status, MP_ERR_IO);
    CHECK_EQ(mp_status_exit_code(status), 6);
    CHECK_STR(mp_error_last()->code, "E_REPACK_WRITE");
    CHECK(strstr(mp_error_last()->text, "No space left on device") != NULL);
    CHECK(strstr(mp_error_last()->text, "when there is room") != NULL);
    report = repack_must(&c);
    CHECK(report.shards_kept > 0);
    check_same_dirs(want, out);
    remove_out();
}

int main(void)
{
    struct tiny_model model;
    struct mp_repack_config c;

    snprintf(source, sizeof(source), "%s/source", test_tmpdir());
    snprintf(want, sizeof(want), "%s/want", test_tmpdir());
    snprintf(out, sizeof(out), "%s/out", test_tmpdir());
    CHECK(mkdir(source, 0777) == 0);
    tiny_model_make(&model, TINY_QWEN2);
    tiny_write_config(source, TINY_QWEN2);
    tiny_write_shard(source, "model.safetensors", &model, 0, model.count, 0);
    tiny_write_text(source, "chat_template.jinja", "{{ messages }}");
    c = config();
    c.out = want;
    CHECK(repack_must(&c).shards > 2);
    check_repacked(source, want);

    RUN(every_call_site);
    RUN(every_call_number_of_what_writes);
    RUN(short_writes_are_continued);
    RUN(wrong_bytes_on_the_disk_are_found);
    RUN(a_full_disk_is_reported_before_and_while);
    return 0;
}
