/*
 * The weights: read some rows, make floats of each, then blocks. Rows are independent, so threads
 * share those of a piece; what is written does not depend on how many there are.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/convert/convert_int.h"
#include "kernels/cpu/quant/encode.h"

#define PIECE_BYTES (8u << 20)

/* Rows that are read and written together; those of one expert, of whole heads. */
struct piece {
    const struct mp_convert_tensor *tensor;
    const float *weights; /* of the columns or NULL */
    uint64_t rows;
    const char *from;
    char *to;
    float *floats; // (threads, 2, cols): a row, and what its blocks stand for
    size_t cols_max;
    double *sums; // (rows, 2): squares of a row, and of its errors; squares negative: not finite
};

/* Row `row` of the file is which one of the source? Pairs that rotate together are half a head
 * apart there and neighbours here. */
static uint64_t source_row(const struct mp_convert_tensor *tensor, uint64_t row)
{
    const uint64_t in = tensor->head_rows > 0 ? row % tensor->head_rows : 0;

    if (tensor->head_rows == 0 || in >= tensor->rotary_rows)
        return row;
    return row - in + in / 2 + in % 2 * (tensor->rotary_rows / 2);
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
    mp_wtype_info(tensor->from)
        ->convert(x, piece->from + source_row(tensor, row) * mp_wtype_bytes(tensor->from, cols),
                  cols);
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

static enum mp_status read_rows(const struct mp_convert *job, const struct piece *piece,
                                uint64_t first, char *to)
{
    const struct mp_convert_tensor *tensor = piece->tensor;
    const uint64_t row_bytes = mp_wtype_bytes(tensor->from, tensor->cols);
    const struct mp_files *files = mp_checkpoint_files(job->checkpoint);
    const uint64_t each = tensor->experts > 0 ? tensor->rows / tensor->experts : tensor->rows;
    const struct mp_piece *expert =
        tensor->experts > 0
            ? &job->weights->units[tensor->first_unit + first / each].pieces[tensor->piece]
            : NULL;

    return mp_files_read(files, expert != NULL ? expert->file : tensor->file,
                         (expert != NULL ? expert->offset_bytes : tensor->source_bytes) +
                             first % each * row_bytes,
                         piece->rows * row_bytes, to);
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

static uint64_t rows_together(const struct mp_convert_tensor *tensor)
{
    const uint64_t row_bytes = mp_wtype_bytes(MP_WTYPE_F32, tensor->cols);
    const uint64_t unit = tensor->head_rows > 0 ? tensor->head_rows : 1;
    const uint64_t rows = PIECE_BYTES / row_bytes / unit * unit;

    return rows > unit ? rows : unit;
}

static enum mp_status convert_tensor(struct mp_convert *job, struct piece *piece, FILE *file)
{
    const struct mp_convert_tensor *tensor = piece->tensor;
    const uint64_t each = tensor->rows / (tensor->experts > 0 ? tensor->experts : 1);
    const uint64_t together = rows_together(tensor);
    const uint64_t experts = tensor->dims == 3 ? tensor->shape[0] : 1;
    float *weights = NULL;
    enum mp_status status = MP_OK;

    if (job->imatrix != NULL && tensor->to >= MP_WTYPE_PLAIN_COUNT)
        status = mp_imatrix_read(job->imatrix, tensor, &weights);
    job->report.weighed += weights != NULL;
    for (uint64_t row = 0; status == MP_OK && row < tensor->rows; row += piece->rows) {
        const uint64_t end = experts > 1 ? tensor->rows / experts : each; /* of one's rows */
        const uint64_t left = end - row % end;

        piece->rows = left < together ? left : together;
        piece->weights = weights != NULL ? weights + row / end * tensor->cols : NULL;
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
        const uint64_t needed = together * mp_wtype_bytes(MP_WTYPE_F32, cols);

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
