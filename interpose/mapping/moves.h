#ifndef MP_INTERPOSE_MOVES_H
#define MP_INTERPOSE_MOVES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "interpose/entry.h"

/*
 * The entries of the page table that belong to slots, which are moved to where a slot is mapped
 * and back again, so that they need not be made anew each time: for a slot of some MiB that is a
 * thousand pages and more, and ten times as slow.
 *
 * A second mapping of the memory file, which nobody reads, is where the entries wait. mremap() with
 * MREMAP_DONTUNMAP takes them from there and leaves the mapping behind, empty; what is moved from
 * still reads as the slot's bytes, so there is no moment at which somebody else's read is wrong.
 * Kernels before 5.13 cannot do that with a file; then nothing is moved, here or later.
 *
 * Thread safety: the lock of mappings.h.
 */
struct mp_moves {
    char *base; /* NULL: nothing is moved */
    int fd;
    uint64_t bytes;
    uint64_t *known; /* bits of pages: has an entry, here or where the slot is mapped */
    bool tried;
    uint64_t count; /* moves so far */
};

/* Map pages of the file `fd` at `at`, read-only. False: they could not be moved there; for now, if
 * the kernel has no more mappings. */
bool mp_moves_map(struct mp_moves *moves, const struct mp_real *real, int fd, uint64_t offset,
                  uint64_t bytes, char *at);

/* They are going to be replaced where they are mapped: take their entries back, if possible. */
void mp_moves_unmap(struct mp_moves *moves, const struct mp_real *real, uint64_t offset,
                    uint64_t bytes, char *at);

/* They have been replaced where they were mapped. */
void mp_moves_forget(struct mp_moves *moves, uint64_t offset, uint64_t bytes);

/* Nothing is moved from now on; what is mapped stays. */
void mp_moves_end(struct mp_moves *moves, const struct mp_real *real);

#endif
