/*
 * Sources of copies: mapping -> file -> tensor -> kind.
 *
 * The kernel is asked for its list of mappings, which takes a millisecond in a large process, so
 * what it said is kept, also that an address is in no file, until something large is unmapped.
 * Little memory that is used again for something else is taken for what it was: a wrong guess, no
 * more.
 */
#include "interpose/cuda/identity.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "interpose/entry.h"
#include "vmm/base/error.h"
#include "vmm/base/lock.h"
#include "vmm/base/log.h"
#include "vmm/format/expert_names.h"
#include "vmm/format/gguf.h"
#include "vmm/format/safetensors.h"

#define RANGES_MAX 64
#define FILES_MAX 4096

struct tensor {
    uint64_t begin, bytes, stride;
    enum mp_tiers_kind kind;
};

struct file {
    char path[PATH_MAX];
    struct tensor *tensors; /* by begin; none: it is no model */
    size_t count;
};

struct range {
    uintptr_t begin, end;
    uint64_t offset; /* in the file */
    int file;        /* -1: none */
};

static struct mp_mutex lock = MP_MUTEX_INIT(MP_LOCK_CONTEXT, "identity");
static struct file *files[FILES_MAX] MP_GUARDED_BY(lock);
static int file_count MP_GUARDED_BY(lock);
static struct range ranges[RANGES_MAX] MP_GUARDED_BY(lock);
static unsigned range_count MP_GUARDED_BY(lock); /* ever; older ones are overwritten */

/* Something was unmapped. Relaxed: a late reader guesses wrongly once more. */
static _Atomic(bool) stale;

void mp_identity_unmapped(void)
{
    atomic_store_explicit(&stale, true, memory_order_relaxed);
}

/* ---- files */

static int by_begin(const void *a, const void *b)
{
    const struct tensor *x = a, *y = b;

    return (x->begin > y->begin) - (x->begin < y->begin);
}

static struct tensor make_tensor(const char *name, uint64_t begin, uint64_t bytes, uint64_t experts)
{
    struct tensor tensor = { .begin = begin, .bytes = bytes, .kind = MP_TIERS_DENSE };
    struct mp_expert_name parsed;

    if (mp_expert_name_parse(name, &parsed) && parsed.weight) {
        tensor.kind = MP_TIERS_EXPERT;
        tensor.stride = parsed.all && experts > 0 ? bytes / experts : bytes;
    }
    return tensor;
}

/* Of a split model each part is a file of its own here. */
static enum mp_status read_gguf(const char *path, const void *head, uint64_t head_bytes,
                                uint64_t file_bytes, struct file *file, bool *more_p)
{
    struct mp_gguf_part part;
    enum mp_status status = mp_gguf_parse(head, head_bytes, file_bytes, path, &part, more_p);

    if (status != MP_OK || *more_p)
        return status;
    file->tensors = calloc(part.tensor_count + 1, sizeof(file->tensors[0]));
    if (file->tensors == NULL)
        status = mp_fail_no_memory("the tensors of a file", part.tensor_count);
    for (size_t t = 0; status == MP_OK && t < part.tensor_count; t++) {
        const struct mp_gguf_tensor *from = &part.tensors[t];

        file->tensors[file->count++] =
            make_tensor(from->name, from->offset_bytes, from->bytes, from->shape[2]);
    }
    mp_gguf_part_fini(&part);
    return status;
}

static enum mp_status read_safetensors(const char *path, const char *head, uint64_t head_bytes,
                                       uint64_t file_bytes, struct file *file, bool *more_p)
{
    struct mp_st_table table;
    uint64_t header_bytes = 0;
    enum mp_status status = mp_st_header_bytes(head, file_bytes, path, &header_bytes);

    if (status == MP_OK && head_bytes < header_bytes + 8) {
        *more_p = true;
        return MP_OK;
    }
    if (status == MP_OK)
        status = mp_st_parse(head + 8, header_bytes, file_bytes, path, &table);
    if (status != MP_OK)
        return status;
    file->tensors = calloc(table.count + 1, sizeof(file->tensors[0]));
    if (file->tensors == NULL)
        status = mp_fail_no_memory("the tensors of a file", table.count);
    for (size_t t = 0; status == MP_OK && t < table.count; t++) {
        const struct mp_st_tensor *from = &table.tensors[t];

        file->tensors[file->count++] = make_tensor(from->name, from->offset_bytes, from->bytes,
                                                   from->dims == 3 ? from->shape[0] : 0);
    }
    mp_st_table_fini(&table);
    return status;
}

static enum mp_status parse(int fd, struct file *file, uint64_t file_bytes)
{
    uint64_t head_bytes = 1 << 20;
    enum mp_status status = MP_OK;
    bool more = true;
    char *head = NULL;

    while (status == MP_OK && more) {
        free(head);
        more = false;
        head_bytes = head_bytes < file_bytes ? head_bytes : file_bytes;
        head = malloc(head_bytes);
        if (head == NULL)
            return mp_fail_no_memory("a file's header", head_bytes);
        if (pread(fd, head, head_bytes, 0) != (ssize_t)head_bytes || head_bytes < 16)
            status = mp_fail(MP_ERR_IO, "E_IO", "short read");
        else if (memcmp(head, "GGUF", 4) == 0)
            status = read_gguf(file->path, head, head_bytes, file_bytes, file, &more);
        else
            status = read_safetensors(file->path, head, head_bytes, file_bytes, file, &more);
        more &= head_bytes < file_bytes;
        head_bytes *= 8;
    }
    free(head);
    return status;
}

/* Whatever goes wrong: it has no tensors. */
static void look_into(struct file *file)
{
    const struct mp_error before = *mp_error_last();
    const int fd = open(file->path, O_RDONLY | O_CLOEXEC);
    struct stat stat;

    if (fd >= 0 && fstat(fd, &stat) == 0 && S_ISREG(stat.st_mode) &&
        parse(fd, file, (uint64_t)stat.st_size) != MP_OK) {
        mp_log_debug("gpu", "%s is no model: %s", file->path, mp_error_last()->text);
        file->count = 0;
    }
    if (fd >= 0)
        close(fd);
    if (file->count > 0)
        qsort(file->tensors, file->count, sizeof(file->tensors[0]), by_begin);
    mp_error_set(&before);
}

static int find_file(const char *path)
{
    int i = 0;

    while (i < file_count && strcmp(files[i]->path, path) != 0)
        i++;
    if (i < file_count || file_count == FILES_MAX || strlen(path) >= PATH_MAX)
        return i < file_count ? i : -1;
    files[i] = calloc(1, sizeof(*files[i]));
    if (files[i] == NULL)
        return -1;
    strcpy(files[i]->path, path);
    look_into(files[i]);
    file_count++;
    return i;
}

/* ---- mappings */

/* "begin-end rights offset device inode   path": the line that holds the address. */
static bool read_line(const char *line, uintptr_t address, struct range *range)
{
    uint64_t begin, end, offset, inode;
    int at = 0;
    char path[PATH_MAX] = "";
    size_t length;

    if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %*s %" SCNx64 " %*s %" SCNu64 " %n", &begin, &end,
               &offset, &inode, &at) != 4 ||
        address < begin || address >= end)
        return false;
    length = strcspn(line + at, "\n");
    if (inode != 0 && at > 0 && line[at] == '/' && length < sizeof(path)) {
        memcpy(path, line + at, length);
        path[length] = '\0';
    }
    *range = (struct range){ .begin = begin, .end = end, .offset = offset, .file = -1 };
    if (path[0] != '\0')
        range->file = find_file(path);
    return true;
}

static const struct range *ask_kernel(uintptr_t address)
{
    struct range *range = &ranges[range_count % RANGES_MAX];
    FILE *maps = fopen("/proc/self/maps", "re");
    char *line = NULL;
    size_t bytes = 0;
    bool found = false;

    while (maps != NULL && !found && getline(&line, &bytes, maps) > 0)
        found = read_line(line, address, range);
    free(line);
    if (maps != NULL)
        fclose(maps);
    if (!found)
        return NULL;
    range_count++;
    return range;
}

static const struct range *find_range(uintptr_t address)
{
    unsigned count;

    if (atomic_exchange_explicit(&stale, false, memory_order_relaxed))
        range_count = 0;
    count = range_count < RANGES_MAX ? range_count : RANGES_MAX;

    for (unsigned r = 0; r < count; r++) {
        if (address >= ranges[r].begin && address < ranges[r].end)
            return &ranges[r];
    }
    return ask_kernel(address);
}

/* What the pager of the host has taken over is no mapping of a file any more. */
static const struct file *find_paged(const void *address, uint64_t *offset_p)
{
    char path[PATH_MAX];
    int file;

    if (!mp_interposer_place(address, path, sizeof(path), offset_p))
        return NULL;
    file = find_file(path);
    return file >= 0 ? files[file] : NULL;
}

static const struct file *find_mapped(const void *address, uint64_t *offset_p)
{
    const struct range *range = find_range((uintptr_t)address);

    if (range == NULL || range->file < 0)
        return NULL;
    *offset_p = range->offset + ((uintptr_t)address - range->begin);
    return files[range->file];
}

/* ---- together */

void mp_identity_find(const void *src, uint64_t bytes, char *dst, mp_identity_note *note, void *ctx)
{
    const struct file *file;
    uint64_t first = 0, end;

    mp_lock(&lock);
    file = find_paged(src, &first);
    if (file == NULL)
        file = find_mapped(src, &first);
    if (file != NULL) {
        end = first + bytes;
        for (size_t t = 0; t < file->count && file->tensors[t].begin < end; t++) {
            const struct tensor *tensor = &file->tensors[t];
            const uint64_t begin = tensor->begin > first ? tensor->begin : first;
            uint64_t last = tensor->begin + tensor->bytes;

            last = last < end ? last : end;
            if (begin < last)
                note(ctx, dst + (begin - first), last - begin, tensor->kind, tensor->stride);
        }
    }
    mp_unlock(&lock);
}
