#ifndef MP_TEST_SPACE_FILES_H
#define MP_TEST_SPACE_FILES_H

/* Files whose every byte follows from its place, and the check that pieces hold those bytes. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "vmm/base/error.h"
#include "vmm/space/space.h"

#define MIB (UINT64_C(1) << 20)

static const struct mp_backend_config test_backend_config = { .numa_node = -1, .huge_pages = true };

static inline unsigned char test_byte(uint32_t file, uint64_t offset)
{
    return (unsigned char)((offset * 2654435761u >> 11) + file * 37 + (offset >> 17));
}

/* Write the file number `file` of a set, named after it, and append it to `files`. */
static inline void test_add_file(struct mp_files *files, uint32_t file, uint64_t bytes)
{
    static unsigned char buffer[65536];
    char path[4200];
    uint32_t index = UINT32_MAX;
    int fd;

    snprintf(path, sizeof(path), "%s/weights-%u.bin", test_tmpdir(), file);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    CHECK(fd >= 0);
    for (uint64_t done = 0; done < bytes;) {
        const size_t n = bytes - done < sizeof(buffer) ? (size_t)(bytes - done) : sizeof(buffer);

        for (size_t i = 0; i < n; i++)
            buffer[i] = test_byte(file, done + i);
        CHECK_EQ(write(fd, buffer, n), n);
        done += n;
    }
    CHECK_EQ(close(fd), 0);
    CHECK_EQ(mp_files_add(files, AT_FDCWD, path, &index), MP_OK);
    CHECK_EQ(index, file);
}

/* Append the first `count` files of a set, which were written before. */
static inline enum mp_status test_open_files(struct mp_files *files, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        char path[4200];
        uint32_t index;
        enum mp_status status;

        snprintf(path, sizeof(path), "%s/weights-%u.bin", test_tmpdir_path, i);
        status = mp_files_add(files, AT_FDCWD, path, &index);
        if (status != MP_OK)
            return status;
        CHECK_EQ(index, i);
    }
    return MP_OK;
}

static inline bool test_pieces_are_right(const struct mp_unit *unit, const void *const *pieces)
{
    for (uint32_t i = 0; i < unit->piece_count; i++) {
        const struct mp_piece *piece = &unit->pieces[i];
        const unsigned char *bytes = pieces[i];

        for (uint64_t k = 0; k < piece->bytes; k++) {
            if (bytes[k] != test_byte(piece->file, piece->offset_bytes + k))
                return false;
        }
    }
    return true;
}

/* Lease, look at every byte, release. */
static inline void test_verify_unit(struct mp_space *space, const struct mp_unit *units,
                                    uint32_t unit)
{
    const void *pieces[MP_UNIT_PIECES_MAX];

    CHECK_EQ(mp_space_lease(space, unit, pieces), MP_OK);
    CHECK(test_pieces_are_right(&units[unit], pieces));
    mp_space_release(space, unit);
}

static inline struct mp_reader_config test_reader_config(void)
{
    return (
        struct mp_reader_config){ .uring = false, .depth = 4, .threads = 2, .chunk_bytes = 65536 };
}

#endif
