/*
 * A model's directory: one safetensors file or the shards of an index, as one table of tensors. A
 * GGUF file in place of a directory is handled by ckpt_gguf.c. Tensor data are not read here.
 */
#include "vmm/format/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/format/checkpoint_int.h"
#include "vmm/base/assert.h"
#include "vmm/base/checked.h"

#define SINGLE "model.safetensors"
#define INDEX "model.safetensors.index.json"

/* Enough to distinguish a pointer file or a web page from a model. */
#define HEAD_BYTES 512

/* Also true if that cannot be found out: then opening it says why. */
static bool dir_has(int dir_fd, const char *name)
{
    struct stat info;

    mp_assert(dir_fd >= 0);
    return fstatat(dir_fd, name, &info, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT;
}

/* The first name in order of bytes, of a GGUF file or, where there is none, of a folder that is a
 * model; "" if there is neither. */
static void find_model_inside(int dir_fd, char found[NAME_MAX + 1])
{
    const int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    char config[NAME_MAX + sizeof("/config.json")];
    bool is_file = false;

    found[0] = '\0';
    if (dir == NULL && fd >= 0)
        close(fd);
    for (const struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        const char *name = entry->d_name, *end = strrchr(name, '.');
        const bool is_gguf = end != NULL && strcmp(end, ".gguf") == 0;

        snprintf(config, sizeof(config), "%s/config.json", name);
        if (name[0] == '.' || (!is_gguf && (is_file || faccessat(dir_fd, config, F_OK, 0) != 0)))
            continue;
        if (found[0] == '\0' || is_gguf > is_file || strcmp(name, found) < 0)
            snprintf(found, NAME_MAX + 1, "%s", name);
        is_file = is_gguf;
    }
    if (dir != NULL)
        closedir(dir);
}

/* Neither form of weights is there: say what else is. */
static enum mp_status fail_no_weights(int dir_fd, const char *path)
{
    static const char *const others[] = { "pytorch_model.bin", "pytorch_model.bin.index.json",
                                          "adapter_model.safetensors", "consolidated.safetensors",
                                          "tf_model.h5" };
    char shown[MP_QUOTE_BYTES], inside[MP_QUOTE_BYTES], name[NAME_MAX + 1];

    mp_quote(shown, path, strlen(path));
    for (size_t i = 0; i < MP_ARRAY_LEN(others); i++) {
        if (dir_has(dir_fd, others[i]))
            return mp_fail(MP_ERR_MODEL, "E_CKPT_FORMAT",
                           "'%s' has '%s' but no '" SINGLE "' or '" INDEX
                           "'; save the model with the transformers library first",
                           shown, others[i]);
    }
    find_model_inside(dir_fd, name);
    mp_quote(inside, name, strlen(name));
    return mp_fail(
        MP_ERR_MODEL, "E_CKPT_FORMAT", "'%s' has no '" SINGLE "' and no '" INDEX "'%s%s%s", shown,
        name[0] != '\0' ? "; did you mean '" : "", inside, name[0] != '\0' ? "' in it?" : "");
}

enum mp_status mp_checkpoint_open_dir(const char *path, int *dir_fd_p)
{
    char shown[MP_QUOTE_BYTES];
    const int dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    mp_quote(shown, path, strlen(path));
    if (dir_fd < 0 && errno == ENOTDIR)
        return mp_fail(MP_ERR_MODEL, "E_CKPT_DIR",
                       "'%s' is neither a GGUF file nor a directory, need one of them; a directory "
                       "has config.json and model.safetensors",
                       shown);
    if (dir_fd < 0)
        return mp_fail(errno == ENOENT ? MP_ERR_MODEL : MP_ERR_IO, "E_CKPT_DIR",
                       "cannot open the model directory '%s': %s", shown, strerror(errno));
    *dir_fd_p = dir_fd;
    return MP_OK;
}

static enum mp_status append_tensors(struct mp_checkpoint *checkpoint, uint32_t file,
                                     struct mp_st_table *table)
{
    const size_t count = checkpoint->count + table->count;
    struct mp_tensor *tensors;
    char **names;

    mp_assert(table->count == 0 || table->names != NULL);
    if (count > MP_CKPT_TENSORS_MAX)
        return mp_fail(MP_ERR_MODEL, "E_CKPT_COUNT", "%zu tensors in all, need at most %u", count,
                       MP_CKPT_TENSORS_MAX);
    tensors = realloc(checkpoint->tensors, (count + 1) * sizeof(*tensors));
    if (tensors == NULL)
        return mp_fail_no_memory("the table of tensors", count * sizeof(*tensors));
    checkpoint->tensors = tensors;
    names = realloc(checkpoint->names, (checkpoint->names_count + 1) * sizeof(*names));
    if (names == NULL)
        return mp_fail_no_memory("the table of tensors", sizeof(*names));
    checkpoint->names = names;
    names[checkpoint->names_count++] = table->names;
    table->names = NULL;
    for (size_t i = 0; i < table->count; i++) {
        tensors[checkpoint->count++] = (struct mp_tensor){ .st = table->tensors[i], .file = file };
        checkpoint->bytes += table->tensors[i].bytes; /* <= size of the file */
    }
    return MP_OK;
}

static enum mp_status read_header(struct mp_files *files, uint32_t file, uint64_t file_bytes,
                                  struct mp_st_table *table)
{
    const char *name = mp_files_name(files, file);
    const uint64_t head_bytes = file_bytes < HEAD_BYTES ? file_bytes : HEAD_BYTES;
    char head[HEAD_BYTES] = "";
    uint64_t header_bytes = 0;
    enum mp_status status;
    char *header;

    mp_assert(file < mp_files_count(files));
    status = mp_files_read(files, file, 0, head_bytes, head);
    if (status == MP_OK)
        status = mp_text_check_download(head, head_bytes, name);
    if (status == MP_OK)
        status = mp_st_header_bytes(head, file_bytes, name, &header_bytes);
    if (status != MP_OK)
        return status;
    header = malloc(header_bytes + 1);
    if (header == NULL)
        return mp_fail_no_memory("the header of a model file", header_bytes + 1);
    status = mp_files_read(files, file, 8, header_bytes, header);
    if (status == MP_OK)
        status = mp_st_parse(header, header_bytes, file_bytes, name, table);
    free(header);
    return status;
}

enum mp_status mp_checkpoint_add_file(struct mp_checkpoint *checkpoint, const char *name)
{
    struct mp_st_table table = { 0 };
    enum mp_status status;
    uint32_t file = 0;

    mp_assert(checkpoint->dir_fd >= 0 && checkpoint->files != NULL);
    status = mp_files_add(checkpoint->files, checkpoint->dir_fd, name, &file);
    if (status == MP_OK)
        status =
            read_header(checkpoint->files, file, mp_files_bytes(checkpoint->files, file), &table);
    if (status == MP_OK)
        status = append_tensors(checkpoint, file, &table);
    mp_st_table_fini(&table);
    return status;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct mp_tensor *)a)->st.name, ((const struct mp_tensor *)b)->st.name);
}

/* Sorted, a name is found by halving, and equal names are neighbours. */
static enum mp_status sort_tensors(struct mp_checkpoint *checkpoint)
{
    struct mp_tensor *tensors = checkpoint->tensors;

    if (checkpoint->count == 0)
        return mp_fail(MP_ERR_MODEL, "E_CKPT_FORMAT", "the model files hold no tensor");
    mp_assert(tensors != NULL);
    qsort(tensors, checkpoint->count, sizeof(*tensors), by_name);
    for (size_t i = 1; i < checkpoint->count; i++) {
        char name[MP_QUOTE_BYTES], first[MP_QUOTE_BYTES], second[MP_QUOTE_BYTES];

        if (strcmp(tensors[i - 1].st.name, tensors[i].st.name) != 0)
            continue;
        const char *a = mp_files_name(checkpoint->files, tensors[i - 1].file);
        const char *b = mp_files_name(checkpoint->files, tensors[i].file);
        return mp_fail(MP_ERR_MODEL, "E_CKPT_DUP", "tensor '%s' is in '%s' and in '%s'",
                       mp_quote(name, tensors[i].st.name, strlen(tensors[i].st.name)),
                       mp_quote(first, a, strlen(a)), mp_quote(second, b, strlen(b)));
    }
    return MP_OK;
}

enum mp_status mp_checkpoint_open(const char *path, struct mp_checkpoint **checkpoint_p)
{
    struct mp_checkpoint *checkpoint = calloc(1, sizeof(*checkpoint));
    json_t *index = NULL;
    enum mp_status status;

    if (checkpoint == NULL)
        return mp_fail_no_memory("the model's directory", sizeof(*checkpoint));
    checkpoint->dir_fd = -1;
    if (mp_gguf_is_file(path)) {
        status = mp_checkpoint_add_gguf(checkpoint, path);
        if (status != MP_OK)
            goto err;
        *checkpoint_p = checkpoint;
        return MP_OK;
    }
    status = mp_checkpoint_open_dir(path, &checkpoint->dir_fd);
    if (status == MP_OK)
        status = mp_files_create(&checkpoint->files);
    if (status != MP_OK)
        goto err;
    if (dir_has(checkpoint->dir_fd, SINGLE)) {
        status = mp_checkpoint_add_file(checkpoint, SINGLE);
    } else if (dir_has(checkpoint->dir_fd, INDEX)) {
        status = mp_json_load_file(checkpoint->dir_fd, INDEX, MP_CKPT_INDEX_BYTES_MAX, &index);
        if (status == MP_OK)
            status = mp_checkpoint_add_shards(checkpoint, index, INDEX);
    } else {
        status = fail_no_weights(checkpoint->dir_fd, path);
    }
    if (status == MP_OK)
        status = sort_tensors(checkpoint);
    if (status == MP_OK && index != NULL)
        status = mp_checkpoint_check_index(checkpoint, index, INDEX);
    json_decref(index);
    if (status != MP_OK)
        goto err;
    mp_assert(checkpoint->count > 0);
    *checkpoint_p = checkpoint;
    return MP_OK;

err:
    mp_checkpoint_close(checkpoint);
    return status;
}

void mp_checkpoint_close(struct mp_checkpoint *checkpoint)
{
    if (checkpoint == NULL)
        return;
    for (size_t i = 0; i < checkpoint->names_count; i++)
        free(checkpoint->names[i]);
    free(checkpoint->names);
    free(checkpoint->tensors);
    if (checkpoint->gguf == NULL)
        mp_files_destroy(checkpoint->files);
    mp_gguf_close(checkpoint->gguf);
    if (checkpoint->dir_fd >= 0)
        close(checkpoint->dir_fd);
    free(checkpoint);
}

int mp_checkpoint_dir_fd(const struct mp_checkpoint *checkpoint)
{
    mp_assert(checkpoint->dir_fd >= 0 || checkpoint->gguf != NULL);
    return checkpoint->dir_fd;
}

const struct mp_gguf *mp_checkpoint_gguf(const struct mp_checkpoint *checkpoint)
{
    return checkpoint->gguf;
}

struct mp_files *mp_checkpoint_files(const struct mp_checkpoint *checkpoint)
{
    return checkpoint->files;
}

size_t mp_checkpoint_count(const struct mp_checkpoint *checkpoint)
{
    return checkpoint->count;
}

const struct mp_tensor *mp_checkpoint_tensor(const struct mp_checkpoint *checkpoint, size_t index)
{
    mp_assert(index < checkpoint->count);
    return &checkpoint->tensors[index];
}

const struct mp_tensor *mp_checkpoint_find(const struct mp_checkpoint *checkpoint, const char *name)
{
    const struct mp_tensor key = { .st = { .name = name } };

    mp_assert(name != NULL);
    return bsearch(&key, checkpoint->tensors, checkpoint->count, sizeof(key), by_name);
}

uint64_t mp_checkpoint_bytes(const struct mp_checkpoint *checkpoint)
{
    return checkpoint->bytes;
}

const char *mp_checkpoint_warning(const struct mp_checkpoint *checkpoint)
{
    return checkpoint->warning[0] != '\0' ? checkpoint->warning : NULL;
}
