/* model.safetensors.index.json: the list of shards, and the check that they contain the listed
 * tensors. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "vmm/base/assert.h"
#include "vmm/format/checkpoint_int.h"

/* The index comes from elsewhere: it names files of the directory and chooses no path. */
static bool is_plain_name(const char *name)
{
    const size_t length = strlen(name);

    mp_assert(name != NULL);
    if (length == 0 || length > 255 || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return false;
    for (size_t i = 0; i < length; i++) {
        if (name[i] == '/' || (unsigned char)name[i] < 0x20 || name[i] == 0x7f)
            return false;
    }
    return true;
}

static enum mp_status check_shard_name(const json_t *value, const char *tensor, const char *index)
{
    char got[MP_QUOTE_BYTES], shown[MP_QUOTE_BYTES];

    if (json_is_string(value) && is_plain_name(json_string_value(value)))
        return MP_OK;
    return mp_fail(MP_ERR_MODEL, "E_PATH",
                   "shard of tensor '%s' in '%s': got %s, shard name must be a plain file name",
                   mp_quote(shown, tensor, strlen(tensor)), index, mp_json_describe(got, value));
}

static int by_string(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static enum mp_status add_shard(struct mp_checkpoint *checkpoint, const char *shard,
                                const char *index)
{
    char shown[MP_QUOTE_BYTES];
    struct stat info;

    mp_assert(checkpoint->dir_fd >= 0);
    if (fstatat(checkpoint->dir_fd, shard, &info, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT)
        return mp_fail(MP_ERR_MODEL, "E_CKPT_SHARD",
                       "shard '%s' listed in '%s' is missing; download it",
                       mp_quote(shown, shard, strlen(shard)), index);
    return mp_checkpoint_add_file(checkpoint, shard);
}

enum mp_status mp_checkpoint_add_shards(struct mp_checkpoint *checkpoint, const json_t *index,
                                        const char *name)
{
    json_t *map = NULL;
    const char **shards;
    size_t count = 0, files = 0;
    enum mp_status status = mp_json_object(index, "weight_map", name, &map);

    if (status != MP_OK)
        return status;
    shards = malloc((json_object_size(map) + 1) * sizeof(*shards));
    if (shards == NULL)
        return mp_fail_no_memory("the list of shards", json_object_size(map) * sizeof(*shards));
    for (void *at = json_object_iter(map); status == MP_OK && at != NULL;
         at = json_object_iter_next(map, at)) {
        const json_t *value = json_object_iter_value(at);

        mp_assert(count < json_object_size(map));
        status = check_shard_name(value, json_object_iter_key(at), name);
        shards[count++] = json_string_value(value);
    }
    if (status == MP_OK)
        qsort(shards, count, sizeof(*shards), by_string);
    for (size_t i = 0; status == MP_OK && i < count; i++) {
        if (i > 0 && strcmp(shards[i - 1], shards[i]) == 0)
            continue;
        if (++files > MP_CKPT_SHARDS_MAX)
            status = mp_fail(MP_ERR_MODEL, "E_CKPT_SHARD", "'%s' lists more than %u shards", name,
                             MP_CKPT_SHARDS_MAX);
        else
            status = add_shard(checkpoint, shards[i], name);
    }
    free(shards);
    return status;
}

/* Only a warning: no byte depends on it, and writers differ in what they count. */
static void compare_total_size(struct mp_checkpoint *checkpoint, const json_t *index,
                               const char *name)
{
    const json_t *total = json_object_get(json_object_get(index, "metadata"), "total_size");

    mp_assert(checkpoint->warning[0] == '\0'); /* there is room for one */
    if (json_is_integer(total) && json_integer_value(total) == (json_int_t)checkpoint->bytes)
        return;
    if (json_is_real(total) && json_real_value(total) == (double)checkpoint->bytes)
        return;
    if (total != NULL) {
        char got[MP_QUOTE_BYTES];

        snprintf(checkpoint->warning, sizeof(checkpoint->warning),
                 "total_size in '%s' is %s, the tensors have %" PRIu64 " bytes", name,
                 mp_json_describe(got, total), checkpoint->bytes);
    }
}

enum mp_status mp_checkpoint_check_index(struct mp_checkpoint *checkpoint, const json_t *index,
                                         const char *name)
{
    json_t *map = json_object_get(index, "weight_map");
    char shown[MP_QUOTE_BYTES], shown_shard[MP_QUOTE_BYTES];

    mp_assert(checkpoint->count > 0);
    for (void *at = json_object_iter(map); at != NULL; at = json_object_iter_next(map, at)) {
        const char *key = json_object_iter_key(at);
        const char *shard = json_string_value(json_object_iter_value(at));
        const struct mp_tensor *tensor = mp_checkpoint_find(checkpoint, key);

        if (tensor == NULL || strcmp(mp_files_name(checkpoint->files, tensor->file), shard) != 0)
            return mp_fail(MP_ERR_MODEL, "E_CKPT_INDEX",
                           "tensor '%s' is not in '%s', where '%s' says it is",
                           mp_quote(shown, key, strlen(key)),
                           mp_quote(shown_shard, shard, strlen(shard)), name);
    }
    compare_total_size(checkpoint, index, name);
    return MP_OK;
}
