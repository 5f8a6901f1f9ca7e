/*
 * Writes the header of a safetensors file; the caller writes the data.
 */
#include "engine/model/st_out.h"

#include <inttypes.h>
#include <stdio.h>

#include "vmm/output/json_out.h"

uint64_t mp_st_out_bytes(const struct mp_st_out_tensor *tensor)
{
    uint64_t elements = 1, bytes = 0;

    for (uint32_t i = 0; i < tensor->dims; i++)
        elements *= tensor->shape[i];
    return mp_dtype_bytes(tensor->dtype, elements, &bytes) ? bytes : 0;
}

static void write_text_u64(struct mp_json_out *json, const char *key, uint64_t value, int base)
{
    char text[32];

    snprintf(text, sizeof(text), base == 16 ? "%016" PRIx64 : "%" PRIu64, value);
    mp_json_put_string(json, key, text);
}

static void write_header(FILE *file, const char *format, const struct mp_model_id *id,
                         uint64_t tokens, const struct mp_st_out_tensor *tensors, size_t count)
{
    struct mp_json_out json;
    uint64_t at = 0;

    mp_json_begin(&json, file, false);
    mp_json_object_begin(&json, NULL);
    mp_json_object_begin(&json, "__metadata__");
    mp_json_put_string(&json, "moepager", format);
    write_text_u64(&json, "layers", id->layers, 10);
    write_text_u64(&json, "experts", id->experts, 10);
    write_text_u64(&json, "top_k", id->top_k, 10);
    write_text_u64(&json, "hidden", id->hidden, 10);
    write_text_u64(&json, "router", id->router_hash, 16);
    write_text_u64(&json, "tokens", tokens, 10);
    mp_json_object_end(&json);
    for (size_t i = 0; i < count; i++) {
        mp_json_object_begin(&json, tensors[i].name);
        mp_json_put_string(&json, "dtype", mp_dtype_name(tensors[i].dtype));
        mp_json_array_begin(&json, "shape");
        for (uint32_t d = 0; d < tensors[i].dims; d++)
            mp_json_put_u64(&json, NULL, tensors[i].shape[d]);
        mp_json_array_end(&json);
        mp_json_array_begin(&json, "data_offsets");
        mp_json_put_u64(&json, NULL, at);
        at += mp_st_out_bytes(&tensors[i]);
        mp_json_put_u64(&json, NULL, at);
        mp_json_array_end(&json);
        mp_json_object_end(&json);
    }
    mp_json_object_end(&json);
    mp_json_end(&json);
}

/* The length stands before a text whose length is known when it is written: it is put in after. */
enum mp_status mp_st_out_open(struct mp_st_out *st, const char *path, const char *format,
                              const struct mp_model_id *id, uint64_t tokens,
                              const struct mp_st_out_tensor *tensors, size_t count)
{
    enum mp_status status = mp_out_open(&st->out, path);
    unsigned char length[8] = { 0 };
    uint64_t end;

    if (status != MP_OK)
        return status;
    fwrite(length, 1, sizeof(length), st->out.file);
    write_header(st->out.file, format, id, tokens, tensors, count);
    end = mp_out_position(&st->out);
    for (; end % 8 != 0; end++)
        fputc(' ', st->out.file);
    st->data_begin = end;
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)((end - sizeof(length)) >> 8 * i);
    mp_out_seek(&st->out, 0);
    fwrite(length, 1, sizeof(length), st->out.file);
    mp_st_out_seek(st, 0);
    return MP_OK;
}

void mp_st_out_seek(struct mp_st_out *st, uint64_t data_offset_bytes)
{
    mp_out_seek(&st->out, st->data_begin + data_offset_bytes);
}

enum mp_status mp_st_out_commit(struct mp_st_out *st)
{
    return mp_out_commit(&st->out);
}

void mp_st_out_abandon(struct mp_st_out *st)
{
    mp_out_abandon(&st->out);
}
