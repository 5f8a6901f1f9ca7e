/* Metadata as bytes of a GGUF file, version 3, little-endian. Errors of the stream are looked at by
 * whoever closes it. */
#include <string.h>

#include "engine/convert/convert_int.h"
#include "vmm/base/assert.h"

void mp_gguf_put(FILE *file, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        putc((int)(value >> 8 * i & 0xff), file);
}

void mp_gguf_put_text(FILE *file, const char *text, size_t bytes)
{
    mp_gguf_put(file, bytes, 8);
    fwrite(text, 1, bytes, file);
}

static void begin(struct mp_gguf_out *out, const char *key, enum mp_gguf_kind kind)
{
    mp_gguf_put_text(out->file, key, strlen(key));
    mp_gguf_put(out->file, kind, 4);
    out->count++;
}

void mp_gguf_put_u32(struct mp_gguf_out *out, const char *key, uint32_t value)
{
    begin(out, key, MP_GGUF_U32);
    mp_gguf_put(out->file, value, 4);
}

void mp_gguf_put_f32(struct mp_gguf_out *out, const char *key, float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    begin(out, key, MP_GGUF_F32);
    mp_gguf_put(out->file, bits, 4);
}

void mp_gguf_put_bool(struct mp_gguf_out *out, const char *key, bool value)
{
    begin(out, key, MP_GGUF_BOOL);
    mp_gguf_put(out->file, value, 1);
}

void mp_gguf_put_string(struct mp_gguf_out *out, const char *key, const char *text)
{
    begin(out, key, MP_GGUF_STRING);
    mp_gguf_put_text(out->file, text, strlen(text));
}

void mp_gguf_put_array(struct mp_gguf_out *out, const char *key, enum mp_gguf_kind element,
                       uint64_t count)
{
    begin(out, key, MP_GGUF_ARRAY);
    mp_gguf_put(out->file, element, 4);
    mp_gguf_put(out->file, count, 8);
}

static void put_value(FILE *file, const struct mp_gguf_value *value)
{
    static const unsigned char bytes[MP_GGUF_KIND_COUNT] = {
        [MP_GGUF_U8] = 1,  [MP_GGUF_I8] = 1,  [MP_GGUF_U16] = 2, [MP_GGUF_I16] = 2,
        [MP_GGUF_U32] = 4, [MP_GGUF_I32] = 4, [MP_GGUF_F32] = 4, [MP_GGUF_BOOL] = 1,
        [MP_GGUF_U64] = 8, [MP_GGUF_I64] = 8, [MP_GGUF_F64] = 8,
    };
    struct mp_gguf_value rest = *value, element;

    if (value->kind == MP_GGUF_STRING) {
        mp_gguf_put_text(file, (const char *)value->data, value->count);
    } else if (value->kind == MP_GGUF_ARRAY) { /* at most MP_GGUF_DEPTH_MAX in each other */
        mp_gguf_put(file, value->element, 4);
        mp_gguf_put(file, value->count, 8);
        while (mp_gguf_array_next(&rest, &element))
            put_value(file, &element);
    } else {
        fwrite(value->data, 1, bytes[value->kind], file);
    }
}

void mp_gguf_put_entry(struct mp_gguf_out *out, const struct mp_gguf_entry *entry)
{
    begin(out, entry->key, entry->value.kind);
    put_value(out->file, &entry->value);
}
