/*
 * Showing and hiding units; see shown.h. Which addresses are the program's is in views.c.
 */
#include "interpose/window/shown.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "interpose/window/shown_int.h"
#include "vmm/base/assert.h"
#include "vmm/base/checked.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

/* Mappings that are given up when the kernel has no more to give, so that the file can be mapped
 * back all the same. */
#define SPARE_BYTES (2 * 64 * (size_t)MP_SPACE_PAGE_BYTES)

static int by_place(const void *a, const void *b)
{
    const struct mp_shown_piece *left = a, *right = b;

    if (left->file != right->file)
        return left->file < right->file ? -1 : 1;
    return left->begin < right->begin ? -1 : left->begin > right->begin;
}

/* The pages that a piece touches, less one that the file's end cuts. */
static struct mp_shown_piece piece_of(const struct mp_experts *experts, uint32_t unit, uint32_t k)
{
    const struct mp_piece *piece = &experts->units[unit].pieces[k];
    const uint64_t page = MP_SPACE_PAGE_BYTES, end = piece->offset_bytes + piece->bytes;
    const uint64_t whole = mp_round_down_u64(mp_files_bytes(experts->files, piece->file), page);
    const uint64_t up = mp_round_down_u64(end + page - 1, page);

    return (struct mp_shown_piece){
        .unit = unit,
        .k = k,
        .file = piece->file,
        .begin = mp_round_down_u64(piece->offset_bytes, page),
        .end = up < whole ? up : whole,
    };
}

static void make_pieces(struct mp_shown *shown, const struct mp_experts *experts)
{
    for (uint32_t u = 0; u < shown->units; u++) {
        for (uint32_t k = 0; k < experts->units[u].piece_count; k++)
            shown->pieces[shown->piece_count++] = piece_of(experts, u, k);
    }
    qsort(shown->pieces, shown->piece_count, sizeof(*shown->pieces), by_place);
    memset(shown->piece_at, 0xff, shown->units * sizeof(*shown->piece_at));
    for (uint32_t i = 0; i < shown->piece_count; i++)
        shown->piece_at[shown->pieces[i].unit][shown->pieces[i].k] = i;
}

/* Pages of alternating protection: each is a mapping of its own. */
static void take_spare(struct mp_shown *shown)
{
    char *spare = shown->host.real.mmap(NULL, SPARE_BYTES, PROT_NONE,
                                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (spare == MAP_FAILED)
        return;
    for (size_t at = 0; at < SPARE_BYTES; at += 2 * MP_SPACE_PAGE_BYTES)
        (void)shown->host.real.mprotect(spare + at, MP_SPACE_PAGE_BYTES, PROT_READ);
    shown->spare = spare;
}

enum mp_status mp_shown_create(const struct mp_host *host, const struct mp_experts *experts,
                               struct mp_shown **shown_p)
{
    const uint32_t units = experts->layers * experts->experts;
    const uint32_t files = mp_files_count(experts->files);
    struct mp_shown *shown = calloc(1, sizeof(*shown));

    if (shown == NULL)
        return mp_fail_no_memory("what is mapped", sizeof(*shown));
    shown->pagemap_fd = shown->slot_fd = -1;
    shown->host = *host;
    shown->files = experts->files;
    shown->units = units;
    shown->file_count = files;
    shown->views = calloc(files, sizeof(*shown->views));
    shown->owned = calloc(files, sizeof(*shown->owned));
    shown->shown = calloc(units, sizeof(*shown->shown));
    shown->piece_at = calloc(units, sizeof(*shown->piece_at));
    shown->pieces = calloc((size_t)units * MP_UNIT_PIECES_MAX, sizeof(*shown->pieces));
    if (shown->views == NULL || shown->owned == NULL || shown->shown == NULL ||
        shown->piece_at == NULL || shown->pieces == NULL) {
        mp_shown_destroy(shown);
        return mp_fail_no_memory("what is mapped", units * sizeof(*shown->pieces));
    }
    make_pieces(shown, experts);
    take_spare(shown);
    shown->pagemap_fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    shown->pagemap = mp_shown_own(shown->pagemap_fd);
    if (shown->pagemap_fd >= 0 && shown->pagemap.inode == 0) {
        close(shown->pagemap_fd);
        shown->pagemap_fd = -1;
    }
    mp_mutex_init(&shown->lock, MP_LOCK_REGION, "shown");
    for (uint32_t f = 0; f < files; f++) {
        shown->owned[f] = mp_shown_own(mp_files_fd(shown->files, f));
        if (shown->owned[f].inode == 0) {
            mp_shown_destroy(shown);
            return mp_fail(MP_ERR_IO, "E_OPEN", "cannot look at '%s': %s",
                           mp_files_name(experts->files, f), strerror(errno));
        }
    }
    *shown_p = shown;
    return MP_OK;
}

void mp_shown_destroy(struct mp_shown *shown)
{
    if (shown == NULL)
        return;
    if (shown->spare != NULL)
        shown->host.real.munmap(shown->spare, SPARE_BYTES);
    if (shown->pagemap_fd >= 0)
        close(shown->pagemap_fd);
    mp_moves_end(&shown->moves, &shown->host.real);
    free(shown->views);
    free(shown->owned);
    free(shown->shown);
    free(shown->piece_at);
    free(shown->pieces);
    free(shown);
}

static char *address_of(const struct mp_shown_view *view, uint64_t offset)
{
    return view->view.at + (offset - view->view.offset_bytes);
}

/* The file over [begin, end) of it, where the program has mapped that. */
static bool map_file(struct mp_shown *shown, const struct mp_shown_view *view, uint64_t begin,
                     uint64_t end)
{
    char *const at = address_of(view, begin);
    const int fd = mp_files_fd(shown->files, view->view.file);
    const int flags = view->view.flags | MAP_FIXED;

    if (!mp_shown_owns(&shown->owned[view->view.file], fd))
        return false;
    if (shown->host.real.mmap(at, end - begin, view->view.prot, flags, fd, (off_t)begin) !=
        MAP_FAILED)
        return true;
    if (shown->spare != NULL) {
        shown->host.real.munmap(shown->spare, SPARE_BYTES);
        shown->spare = NULL;
        mp_log_warn("preload", "no more mappings (vm.max_map_count): experts are no longer paged");
    }
    shown->counts.failures++;
    return shown->host.real.mmap(at, end - begin, view->view.prot, flags, fd, (off_t)begin) !=
           MAP_FAILED;
}

static uint64_t slot_offset_of(const struct mp_shown_piece *piece, uint64_t offset)
{
    return piece->slot_offset + (offset - piece->begin);
}

/* For itself: to populate as usual would be to write. */
static bool map_private(struct mp_shown *shown, const struct mp_shown_view *view,
                        const struct mp_shown_piece *piece, uint64_t begin, uint64_t end)
{
    char *const at = address_of(view, begin);

    if (!mp_shown_owns(&shown->slots, shown->slot_fd) ||
        shown->host.real.mmap(at, end - begin, view->view.prot, MAP_PRIVATE | MAP_FIXED,
                              shown->slot_fd, (off_t)slot_offset_of(piece, begin)) == MAP_FAILED)
        return false;
    (void)shown->host.real.madvise(at, end - begin, MADV_POPULATE_READ);
    return true;
}

static bool map_slot(struct mp_shown *shown, const struct mp_shown_view *view,
                     const struct mp_shown_piece *piece, uint64_t begin, uint64_t end)
{
    const struct mp_real *real = &shown->host.real;
    char *const at = address_of(view, begin);
    const uint64_t slot = slot_offset_of(piece, begin);

    if (mp_shown_is_private(&view->view))
        return map_private(shown, view, piece, begin, end);
    if (view->view.prot == PROT_READ &&
        mp_moves_show(&shown->moves, real, shown->slot_fd, slot, end - begin, at))
        return true;
    return mp_shown_owns(&shown->slots, shown->slot_fd) &&
           real->mmap(at, end - begin, view->view.prot, MAP_SHARED | MAP_FIXED | MAP_POPULATE,
                      shown->slot_fd, (off_t)slot) != MAP_FAILED;
}

#define PAGES_AT_ONCE 512
#define PRESENT (UINT64_C(1) << 63)
#define SWAPPED (UINT64_C(1) << 62)
#define OF_A_FILE (UINT64_C(1) << 61)

/* Has the program written to a page of [begin, end)? Such a page is no longer the file's, nor the
 * slot's, but its own. What cannot be found out counts as written. */
static bool was_written(const struct mp_shown *shown, const struct mp_shown_view *view,
                        uint64_t begin, uint64_t end)
{
    const uintptr_t at = (uintptr_t)view->view.at + (begin - view->view.offset_bytes);
    uint64_t left = (end - begin) / MP_SPACE_PAGE_BYTES, page = at / MP_SPACE_PAGE_BYTES;
    uint64_t entries[PAGES_AT_ONCE];

    if (!mp_shown_is_private(&view->view))
        return false;
    if (!mp_shown_owns(&shown->pagemap, shown->pagemap_fd))
        return true;
    while (left > 0) {
        const uint64_t count = left < PAGES_AT_ONCE ? left : PAGES_AT_ONCE;

        if (pread(shown->pagemap_fd, entries, count * sizeof(entries[0]),
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

/* The view that a whole piece lies in; NULL: none, or no longer. */
static struct mp_shown_view *view_of(struct mp_shown *shown, const struct mp_shown_piece *piece)
{
    struct mp_shown_view *view = &shown->views[piece->file];

    if (piece->begin >= piece->end || !mp_shown_view_has(view, piece->begin, piece->end) ||
        (mp_shown_is_private(&view->view) && !shown->private_too))
        return NULL;
    return view;
}

/* The pieces beside this one, whose pages may be those of its edges. */
static unsigned neighbours_of(struct mp_shown *shown, const struct mp_shown_piece *piece,
                              struct mp_shown_piece *neighbours[2])
{
    const uint32_t index = (uint32_t)(piece - shown->pieces);
    unsigned count = 0;

    if (index > 0 && piece[-1].file == piece->file && piece[-1].mapped)
        neighbours[count++] = &shown->pieces[index - 1];
    if (index + 1 < shown->piece_count && piece[1].file == piece->file && piece[1].mapped)
        neighbours[count++] = &shown->pieces[index + 1];
    return count;
}

/* [begin, end) shows something else now. */
static void lose(struct mp_shown *shown, struct mp_shown_piece *piece, uint64_t begin, uint64_t end)
{
    const uint64_t from = begin > piece->own_begin ? begin : piece->own_begin;
    const uint64_t to = end < piece->own_end ? end : piece->own_end;

    if (from >= to)
        return;
    mp_moves_forget(&shown->moves, slot_offset_of(piece, from), to - from);
    if (from == piece->own_begin)
        piece->own_begin = to;
    else
        piece->own_end = from;
}

/* What [begin, end), which shows the file, has of a piece that is mapped. */
static void show_edge(struct mp_shown *shown, const struct mp_shown_view *view,
                      struct mp_shown_piece *piece, uint64_t begin, uint64_t end)
{
    const uint64_t from = begin > piece->begin ? begin : piece->begin;
    const uint64_t to = end < piece->end ? end : piece->end;

    /* The file is there too, so a failure costs time only. */
    if (from >= to || !map_slot(shown, view, piece, from, to))
        return;
    if (from < piece->own_begin)
        piece->own_begin = from;
    else
        piece->own_end = to;
}

static bool show_piece(struct mp_shown *shown, const struct mp_shown_view *view,
                       struct mp_shown_piece *piece)
{
    struct mp_shown_piece *neighbours[2];
    const unsigned count = neighbours_of(shown, piece, neighbours);

    piece->mapped = map_slot(shown, view, piece, piece->begin, piece->end);
    piece->own_begin = piece->begin;
    piece->own_end = piece->end;
    for (unsigned i = 0; i < count; i++)
        lose(shown, neighbours[i], piece->begin, piece->end);
    if (!piece->mapped) /* what was there may be gone all the same */
        (void)map_file(shown, view, piece->begin, piece->end);
    return piece->mapped;
}

static bool hide_piece(struct mp_shown *shown, struct mp_shown_piece *piece)
{
    const struct mp_shown_view *view = view_of(shown, piece);
    const uint64_t begin = piece->own_begin, end = piece->own_end;
    struct mp_shown_piece *neighbours[2];
    unsigned count;

    if (!piece->mapped)
        return true;
    /* No view: the program took it away, with something of its own in it. */
    if (view == NULL || was_written(shown, view, begin, end))
        return false;
    if (begin < end) {
        if (!mp_shown_is_private(&view->view) && view->view.prot == PROT_READ)
            mp_moves_hide(&shown->moves, &shown->host.real, slot_offset_of(piece, begin),
                          end - begin, address_of(view, begin));
        if (!map_file(shown, view, begin, end))
            return false;
    }
    piece->mapped = false;
    count = neighbours_of(shown, piece, neighbours);
    for (unsigned i = 0; i < count; i++)
        show_edge(shown, view, neighbours[i], begin, end);
    return true;
}

bool mp_shown_hide_locked(struct mp_shown *shown, uint32_t unit)
{
    bool right = true;

    if (!shown->shown[unit])
        return true;
    for (uint32_t k = 0; k < MP_UNIT_PIECES_MAX; k++) {
        if (shown->piece_at[unit][k] != UINT32_MAX)
            right &= hide_piece(shown, &shown->pieces[shown->piece_at[unit][k]]);
    }
    if (!right)
        return false;
    shown->shown[unit] = false;
    shown->counts.hides++;
    shown->counts.shown--;
    return true;
}

bool mp_shown_show(struct mp_shown *shown, uint32_t unit, int fd, const uint64_t *offset_bytes)
{
    bool right;

    mp_lock(&shown->lock);
    mp_assert(!shown->shown[unit]);
    if (shown->slot_fd < 0) {
        shown->slots = mp_shown_own(fd);
        shown->slot_fd = shown->slots.inode != 0 ? fd : -1;
    }
    right = shown->slot_fd >= 0;
    shown->shown[unit] = true;
    shown->counts.shows++;
    shown->counts.shown++;
    if (shown->counts.shown > shown->counts.shown_max)
        shown->counts.shown_max = shown->counts.shown;
    for (uint32_t k = 0; k < MP_UNIT_PIECES_MAX && right && !shown->off; k++) {
        const uint32_t index = shown->piece_at[unit][k];
        struct mp_shown_piece *piece;
        struct mp_shown_view *view;

        if (index == UINT32_MAX)
            continue;
        piece = &shown->pieces[index];
        view = view_of(shown, piece);
        if (view == NULL || was_written(shown, view, piece->begin, piece->end))
            continue;
        piece->slot_offset = offset_bytes[k];
        right = show_piece(shown, view, piece);
    }
    if (!right || shown->off) {
        shown->counts.failures++;
        /* What was mapped of it goes; the rest never was. */
        (void)mp_shown_hide_locked(shown, unit);
    }
    mp_unlock(&shown->lock);
    return right;
}

bool mp_shown_hide(struct mp_shown *shown, uint32_t unit)
{
    bool right;

    mp_lock(&shown->lock);
    right = mp_shown_hide_locked(shown, unit);
    mp_unlock(&shown->lock);
    return right;
}

void mp_shown_hide_all_locked(struct mp_shown *shown)
{
    for (uint32_t u = 0; u < shown->units; u++)
        (void)mp_shown_hide_locked(shown, u);
}

void mp_shown_hide_all(struct mp_shown *shown)
{
    mp_lock(&shown->lock);
    mp_shown_hide_all_locked(shown);
    mp_unlock(&shown->lock);
}

void mp_shown_allow_private(struct mp_shown *shown)
{
    mp_lock(&shown->lock);
    shown->private_too = true;
    mp_unlock(&shown->lock);
}

bool mp_shown_is_shown(struct mp_shown *shown, uint32_t unit)
{
    bool is;

    mp_lock(&shown->lock);
    is = shown->shown[unit];
    mp_unlock(&shown->lock);
    return is;
}

void mp_shown_get_counts(struct mp_shown *shown, struct mp_shown_counts *counts_p)
{
    mp_lock(&shown->lock);
    *counts_p = shown->counts;
    mp_unlock(&shown->lock);
}

/* The locks of several models are held at once by a fork only, in the order of their places: no
 * order of ranks. */
void mp_shown_fork_prepare(struct mp_shown *shown)
{
    (void)pthread_mutex_lock(&shown->lock.mutex);
}

void mp_shown_fork_parent(struct mp_shown *shown)
{
    (void)pthread_mutex_unlock(&shown->lock.mutex);
}

/* The parent goes on to recycle the slots that are mapped here too. */
void mp_shown_fork_child(struct mp_shown *shown)
{
    mp_moves_end(&shown->moves, &shown->host.real);
    mp_shown_hide_all_locked(shown);
    shown->off = true;
    mp_shown_fork_parent(shown);
}
