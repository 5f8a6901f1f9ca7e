/* The small files of the new directory: manifest, index, and what is copied as it is. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/repack/repack_int.h"
#include "vmm/base/log.h"
#include "vmm/format/json.h"
#include "vmm/output/json_out.h"
#include "vmm/output/out.h"

#define MANIFEST_FORMAT "moepager repack 1"
#define MANIFEST_BYTES_MAX (32u << 20)
#define CONFIG_BYTES_MAX (16u << 20)

#define SUM_BYTES 17

static void sum_text(char out[SUM_BYTES], uint64_t sum)
{
    snprintf(out, SUM_BYTES, "%016" PRIx64, sum);
}

static enum mp_status open_out(const struct mp_repack_job *job, const char *name,
                               struct mp_out *out)
{
    char path[PATH_MAX];
    const int length = snprintf(path, sizeof(path), "%s/%s", job->config->out, name);

    if (length < 0 || (size_t)length >= sizeof(path))
        return mp_repack_fail_write(job, "create", name, ENAMETOOLONG);
    return mp_out_open(out, path);
}

enum mp_status mp_repack_manifest_write(const struct mp_repack_job *job)
{
    char sum[SUM_BYTES];
    struct mp_json_out json;
    struct mp_out out;
    enum mp_status status = open_out(job, MP_REPACK_MANIFEST, &out);

    if (status != MP_OK)
        return status;
    mp_json_begin(&json, out.file, true);
    mp_json_object_begin(&json, NULL);
    mp_json_put_string(&json, "format", MANIFEST_FORMAT);
    sum_text(sum, job->plan->fingerprint);
    mp_json_put_string(&json, "plan", sum);
    mp_json_object_begin(&json, "files");
    for (uint32_t i = 0; i < job->plan->shard_count; i++) {
        const struct mp_repack_shard *shard = &job->plan->shards[i];

        sum_text(sum, shard->sum);
        if (shard->whole)
            mp_json_put_string(&json, shard->name, sum);
    }
    mp_json_object_end(&json);
    mp_json_object_end(&json);
    mp_json_end(&json);
    return mp_out_commit(&out);
}

static bool is_there(const struct mp_repack_job *job, const char *name)
{
    struct stat info;

    return fstatat(job->out_fd, name, &info, AT_SYMLINK_NOFOLLOW) == 0;
}

/* Only what has nothing to do with the file's bytes ends the run; else the shard is made anew. */
static enum mp_status check_shard(struct mp_repack_job *job, struct mp_repack_shard *shard,
                                  const char *sum)
{
    const uint64_t done_bytes = job->done_bytes;
    const bool in_place = !is_there(job, shard->part);
    enum mp_status status;
    int end = 0;

    if (sscanf(sum, "%16" SCNx64 "%n", &shard->sum, &end) != 1 || sum[end] != '\0')
        return MP_OK;
    status = mp_repack_shard_verify(job, shard, in_place ? shard->name : shard->part);
    if (status == MP_OK) {
        shard->whole = true;
        shard->in_place = in_place;
        job->total_bytes -= shard->data_bytes;
        job->plan->report.shards_kept++;
        return MP_OK;
    }
    if (status != MP_ERR_IO)
        return status;
    mp_log_warn("repack", "%s; it is written again", mp_error_last()->text);
    job->done_bytes = done_bytes;
    return MP_OK;
}

static enum mp_status check_shards(struct mp_repack_job *job, const json_t *files)
{
    enum mp_status status = MP_OK;

    for (uint32_t i = 0; status == MP_OK && i < job->plan->shard_count; i++) {
        const char *sum = json_string_value(json_object_get(files, job->plan->shards[i].name));

        if (sum != NULL)
            status = check_shard(job, &job->plan->shards[i], sum);
    }
    return status;
}

enum mp_status mp_repack_manifest_read(struct mp_repack_job *job, bool *found_p)
{
    char quoted[MP_QUOTE_BYTES], want[SUM_BYTES];
    const char *format, *plan, *out = job->config->out;
    json_t *root = NULL, *files = NULL;
    enum mp_status status =
        mp_json_load_optional_file(job->out_fd, MP_REPACK_MANIFEST, MANIFEST_BYTES_MAX, &root);

    *found_p = false;
    if (status == MP_OK && root == NULL)
        return MP_OK;
    if (status == MP_OK)
        status = mp_json_string(root, "format", MP_REPACK_MANIFEST, &format);
    if (status == MP_OK)
        status = mp_json_string(root, "plan", MP_REPACK_MANIFEST, &plan);
    if (status == MP_OK)
        status = mp_json_object(root, "files", MP_REPACK_MANIFEST, &files);
    sum_text(want, job->plan->fingerprint);
    if (status == MP_OK && strcmp(format, MANIFEST_FORMAT) == 0 && strcmp(plan, want) == 0) {
        status = check_shards(job, files);
        *found_p = status == MP_OK;
    } else if ((status == MP_OK || status == MP_ERR_MODEL) && job->config->force) {
        status = MP_OK;
    } else if (status == MP_OK || status == MP_ERR_MODEL) {
        status = mp_fail(MP_ERR_CONFIG, "E_REPACK_TARGET",
                         "'%s' holds an unfinished model that was made of other files or with "
                         "another --shard-bytes; choose another --out, or give --force to replace "
                         "it",
                         mp_quote(quoted, out, strlen(out)));
    }
    json_decref(root);
    return status;
}

enum mp_status mp_repack_index_write(const struct mp_repack_job *job)
{
    const struct mp_repack_plan *plan = job->plan;
    struct mp_json_out json;
    struct mp_out out;
    enum mp_status status = open_out(job, "model.safetensors.index.json", &out);

    if (status != MP_OK)
        return status;
    mp_json_begin(&json, out.file, true);
    mp_json_object_begin(&json, NULL);
    mp_json_object_begin(&json, "metadata");
    mp_json_put_u64(&json, "total_size",
                    plan->report.expert_bytes + plan->report.other_bytes + plan->report.pad_bytes);
    mp_json_object_end(&json);
    mp_json_object_begin(&json, "weight_map");
    for (uint32_t s = 0; s < plan->shard_count; s++) {
        const struct mp_repack_shard *shard = &plan->shards[s];

        for (size_t i = shard->first; i < shard->first + shard->count; i++)
            mp_json_put_string(&json, plan->items[i].name, shard->name);
    }
    mp_json_object_end(&json);
    mp_json_object_end(&json);
    mp_json_end(&json);
    return mp_out_commit(&out);
}

static bool ends_with(const char *name, const char *suffix)
{
    const size_t length = strlen(name), tail = strlen(suffix);

    return length >= tail && strcmp(name + length - tail, suffix) == 0;
}

/* Weights in any form stay behind: those of the model are written anew. */
static bool is_weights(const char *name)
{
    static const char *const suffixes[] = { ".safetensors", ".index.json", ".bin",  ".pt",
                                            ".pth",         ".h5",         ".gguf", ".msgpack",
                                            ".onnx",        ".part" };

    for (size_t i = 0; i < MP_ARRAY_LEN(suffixes); i++) {
        if (ends_with(name, suffixes[i]))
            return true;
    }
    return strcmp(name, MP_REPACK_MANIFEST) == 0;
}

const char *mp_repack_config_name(bool sliced)
{
    return sliced ? MP_SLICED_CONFIG : "config.json";
}

/* Of config.json, what says that experts are MXFP4 and nothing else is: as gpt-oss's has it. */
static json_t *mxfp4_object(void)
{
    return json_pack("{s:[s,s,s,s],s:s}", "modules_to_not_convert", "model.layers.*.self_attn",
                     "model.layers.*.mlp.router", "model.embed_tokens", "lm_head", "quant_method",
                     "mxfp4");
}

static enum mp_status write_config(struct mp_repack_job *job, const char *name)
{
    json_t *root = NULL;
    struct mp_out out = { .file = NULL };
    enum mp_status status = mp_json_load_file(mp_checkpoint_dir_fd(job->plan->checkpoint), name,
                                              CONFIG_BYTES_MAX, &root);

    if (status == MP_OK && json_object_set_new(root, "quantization_config", mxfp4_object()) != 0)
        status = mp_fail_no_memory("the new configuration", 0);
    if (status == MP_OK)
        status = open_out(job, name, &out);
    if (status == MP_OK && json_dumpf(root, out.file, JSON_INDENT(2)) != 0)
        status = mp_repack_fail_write(job, "write", name, errno);
    if (status == MP_OK) {
        putc('\n', out.file);
        status = mp_out_commit(&out);
    }
    mp_out_abandon(&out);
    json_decref(root);
    job->plan->report.files_copied += status == MP_OK;
    return status;
}

static enum mp_status copy_file(struct mp_repack_job *job, const char *name)
{
    const bool config = strcmp(name, mp_repack_config_name(true)) == 0 ||
                        strcmp(name, mp_repack_config_name(false)) == 0;
    const char *new_name = config ? mp_repack_config_name(job->plan->slices.count > 1) : name;
    struct mp_files *files = NULL;
    struct mp_out out = { .file = NULL };
    uint32_t index;
    enum mp_status status = mp_files_create(&files);

    if (status != MP_OK)
        return status;
    status = mp_files_add(files, mp_checkpoint_dir_fd(job->plan->checkpoint), name, &index);
    if (status == MP_OK)
        status = open_out(job, new_name, &out);
    const uint64_t total = status == MP_OK ? mp_files_bytes(files, 0) : 0;
    for (uint64_t at = 0; status == MP_OK && at < total; at += MP_REPACK_BUFFER_BYTES) {
        const uint64_t rest = total - at;
        const uint64_t bytes = rest < MP_REPACK_BUFFER_BYTES ? rest : MP_REPACK_BUFFER_BYTES;

        status = mp_files_read(files, 0, at, bytes, job->buffer);
        if (status == MP_OK)
            fwrite(job->buffer, 1, bytes, out.file); /* an error stays until commit */
    }
    if (status == MP_OK)
        status = mp_out_commit(&out);
    mp_out_abandon(&out);
    mp_files_destroy(files);
    job->plan->report.files_copied += status == MP_OK;
    return status;
}

static enum mp_status fail_list(int error_number)
{
    return mp_fail(MP_ERR_IO, "E_OPEN", "cannot list the model's directory: %s",
                   strerror(error_number));
}

/* One name of the model's directory: copied, or with bytes_p only added up. */
static enum mp_status take_file(struct mp_repack_job *job, int dir_fd, const char *name,
                                uint64_t *bytes_p)
{
    char quoted[MP_QUOTE_BYTES];
    struct stat info;

    if (name[0] == '.' || is_weights(name))
        return MP_OK;
    if (fstatat(dir_fd, name, &info, 0) != 0) {
        const int error_number = errno;

        mp_quote(quoted, name, strlen(name));
        if (error_number != ENOENT)
            return mp_fail(MP_ERR_IO, "E_OPEN", "cannot look at '%s' of the model: %s", quoted,
                           strerror(error_number));
        mp_log_warn("repack", "'%s' leads nowhere and is not copied", quoted);
        return MP_OK;
    }
    if (!S_ISREG(info.st_mode))
        return MP_OK;
    if (bytes_p == NULL)
        return job->config->mxfp4 && strcmp(name, mp_repack_config_name(false)) == 0
                   ? write_config(job, name)
                   : copy_file(job, name);
    *bytes_p += (uint64_t)info.st_size;
    return MP_OK;
}

static enum mp_status walk_files(struct mp_repack_job *job, uint64_t *bytes_p)
{
    const int dir_fd = openat(mp_checkpoint_dir_fd(job->plan->checkpoint), ".",
                              O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = dir_fd >= 0 ? fdopendir(dir_fd) : NULL;
    const struct dirent *entry = NULL;
    enum mp_status status = MP_OK;

    if (dir == NULL) {
        const int error_number = errno;

        if (dir_fd >= 0)
            close(dir_fd);
        return fail_list(error_number);
    }
    while (status == MP_OK) {
        errno = 0;
        entry = readdir(dir);
        if (entry == NULL)
            break;
        status = take_file(job, dir_fd, entry->d_name, bytes_p);
    }
    if (status == MP_OK && errno != 0)
        status = fail_list(errno);
    closedir(dir);
    return status;
}

enum mp_status mp_repack_copy_files(struct mp_repack_job *job)
{
    return walk_files(job, NULL);
}

enum mp_status mp_repack_copy_bytes(struct mp_repack_job *job, uint64_t *bytes_p)
{
    *bytes_p = 0;
    return walk_files(job, bytes_p);
}
