/*
 * The weights: read some rows, make floats of each, then blocks. Rows are independent, so threads
 * share those of a piece; what is written does not depend on how many there are.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/convert/convert_int.h"
#include "kernels/cpu/mxfp4.h"
#include "kernels/cpu/quant/encode.h"

#define PIECE_BYTES (8u << 20)

/* Rows of one matrix that are read and written together. */
struct piece {
    const struct mp_convert_tensor *tensor;
    const float *weights; /* of the columns or NULL */
    uint64_t rows;
    const char *from;
    uint64_t col_step; /* of what is in `from` */
    char *to;
    float *floats; // (threads, 2, cols): a row, and what its blocks stand for
    size_t cols_max;
    double *sums; // (rows, 2): squares of a row, and of its errors; squares negative: not finite
};

/* ---- rows of the new file */

/* One row as numbers; `spare` is overwritten. */
static void take_row(const struct piece *piece, uint64_t row, float *x, float *spare)
{
    const struct mp_convert_tensor *tensor = piece->tensor;
    const size_t cols = tensor->cols, step = piece->col_step,
                 size = mp_wtype_bytes(tensor->from, 1);
    const char *from = piece->from + row * tensor->row_step * size;
    char *bytes = (char *)spare;

    for (size_t c = 0; step != 1 && size == 2 && c < cols; c++)
        memcpy(bytes + 2 * c, from + 2 * c * step, 2);
    for (size_t c = 0; step != 1 && size == 4 && c < cols; c++)
        memcpy(bytes + 4 * c, from + 4 * c * step, 4);
    mp_wtype_info(tensor->from)->convert(x, step != 1 ? bytes : from, cols);
}

/* What the new file has in place of the source's numbers. */
static void change_row(const struct mp_convert_tensor *tensor, float *x, float *spare)
{
    const size_t cols = tensor->cols, tile = tensor->form.tile_cols;

    for (size_t c = 0; tensor->offset != 0 && c < cols; c++)
        x[c] += tensor->offset;
    for (size_t c = 0; tensor->exponent && c < cols; c++)
        x[c] = -expf(x[c]);
    if (tile == 0)
        return;
    memcpy(spare, x, cols * sizeof(*x));
    for (size_t i = 0; i < cols / tile; i++)
        memcpy(x + i * tile, spare + mp_form_tile(&tensor->form, i) * tile, tile * sizeof(*x));
}

/* Blocks of nibbles and scales, which stay what they are. */
static void join_row(const struct piece *piece, uint64_t row)
{
    const struct mp_convert_tensor *tensor = piece->tensor;
    const size_t blocks = tensor->cols / mp_wtype_info(tensor->to)->block_elements;
    const uint64_t at = (row * tensor->row_step + tensor->apart_row) * blocks;
    const unsigned char *nibbles = (const unsigned char *)piece->from;
    const unsigned char *scales =
        nibbles + piece->rows * tensor->row_step * blocks * MP_MXFP4_NIBBLES;
    unsigned char *to = (unsigned char *)piece->to + row * blocks * MP_MXFP4_BLOCK;

    for (size_t b = 0; b < blocks; b++)
        mp_mxfp4_join(to + b * MP_MXFP4_BLOCK, nibbles + (at + b) * MP_MXFP4_NIBBLES,
                      scales[at + b]);
}

static void convert_row(void *ctx, uint64_t row, unsigned thread)
{
    const struct piece *piece = ctx;
    const struct mp_convert_tensor *tensor = piece->tensor;
    const size_t cols = tensor->cols;
    float *x = piece->floats + 2 * thread * piece->cols_max, *y = x + piece->cols_max;
    char *to = piece->to + row * mp_wtype_bytes(tensor->to, cols);
    double *sums = &piece->sums[2 * row];

    sums[0] = sums[1] = 0;
    if (tensor->apart) {
        join_row(piece, row);
        return;
    }
    take_row(piece, row, x, y);
    change_row(tensor, x, y);
    for (size_t i = 0; i < cols; i++)
        sums[0] += (double)x[i] * x[i];
    if (!isfinite(sums[0])) {
        sums[0] = -1;
        return;
    }
    mp_quant_encode(tensor->to, to, x, piece->weights, cols);
    if (tensor->to == MP_WTYPE_F32 || tensor->to == tensor->from)
        return;
    mp_wtype_info(tensor->to)->convert(y, to, cols);
    for (size_t i = 0; i < cols; i++)
        sums[1] += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
}

static enum mp_status fail_value(const struct mp_convert_tensor *tensor, uint64_t row)
{
    return mp_fail(MP_ERR_MODEL, "E_CONVERT_VALUE",
                   "row %" PRIu64 " of what becomes '%s' has a number that is not finite; the "
                   "model is damaged",
                   row, tensor->name);
}

/* ---- rows of the source */

/* Row `row` of queries, keys, values and gates, in this order, of a matrix that has them by head of
 * keys. */
static uint64_t row_by_keys(const struct mp_delta *d, uint64_t row)
{
    const uint64_t D = d->key_dim, K = mp_delta_keys(d), V = mp_delta_values(d);
    const uint64_t values = V / d->key_heads, group = 2 * D + 2 * values;

    if (row < 2 * K)
        return row % K / D * group + row / K * D + row % D;
    row -= 2 * K;
    return row % V / values * group + 2 * D + row / V * values + row % values;
}

/* Row `row` of a matrix is which one of the source? */
static uint64_t source_row(const struct mp_convert *job, const struct mp_convert_tensor *tensor,
                           uint64_t row)
{
    const struct mp_role_form *form = &tensor->form;
    const uint64_t behind = row - form->tile_first, tile = form->tile_rows;

    if (tensor->by_keys)
        return row_by_keys(&job->model.delta, tensor->first_row + row);
    if (form->head_rows > 0)
        return row / form->head_rows * form->head_rows +
               mp_form_head_row(form, row % form->head_rows);
    if (tile > 0 && row >= form->tile_first)
        return form->tile_first + mp_form_tile(form, behind / tile) * tile + behind % tile;
    return row;
}

/* Part of a matrix's numbers, from the one at `first` on. */
static enum mp_status read_numbers(const struct mp_convert *job,
                                   const struct mp_convert_tensor *tensor, uint64_t matrix,
                                   uint64_t first, uint64_t count, char *to)
{
    const struct mp_files *files = mp_checkpoint_files(job->checkpoint);
    const uint64_t size = mp_wtype_bytes(tensor->from, 1);
    uint64_t at = tensor->source_bytes + first * size;
    uint32_t file = tensor->file;

    if (tensor->experts > 0) {
        const struct mp_piece *piece =
            &job->weights->units[tensor->first_unit + matrix / tensor->pieces]
                 .pieces[tensor->piece + matrix % tensor->pieces];

        file = piece->file;
        at += piece->offset_bytes;
    } else {
        at += matrix * tensor->matrix_step * size;
    }
    return mp_files_read(files, file, at, count * size, to);
}

/* Nibbles of the rows, and behind them the scales. */
static enum mp_status read_apart(const struct mp_convert *job, const struct piece *piece,
                                 uint64_t matrix, uint64_t row, char *to)
{
    const struct mp_files *files = mp_checkpoint_files(job->checkpoint);
    const struct mp_convert_tensor *tensor = piece->tensor;
    const struct mp_piece *nibbles =
        &job->weights->units[tensor->first_unit + matrix].pieces[tensor->piece];
    const struct mp_piece *scales = nibbles + 1;
    const uint64_t blocks = tensor->cols / mp_wtype_info(tensor->to)->block_elements;
    const uint64_t first = row * tensor->row_step * blocks;
    const uint64_t count = piece->rows * tensor->row_step * blocks;
    enum mp_status status =
        mp_files_read(files, nibbles->file, nibbles->offset_bytes + first * MP_MXFP4_NIBBLES,
                      count * MP_MXFP4_NIBBLES, to);

    return status == MP_OK ? mp_files_read(files, scales->file, scales->offset_bytes + first, count,
                                           to + count * MP_MXFP4_NIBBLES)
                           : status;
}

/* Matrices that are transposed in the source: a part of each of its rows. */
static bool is_turned(const struct mp_convert_tensor *tensor)
{
    return tensor->col_step > tensor->row_step;
}

/* Into `to`, from row `first` of the tensor on, with piece->col_step from column to column. */
static enum mp_status read_rows(const struct mp_convert *job, struct piece *piece, uint64_t first,
                                char *to)
{
    const struct mp_convert_tensor *tensor = piece->tensor;
    const uint64_t size = mp_wtype_bytes(tensor->from, 1), step = tensor->row_step;
    const uint64_t matrix = first / tensor->matrix_rows, row = first % tensor->matrix_rows;
    const uint64_t span = is_turned(tensor) ? (piece->rows - 1) * step + 1
                                            : (tensor->cols - 1) * tensor->col_step + 1;
    enum mp_status status = MP_OK;

    piece->col_step = is_turned(tensor) ? span : tensor->col_step;
    if (tensor->made != NULL) {
        memcpy(to, tensor->made, tensor->cols * size);
        return MP_OK;
    }
    if (tensor->apart)
        return read_apart(job, piece, matrix, row, to);
    for (uint64_t c = 0; is_turned(tensor) && status == MP_OK && c < tensor->cols; c++)
        status = read_numbers(job, tensor, matrix, c * tensor->col_step + row * step, span,
                              to + c * span * size);
    for (uint64_t i = 0, run; !is_turned(tensor) && status == MP_OK && i < piece->rows; i += run) {
        const uint64_t from = source_row(job, tensor, row + i);

        for (run = 1;
             i + run < piece->rows && source_row(job, tensor, row + i + run) == from + run;)
            run++;
        status = read_numbers(job, tensor, matrix, from * step, (run - 1) * step + span,
                              to + i * step * size);
    }
    return status;
}

static enum mp_status report_progress(const struct mp_convert *job, uint64_t done_bytes)
{
    const struct mp_progress *progress = job->config->progress;

    if (progress == NULL || progress->report(progress->context, done_bytes, job->data_bytes))
        return MP_OK;
    return mp_fail(MP_ERR_CANCELED, "E_CANCELED", "interrupted; nothing was written");
}

/* Add up in the order of rows, so that the sums do not depend on threads. */
static enum mp_status add_sums(struct mp_convert *job, const struct piece *piece, uint64_t first)
{
    for (uint64_t row = 0; row < piece->rows; row++) {
        if (piece->sums[2 * row] < 0)
            return fail_value(piece->tensor, first + row);
        if (piece->tensor->to != MP_WTYPE_F32 && piece->tensor->to != piece->tensor->from) {
            job->squares += piece->sums[2 * row];
            job->errors += piece->sums[2 * row + 1];
        }
    }
    return MP_OK;
}

/* Bytes that a row takes, of what is read or written for it. */
static uint64_t row_bytes(const struct mp_convert_tensor *tensor)
{
    const uint64_t read = (is_turned(tensor) ? tensor->cols : 1) * tensor->row_step * sizeof(float);
    const uint64_t written = mp_wtype_bytes(MP_WTYPE_F32, tensor->cols);

    return read > written ? read : written;
}

static uint64_t rows_together(const struct mp_convert_tensor *tensor)
{
    const uint64_t rows = PIECE_BYTES / row_bytes(tensor);

    return rows > 1 ? rows : 1;
}

static enum mp_status convert_tensor(struct mp_convert *job, struct piece *piece, FILE *file)
{
    const struct mp_convert_tensor *tensor = piece->tensor;
    const uint64_t together = rows_together(tensor);
    const uint64_t weighed = tensor->rows / (tensor->dims == 3 ? tensor->shape[0] : 1);
    float *weights = NULL;
    enum mp_status status = MP_OK;

    if (job->imatrix != NULL && tensor->to >= MP_WTYPE_PLAIN_COUNT)
        status = mp_imatrix_read(job->imatrix, tensor, &weights);
    job->report.weighed += weights != NULL;
    for (uint64_t row = 0; status == MP_OK && row < tensor->rows; row += piece->rows) {
        const uint64_t left = tensor->matrix_rows - row % tensor->matrix_rows;

        piece->rows = left < together ? left : together;
        piece->weights = weights != NULL ? weights + row / weighed * tensor->cols : NULL;
        status = read_rows(job, piece, row, (char *)(uintptr_t)piece->from);
        if (status == MP_OK) {
            mp_pool_run_dynamic(job->config->pool, convert_row, piece, piece->rows);
            status = add_sums(job, piece, row);
        }
        if (status == MP_OK) {
            fwrite(piece->to, mp_wtype_bytes(tensor->to, tensor->cols), piece->rows, file);
            status = report_progress(job, tensor->offset_bytes +
                                              row * mp_wtype_bytes(tensor->to, tensor->cols));
        }
    }
    free(weights);
    return status;
}

static enum mp_status convert_all(struct mp_convert *job, struct piece *piece, FILE *file)
{
    uint64_t at = 0;
    enum mp_status status = MP_OK;

    for (size_t i = 0; status == MP_OK && i < job->count; i++) {
        const struct mp_convert_tensor *tensor = &job->tensors[i];

        for (; at < tensor->offset_bytes; at++)
            putc(0, file);
        piece->tensor = tensor;
        status = convert_tensor(job, piece, file);
        at += tensor->bytes;
        job->report.tensors++;
        job->report.quantised += tensor->to != MP_WTYPE_F32 && tensor->to != tensor->from;
    }
    job->report.bytes = at;
    return status;
}

enum mp_status mp_convert_data(struct mp_convert *job, FILE *file)
{
    struct piece piece = { .cols_max = 1 };
    uint64_t bytes = 0, rows = 0;
    char *block;
    enum mp_status status;

    for (size_t i = 0; i < job->count; i++) {
        const uint64_t cols = job->tensors[i].cols, together = rows_together(&job->tensors[i]);
        const uint64_t needed = together * row_bytes(&job->tensors[i]);

        piece.cols_max = cols > piece.cols_max ? cols : piece.cols_max;
        bytes = needed > bytes ? needed : bytes;
        rows = together > rows ? together : rows;
    }
    block = malloc(2 * bytes);
    piece.floats =
        malloc(2 * mp_pool_threads(job->config->pool) * piece.cols_max * sizeof(*piece.floats));
    piece.sums = malloc(2 * rows * sizeof(*piece.sums));
    if (block == NULL || piece.floats == NULL || piece.sums == NULL) {
        status = mp_fail_no_memory("the rows that are converted", 2 * bytes);
    } else {
        piece.from = block;
        piece.to = block + bytes;
        status = convert_all(job, &piece, file);
    }
    free(piece.sums);
    free(piece.floats);
    free(block);
    return status;
}
