/*
 * Lays units out in slots. With direct reads an extent is the aligned superset of its pieces, so
 * adjacent pieces share the block between them; with buffered reads it consists of the pieces
 * themselves. In both cases a piece is contiguous, and only its offset in the slot differs.
 */
#include "vmm/space/space_layout.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/base/assert.h"
#include "vmm/base/checked.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

/* What slots are aligned to; files that need more for direct reads are read buffered. */
#define DIRECT_ALIGN_BYTES MP_SPACE_PAGE_BYTES
#define BUFFERED_ALIGN_BYTES 64
#define SLOT_ALIGN_BYTES 4096

/* AUTO takes direct reads if slots grow by at most a sixteenth. */
#define SLACK_NUMERATOR 17
#define SLACK_DENOMINATOR 16

static enum mp_status fail_piece(const struct mp_space_config *config, uint32_t unit,
                                 const struct mp_piece *piece)
{
    const char *name = mp_files_name(config->files, piece->file);
    char quoted[MP_QUOTE_BYTES];

    mp_assert(unit < config->unit_count);
    return mp_fail(MP_ERR_MODEL, "E_UNIT_RANGE",
                   "unit %" PRIu32 " in '%s' at byte %" PRIu64 ": got a file of %" PRIu64
                   " bytes, need %" PRIu64 " more from there; copy or download the file again",
                   unit, mp_quote(quoted, name, strlen(name)), piece->offset_bytes,
                   mp_files_bytes(config->files, piece->file), piece->bytes);
}

static enum mp_status check_unit(const struct mp_space_config *config, uint32_t index)
{
    const struct mp_unit *unit = &config->units[index];
    const uint32_t files = mp_files_count(config->files);

    mp_assert(index < config->unit_count);
    if (unit->piece_count == 0 || unit->piece_count > MP_UNIT_PIECES_MAX)
        return mp_fail(MP_ERR_INVALID, "E_INTERNAL", "unit %" PRIu32 " has %" PRIu32 " pieces",
                       index, unit->piece_count);
    for (uint32_t i = 0; i < unit->piece_count; i++) {
        const struct mp_piece *piece = &unit->pieces[i];
        uint64_t end;

        if (piece->file >= files || piece->bytes == 0)
            return mp_fail(MP_ERR_INVALID, "E_INTERNAL",
                           "piece %" PRIu32 " of unit %" PRIu32 " is %" PRIu64
                           " bytes in file %" PRIu32 " of %" PRIu32,
                           i, index, piece->bytes, piece->file, files);
        if (!mp_add_u64(piece->offset_bytes, piece->bytes, &end) ||
            end > mp_files_bytes(config->files, piece->file))
            return fail_piece(config, index, piece);
    }
    return MP_OK;
}

/* Are units copied to the device from a host tier, because files cannot be read into it? */
static bool has_host_tier(const struct mp_space_config *config)
{
    return config->reader.link == NULL && !config->backend->caps.file_target;
}

static enum mp_status check_config(const struct mp_space_config *config)
{
    const struct mp_backend_caps *caps = &config->backend->caps;

    const bool from_files = config->reader.link != NULL || (caps->cpu_access && caps->file_target);
    const bool from_host = (caps->tiers & 1u << MP_TIER_HOST) != 0 &&
                           config->backend->ops->stream_open != NULL &&
                           (caps->layouts & 1u << MP_LAYOUT_PACKED) != 0;

    if (from_files ? (caps->layouts & 1u << MP_LAYOUT_FILE) == 0 : !from_host)
        return mp_fail(MP_ERR_UNSUPPORTED, "E_BACKEND",
                       "backend %s can take bytes neither from files nor from a host tier",
                       config->backend->ops->name);
    if ((unsigned)config->host_residency >= MP_HOST_RESIDENCY_COUNT ||
        (unsigned)config->addressing >= MP_ADDRESSING_COUNT)
        return mp_fail(MP_ERR_INVALID, "E_INTERNAL", "residency %d, addressing %d",
                       (int)config->host_residency, (int)config->addressing);
    if (config->whole_pages && !from_files)
        return mp_fail(MP_ERR_INVALID, "E_INTERNAL", "whole pages of files, but a host tier");
    if (config->unit_count == 0 || (unsigned)config->io_mode >= MP_IO_MODE_COUNT)
        return mp_fail(MP_ERR_INVALID, "E_INTERNAL", "%" PRIu32 " units, mode of reads %d",
                       config->unit_count, (int)config->io_mode);
    for (uint32_t i = 0; i < config->unit_count; i++) {
        const enum mp_status status = check_unit(config, i);

        if (status != MP_OK)
            return status;
    }
    return MP_OK;
}

/* Piece numbers by (file, offset). */
static void sort_pieces(const struct mp_unit *unit, uint32_t order[MP_UNIT_PIECES_MAX])
{
    mp_assert(unit->piece_count <= MP_UNIT_PIECES_MAX);
    for (uint32_t i = 0; i < unit->piece_count; i++) {
        const struct mp_piece *piece = &unit->pieces[i];
        uint32_t at = i;

        while (at > 0) {
            const struct mp_piece *before = &unit->pieces[order[at - 1]];

            if (before->file < piece->file ||
                (before->file == piece->file && before->offset_bytes <= piece->offset_bytes))
                break;
            order[at] = order[at - 1];
            at--;
        }
        order[at] = i;
    }
}

/*
 * Append one piece behind `used` bytes of the slot. Pieces come in the order of their places, so
 * only the last extent can be continued. The file's size bounds all offsets; what is added up in
 * the slot is checked.
 */
static bool place_piece(struct mp_unit_layout *layout, const struct mp_piece *piece,
                        uint32_t piece_index, bool direct, uint64_t *used)
{
    const uint64_t align = direct ? DIRECT_ALIGN_BYTES : 1;
    const uint64_t start = mp_round_down_u64(piece->offset_bytes, align);
    const uint64_t piece_end = piece->offset_bytes + piece->bytes;
    struct mp_unit_extent *last =
        layout->extent_count > 0 ? &layout->extents[layout->extent_count - 1] : NULL;
    uint64_t end, at, need;

    if (!mp_round_up_u64(piece_end, align, &end) ||
        !mp_round_up_u64(*used, direct ? DIRECT_ALIGN_BYTES : BUFFERED_ALIGN_BYTES, &at))
        return false;
    if (last != NULL && last->file == piece->file &&
        (direct ? start <= last->offset_bytes + last->bytes
                : start == last->offset_bytes + last->bytes && at == *used)) {
        if (end > last->offset_bytes + last->bytes)
            last->bytes = end - last->offset_bytes;
    } else {
        last = &layout->extents[layout->extent_count++];
        *last = (struct mp_unit_extent){
            .file = piece->file,
            .offset_bytes = start,
            .bytes = end - start,
            .slot_bytes = at,
        };
    }
    need = piece_end - last->offset_bytes;
    if (need > last->need_bytes)
        last->need_bytes = need;
    mp_assert(last->need_bytes <= last->bytes && start >= last->offset_bytes);
    layout->piece_offset_bytes[piece_index] =
        last->slot_bytes + (piece->offset_bytes - last->offset_bytes);
    return mp_add_u64(last->slot_bytes, last->bytes, used) &&
           mp_add_u64(layout->bytes, piece->bytes, &layout->bytes);
}

static bool place_unit(const struct mp_unit *unit, bool direct, bool packed,
                       struct mp_unit_layout *layout)
{
    uint32_t order[MP_UNIT_PIECES_MAX];
    uint64_t used = 0;

    memset(layout, 0, sizeof(*layout));
    layout->piece_count = unit->piece_count;
    layout->direct = direct;
    sort_pieces(unit, order);
    for (uint32_t i = 0; i < unit->piece_count; i++) {
        layout->piece_bytes[i] = unit->pieces[i].bytes;
        if (!place_piece(layout, &unit->pieces[order[i]], order[i], direct, &used))
            return false;
    }
    mp_assert(layout->extent_count > 0 && layout->extent_count <= unit->piece_count);
    return mp_round_up_u64(used, SLOT_ALIGN_BYTES, &layout->slot_bytes) &&
           (!packed || mp_space_pack_unit(unit, order, direct, layout));
}

/* Lay out every unit; totals are sums over units. */
static enum mp_status place_units(const struct mp_space_config *config, bool direct,
                                  struct mp_unit_layout *units, uint64_t *bytes_p,
                                  uint64_t *slot_bytes_p)
{
    uint64_t bytes = 0, slot_bytes = 0;

    for (uint32_t i = 0; i < config->unit_count; i++) {
        if (!place_unit(&config->units[i], direct, has_host_tier(config), &units[i]) ||
            !mp_add_u64(bytes, units[i].bytes, &bytes) ||
            !mp_add_u64(slot_bytes,
                        units[i].slot_bytes > units[i].host_slot_bytes ? units[i].slot_bytes
                                                                       : units[i].host_slot_bytes,
                        &slot_bytes))
            return mp_fail(MP_ERR_OVERFLOW, "E_UNIT_SIZE",
                           "the sizes up to unit %" PRIu32 " exceed 2^64 bytes", i);
    }
    *bytes_p = bytes;
    *slot_bytes_p = slot_bytes;
    return MP_OK;
}

/* The first file with pieces in it that direct reads cannot be used on; the count if none. */
static enum mp_status find_buffered_file(const struct mp_space_config *config, uint32_t *file_p)
{
    const uint32_t files = mp_files_count(config->files);
    bool *used = calloc(files, sizeof(*used));
    uint32_t file;

    mp_assert(config->files != NULL);
    if (used == NULL)
        return mp_fail_no_memory("the list of files in use", files);
    for (uint32_t i = 0; i < config->unit_count; i++) {
        for (uint32_t k = 0; k < config->units[i].piece_count; k++)
            used[config->units[i].pieces[k].file] = true;
    }
    for (file = 0; file < files; file++) {
        uint32_t align_bytes = 0;

        if (used[file] && (mp_files_direct_fd(config->files, file, &align_bytes) < 0 ||
                           align_bytes == 0 || DIRECT_ALIGN_BYTES % align_bytes != 0))
            break;
    }
    free(used);
    *file_p = file;
    return MP_OK;
}

static enum mp_status fail_direct(const struct mp_space_config *config, uint32_t file)
{
    const char *name = mp_files_name(config->files, file);
    char quoted[MP_QUOTE_BYTES];

    mp_assert(file < mp_files_count(config->files));
    return mp_fail(MP_ERR_CONFIG, "E_DIRECT",
                   "direct reads do not work on '%s' (its file system refuses O_DIRECT or needs "
                   "more than %d bytes of alignment); set MOEPAGER_IO=auto",
                   mp_quote(quoted, name, strlen(name)), DIRECT_ALIGN_BYTES);
}

/* The pages that were laid out for direct reads, as far as their files go. */
static void read_whole_pages(const struct mp_space_config *config, struct mp_unit_layout *layout)
{
    for (uint32_t i = 0; i < layout->extent_count; i++) {
        struct mp_unit_extent *extent = &layout->extents[i];
        const uint64_t left = mp_files_bytes(config->files, extent->file) - extent->offset_bytes;

        mp_assert(extent->offset_bytes + extent->need_bytes <=
                  mp_files_bytes(config->files, extent->file));
        extent->need_bytes = extent->bytes < left ? extent->bytes : left;
        if (!layout->direct)
            extent->bytes = extent->need_bytes;
    }
}

/* The lowest number of a piece that lies in the extent. */
static uint32_t first_piece(const struct mp_unit_layout *layout,
                            const struct mp_unit_extent *extent)
{
    uint32_t k = 0;

    while (k < layout->piece_count &&
           (layout->piece_offset_bytes[k] < extent->slot_bytes ||
            layout->piece_offset_bytes[k] - extent->slot_bytes >= extent->bytes))
        k++;
    mp_assert(k < layout->piece_count);
    return k;
}

/* Extents are read in this order. */
static void order_by_piece(struct mp_unit_layout *layout)
{
    for (uint32_t i = 1; i < layout->extent_count; i++) {
        const struct mp_unit_extent extent = layout->extents[i];
        const uint32_t piece = first_piece(layout, &extent);
        uint32_t at = i;

        while (at > 0 && first_piece(layout, &layout->extents[at - 1]) > piece) {
            layout->extents[at] = layout->extents[at - 1];
            at--;
        }
        layout->extents[at] = extent;
    }
}

static enum mp_status place_whole_pages(const struct mp_space_config *config, bool direct,
                                        struct mp_space_layout *layout)
{
    uint64_t slot_bytes;
    const enum mp_status status =
        place_units(config, true, layout->units, &layout->plan.unit_bytes, &slot_bytes);

    mp_assert(!has_host_tier(config));
    if (status != MP_OK)
        return status;
    layout->plan.direct = direct;
    for (uint32_t i = 0; i < layout->unit_count; i++) {
        layout->units[i].direct = direct;
        read_whole_pages(config, &layout->units[i]);
        if (config->by_piece)
            order_by_piece(&layout->units[i]);
    }
    return MP_OK;
}

/* Choose the kind of reads, and leave the units laid out for it. */
static enum mp_status choose_reads(const struct mp_space_config *config,
                                   struct mp_space_layout *layout)
{
    uint64_t bytes, direct_bytes, buffered_bytes, left, right;
    uint32_t file = 0;
    bool direct = config->io_mode != MP_IO_BUFFERED;
    enum mp_status status = MP_OK;

    if (direct)
        status = find_buffered_file(config, &file);
    if (status != MP_OK)
        return status;
    if (direct && file < mp_files_count(config->files)) {
        if (config->io_mode == MP_IO_DIRECT)
            return fail_direct(config, file);
        mp_log_info("space", "buffered reads: no direct reads on file %" PRIu32, file);
        direct = false;
    }
    if (config->whole_pages)
        return place_whole_pages(config, direct, layout);
    status = place_units(config, direct, layout->units, &bytes, &direct_bytes);
    if (status == MP_OK && direct && config->io_mode == MP_IO_AUTO) {
        status = place_units(config, false, layout->units, &bytes, &buffered_bytes);
        if (status == MP_OK && mp_mul_u64(direct_bytes, SLACK_DENOMINATOR, &left) &&
            mp_mul_u64(buffered_bytes, SLACK_NUMERATOR, &right) && left <= right)
            status = place_units(config, true, layout->units, &bytes, &direct_bytes);
        else
            direct = false;
    }
    if (status != MP_OK)
        return status;
    layout->plan.unit_bytes = bytes;
    layout->plan.direct = direct;
    return MP_OK;
}

enum mp_status mp_space_layout_init(const struct mp_space_config *config,
                                    struct mp_space_layout *layout)
{
    size_t bytes;
    enum mp_status status = check_config(config);

    if (status != MP_OK)
        return status;
    memset(layout, 0, sizeof(*layout));
    layout->unit_count = config->unit_count;
    layout->host_tier = has_host_tier(config);
    if (!mp_mul_size(config->unit_count, sizeof(*layout->units), &bytes))
        return mp_fail_no_memory("the layout of units", UINT64_MAX);
    layout->units = malloc(bytes);
    if (layout->units == NULL)
        return mp_fail_no_memory("the layout of units", bytes);

    mp_assert(layout->unit_count > 0);
    status = choose_reads(config, layout);
    if (status == MP_OK)
        status = mp_space_make_classes(layout);
    if (status == MP_OK)
        status = mp_space_fit_budget(config, layout);
    if (status != MP_OK)
        mp_space_layout_fini(layout);
    return status;
}

void mp_space_layout_fini(struct mp_space_layout *layout)
{
    free(layout->units);
    layout->units = NULL;
}

void mp_unit_set_extents(const struct mp_unit_layout *layout, char *slot, struct mp_ticket *ticket)
{
    mp_assert(layout->extent_count > 0 && layout->extent_count <= MP_TICKET_EXTENTS_MAX);
    for (uint32_t i = 0; i < layout->extent_count; i++) {
        const struct mp_unit_extent *extent = &layout->extents[i];

        ticket->extents[i] = (struct mp_extent){
            .file = extent->file,
            .offset = extent->offset_bytes,
            .bytes = extent->bytes,
            .need_bytes = extent->need_bytes,
            .dst = slot + extent->slot_bytes,
        };
    }
    ticket->extent_count = layout->extent_count;
}
