/* The scan for values that no trained model contains. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/base/assert.h"
#include "vmm/format/checkpoint_int.h"

/* A multiple of the size of every plain number. */
#define CHUNK_BYTES (4u << 20)

/* The first element in [0, count) that is not finite, or count. */
static uint64_t find_not_finite(const struct mp_dtype_info *type, const char *data, uint64_t count,
                                bool *nan_p)
{
    mp_assert(type->block_bytes > 0 && type->block_bytes <= sizeof(uint64_t));
    for (uint64_t i = 0; i < count; i++) {
        uint64_t bits = 0;

        memcpy(&bits, data + i * type->block_bytes, type->block_bytes); /* little-endian */
        if ((bits & type->exponent) == type->exponent) {
            *nan_p = (bits & type->fraction) != 0;
            return i;
        }
    }
    return count;
}

struct scan {
    const struct mp_checkpoint *checkpoint;
    const struct mp_progress *progress;
    char *buffer;
    uint64_t done_bytes;
};

static enum mp_status scan_tensor(struct scan *scan, const struct mp_tensor *tensor)
{
    const struct mp_files *files = scan->checkpoint->files;
    char name[MP_QUOTE_BYTES], file[MP_QUOTE_BYTES];
    const struct mp_dtype_info *type = mp_dtype_info(tensor->st.dtype);
    bool nan = false;

    mp_assert(scan->buffer != NULL);
    if (type->exponent == 0) {
        scan->done_bytes += tensor->st.bytes;
        return MP_OK;
    }
    for (uint64_t at = 0; at < tensor->st.bytes; at += CHUNK_BYTES) {
        const uint64_t rest = tensor->st.bytes - at;
        const uint64_t bytes = rest < CHUNK_BYTES ? rest : CHUNK_BYTES;
        enum mp_status status;

        status =
            mp_files_read(files, tensor->file, tensor->st.offset_bytes + at, bytes, scan->buffer);
        if (status != MP_OK)
            return status;
        const uint64_t bad = find_not_finite(type, scan->buffer, bytes / type->block_bytes, &nan);
        if (bad < bytes / type->block_bytes) {
            const char *file_name = mp_files_name(files, tensor->file);

            return mp_fail(MP_ERR_MODEL, "E_CKPT_VALUE",
                           "tensor '%s' in '%s': element %" PRIu64 " is %s",
                           mp_quote(name, tensor->st.name, strlen(tensor->st.name)),
                           mp_quote(file, file_name, strlen(file_name)),
                           at / type->block_bytes + bad, nan ? "NaN" : "infinite");
        }
        scan->done_bytes += bytes;
        if (scan->progress != NULL &&
            !scan->progress->report(scan->progress->context, scan->done_bytes,
                                    scan->checkpoint->bytes))
            return mp_fail(MP_ERR_CANCELED, "E_CANCELED", "the check of the weights was canceled");
    }
    return MP_OK;
}

enum mp_status mp_checkpoint_check_values(const struct mp_checkpoint *checkpoint,
                                          const struct mp_progress *progress)
{
    struct scan scan = { .checkpoint = checkpoint, .progress = progress };
    enum mp_status status = MP_OK;

    mp_assert(checkpoint->count > 0);
    scan.buffer = malloc(CHUNK_BYTES);
    if (scan.buffer == NULL)
        return mp_fail_no_memory("the check of the weights", CHUNK_BYTES);
    for (size_t i = 0; status == MP_OK && i < checkpoint->count; i++)
        status = scan_tensor(&scan, &checkpoint->tensors[i]);
    free(scan.buffer);
    return status;
}
