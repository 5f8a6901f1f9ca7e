/*
 * The header of a safetensors file: from JSON to a table of tensors that cover the data exactly. It
 * opens no file and reads no tensor.
 */
#include "vmm/format/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/format/json.h"
#include "vmm/base/assert.h"
#include "vmm/base/checked.h"

const char *mp_st_shape_text(char out[MP_QUOTE_BYTES], const uint64_t *shape, uint32_t dims)
{
    size_t used = 1;

    mp_assert(shape != NULL || dims == 0);
    strcpy(out, "[");
    for (uint32_t i = 0; i < dims; i++) {
        char number[32];
        const size_t length =
            (size_t)snprintf(number, sizeof(number), "%s%" PRIu64, i > 0 ? ", " : "", shape[i]);

        if (used + length + sizeof("...]") > MP_QUOTE_BYTES) {
            memcpy(out + used, "...", 3);
            used += 3;
            break;
        }
        memcpy(out + used, number, length);
        used += length;
    }
    strcpy(out + used, "]");
    return out;
}

/* The file that is parsed and the tensor at hand, both quoted for messages. */
struct parse {
    char file[MP_QUOTE_BYTES];
    char tensor[MP_QUOTE_BYTES];
    uint64_t data_begin, file_bytes;
};

static enum mp_status wrong_field(const struct parse *parse, const char *code, const char *field,
                                  const json_t *value, const char *need)
{
    char got[MP_QUOTE_BYTES];

    mp_assert(need != NULL);
    return mp_fail(MP_ERR_MODEL, code, "tensor '%s' in '%s': %s is %s, need %s", parse->tensor,
                   parse->file, field, mp_json_describe(got, value), need);
}

/* Integers are exact: jansson keeps 64 bits and refuses what does not fit. */
static bool as_u64(const json_t *value, uint64_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static enum mp_status parse_dtype(const struct parse *parse, const json_t *value,
                                  struct mp_st_tensor *tensor)
{
    if (mp_dtype_find(json_string_value(value), &tensor->dtype))
        return MP_OK;
    return wrong_field(parse, "E_ST_DTYPE", "dtype", value, "a type of the format such as 'BF16'");
}

static enum mp_status parse_shape(const struct parse *parse, const json_t *value,
                                  struct mp_st_tensor *tensor)
{
    if (!json_is_array(value) || json_array_size(value) > MP_ST_DIMS_MAX)
        return wrong_field(parse, "E_ST_SHAPE", "shape", value,
                           "an array of at most 8 non-negative integers");
    tensor->dims = (uint32_t)json_array_size(value);
    for (uint32_t i = 0; i < tensor->dims; i++) {
        const json_t *dim = json_array_get(value, i);

        if (!as_u64(dim, &tensor->shape[i]))
            return wrong_field(parse, "E_ST_SHAPE", "a dimension of shape", dim,
                               "a non-negative integer");
    }
    return MP_OK;
}

/* The product is taken in bits of a block for each element, which bounds all that follows; it is 0
 * only where a dimension is 0, as an overflow is refused. */
static enum mp_status shape_bytes(const struct parse *parse, const struct mp_st_tensor *tensor,
                                  uint64_t *bytes_p)
{
    const struct mp_dtype_info *type = mp_dtype_info(tensor->dtype);
    const uint64_t block_bits = (uint64_t)type->block_bytes * 8;
    uint64_t bits = block_bits;
    char shape[MP_QUOTE_BYTES];

    mp_assert(tensor->dims <= MP_ST_DIMS_MAX);
    mp_st_shape_text(shape, tensor->shape, tensor->dims);
    for (uint32_t i = 0; i < tensor->dims; i++) {
        if (!mp_mul_u64(bits, tensor->shape[i], &bits))
            return mp_fail(MP_ERR_MODEL, "E_ST_OVERFLOW",
                           "tensor '%s' in '%s': the size of %s %s does not fit in 64 bits",
                           parse->tensor, parse->file, type->name, shape);
    }
    if (!mp_dtype_bytes(tensor->dtype, bits / block_bits, bytes_p))
        return mp_fail(
            MP_ERR_MODEL, "E_ST_SUBBYTE",
            "tensor '%s' in '%s': %s %s has %" PRIu64 " elements, need a multiple of %" PRIu32,
            parse->tensor, parse->file, type->name, shape, bits / block_bits, type->block_elements);
    return MP_OK;
}

static enum mp_status parse_offsets(const struct parse *parse, const json_t *value,
                                    struct mp_st_tensor *tensor)
{
    const uint64_t data_bytes = parse->file_bytes - parse->data_begin;
    char shape[MP_QUOTE_BYTES];
    uint64_t offsets[2] = { 0, 0 }, bytes = 0;

    mp_assert(parse->data_begin <= parse->file_bytes);
    if (!json_is_array(value) || json_array_size(value) != 2)
        return wrong_field(parse, "E_ST_OFFSETS", "data_offsets", value, "an array of 2 integers");
    for (size_t i = 0; i < 2; i++) {
        const json_t *offset = json_array_get(value, i);

        if (!as_u64(offset, &offsets[i]))
            return wrong_field(parse, "E_ST_OFFSETS", "one of data_offsets", offset,
                               "a non-negative integer");
    }
    const uint64_t begin = offsets[0], end = offsets[1];

    if (end < begin)
        return mp_fail(MP_ERR_MODEL, "E_ST_OFFSETS",
                       "tensor '%s' in '%s': data_offsets [%" PRIu64 ", %" PRIu64
                       "] end before they begin",
                       parse->tensor, parse->file, begin, end);
    if (end > data_bytes)
        return mp_fail(MP_ERR_MODEL, "E_ST_END",
                       "tensor '%s' in '%s': data ends at byte %" PRIu64
                       " of the data, file has %" PRIu64 "; it is cut short, download it again",
                       parse->tensor, parse->file, end, data_bytes);
    enum mp_status status = shape_bytes(parse, tensor, &bytes);
    if (status != MP_OK)
        return status;
    if (end - begin != bytes)
        return mp_fail(MP_ERR_MODEL, "E_ST_SIZE",
                       "tensor '%s' in '%s': data_offsets give %" PRIu64 " bytes, %s %s needs "
                       "%" PRIu64,
                       parse->tensor, parse->file, end - begin, mp_dtype_name(tensor->dtype),
                       mp_st_shape_text(shape, tensor->shape, tensor->dims), bytes);
    tensor->offset_bytes = parse->data_begin + begin;
    tensor->bytes = bytes;
    return MP_OK;
}

static enum mp_status parse_entry(const struct parse *parse, json_t *entry,
                                  struct mp_st_tensor *tensor)
{
    static const char *const keys[] = { "dtype", "shape", "data_offsets" };
    enum mp_status status;

    if (!json_is_object(entry))
        return wrong_field(parse, "E_ST_ENTRY", "the entry", entry, "an object");
    for (size_t i = 0; i < MP_ARRAY_LEN(keys); i++) {
        if (json_object_get(entry, keys[i]) == NULL)
            return mp_fail(MP_ERR_MODEL, "E_ST_ENTRY", "tensor '%s' in '%s' has no %s",
                           parse->tensor, parse->file, keys[i]);
    }
    if (json_object_size(entry) != MP_ARRAY_LEN(keys))
        return mp_fail(MP_ERR_MODEL, "E_ST_ENTRY",
                       "tensor '%s' in '%s': got %zu keys, need dtype, shape, data_offsets and "
                       "nothing else",
                       parse->tensor, parse->file, json_object_size(entry));
    status = parse_dtype(parse, json_object_get(entry, "dtype"), tensor);
    if (status == MP_OK)
        status = parse_shape(parse, json_object_get(entry, "shape"), tensor);
    if (status == MP_OK)
        status = parse_offsets(parse, json_object_get(entry, "data_offsets"), tensor);
    return status;
}

static enum mp_status check_metadata(const struct parse *parse, json_t *metadata)
{
    char key[MP_QUOTE_BYTES], got[MP_QUOTE_BYTES];

    if (!json_is_object(metadata))
        return mp_fail(MP_ERR_MODEL, "E_ST_METADATA",
                       "__metadata__ in '%s' is %s, need an object of strings", parse->file,
                       mp_json_describe(got, metadata));
    for (void *at = json_object_iter(metadata); at != NULL;
         at = json_object_iter_next(metadata, at)) {
        const json_t *value = json_object_iter_value(at);

        if (!json_is_string(value))
            return mp_fail(MP_ERR_MODEL, "E_ST_METADATA",
                           "key '%s' of __metadata__ in '%s' is %s, need a string",
                           mp_quote(key, json_object_iter_key(at), json_object_iter_key_len(at)),
                           parse->file, mp_json_describe(got, value));
    }
    return MP_OK;
}

/* Names are copied so that the JSON value, many times as large, can go. */
static enum mp_status make_table(struct parse *parse, json_t *root, struct mp_st_table *table)
{
    size_t names_bytes = 1, used = 0;

    for (void *at = json_object_iter(root); at != NULL; at = json_object_iter_next(root, at))
        names_bytes += json_object_iter_key_len(at) + 1;
    table->names = malloc(names_bytes);
    table->tensors = calloc(json_object_size(root) + 1, sizeof(*table->tensors));
    if (table->names == NULL || table->tensors == NULL)
        return mp_fail_no_memory("the table of tensors", names_bytes);
    for (void *at = json_object_iter(root); at != NULL; at = json_object_iter_next(root, at)) {
        struct mp_st_tensor *tensor = &table->tensors[table->count];
        const char *name = json_object_iter_key(at);
        const size_t length = json_object_iter_key_len(at);
        enum mp_status status;

        if (strcmp(name, "__metadata__") == 0) {
            status = check_metadata(parse, json_object_iter_value(at));
        } else {
            mp_quote(parse->tensor, name, length);
            if (length > MP_ST_NAME_BYTES_MAX)
                return mp_fail(MP_ERR_MODEL, "E_ST_NAME",
                               "name of tensor '%s' in '%s' is %zu bytes, need at most %u",
                               parse->tensor, parse->file, length, MP_ST_NAME_BYTES_MAX);
            tensor->name = memcpy(table->names + used, name, length + 1);
            used += length + 1;
            table->count++;
            status = parse_entry(parse, json_object_iter_value(at), tensor);
        }
        if (status != MP_OK)
            return status;
    }
    return MP_OK;
}

/* By offset; tensors without elements before the one that begins there; then by name. */
static int by_offset(const void *a, const void *b)
{
    const struct mp_st_tensor *x = a, *y = b;

    if (x->offset_bytes != y->offset_bytes)
        return x->offset_bytes < y->offset_bytes ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Invariant of the loop: the tensors before `i` cover [data_begin, end) exactly. */
static enum mp_status check_cover(const struct parse *parse, const struct mp_st_table *table)
{
    char before[MP_QUOTE_BYTES] = "the header", name[MP_QUOTE_BYTES];
    uint64_t end = parse->data_begin;

    mp_assert(parse->data_begin <= parse->file_bytes);
    for (size_t i = 0; i < table->count; i++) {
        const struct mp_st_tensor *tensor = &table->tensors[i];

        if (tensor->offset_bytes != end) {
            const bool hole = tensor->offset_bytes > end;

            mp_quote(name, tensor->name, strlen(tensor->name));
            return mp_fail(MP_ERR_MODEL, hole ? "E_ST_HOLE" : "E_ST_OVERLAP",
                           "tensor '%s' in '%s' begins at byte %" PRIu64
                           ", %s the end of %s%s%s at byte %" PRIu64,
                           name, parse->file, tensor->offset_bytes, hole ? "behind" : "before",
                           i > 0 ? "'" : "", before, i > 0 ? "'" : "", end);
        }
        end += tensor->bytes;
        mp_quote(before, tensor->name, strlen(tensor->name));
    }
    if (end != parse->file_bytes)
        return mp_fail(MP_ERR_MODEL, "E_ST_END",
                       "'%s': data ends at byte %" PRIu64 ", file ends at byte %" PRIu64,
                       parse->file, end, parse->file_bytes);
    return MP_OK;
}

enum mp_status mp_st_header_bytes(const void *first, uint64_t file_bytes, const char *name,
                                  uint64_t *header_bytes_p)
{
    const unsigned char *byte = first;
    char shown[MP_QUOTE_BYTES];
    uint64_t header_bytes = 0;

    mp_quote(shown, name, strlen(name));
    if (file_bytes < 8)
        return mp_fail(MP_ERR_MODEL, "E_ST_SHORT",
                       "file '%s' is %" PRIu64 " bytes, need at least 8", shown, file_bytes);
    for (int i = 7; i >= 0; i--)
        header_bytes = header_bytes << 8 | byte[i];
    if (header_bytes > MP_ST_HEADER_BYTES_MAX || header_bytes > file_bytes - 8)
        return mp_fail(MP_ERR_MODEL, "E_ST_HEADER_LEN",
                       "header of '%s' says %" PRIu64 " bytes, file has %" PRIu64
                       " after the length; need at most that and at most %u",
                       shown, header_bytes, file_bytes - 8, MP_ST_HEADER_BYTES_MAX);
    mp_assert(header_bytes + 8 <= file_bytes);
    *header_bytes_p = header_bytes;
    return MP_OK;
}

enum mp_status mp_st_parse(const char *header, uint64_t header_bytes, uint64_t file_bytes,
                           const char *name, struct mp_st_table *table)
{
    const struct mp_json_options options = { .code = "E_ST_JSON",
                                             .depth_code = "E_ST_DEPTH",
                                             .duplicate_code = "E_ST_DUP",
                                             .count_code = "E_ST_COUNT",
                                             .first_byte = 8,
                                             .entries_max = MP_ST_TENSORS_MAX };
    struct parse parse = { .data_begin = 8 + header_bytes, .file_bytes = file_bytes };
    enum mp_status status;
    json_t *root;

    memset(table, 0, sizeof(*table));
    mp_quote(parse.file, name, strlen(name));
    if (file_bytes < 8 || header_bytes > file_bytes - 8)
        return mp_fail(MP_ERR_INVALID, "E_INVALID", "header of '%s' is longer than the file",
                       parse.file);
    status = mp_json_parse_with(header, header_bytes, name, &options, &root);
    if (status != MP_OK)
        return status;
    if (json_is_object(root))
        status = make_table(&parse, root, table);
    else
        status = mp_fail(MP_ERR_MODEL, "E_ST_JSON", "header of '%s' is an array, need an object",
                         parse.file);
    json_decref(root);
    if (status == MP_OK) {
        qsort(table->tensors, table->count, sizeof(*table->tensors), by_offset);
        status = check_cover(&parse, table);
    }
    if (status != MP_OK)
        mp_st_table_fini(table);
    return status;
}

void mp_st_table_fini(struct mp_st_table *table)
{
    free(table->tensors);
    free(table->names);
    memset(table, 0, sizeof(*table));
}
