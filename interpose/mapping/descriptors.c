/*
 * Are our descriptors still ours?
 */
#include <errno.h>
#include <sys/stat.h>

#include "interpose/mapping/mappings_int.h"

struct mp_descriptor mp_descriptor_of(int fd)
{
    struct stat st;

    return fd >= 0 && fstat(fd, &st) == 0
               ? (struct mp_descriptor){ .device = st.st_dev, .inode = st.st_ino }
               : (struct mp_descriptor){ 0 };
}

bool mp_descriptor_is_ours(const struct mp_descriptor *owned, int fd)
{
    const struct mp_descriptor now = mp_descriptor_of(fd);

    return now.inode != 0 && now.device == owned->device && now.inode == owned->inode;
}

bool mp_mappings_own_file(struct mp_mappings *mappings, uint32_t file)
{
    uint32_t align_bytes;
    const int direct = mp_files_direct_fd(mappings->files, file, &align_bytes);

    return mp_descriptor_is_ours(&mappings->owned[file], mp_files_fd(mappings->files, file)) &&
           (direct < 0 || mp_descriptor_is_ours(&mappings->owned[file], direct));
}

bool mp_descriptor_is_lost(const struct mp_descriptor *owned, int fd)
{
    struct stat st;

    if (fd < 0)
        return false;
    return fstat(fd, &st) != 0 ? errno == EBADF
                               : st.st_dev != owned->device || st.st_ino != owned->inode;
}

bool mp_mappings_lost_descriptor(struct mp_mappings *mappings)
{
    for (uint32_t f = 0; f < mappings->file_count; f++) {
        if (mp_descriptor_is_lost(&mappings->owned[f], mp_files_fd(mappings->files, f)))
            return true;
    }
    return mp_descriptor_is_lost(&mappings->slots, mappings->slot_fd) ||
           mp_descriptor_is_lost(&mappings->pagemap, mappings->pagemap_fd);
}
