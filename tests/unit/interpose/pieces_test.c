/*
 * An expert comes in pieces: what is computed with the first one does not wait for the last one,
 * and a read that fails in the end takes back what was shown.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "interpose/entry/entry_int.h"
#include "tests/support/test.h"
#include "tests/unit/interpose/made_up.h"

enum { GATE, UP, DOWN };

enum { READS_PASS, READS_WAIT, READS_FAIL };
static _Atomic int down_reads; /* of experts 2 to 5 of layer 0 */

ssize_t odd_pread(int fd, void *to, size_t bytes, off_t at) __asm__("pread64");

ssize_t odd_pread(int fd, void *to, size_t bytes, off_t at)
{
    const bool is_down =
        (uint64_t)at >= made_offset(0, DOWN, 1) && (uint64_t)at < made_offset(0, DOWN, 6);

    while (is_down && atomic_load(&down_reads) == READS_WAIT)
        usleep(1000);
    if (is_down && atomic_load(&down_reads) == READS_FAIL) {
        errno = EIO;
        return -1;
    }
    return syscall(SYS_pread64, fd, to, bytes, at);
}

static uint32_t pieces_mapped(uint32_t unit)
{
    struct mp_paged *paged = mp_entry_begin(0);
    uint32_t pieces;

    CHECK(paged != NULL);
    pieces = mp_mappings_has_unit(paged->mappings, unit);
    mp_entry_end(paged);
    return pieces;
}

struct reading {
    const char *base;
    const int32_t *ids;
    _Atomic bool done;
};

static void *read_down(void *arg)
{
    struct reading *reading = arg;

    for (uint32_t i = 0; i < MADE_TOP_K; i++)
        made_read_expert(reading->base, 0, DOWN, (uint32_t)reading->ids[i], reading->ids, 1);
    atomic_store(&reading->done, true);
    return NULL;
}

/* Gates and ups of two absent experts can be used while their downs are being read. */
static void read_until_down(struct reading *reading, pthread_t *thread)
{
    for (uint32_t kind = GATE; kind <= UP; kind++) {
        for (uint32_t i = 0; i < MADE_TOP_K; i++)
            made_read_expert(reading->base, 0, kind, (uint32_t)reading->ids[i], reading->ids, 1);
    }
    for (uint32_t i = 0; i < MADE_TOP_K; i++)
        CHECK_EQ(pieces_mapped((uint32_t)reading->ids[i]), 1u << GATE | 1u << UP);
    CHECK_EQ(pthread_create(thread, NULL, read_down, reading), 0);
    usleep(50000);
    CHECK(!atomic_load(&reading->done));
}

static void the_first_piece_does_not_wait_for_the_last(const char *base)
{
    static const int32_t ids[MADE_TOP_K] = { 2, 4 };
    struct reading reading = { .base = base, .ids = ids };
    pthread_t thread;

    atomic_store(&down_reads, READS_WAIT);
    read_until_down(&reading, &thread);
    atomic_store(&down_reads, READS_PASS);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    for (uint32_t i = 0; i < MADE_TOP_K; i++)
        CHECK_EQ(pieces_mapped((uint32_t)ids[i]), 1u << GATE | 1u << UP | 1u << DOWN);
}

/* The slots go to others at once, which must not show where gates and ups were. */
static void a_failed_read_takes_back_what_was_shown(const char *base)
{
    static const int32_t ids[MADE_TOP_K] = { 3, 5 };
    struct reading reading = { .base = base, .ids = ids };
    pthread_t thread;

    atomic_store(&down_reads, READS_WAIT);
    read_until_down(&reading, &thread);
    atomic_store(&down_reads, READS_FAIL);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    /* The layer ended with the first of the two that failed. */
    CHECK(pieces_mapped((uint32_t)ids[0]) == 0 || pieces_mapped((uint32_t)ids[1]) == 0);
    for (int32_t e = 0; e < (int32_t)MADE_EXPERTS; e++) {
        const int32_t others[MADE_TOP_K] = { e, (e + 1) % (int32_t)MADE_EXPERTS };

        made_run_layer(base, 1, others, 1);
        CHECK(made_is_equal(base, 0, made_file_bytes));
    }
    for (uint32_t i = 0; i < MADE_TOP_K; i++)
        CHECK_EQ(pieces_mapped((uint32_t)ids[i]), 0);
    atomic_store(&down_reads, READS_PASS);
    made_run_layer(base, 0, ids, 1);
}

int main(void)
{
    const char *path = made_path();
    const int fd = open(path, O_RDONLY);
    char *base;

    CHECK(fd >= 0);
    setenv("MOEPAGER_URING", "off", 1);
    setenv("MOEPAGER_PREFETCH", "none", 1);
    setenv("MOEPAGER_POPULATE", "off", 1);
    made_start("300K", "expert");
    base = made_map(fd, made_file_bytes, MAP_SHARED, 0);
    CHECK(made_is_paged(base));
    the_first_piece_does_not_wait_for_the_last(base);
    a_failed_read_takes_back_what_was_shown(base);
    made_unmap(base, made_file_bytes);
    close(fd);
    return 0;
}
