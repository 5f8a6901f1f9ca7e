/*
 * Entries of the page table that move with the slots; see moves.h.
 */
#include "interpose/mapping/moves.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "vmm/base/log.h"
#include "vmm/space/space.h"

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

#define WORD_BITS 64

static bool move(struct mp_moves *moves, const struct mp_real *real, char *from, uint64_t bytes,
                 char *to)
{
    if (real->mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to) ==
        MAP_FAILED)
        return false;
    moves->count++;
    return true;
}

/* Tried where nobody reads: a kernel that refuses has taken away what was at the target. */
static bool can_move(struct mp_moves *moves, const struct mp_real *real)
{
    void *at = real->mmap(NULL, MP_SPACE_PAGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bool can;

    if (at == MAP_FAILED)
        return false;
    can = move(moves, real, moves->base, MP_SPACE_PAGE_BYTES, at);
    (void)real->munmap(at, MP_SPACE_PAGE_BYTES);
    return can;
}

/* The mapping takes as many addresses again as the slots have. */
static bool may_take_addresses(void)
{
    struct rlimit limit;

    return getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY;
}

/* The mapping where entries wait. Without it pages are mapped anew, which costs time only. */
static void begin(struct mp_moves *moves, const struct mp_real *real, int fd)
{
    struct stat st;
    void *base;

    moves->tried = true;
    if (!may_take_addresses() || fstat(fd, &st) != 0 || st.st_size < MP_SPACE_PAGE_BYTES)
        return;
    moves->known =
        calloc((uint64_t)st.st_size / MP_SPACE_PAGE_BYTES / WORD_BITS + 1, sizeof(*moves->known));
    if (moves->known == NULL)
        return;
    base = real->mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (base != MAP_FAILED) {
        /* Entries of single pages move; behind them are huge ones all the same. */
        (void)real->madvise(base, (size_t)st.st_size, MADV_NOHUGEPAGE);
        moves->base = base;
        moves->fd = fd;
        moves->bytes = (uint64_t)st.st_size;
    }
    if (base == MAP_FAILED || !can_move(moves, real))
        mp_moves_end(moves, real);
}

/* Of the file's pages [offset, +bytes). */
static bool are_known(const struct mp_moves *moves, uint64_t offset, uint64_t bytes)
{
    const uint64_t end = (offset + bytes) / MP_SPACE_PAGE_BYTES;

    for (uint64_t page = offset / MP_SPACE_PAGE_BYTES; page < end; page++) {
        if ((moves->known[page / WORD_BITS] & UINT64_C(1) << page % WORD_BITS) == 0)
            return false;
    }
    return true;
}

static void set_known(struct mp_moves *moves, uint64_t offset, uint64_t bytes, bool known)
{
    const uint64_t end = (offset + bytes) / MP_SPACE_PAGE_BYTES;

    for (uint64_t page = offset / MP_SPACE_PAGE_BYTES; page < end; page++) {
        const uint64_t bit = UINT64_C(1) << page % WORD_BITS;

        if (known)
            moves->known[page / WORD_BITS] |= bit;
        else
            moves->known[page / WORD_BITS] &= ~bit;
    }
}

/* A move has failed. Where the kernel lacks mappings (ENOMEM, which it looks at first) nothing has
 * changed and there may be some later. Else there may be a hole where entries wait. */
static void note_failure(struct mp_moves *moves, const struct mp_real *real, uint64_t offset,
                         uint64_t bytes)
{
    const int number = errno;

    if (number == ENOMEM && real->madvise(moves->base + offset, bytes, MADV_NOHUGEPAGE) == 0)
        return; /* advice that is there already, and fails where there is a hole */
    mp_log_info("preload", "entries of page tables do not move any more: %s", strerror(number));
    mp_moves_end(moves, real);
}

bool mp_moves_map(struct mp_moves *moves, const struct mp_real *real, int fd, uint64_t offset,
                  uint64_t bytes, char *at)
{
    if (!moves->tried)
        begin(moves, real, fd);
    if (moves->base == NULL || fd != moves->fd || offset + bytes > moves->bytes)
        return false;
    if (!move(moves, real, moves->base + offset, bytes, at)) {
        note_failure(moves, real, offset, bytes);
        return false;
    }
    if (!are_known(moves, offset, bytes)) {
        (void)real->madvise(at, bytes, MADV_POPULATE_READ);
        set_known(moves, offset, bytes, true);
    }
    return true;
}

void mp_moves_unmap(struct mp_moves *moves, const struct mp_real *real, uint64_t offset,
                    uint64_t bytes, char *at)
{
    if (moves->base == NULL || move(moves, real, at, bytes, moves->base + offset))
        return;
    note_failure(moves, real, offset, bytes);
    mp_moves_forget(moves, offset, bytes);
}

void mp_moves_forget(struct mp_moves *moves, uint64_t offset, uint64_t bytes)
{
    if (moves->base != NULL)
        set_known(moves, offset, bytes, false);
}

void mp_moves_end(struct mp_moves *moves, const struct mp_real *real)
{
    moves->tried = true;
    if (moves->base != NULL)
        (void)real->munmap(moves->base, moves->bytes);
    free(moves->known);
    moves->base = NULL;
    moves->known = NULL;
}
