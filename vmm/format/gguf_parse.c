/*
 * The header of one GGUF file. It is walked twice: first to check it and to count, then to fill
 * arrays of the right size, so that no size from the file is used before its bytes were checked.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/base/arena.h"
#include "vmm/base/assert.h"
#include "vmm/base/checked.h"
#include "vmm/format/gguf_int.h"

#define MAGIC 0x46554747u /* "GGUF" */
#define ALIGN_DEFAULT 32u

struct walk {
    const unsigned char *head;
    uint64_t head_bytes, file_bytes, at;
    bool more; /* the head ended, the file does not */
    char file[MP_QUOTE_BYTES];
    char object[MP_QUOTE_BYTES]; /* key or tensor at hand */
    uint64_t text_bytes;         /* names and keys so far, with NUL */
    char *text;                  /* where they go in the second walk, else NULL */
};

static const uint8_t kind_bytes[MP_GGUF_KIND_COUNT] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };

static uint64_t little(const unsigned char *data, uint64_t bytes)
{
    uint64_t value = 0;

    mp_assert(bytes <= 8);
    for (uint64_t i = bytes; i > 0; i--)
        value = value << 8 | data[i - 1];
    return value;
}

static enum mp_status fail_short(struct walk *walk, uint64_t bytes)
{
    mp_assert(bytes > walk->head_bytes - walk->at);
    if (walk->head_bytes < walk->file_bytes && walk->head_bytes < MP_GGUF_HEADER_BYTES_MAX) {
        walk->more = true;
        return MP_ERR_MODEL;
    }
    (void)mp_fail(MP_ERR_MODEL, "E_GGUF_SHORT",
                  "header of '%s' at byte %" PRIu64 ": got %" PRIu64 " bytes, need %" PRIu64
                  "; a header has at most %u bytes and the file %" PRIu64 ", download it again",
                  walk->file, walk->at, walk->head_bytes - walk->at, bytes,
                  MP_GGUF_HEADER_BYTES_MAX, walk->file_bytes);
    return MP_ERR_MODEL;
}

/* Invariant: at <= head_bytes. */
static enum mp_status take(struct walk *walk, uint64_t bytes, const unsigned char **data_p)
{
    mp_assert(walk->at <= walk->head_bytes);
    if (bytes > walk->head_bytes - walk->at)
        return fail_short(walk, bytes);
    *data_p = walk->head + walk->at;
    walk->at += bytes;
    return MP_OK;
}

static enum mp_status take_number(struct walk *walk, uint64_t bytes, uint64_t *value_p)
{
    const unsigned char *data;
    const enum mp_status status = take(walk, bytes, &data);

    mp_assert(bytes <= 8);
    if (status == MP_OK)
        *value_p = little(data, bytes);
    return status;
}

/* A key or a name, made walk->object; copied in the second walk. */
static enum mp_status take_name(struct walk *walk, const char *what, uint64_t bytes_max,
                                const char **name_p)
{
    const uint64_t begin = walk->at;
    const unsigned char *data = NULL;
    uint64_t bytes = 0;
    enum mp_status status = take_number(walk, 8, &bytes);

    mp_assert(bytes_max > 0);
    if (status != MP_OK)
        return status;
    if (bytes == 0 || bytes > bytes_max)
        return mp_fail(MP_ERR_MODEL, "E_GGUF_NAME",
                       "%s in '%s' at byte %" PRIu64 " is %" PRIu64
                       " bytes, need at least 1 and at most %" PRIu64,
                       what, walk->file, begin, bytes, bytes_max);
    status = take(walk, bytes, &data);
    if (status != MP_OK)
        return status;
    mp_quote(walk->object, (const char *)data, bytes);
    if (memchr(data, '\0', bytes) != NULL)
        return mp_fail(MP_ERR_MODEL, "E_GGUF_NAME",
                       "%s '%s' in '%s' at byte %" PRIu64 " has a NUL byte, need none", what,
                       walk->object, walk->file, begin);
    if (walk->text != NULL) {
        *name_p = memcpy(walk->text + walk->text_bytes, data, bytes);
        walk->text[walk->text_bytes + bytes] = '\0';
    }
    walk->text_bytes += bytes + 1;
    return MP_OK;
}

static enum mp_status take_kind(struct walk *walk, enum mp_gguf_kind *kind_p)
{
    uint64_t number = 0;
    const enum mp_status status = take_number(walk, 4, &number);

    if (status != MP_OK)
        return status;
    if (number >= MP_GGUF_KIND_COUNT)
        return mp_fail(MP_ERR_MODEL, "E_GGUF_VALUE",
                       "key '%s' in '%s' at byte %" PRIu64 " has a value of type %" PRIu64
                       ", need at most %d",
                       walk->object, walk->file, walk->at - 4, number, MP_GGUF_KIND_COUNT - 1);
    *kind_p = (enum mp_gguf_kind)number;
    return MP_OK;
}

static enum mp_status take_string(struct walk *walk, struct mp_gguf_value *value)
{
    const enum mp_status status = take_number(walk, 8, &value->count);

    mp_assert(value->kind == MP_GGUF_STRING);
    if (status != MP_OK)
        return status;
    if (value->count > MP_GGUF_STRING_BYTES_MAX)
        return mp_fail(MP_ERR_MODEL, "E_GGUF_VALUE",
                       "key '%s' in '%s' at byte %" PRIu64 " has a string of %" PRIu64
                       " bytes, need at most %u",
                       walk->object, walk->file, walk->at - 8, value->count,
                       MP_GGUF_STRING_BYTES_MAX);
    return take(walk, value->count, &value->data);
}

/* `count` values of one fixed size. */
static enum mp_status take_fixed(struct walk *walk, enum mp_gguf_kind kind, uint64_t count,
                                 const unsigned char **data_p)
{
    uint64_t bytes = 0;
    enum mp_status status;

    mp_assert(kind_bytes[kind] > 0);
    if (!mp_mul_u64(count, kind_bytes[kind], &bytes))
        bytes = UINT64_MAX;
    status = take(walk, bytes, data_p);
    for (uint64_t i = 0; status == MP_OK && kind == MP_GGUF_BOOL && i < count; i++) {
        if ((*data_p)[i] > 1)
            status = mp_fail(MP_ERR_MODEL, "E_GGUF_VALUE",
                             "key '%s' in '%s' at byte %" PRIu64 " has the bool %u, need 0 or 1",
                             walk->object, walk->file, walk->at - count + i, (*data_p)[i]);
    }
    return status;
}

static enum mp_status take_value(struct walk *walk, enum mp_gguf_kind kind, unsigned depth,
                                 struct mp_gguf_value *value)
{
    enum mp_status status;

    mp_assert(kind < MP_GGUF_KIND_COUNT && depth <= MP_GGUF_DEPTH_MAX);
    *value = (struct mp_gguf_value){ .kind = kind, .count = 1 };
    if (kind == MP_GGUF_STRING)
        return take_string(walk, value);
    if (kind != MP_GGUF_ARRAY)
        return take_fixed(walk, kind, 1, &value->data);
    if (depth == MP_GGUF_DEPTH_MAX)
        return mp_fail(MP_ERR_MODEL, "E_GGUF_VALUE",
                       "key '%s' in '%s' at byte %" PRIu64 " has arrays in arrays, need at most %u",
                       walk->object, walk->file, walk->at, MP_GGUF_DEPTH_MAX);
    status = take_kind(walk, &value->element);
    if (status == MP_OK)
        status = take_number(walk, 8, &value->count);
    if (status != MP_OK)
        return status;
    if (kind_bytes[value->element] > 0)
        return take_fixed(walk, value->element, value->count, &value->data);
    value->data = walk->head + walk->at;
    for (uint64_t i = 0; status == MP_OK && i < value->count; i++) {
        struct mp_gguf_value element;

        status = take_value(walk, value->element, depth + 1, &element);
    }
    return status;
}

/* The bytes were checked by the walk before. */
bool mp_gguf_array_next(struct mp_gguf_value *array, struct mp_gguf_value *element_p)
{
    struct walk walk = { .head = array->data, .head_bytes = UINT64_MAX, .file_bytes = UINT64_MAX };

    if (array->kind != MP_GGUF_ARRAY || array->count == 0 ||
        take_value(&walk, array->element, 0, element_p) != MP_OK)
        return false;
    array->count--;
    array->data += walk.at;
    return true;
}

static enum mp_status take_entry(struct walk *walk, struct mp_gguf_part *part,
                                 struct mp_gguf_entry *entry)
{
    enum mp_gguf_kind kind = MP_GGUF_U8;
    uint64_t align = 0;
    const uint64_t begin = walk->at;
    enum mp_status status = take_name(walk, "a key", MP_GGUF_KEY_BYTES_MAX, &entry->key);

    if (status == MP_OK)
        status = take_kind(walk, &kind);
    if (status == MP_OK)
        status = take_value(walk, kind, 0, &entry->value);
    if (status != MP_OK || strcmp(walk->object, "general.alignment") != 0)
        return status;
    if (!mp_gguf_as_u64(&entry->value, &align) || align == 0 || (align & (align - 1)) != 0 ||
        align > MP_GGUF_ALIGN_MAX)
        return mp_fail(MP_ERR_MODEL, "E_GGUF_ALIGN",
                       "general.alignment in '%s' at byte %" PRIu64 " is %" PRIu64
                       ", need a power of two up to %u",
                       walk->file, begin, align, MP_GGUF_ALIGN_MAX);
    part->align_bytes = (uint32_t)align;
    return MP_OK;
}

/* The product of bytes bounds that of elements, so it is taken in bytes of one block each. */
static enum mp_status tensor_bytes(const struct walk *walk, struct mp_gguf_tensor *tensor)
{
    const uint64_t block = tensor->type->block_elements;
    uint64_t bytes = tensor->type->block_bytes;

    mp_assert(tensor->type->block_elements > 0);
    if (tensor->shape[0] % block != 0)
        return mp_fail(MP_ERR_MODEL, "E_GGUF_SHAPE",
                       "tensor '%s' in '%s': a row of %s has %" PRIu64
                       " elements, need a multiple of %" PRIu64,
                       walk->object, walk->file, tensor->type->name, tensor->shape[0], block);
    for (uint32_t i = 0; i < MP_GGUF_DIMS_MAX; i++) {
        if (!mp_mul_u64(bytes, i == 0 ? tensor->shape[0] / block : tensor->shape[i], &bytes))
            return mp_fail(MP_ERR_MODEL, "E_GGUF_SHAPE",
                           "tensor '%s' in '%s': its size does not fit in 64 bits", walk->object,
                           walk->file);
    }
    tensor->bytes = bytes;
    return MP_OK;
}

static enum mp_status take_tensor(struct walk *walk, struct mp_gguf_tensor *tensor)
{
    uint64_t dims = 0, number = 0;
    const uint64_t begin = walk->at;
    enum mp_status status =
        take_name(walk, "a tensor's name", MP_GGUF_NAME_BYTES_MAX, &tensor->name);

    if (status == MP_OK)
        status = take_number(walk, 4, &dims);
    if (status == MP_OK && dims > MP_GGUF_DIMS_MAX)
        status = mp_fail(MP_ERR_MODEL, "E_GGUF_SHAPE",
                         "tensor '%s' in '%s' at byte %" PRIu64 " has %" PRIu64
                         " dimensions, need at most %u",
                         walk->object, walk->file, begin, dims, MP_GGUF_DIMS_MAX);
    if (status != MP_OK)
        return status;
    tensor->dims = (uint32_t)dims;
    for (uint32_t i = 0; i < MP_GGUF_DIMS_MAX; i++) {
        tensor->shape[i] = 1;
        if (status == MP_OK && i < dims)
            status = take_number(walk, 8, &tensor->shape[i]);
    }
    if (status == MP_OK)
        status = take_number(walk, 4, &number);
    if (status == MP_OK)
        status = take_number(walk, 8, &tensor->offset_bytes);
    if (status != MP_OK)
        return status;
    tensor->type = mp_gguf_type_find(number);
    if (tensor->type == NULL)
        return mp_fail(MP_ERR_MODEL, "E_GGUF_TYPE",
                       "tensor '%s' in '%s' at byte %" PRIu64 " has type %" PRIu64
                       ", which is not known here",
                       walk->object, walk->file, begin, number);
    return tensor_bytes(walk, tensor);
}

static enum mp_status take_counts(struct walk *walk, struct mp_gguf_part *part)
{
    uint64_t magic = 0, version = 0, tensors = 0, entries = 0;
    enum mp_status status = take_number(walk, 4, &magic);

    mp_assert(walk->at <= 4); /* they come first */
    if (status == MP_OK && magic != MAGIC)
        return mp_fail(MP_ERR_MODEL, "E_GGUF_MAGIC",
                       "'%s' begins with %08" PRIx64 ", need 46554747 (GGUF); it is no GGUF file",
                       walk->file, magic);
    if (status == MP_OK)
        status = take_number(walk, 4, &version);
    if (status == MP_OK && version != 2 && version != 3)
        return mp_fail(MP_ERR_MODEL, "E_GGUF_VERSION",
                       "'%s' is GGUF version %" PRIu64 "%s, need 2 or 3; convert the model again",
                       walk->file, version, (version & 0xffff) == 0 ? " (big-endian)" : "");
    if (status == MP_OK)
        status = take_number(walk, 8, &tensors);
    if (status == MP_OK)
        status = take_number(walk, 8, &entries);
    if (status != MP_OK)
        return status;
    if (tensors > MP_GGUF_TENSORS_MAX || entries > MP_GGUF_ENTRIES_MAX)
        return mp_fail(MP_ERR_MODEL, "E_GGUF_COUNT",
                       "'%s' says %" PRIu64 " tensors and %" PRIu64 " keys, need at most %u and %u",
                       walk->file, tensors, entries, MP_GGUF_TENSORS_MAX, MP_GGUF_ENTRIES_MAX);
    part->version = (uint32_t)version;
    part->tensor_count = tensors;
    part->entry_count = entries;
    return MP_OK;
}

/* Without arrays in `part`: check and count. With them: fill. */
static enum mp_status walk_all(struct walk *walk, struct mp_gguf_part *part)
{
    enum mp_status status;

    mp_assert(walk->head_bytes <= walk->file_bytes);
    walk->at = 0;
    walk->text_bytes = 0;
    part->align_bytes = ALIGN_DEFAULT;
    status = take_counts(walk, part);
    for (size_t i = 0; status == MP_OK && i < part->entry_count; i++) {
        struct mp_gguf_entry entry = { 0 };

        status = take_entry(walk, part, &entry);
        if (part->entries != NULL)
            part->entries[i] = entry;
    }
    for (size_t i = 0; status == MP_OK && i < part->tensor_count; i++) {
        struct mp_gguf_tensor tensor = { 0 };

        status = take_tensor(walk, &tensor);
        if (part->tensors != NULL)
            part->tensors[i] = tensor;
    }
    if (status == MP_OK && !mp_round_up_u64(walk->at, part->align_bytes, &part->data_begin))
        mp_unreachable(); /* both are small */
    return status;
}

static void take_parts(struct mp_gguf_part *part, struct walk *walk, uint64_t text_bytes,
                       struct mp_arena *arena)
{
    part->entries = mp_arena_take(arena, part->entry_count, sizeof(*part->entries));
    part->tensors = mp_arena_take(arena, part->tensor_count, sizeof(*part->tensors));
    walk->text = mp_arena_take(arena, text_bytes, 1);
}

enum mp_status mp_gguf_parse(const void *head, uint64_t head_bytes, uint64_t file_bytes,
                             const char *name, struct mp_gguf_part *part, bool *more_p)
{
    struct walk walk = { .head = head, .file_bytes = file_bytes };
    struct mp_arena arena = { 0 };
    enum mp_status status;
    uint64_t text_bytes;

    mp_assert(head != NULL || head_bytes == 0);
    memset(part, 0, sizeof(*part));
    *more_p = false;
    walk.head_bytes = head_bytes < file_bytes ? head_bytes : file_bytes;
    mp_quote(walk.file, name, strlen(name));
    status = walk_all(&walk, part);
    if (status != MP_OK)
        goto err;
    text_bytes = walk.text_bytes;
    take_parts(part, &walk, text_bytes, &arena);
    status = mp_arena_open(&arena, "the table of tensors");
    if (status != MP_OK)
        goto err;
    part->block = arena.block;
    take_parts(part, &walk, text_bytes, &arena);
    status = walk_all(&walk, part);
    mp_assert(status == MP_OK); /* as the first time */
    mp_assert(walk.text_bytes == text_bytes);
    if (status == MP_OK)
        status = mp_gguf_check_part(part, walk.file, file_bytes);
    if (status == MP_OK)
        return MP_OK;

err:
    mp_gguf_part_fini(part);
    *more_p = walk.more;
    return walk.more ? MP_OK : status;
}

void mp_gguf_part_fini(struct mp_gguf_part *part)
{
    free(part->block);
    memset(part, 0, sizeof(*part));
}
