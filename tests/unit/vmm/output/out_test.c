/* Output files: complete or absent, whatever fails, and what killed processes left behind. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/fault/wrap.h"
#include "tests/support/test.h"
#include "vmm/base/compiler.h"
#include "vmm/base/error.h"
#include "vmm/output/out.h"

static char directory[64];

static const char *in_directory(const char *name)
{
    static char path[128];

    snprintf(path, sizeof(path), "%s/%s", directory, name);
    return path;
}

static void an_output_file_is_whole_or_not_there(void)
{
    struct mp_out out;
    struct stat info;
    char text[16] = "";
    FILE *file;

    umask(022);
    CHECK_EQ(mp_out_open(&out, in_directory("report")), MP_OK);
    CHECK_EQ(access(in_directory("report"), F_OK), -1);
    fputs("first", out.file);
    CHECK_EQ(mp_out_commit(&out), MP_OK);
    CHECK_EQ(stat(in_directory("report"), &info), 0);
    CHECK_EQ(info.st_mode & 0777, 0644);

    CHECK_EQ(mp_out_open(&out, in_directory("report")), MP_OK);
    fputs("second", out.file);
    mp_out_abandon(&out);
    mp_out_abandon(&out);
    file = fopen(in_directory("report"), "r");
    CHECK(file != NULL && fgets(text, sizeof(text), file) != NULL);
    fclose(file);
    CHECK_STR(text, "first");

    /* A device is written in place, and stays a device. */
    CHECK_EQ(mp_out_open(&out, "/dev/null"), MP_OK);
    fputs("x", out.file);
    CHECK_EQ(mp_out_commit(&out), MP_OK);
    CHECK_EQ(stat("/dev/null", &info), 0);
    CHECK(S_ISCHR(info.st_mode));
}

static void an_output_file_fails_with_its_name(void)
{
    static const char *const names[] = { "link", "", "none/x", "fifo" };
    struct mp_out out;
    char big[PATH_MAX + 8];

    CHECK_EQ(symlink("report", in_directory("link")), 0);
    CHECK_EQ(mkfifo(in_directory("fifo"), 0600), 0);
    for (size_t i = 0; i < MP_ARRAY_LEN(names); i++) {
        CHECK_EQ(mp_out_open(&out, in_directory(names[i])), MP_ERR_IO);
        CHECK(out.file == NULL);
        CHECK(strstr(mp_error_last()->text, directory) != NULL);
        mp_out_abandon(&out);
    }
    CHECK_EQ(mp_out_open(&out, ""), MP_ERR_IO);
    memset(big, 'a', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    CHECK_EQ(mp_out_open(&out, big), MP_ERR_IO);
    CHECK_EQ(mp_out_open(&out, "/dev/full"), MP_OK);
    fputs("x", out.file);
    CHECK_EQ(mp_out_commit(&out), MP_ERR_IO);
    CHECK_STR(
        mp_error_last()->text,
        "cannot write '/dev/full' at byte 0: No space left on device; free some space there or "
        "name another place");
    CHECK_EQ(mp_out_open(&out, "/dev/full"), MP_OK);
    for (int i = 0; i < 20000; i++) /* so that it is full before the end */
        fputc('x', out.file);
    CHECK_EQ(mp_out_commit(&out), MP_ERR_IO);
    CHECK_STR(
        mp_error_last()->text,
        "cannot write '/dev/full' at byte 0: No space left on device; free some space there or "
        "name another place");
}

/* With a limit on file sizes write() fails with EFBIG: the old file stays, nothing else does. */
static void a_full_disk_leaves_the_older_file(void)
{
    const struct rlimit small = { 4096, RLIM_INFINITY };
    struct rlimit old;
    struct mp_out out;
    struct stat info;

    signal(SIGXFSZ, SIG_IGN);
    CHECK_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
    CHECK_EQ(mp_out_open(&out, in_directory("report")), MP_OK);
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    for (int i = 0; i < 10000; i++)
        fputs("0123456789", out.file);
    CHECK_EQ(mp_out_commit(&out), MP_ERR_IO);
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
    CHECK_EQ(access(out.temporary, F_OK), -1);
    CHECK_EQ(stat(in_directory("report"), &info), 0);
    CHECK_EQ(info.st_size, 5);
}

/* What was lost stays lost, wherever the stream is put and whatever is written later. */
static void a_failed_write_is_not_forgotten(void)
{
    const struct rlimit small = { 4096, RLIM_INFINITY };
    static const char block[8192];
    struct rlimit old;
    struct mp_out out;

    CHECK_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
    CHECK_EQ(mp_out_open(&out, in_directory("report")), MP_OK);
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    CHECK(fwrite(block, 1, 8192, out.file) <= 8192);
    mp_out_seek(&out, 0);
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
    rewind(out.file);
    clearerr(out.file);
    fputs("head", out.file);
    CHECK_EQ(mp_out_commit(&out), MP_ERR_IO);
    CHECK(strstr(mp_error_last()->text, "report' at byte 4096: File too large; ") != NULL);
}

static void it_can_go_back(void)
{
    char text[16] = "";
    struct rlimit old;
    struct mp_out out;
    int ends[2];
    char path[64];
    FILE *file;

    CHECK_EQ(mp_out_open(&out, in_directory("back")), MP_OK);
    fputs("....tail", out.file);
    CHECK_EQ(mp_out_position(&out), 8);
    mp_out_seek(&out, 0);
    fputs("head", out.file);
    CHECK_EQ(mp_out_position(&out), 4);
    mp_out_seek(&out, 8);
    fputs("!", out.file);
    CHECK_EQ(mp_out_commit(&out), MP_OK);
    file = fopen(in_directory("back"), "r");
    CHECK(file != NULL && fgets(text, sizeof(text), file) != NULL);
    fclose(file);
    CHECK_STR(text, "headtail!");
    CHECK_EQ(unlink(in_directory("back")), 0);

    /* A descriptor is written where it stands; a pipe cannot go back. */
    CHECK_EQ(pipe(ends), 0);
    snprintf(path, sizeof(path), "/dev/fd/%d", ends[1]);
    CHECK_EQ(mp_out_check(path, true), MP_ERR_IO);
    CHECK_EQ(mp_out_check(path, false), MP_OK);
    CHECK_EQ(mp_out_open(&out, path), MP_OK);
    fputs("through", out.file);
    CHECK_EQ(mp_out_commit(&out), MP_OK);
    memset(text, 0, sizeof(text));
    CHECK_EQ(read(ends[0], text, sizeof(text)), 7);
    CHECK_STR(text, "through");
    CHECK_EQ(mp_out_open(&out, path), MP_OK);
    fputs("x", out.file);
    mp_out_seek(&out, 0);
    CHECK_EQ(mp_out_commit(&out), MP_ERR_IO);
    CHECK(strstr(mp_error_last()->text, "at byte 1: Illegal seek; a pipe takes no file") != NULL);
    snprintf(path, sizeof(path), "/dev/fd/%d", ends[0]);
    CHECK_EQ(mp_out_open(&out, path), MP_ERR_IO); /* it is for reading */
    CHECK_EQ(mp_out_open(&out, "/proc/self/fd/9999"), MP_ERR_IO);
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &(const struct rlimit){ 3, old.rlim_max }), 0);
    CHECK_EQ(mp_out_open(&out, "/dev/stderr"), MP_ERR_IO);
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
    close(ends[0]);
    close(ends[1]);
}

static void a_commit_that_cannot_rename_fails(void)
{
    struct mp_out out;

    CHECK_EQ(mp_out_open(&out, in_directory("became")), MP_OK);
    CHECK_EQ(mkdir(in_directory("became"), 0700), 0);
    CHECK_EQ(mp_out_commit(&out), MP_ERR_IO);
    CHECK_EQ(access(out.temporary, F_OK), -1);
}

static unsigned count_files(void)
{
    DIR *files = opendir(directory);
    unsigned count = 0;

    CHECK(files != NULL);
    while (readdir(files) != NULL)
        count++;
    closedir(files);
    return count;
}

/* Nothing is left, no descriptor and no file, and the older file is as it was. */
static void every_call_of_an_output_file_may_fail(void)
{
    char long_path[PATH_MAX];
    const int fd_before = dup(0);
    const unsigned files_before = count_files();
    struct mp_out out;
    struct stat info;
    int fd_after;

    fault_nth(FAULT_BIT(fopencookie), 0);
    CHECK_EQ(mp_out_open(&out, in_directory("report")), MP_ERR_IO);
    CHECK(out.file == NULL);
    fault_nth(FAULT_BIT(fopencookie), 0);
    CHECK_EQ(mp_out_open(&out, "/dev/null"), MP_ERR_IO);

    CHECK_EQ(mp_out_open(&out, in_directory("report")), MP_OK);
    fputs("lost", out.file);
    fault_nth(FAULT_BIT(fsync), 0);
    CHECK_EQ(mp_out_commit(&out), MP_ERR_IO);
    CHECK(strstr(mp_error_last()->text, strerror(EIO)) != NULL);

    CHECK_EQ(mp_out_open(&out, in_directory("report")), MP_OK);
    fputs("lost", out.file);
    fault_begin(&(const struct fault_plan){
        .mode = FAULT_ONCE, .calls = FAULT_BIT(close), .error_number = EDQUOT });
    CHECK_EQ(mp_out_commit(&out), MP_ERR_IO);
    CHECK(strstr(mp_error_last()->text, strerror(EDQUOT)) != NULL);
    CHECK_EQ(fault_end(), 1);

    CHECK_EQ(mp_out_open(&out, in_directory("report")), MP_OK);
    fault_nth(FAULT_BIT(linkat), 0);
    CHECK_EQ(mp_out_commit(&out), MP_ERR_IO);
    CHECK_EQ(fault_end(), 1);

    /* No room for the temporary name, though the name itself would fit. */
    memset(long_path, '/', sizeof(long_path) - 2);
    strcpy(long_path + sizeof(long_path) - 3, "x");
    CHECK_EQ(mp_out_open(&out, long_path), MP_ERR_IO);

    CHECK_EQ(stat(in_directory("report"), &info), 0);
    CHECK_EQ(info.st_size, 5);
    CHECK_EQ(count_files(), files_before);
    close(fd_before);
    fd_after = dup(0);
    CHECK_EQ(fd_after, fd_before);
    close(fd_after);
}

/* Without O_TMPFILE, or without /proc to name such a file by, the temporary file has a name. */
static void where_every_file_has_a_name(void)
{
    const unsigned files_before = count_files();
    struct mp_out out;

    for (int i = 0; i < 2; i++) {
        fault_begin(
            &(const struct fault_plan){ .mode = FAULT_ONCE,
                                        .calls = i == 0 ? FAULT_BIT(open) : FAULT_BIT(access),
                                        .error_number = i == 0 ? EOPNOTSUPP : 0 });
        CHECK_EQ(mp_out_open(&out, in_directory("report")), MP_OK);
        CHECK_EQ(fault_end(), 1);
        CHECK_EQ(count_files(), files_before + 1);
        fputs("lost", out.file);
        mp_out_abandon(&out);
        CHECK_EQ(count_files(), files_before);
        CHECK_EQ(mp_out_open(&out, in_directory("report")), MP_OK);
        fputs("named", out.file);
        CHECK_EQ(mp_out_commit(&out), MP_OK);
        CHECK_EQ(count_files(), files_before);
    }
    /* Else nothing can be seen before it is whole. */
    CHECK_EQ(mp_out_open(&out, in_directory("new")), MP_OK);
    CHECK_EQ(count_files(), files_before);
    CHECK_EQ(mp_out_commit(&out), MP_OK);
    CHECK_EQ(count_files(), files_before + 1);
}

static void write_named(const char *name)
{
    FILE *file = fopen(in_directory(name), "w");

    CHECK(file != NULL);
    fputs("left behind", file);
    fclose(file);
}

/* What a killed process left is removed by the next output that needs a name; what may be
 * somebody's is not: of a living process, locked, with a second name, a link, or of another name.
 */
static void what_was_left_behind_is_removed(void)
{
    const unsigned files_before = count_files();
    char live[64], dead[64], kept[5][64];
    struct mp_out out;
    struct stat info;
    int locked, status;
    pid_t pid = fork();

    if (pid == 0)
        _exit(0);
    CHECK(pid > 0);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    snprintf(dead, sizeof(dead), ".moepager-%d-0.tmp", (int)pid);
    snprintf(live, sizeof(live), ".moepager-%d-9999.tmp", (int)getpid());
    for (int i = 0; i < 4; i++)
        snprintf(kept[i], sizeof(kept[i]), ".moepager-%d-%d.tmp", (int)pid, i + 1);
    snprintf(kept[3], sizeof(kept[3]), ".moepager-%d-x.tmp", (int)pid);
    snprintf(kept[4], sizeof(kept[4]), "moepager-%d-5.tmp", (int)pid);
    write_named(dead);
    write_named(live);
    write_named(kept[0]);
    locked = open(in_directory(kept[0]), O_RDONLY | O_CLOEXEC);
    CHECK(locked >= 0 && flock(locked, LOCK_EX | LOCK_NB) == 0);
    CHECK_EQ(symlink(live, in_directory(kept[1])), 0);
    write_named(kept[3]);
    write_named(kept[4]);
    write_named("linked");
    {
        char from[PATH_MAX];

        snprintf(from, sizeof(from), "%s", in_directory("linked"));
        CHECK_EQ(link(from, in_directory(kept[2])), 0);
    }
    fault_begin(&(const struct fault_plan){
        .mode = FAULT_ONCE, .calls = FAULT_BIT(open), .error_number = EOPNOTSUPP });
    CHECK_EQ(mp_out_open(&out, in_directory("report")), MP_OK);
    fault_end();
    CHECK(lstat(in_directory(dead), &info) != 0 && errno == ENOENT);
    CHECK_EQ(lstat(in_directory(live), &info), 0);
    CHECK_EQ(lstat(in_directory("linked"), &info), 0);
    for (int i = 0; i < 5; i++)
        CHECK_EQ(lstat(in_directory(kept[i]), &info), 0);
    mp_out_abandon(&out);
    close(locked);
    unlink(in_directory(live));
    unlink(in_directory("linked"));
    for (int i = 0; i < 5; i++)
        unlink(in_directory(kept[i]));
    CHECK_EQ(count_files(), files_before);
}

/* It is a service: an output does not fail because nothing could be removed. */
static void what_was_left_behind_may_stay(void)
{
    static const struct {
        uint64_t call;
        bool stays;
    } calls[] = { { FAULT_BIT(opendir), true },
                  { FAULT_BIT(openat), true },
                  { FAULT_BIT(fstat), true },
                  { FAULT_BIT(unlinkat), true },
                  { FAULT_BIT(close), false } };
    const unsigned files_before = count_files();
    struct mp_out out;
    struct stat info;
    char name[64];
    int status;
    const pid_t pid = fork();

    if (pid == 0)
        _exit(0);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    snprintf(name, sizeof(name), ".moepager-%d-0.tmp", (int)pid);
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        const struct fault_plan second = { .mode = FAULT_ONCE, .calls = calls[i].call };
        const struct fault_plan first = { .mode = FAULT_ONCE,
                                          .calls = FAULT_BIT(open),
                                          .error_number = EOPNOTSUPP,
                                          .also = &second };

        write_named(name);
        fault_begin(&(const struct fault_plan){
            .mode = FAULT_COUNT, .calls = FAULT_BIT(open) | calls[i].call, .also = &first });
        CHECK_EQ(mp_out_open(&out, in_directory("report")), MP_OK);
        CHECK_EQ(fault_end(), 2);
        CHECK_EQ(lstat(in_directory(name), &info) == 0, calls[i].stays);
        mp_out_abandon(&out);
        unlink(in_directory(name));
        CHECK_EQ(count_files(), files_before);
    }
}

int main(void)
{
    char command[128];

    snprintf(directory, sizeof(directory), "/tmp/moepager-out-XXXXXX");
    CHECK(mkdtemp(directory) != NULL);
    RUN(an_output_file_is_whole_or_not_there);
    RUN(an_output_file_fails_with_its_name);
    RUN(a_full_disk_leaves_the_older_file);
    RUN(a_failed_write_is_not_forgotten);
    RUN(it_can_go_back);
    RUN(a_commit_that_cannot_rename_fails);
    RUN(every_call_of_an_output_file_may_fail);
    RUN(where_every_file_has_a_name);
    RUN(what_was_left_behind_is_removed);
    RUN(what_was_left_behind_may_stay);
    snprintf(command, sizeof(command), "rm -r %s", directory);
    CHECK_EQ(system(command), 0);
    return 0;
}
