/*
 * Which pages the program has written to where it may, by the page table.
 */
#include <fcntl.h>
#include <unistd.h>

#include "interpose/mapping/mappings_int.h"

#define PAGES_AT_ONCE 512
#define PRESENT (UINT64_C(1) << 63)
#define SWAPPED (UINT64_C(1) << 62)
#define OF_A_FILE (UINT64_C(1) << 61)

void mp_mappings_open_pagemap(struct mp_mappings *mappings)
{
    mappings->pagemap_fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    mappings->pagemap = mp_descriptor_of(mappings->pagemap_fd);
    if (mappings->pagemap_fd >= 0 && mappings->pagemap.inode == 0) {
        close(mappings->pagemap_fd);
        mappings->pagemap_fd = -1;
    }
}

bool mp_mappings_was_written(const struct mp_mappings *mappings, const struct mp_mapped_file *file,
                             uint64_t begin, uint64_t end)
{
    const uintptr_t at = (uintptr_t)file->map.at + (begin - file->map.offset_bytes);
    uint64_t left = (end - begin) / MP_SPACE_PAGE_BYTES, page = at / MP_SPACE_PAGE_BYTES;
    uint64_t entries[PAGES_AT_ONCE];

    if (!mp_mapping_is_private(&file->map))
        return false;
    if (!mp_descriptor_is_ours(&mappings->pagemap, mappings->pagemap_fd))
        return true;
    while (left > 0) {
        const uint64_t count = left < PAGES_AT_ONCE ? left : PAGES_AT_ONCE;

        if (pread(mappings->pagemap_fd, entries, count * sizeof(entries[0]),
                  (off_t)(page * sizeof(entries[0]))) != (ssize_t)(count * sizeof(entries[0])))
            return true;
        for (uint64_t i = 0; i < count; i++) {
            if ((entries[i] & SWAPPED) != 0 ||
                ((entries[i] & PRESENT) != 0 && (entries[i] & OF_A_FILE) == 0))
                return true;
        }
        page += count;
        left -= count;
    }
    return false;
}
