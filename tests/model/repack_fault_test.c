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

#define CALLS(X)              \
    X(write, ENOSPC)          \
    X(fsync, EIO)             \
    X(rename, EACCES)         \
    X(renameat, EACCES)       \
    X(unlinkat, EACCES)       \
    X(mkdir, EACCES)          \
    X(fdopendir, ENOMEM)      \
    X(open_memstream, ENOMEM) \
    X(close, EIO)

enum call {
#define X(name, error_number) CALL_##name,
    CALLS(X)
#undef X
        CALL_COUNT
};

static const struct {
    const char *name;
    int error_number;
} calls[CALL_COUNT] = {
#define X(name, error_number) { #name, error_number },
    CALLS(X)
#undef X
};

enum kind { FAIL, SHORT, CORRUPT };

/* Call number `at` of one function goes wrong; UINT_MAX: none. */
static struct {
    enum call call;
    enum kind kind;
    unsigned at, seen, hits;
    bool full; /* the disk has no room */
} trap = { .at = UINT32_MAX };

static bool trapped(enum call call)
{
    if (call != trap.call || trap.seen++ != trap.at)
        return false;
    trap.hits++;
    errno = calls[call].error_number;
    return true;
}

ssize_t __real_write(int fd, const void *data, size_t bytes);
ssize_t __wrap_write(int fd, const void *data, size_t bytes);
ssize_t __wrap_write(int fd, const void *data, size_t bytes)
{
    char wrong[4096];

    if (!trapped(CALL_write))
        return __real_write(fd, data, bytes);
    if (trap.kind == FAIL)
        return -1;
    if (trap.kind == SHORT)
        return __real_write(fd, data, bytes > 1 ? bytes / 2 : 1);
    CHECK(bytes <= sizeof(wrong));
    memcpy(wrong, data, bytes);
    wrong[bytes / 2] ^= 4;
    return __real_write(fd, wrong, bytes);
}

/* Thousands of runs would wait for the disk; what it does is not looked at here. */
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
    (void)fd;
    return trapped(CALL_fsync) ? -1 : 0;
}

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to)
{
    return trapped(CALL_rename) ? -1 : __real_rename(from, to);
}

int __real_renameat(int from_fd, const char *from, int to_fd, const char *to);
int __wrap_renameat(int from_fd, const char *from, int to_fd, const char *to);
int __wrap_renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    return trapped(CALL_renameat) ? -1 : __real_renameat(from_fd, from, to_fd, to);
}

int __real_unlinkat(int fd, const char *name, int flags);
int __wrap_unlinkat(int fd, const char *name, int flags);
int __wrap_unlinkat(int fd, const char *name, int flags)
{
    return trapped(CALL_unlinkat) ? -1 : __real_unlinkat(fd, name, flags);
}

int __real_mkdir(const char *path, mode_t mode);
int __wrap_mkdir(const char *path, mode_t mode);
int __wrap_mkdir(const char *path, mode_t mode)
{
    return trapped(CALL_mkdir) ? -1 : __real_mkdir(path, mode);
}

DIR *__real_fdopendir(int fd);
DIR *__wrap_fdopendir(int fd);
DIR *__wrap_fdopendir(int fd)
{
    return trapped(CALL_fdopendir) ? NULL : __real_fdopendir(fd);
}

FILE *__real_open_memstream(char **text, size_t *bytes);
FILE *__wrap_open_memstream(char **text, size_t *bytes);
FILE *__wrap_open_memstream(char **text, size_t *bytes)
{
    return trapped(CALL_open_memstream) ? NULL : __real_open_memstream(text, bytes);
}

/* Closed all the same, as the kernel does. */
int __real_close(int fd);
int __wrap_close(int fd);
int __wrap_close(int fd)
{
    const int result = __real_close(fd);

    return trapped(CALL_close) ? -1 : result;
}

int __real_fstatvfs64(int fd, struct statvfs *info);
int __wrap_fstatvfs64(int fd, struct statvfs *info);
int __wrap_fstatvfs64(int fd, struct statvfs *info)
{
    const int result = __real_fstatvfs64(fd, info);

    if (trap.full)
        info->f_bavail = 1;
    return result;
}

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

/* One run with a trap; returns whether it sprang. */
static bool run_trapped(enum call call, enum kind kind, unsigned at, enum mp_status *status_p)
{
    const struct mp_repack_config c = config();
    struct mp_repack_report report;

    mp_error_clear();
    trap.call = call;
    trap.kind = kind;
    trap.at = at;
    trap.seen = trap.hits = 0;
    *status_p = mp_repack(&c, &report);
    trap.at = UINT32_MAX;
    return trap.hits > 0;
}

static void every_call_number_of_what_writes(void)
{
    for (unsigned call = 0; call < CALL_COUNT; call++) {
        const uint32_t fds = fault_open_fds();
        unsigned failed = 0, n;
        enum mp_status status;

        for (n = 0; run_trapped(call, FAIL, n, &status); n++) {
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
        fprintf(stderr, "    %s: %u calls, %u fail the run\n", calls[call].name, n, failed);
        CHECK_EQ(status, MP_OK);
        CHECK(failed > 0);
        remove_out();
    }
}

static void short_writes_are_continued(void)
{
    enum mp_status status;
    unsigned n;

    for (n = 0; run_trapped(CALL_write, SHORT, n, &status); n++) {
        CHECK_EQ(status, MP_OK);
        check_same_dirs(want, out);
        remove_out();
    }
    CHECK(n > 40);
    remove_out();
}

static void wrong_bytes_on_the_disk_are_found(void)
{
    enum mp_status status;
    unsigned n, headers = 0;

    for (n = 0; run_trapped(CALL_write, CORRUPT, n, &status); n++) {
        CHECK_EQ(status, MP_ERR_IO);
        CHECK_STR(mp_error_last()->code, "E_REPACK_VERIFY");
        headers += strstr(mp_error_last()->text, "the header") != NULL;
        check_no_half_model();
        remove_out();
    }
    CHECK(n > 40);
    CHECK(headers > 2 && headers < n / 2);
    remove_out();
}

static void a_full_disk_is_told_before_and_while(void)
{
    const struct mp_repack_config c = config();
    struct mp_repack_report report;
    enum mp_status status;

    trap.full = true;
    CHECK_EQ(mp_repack(&c, &report), MP_ERR_IO);
    trap.full = false;
    CHECK_STR(mp_error_last()->code, "E_REPACK_SPACE");
    CHECK(!dir_has(out, "."));

    CHECK(run_trapped(CALL_write, FAIL, 30, &status));
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
    RUN(a_full_disk_is_told_before_and_while);
    return 0;
}
