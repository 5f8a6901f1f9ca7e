/*
 * Mapping a unit's slot over the file, and the file back; see mappings.h. Which addresses are the
 * program's is in mapped_files.c, how many mappings there may be in mappings_room.c.
 */
#include "interpose/mapping/mappings.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "interpose/mapping/mappings_int.h"
#include "vmm/base/arena.h"
#include "vmm/base/assert.h"
#include "vmm/base/checked.h"
#include "vmm/base/error.h"

static int by_place(const void *a, const void *b)
{
    const struct mp_mapped_piece *left = a, *right = b;

    if (left->file != right->file)
        return left->file < right->file ? -1 : 1;
    return left->begin < right->begin ? -1 : left->begin > right->begin;
}

/* The pages that a piece touches, less one that the file's end cuts. */
static struct mp_mapped_piece piece_of(const struct mp_experts *experts, uint32_t unit, uint32_t k)
{
    const struct mp_piece *piece = &experts->units[unit].pieces[k];
    const uint64_t page = MP_SPACE_PAGE_BYTES, end = piece->offset_bytes + piece->bytes;
    const uint64_t whole = mp_round_down_u64(mp_files_bytes(experts->files, piece->file), page);
    const uint64_t up = mp_round_down_u64(end + page - 1, page);

    return (struct mp_mapped_piece){
        .unit = unit,
        .k = k,
        .file = piece->file,
        .begin = mp_round_down_u64(piece->offset_bytes, page),
        .end = up < whole ? up : whole,
    };
}

static void make_pieces(struct mp_mappings *mappings, const struct mp_experts *experts)
{
    for (uint32_t u = 0; u < mappings->units; u++) {
        for (uint32_t k = 0; k < experts->units[u].piece_count; k++)
            mappings->pieces[mappings->piece_count++] = piece_of(experts, u, k);
    }
    qsort(mappings->pieces, mappings->piece_count, sizeof(*mappings->pieces), by_place);
    memset(mappings->piece_at, 0xff, mappings->units * sizeof(*mappings->piece_at));
    for (uint32_t i = 0; i < mappings->piece_count; i++)
        mappings->piece_at[mappings->pieces[i].unit][mappings->pieces[i].k] = i;
}

static void take_arrays(struct mp_mappings *mappings, struct mp_arena *arena)
{
    const uint64_t units = mappings->units, files = mappings->file_count;

    mappings->mapped = mp_arena_take(arena, files, sizeof(*mappings->mapped));
    mappings->owned = mp_arena_take(arena, files, sizeof(*mappings->owned));
    mappings->is_mapped = mp_arena_take(arena, units, sizeof(*mappings->is_mapped));
    mappings->piece_at = mp_arena_take(arena, units, sizeof(*mappings->piece_at));
    mappings->pieces = mp_arena_take(arena, units * MP_UNIT_PIECES_MAX, sizeof(*mappings->pieces));
}

static enum mp_status make_arrays(struct mp_mappings *mappings)
{
    struct mp_arena arena = { 0 };
    enum mp_status status;

    mp_assert(mappings->arrays == NULL);
    take_arrays(mappings, &arena);
    status = mp_arena_open(&arena, "what is mapped");
    if (status != MP_OK)
        return status;
    mappings->arrays = arena.block;
    take_arrays(mappings, &arena);
    return MP_OK;
}

enum mp_status mp_mappings_create(const struct mp_host *host, const struct mp_experts *experts,
                                  struct mp_mappings **mappings_p)
{
    struct mp_mappings *mappings = calloc(1, sizeof(*mappings));
    enum mp_status status;

    if (mappings == NULL)
        return mp_fail_no_memory("what is mapped", sizeof(*mappings));
    mappings->pagemap_fd = mappings->slot_fd = -1;
    mappings->units_max = UINT32_MAX;
    mappings->host = *host;
    mappings->files = experts->files;
    mappings->units = experts->layers * experts->experts;
    mappings->file_count = mp_files_count(experts->files);
    status = make_arrays(mappings);
    if (status != MP_OK) {
        mp_mappings_destroy(mappings);
        return status;
    }
    make_pieces(mappings, experts);
    mp_mappings_take_spare(mappings);
    mp_mappings_open_pagemap(mappings);
    mp_mutex_init(&mappings->lock, MP_LOCK_REGION, "mappings");
    for (uint32_t f = 0; f < mappings->file_count; f++) {
        mappings->owned[f] = mp_descriptor_of(mp_files_fd(mappings->files, f));
        if (mappings->owned[f].inode == 0) {
            mp_mappings_destroy(mappings);
            return mp_fail(MP_ERR_IO, "E_OPEN", "cannot look at '%s': %s",
                           mp_files_name(experts->files, f), strerror(errno));
        }
    }
    *mappings_p = mappings;
    return MP_OK;
}

void mp_mappings_destroy(struct mp_mappings *mappings)
{
    if (mappings == NULL)
        return;
    (void)mp_mappings_give_spare(mappings);
    if (mappings->pagemap_fd >= 0)
        close(mappings->pagemap_fd);
    mp_moves_end(&mappings->moves, &mappings->host.real);
    free(mappings->arrays);
    free(mappings);
}

static char *address_of(const struct mp_mapped_file *file, uint64_t offset)
{
    return file->map.at + (offset - file->map.offset_bytes);
}

/* The file over [begin, end) of it, where the program has mapped that. */
static bool map_file(struct mp_mappings *mappings, const struct mp_mapped_file *file,
                     uint64_t begin, uint64_t end)
{
    char *const at = address_of(file, begin);
    const int fd = mp_files_fd(mappings->files, file->map.file);
    const int flags = file->map.flags | MAP_FIXED;

    if (!mp_descriptor_is_ours(&mappings->owned[file->map.file], fd))
        return false;
    if (mappings->host.real.mmap(at, end - begin, file->map.prot, flags, fd, (off_t)begin) !=
        MAP_FAILED)
        return true;
    mp_mappings_note_refusal(mappings);
    (void)mp_mappings_give_spare(mappings);
    mappings->counts.failures++;
    return mappings->host.real.mmap(at, end - begin, file->map.prot, flags, fd, (off_t)begin) !=
           MAP_FAILED;
}

static uint64_t slot_offset_of(const struct mp_mapped_piece *piece, uint64_t offset)
{
    return piece->slot_offset + (offset - piece->begin);
}

/* For itself: to populate as usual would be to write. */
static bool map_private(struct mp_mappings *mappings, const struct mp_mapped_file *file,
                        const struct mp_mapped_piece *piece, uint64_t begin, uint64_t end)
{
    char *const at = address_of(file, begin);

    if (!mp_descriptor_is_ours(&mappings->slots, mappings->slot_fd))
        return false;
    if (mappings->host.real.mmap(at, end - begin, file->map.prot, MAP_PRIVATE | MAP_FIXED,
                                 mappings->slot_fd,
                                 (off_t)slot_offset_of(piece, begin)) == MAP_FAILED) {
        mp_mappings_note_refusal(mappings);
        return false;
    }
    (void)mappings->host.real.madvise(at, end - begin, MADV_POPULATE_READ);
    return true;
}

static bool map_slot(struct mp_mappings *mappings, const struct mp_mapped_file *file,
                     const struct mp_mapped_piece *piece, uint64_t begin, uint64_t end)
{
    const struct mp_real *real = &mappings->host.real;
    char *const at = address_of(file, begin);
    const uint64_t slot = slot_offset_of(piece, begin);

    if (mp_mapping_is_private(&file->map))
        return map_private(mappings, file, piece, begin, end);
    if (file->map.prot == PROT_READ &&
        mp_moves_map(&mappings->moves, real, mappings->slot_fd, slot, end - begin, at))
        return true;
    if (!mp_descriptor_is_ours(&mappings->slots, mappings->slot_fd))
        return false;
    if (real->mmap(at, end - begin, file->map.prot, MAP_SHARED | MAP_FIXED | MAP_POPULATE,
                   mappings->slot_fd, (off_t)slot) != MAP_FAILED)
        return true;
    mp_mappings_note_refusal(mappings);
    return false;
}

/* The file, if all of the piece is mapped by the program; NULL: it is not, or no longer. */
static struct mp_mapped_file *file_of(struct mp_mappings *mappings,
                                      const struct mp_mapped_piece *piece)
{
    struct mp_mapped_file *file = &mappings->mapped[piece->file];

    if (piece->begin >= piece->end || !mp_mapped_file_has(file, piece->begin, piece->end) ||
        (mp_mapping_is_private(&file->map) && !mappings->private_too))
        return NULL;
    return file;
}

/* The pieces beside this one, whose pages may be those of its edges. */
static unsigned neighbours_of(struct mp_mappings *mappings, const struct mp_mapped_piece *piece,
                              struct mp_mapped_piece *neighbours[2])
{
    const uint32_t index = (uint32_t)(piece - mappings->pieces);
    unsigned count = 0;

    if (index > 0 && piece[-1].file == piece->file && piece[-1].mapped)
        neighbours[count++] = &mappings->pieces[index - 1];
    if (index + 1 < mappings->piece_count && piece[1].file == piece->file && piece[1].mapped)
        neighbours[count++] = &mappings->pieces[index + 1];
    return count;
}

/* Something else is mapped at [begin, end) now. */
static void lose(struct mp_mappings *mappings, struct mp_mapped_piece *piece, uint64_t begin,
                 uint64_t end)
{
    const uint64_t from = begin > piece->own_begin ? begin : piece->own_begin;
    const uint64_t to = end < piece->own_end ? end : piece->own_end;

    if (from >= to)
        return;
    mp_moves_forget(&mappings->moves, slot_offset_of(piece, from), to - from);
    if (from == piece->own_begin)
        piece->own_begin = to;
    else
        piece->own_end = from;
}

/* The file is mapped at [begin, end): map what a mapped piece has of it instead. */
static void map_edge(struct mp_mappings *mappings, const struct mp_mapped_file *file,
                     struct mp_mapped_piece *piece, uint64_t begin, uint64_t end)
{
    const uint64_t from = begin > piece->begin ? begin : piece->begin;
    const uint64_t to = end < piece->end ? end : piece->end;

    if (from >= to)
        return;
    if (!map_slot(mappings, file, piece, from, to)) {
        (void)map_file(mappings, file, from, to); /* as above */
        return;
    }
    if (from < piece->own_begin)
        piece->own_begin = from;
    else
        piece->own_end = to;
}

static bool map_piece(struct mp_mappings *mappings, const struct mp_mapped_file *file,
                      struct mp_mapped_piece *piece)
{
    struct mp_mapped_piece *neighbours[2];
    const unsigned count = neighbours_of(mappings, piece, neighbours);

    piece->mapped = map_slot(mappings, file, piece, piece->begin, piece->end);
    piece->own_begin = piece->begin;
    piece->own_end = piece->end;
    for (unsigned i = 0; i < count; i++)
        lose(mappings, neighbours[i], piece->begin, piece->end);
    if (!piece->mapped) /* what was there may be gone all the same */
        (void)map_file(mappings, file, piece->begin, piece->end);
    return piece->mapped;
}

static bool unmap_piece(struct mp_mappings *mappings, struct mp_mapped_piece *piece)
{
    const struct mp_mapped_file *file = file_of(mappings, piece);
    const uint64_t begin = piece->own_begin, end = piece->own_end;
    struct mp_mapped_piece *neighbours[2];
    unsigned count;

    if (!piece->mapped)
        return true;
    /* NULL: the program took it away, with something of its own in it. */
    if (file == NULL || mp_mappings_was_written(mappings, file, begin, end))
        return false;
    if (begin < end) {
        if (!mp_mapping_is_private(&file->map) && file->map.prot == PROT_READ)
            mp_moves_unmap(&mappings->moves, &mappings->host.real, slot_offset_of(piece, begin),
                           end - begin, address_of(file, begin));
        if (!map_file(mappings, file, begin, end))
            return false;
    }
    piece->mapped = false;
    count = neighbours_of(mappings, piece, neighbours);
    for (unsigned i = 0; i < count; i++)
        map_edge(mappings, file, neighbours[i], begin, end);
    return true;
}

bool mp_mappings_unmap_unit_locked(struct mp_mappings *mappings, uint32_t unit)
{
    bool right = true;

    if (mappings->is_mapped[unit] == 0)
        return true;
    for (uint32_t k = 0; k < MP_UNIT_PIECES_MAX; k++) {
        if (mappings->piece_at[unit][k] != UINT32_MAX)
            right &= unmap_piece(mappings, &mappings->pieces[mappings->piece_at[unit][k]]);
    }
    if (!right)
        return false;
    mappings->is_mapped[unit] = 0;
    mappings->counts.unmaps++;
    mappings->counts.mapped--;
    return true;
}

/* The first pages of slots say which memory file they are in. False: nobody knows. */
static bool know_slots(struct mp_mappings *mappings, int fd)
{
    if (mappings->slot_fd < 0) {
        mappings->slots = mp_descriptor_of(fd);
        mappings->slot_fd = mappings->slots.inode != 0 ? fd : -1;
    }
    return mappings->slot_fd >= 0;
}

static void count_map(struct mp_mappings *mappings)
{
    mappings->counts.maps++;
    mappings->counts.mapped++;
    if (mappings->counts.mapped > mappings->counts.mapped_max)
        mappings->counts.mapped_max = mappings->counts.mapped;
}

/* False: the kernel refuses. */
static bool map_one(struct mp_mappings *mappings, uint32_t unit, uint32_t k, uint64_t slot_offset)
{
    const uint32_t index = mappings->piece_at[unit][k];
    struct mp_mapped_piece *piece;
    struct mp_mapped_file *file;

    if (index == UINT32_MAX)
        return true;
    piece = &mappings->pieces[index];
    file = file_of(mappings, piece);
    if (file == NULL || mp_mappings_was_written(mappings, file, piece->begin, piece->end))
        return true;
    piece->slot_offset = slot_offset;
    return map_piece(mappings, file, piece);
}

bool mp_mappings_map_unit(struct mp_mappings *mappings, uint32_t unit, uint32_t pieces, int fd,
                          const uint64_t *offset_bytes)
{
    bool right;

    mp_lock(&mappings->lock);
    pieces &= ~(uint32_t)mappings->is_mapped[unit];
    right = know_slots(mappings, fd);
    if (pieces != 0 && !mp_mappings_has_room(mappings, unit)) {
        mp_unlock(&mappings->lock);
        return false;
    }
    if (mappings->is_mapped[unit] == 0 && pieces != 0)
        count_map(mappings);
    mappings->is_mapped[unit] |= (uint8_t)pieces;
    for (uint32_t k = 0; k < MP_UNIT_PIECES_MAX && right && !mappings->off; k++) {
        if ((pieces & 1u << k) != 0)
            right = map_one(mappings, unit, k, offset_bytes[k]);
    }
    if (!right || mappings->off) {
        mappings->counts.failures++;
        /* What was mapped of it goes; the rest never was. */
        (void)mp_mappings_unmap_unit_locked(mappings, unit);
        if (mappings->refused)
            mp_mappings_give_way(mappings);
    }
    mp_unlock(&mappings->lock);
    return right;
}

bool mp_mappings_unmap_unit(struct mp_mappings *mappings, uint32_t unit)
{
    bool right;

    mp_lock(&mappings->lock);
    right = mp_mappings_unmap_unit_locked(mappings, unit);
    mp_unlock(&mappings->lock);
    return right;
}

void mp_mappings_unmap_units_locked(struct mp_mappings *mappings)
{
    for (uint32_t u = 0; u < mappings->units; u++)
        (void)mp_mappings_unmap_unit_locked(mappings, u);
}

void mp_mappings_unmap_units(struct mp_mappings *mappings)
{
    mp_lock(&mappings->lock);
    mp_mappings_unmap_units_locked(mappings);
    mp_unlock(&mappings->lock);
}

void mp_mappings_allow_private(struct mp_mappings *mappings)
{
    mp_lock(&mappings->lock);
    mappings->private_too = true;
    mp_unlock(&mappings->lock);
}

uint32_t mp_mappings_has_unit(struct mp_mappings *mappings, uint32_t unit)
{
    uint32_t pieces;

    mp_lock(&mappings->lock);
    pieces = mappings->is_mapped[unit];
    mp_unlock(&mappings->lock);
    return pieces;
}

void mp_mappings_get_counts(struct mp_mappings *mappings, struct mp_mappings_counts *counts_p)
{
    mp_lock(&mappings->lock);
    *counts_p = mappings->counts;
    mp_unlock(&mappings->lock);
}

/* The locks of several models are held at once by a fork only, in the order of their places: no
 * order of ranks. */
void mp_mappings_fork_prepare(struct mp_mappings *mappings)
{
    (void)pthread_mutex_lock(&mappings->lock.mutex);
}

void mp_mappings_fork_parent(struct mp_mappings *mappings)
{
    (void)pthread_mutex_unlock(&mappings->lock.mutex);
}

/* The parent goes on to recycle the slots that are mapped here too. */
void mp_mappings_fork_child(struct mp_mappings *mappings)
{
    mp_moves_end(&mappings->moves, &mappings->host.real);
    mp_mappings_unmap_units_locked(mappings);
    mappings->off = true;
    mp_mappings_fork_parent(mappings);
}
