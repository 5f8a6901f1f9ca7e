/*
 * A program closes all descriptors that it does not know, and opens files of its own by the same
 * numbers: it reads its model all the same, and nobody writes to its files or closes them.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/log_guard.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "tests/unit/interpose/made_up.h"

#define OTHERS 64
#define FIRST 3

static _Atomic uint32_t stopped;

static void note_line(void *ctx, enum mp_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    stopped += strstr(line, "no longer paged") != NULL;
}

static void run_tokens(const char *base, uint32_t from, uint32_t to)
{
    for (uint32_t t = from; t < to; t++) {
        for (uint32_t l = 0; l < MADE_LAYERS; l++) {
            const int32_t ids[MADE_TOP_K] = { (int32_t)(t % MADE_EXPERTS),
                                              (int32_t)((t + l + 1) % MADE_EXPERTS) };

            made_run_layer(base, l, ids, 1);
        }
    }
}

/* A file of the model's size, every byte of which is another. */
static void write_other(const char *path)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    unsigned char *bytes = malloc(made_file_bytes);

    CHECK(fd >= 0 && bytes != NULL);
    for (uint64_t i = 0; i < made_file_bytes; i++)
        bytes[i] = (unsigned char)~made_bytes[i];
    CHECK_EQ(write(fd, bytes, made_file_bytes), (long long)made_file_bytes);
    free(bytes);
    close(fd);
}

static bool is_other(int fd)
{
    unsigned char *bytes = mmap(NULL, made_file_bytes, PROT_READ, MAP_SHARED, fd, 0);
    bool same;

    CHECK(bytes != MAP_FAILED);
    same = true;
    for (uint64_t i = 0; i < made_file_bytes && same; i++)
        same = bytes[i] == (unsigned char)~made_bytes[i];
    munmap(bytes, made_file_bytes);
    return same;
}

static void numbers_are_somebody_elses(void)
{
    char path[sizeof(test_tmpdir_path) + 16];
    const int fd = open(made_path(), O_RDONLY);
    struct stat st;
    char *base;

    snprintf(path, sizeof(path), "%s/other", test_tmpdir());
    write_other(path);
    base = made_map(fd, made_file_bytes, MAP_SHARED, 0);
    CHECK(made_is_paged(base));
    run_tokens(base, 0, 6);

    CHECK_EQ(close_range(FIRST, ~0u, 0), 0);
    for (int i = FIRST; i < FIRST + OTHERS; i++)
        CHECK_EQ(open(path, O_RDWR), i);
    run_tokens(base, 2, 40); /* each compares what it reads */
    CHECK(made_is_equal(base, 0, made_file_bytes));
    CHECK_EQ(atomic_load(&stopped), 1);
    run_tokens(base, 0, 10);
    made_unmap(base, made_file_bytes);
    for (int i = FIRST; i < FIRST + OTHERS; i++)
        CHECK(fstat(i, &st) == 0);
    CHECK(is_other(FIRST));
}

/* And what is mapped after that is paged as if nothing had been. */
static void another_mapping_is_paged(void)
{
    const int fd = open(made_path(), O_RDONLY);
    char *base = made_map(fd, made_file_bytes, MAP_SHARED, 0);

    CHECK(made_is_paged(base));
    run_tokens(base, 0, 20);
    CHECK(made_is_equal(base, 0, made_file_bytes));
    made_unmap(base, made_file_bytes);
    CHECK(!made_is_paged(base));
    close(fd);
}

int main(void)
{
    made_path();
    made_start("300KiB", "expert");
    mp_log_set_sink(note_line, NULL);
    RUN(numbers_are_somebody_elses);
    RUN(another_mapping_is_paged);
    return 0;
}
