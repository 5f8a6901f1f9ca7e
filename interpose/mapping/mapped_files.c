/*
 * Which addresses are the program's mappings of a model's files, and what happens to them.
 */
#include <string.h>
#include <sys/mman.h>

#include "interpose/mapping/mappings_int.h"
#include "vmm/base/checked.h"

bool mp_mapped_file_has(const struct mp_mapped_file *file, uint64_t begin, uint64_t end)
{
    for (uint32_t i = 0; i < file->left_count; i++) {
        if (begin >= file->left[i].begin && end <= file->left[i].end)
            return true;
    }
    return false;
}

/* All addresses between the first and the last. */
static void set_span(struct mp_mappings *mappings)
{
    uintptr_t begin = UINTPTR_MAX, end = 0;

    for (uint32_t f = 0; f < mappings->file_count; f++) {
        const struct mp_mapping *map = &mappings->mapped[f].map;

        if (mappings->mapped[f].left_count == 0)
            continue;
        if ((uintptr_t)map->at < begin)
            begin = (uintptr_t)map->at;
        if ((uintptr_t)map->at + map->bytes > end)
            end = (uintptr_t)map->at + map->bytes;
    }
    atomic_store_explicit(&mappings->host.span->begin, begin, memory_order_release);
    atomic_store_explicit(&mappings->host.span->end, end, memory_order_release);
}

/* Take [begin, end) out of what is left. False: too many ranges. */
static bool cut(struct mp_mapped_file *file, uint64_t begin, uint64_t end)
{
    struct mp_mapped_file before = *file;

    file->left_count = 0;
    for (uint32_t i = 0; i < before.left_count; i++) {
        const uint64_t from = before.left[i].begin, to = before.left[i].end;
        const uint64_t parts[2][2] = { { from, begin < to ? begin : to },
                                       { end > from ? end : from, to } };

        for (unsigned p = 0; p < 2; p++) {
            if (parts[p][0] >= parts[p][1])
                continue;
            if (file->left_count == MP_MAPPING_RANGES_MAX)
                return false;
            file->left[file->left_count].begin = parts[p][0];
            file->left[file->left_count++].end = parts[p][1];
        }
    }
    return true;
}

/* The file over everything of [begin, end) that is left, dense memory of ours included. */
static void map_back(struct mp_mappings *mappings, const struct mp_mapped_file *file,
                     uint64_t begin, uint64_t end)
{
    const int fd = mp_files_fd(mappings->files, file->map.file);

    if (!mp_descriptor_is_ours(&mappings->owned[file->map.file], fd))
        return; /* what is there has the same bytes */
    for (uint32_t i = 0; i < file->left_count; i++) {
        const uint64_t from = begin > file->left[i].begin ? begin : file->left[i].begin;
        const uint64_t to = end < file->left[i].end ? end : file->left[i].end;

        if (from < to)
            (void)mappings->host.real.mmap(file->map.at + (from - file->map.offset_bytes),
                                           to - from, file->map.prot, file->map.flags | MAP_FIXED,
                                           fd, (off_t)from);
    }
}

static void leave_file(struct mp_mappings *mappings, struct mp_mapped_file *file, uint64_t begin,
                       uint64_t end)
{
    for (uint32_t i = 0; i < mappings->piece_count; i++) {
        struct mp_mapped_piece *piece = &mappings->pieces[i];

        if (piece->file != file->map.file || piece->begin >= end || piece->end <= begin)
            continue;
        (void)mp_mappings_unmap_unit_locked(mappings, piece->unit);
    }
    if (!mp_mapping_is_private(&file->map)) /* there is nothing of ours in it */
        map_back(mappings, file, begin, end);
    if (!cut(file, begin, end)) {
        if (!mp_mapping_is_private(&file->map))
            map_back(mappings, file, 0, UINT64_MAX);
        file->left_count = 0;
    }
}

static bool map_whole(struct mp_mappings *mappings, const struct mp_mapping *map, int fd)
{
    return mappings->host.real.mmap(map->at, map->bytes, map->prot, map->flags | MAP_FIXED, fd,
                                    (off_t)map->offset_bytes) != MAP_FAILED;
}

/* With our descriptor instead of the program's, while nobody knows the address: the kernel joins
 * mappings of one descriptor only, and else each expert that comes and goes leaves two. A kernel
 * that refuses may have taken away what was there. False: and it does not bring it back. */
static bool map_by_ours(struct mp_mappings *mappings, const struct mp_mapping *map, int fd)
{
    const int own_fd = mp_files_fd(mappings->files, map->file);

    return !mp_descriptor_is_ours(&mappings->owned[map->file], own_fd) ||
           map_whole(mappings, map, own_fd) || map_whole(mappings, map, fd);
}

bool mp_mappings_add(struct mp_mappings *mappings, const struct mp_mapping *map, int fd)
{
    struct mp_mapped_file *to = &mappings->mapped[map->file];
    bool taken;

    mp_lock(&mappings->lock);
    if (to->left_count > 0)
        leave_file(mappings, to, 0, UINT64_MAX);
    taken = (!mp_mapping_is_private(map) || mappings->pagemap_fd >= 0) &&
            map_by_ours(mappings, map, fd);
    if (taken) {
        to->map = *map;
        to->left[0].begin = map->offset_bytes;
        to->left[0].end = mp_round_down_u64(
            map->offset_bytes + map->bytes + MP_SPACE_PAGE_BYTES - 1, MP_SPACE_PAGE_BYTES);
        to->left_count = 1;
    }
    set_span(mappings);
    mp_unlock(&mappings->lock);
    return taken;
}

bool mp_mappings_leave(struct mp_mappings *mappings, const void *at, size_t bytes)
{
    uint32_t left = 0;

    mp_lock(&mappings->lock);
    for (uint32_t f = 0; f < mappings->file_count; f++) {
        struct mp_mapped_file *file = &mappings->mapped[f];
        const uintptr_t begin = (uintptr_t)file->map.at, end = begin + file->map.bytes;
        const uintptr_t from = (uintptr_t)at > begin ? (uintptr_t)at : begin;
        const uintptr_t to = (uintptr_t)at + bytes < end ? (uintptr_t)at + bytes : end;
        const uint64_t page = MP_SPACE_PAGE_BYTES;

        if (file->left_count > 0 && from < to)
            leave_file(mappings, file, file->map.offset_bytes + (from - begin),
                       mp_round_down_u64(file->map.offset_bytes + (to - begin) + page - 1, page));
        left += file->left_count;
    }
    set_span(mappings);
    mp_unlock(&mappings->lock);
    return left == 0;
}

bool mp_mappings_is_empty(struct mp_mappings *mappings)
{
    uint32_t left = 0;

    mp_lock(&mappings->lock);
    for (uint32_t f = 0; f < mappings->file_count; f++)
        left += mappings->mapped[f].left_count;
    mp_unlock(&mappings->lock);
    return left == 0;
}

bool mp_mappings_locate(struct mp_mappings *mappings, const void *at, uint32_t *file_p,
                        uint64_t *offset_bytes_p)
{
    bool found = false;

    mp_lock(&mappings->lock);
    for (uint32_t f = 0; f < mappings->file_count && !found; f++) {
        const struct mp_mapped_file *file = &mappings->mapped[f];
        const uint64_t offset = file->map.offset_bytes + ((uintptr_t)at - (uintptr_t)file->map.at);

        if ((uintptr_t)at < (uintptr_t)file->map.at ||
            !mp_mapped_file_has(file, offset, offset + 1))
            continue;
        *file_p = f;
        *offset_bytes_p = offset;
        found = true;
    }
    mp_unlock(&mappings->lock);
    return found;
}

bool mp_mappings_find_part(struct mp_mappings *mappings, const void *at, size_t bytes,
                           struct mp_paged_part *part_p)
{
    const uintptr_t begin = (uintptr_t)at, end = begin + bytes;
    bool found = false;

    mp_lock(&mappings->lock);
    for (uint32_t f = 0; f < mappings->file_count; f++) {
        const struct mp_mapped_file *file = &mappings->mapped[f];

        for (uint32_t i = 0; i < file->left_count; i++) {
            const uintptr_t base = (uintptr_t)file->map.at - file->map.offset_bytes;
            uintptr_t from = base + file->left[i].begin, to = base + file->left[i].end;

            from = from > begin ? from : begin;
            to = to < end ? to : end;
            if (from >= to || (found && from - begin >= part_p->begin))
                continue;
            *part_p = (struct mp_paged_part){ from - begin, to - begin, file->map.prot };
            found = true;
        }
    }
    mp_unlock(&mappings->lock);
    return found;
}

char *mp_mappings_address(struct mp_mappings *mappings, uint32_t file, uint64_t offset_bytes,
                          uint64_t bytes)
{
    const struct mp_mapped_file *mapped = &mappings->mapped[file];
    char *at = NULL;

    mp_lock(&mappings->lock);
    if (!mp_mapping_is_private(&mapped->map) &&
        mp_mapped_file_has(mapped, offset_bytes, offset_bytes + bytes))
        at = mapped->map.at + (offset_bytes - mapped->map.offset_bytes);
    mp_unlock(&mappings->lock);
    return at;
}

bool mp_mappings_replace(struct mp_mappings *mappings, uint32_t file, uint64_t offset_bytes,
                         void *memory, uint64_t bytes)
{
    const struct mp_mapped_file *mapped = &mappings->mapped[file];
    bool right = false;

    mp_lock(&mappings->lock);
    if (!mappings->off && !mp_mapping_is_private(&mapped->map) &&
        mp_mapped_file_has(mapped, offset_bytes, offset_bytes + bytes)) {
        right = mappings->host.real.mremap(
                    memory, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
                    mapped->map.at + (offset_bytes - mapped->map.offset_bytes)) != MAP_FAILED;
        if (!right) /* what was there may be gone all the same */
            map_back(mappings, mapped, offset_bytes, offset_bytes + bytes);
    }
    mp_unlock(&mappings->lock);
    return right;
}
