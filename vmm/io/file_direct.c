/*
 * Finds the alignment that direct reads of a file need, from the kernel's report and by trial.
 * Opens nothing.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/base/assert.h"
#include "vmm/io/file_int.h"

/* Slots and extents are multiples of this anyway, so less is never reported. */
#define DIRECT_ALIGN_MIN 4096
#define DIRECT_ALIGN_MAX 65536

/*
 * The alignment that the kernel reports, at least DIRECT_ALIGN_MIN. 0: no direct reads here.
 * DIRECT_ALIGN_MIN too where it does not say; then the probe decides.
 */
static uint32_t direct_align(int fd)
{
    struct statx st = { 0 };
    uint32_t align = DIRECT_ALIGN_MIN;

    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &st) != 0 ||
        (st.stx_mask & STATX_DIOALIGN) == 0)
        return align;
    if (st.stx_dio_offset_align == 0)
        return 0;
    while (align < st.stx_dio_offset_align || align < st.stx_dio_mem_align) {
        if (align == DIRECT_ALIGN_MAX)
            return 0;
        align *= 2;
    }
    mp_assert(align <= DIRECT_ALIGN_MAX && (align & (align - 1)) == 0);
    return align;
}

/* Read the first block; 0 if it arrived whole, else the errno. */
static int probe_read(int fd, uint64_t file_bytes, uint32_t align, void *block)
{
    const uint64_t want = file_bytes < align ? file_bytes : align;
    struct mp_read_tries tries = { 0 };
    ssize_t got;

    mp_assert(align >= DIRECT_ALIGN_MIN && align <= DIRECT_ALIGN_MAX);
    for (;;) {
        got = pread(fd, block, align, 0);
        if (got >= 0)
            return (uint64_t)got >= want && want > 0 ? 0 : ENODATA;
        if (!mp_read_again(&tries, errno))
            return errno;
    }
}

uint32_t mp_file_direct_align(int fd, uint64_t file_bytes)
{
    uint32_t align = direct_align(fd);
    void *block;
    int error_number = posix_memalign(&block, DIRECT_ALIGN_MAX, DIRECT_ALIGN_MAX);

    if (error_number != 0) {
        errno = error_number;
        return 0;
    }
    error_number = EINVAL;
    while (align != 0) {
        error_number = probe_read(fd, file_bytes, align, block);
        if (error_number == 0)
            break;
        align = error_number == EINVAL && align < DIRECT_ALIGN_MAX ? align * 2 : 0;
    }
    free(block);
    errno = error_number;
    mp_assert(align == 0 || error_number == 0);
    return align;
}
