/*
 * The whole run: inspect the target, write missing files, then give all files their names.
 *
 * Until the last step the target holds .part files and the manifest, and what was there before. The
 * last step first removes the old index or single file (so that nothing looks like a model), then
 * renames the files, and writes the index last; if it is killed in between, the next run repeats
 * it.
 */
#include "engine/repack/repack.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "engine/repack/repack_int.h"
#include "vmm/base/checked.h"

#define SINGLE "model.safetensors"
#define INDEX "model.safetensors.index.json"

/* For headers of files, directory and manifest. */
#define SPACE_RESERVE_BYTES (UINT64_C(4) << 20)

static enum mp_status fail_target(const struct mp_repack_job *job, const char *format)
    __attribute__((format(printf, 2, 0)));

static enum mp_status fail_target(const struct mp_repack_job *job, const char *format)
{
    char quoted[MP_QUOTE_BYTES];

    return mp_fail(MP_ERR_CONFIG, "E_REPACK_TARGET", format,
                   mp_quote(quoted, job->config->out, strlen(job->config->out)));
}

static enum mp_status fail_dir(const struct mp_repack_job *job, const char *what)
{
    const int error_number = errno;
    char quoted[MP_QUOTE_BYTES];

    return mp_fail(MP_ERR_IO, "E_REPACK_WRITE", "cannot %s the directory '%s': %s", what,
                   mp_quote(quoted, job->config->out, strlen(job->config->out)),
                   strerror(error_number));
}

static enum mp_status open_target(struct mp_repack_job *job, bool *made_p)
{
    struct stat source, target;

    *made_p = mkdir(job->config->out, 0777) == 0;
    if (!*made_p && errno != EEXIST)
        return fail_dir(job, "make");
    job->out_fd = open(job->config->out, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (job->out_fd < 0 && errno == ENOTDIR)
        return fail_target(job, "'%s' is not a directory");
    if (job->out_fd < 0 || fstat(job->out_fd, &target) != 0 ||
        fstat(mp_checkpoint_dir_fd(job->plan->checkpoint), &source) != 0)
        return fail_dir(job, "open");
    if (source.st_dev == target.st_dev && source.st_ino == target.st_ino)
        return fail_target(job, "'%s' is the model itself; choose another --out");
    if (flock(job->out_fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return fail_target(job, "another process is writing '%s'");
    return MP_OK;
}

static bool is_there(const struct mp_repack_job *job, const char *name)
{
    struct stat info;

    return fstatat(job->out_fd, name, &info, AT_SYMLINK_NOFOLLOW) == 0;
}

/* "model.safetensors" or "model-00001-of-00003.safetensors", and with .part behind. */
static bool is_shard_name(const char *name, bool part)
{
    const char *suffix = part ? ".safetensors.part" : ".safetensors";
    unsigned index, count;
    int end = 0;

    if (strncmp(name, "model", 5) != 0)
        return false;
    if (sscanf(name, "model-%5u-of-%5u%n", &index, &count, &end) != 2)
        end = 5;
    return strcmp(name + end, suffix) == 0;
}

static bool is_current(const struct mp_repack_plan *plan, const char *name, bool part)
{
    for (uint32_t i = 0; i < plan->shard_count; i++) {
        const struct mp_repack_shard *shard = &plan->shards[i];

        if (shard->whole && shard->in_place != part &&
            strcmp(part ? shard->part : shard->name, name) == 0)
            return true;
    }
    return false;
}

static DIR *list_target(const struct mp_repack_job *job)
{
    const int fd = openat(job->out_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;

    if (dir == NULL && fd >= 0)
        close(fd);
    return dir;
}

/* Remove shards (or their .part files) that are none of this model's whole ones. */
static enum mp_status remove_stale(const struct mp_repack_job *job, bool part)
{
    enum mp_status status = MP_OK;
    DIR *dir = list_target(job);
    struct dirent *entry;

    if (dir == NULL)
        return fail_dir(job, "list");
    while (status == MP_OK && (entry = readdir(dir)) != NULL) {
        if (is_shard_name(entry->d_name, part) && !is_current(job->plan, entry->d_name, part) &&
            unlinkat(job->out_fd, entry->d_name, 0) != 0 && errno != ENOENT)
            status = mp_repack_fail_write(job, "remove", entry->d_name, errno);
    }
    closedir(dir);
    return status;
}

/* Nothing that was there before is touched without `overwrite`. */
static enum mp_status check_empty(const struct mp_repack_job *job)
{
    const struct dirent *entry;
    bool empty = true;
    DIR *dir;

    if (is_there(job, SINGLE) || is_there(job, INDEX))
        return fail_target(job, "'%s' already holds a model; choose another --out, or give --force "
                                "to replace it");
    dir = list_target(job);
    if (dir == NULL)
        return fail_dir(job, "list");
    while ((entry = readdir(dir)) != NULL)
        empty = empty && (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0);
    closedir(dir);
    return empty ? MP_OK
                 : fail_target(job, "'%s' is not empty; choose another --out, or give --force to "
                                    "write among its files");
}

static enum mp_status check_space(struct mp_repack_job *job)
{
    char quoted[MP_QUOTE_BYTES];
    uint64_t need = 0, have;
    struct statvfs info;
    enum mp_status status = mp_repack_copy_bytes(job, &need);

    if (status != MP_OK)
        return status;
    need += SPACE_RESERVE_BYTES;
    for (uint32_t i = 0; i < job->plan->shard_count; i++) {
        const struct mp_repack_shard *shard = &job->plan->shards[i];

        if (!shard->whole)
            need += shard->header_bytes + shard->data_bytes;
    }
    if (fstatvfs(job->out_fd, &info) != 0 || !mp_mul_u64(info.f_bavail, info.f_frsize, &have) ||
        have >= need)
        return MP_OK; /* also where it cannot be found out: then writing reports it */
    return mp_fail(MP_ERR_IO, "E_REPACK_SPACE",
                   "the disk of '%s' has %" PRIu64 " bytes free, need %" PRIu64
                   "; make room or choose another --out",
                   mp_quote(quoted, job->config->out, strlen(job->config->out)), have, need);
}

static enum mp_status prepare(struct mp_repack_job *job)
{
    bool found = false;
    enum mp_status status;

    for (uint32_t i = 0; i < job->plan->shard_count; i++)
        job->total_bytes += 2 * job->plan->shards[i].data_bytes;
    status = mp_repack_manifest_read(job, &found);
    if (status == MP_OK && !found && !job->config->force)
        status = check_empty(job);
    if (status == MP_OK)
        status = check_space(job);
    if (status == MP_OK)
        status = remove_stale(job, true);
    if (status == MP_OK)
        status = mp_repack_manifest_write(job);
    job->claimed = status == MP_OK;
    return status;
}

static enum mp_status write_shards(struct mp_repack_job *job)
{
    enum mp_status status = MP_OK;

    for (uint32_t i = 0; status == MP_OK && i < job->plan->shard_count; i++) {
        struct mp_repack_shard *shard = &job->plan->shards[i];

        if (shard->whole)
            continue;
        status = mp_repack_shard_write(job, shard);
        if (status == MP_OK)
            status = mp_repack_manifest_write(job);
    }
    return status;
}

static enum mp_status remove_file(const struct mp_repack_job *job, const char *name)
{
    if (unlinkat(job->out_fd, name, 0) != 0 && errno != ENOENT)
        return mp_repack_fail_write(job, "remove", name, errno);
    return MP_OK;
}

static enum mp_status name_shards(struct mp_repack_job *job)
{
    for (uint32_t i = 0; i < job->plan->shard_count; i++) {
        struct mp_repack_shard *shard = &job->plan->shards[i];

        if (shard->in_place)
            continue;
        if (renameat(job->out_fd, shard->part, job->out_fd, shard->name) != 0)
            return mp_repack_fail_write(job, "rename", shard->part, errno);
        shard->in_place = true;
    }
    return MP_OK;
}

static enum mp_status finish(struct mp_repack_job *job)
{
    const bool single = job->plan->shard_count == 1;
    enum mp_status status = mp_repack_copy_files(job);

    /* Replaced by --force, a model may have had the other name. */
    if (status == MP_OK)
        status = remove_file(job, mp_repack_config_name(job->plan->slices.count == 1));
    if (status == MP_OK)
        status = remove_file(job, INDEX);
    if (status == MP_OK && !single)
        status = remove_file(job, SINGLE);
    if (status == MP_OK)
        status = name_shards(job);
    if (status == MP_OK)
        status = remove_stale(job, false);
    if (status == MP_OK && !single)
        status = mp_repack_index_write(job);
    /* Names reach the disk before the record that could bring them back goes. */
    if (status == MP_OK && fsync(job->out_fd) != 0 && errno != EINVAL)
        status = fail_dir(job, "write");
    return status == MP_OK ? remove_file(job, MP_REPACK_MANIFEST) : status;
}

/* Where nothing is whole, leave nothing behind; a manifest that was there before stays. */
static void undo(const struct mp_repack_job *job, bool made)
{
    if (!made && !job->claimed)
        return;
    for (uint32_t i = 0; i < job->plan->shard_count; i++) {
        if (job->plan->shards[i].whole)
            return;
    }
    unlinkat(job->out_fd, MP_REPACK_MANIFEST, 0);
    if (made)
        rmdir(job->config->out);
}

static enum mp_status run(struct mp_repack_job *job)
{
    bool made = false;
    enum mp_status status = open_target(job, &made);

    if (status == MP_OK) {
        status = prepare(job);
        if (status == MP_OK)
            status = write_shards(job);
        if (status == MP_OK)
            status = finish(job);
        if (status != MP_OK)
            undo(job, made);
    }
    if (job->out_fd >= 0)
        close(job->out_fd);
    return status;
}

static enum mp_status plan_and_run(const struct mp_repack_config *config,
                                   const struct mp_model_config *model, struct mp_repack_plan *plan)
{
    struct mp_repack_job job = { .config = config, .plan = plan, .out_fd = -1 };
    enum mp_status status = mp_weights_describe(plan->checkpoint, model, &plan->weights);

    if (status == MP_OK)
        status = mp_repack_plan_make(plan, model, config);
    if (status != MP_OK)
        return status;
    job.buffer = malloc(MP_REPACK_BUFFER_BYTES);
    job.cache = malloc(MP_REPACK_BUFFER_BYTES);
    status = job.buffer == NULL || job.cache == NULL
                 ? mp_fail_no_memory("the copy of the model", 2 * MP_REPACK_BUFFER_BYTES)
                 : run(&job);
    free(job.cache);
    free(job.buffer);
    return status;
}

static enum mp_status refuse_gguf(const char *model)
{
    char shown[MP_QUOTE_BYTES];

    return mp_fail(MP_ERR_MODEL, "E_UNSUPPORTED",
                   "'%s' is a GGUF file; repack reads directories with safetensors files only",
                   mp_quote(shown, model, strlen(model)));
}

enum mp_status mp_repack(const struct mp_repack_config *config, struct mp_repack_report *report_p)
{
    static const struct mp_repack_plan empty;
    struct mp_model_config *model = malloc(sizeof(*model));
    struct mp_checkpoint *checkpoint = NULL;
    struct mp_repack_plan plan = empty;
    enum mp_status status;

    if (model == NULL)
        return mp_fail_no_memory("the model's configuration", sizeof(*model));
    status = mp_checkpoint_open(config->model, &checkpoint);
    if (status == MP_OK && mp_checkpoint_gguf(checkpoint) != NULL)
        status = refuse_gguf(config->model);
    if (status == MP_OK)
        status = mp_model_config_load(checkpoint, model);
    plan.checkpoint = checkpoint;
    if (status == MP_OK)
        status = plan_and_run(config, model, &plan);
    if (status == MP_OK)
        *report_p = plan.report;
    mp_repack_plan_fini(&plan);
    mp_weights_destroy(plan.weights);
    mp_checkpoint_close(checkpoint);
    free(model);
    return status;
}
