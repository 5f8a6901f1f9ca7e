#include "engine/weights.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/weights_int.h"

/* Bytes between two calls of the progress function. */
#define READ_BYTES (16u << 20)

#define HUGE_PAGE_BYTES (2u << 20)

/* In the order of the files, so that a disk reads forward. */
static int by_place(const void *a, const void *b)
{
    const struct mp_tensor *x = ((const struct mp_weights_item *)a)->tensor;
    const struct mp_tensor *y = ((const struct mp_weights_item *)b)->tensor;

    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->st.offset_bytes < y->st.offset_bytes ? -1 : x->st.offset_bytes > y->st.offset_bytes;
}

struct load {
    const struct mp_files *files;
    const struct mp_progress *progress;
    uint64_t done_bytes, total_bytes;
};

static enum mp_status read_tensor(struct load *load, const struct mp_tensor *tensor, char *dst)
{
    for (uint64_t at = 0; at < tensor->st.bytes; at += READ_BYTES) {
        const uint64_t rest = tensor->st.bytes - at;
        const uint64_t bytes = rest < READ_BYTES ? rest : READ_BYTES;
        enum mp_status status;

        status =
            mp_files_read(load->files, tensor->file, tensor->st.offset_bytes + at, bytes, dst + at);
        if (status != MP_OK)
            return status;
        load->done_bytes += bytes;
        if (load->progress != NULL &&
            !load->progress->report(load->progress->context, load->done_bytes, load->total_bytes))
            return mp_fail(MP_ERR_CANCELED, "E_CANCELED", "loading the weights was canceled");
    }
    return MP_OK;
}

static enum mp_status read_item(struct load *load, const struct mp_weights_item *item, char *block)
{
    void *dst = block + item->block_offset;
    enum mp_status status;
    void *raw;

    if (item->data != NULL) {
        *item->data = dst;
        return read_tensor(load, item->tensor, dst);
    }
    *item->floats = dst;
    raw = malloc(item->tensor->st.bytes);
    if (raw == NULL)
        return mp_fail_no_memory("a norm or bias", item->tensor->st.bytes);
    status = read_tensor(load, item->tensor, raw);
    if (status == MP_OK)
        mp_kernels_ref.convert(dst, raw, item->type, item->count);
    free(raw);
    return status;
}

static enum mp_status read_all(struct mp_weights_plan *plan, const struct mp_progress *progress)
{
    struct load load = { .files = mp_checkpoint_files(plan->checkpoint), .progress = progress };
    const bool huge = plan->block_bytes >= HUGE_PAGE_BYTES;
    enum mp_status status = MP_OK;

    if (posix_memalign(&plan->weights->block, huge ? HUGE_PAGE_BYTES : 4096, plan->block_bytes) !=
        0) {
        plan->weights->block = NULL;
        return mp_fail_no_memory("the weights that every token needs", plan->block_bytes);
    }
    if (huge)
        madvise(plan->weights->block, plan->block_bytes, MADV_HUGEPAGE); /* Only a wish. */
    qsort(plan->items, plan->item_count, sizeof(*plan->items), by_place);
    for (size_t i = 0; i < plan->item_count; i++)
        load.total_bytes += plan->items[i].tensor->st.bytes;
    for (size_t i = 0; status == MP_OK && i < plan->item_count; i++)
        status = read_item(&load, &plan->items[i], plan->weights->block);
    if (status == MP_OK && plan->config->tied)
        plan->weights->head = plan->weights->embed;
    return status;
}

/* Plan, and with `read` read. */
static enum mp_status make_weights(const struct mp_checkpoint *checkpoint,
                                   const struct mp_model_config *config, bool read,
                                   const struct mp_progress *progress,
                                   struct mp_weights **weights_p)
{
    struct mp_weights *weights = calloc(1, sizeof(*weights));
    struct mp_weights_plan plan = { .checkpoint = checkpoint,
                                    .config = config,
                                    .weights = weights };
    enum mp_status status;

    if (weights == NULL)
        return mp_fail_no_memory("the weights", sizeof(*weights));
    status = mp_weights_plan_make(&plan);
    if (status == MP_OK && read)
        status = read_all(&plan, progress);
    mp_weights_plan_fini(&plan);
    if (status != MP_OK) {
        mp_weights_destroy(weights);
        return status;
    }
    *weights_p = weights;
    return MP_OK;
}

enum mp_status mp_weights_load(const struct mp_checkpoint *checkpoint,
                               const struct mp_model_config *config,
                               const struct mp_progress *progress, struct mp_weights **weights_p)
{
    return make_weights(checkpoint, config, true, progress, weights_p);
}

enum mp_status mp_weights_describe(const struct mp_checkpoint *checkpoint,
                                   const struct mp_model_config *config,
                                   struct mp_weights **weights_p)
{
    return make_weights(checkpoint, config, false, NULL, weights_p);
}

void mp_weights_destroy(struct mp_weights *weights)
{
    if (weights == NULL)
        return;
    free(weights->block);
    free(weights->unit_types);
    free(weights->units);
    free(weights->layers);
    free(weights);
}
