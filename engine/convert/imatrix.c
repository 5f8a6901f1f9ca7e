/*
 * Importance matrices: for the columns of a weight, how large the numbers are that it is multiplied
 * with, squared and summed over a text. Two forms: a GGUF file with a tensor NAME.in_sum2 for each
 * weight, and an older one without a header: a count, then name, calls, and floats of each. Only
 * how columns of one row compare matters, so calls and counts of tokens are not used.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>

#include "engine/convert/convert_int.h"

#define SUFFIX ".in_sum2"
#define ENTRIES_MAX 65536u
#define VALUES_MAX (1u << 27)

struct entry {
    char *name;
    uint64_t offset, count;
};

struct mp_imatrix {
    struct mp_gguf *gguf;   /* or */
    struct mp_files *files; /* the older form, */
    struct entry *entries;  /* its list */
    size_t count;
    char shown[MP_QUOTE_BYTES];
};

static enum mp_status fail_form(const struct mp_imatrix *m, const char *what)
{
    return mp_fail(MP_ERR_MODEL, "E_IMATRIX", "'%s' is no importance matrix: %s", m->shown, what);
}

/* A little-endian whole number that is 0 to `most`. */
static enum mp_status read_number(const struct mp_imatrix *m, uint64_t *at_p, uint32_t least,
                                  uint32_t most, const char *what, uint32_t *value_p)
{
    unsigned char bytes[4];
    enum mp_status status;

    if (*at_p + 4 > mp_files_bytes(m->files, 0))
        return fail_form(m, "it ends too early");
    status = mp_files_read(m->files, 0, *at_p, 4, bytes);
    if (status != MP_OK)
        return status;
    *at_p += 4;
    *value_p =
        bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
    return *value_p < least || *value_p > most ? fail_form(m, what) : MP_OK;
}

static enum mp_status read_entry(struct mp_imatrix *m, uint64_t *at_p)
{
    struct entry *entry = &m->entries[m->count];
    const uint64_t file_bytes = mp_files_bytes(m->files, 0);
    uint32_t length = 0, calls, values = 0;
    enum mp_status status =
        read_number(m, at_p, 1, MP_GGUF_NAME_BYTES_MAX, "a name is too long", &length);

    if (status != MP_OK)
        return status;
    if (length > file_bytes - *at_p)
        return fail_form(m, "it ends too early");
    entry->name = calloc(1, length + 1);
    if (entry->name == NULL)
        return mp_fail_no_memory("an importance matrix", length);
    m->count++;
    status = mp_files_read(m->files, 0, *at_p, length, entry->name);
    *at_p += length;
    if (status == MP_OK)
        status = read_number(m, at_p, 0, INT32_MAX, "a number of calls is negative", &calls);
    if (status == MP_OK)
        status = read_number(m, at_p, 1, VALUES_MAX, "a number of columns is too large", &values);
    if (status == MP_OK && (uint64_t)values * 4 > file_bytes - *at_p)
        status = fail_form(m, "it ends too early");
    entry->offset = *at_p;
    entry->count = values;
    *at_p += (uint64_t)values * 4;
    return status;
}

/* What may follow the entries is about the text that was used. */
static enum mp_status open_list(struct mp_imatrix *m, const char *path)
{
    uint32_t index, count = 0;
    uint64_t at = 0;
    enum mp_status status = mp_files_create(&m->files);

    if (status == MP_OK)
        status = mp_files_add(m->files, AT_FDCWD, path, &index);
    if (status == MP_OK)
        status = read_number(m, &at, 1, ENTRIES_MAX, "a number of weights is out of range", &count);
    if (status != MP_OK)
        return status;
    m->entries = calloc(count, sizeof(*m->entries));
    if (m->entries == NULL)
        return mp_fail_no_memory("an importance matrix", count * sizeof(*m->entries));
    for (uint32_t i = 0; status == MP_OK && i < count; i++)
        status = read_entry(m, &at);
    return status;
}

enum mp_status mp_imatrix_open(const char *path, struct mp_imatrix **imatrix_p)
{
    struct mp_imatrix *m = calloc(1, sizeof(*m));
    enum mp_status status;

    if (m == NULL)
        return mp_fail_no_memory("an importance matrix", sizeof(*m));
    mp_quote(m->shown, path, strlen(path));
    status = mp_gguf_is_file(path) ? mp_gguf_open(path, &m->gguf) : open_list(m, path);
    if (status == MP_OK)
        *imatrix_p = m;
    else
        mp_imatrix_close(m);
    return status;
}

void mp_imatrix_close(struct mp_imatrix *m)
{
    if (m == NULL)
        return;
    for (size_t i = 0; i < m->count; i++)
        free(m->entries[i].name);
    free(m->entries);
    mp_files_destroy(m->files);
    mp_gguf_close(m->gguf);
    free(m);
}

/* Where the numbers of a weight lie; false: there are none. */
static bool find(const struct mp_imatrix *m, const char *name, const struct mp_files **files_p,
                 uint32_t *file_p, struct entry *entry_p)
{
    char full[MP_CONVERT_NAME_BYTES + sizeof(SUFFIX)];
    const struct mp_gguf_tensor *tensor;

    *file_p = 0;
    *files_p = m->files;
    for (size_t i = 0; i < m->count; i++) {
        if (strcmp(m->entries[i].name, name) == 0) {
            *entry_p = m->entries[i];
            return true;
        }
    }
    if (m->gguf == NULL)
        return false;
    snprintf(full, sizeof(full), "%s" SUFFIX, name);
    tensor = mp_gguf_find(m->gguf, full);
    if (tensor == NULL)
        return false;
    *files_p = mp_gguf_files(m->gguf);
    *file_p = tensor->file;
    *entry_p = (struct entry){ .offset = tensor->offset_bytes,
                               .count = strcmp(tensor->type->name, "F32") == 0
                                            ? tensor->bytes / sizeof(float)
                                            : 0 };
    return true;
}

/* Columns that the text never used count a little, and rows of experts that it never chose are as
 * if there were no weights. */
static bool make_positive(float *weights, size_t count)
{
    double sum = 0;

    for (size_t i = 0; i < count; i++) {
        if (!(weights[i] >= 0) || isinf(weights[i]))
            return false;
        sum += weights[i];
    }
    for (size_t i = 0; i < count; i++) {
        const double relative = sum > 0 ? weights[i] / sum * (double)count : 1;

        weights[i] = (float)(relative > 1e-6 ? relative : 1e-6);
    }
    return true;
}

enum mp_status mp_imatrix_read(const struct mp_imatrix *m, const struct mp_convert_tensor *tensor,
                               float **weights_p)
{
    const uint64_t lists = tensor->dims == 3 ? tensor->shape[0] : 1, count = lists * tensor->cols;
    const struct mp_files *files;
    struct entry entry;
    uint32_t file;
    float *weights;
    enum mp_status status;

    if (!find(m, tensor->name, &files, &file, &entry))
        return MP_OK;
    if (entry.count != count)
        return mp_fail(MP_ERR_MODEL, "E_IMATRIX",
                       "'%s' has %" PRIu64 " numbers for '%s', need %" PRIu64
                       ", one for each column; it belongs to another model",
                       m->shown, entry.count, tensor->name, count);
    weights = malloc(count * sizeof(*weights));
    if (weights == NULL)
        return mp_fail_no_memory("an importance matrix", count * sizeof(*weights));
    status = mp_files_read(files, file, entry.offset, count * sizeof(*weights), weights);
    for (uint64_t i = 0; status == MP_OK && i < lists; i++) {
        if (!make_positive(weights + i * tensor->cols, tensor->cols))
            status = mp_fail(MP_ERR_MODEL, "E_IMATRIX",
                             "'%s' has a number for '%s' that is negative or not finite", m->shown,
                             tensor->name);
    }
    if (status == MP_OK)
        *weights_p = weights;
    else
        free(weights);
    return status;
}
