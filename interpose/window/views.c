/*
 * Which addresses are the program's mappings of a model's files, and what happens to them.
 */
#include <string.h>
#include <sys/mman.h>

#include "interpose/window/shown_int.h"
#include "vmm/base/checked.h"

bool mp_shown_view_has(const struct mp_shown_view *view, uint64_t begin, uint64_t end)
{
    for (uint32_t i = 0; i < view->left_count; i++) {
        if (begin >= view->left[i].begin && end <= view->left[i].end)
            return true;
    }
    return false;
}

/* All addresses between the first and the last. */
static void set_span(struct mp_shown *shown)
{
    uintptr_t begin = UINTPTR_MAX, end = 0;

    for (uint32_t f = 0; f < shown->file_count; f++) {
        const struct mp_view *view = &shown->views[f].view;

        if (shown->views[f].left_count == 0)
            continue;
        if ((uintptr_t)view->at < begin)
            begin = (uintptr_t)view->at;
        if ((uintptr_t)view->at + view->bytes > end)
            end = (uintptr_t)view->at + view->bytes;
    }
    atomic_store_explicit(&shown->host.span->begin, begin, memory_order_release);
    atomic_store_explicit(&shown->host.span->end, end, memory_order_release);
}

/* Take [begin, end) out of what is left. False: too many ranges. */
static bool cut(struct mp_shown_view *view, uint64_t begin, uint64_t end)
{
    struct mp_shown_view before = *view;

    view->left_count = 0;
    for (uint32_t i = 0; i < before.left_count; i++) {
        const uint64_t from = before.left[i].begin, to = before.left[i].end;
        const uint64_t parts[2][2] = { { from, begin < to ? begin : to },
                                       { end > from ? end : from, to } };

        for (unsigned p = 0; p < 2; p++) {
            if (parts[p][0] >= parts[p][1])
                continue;
            if (view->left_count == MP_SHOWN_RANGES_MAX)
                return false;
            view->left[view->left_count].begin = parts[p][0];
            view->left[view->left_count++].end = parts[p][1];
        }
    }
    return true;
}

/* The file over everything of [begin, end) that is left, dense memory of ours included. */
static void map_back(struct mp_shown *shown, const struct mp_shown_view *view, uint64_t begin,
                     uint64_t end)
{
    const int fd = mp_files_fd(shown->files, view->view.file);

    if (!mp_shown_owns(&shown->owned[view->view.file], fd))
        return; /* what is there has the same bytes */
    for (uint32_t i = 0; i < view->left_count; i++) {
        const uint64_t from = begin > view->left[i].begin ? begin : view->left[i].begin;
        const uint64_t to = end < view->left[i].end ? end : view->left[i].end;

        if (from < to)
            (void)shown->host.real.mmap(view->view.at + (from - view->view.offset_bytes), to - from,
                                        view->view.prot, view->view.flags | MAP_FIXED, fd,
                                        (off_t)from);
    }
}

static void leave_view(struct mp_shown *shown, struct mp_shown_view *view, uint64_t begin,
                       uint64_t end)
{
    for (uint32_t i = 0; i < shown->piece_count; i++) {
        struct mp_shown_piece *piece = &shown->pieces[i];

        if (piece->file != view->view.file || piece->begin >= end || piece->end <= begin)
            continue;
        (void)mp_shown_hide_locked(shown, piece->unit);
    }
    if (!mp_shown_is_private(&view->view)) /* there is nothing of ours in it */
        map_back(shown, view, begin, end);
    if (!cut(view, begin, end)) {
        if (!mp_shown_is_private(&view->view))
            map_back(shown, view, 0, UINT64_MAX);
        view->left_count = 0;
    }
}

bool mp_shown_add(struct mp_shown *shown, const struct mp_view *view)
{
    struct mp_shown_view *to = &shown->views[view->file];
    bool taken;

    mp_lock(&shown->lock);
    if (to->left_count > 0)
        leave_view(shown, to, 0, UINT64_MAX);
    taken = !mp_shown_is_private(view) || shown->pagemap_fd >= 0;
    if (taken) {
        to->view = *view;
        to->left[0].begin = view->offset_bytes;
        to->left[0].end = mp_round_down_u64(
            view->offset_bytes + view->bytes + MP_SPACE_PAGE_BYTES - 1, MP_SPACE_PAGE_BYTES);
        to->left_count = 1;
        set_span(shown);
    }
    mp_unlock(&shown->lock);
    return taken;
}

bool mp_shown_leave(struct mp_shown *shown, const void *at, size_t bytes)
{
    uint32_t left = 0;

    mp_lock(&shown->lock);
    for (uint32_t f = 0; f < shown->file_count; f++) {
        struct mp_shown_view *view = &shown->views[f];
        const uintptr_t begin = (uintptr_t)view->view.at, end = begin + view->view.bytes;
        const uintptr_t from = (uintptr_t)at > begin ? (uintptr_t)at : begin;
        const uintptr_t to = (uintptr_t)at + bytes < end ? (uintptr_t)at + bytes : end;
        const uint64_t page = MP_SPACE_PAGE_BYTES;

        if (view->left_count > 0 && from < to)
            leave_view(shown, view, view->view.offset_bytes + (from - begin),
                       mp_round_down_u64(view->view.offset_bytes + (to - begin) + page - 1, page));
        left += view->left_count;
    }
    set_span(shown);
    mp_unlock(&shown->lock);
    return left == 0;
}

bool mp_shown_is_empty(struct mp_shown *shown)
{
    uint32_t left = 0;

    mp_lock(&shown->lock);
    for (uint32_t f = 0; f < shown->file_count; f++)
        left += shown->views[f].left_count;
    mp_unlock(&shown->lock);
    return left == 0;
}

bool mp_shown_place(struct mp_shown *shown, const void *at, uint32_t *file_p,
                    uint64_t *offset_bytes_p)
{
    bool found = false;

    mp_lock(&shown->lock);
    for (uint32_t f = 0; f < shown->file_count && !found; f++) {
        const struct mp_shown_view *view = &shown->views[f];
        const uint64_t offset =
            view->view.offset_bytes + ((uintptr_t)at - (uintptr_t)view->view.at);

        if ((uintptr_t)at < (uintptr_t)view->view.at ||
            !mp_shown_view_has(view, offset, offset + 1))
            continue;
        *file_p = f;
        *offset_bytes_p = offset;
        found = true;
    }
    mp_unlock(&shown->lock);
    return found;
}

bool mp_shown_covers(struct mp_shown *shown, const void *at, size_t bytes)
{
    uint64_t offset;
    uint32_t file;

    (void)bytes;
    return mp_shown_place(shown, at, &file, &offset);
}

char *mp_shown_address(struct mp_shown *shown, uint32_t file, uint64_t offset_bytes, uint64_t bytes)
{
    const struct mp_shown_view *view = &shown->views[file];
    char *at = NULL;

    mp_lock(&shown->lock);
    if (!mp_shown_is_private(&view->view) &&
        mp_shown_view_has(view, offset_bytes, offset_bytes + bytes))
        at = view->view.at + (offset_bytes - view->view.offset_bytes);
    mp_unlock(&shown->lock);
    return at;
}

bool mp_shown_replace(struct mp_shown *shown, uint32_t file, uint64_t offset_bytes, void *memory,
                      uint64_t bytes)
{
    const struct mp_shown_view *view = &shown->views[file];
    bool right = false;

    mp_lock(&shown->lock);
    if (!shown->off && !mp_shown_is_private(&view->view) &&
        mp_shown_view_has(view, offset_bytes, offset_bytes + bytes)) {
        right = shown->host.real.mremap(memory, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
                                        view->view.at + (offset_bytes - view->view.offset_bytes)) !=
                MAP_FAILED;
        if (!right) /* what was there may be gone all the same */
            map_back(shown, view, offset_bytes, offset_bytes + bytes);
    }
    mp_unlock(&shown->lock);
    return right;
}
