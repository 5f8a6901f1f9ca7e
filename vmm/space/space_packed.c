/*
 * Layout `packed`: the pieces in the order of the files, each at a multiple of 256 bytes. Rows are
 * not reordered, those of the down projection neither.
 *
 * With direct reads a unit arrives as the aligned superset of its pieces and is then packed in its
 * slot, without a second buffer: it is read at a higher offset, by one page, so that every piece
 * moves down, the lowest one first, and none overwrites a piece that has not moved. That requires
 * disjoint pieces; for other units, and with buffered reads, each piece is read directly to its
 * final place.
 */
#include <string.h>

#include "vmm/base/assert.h"
#include "vmm/base/checked.h"
#include "vmm/space/space_layout.h"

#define PIECE_ALIGN_BYTES 256
#define SLOT_ALIGN_BYTES 4096

/* More than what aligning the pieces can push one of them up. */
#define RAW_BYTES 4096

_Static_assert(RAW_BYTES >= MP_UNIT_PIECES_MAX * (PIECE_ALIGN_BYTES - 1), "pieces only move down");

static bool overlaps(const struct mp_unit *unit, const uint32_t order[MP_UNIT_PIECES_MAX])
{
    mp_assert(unit->piece_count <= MP_UNIT_PIECES_MAX);
    for (uint32_t i = 1; i < unit->piece_count; i++) {
        const struct mp_piece *before = &unit->pieces[order[i - 1]];
        const struct mp_piece *piece = &unit->pieces[order[i]];

        if (piece->file == before->file &&
            piece->offset_bytes < before->offset_bytes + before->bytes)
            return true;
    }
    return false;
}

static void read_in_place(const struct mp_unit *unit, struct mp_unit_layout *layout)
{
    mp_assert(unit->piece_count == layout->piece_count);
    layout->direct = false;
    layout->extent_count = unit->piece_count;
    for (uint32_t i = 0; i < unit->piece_count; i++) {
        layout->raw_offset_bytes[i] = layout->piece_offset_bytes[i];
        layout->extents[i] = (struct mp_unit_extent){
            .file = unit->pieces[i].file,
            .offset_bytes = unit->pieces[i].offset_bytes,
            .bytes = unit->pieces[i].bytes,
            .need_bytes = unit->pieces[i].bytes,
            .slot_bytes = layout->piece_offset_bytes[i],
        };
    }
}

bool mp_space_pack_unit(const struct mp_unit *unit, const uint32_t order[MP_UNIT_PIECES_MAX],
                        bool direct, struct mp_unit_layout *layout)
{
    uint64_t used = 0, raw_end = 0;

    /* Pieces are aligned; where they stood so far is where they are read. */
    if (!mp_add_u64(layout->slot_bytes, RAW_BYTES, &raw_end))
        return false;
    for (uint32_t i = 0; i < unit->piece_count; i++) {
        const uint32_t piece = order[i];

        layout->packing[i] = piece;
        layout->raw_offset_bytes[piece] = layout->piece_offset_bytes[piece] + RAW_BYTES;
        if (!mp_round_up_u64(used, PIECE_ALIGN_BYTES, &layout->piece_offset_bytes[piece]) ||
            !mp_add_u64(layout->piece_offset_bytes[piece], unit->pieces[piece].bytes, &used))
            return false;
    }
    layout->packed_bytes = used;
    if (!mp_round_up_u64(used, SLOT_ALIGN_BYTES, &layout->slot_bytes))
        return false;
    mp_assert(layout->packed_bytes <= layout->slot_bytes);
    layout->host_slot_bytes = layout->slot_bytes;
    if (!direct || overlaps(unit, order)) {
        read_in_place(unit, layout);
        return true;
    }
    for (uint32_t i = 0; i < layout->extent_count; i++)
        layout->extents[i].slot_bytes += RAW_BYTES;
    if (raw_end > layout->host_slot_bytes)
        layout->host_slot_bytes = raw_end;
    return true;
}

void mp_space_pack(const struct mp_unit_layout *layout, char *slot)
{
    for (uint32_t i = 0; i < layout->piece_count; i++) {
        const uint32_t piece = layout->packing[i];
        const uint64_t to = layout->piece_offset_bytes[piece];
        const uint64_t from = layout->raw_offset_bytes[piece];

        mp_assert(to <= from);
        if (to != from)
            memmove(slot + to, slot + from, layout->piece_bytes[piece]);
    }
}
