/*
 * The whole run: plan, header, check, data, name. The new file has no name until it is whole
 * (vmm/output/out.h).
 */
#include "engine/convert/convert.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "engine/convert/convert_int.h"
#include "vmm/base/checked.h"
#include "vmm/output/out.h"

static enum mp_status fail_target(const char *out, const char *format)
    __attribute__((format(printf, 2, 0)));

static enum mp_status fail_target(const char *out, const char *format)
{
    char quoted[MP_QUOTE_BYTES];

    return mp_fail(MP_ERR_CONFIG, "E_REPACK_TARGET", format, mp_quote(quoted, out, strlen(out)));
}

/* Nothing of the model is ever replaced, whatever it is called. */
static enum mp_status check_target(const struct mp_convert *job)
{
    const struct mp_files *files = mp_checkpoint_files(job->checkpoint);
    const char *out = job->config->out;
    struct stat target, source;

    if (stat(out, &target) != 0)
        return mp_out_check(out, true);
    if (S_ISDIR(target.st_mode))
        return fail_target(out, "'%s' is a directory; a GGUF model is one file, give its name");
    for (uint32_t i = 0; i < mp_files_count(files); i++) {
        if (fstat(mp_files_fd(files, i), &source) == 0 && source.st_dev == target.st_dev &&
            source.st_ino == target.st_ino)
            return fail_target(out, "'%s' is a file of the model itself; choose another --out");
    }
    if (job->config->imatrix != NULL && stat(job->config->imatrix, &source) == 0 &&
        source.st_dev == target.st_dev && source.st_ino == target.st_ino)
        return fail_target(out, "'%s' is the importance matrix; choose another --out");
    if (!S_ISREG(target.st_mode))
        return fail_target(out, "'%s' is not a regular file; choose another --out");
    if (!job->config->force)
        return fail_target(out, "'%s' is there already; choose another --out, or give --force to "
                                "replace it");
    return mp_out_check(out, true);
}

static enum mp_status check_space(const struct mp_convert *job, int fd, uint64_t bytes)
{
    const char *out = job->config->out;
    char quoted[MP_QUOTE_BYTES];
    struct statvfs info;
    uint64_t have;

    if (fstatvfs(fd, &info) != 0 || !mp_mul_u64(info.f_bavail, info.f_frsize, &have) ||
        have >= bytes)
        return MP_OK; /* also where it cannot be found out: then writing reports it */
    return mp_fail(MP_ERR_IO, "E_REPACK_SPACE",
                   "the disk of '%s' has %" PRIu64 " bytes free, need %" PRIu64
                   "; make room or choose another --out",
                   mp_quote(quoted, out, strlen(out)), have, bytes);
}

/* Numbers that belong to the configuration are written at once. */
static bool write_made(const struct mp_convert *job, int fd, uint64_t header_bytes)
{
    bool good = true;

    for (size_t i = 0; i < job->count; i++) {
        const struct mp_convert_tensor *tensor = &job->tensors[i];

        if (tensor->made != NULL)
            good &= pwrite(fd, tensor->made, tensor->bytes,
                           (off_t)(header_bytes + tensor->offset_bytes)) == (ssize_t)tensor->bytes;
    }
    return good;
}

/* The header as a model, before any weight is read: the file has its size by then, as a hole. */
static enum mp_status check_header(const struct mp_convert *job, struct mp_out *out,
                                   uint64_t header_bytes)
{
    char path[64];

    if (fflush(out->file) != 0 ||
        ftruncate(out->fd, (off_t)(header_bytes + job->data_bytes)) != 0 ||
        !write_made(job, out->fd, header_bytes)) {
        const int error_number = errno;

        return mp_fail(MP_ERR_IO, "E_REPACK_WRITE", "cannot write the new model: %s",
                       strerror(error_number));
    }
    snprintf(path, sizeof(path), "/proc/self/fd/%d", out->fd);
    return mp_convert_check(job, path);
}

static enum mp_status write_file(struct mp_convert *job, struct mp_out *out)
{
    const struct mp_files *files = mp_checkpoint_files(job->checkpoint);
    char *header = NULL;
    size_t bytes = 0;
    enum mp_status status = mp_convert_header(job, &header, &bytes);

    if (status == MP_OK)
        status = check_space(job, out->fd, bytes + job->data_bytes);
    if (status == MP_OK) {
        fwrite(header, 1, bytes, out->file);
        status = check_header(job, out, bytes);
    }
    free(header);
    if (status == MP_OK)
        status = mp_convert_data(job, out->file);
    for (uint32_t f = 0; status == MP_OK && f < mp_files_count(files); f++)
        status = mp_files_check(files, f);
    job->report.bytes += bytes;
    return status;
}

static enum mp_status run(struct mp_convert *job)
{
    struct mp_out out = { .file = NULL };
    enum mp_status status = mp_checkpoint_open(job->config->model, &job->checkpoint);

    if (status == MP_OK)
        status = mp_model_config_load(job->checkpoint, &job->model);
    if (status == MP_OK)
        status = check_target(job);
    if (status == MP_OK && job->config->imatrix != NULL)
        status = mp_imatrix_open(job->config->imatrix, &job->imatrix);
    if (status == MP_OK)
        status = mp_convert_plan(job);
    if (status == MP_OK)
        status = mp_out_open(&out, job->config->out);
    if (status == MP_OK)
        status = write_file(job, &out);
    if (status == MP_OK)
        status = mp_out_commit(&out);
    mp_out_abandon(&out);
    return status;
}

enum mp_status mp_convert(const struct mp_convert_config *config,
                          struct mp_convert_report *report_p)
{
    struct mp_convert *job = calloc(1, sizeof(*job));
    char list[MP_CONVERT_TYPES_BYTES], quoted[MP_QUOTE_BYTES];
    enum mp_status status;

    if (job == NULL)
        return mp_fail_no_memory("the model's configuration", sizeof(*job));
    job->config = config;
    job->recipe = mp_recipe_find(config->type);
    status = job->recipe != NULL ? run(job)
                                 : mp_fail(MP_ERR_CONFIG, "E_USAGE", "--type '%s' is none of %s",
                                           mp_quote(quoted, config->type, strlen(config->type)),
                                           mp_convert_types(list));
    if (status == MP_OK) {
        job->report.error = job->squares > 0 ? sqrt(job->errors / job->squares) : 0;
        *report_p = job->report;
    }
    mp_imatrix_close(job->imatrix);
    mp_weights_destroy(job->weights);
    mp_checkpoint_close(job->checkpoint);
    free(job->tensors);
    free(job);
    return status;
}
