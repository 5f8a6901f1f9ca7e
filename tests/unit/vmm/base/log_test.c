/* Lines are read back from files and from a replaced stderr, some in child processes. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/log_guard.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

static char directory[64];

static const char *in_directory(const char *name)
{
    static char path[128];

    snprintf(path, sizeof(path), "%s/%s", directory, name);
    return path;
}

static unsigned init(const char *levels, const char *file)
{
    struct mp_log_config config;

    snprintf(config.levels, sizeof(config.levels), "%s", levels);
    snprintf(config.file, sizeof(config.file), "%s", file);
    return mp_log_init(&config);
}

struct caught {
    char text[4096];
    unsigned count;
};

static struct caught caught;

static void catch_line(void *ctx, enum mp_log_level level, const char *line)
{
    struct caught *to = ctx;

    (void)level;
    snprintf(to->text, sizeof(to->text), "%s", line);
    to->count++;
    mp_log_warn("test", "a line from inside the log is dropped");
}

static void levels_select_by_module(void)
{
    const uint64_t before = mp_log_lines(MP_LOG_DEBUG);

    mp_log_set_sink(catch_line, &caught);
    memset(&caught, 0, sizeof(caught));
    CHECK_EQ(init("info,pager:debug,quiet:error", ""), 0);
    mp_log_info("other", "one %d", 1);
    mp_log_debug("other", "not wanted");
    mp_log_debug("pager", "two");
    mp_log_trace("pager", "not wanted");
    mp_log_warn("quiet", "not wanted");
    CHECK_EQ(caught.count, 2);
    CHECK_STR(caught.text, "moepager: debug: pager: two");
    CHECK_EQ(mp_log_lines(MP_LOG_DEBUG), before + 1);
    mp_log_fini();
    mp_log_info("other", "not wanted any more");
    CHECK_EQ(caught.count, 2);
}

static void wrong_levels_are_said_and_skipped(void)
{
    memset(&caught, 0, sizeof(caught));
    CHECK_EQ(init("loud,pager:,:debug,x\ny:info,debug", ""), 4);
    CHECK_EQ(caught.count, 4);
    mp_log_debug("any", "the good part counts");
    CHECK_EQ(caught.count, 5);
    mp_log_fini();
}

/* Sixteen modules, of 23 letters each; both readers of the list count alike. */
static void so_many_modules_have_levels_of_their_own(void)
{
    struct mp_log_config config = { .file = "" };

    for (int many = 16; many <= 17; many++) {
        config.levels[0] = '\0';
        for (int i = 0; i < many; i++)
            snprintf(config.levels + strlen(config.levels), 16, "m%d:info,", i);
        memset(&caught, 0, sizeof(caught));
        CHECK_EQ(mp_log_init(&config), many - 16);
        CHECK_EQ(caught.count, many - 16);
        CHECK_EQ(mp_log_check(&config), many == 16 ? MP_OK : MP_ERR_CONFIG);
        mp_log_fini();
    }
    CHECK(strstr(mp_error_last()->text, "has 'm16:info'") != NULL);
    for (int letters = 23; letters <= 24; letters++) {
        snprintf(config.levels, sizeof(config.levels), "%.*s:info", letters,
                 "abcdefghijklmnopqrstuvwx");
        CHECK_EQ(mp_log_check(&config), letters == 23 ? MP_OK : MP_ERR_CONFIG);
    }
}

static void a_line_is_one_line_of_bounded_length(void)
{
    char big[5000];
    const size_t lines = 3;

    memset(big, 'a', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    memset(&caught, 0, sizeof(caught));
    mp_log_warn("test", "%s", big);
    CHECK_EQ(strlen(caught.text), 1022); /* a line of 1024 with its end, and NUL for a sink */
    mp_log_warn("test", "a\nb\x1b[2J");
    CHECK_STR(caught.text, "moepager: warn: test: a?b?[2J");
    for (size_t i = 0; i < lines; i++)
        mp_log_once(MP_LOG_WARN, "test", "once");
    CHECK_EQ(caught.count, 3);
}

static void errno_survives_a_line(void)
{
    errno = ENOTTY;
    mp_log_warn("test", "%s", "x");
    CHECK_EQ(errno, ENOTTY);
}

static void a_failure_carries_its_code(void)
{
    mp_test_expected_errors++;
    if (mp_fail(MP_ERR_IO, "E_READ", "short") == MP_ERR_IO)
        mp_log_failure("file");
    CHECK_STR(caught.text, "moepager: error: file: error[E_READ]: short");
    mp_log_set_sink(NULL, NULL);
}

static void *write_lines(void *name)
{
    for (int i = 0; i < 200; i++)
        mp_log_info("thread", "%s %d abcdefghijklmnopqrstuvwxyz end", (const char *)name, i);
    return NULL;
}

static void a_file_gets_whole_lines_of_all_threads(void)
{
    char path[128], line[256];
    pthread_t threads[4];
    struct stat info;
    unsigned count = 0;
    FILE *file;

    snprintf(path, sizeof(path), "%s", in_directory("log"));
    CHECK_EQ(init("info", path), 0);
    for (int i = 0; i < 4; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, write_lines, (void *)"t"), 0);
    for (int i = 0; i < 4; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    mp_log_fini();
    CHECK_EQ(stat(path, &info), 0);
    CHECK_EQ(info.st_mode & 0777, 0600);
    file = fopen(path, "r");
    CHECK(file != NULL);
    while (fgets(line, sizeof(line), file) != NULL) {
        CHECK(strstr(line, " info: thread: t ") != NULL);
        CHECK_STR(line + strlen(line) - strlen(" xyz end\n") + 1, "xyz end\n");
        count++;
    }
    fclose(file);
    CHECK_EQ(count, 800);
}

static void a_bad_file_is_said_once_and_stderr_used(void)
{
    static const char *const names[] = { "link", "fifo", "none/log", "" };

    CHECK_EQ(symlink("log", in_directory("link")), 0);
    CHECK_EQ(mkfifo(in_directory("fifo"), 0600), 0);
    mp_log_set_sink(catch_line, &caught);
    for (size_t i = 0; i < 4; i++) {
        memset(&caught, 0, sizeof(caught));
        CHECK_EQ(init("warn", in_directory(names[i])), 1);
        CHECK_EQ(caught.count, 1);
        CHECK(strstr(caught.text, "cannot open log file") != NULL);
        mp_log_fini();
    }
    mp_log_set_sink(NULL, NULL);
}

/* Runs this program again with `how`, its descriptor 2 prepared by the shell. */
static int run_child(const char *how, const char *redirection)
{
    char command[512];
    int result;

    snprintf(command, sizeof(command), "/proc/%d/exe %s %s %s", (int)getpid(), how, directory,
             redirection);
    result = system(command);
    return WIFEXITED(result) ? WEXITSTATUS(result) : 128 + WTERMSIG(result);
}

/* The program opens a file, which becomes descriptor 2: the log must keep out of it. */
static int child_with_stderr_closed(void)
{
    struct stat info;
    int fd = open(in_directory("data"), O_RDWR | O_CREAT | O_TRUNC, 0600);

    if (fd != STDERR_FILENO)
        return 3;
    mp_log_warn("test", "must not appear");
    if (init("warn", in_directory("log2")) != 0)
        return 4;
    mp_log_warn("test", "appears in the log file");
    mp_log_fini();
    mp_log_warn("test", "must not appear");
    return fstat(fd, &info) == 0 && info.st_size == 0 ? 0 : 5;
}

/* The log file must not become descriptor 2 either. */
static int child_with_log_first(void)
{
    if (init("warn", in_directory("log3")) != 0)
        return 4;
    mp_log_warn("test", "appears in the log file");
    return fcntl(STDERR_FILENO, F_GETFD) == -1 ? 0 : 5;
}

/* SIGPIPE keeps its default action, which would end the program. */
static int child_with_broken_pipe(void)
{
    int ends[2];

    if (pipe(ends) != 0 || dup2(ends[1], STDERR_FILENO) < 0)
        return 3;
    close(ends[0]);
    for (int i = 0; i < 3; i++)
        mp_log_warn("test", "nobody listens");
    return 0;
}

static void a_closed_stderr_is_never_written_to(void)
{
    CHECK_EQ(run_child("closed", "2>&-"), 0);
    CHECK_EQ(run_child("log-first", "2>&-"), 0);
}

static void a_broken_pipe_or_full_disk_does_no_harm(void)
{
    CHECK_EQ(run_child("pipe", ""), 0);
    CHECK_EQ(init("warn", "/dev/full"), 0);
    mp_log_warn("test", "no space for this line");
    mp_log_fini();
}

int main(int argc, char **argv)
{
    char command[128];

    if (argc > 2) {
        snprintf(directory, sizeof(directory), "%s", argv[2]);
        if (strcmp(argv[1], "closed") == 0)
            return child_with_stderr_closed();
        if (strcmp(argv[1], "log-first") == 0)
            return child_with_log_first();
        return child_with_broken_pipe();
    }
    snprintf(directory, sizeof(directory), "/tmp/moepager-log-XXXXXX");
    CHECK(mkdtemp(directory) != NULL);
    RUN(levels_select_by_module);
    RUN(wrong_levels_are_said_and_skipped);
    RUN(so_many_modules_have_levels_of_their_own);
    RUN(a_line_is_one_line_of_bounded_length);
    RUN(errno_survives_a_line);
    RUN(a_failure_carries_its_code);
    RUN(a_file_gets_whole_lines_of_all_threads);
    RUN(a_bad_file_is_said_once_and_stderr_used);
    RUN(a_closed_stderr_is_never_written_to);
    RUN(a_broken_pipe_or_full_disk_does_no_harm);
    snprintf(command, sizeof(command), "rm -r %s", directory);
    CHECK_EQ(system(command), 0);
    return 0;
}
