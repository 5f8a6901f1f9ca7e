/* Header and metadata of the new file. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/convert/convert_int.h"
#include "engine/model/types.h"

#define QUANTISATION_VERSION 2 /* of the blocks' layouts */

/* What is said anew, or of a file that was in parts. */
static bool is_replaced(const char *key)
{
    static const char *const keys[] = { "general.alignment", "general.file_type",
                                        "general.quantization_version" };

    for (size_t i = 0; i < MP_ARRAY_LEN(keys); i++) {
        if (strcmp(key, keys[i]) == 0)
            return true;
    }
    return strncmp(key, "split.", 6) == 0 || strncmp(key, "quantize.", 9) == 0;
}

enum mp_status mp_convert_entries(const struct mp_convert *job, struct mp_gguf_out *out)
{
    const struct mp_gguf *gguf = mp_checkpoint_gguf(job->checkpoint);
    const bool blocks = job->recipe->base >= MP_WTYPE_PLAIN_COUNT;
    enum mp_status status = MP_OK;

    if (gguf == NULL)
        mp_gguf_put_string(out, "general.architecture", job->target->name);
    mp_gguf_put_u32(out, "general.alignment", MP_CONVERT_ALIGN);
    mp_gguf_put_u32(out, "general.file_type", job->recipe->file_type);
    if (blocks)
        mp_gguf_put_u32(out, "general.quantization_version", QUANTISATION_VERSION);
    if (gguf == NULL) {
        mp_convert_numbers(job, out);
        status = mp_convert_tokenizer(job, out);
    }
    for (size_t i = 0; gguf != NULL && i < mp_gguf_entry_count(gguf); i++) {
        if (!is_replaced(mp_gguf_entry(gguf, i)->key))
            mp_gguf_put_entry(out, mp_gguf_entry(gguf, i));
    }
    return status;
}

/* The number of a type in files. */
static uint32_t type_number(enum mp_wtype type)
{
    const char *name = mp_dtype_name(mp_dtype_of(type));
    uint32_t number = 0;

    while (mp_gguf_type_find(number) == NULL || strcmp(mp_gguf_type_find(number)->name, name) != 0)
        number++; /* every type that is written has one */
    return number;
}

static void put_tensors(const struct mp_convert *job, FILE *file)
{
    for (size_t i = 0; i < job->count; i++) {
        const struct mp_convert_tensor *tensor = &job->tensors[i];

        mp_gguf_put_text(file, tensor->name, strlen(tensor->name));
        mp_gguf_put(file, tensor->dims, 4);
        for (uint32_t d = tensor->dims; d > 0; d--)
            mp_gguf_put(file, tensor->shape[d - 1], 8);
        mp_gguf_put(file, type_number(tensor->to), 4);
        mp_gguf_put(file, tensor->offset_bytes, 8);
    }
}

enum mp_status mp_convert_header(const struct mp_convert *job, char **text_p, size_t *bytes_p)
{
    char *entries = NULL;
    size_t entries_bytes = 0;
    struct mp_gguf_out out = { .file = open_memstream(&entries, &entries_bytes) };
    FILE *file = open_memstream(text_p, bytes_p);
    enum mp_status status = out.file == NULL || file == NULL
                                ? mp_fail_no_memory("the header of the new file", 0)
                                : mp_convert_entries(job, &out);
    bool good = out.file != NULL && !ferror(out.file);

    if (out.file != NULL && fclose(out.file) != 0)
        good = false;

    if (file != NULL && good && status == MP_OK) {
        fwrite("GGUF", 1, 4, file);
        mp_gguf_put(file, 3, 4);
        mp_gguf_put(file, job->count, 8);
        mp_gguf_put(file, out.count, 8);
        fwrite(entries, 1, entries_bytes, file);
        put_tensors(job, file);
        for (long at = ftell(file); at > 0 && at % (long)MP_CONVERT_ALIGN != 0; at++)
            putc(0, file);
        good = !ferror(file);
    }
    if (file != NULL && fclose(file) != 0)
        good = false;
    free(entries);
    if (status == MP_OK && !good)
        status = mp_fail_no_memory("the header of the new file", 0);
    return status;
}
