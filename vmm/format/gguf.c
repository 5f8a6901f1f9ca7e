/* GGUF files on disk: the parts of a model as one table of tensors; typed values by key. */
#include "vmm/format/gguf.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/base/assert.h"
#include "vmm/format/gguf_int.h"
#include "vmm/format/json.h"

/* Most headers without a vocabulary fit; a larger one is read again, eight times as much. */
#define HEAD_BYTES (64u << 10)
#define SUFFIX_BYTES 20 /* "-00001-of-00005.gguf" */

struct mp_gguf {
    struct mp_files *files;
    struct mp_gguf_part *parts; /* tensors of all are copied below */
    unsigned char **heads;
    uint32_t part_count;
    struct mp_gguf_tensor *tensors; /* sorted by name */
    size_t count;
};

static const struct mp_gguf_value *find_in(const struct mp_gguf_part *part, const char *key)
{
    const struct mp_gguf_entry wanted = { .key = key };
    const struct mp_gguf_entry *entry = NULL;

    mp_assert(key != NULL);
    if (part->entry_count > 0)
        entry = bsearch(&wanted, part->entries, part->entry_count, sizeof(wanted), mp_gguf_by_key);
    return entry != NULL ? &entry->value : NULL;
}

/* Read as much of the file as its header needs. The part's values lie in *head_p. */
static enum mp_status read_header(struct mp_files *files, uint32_t file, unsigned char **head_p,
                                  struct mp_gguf_part *part)
{
    const uint64_t file_bytes = mp_files_bytes(files, file);
    const char *name = mp_files_name(files, file);
    uint64_t want_bytes = HEAD_BYTES;
    bool more = true;

    mp_assert(file < mp_files_count(files));
    while (more) {
        const uint64_t bytes = want_bytes < file_bytes ? want_bytes : file_bytes;
        unsigned char *head = malloc(bytes + 1);
        enum mp_status status;

        if (head == NULL)
            return mp_fail_no_memory("the header of a model file", bytes + 1);
        status = mp_files_read(files, file, 0, bytes, head);
        if (status == MP_OK && want_bytes == HEAD_BYTES)
            status = mp_text_check_download((const char *)head, bytes < 512 ? bytes : 512, name);
        if (status == MP_OK)
            status = mp_gguf_parse(head, bytes, file_bytes, name, part, &more);
        if (status == MP_OK && !more) {
            *head_p = head;
            return MP_OK;
        }
        free(head);
        if (status != MP_OK)
            return status;
        want_bytes =
            want_bytes * 8 < MP_GGUF_HEADER_BYTES_MAX ? want_bytes * 8 : MP_GGUF_HEADER_BYTES_MAX;
    }
    mp_unreachable();
}

static enum mp_status add_part(struct mp_gguf *gguf, const char *path)
{
    const uint32_t index = gguf->part_count;
    struct mp_gguf_part *parts;
    unsigned char **heads;
    enum mp_status status;
    uint32_t file;

    mp_assert(gguf->files != NULL);
    status = mp_files_add(gguf->files, AT_FDCWD, path, &file);
    if (status != MP_OK)
        return status;
    parts = realloc(gguf->parts, (index + 1) * sizeof(*parts));
    if (parts == NULL)
        return mp_fail_no_memory("the parts of a model", (index + 1) * sizeof(*parts));
    gguf->parts = parts;
    heads = realloc(gguf->heads, (index + 1) * sizeof(*heads));
    if (heads == NULL)
        return mp_fail_no_memory("the parts of a model", (index + 1) * sizeof(*heads));
    gguf->heads = heads;
    status = read_header(gguf->files, file, &heads[index], &parts[index]);
    if (status == MP_OK)
        gguf->part_count++;
    return status;
}

/* split.no and split.count; 0 and 1 for a file that is whole. */
static enum mp_status split_of(const struct mp_gguf_part *part, const char *path, uint64_t *no_p,
                               uint64_t *count_p)
{
    const struct mp_gguf_value *count = find_in(part, "split.count");
    const struct mp_gguf_value *no = find_in(part, "split.no");
    char shown[MP_QUOTE_BYTES];

    *no_p = 0;
    *count_p = 1;
    if (count == NULL)
        return MP_OK;
    if (!mp_gguf_as_u64(count, count_p) || *count_p > MP_GGUF_PARTS_MAX ||
        (*count_p > 1 && (no == NULL || !mp_gguf_as_u64(no, no_p) || *no_p >= *count_p)))
        return mp_fail(MP_ERR_MODEL, "E_GGUF_SPLIT",
                       "split.no and split.count of '%s' are not a number below a count of at "
                       "most %u; split the model again",
                       mp_quote(shown, path, strlen(path)), MP_GGUF_PARTS_MAX);
    mp_assert(*no_p < *count_p || *count_p <= 1);
    return MP_OK;
}

static void part_suffix(char out[SUFFIX_BYTES + 1], uint64_t no, uint64_t count)
{
    mp_assert(no < count && count <= MP_GGUF_PARTS_MAX);
    snprintf(out, SUFFIX_BYTES + 1, "-%05u-of-%05u.gguf", (unsigned)no + 1, (unsigned)count);
}

/* Read part `no` of `count` and check that it says so. */
static enum mp_status add_split(struct mp_gguf *gguf, const char *path, uint64_t no, uint64_t count)
{
    char shown[MP_QUOTE_BYTES];
    uint64_t is_no = 0, is_count = 0;
    enum mp_status status = add_part(gguf, path);

    mp_assert(no < count);
    if (status == MP_OK)
        status = split_of(&gguf->parts[no], path, &is_no, &is_count);
    if (status == MP_OK && (is_no != no || is_count != count))
        status =
            mp_fail(MP_ERR_MODEL, "E_GGUF_SPLIT",
                    "'%s' is part %" PRIu64 " of %" PRIu64 ", need part %" PRIu64 " of %" PRIu64,
                    mp_quote(shown, path, strlen(path)), is_no + 1, is_count, no + 1, count);
    return status;
}

static void drop_parts(struct mp_gguf *gguf)
{
    for (uint32_t i = 0; i < gguf->part_count; i++) {
        mp_gguf_part_fini(&gguf->parts[i]);
        free(gguf->heads[i]);
    }
    gguf->part_count = 0;
}

/* The file at hand is one of several: begin again with the first. */
static enum mp_status add_splits(struct mp_gguf *gguf, const char *path, uint64_t no,
                                 uint64_t count)
{
    const size_t length = strlen(path);
    char suffix[SUFFIX_BYTES + 1], shown[MP_QUOTE_BYTES];
    enum mp_status status;
    char *name;

    mp_assert(count > 1 && no < count);
    part_suffix(suffix, no, count);
    if (length < SUFFIX_BYTES || strcmp(path + length - SUFFIX_BYTES, suffix) != 0)
        return mp_fail(MP_ERR_MODEL, "E_GGUF_SPLIT",
                       "'%s' is part %" PRIu64 " of %" PRIu64
                       " by its header, need a name that ends with '%s'; rename it back",
                       mp_quote(shown, path, length), no + 1, count, suffix);
    name = malloc(length + 1);
    if (name == NULL)
        return mp_fail_no_memory("a file name", length + 1);
    memcpy(name, path, length + 1);
    drop_parts(gguf);
    mp_files_destroy(gguf->files);
    gguf->files = NULL;
    status = mp_files_create(&gguf->files);
    for (uint64_t i = 0; status == MP_OK && i < count; i++) {
        part_suffix(name + length - SUFFIX_BYTES, i, count);
        status = add_split(gguf, name, i, count);
    }
    free(name);
    return status;
}

/* Sorted, a name is found by halving, and equal names are neighbours. */
static enum mp_status merge(struct mp_gguf *gguf)
{
    const struct mp_gguf_value *value = find_in(&gguf->parts[0], "split.tensors.count");
    uint64_t want = 0, count = 0;
    char name[MP_QUOTE_BYTES];

    mp_assert(gguf->part_count > 0 && gguf->tensors == NULL);
    for (uint32_t i = 0; i < gguf->part_count; i++)
        count += gguf->parts[i].tensor_count;
    if (count > MP_GGUF_TENSORS_MAX ||
        (value != NULL && (!mp_gguf_as_u64(value, &want) || want != count)))
        return mp_fail(MP_ERR_MODEL, "E_GGUF_SPLIT",
                       "%u parts have %" PRIu64 " tensors, split.tensors.count says %" PRIu64
                       "; need that and at most %u",
                       gguf->part_count, count, want, MP_GGUF_TENSORS_MAX);
    gguf->tensors = malloc((count + 1) * sizeof(*gguf->tensors));
    if (gguf->tensors == NULL)
        return mp_fail_no_memory("the table of tensors", count * sizeof(*gguf->tensors));
    for (uint32_t i = 0; i < gguf->part_count; i++) {
        for (size_t t = 0; t < gguf->parts[i].tensor_count; t++) {
            gguf->tensors[gguf->count] = gguf->parts[i].tensors[t];
            gguf->tensors[gguf->count++].file = i;
        }
    }
    qsort(gguf->tensors, gguf->count, sizeof(*gguf->tensors), mp_gguf_by_name);
    for (size_t i = 1; i < gguf->count; i++) {
        const char *twice = gguf->tensors[i].name;

        if (strcmp(gguf->tensors[i - 1].name, twice) == 0)
            return mp_fail(MP_ERR_MODEL, "E_GGUF_DUP", "tensor '%s' is in parts %u and %u",
                           mp_quote(name, twice, strlen(twice)), gguf->tensors[i - 1].file + 1,
                           gguf->tensors[i].file + 1);
    }
    return MP_OK;
}

bool mp_gguf_is_file(const char *path)
{
    static const char suffix[] = ".gguf";
    const size_t length = strlen(path), suffix_length = strlen(suffix);
    char magic[4] = "";
    struct stat info;
    const bool exists = stat(path, &info) == 0;
    ssize_t got;
    int fd;

    if (exists && !S_ISREG(info.st_mode))
        return false;
    if (length > suffix_length && strcmp(path + length - suffix_length, suffix) == 0)
        return true;
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return exists;
    got = pread(fd, magic, sizeof(magic), 0);
    close(fd);
    return got < 0 || (got == sizeof(magic) && memcmp(magic, "GGUF", sizeof(magic)) == 0);
}

enum mp_status mp_gguf_open(const char *path, struct mp_gguf **gguf_p)
{
    struct mp_gguf *gguf = calloc(1, sizeof(*gguf));
    uint64_t no = 0, count = 0;
    enum mp_status status;

    if (gguf == NULL)
        return mp_fail_no_memory("a model file", sizeof(*gguf));
    status = mp_files_create(&gguf->files);
    if (status == MP_OK)
        status = add_part(gguf, path);
    if (status == MP_OK)
        status = split_of(&gguf->parts[0], path, &no, &count);
    if (status == MP_OK && count > 1)
        status = add_splits(gguf, path, no, count);
    if (status == MP_OK)
        status = merge(gguf);
    if (status == MP_OK)
        *gguf_p = gguf;
    else
        mp_gguf_close(gguf);
    return status;
}

void mp_gguf_close(struct mp_gguf *gguf)
{
    if (gguf == NULL)
        return;
    drop_parts(gguf);
    free(gguf->parts);
    free(gguf->heads);
    free(gguf->tensors);
    mp_files_destroy(gguf->files);
    free(gguf);
}

struct mp_files *mp_gguf_files(const struct mp_gguf *gguf)
{
    return gguf->files;
}

size_t mp_gguf_count(const struct mp_gguf *gguf)
{
    return gguf->count;
}

const struct mp_gguf_tensor *mp_gguf_tensor(const struct mp_gguf *gguf, size_t index)
{
    mp_assert(index < gguf->count);
    return &gguf->tensors[index];
}

const struct mp_gguf_tensor *mp_gguf_find(const struct mp_gguf *gguf, const char *name)
{
    const struct mp_gguf_tensor wanted = { .name = name };

    mp_assert(name != NULL);
    return bsearch(&wanted, gguf->tensors, gguf->count, sizeof(wanted), mp_gguf_by_name);
}

const struct mp_gguf_value *mp_gguf_find_value(const struct mp_gguf *gguf, const char *key)
{
    mp_assert(gguf->part_count > 0);
    return find_in(&gguf->parts[0], key);
}

size_t mp_gguf_entry_count(const struct mp_gguf *gguf)
{
    return gguf->parts[0].entry_count;
}

const struct mp_gguf_entry *mp_gguf_entry(const struct mp_gguf *gguf, size_t index)
{
    mp_assert(index < gguf->parts[0].entry_count);
    return &gguf->parts[0].entries[index];
}
