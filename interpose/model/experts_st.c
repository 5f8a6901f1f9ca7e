/*
 * Experts in safetensors files: tensors that hold all of a layer's, as transformers saves and maps
 * them. Tensors of single experts are put together in memory when they are loaded, so that there is
 * nothing in the file's mapping to page. A checkpoint in parts (name-00001-of-00005.safetensors) is
 * one model.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interpose/model/experts_int.h"
#include "interpose/model/safetensors.h"
#include "vmm/base/error.h"
#include "vmm/format/expert_names.h"

#define LIBRARY_NAME "libmoepager_safetensors.so"
#define PARTS_MAX 4096u
#define SUFFIX "-00001-of-00001.safetensors"

/* The reader's library, which lies beside this one. */
static const struct mp_safetensors *open_reader(void)
{
    const struct mp_safetensors *reader = NULL;
    char path[PATH_MAX];
    const char *slash;
    Dl_info info;
    void *handle;

    if (dladdr(&mp_experts_suffix, &info) == 0 || info.dli_fname == NULL)
        return NULL;
    slash = strrchr(info.dli_fname, '/');
    if (snprintf(path, sizeof(path), "%.*s" LIBRARY_NAME,
                 slash == NULL ? 0 : (int)(slash + 1 - info.dli_fname),
                 info.dli_fname) >= (int)sizeof(path))
        return NULL;
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle != NULL)
        reader = dlsym(handle, MP_SAFETENSORS_SYMBOL);
    return reader != NULL && reader->abi == MP_SAFETENSORS_ABI ? reader : NULL;
}

const char mp_experts_suffix[] = SUFFIX;

/* "-00002-of-00005.safetensors": 5 parts. 0: the name says nothing of parts. */
static uint32_t count_parts(const char *path)
{
    const size_t bytes = strlen(path), end = sizeof(SUFFIX) - 1;
    unsigned part, parts;

    if (bytes <= end || sscanf(path + bytes - end, "-%5u-of-%5u.safetensors", &part, &parts) != 2 ||
        part == 0 || part > parts || parts > PARTS_MAX)
        return 0;
    return parts;
}

static enum mp_status add_files(const char *path, struct mp_files *files)
{
    const uint32_t parts = count_parts(path);
    enum mp_status status = MP_OK;
    uint32_t index;

    if (parts == 0)
        return mp_files_add(files, AT_FDCWD, path, &index);
    for (uint32_t p = 1; p <= parts && status == MP_OK; p++) {
        char name[PATH_MAX];

        snprintf(name, sizeof(name), "%.*s-%05u-of-%05u.safetensors",
                 (int)(strlen(path) - (sizeof(SUFFIX) - 1)), path, p, parts);
        status = mp_files_add(files, AT_FDCWD, name, &index);
    }
    return status;
}

/* The table of one file; false: it is none. */
static bool read_table(const struct mp_safetensors *reader, const struct mp_files *files,
                       uint32_t file, struct mp_st_table *table)
{
    const uint64_t file_bytes = mp_files_bytes(files, file);
    const char *name = mp_files_name(files, file);
    char first[8];
    uint64_t bytes;
    char *header;
    bool right;

    if (file_bytes < sizeof(first) ||
        mp_files_read(files, file, 0, sizeof(first), first) != MP_OK ||
        reader->header_bytes(first, file_bytes, name, &bytes) != MP_OK)
        return false;
    header = malloc(bytes + 1);
    right = header != NULL && mp_files_read(files, file, sizeof(first), bytes, header) == MP_OK &&
            reader->parse(header, bytes, file_bytes, name, table) == MP_OK;
    free(header);
    return right;
}

/* Take the tensors of experts of one file; `tensors` has room for them. */
static void take_tensors(struct mp_experts *experts, uint32_t file, const struct mp_st_table *table)
{
    experts->data_begin[file] = mp_files_bytes(experts->files, file);
    for (size_t i = 0; i < table->count; i++) {
        const struct mp_st_tensor *tensor = &table->tensors[i];
        struct mp_expert_tensor *to = &experts->tensors[experts->tensor_count];
        struct mp_expert_name name;

        if (tensor->offset_bytes < experts->data_begin[file])
            experts->data_begin[file] = tensor->offset_bytes;
        if (!mp_expert_name_parse(tensor->name, &name) || !name.all || !name.weight ||
            name.layer >= MP_BLOCKS_MAX || tensor->dims != 3 || tensor->shape[0] == 0 ||
            tensor->shape[0] > 4096)
            continue;
        if (experts->experts == 0)
            experts->experts = (uint32_t)tensor->shape[0];
        to->file = file;
        to->layer = name.layer;
        to->part = name.part;
        to->offset_bytes = tensor->offset_bytes;
        to->expert_bytes = tensor->bytes / tensor->shape[0];
        experts->tensor_count +=
            tensor->shape[0] == experts->experts && to->expert_bytes >= MP_EXPERT_BYTES_MIN;
    }
}

static enum mp_status take_file(struct mp_experts *experts, const struct mp_safetensors *reader,
                                uint32_t file)
{
    struct mp_st_table table = { 0 };
    struct mp_expert_tensor *grown;
    size_t bytes;

    if (!read_table(reader, experts->files, file, &table))
        return MP_ERR_UNSUPPORTED;
    bytes = (experts->tensor_count + table.count + 1) * sizeof(*grown);
    grown = realloc(experts->tensors, bytes);
    if (grown != NULL) {
        experts->tensors = grown;
        take_tensors(experts, file, &table);
    }
    reader->fini(&table);
    return grown != NULL ? MP_OK : mp_fail_no_memory("the list of tensors", bytes);
}

static void close_files(void *owner)
{
    mp_files_destroy(owner);
}

enum mp_status mp_experts_open_st(const char *path, struct mp_experts *experts)
{
    const struct mp_safetensors *reader = open_reader();
    enum mp_status status;
    uint32_t count;

    if (reader == NULL)
        return mp_fail(MP_ERR_UNSUPPORTED, "E_BACKEND",
                       "safetensors cannot be read: %s does not open", LIBRARY_NAME);
    status = mp_files_create(&experts->files);
    if (status != MP_OK)
        return status;
    experts->owner = experts->files;
    experts->close = close_files;
    status = add_files(path, experts->files);
    count = mp_files_count(experts->files);
    if (status == MP_OK) {
        experts->data_begin = calloc(count, sizeof(*experts->data_begin));
        if (experts->data_begin == NULL)
            status = mp_fail_no_memory("the list of files", count);
    }
    for (uint32_t f = 0; f < count && status == MP_OK; f++)
        status = take_file(experts, reader, f);
    if (status == MP_OK && experts->tensor_count == 0)
        status = MP_ERR_UNSUPPORTED;
    experts->top_k = experts->experts < 8 ? experts->experts : 8;
    return status;
}
