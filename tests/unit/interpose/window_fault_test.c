/*
 * Every call that the interposer makes fails once, at each of its places: the program still reads
 * its file, and a mapping that ended leaves nothing behind.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/fault/wrap.h"
#include "tests/support/log_guard.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "tests/unit/interpose/made_up.h"

static uint32_t paged_runs, runs;
static _Atomic uint32_t stopped;

static void note_line(void *ctx, enum mp_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    stopped += strstr(line, "no longer paged") != NULL;
}

static void run_some_tokens(const char *base)
{
    for (uint32_t t = 0; t < 6; t++) {
        for (uint32_t l = 0; l < MADE_LAYERS; l++) {
            const int32_t ids[MADE_TOP_K] = { (int32_t)(t % MADE_EXPERTS),
                                              (int32_t)((3 * t + l + 1) % MADE_EXPERTS) };

            if (ids[0] != ids[1])
                made_run_layer(base, l, ids, 1);
        }
    }
}

/* A copy of the model for each run, because a refused file is not looked at again. */
static const char *copy_model(void)
{
    static char copy[sizeof(test_tmpdir_path) + 32];
    static unsigned number;
    int fd;

    if (number > 0)
        unlink(copy);
    snprintf(copy, sizeof(copy), "%s/copy-%u.gguf", test_tmpdir(), number++);
    made_path();
    fd = open(copy, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0);
    CHECK_EQ(write(fd, made_bytes, made_file_bytes), (long long)made_file_bytes);
    close(fd);
    return copy;
}

static void use_model(const struct fault_plan *plan, void *ctx)
{
    const char *path = copy_model();
    const int fd = open(path, O_RDONLY);
    char *base;

    (void)ctx;
    CHECK(fd >= 0);
    fault_begin(plan);
    base = made_map(fd, made_file_bytes, MAP_SHARED, 0);
    run_some_tokens(base);
    fault_end();
    paged_runs += made_is_paged(base);
    runs++;
    CHECK(made_is_equal(base, 0, made_file_bytes));
    run_some_tokens(base);
    made_unmap(base, made_file_bytes);
    CHECK(!made_is_paged(base));
    close(fd);
}

static void every_call_fails_once(void)
{
    CHECK(fault_sweep(FAULT_ANY, use_model, NULL) > 30);
    fprintf(stderr, "    %u of %u runs were paged\n", paged_runs, runs);
    CHECK(paged_runs > runs / 4 && paged_runs < runs);
}

/* Mapping a slot over the file fails, then mapping the file back; moving its pages there, and back;
 * moving what is no expert over the file. */
static void mappings_fail_once_and_for_good(void)
{
    static const struct fault_plan none = { .mode = FAULT_COUNT };

    for (int n = 0; n < 60; n++) {
        atomic_store(&made_mmap_fails, n);
        use_model(&none, NULL);
        atomic_store(&made_mmap_fails, -1);
    }
    for (int n = 0; n < 60; n++) {
        atomic_store(&made_mremap_fails, n);
        use_model(&none, NULL);
        atomic_store(&made_mremap_fails, -1);
    }
}

/* Reads end early, or at the end of the file. */
static void short_reads_are_not_believed(void)
{
    for (uint32_t bytes = 1; bytes <= 3; bytes++) {
        const struct fault_plan plan = {
            .mode = FAULT_ALWAYS,
            .calls = FAULT_BIT(pread) | FAULT_BIT(io_uring_read),
            .skip = 40,
            .short_bytes = bytes == 3 ? FAULT_EOF : 512 * bytes,
        };

        use_model(&plan, NULL);
    }
}

/* The file is written to, cut, or another one takes its name: from the moment at which that is
 * seen, the mapping is the file's for good. */
static void a_changed_file_is_no_longer_paged(void)
{
    stopped = 0;
    for (int how = 0; how < 3; how++) {
        const char *path = copy_model();
        const int fd = open(path, O_RDONLY), out = open(path, O_WRONLY);
        const uint64_t cut = made_offset(2, 2, 6);
        char *base, other[sizeof(test_tmpdir_path) + 16];
        uint64_t end = made_file_bytes;

        base = made_map(fd, made_file_bytes, MAP_SHARED, 0);
        CHECK(made_is_paged(base));
        run_some_tokens(base);
        snprintf(other, sizeof(other), "%s/other", test_tmpdir());
        usleep(20000);
        if (how == 0)
            CHECK_EQ(pwrite(out, "changed", 7, (off_t)made_offset(1, 1, 1)), 7);
        else if (how == 1)
            CHECK_EQ(ftruncate(out, (off_t)(end = cut / 4096 * 4096)), 0);
        else
            CHECK(close(open(other, O_WRONLY | O_CREAT, 0600)) == 0 && rename(other, path) == 0);
        for (int wait = 0; wait < 400 && stopped == (uint32_t)how; wait++)
            usleep(10000);
        CHECK_EQ(stopped, how + 1);
        if (how == 0)
            CHECK(memcmp(base + made_offset(1, 1, 1), "changed", 7) == 0);
        CHECK(made_is_equal(base, made_offset(1, 1, 2), end));
        made_unmap(base, made_file_bytes);
        close(fd), close(out);
    }
}

int main(void)
{
    made_path();
    made_start("300KiB", "expert");
    mp_log_set_sink(note_line, NULL);
    RUN(every_call_fails_once);
    RUN(mappings_fail_once_and_for_good);
    RUN(short_reads_are_not_believed);
    RUN(a_changed_file_is_no_longer_paged);
    return 0;
}
