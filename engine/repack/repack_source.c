/*
 * Reads the bytes of a new tensor from the model's files. A piece of an expert may be composed of
 * several slices, or extracted from a matrix row by row; data read for one row are cached for the
 * next ones.
 */
#include <string.h>

#include "engine/repack/repack_int.h"

/* Bytes of a piece of the model, of which [offset, offset + bytes) of the file are wanted. */
static enum mp_status read_some(struct mp_repack_job *job, uint32_t line_index,
                                const struct mp_piece *piece, uint64_t offset, uint64_t bytes,
                                char *dst)
{
    const struct mp_files *files = mp_checkpoint_files(job->plan->checkpoint);
    const uint64_t line_bytes = MP_REPACK_BUFFER_BYTES / job->plan->weights->slices.count;
    const uint64_t left = piece->offset_bytes + piece->bytes - offset;
    struct mp_repack_line *line = &job->lines[line_index];
    char *memory = job->cache + line_index * line_bytes;
    enum mp_status status;

    if (bytes > line_bytes / 4)
        return mp_files_read(files, piece->file, offset, bytes, dst);
    if (line->bytes == 0 || line->file != piece->file || offset < line->offset ||
        offset + bytes > line->offset + line->bytes) {
        *line = (struct mp_repack_line){ .file = piece->file, .offset = offset };
        status = mp_files_read(files, piece->file, offset, left < line_bytes ? left : line_bytes,
                               memory);
        if (status != MP_OK)
            return status;
        line->bytes = left < line_bytes ? left : line_bytes;
    }
    memcpy(dst, memory + (offset - line->offset), bytes);
    return MP_OK;
}

/* What a source slice has of channels [first, end). */
struct overlap {
    const struct mp_piece *piece;
    uint32_t first, channels; /* in the slice */
    uint32_t width;           /* of the slice */
};

static bool find_overlap(const struct mp_repack_job *job, const struct mp_repack_item *item,
                         uint32_t slice, uint32_t first, uint32_t end, struct overlap *o)
{
    const struct mp_weights *w = job->plan->weights;
    const uint32_t base = mp_ffn_slices_first(&w->slices, slice);

    o->width = mp_ffn_slices_channels(&w->slices, slice);
    if (end <= base || first >= base + o->width)
        return false;
    o->first = first > base ? first - base : 0;
    o->channels = (end < base + o->width ? end - base : o->width) - o->first;
    o->piece = &w->units[item->expert * w->slices.count + slice].pieces[item->piece];
    return true;
}

/* Bytes of so many channels: elements of a row of down, rows of gate or up. Whole blocks, and a
 * part of a tensor that is there. */
static uint64_t channel_bytes(const struct mp_repack_job *job, const struct mp_repack_item *item,
                              uint64_t channels)
{
    const struct mp_dtype_info *type = mp_dtype_info(item->dtype);
    const uint64_t each = item->piece == MP_PIECE_DOWN ? 1 : job->plan->hidden;

    return channels * each / type->block_elements * type->block_bytes;
}

/* Channels of the item in one row of down, or in all rows of gate or up; skip and bytes select from
 * what they are together. */
static enum mp_status read_channels(struct mp_repack_job *job, const struct mp_repack_item *item,
                                    uint64_t row, uint64_t skip, uint64_t bytes, char *dst)
{
    uint64_t at = 0; /* behind the overlaps so far */
    enum mp_status status = MP_OK;

    for (uint32_t s = 0; status == MP_OK && bytes > 0 && s < job->plan->weights->slices.count;
         s++) {
        struct overlap o;
        uint64_t here, most;

        if (!find_overlap(job, item, s, item->first, item->first + item->channels, &o))
            continue;
        here = channel_bytes(job, item, o.channels);
        if (skip < at + here) {
            most = at + here - skip < bytes ? at + here - skip : bytes;
            status = read_some(job, s, o.piece,
                               o.piece->offset_bytes +
                                   channel_bytes(job, item, row * o.width + o.first) + (skip - at),
                               most, dst);
            skip += most;
            dst += most;
            bytes -= most;
        }
        at += here;
    }
    return status;
}

enum mp_status mp_repack_read(struct mp_repack_job *job, const struct mp_repack_item *item,
                              uint64_t at, uint64_t bytes, void *dst_)
{
    const struct mp_files *files = mp_checkpoint_files(job->plan->checkpoint);
    const uint64_t row_bytes = channel_bytes(job, item, item->channels); /* of down */
    enum mp_status status = MP_OK;
    char *dst = dst_;

    if (item->file == UINT32_MAX) {
        memset(dst, 0, bytes);
        return MP_OK;
    }
    if (item->form != MP_REPACK_COPY)
        return mp_repack_mxfp4_read(job, item, at, bytes, dst);
    if (item->expert == UINT32_MAX)
        return mp_files_read(files, item->file, item->source_bytes + at, bytes, dst);
    if (item->piece != MP_PIECE_DOWN)
        return read_channels(job, item, 0, at, bytes, dst);
    if (job->plan->weights->slices.count == job->plan->slices.count)
        return mp_files_read(files, item->file, item->source_bytes + at, bytes, dst);
    while (status == MP_OK && bytes > 0) {
        const uint64_t skip = at % row_bytes;
        const uint64_t now = row_bytes - skip < bytes ? row_bytes - skip : bytes;

        status = read_channels(job, item, at / row_bytes, skip, now, dst);
        at += now;
        dst += now;
        bytes -= now;
    }
    return status;
}
