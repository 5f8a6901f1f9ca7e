/*
 * Experts as MXFP4 in the form of gpt-oss's own checkpoints: for all of a layer nibbles and scales
 * in tensors of their own, rows of gate and up in turns. The source has the same matrices
 * transposed, in plain numbers, so a row here is a column there.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/model/arch/arch.h"
#include "engine/model/types.h"
#include "engine/repack/repack_int.h"
#include "kernels/cpu/mxfp4.h"
#include "kernels/cpu/quant/encode.h"

#define BLOCK 32 /* weights that share a scale */

/* The matrix of an expert: rows as they are written. */
struct matrix {
    uint64_t rows, cols;
    enum mp_wtype type; /* in the source */
};

static struct matrix matrix_of(const struct mp_repack_item *item)
{
    return (struct matrix){ item->shape[1], item->shape[2] * BLOCK, item->from };
}

enum mp_status mp_repack_mxfp4_check(const struct mp_repack_plan *plan,
                                     const struct mp_model_config *model)
{
    if (!model->arch->fused_mxfp4)
        return mp_fail(MP_ERR_MODEL, "E_UNSUPPORTED",
                       "directories of the family %s have no experts in MXFP4; --to gguf writes "
                       "them so",
                       model->arch->name);
    if (plan->weights->apart)
        return mp_fail(MP_ERR_MODEL, "E_UNSUPPORTED",
                       "the experts of this model are MXFP4 already");
    if (!plan->weights->transposed)
        return mp_fail(MP_ERR_MODEL, "E_UNSUPPORTED",
                       "experts of this model are not in tensors of all of a layer; MXFP4 is "
                       "written of those only");
    if (model->hidden % BLOCK != 0 || model->expert_ffn % BLOCK != 0)
        return mp_fail(MP_ERR_MODEL, "E_UNSUPPORTED",
                       "experts of %" PRIu32 " channels and a hidden_size of %" PRIu32
                       " have no whole blocks of %d weights, as MXFP4 needs",
                       model->expert_ffn, model->hidden, BLOCK);
    return MP_OK;
}

static void add_item(struct mp_repack_plan *plan, const struct mp_model_config *model,
                     uint32_t layer, uint32_t piece, bool scales)
{
    const bool down = piece == MP_PIECE_DOWN;
    const uint64_t rows = down ? model->hidden : 2 * (uint64_t)model->expert_ffn;
    const uint64_t blocks = (down ? model->expert_ffn : model->hidden) / BLOCK;
    const uint32_t unit = plan->weights->layers[layer].first_unit;
    const struct mp_piece *from = &plan->weights->units[unit].pieces[piece];
    struct mp_repack_item *item = &plan->items[plan->item_count++];
    char *name = plan->names + plan->name_bytes * plan->name_count++;
    const size_t length = mp_arch_format(
        name, plan->name_bytes, down ? model->arch->fused_down : model->arch->fused_gate_up,
        &(struct mp_name_numbers){ .layer = layer });

    snprintf(name + length, plan->name_bytes - length, "%s",
             scales ? MP_APART_SCALES_SUFFIX : MP_APART_NIBBLES_SUFFIX);
    *item = (struct mp_repack_item){
        .name = name,
        .dtype = MP_DTYPE_U8,
        .dims = scales ? 3 : 4,
        .shape = { model->experts, rows, blocks, MP_MXFP4_NIBBLES },
        .file = from->file,
        .source_bytes = from->offset_bytes,
        .expert = UINT32_MAX,
        .piece = piece,
        .form = scales ? MP_REPACK_SCALES : MP_REPACK_NIBBLES,
        .from = plan->weights->unit_types[unit].piece[piece],
        .bytes = model->experts * rows * blocks * (scales ? 1 : MP_MXFP4_NIBBLES),
    };
    plan->report.expert_bytes += item->bytes;
}

/* Nibbles of all layers stand first: of most models those of an expert are whole disk blocks. */
void mp_repack_mxfp4_list(struct mp_repack_plan *plan, const struct mp_model_config *model)
{
    for (uint32_t scales = 0; scales < 2; scales++) {
        for (uint32_t layer = 0; layer < model->layers; layer++) {
            if (!model->is_moe[layer])
                continue;
            add_item(plan, model, layer, MP_PIECE_GATE, scales);
            add_item(plan, model, layer, MP_PIECE_DOWN, scales);
        }
    }
    plan->report.experts = model->moe_layers * model->experts;
}

static enum mp_status fail_value(const struct mp_repack_item *item, uint64_t row)
{
    return mp_fail(MP_ERR_MODEL, "E_CONVERT_VALUE",
                   "row %" PRIu64 " of what becomes '%s' has a number that is not finite; the "
                   "model is damaged",
                   row, item->name);
}

/* Columns of the source, each of its rows' part behind the other: (cols, count). */
static enum mp_status read_columns(struct mp_repack_job *job, const struct mp_repack_item *item,
                                   const struct matrix *m, uint64_t row, uint64_t count)
{
    const struct mp_files *files = mp_checkpoint_files(job->plan->checkpoint);
    const uint64_t size = mp_wtype_bytes(m->type, 1), expert = row / m->rows;
    enum mp_status status = MP_OK;

    for (uint64_t c = 0; status == MP_OK && c < m->cols; c++)
        status = mp_files_read(files, item->file,
                               item->source_bytes +
                                   ((expert * m->cols + c) * m->rows + row % m->rows) * size,
                               count * size, job->cache + c * count * size);
    return status;
}

/* A block of column `row` of those in the cache, as nibbles and scale; false: not finite. */
static bool encode(const struct mp_repack_job *job, const struct matrix *m, uint64_t row,
                   uint64_t count, uint64_t block, unsigned char *nibbles, unsigned char *scale_p)
{
    const uint64_t size = mp_wtype_bytes(m->type, 1);
    unsigned char joined[MP_MXFP4_BLOCK];
    char raw[BLOCK * sizeof(float)];
    float x[BLOCK];

    for (uint64_t i = 0; i < BLOCK; i++)
        memcpy(raw + i * size, job->cache + ((block * BLOCK + i) * count + row) * size, size);
    mp_wtype_info(m->type)->convert(x, raw, BLOCK);
    for (uint64_t i = 0; i < BLOCK; i++) {
        if (!isfinite(x[i]))
            return false;
    }
    mp_quant_encode(MP_WTYPE_MXFP4, joined, x, NULL, BLOCK);
    mp_mxfp4_part(joined, nibbles, scale_p);
    return true;
}

/* Bytes [skip, skip + bytes) of what `count` rows become. */
static enum mp_status encode_rows(const struct mp_repack_job *job,
                                  const struct mp_repack_item *item, const struct matrix *m,
                                  uint64_t row, uint64_t count, uint64_t skip, uint64_t bytes,
                                  char *dst)
{
    const uint64_t blocks = m->cols / BLOCK;
    const uint64_t each = item->form == MP_REPACK_SCALES ? 1 : MP_MXFP4_NIBBLES;

    for (uint64_t at = skip / each; at * each < skip + bytes; at++) {
        unsigned char nibbles[MP_MXFP4_NIBBLES], scale;
        const unsigned char *from = item->form == MP_REPACK_SCALES ? &scale : nibbles;
        const uint64_t first = at * each < skip ? skip - at * each : 0;
        const uint64_t end = (at + 1) * each > skip + bytes ? skip + bytes - at * each : each;

        if (!encode(job, m, at / blocks, count, at % blocks, nibbles, &scale))
            return fail_value(item, row + at / blocks);
        memcpy(dst, from + first, end - first);
        dst += end - first;
    }
    return MP_OK;
}

enum mp_status mp_repack_mxfp4_read(struct mp_repack_job *job, const struct mp_repack_item *item,
                                    uint64_t at, uint64_t bytes, char *dst)
{
    const struct matrix m = matrix_of(item);
    const uint64_t row_bytes =
        m.cols / BLOCK * (item->form == MP_REPACK_SCALES ? 1 : MP_MXFP4_NIBBLES);
    /* At least 2, as there are at most 2^20 channels. */
    const uint64_t most = MP_REPACK_BUFFER_BYTES / (m.cols * mp_wtype_bytes(m.type, 1));
    enum mp_status status = MP_OK;

    while (status == MP_OK && bytes > 0) {
        const uint64_t row = at / row_bytes, skip = at % row_bytes;
        const uint64_t wanted = (skip + bytes + row_bytes - 1) / row_bytes;
        const uint64_t left = m.rows - row % m.rows;
        uint64_t count = wanted < left ? wanted : left, now;

        count = count > most ? most : count;
        now = count * row_bytes - skip < bytes ? count * row_bytes - skip : bytes;
        status = read_columns(job, item, &m, row, count);
        if (status == MP_OK)
            status = encode_rows(job, item, &m, row, count, skip, now, dst);
        at += now;
        dst += now;
        bytes -= now;
    }
    return status;
}
