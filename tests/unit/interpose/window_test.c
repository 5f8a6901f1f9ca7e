/*
 * Whoever reads a paged mapping at any time, by whatever means, reads the file. The argument says
 * how it is learned what is read.
 */
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/random.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "tests/unit/interpose/made_up.h"

#define TOUCHES 1000000
#define TOUCHERS 4

static const char *hooks;
static _Atomic bool stop;
static _Atomic uint64_t touches;

static int open_model(void)
{
    const int fd = open(made_path(), O_RDONLY);

    CHECK(fd >= 0);
    return fd;
}

static char *map_model(void)
{
    const int fd = open_model();
    char *base = made_map(fd, made_file_bytes, MAP_SHARED, 0);

    close(fd);
    CHECK(made_is_paged(base));
    return base;
}

static void choose(int32_t ids[MADE_TOP_K], uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    ids[0] = (int32_t)((*state >> 33) % MADE_EXPERTS);
    ids[1] = (int32_t)((ids[0] + 1 + (*state >> 50) % (MADE_EXPERTS - 1)) % MADE_EXPERTS);
}

static void run_tokens(const char *base, uint32_t tokens, uint64_t seed)
{
    for (uint32_t t = 0; t < tokens; t++) {
        for (uint32_t l = 0; l < MADE_LAYERS; l++) {
            int32_t ids[MADE_TOP_K];

            choose(ids, &seed);
            if (strcmp(hooks, "router") == 0 && made_is_paged(base))
                made_show_router(l, ids, 1);
            made_run_layer(base, l, ids, 1);
        }
    }
}

static void *touch(void *arg)
{
    const char *base = arg;
    uint64_t state = (uintptr_t)&state, n = 0;

    while (!atomic_load(&stop)) {
        for (int i = 0; i < 1000; i++, n++) {
            uint64_t at;

            state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            at = (state >> 20) % made_file_bytes;
            CHECK_EQ((unsigned char)base[at], made_bytes[at]);
        }
    }
    atomic_fetch_add(&touches, n);
    return NULL;
}

static void *run_until_stopped(void *arg)
{
    for (uint64_t n = 1; !atomic_load(&stop); n++)
        run_tokens(arg, 4, n);
    return NULL;
}

static void any_byte_at_any_time_is_the_files(void)
{
    pthread_t touchers[TOUCHERS], runner;
    char *base = map_model();

    atomic_store(&stop, false);
    atomic_store(&touches, 0);
    for (int i = 0; i < TOUCHERS; i++)
        CHECK_EQ(pthread_create(&touchers[i], NULL, touch, base), 0);
    CHECK_EQ(pthread_create(&runner, NULL, run_until_stopped, base), 0);
    for (uint64_t n = 1; n <= 60; n++)
        run_tokens(base, 8, n << 20);
    usleep(200000);
    atomic_store(&stop, true);
    CHECK_EQ(pthread_join(runner, NULL), 0);
    for (int i = 0; i < TOUCHERS; i++)
        CHECK_EQ(pthread_join(touchers[i], NULL), 0);
    fprintf(stderr, "    %llu touches\n", (unsigned long long)atomic_load(&touches));
    CHECK(atomic_load(&touches) >= TOUCHES / 10);
    CHECK(made_is_equal(base, 0, made_file_bytes));
    made_unmap(base, made_file_bytes);
    CHECK(!made_is_paged(base));
}

/* The child reads the file, whatever the parent does with its slots meanwhile. */
static void a_forked_child_reads_the_file(void)
{
    char *base = map_model();
    int status, ready[2];
    pid_t child;

    run_tokens(base, 20, 3);
    CHECK_EQ(pipe(ready), 0);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char c;

        CHECK_EQ(read(ready[0], &c, 1), 1);
        CHECK(!made_is_paged(base));
        run_tokens(base, 2, 9);
        CHECK(made_is_equal(base, 0, made_file_bytes));
        made_unmap(base, made_file_bytes);
        _exit(0);
    }
    run_tokens(base, 40, 4);
    CHECK_EQ(write(ready[1], "x", 1), 1);
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(made_is_equal(base, 0, made_file_bytes));
    close(ready[0]), close(ready[1]);
    made_unmap(base, made_file_bytes);
}

/* The kernel reads for the program. */
static void system_calls_read_the_file(void)
{
    char copy[sizeof(test_tmpdir_path) + 8];
    char *base = map_model(), *back;
    uint64_t done = 0;
    int fd;

    run_tokens(base, 30, 5);
    snprintf(copy, sizeof(copy), "%s/copy", test_tmpdir());
    fd = open(copy, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0);
    while (done < made_file_bytes) {
        const ssize_t n = write(fd, base + done, made_file_bytes - done);

        CHECK(n > 0);
        done += (uint64_t)n;
    }
    back = mmap(NULL, made_file_bytes, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(back != MAP_FAILED);
    CHECK(made_is_equal(back, 0, made_file_bytes));
    munmap(back, made_file_bytes);
    close(fd);
    made_unmap(base, made_file_bytes);
}

/* The first part of a range that is paged; 0, 0: none is. */
static void expect_part(const char *at, uint64_t bytes, uint64_t begin, uint64_t end)
{
    struct mp_paged_part part = { 0 };

    CHECK_EQ(mp_interposer_table.find_part(at, bytes, &part), end > 0);
    CHECK_EQ(part.begin, begin);
    CHECK_EQ(part.end, end);
    CHECK_EQ(part.prot, end > 0 ? PROT_READ : 0);
}

/* Parts that the program unmaps, as llama.cpp does with what it does not need, are gone, and what
 * it maps there is its own. */
static void unmapped_parts_are_the_programs(void)
{
    char *base = map_model();
    const uint64_t hole = made_offset(1, 0, 3) / 4096 * 4096, bytes = 5 * 4096;
    char *mine;

    run_tokens(base, 30, 6);
    expect_part(base, made_file_bytes, 0, made_file_bytes);
    made_unmap(base, 4096);
    made_unmap(base + hole, bytes);
    expect_part(base, made_file_bytes, 4096, hole);
    expect_part(base + hole - 1, made_file_bytes, 0, 1);
    expect_part(base + hole, made_file_bytes - hole, bytes, made_file_bytes - hole);
    expect_part(base + hole, bytes + 1, bytes, bytes + 1);
    expect_part(base + hole, bytes, 0, 0);
    expect_part(base - 4096, 3 * 4096, 2 * 4096, 3 * 4096);
    mine = mmap(base + hole, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
                -1, 0);
    CHECK(mine == base + hole);
    memset(mine, 0x5a, bytes);
    for (uint32_t t = 0; t < 30; t++) {
        for (int32_t e = 0; e < (int32_t)MADE_EXPERTS; e++) {
            const int32_t ids[MADE_TOP_K] = { e, (e + 1) % (int32_t)MADE_EXPERTS };

            made_run_layer(base, 0, ids, 1);
            made_run_layer(base, 2, ids, 1);
        }
    }
    for (uint64_t i = 0; i < bytes; i++)
        CHECK_EQ(mine[i], 0x5a);
    CHECK(made_is_equal(base, 4096, hole));
    CHECK(made_is_equal(base, hole + bytes, made_file_bytes));
    made_unmap(base + hole + bytes, made_file_bytes - hole - bytes);
    made_unmap(base + 4096, hole - 4096);
    munmap(mine, bytes);
    CHECK(!made_is_paged(base + 8192));
}

/* A prompt: many tokens, more experts than there is room for. */
static void what_has_no_room_is_read_in_place(void)
{
    char *base = map_model();
    int32_t ids[MADE_EXPERTS * MADE_TOP_K];

    for (uint32_t t = 0; t < MADE_EXPERTS; t++) {
        ids[2 * t] = (int32_t)t;
        ids[2 * t + 1] = (int32_t)((t + 3) % MADE_EXPERTS);
    }
    for (uint32_t n = 0; n < 3; n++) {
        for (uint32_t l = 0; l < MADE_LAYERS; l++)
            made_run_layer(base, l, ids, MADE_EXPERTS);
        run_tokens(base, 5, n);
    }
    CHECK(made_is_equal(base, 0, made_file_bytes));
    made_unmap(base, made_file_bytes);
}

static void of_several_mappings_the_latest_is_paged(void)
{
    char *base = map_model();
    const int fd = open_model();
    char *second;

    run_tokens(base, 10, 7);
    second = made_map(fd, made_file_bytes, MAP_PRIVATE, 0);
    CHECK(!made_is_paged(base) && made_is_paged(second));
    CHECK(made_is_equal(base, 0, made_file_bytes));
    run_tokens(second, 10, 7);
    CHECK(made_is_equal(base, 0, made_file_bytes));
    made_unmap(base, made_file_bytes);
    run_tokens(second, 10, 8);
    made_unmap(second, made_file_bytes);
    second = made_map(fd, made_file_bytes - 8192, MAP_PRIVATE, 8192);
    CHECK(made_is_paged(second));
    run_tokens(second - 8192, 10, 8);
    CHECK(made_is_equal(second - 8192, 8192, made_file_bytes));
    made_unmap(second, made_file_bytes - 8192);
    close(fd);
}

/* A private mapping may be written to, as torch makes them: what was written stays, wherever the
 * expert is then. Such a program says itself what it reads. */
static void what_the_program_writes_stays(void)
{
    const uint64_t at = made_offset(1, 0, 1) + 6000;
    const int fd = open_model();

    for (int resident = 0; resident < 2; resident++) {
        char *base = made_map_to_write(fd, made_file_bytes);

        CHECK(made_is_paged(base));
        if (resident == 1)
            CHECK(made_announce(base, 1, (int64_t[]){ 1, 5 }, 2));
        base[at] ^= 1;
        for (uint32_t t = 0; t < 20; t++) {
            for (uint32_t l = 0; l < MADE_LAYERS; l++) {
                /* When the expert that was written to is to leave, paging ends. */
                (void)made_announce(base, l, (int64_t[]){ t % 8, (t + 1) % 8, 99, -1 }, 4);
                CHECK_EQ((unsigned char)base[at], made_bytes[at] ^ 1);
                CHECK(made_is_equal(base, 0, at) && made_is_equal(base, at + 1, made_file_bytes));
            }
        }
        CHECK(!made_announce(base + 64, 1, (int64_t[]){ 1 }, 1));
        made_unmap(base, made_file_bytes);
    }
    close(fd);
}

int main(int argc, char **argv)
{
    CHECK_EQ(argc, 2);
    hooks = argv[1];
    made_path();
    made_start("300KiB", hooks);
    RUN(any_byte_at_any_time_is_the_files);
    RUN(a_forked_child_reads_the_file);
    RUN(system_calls_read_the_file);
    RUN(unmapped_parts_are_the_programs);
    RUN(what_has_no_room_is_read_in_place);
    RUN(of_several_mappings_the_latest_is_paged);
    RUN(what_the_program_writes_stays);
    return 0;
}
