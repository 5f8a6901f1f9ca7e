/* What a header says about one file as a whole: where tensors lie, and that nothing is there twice.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/base/assert.h"
#include "vmm/base/checked.h"
#include "vmm/format/gguf_int.h"

static enum mp_status place_tensor(const struct mp_gguf_part *part, const char *file,
                                   uint64_t file_bytes, struct mp_gguf_tensor *tensor)
{
    char name[MP_QUOTE_BYTES];
    uint64_t begin = 0, end = UINT64_MAX;

    mp_assert(part->align_bytes > 0);
    mp_quote(name, tensor->name, strlen(tensor->name));
    if (tensor->offset_bytes % part->align_bytes != 0)
        return mp_fail(MP_ERR_MODEL, "E_GGUF_OFFSET",
                       "tensor '%s' in '%s' lies at byte %" PRIu64
                       " of the data, need a multiple of %u",
                       name, file, tensor->offset_bytes, part->align_bytes);
    if (!mp_add_u64(part->data_begin, tensor->offset_bytes, &begin) ||
        !mp_add_u64(begin, tensor->bytes, &end) || (end > file_bytes && tensor->bytes > 0))
        return mp_fail(MP_ERR_MODEL, "E_GGUF_END",
                       "tensor '%s' in '%s' ends at byte %" PRIu64 ", file has %" PRIu64
                       "; it is cut short, download it again",
                       name, file, end, file_bytes);
    tensor->offset_bytes = begin;
    return MP_OK;
}

/* By offset; those without bytes first. */
static int by_offset(const void *a, const void *b)
{
    const struct mp_gguf_tensor *x = a, *y = b;

    if (x->offset_bytes != y->offset_bytes)
        return x->offset_bytes < y->offset_bytes ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static enum mp_status check_overlap(const struct mp_gguf_part *part, const char *file)
{
    const struct mp_gguf_tensor *before = NULL;
    char name[MP_QUOTE_BYTES], first[MP_QUOTE_BYTES];

    for (size_t i = 0; i < part->tensor_count; i++) {
        const struct mp_gguf_tensor *tensor = &part->tensors[i];

        if (tensor->bytes == 0)
            continue;
        mp_assert(before == NULL || tensor->offset_bytes >= before->offset_bytes);
        if (before != NULL && tensor->offset_bytes < before->offset_bytes + before->bytes)
            return mp_fail(MP_ERR_MODEL, "E_GGUF_OVERLAP",
                           "tensor '%s' in '%s' begins at byte %" PRIu64
                           ", before the end of '%s' at byte %" PRIu64,
                           mp_quote(name, tensor->name, strlen(tensor->name)), file,
                           tensor->offset_bytes,
                           mp_quote(first, before->name, strlen(before->name)),
                           before->offset_bytes + before->bytes);
        before = tensor;
    }
    return MP_OK;
}

int mp_gguf_by_name(const void *a, const void *b)
{
    return strcmp(((const struct mp_gguf_tensor *)a)->name,
                  ((const struct mp_gguf_tensor *)b)->name);
}

int mp_gguf_by_key(const void *a, const void *b)
{
    return strcmp(((const struct mp_gguf_entry *)a)->key, ((const struct mp_gguf_entry *)b)->key);
}

static enum mp_status fail_twice(const char *file, const char *what, const char *name)
{
    char shown[MP_QUOTE_BYTES];

    return mp_fail(MP_ERR_MODEL, "E_GGUF_DUP", "%s '%s' is in '%s' twice", what,
                   mp_quote(shown, name, strlen(name)), file);
}

/* Sorted by offset for the overlaps, and then by name for good. */
enum mp_status mp_gguf_check_part(struct mp_gguf_part *part, const char *file, uint64_t file_bytes)
{
    enum mp_status status = MP_OK;

    mp_assert(part->block != NULL);
    for (size_t i = 0; status == MP_OK && i < part->tensor_count; i++)
        status = place_tensor(part, file, file_bytes, &part->tensors[i]);
    if (status != MP_OK)
        return status;
    qsort(part->entries, part->entry_count, sizeof(*part->entries), mp_gguf_by_key);
    for (size_t i = 1; i < part->entry_count; i++) {
        if (strcmp(part->entries[i - 1].key, part->entries[i].key) == 0)
            return fail_twice(file, "key", part->entries[i].key);
    }
    qsort(part->tensors, part->tensor_count, sizeof(*part->tensors), by_offset);
    status = check_overlap(part, file);
    if (status != MP_OK)
        return status;
    qsort(part->tensors, part->tensor_count, sizeof(*part->tensors), mp_gguf_by_name);
    for (size_t i = 1; i < part->tensor_count; i++) {
        if (strcmp(part->tensors[i - 1].name, part->tensors[i].name) == 0)
            return fail_twice(file, "tensor", part->tensors[i].name);
    }
    return MP_OK;
}
