/* Files with known contents; see reader_files.h. */
#include "tests/unit/vmm/io/reader_files.h"

#include <fcntl.h>
#include <liburing.h>

#include "tests/support/test.h"

static const uint64_t sizes[TEST_FILES] = { 100003, 3 * 65536 + 1234, 777777, 1500 };

unsigned char test_byte(uint32_t file, uint64_t offset)
{
    return (unsigned char)((offset * 2654435761u >> 11) ^ file * 31u);
}

void test_write_file(const char *path, uint32_t file, uint64_t bytes)
{
    FILE *out = fopen(path, "wb");

    CHECK(out != NULL);
    for (uint64_t i = 0; i < bytes; i++)
        CHECK(putc(test_byte(file, i), out) != EOF);
    CHECK_EQ(fclose(out), 0);
}

void test_file_path(char path[4200], uint32_t file)
{
    snprintf(path, 4200, "%s/file-%u", test_tmpdir(), file);
}

void test_files_write(void)
{
    char path[4200];

    for (uint32_t i = 0; i < TEST_FILES; i++) {
        test_file_path(path, i);
        test_write_file(path, i, sizes[i]);
    }
}

struct mp_files *test_files_open(void)
{
    struct mp_files *files = NULL;
    char path[4200];
    uint32_t index;

    CHECK_EQ(mp_files_create(&files), MP_OK);
    for (uint32_t i = 0; i < TEST_FILES; i++) {
        test_file_path(path, i);
        CHECK_EQ(mp_files_add(files, AT_FDCWD, path, &index), MP_OK);
        CHECK_EQ(index, i);
    }
    return files;
}

uint64_t test_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Where extents of a ticket begin; buffered, number i begins i bytes behind, at odd addresses too.
 */
#define PLACE_BYTES 65536

static uint64_t round_up(uint64_t value, uint64_t align)
{
    return (value + align - 1) / align * align;
}

unsigned char *test_random_ticket(struct mp_files *files, struct mp_ticket *ticket, uint64_t *seed)
{
    unsigned char *memory;
    uint64_t used = 0;

    memset(ticket, 0, sizeof(*ticket));
    ticket->extent_count = 1 + (uint32_t)(test_random(seed) % MP_TICKET_EXTENTS_MAX);
    ticket->direct = test_random(seed) % 2 == 0;
    ticket->priority = (enum mp_priority)(test_random(seed) % MP_PRIORITY_COUNT);
    for (uint32_t i = 0; i < ticket->extent_count; i++) {
        struct mp_extent *extent = &ticket->extents[i];
        uint32_t align = 1;
        uint64_t left;

        extent->file = (uint32_t)(test_random(seed) % TEST_FILES);
        if (ticket->direct && mp_files_direct_fd(files, extent->file, &align) < 0)
            align = 1;
        extent->offset = test_random(seed) % sizes[extent->file] / align * align;
        left = sizes[extent->file] - extent->offset;
        extent->need_bytes = test_random(seed) % 4 == 0 ? left : test_random(seed) % (left + 1);
        extent->bytes = round_up(extent->need_bytes, align);
        used += round_up(extent->bytes + (ticket->direct ? 0 : i), PLACE_BYTES);
    }
    CHECK_EQ(posix_memalign((void **)&memory, PLACE_BYTES, used + PLACE_BYTES), 0);
    used = 0;
    for (uint32_t i = 0; i < ticket->extent_count; i++) {
        ticket->extents[i].dst = memory + used + (ticket->direct ? 0 : i);
        used += round_up(ticket->extents[i].bytes + (ticket->direct ? 0 : i), PLACE_BYTES);
    }
    return memory;
}

void test_check_ticket(const struct mp_ticket *ticket)
{
    for (uint32_t i = 0; i < ticket->extent_count; i++) {
        const struct mp_extent *extent = &ticket->extents[i];

        for (uint64_t b = 0; b < extent->need_bytes; b++) {
            const unsigned char got = ((const unsigned char *)extent->dst)[b];

            if (got != test_byte(extent->file, extent->offset + b)) {
                fprintf(stderr, "file %u byte %llu is wrong\n", extent->file,
                        (unsigned long long)(extent->offset + b));
                exit(1);
            }
        }
    }
}

bool test_uring_works(void)
{
    struct io_uring ring;

    if (io_uring_queue_init(4, &ring, 0) != 0)
        return false;
    io_uring_queue_exit(&ring);
    return true;
}
