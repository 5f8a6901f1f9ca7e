/*
 * Reading the weights that every token needs. Adjacent tensors of a file form a run, and each run
 * is one transfer of the reader that the pager also uses: large direct reads, many at once, to the
 * final place of the bytes. So a run reads all blocks that it touches, and a matrix keeps its
 * offset within a disk block, at any address. Norms and biases are converted after the runs.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/model/weights_int.h"
#include "vmm/base/checked.h"

#define HUGE_PAGE_BYTES (2u << 20)
#define RUN_ALIGN 4096
#define FLOAT_ALIGN 64

/* For callers that do not say how to read. */
static const struct mp_weights_io default_io = {
    .direct = true,
    .reader = { .uring = true, .depth = 16, .threads = 4, .chunk_bytes = 1 << 20 },
};

/* In the order of the files, so that a disk reads forward. */
static int by_place(const void *a, const void *b)
{
    const struct mp_tensor *x = ((const struct mp_weights_item *)a)->tensor;
    const struct mp_tensor *y = ((const struct mp_weights_item *)b)->tensor;

    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->st.offset_bytes < y->st.offset_bytes ? -1 : x->st.offset_bytes > y->st.offset_bytes;
}

/* Put the item's bytes into the last run, or into a new one behind `used` bytes of the block. The
 * file's size bounds all offsets. */
static bool place_item(struct mp_weights_plan *plan, struct mp_weights_item *item, uint64_t *used)
{
    const struct mp_tensor *tensor = item->tensor;
    const uint64_t start = mp_round_down_u64(tensor->st.offset_bytes, RUN_ALIGN);
    const uint64_t item_end = tensor->st.offset_bytes + tensor->st.bytes;
    struct mp_weights_run *run = plan->run_count > 0 ? &plan->runs[plan->run_count - 1] : NULL;
    uint64_t end;

    if (!mp_round_up_u64(item_end, RUN_ALIGN, &end))
        return false;
    if (run == NULL || run->file != tensor->file || start > run->offset + run->bytes) {
        run = &plan->runs[plan->run_count++];
        *run = (struct mp_weights_run){
            .file = tensor->file, .offset = start, .bytes = end - start, .block_offset = *used
        };
    } else if (end > run->offset + run->bytes) {
        run->bytes = end - run->offset;
    }
    if (item_end - run->offset > run->need_bytes)
        run->need_bytes = item_end - run->offset;
    run->tensor_bytes += tensor->st.bytes;
    item->block_offset = run->block_offset + (tensor->st.offset_bytes - run->offset);
    return mp_add_u64(run->block_offset, run->bytes, used);
}

static bool place_floats(struct mp_weights_item *item, uint64_t *used)
{
    uint64_t bytes;

    item->float_offset = *used;
    return mp_mul_u64(item->count, sizeof(float), &bytes) && mp_add_u64(*used, bytes, used) &&
           mp_round_up_u64(*used, FLOAT_ALIGN, used);
}

enum mp_status mp_weights_place(struct mp_weights_plan *plan)
{
    bool fits = true;

    plan->runs = calloc(plan->item_count, sizeof(*plan->runs));
    if (plan->runs == NULL)
        return mp_fail_no_memory("the list of reads", plan->item_count * sizeof(*plan->runs));
    qsort(plan->items, plan->item_count, sizeof(*plan->items), by_place);
    for (size_t i = 0; i < plan->item_count && fits; i++)
        fits = place_item(plan, &plan->items[i], &plan->block_bytes);
    for (size_t i = 0; i < plan->item_count && fits; i++)
        fits = plan->items[i].floats == NULL || place_floats(&plan->items[i], &plan->block_bytes);
    if (!fits)
        return mp_fail(MP_ERR_OVERFLOW, "E_OVERFLOW", "the weights do not fit in 64 bits");
    return MP_OK;
}

struct load {
    const struct mp_weights_plan *plan;
    const struct mp_progress *progress;
    struct mp_ticket *tickets;  // (runs)
    struct mp_ticket **waiting; // (runs): those that are not final yet
    uint64_t done_bytes, total_bytes;
};

static void submit_runs(struct load *load, struct mp_reader *reader, bool direct)
{
    const struct mp_weights_plan *plan = load->plan;

    for (size_t i = 0; i < plan->run_count; i++) {
        const struct mp_weights_run *run = &plan->runs[i];
        struct mp_ticket *ticket = &load->tickets[i];

        ticket->extents[0] = (struct mp_extent){
            .file = run->file,
            .offset = run->offset,
            .bytes = run->bytes,
            .need_bytes = run->need_bytes,
            .dst = (char *)plan->weights->block + run->block_offset,
        };
        ticket->extent_count = 1;
        ticket->direct = direct;
        ticket->tag = i;
        load->waiting[i] = ticket;
        load->total_bytes += run->tensor_bytes;
        mp_reader_submit(reader, ticket);
    }
}

static enum mp_status wait_for_runs(struct load *load, struct mp_reader *reader)
{
    const struct mp_progress *progress = load->progress;
    uint32_t left = (uint32_t)load->plan->run_count;

    while (left > 0) {
        const uint32_t at = mp_reader_wait_any(reader, load->waiting, left);
        const struct mp_ticket *ticket = load->waiting[at];

        if (mp_ticket_state(ticket) == MP_TICKET_FAILED) {
            mp_error_set(&ticket->error);
            return ticket->error.status;
        }
        memmove(&load->waiting[at], &load->waiting[at + 1],
                (--left - at) * sizeof(load->waiting[0]));
        load->done_bytes += load->plan->runs[ticket->tag].tensor_bytes;
        if (progress != NULL &&
            !progress->report(progress->context, load->done_bytes, load->total_bytes))
            return mp_fail(MP_ERR_CANCELED, "E_CANCELED", "loading the weights was canceled");
    }
    return MP_OK;
}

static enum mp_status read_runs(struct load *load, const struct mp_weights_io *io)
{
    const size_t bytes = load->plan->run_count * (sizeof(*load->tickets) + sizeof(void *));
    struct mp_reader_config config = io->reader;
    struct mp_reader *reader = NULL;
    enum mp_status status;

    load->tickets = calloc(load->plan->run_count, sizeof(*load->tickets));
    load->waiting = calloc(load->plan->run_count, sizeof(struct mp_ticket *));
    if (load->tickets == NULL || load->waiting == NULL)
        return mp_fail_no_memory("the list of reads", bytes);
    config.files = mp_checkpoint_files(load->plan->checkpoint);
    if (config.clock == NULL)
        config.clock = mp_clock_monotonic();
    status = mp_reader_create(&config, &reader);
    if (status != MP_OK)
        return status;
    submit_runs(load, reader, io->direct);
    status = wait_for_runs(load, reader);
    mp_reader_destroy(reader);
    return status;
}

/* Rows 2i and 2i + 1 of each head become rows i and i + D/2, counted behind those that stay. */
static enum mp_status part_neighbours(const struct mp_weights_item *item, char *data)
{
    const size_t head_rows = item->form.head_rows;
    const size_t row_bytes = item->tensor->st.bytes / item->tensor->st.shape[0];
    const size_t head_bytes = head_rows * row_bytes;
    char *head = malloc(head_bytes);

    if (head == NULL)
        return mp_fail_no_memory("the rows of a head", head_bytes);
    for (uint64_t at = 0; at < item->tensor->st.bytes; at += head_bytes) {
        memcpy(head, data + at, head_bytes);
        for (size_t row = 0; row < head_rows; row++)
            memcpy(data + at + mp_form_head_row(&item->form, row) * row_bytes,
                   head + row * row_bytes, row_bytes);
    }
    free(head);
    return MP_OK;
}

/* Each matrix in its place. */
static enum mp_status turn_matrices(const struct mp_weights_item *item, char *data)
{
    const size_t rows = item->form.turn_rows, cols = item->form.turn_cols,
                 size = mp_wtype_bytes(item->type, 1);
    const size_t bytes = rows * cols * size;
    char *matrix = malloc(bytes);

    if (matrix == NULL)
        return mp_fail_no_memory("a matrix of a head", bytes);
    for (uint64_t at = 0; at < item->tensor->st.bytes; at += bytes) {
        memcpy(matrix, data + at, bytes);
        for (size_t row = 0; row < rows; row++) {
            for (size_t col = 0; col < cols; col++)
                memcpy(data + at + (col * rows + row) * size, matrix + (row * cols + col) * size,
                       size);
        }
    }
    free(matrix);
    return MP_OK;
}

/* Parts of rows that take turns come together. */
static enum mp_status order_tiles(const struct mp_weights_item *item, char *data)
{
    const size_t bytes = item->tensor->st.bytes / item->tensor->st.shape[0];
    const size_t tile_bytes = mp_wtype_bytes(item->type, item->form.tile_cols);
    char *row = malloc(bytes);

    if (row == NULL)
        return mp_fail_no_memory("a row of a matrix", bytes);
    for (uint64_t at = 0; at < item->tensor->st.bytes; at += bytes) {
        memcpy(row, data + at, bytes);
        for (size_t i = 0; i < bytes / tile_bytes; i++)
            memcpy(data + at + mp_form_tile(&item->form, i) * tile_bytes, row + i * tile_bytes,
                   tile_bytes);
    }
    free(row);
    return MP_OK;
}

/* Elements as floats, and what becomes of some. */
static void convert_item(const struct mp_weights_item *item, float *out, const char *data)
{
    mp_kernels_ref.convert(out, data, item->type, item->count);
    for (uint64_t k = 0; item->form.offset != 0 && k < item->count; k++)
        out[k] += item->form.offset;
    for (uint64_t k = 0; item->form.exponent && k < item->count; k++)
        out[k] = -expf(out[k]);
}

static enum mp_status set_addresses(const struct mp_weights_plan *plan)
{
    char *block = plan->weights->block;
    enum mp_status status = MP_OK;

    for (size_t i = 0; status == MP_OK && i < plan->item_count; i++) {
        const struct mp_weights_item *item = &plan->items[i];

        if (item->form.head_rows != 0)
            status = part_neighbours(item, block + item->block_offset);
        if (item->form.turn_rows != 0)
            status = turn_matrices(item, block + item->block_offset);
        if (item->form.tile_cols != 0)
            status = order_tiles(item, block + item->block_offset);
        if (item->data != NULL) {
            *item->data = block + item->block_offset;
            continue;
        }
        *item->floats = (float *)(void *)(block + item->float_offset);
        convert_item(item, (float *)(void *)(block + item->float_offset),
                     block + item->block_offset);
    }
    if (plan->config->tied) /* of a layer that drafts both come later */
        plan->weights->head = plan->weights->embed;
    return status;
}

static enum mp_status list_parts(const struct mp_weights_plan *plan)
{
    struct mp_weights *weights = plan->weights;

    weights->parts = calloc(plan->item_count, sizeof(*weights->parts));
    if (weights->parts == NULL)
        return mp_fail_no_memory("the list of weights", plan->item_count * sizeof(*weights->parts));
    weights->part_count = plan->item_count;
    for (size_t i = 0; i < plan->item_count; i++)
        weights->parts[i] = (struct mp_weights_part){ plan->items[i].block_offset,
                                                      plan->items[i].tensor->st.bytes };
    return MP_OK;
}

enum mp_status mp_weights_read(struct mp_weights_plan *plan, const struct mp_weights_io *io,
                               const struct mp_progress *progress)
{
    const bool huge = plan->block_bytes >= HUGE_PAGE_BYTES;
    struct load load = { .plan = plan, .progress = progress };
    enum mp_status status;

    if (posix_memalign(&plan->weights->block, huge ? HUGE_PAGE_BYTES : RUN_ALIGN,
                       plan->block_bytes) != 0) {
        plan->weights->block = NULL;
        return mp_fail_no_memory("the weights that every token needs", plan->block_bytes);
    }
    if (huge)
        madvise(plan->weights->block, plan->block_bytes, MADV_HUGEPAGE); /* Only a hint. */
    status = list_parts(plan);
    if (status == MP_OK)
        status = read_runs(&load, io != NULL ? io : &default_io);
    if (status == MP_OK)
        status = set_addresses(plan);
    free(load.waiting);
    free(load.tickets);
    return status;
}
