/*
 * A GGUF file as a table of tensors, in the words that those of safetensors have: row sizes last,
 * types by their common names. Types that vmm/format/types.h does not list are refused by name.
 */
#include <stdlib.h>
#include <string.h>

#include "vmm/base/assert.h"
#include "vmm/format/checkpoint_int.h"

static enum mp_status take_tensor(const struct mp_gguf *gguf, const struct mp_gguf_tensor *from,
                                  struct mp_tensor *tensor)
{
    char name[MP_QUOTE_BYTES], file[MP_QUOTE_BYTES];
    const char *file_name = mp_files_name(mp_gguf_files(gguf), from->file);

    tensor->file = from->file;
    tensor->st = (struct mp_st_tensor){
        .name = from->name,
        .dims = from->dims,
        .offset_bytes = from->offset_bytes,
        .bytes = from->bytes,
    };
    for (uint32_t i = 0; i < from->dims; i++)
        tensor->st.shape[i] = from->shape[from->dims - 1 - i];
    if (mp_dtype_find(from->type->name, &tensor->st.dtype))
        return MP_OK;
    return mp_fail(MP_ERR_MODEL, "E_UNSUPPORTED",
                   "tensor '%s' in '%s' is of type %s, which is not computed yet",
                   mp_quote(name, from->name, strlen(from->name)),
                   mp_quote(file, file_name, strlen(file_name)), from->type->name);
}

enum mp_status mp_checkpoint_add_gguf(struct mp_checkpoint *checkpoint, const char *path)
{
    enum mp_status status = mp_gguf_open(path, &checkpoint->gguf);
    size_t count;

    if (status != MP_OK)
        return status;
    checkpoint->files = mp_gguf_files(checkpoint->gguf);
    count = mp_gguf_count(checkpoint->gguf);
    if (count == 0)
        return mp_fail(MP_ERR_MODEL, "E_CKPT_FORMAT", "the model files hold no tensor");
    checkpoint->tensors = calloc(count, sizeof(*checkpoint->tensors));
    if (checkpoint->tensors == NULL)
        return mp_fail_no_memory("the table of tensors", count * sizeof(*checkpoint->tensors));
    checkpoint->count = count;
    for (size_t i = 0; status == MP_OK && i < count; i++) {
        struct mp_tensor *tensor = &checkpoint->tensors[i];

        status = take_tensor(checkpoint->gguf, mp_gguf_tensor(checkpoint->gguf, i), tensor);
        checkpoint->bytes += tensor->st.bytes; /* <= sizes of the files */
    }
    mp_assert(status != MP_OK || checkpoint->bytes > 0 || count > 0);
    return status;
}
