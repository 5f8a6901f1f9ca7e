/* One new file: copied, forced to the disk, read back. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/repack/repack_int.h"

/* Dirty pages are written out after so many bytes: a whole file of them would stop the machine at
 * its end, and is memory that others may need. */
#define FLUSH_BYTES (UINT64_C(128) << 20)

#define PARTS 4

void mp_repack_sum_begin(struct mp_repack_sum *sum)
{
    *sum = (struct mp_repack_sum){ .parts = { 0x9e3779b97f4a7c15u, 0xbf58476d1ce4e5b9u,
                                              0x94d049bb133111ebu, 0xd6e8feb86659fd93u } };
}

/* For a fixed state every word gives another state and the other way round. */
static uint64_t mix(uint64_t state, uint64_t word)
{
    state = (state ^ word) * 0x9fb21c651e98df25u;
    return state ^ state >> 32;
}

void mp_repack_sum_add(struct mp_repack_sum *sum, const void *data, size_t bytes)
{
    const char *at = data;
    uint64_t words[PARTS];

    sum->bytes += bytes;
    for (; bytes >= sizeof(words); bytes -= sizeof(words), at += sizeof(words)) {
        memcpy(words, at, sizeof(words));
        for (unsigned i = 0; i < PARTS; i++)
            sum->parts[i] = mix(sum->parts[i], words[i]);
    }
    if (bytes == 0)
        return;
    memset(words, 0, sizeof(words));
    memcpy(words, at, bytes);
    for (unsigned i = 0; i < PARTS; i++)
        sum->parts[i] = mix(sum->parts[i], words[i]);
}

uint64_t mp_repack_sum_end(const struct mp_repack_sum *sum)
{
    uint64_t all = mix(0, sum->bytes);

    for (unsigned i = 0; i < PARTS; i++)
        all = mix(all, sum->parts[i]);
    return all;
}

enum mp_status mp_repack_fail_write(const struct mp_repack_job *job, const char *what,
                                    const char *name, int error_number)
{
    char dir[MP_QUOTE_BYTES], file[MP_QUOTE_BYTES];
    const char *out = job->config->out;

    return mp_fail(MP_ERR_IO, "E_REPACK_WRITE",
                   "cannot %s '%s' in '%s': %s; whole files are kept, run the same command again%s",
                   what, mp_quote(file, name, strlen(name)), mp_quote(dir, out, strlen(out)),
                   strerror(error_number),
                   error_number == ENOSPC || error_number == EDQUOT ? " when there is room" : "");
}

static enum mp_status advance(struct mp_repack_job *job, uint64_t bytes)
{
    const struct mp_progress *progress = job->config->progress;

    job->done_bytes += bytes;
    if (progress == NULL || progress->report(progress->context, job->done_bytes, job->total_bytes))
        return MP_OK;
    return mp_fail(MP_ERR_CANCELED, "E_CANCELED",
                   "interrupted; run the same command again to go on behind the last whole file");
}

/* A file that is being written. */
struct target {
    struct mp_repack_job *job;
    const char *name;
    int fd;
    uint64_t bytes, flushed_bytes;
};

static enum mp_status put(struct target *target, const void *data, uint64_t bytes)
{
    uint64_t done = 0;

    while (done < bytes) {
        const ssize_t got = write(target->fd, (const char *)data + done, bytes - done);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return mp_repack_fail_write(target->job, "write", target->name,
                                        got < 0 ? errno : ENOSPC);
        done += (uint64_t)got;
    }
    target->bytes += bytes;
    return MP_OK;
}

/* To the disk, and out of the page cache, so that reading back reads the disk. */
static enum mp_status flush(struct target *target)
{
    if (fsync(target->fd) != 0)
        return mp_repack_fail_write(target->job, "write", target->name, errno);
    posix_fadvise(target->fd, 0, 0, POSIX_FADV_DONTNEED); /* Only a hint. */
    target->flushed_bytes = target->bytes;
    return MP_OK;
}

static enum mp_status copy_item(struct target *target, struct mp_repack_item *item)
{
    struct mp_repack_job *job = target->job;
    struct mp_repack_sum sum;

    mp_repack_sum_begin(&sum);
    for (uint64_t at = 0; at < item->bytes; at += MP_REPACK_BUFFER_BYTES) {
        const uint64_t rest = item->bytes - at;
        const uint64_t bytes = rest < MP_REPACK_BUFFER_BYTES ? rest : MP_REPACK_BUFFER_BYTES;
        enum mp_status status = mp_repack_read(job, item, at, bytes, job->buffer);

        if (status != MP_OK)
            return status;
        mp_repack_sum_add(&sum, job->buffer, bytes);
        status = put(target, job->buffer, bytes);
        if (status == MP_OK && target->bytes - target->flushed_bytes >= FLUSH_BYTES)
            status = flush(target);
        if (status == MP_OK)
            status = advance(job, bytes);
        if (status != MP_OK)
            return status;
    }
    item->sum = mp_repack_sum_end(&sum);
    return MP_OK;
}

static uint64_t shard_sum(const struct mp_repack_plan *plan, const struct mp_repack_shard *shard)
{
    struct mp_repack_sum sum;
    uint64_t words[4] = { 0 };

    mp_repack_sum_begin(&sum);
    for (size_t i = shard->first; i < shard->first + shard->count; i++) {
        words[0] = plan->items[i].bytes > 0 ? plan->items[i].sum : 0;
        mp_repack_sum_add(&sum, words, sizeof(words));
    }
    return mp_repack_sum_end(&sum);
}

static enum mp_status copy_shard(struct target *target, struct mp_repack_shard *shard)
{
    struct mp_repack_plan *plan = target->job->plan;
    const struct mp_files *files = mp_checkpoint_files(plan->checkpoint);
    enum mp_status status = put(target, shard->header, shard->header_bytes);

    for (size_t i = shard->first; status == MP_OK && i < shard->first + shard->count; i++)
        status = copy_item(target, &plan->items[i]);
    if (status == MP_OK)
        status = flush(target);
    for (uint32_t f = 0; status == MP_OK && f < mp_files_count(files); f++)
        status = mp_files_check(files, f);
    if (status == MP_OK) {
        shard->sum = shard_sum(plan, shard);
        shard->sums_known = true;
    }
    return status;
}

enum mp_status mp_repack_shard_write(struct mp_repack_job *job, struct mp_repack_shard *shard)
{
    struct target target = { .job = job, .name = shard->part };
    enum mp_status status;

    /* What an interrupted run left under this name is no whole file: those are in the manifest. */
    if (unlinkat(job->out_fd, shard->part, 0) != 0 && errno != ENOENT)
        return mp_repack_fail_write(job, "replace", shard->part, errno);
    target.fd = openat(job->out_fd, shard->part,
                       O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (target.fd < 0)
        return mp_repack_fail_write(job, "create", shard->part, errno);
    status = copy_shard(&target, shard);
    if (close(target.fd) != 0 && status == MP_OK)
        status = mp_repack_fail_write(job, "write", shard->part, errno);
    if (status == MP_OK)
        status = mp_repack_shard_verify(job, shard, shard->part);
    if (status != MP_OK) {
        unlinkat(job->out_fd, shard->part, 0);
        return status;
    }
    job->plan->report.written_bytes += target.bytes;
    shard->whole = true;
    return MP_OK;
}

static enum mp_status fail_verify(const char *name, const char *what, const char *tensor)
{
    char file[MP_QUOTE_BYTES], quoted[MP_QUOTE_BYTES];

    return mp_fail(MP_ERR_IO, "E_REPACK_VERIFY",
                   "%s%s%s%s in '%s' is not what was written; disk or memory may be faulty", what,
                   *tensor != '\0' ? " '" : "", mp_quote(quoted, tensor, strlen(tensor)),
                   *tensor != '\0' ? "'" : "", mp_quote(file, name, strlen(name)));
}

/* Where the header of the file on disk says that the tensor lies, read by the model reader. */
static enum mp_status read_table(const struct mp_files *files, const struct mp_repack_shard *shard,
                                 const char *name, struct mp_st_table *table)
{
    const uint64_t file_bytes = mp_files_bytes(files, 0);
    char *header;
    enum mp_status status;

    if (file_bytes != shard->header_bytes + shard->data_bytes)
        return fail_verify(name, "the size", "");
    header = malloc(shard->header_bytes);
    if (header == NULL)
        return mp_fail_no_memory("the header of a new file", shard->header_bytes);
    status = mp_files_read(files, 0, 0, shard->header_bytes, header);
    if (status == MP_OK && memcmp(header, shard->header, shard->header_bytes) != 0)
        status = fail_verify(name, "the header", "");
    if (status == MP_OK)
        status = mp_st_parse(header + 8, shard->header_bytes - 8, file_bytes, name, table);
    free(header);
    return status;
}

static enum mp_status sum_tensor(struct mp_repack_job *job, const struct mp_files *files,
                                 const struct mp_st_tensor *tensor, uint64_t *sum_p)
{
    struct mp_repack_sum sum;

    mp_repack_sum_begin(&sum);
    for (uint64_t at = 0; at < tensor->bytes; at += MP_REPACK_BUFFER_BYTES) {
        const uint64_t rest = tensor->bytes - at;
        const uint64_t bytes = rest < MP_REPACK_BUFFER_BYTES ? rest : MP_REPACK_BUFFER_BYTES;
        enum mp_status status =
            mp_files_read(files, 0, tensor->offset_bytes + at, bytes, job->buffer);

        if (status != MP_OK)
            return status;
        mp_repack_sum_add(&sum, job->buffer, bytes);
        status = advance(job, bytes);
        if (status != MP_OK)
            return status;
    }
    *sum_p = mp_repack_sum_end(&sum);
    return MP_OK;
}

/*
 * The reader lists tensors by offset, which is the order of the items but for tensors without
 * bytes; those it sorts by name, so they are skipped here: there is nothing of them to compare.
 */
static enum mp_status verify_tensors(struct mp_repack_job *job, struct mp_repack_shard *shard,
                                     const struct mp_files *files, const struct mp_st_table *table,
                                     const char *name)
{
    struct mp_repack_item *items = job->plan->items;
    size_t i = shard->first;
    enum mp_status status = MP_OK;

    for (size_t t = 0; status == MP_OK && t < table->count; t++) {
        const struct mp_st_tensor *tensor = &table->tensors[t];
        uint64_t sum = 0;

        if (tensor->bytes == 0)
            continue;
        while (items[i].bytes == 0)
            i++;
        if (strcmp(items[i].name, tensor->name) != 0 || items[i].bytes != tensor->bytes)
            return fail_verify(name, "tensor", tensor->name);
        status = sum_tensor(job, files, tensor, &sum);
        /* A file from an earlier run has only the sum over all, compared by the caller. */
        if (status == MP_OK && shard->sums_known && sum != items[i].sum)
            return fail_verify(name, "tensor", tensor->name);
        items[i++].sum = sum;
    }
    return status;
}

enum mp_status mp_repack_shard_verify(struct mp_repack_job *job, struct mp_repack_shard *shard,
                                      const char *name)
{
    struct mp_st_table table = { 0 };
    struct mp_files *files = NULL;
    uint32_t index;
    enum mp_status status = mp_files_create(&files);

    if (status != MP_OK)
        return status;
    status = mp_files_add(files, job->out_fd, name, &index);
    if (status == MP_OK)
        status = read_table(files, shard, name, &table);
    if (status == MP_OK)
        status = verify_tensors(job, shard, files, &table, name);
    if (status == MP_OK && shard_sum(job->plan, shard) != shard->sum)
        status = fail_verify(name, "the data", "");
    mp_st_table_fini(&table);
    mp_files_destroy(files);
    return status;
}
