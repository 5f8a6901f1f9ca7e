/*
 * Are our descriptors still ours?
 */
#include <errno.h>
#include <sys/stat.h>

#include "interpose/window/shown_int.h"

struct mp_shown_owned mp_shown_own(int fd)
{
    struct stat st;

    return fd >= 0 && fstat(fd, &st) == 0
               ? (struct mp_shown_owned){ .device = st.st_dev, .inode = st.st_ino }
               : (struct mp_shown_owned){ 0 };
}

bool mp_shown_owns(const struct mp_shown_owned *owned, int fd)
{
    const struct mp_shown_owned now = mp_shown_own(fd);

    return now.inode != 0 && now.device == owned->device && now.inode == owned->inode;
}

bool mp_shown_has_file(struct mp_shown *shown, uint32_t file)
{
    uint32_t align_bytes;
    const int direct = mp_files_direct_fd(shown->files, file, &align_bytes);

    return mp_shown_owns(&shown->owned[file], mp_files_fd(shown->files, file)) &&
           (direct < 0 || mp_shown_owns(&shown->owned[file], direct));
}

bool mp_shown_lost(const struct mp_shown_owned *owned, int fd)
{
    struct stat st;

    if (fd < 0)
        return false;
    return fstat(fd, &st) != 0 ? errno == EBADF
                               : st.st_dev != owned->device || st.st_ino != owned->inode;
}

bool mp_shown_lost_any(struct mp_shown *shown)
{
    for (uint32_t f = 0; f < shown->file_count; f++) {
        if (mp_shown_lost(&shown->owned[f], mp_files_fd(shown->files, f)))
            return true;
    }
    return mp_shown_lost(&shown->slots, shown->slot_fd) ||
           mp_shown_lost(&shown->pagemap, shown->pagemap_fd);
}
