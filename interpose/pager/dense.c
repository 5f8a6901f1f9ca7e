/*
 * What is not an expert is needed by every token. A thread reads it in the background, past the
 * page cache, into memory of huge pages, and moves that over the file's mapping: then a kernel that
 * runs short of memory does not drop it, and nobody faults it in page by page. Where there is no
 * room for that beside the budget it stays the file's.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "interpose/pager/paged.h"
#include "vmm/base/checked.h"
#include "vmm/base/error.h"
#include "vmm/base/thread.h"

#define CHUNK_BYTES (UINT64_C(32) << 20)
#define HUGE_BYTES (UINT64_C(2) << 20)

/* Less than that is left to be faulted in. */
#define RANGE_BYTES_MIN (UINT64_C(64) << 10)

struct mp_paged_dense {
    struct mp_paged *paged;
    pthread_t thread;
    struct mp_mutex lock;
    struct mp_cond changed;
    bool *wanted; // (files) MP_GUARDED_BY(lock)
    bool stop MP_GUARDED_BY(lock);
    bool done MP_GUARDED_BY(lock);
    uint64_t bytes MP_GUARDED_BY(lock); /* replaced so far */
};

struct range {
    uint64_t begin, end;
};

/* [begin, end) is not dense, if it is in the file. Cuts it off the range, or the range before it.
 */
static bool cut(struct range *range, uint64_t begin, uint64_t end)
{
    const uint64_t page = MP_SPACE_PAGE_BYTES;

    if (end <= range->begin || begin >= range->end)
        return false;
    begin = mp_round_down_u64(begin, page);
    if (begin >= range->begin + RANGE_BYTES_MIN)
        range->end = begin;
    else
        range->begin = mp_round_down_u64(end + page - 1, page);
    return true;
}

/* The first thing in the range that is not dense, cut off. False: there is none. */
static bool cut_one(const struct mp_experts *experts, uint32_t file, struct range *range)
{
    for (uint32_t i = 0; i < experts->tensor_count; i++) {
        const struct mp_expert_tensor *tensor = &experts->tensors[i];

        if (tensor->file == file &&
            cut(range, tensor->offset_bytes,
                tensor->offset_bytes + experts->experts * tensor->expert_bytes))
            return true;
    }
    for (uint32_t i = 0; i < experts->table_count; i++) {
        const struct mp_piece *table = &experts->tables[i];

        if (table->file == file &&
            cut(range, table->offset_bytes, table->offset_bytes + table->bytes))
            return true;
    }
    return false;
}

/* The pages of the file that neither an expert nor a table touches, from `from` on. False: there
 * are no more. */
static bool next_range(const struct mp_experts *experts, uint32_t file, uint64_t from,
                       struct range *range_p)
{
    const uint64_t page = MP_SPACE_PAGE_BYTES;
    const uint64_t file_end = mp_round_down_u64(mp_files_bytes(experts->files, file), page);
    const uint64_t data_begin = mp_round_down_u64(experts->data_begin[file], page);
    struct range range = { 0, from > data_begin ? from : data_begin };

    do {
        range = (struct range){ range.end > range.begin ? range.end : range.begin, file_end };
        while (range.begin + RANGE_BYTES_MIN <= range.end && cut_one(experts, file, &range))
            ;
    } while (range.begin + RANGE_BYTES_MIN > range.end && range.end < file_end);
    *range_p = range;
    return range.begin + RANGE_BYTES_MIN <= range.end;
}

uint64_t mp_paged_dense_bytes(const struct mp_experts *experts)
{
    uint64_t bytes = 0;

    for (uint32_t f = 0; f < mp_files_count(experts->files); f++) {
        struct range range = { 0, 0 };

        while (next_range(experts, f, range.end, &range))
            bytes += range.end - range.begin;
    }
    return bytes;
}

/* Memory whose huge pages will lie as those at `at` can. */
static char *take_memory(struct mp_paged *paged, const char *at, uint64_t bytes)
{
    const struct mp_real *real = &paged->host.real;
    const uint64_t whole = bytes + HUGE_BYTES;
    char *base =
        real->mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t head;

    if (base == MAP_FAILED)
        return NULL;
    head = ((uintptr_t)at - (uintptr_t)base) % HUGE_BYTES;
    if (head > 0)
        (void)real->munmap(base, head);
    (void)real->munmap(base + head + bytes, whole - head - bytes);
    (void)real->madvise(base + head, bytes, MADV_HUGEPAGE);
    /* A read into absent pages would have them cleared with the process's map of memory locked, and
     * nobody could map an expert meanwhile; a touch locks no more than these. */
    for (uint64_t i = 0; i < bytes; i += MP_SPACE_PAGE_BYTES)
        *(volatile char *)(base + head + i) = 0;
    return base + head;
}

static bool read_direct(int fd, uint64_t offset, uint64_t bytes, char *to)
{
    uint64_t done = 0;

    while (done < bytes) {
        const ssize_t got = pread(fd, to + done, bytes - done, (off_t)(offset + done));

        if (got <= 0 && (got == 0 || errno != EINTR))
            return false;
        if (got > 0 && got % MP_SPACE_PAGE_BYTES != 0)
            return false;
        done += got > 0 ? (uint64_t)got : 0;
    }
    return true;
}

static bool read_range(struct mp_paged *paged, uint32_t file, const struct range *range, char *to)
{
    const uint64_t bytes = range->end - range->begin;
    uint32_t align_bytes = 0;
    const int fd = mp_files_direct_fd(paged->experts.files, file, &align_bytes);

    if (fd >= 0 && align_bytes <= MP_SPACE_PAGE_BYTES && read_direct(fd, range->begin, bytes, to))
        return mp_files_check(paged->experts.files, file) == MP_OK;
    if (mp_files_read(paged->experts.files, file, range->begin, bytes, to) != MP_OK ||
        mp_files_check(paged->experts.files, file) != MP_OK)
        return false;
    (void)posix_fadvise(mp_files_fd(paged->experts.files, file), (off_t)range->begin, (off_t)bytes,
                        POSIX_FADV_DONTNEED);
    return true;
}

static bool replace(struct mp_paged_dense *dense, uint32_t file, const struct range *range)
{
    struct mp_paged *paged = dense->paged;
    const uint64_t bytes = range->end - range->begin;
    const char *at = mp_mappings_address(paged->mappings, file, range->begin, bytes);
    char *memory = at != NULL ? take_memory(paged, at, bytes) : NULL;
    bool right;

    if (memory == NULL)
        return false;
    right = read_range(paged, file, range, memory) && mp_mappings_own_file(paged->mappings, file) &&
            paged->host.real.mprotect(memory, bytes, PROT_READ) == 0 &&
            mp_mappings_replace(paged->mappings, file, range->begin, memory, bytes);
    if (!right)
        (void)paged->host.real.munmap(memory, bytes);
    mp_error_clear();
    return right;
}

static bool is_stopping(struct mp_paged_dense *dense, uint64_t more_bytes)
{
    bool stop;

    mp_lock(&dense->lock);
    dense->bytes += more_bytes;
    stop = dense->stop;
    mp_unlock(&dense->lock);
    return stop || atomic_load(&dense->paged->off);
}

/* Of a table, what is touched and nothing around it: its rows have nothing to do with each other.
 */
static void leave_tables(struct mp_paged *paged, uint32_t file)
{
    const uint64_t page = MP_SPACE_PAGE_BYTES;

    for (uint32_t i = 0; i < paged->experts.table_count; i++) {
        const struct mp_piece *table = &paged->experts.tables[i];
        const uint64_t begin = mp_round_down_u64(table->offset_bytes + page - 1, page);
        const uint64_t bytes = mp_round_down_u64(table->offset_bytes + table->bytes, page) - begin;
        char *at =
            table->file == file ? mp_mappings_address(paged->mappings, file, begin, bytes) : NULL;

        if (at != NULL)
            (void)paged->host.real.madvise(at, bytes, MADV_RANDOM);
    }
}

static void read_file(struct mp_paged_dense *dense, uint32_t file)
{
    struct range range = { 0, 0 };

    leave_tables(dense->paged, file);
    while (dense->paged->dense_fits &&
           next_range(&dense->paged->experts, file, range.end, &range)) {
        while (range.begin < range.end) {
            struct range chunk = range;
            bool right;

            if (chunk.end - chunk.begin > CHUNK_BYTES)
                chunk.end = chunk.begin + CHUNK_BYTES;
            right = replace(dense, file, &chunk);
            if (is_stopping(dense, right ? chunk.end - chunk.begin : 0))
                return;
            range.begin = chunk.end;
        }
    }
}

static void *run(void *arg)
{
    struct mp_paged_dense *dense = arg;
    const uint32_t files = mp_files_count(dense->paged->experts.files);

    mp_lock(&dense->lock);
    while (!dense->stop) {
        uint32_t file = 0;

        while (file < files && !dense->wanted[file])
            file++;
        dense->done = file == files;
        if (file == files) {
            mp_cond_wait(&dense->changed, &dense->lock);
            continue;
        }
        mp_unlock(&dense->lock);
        read_file(dense, file);
        mp_lock(&dense->lock);
        dense->wanted[file] = false;
    }
    mp_unlock(&dense->lock);
    return NULL;
}

struct mp_paged_dense *mp_paged_dense_create(struct mp_paged *paged)
{
    struct mp_paged_dense *dense = calloc(1, sizeof(*dense));

    if (dense == NULL)
        return NULL;
    dense->paged = paged;
    dense->done = true;
    dense->wanted = calloc(mp_files_count(paged->experts.files), sizeof(*dense->wanted));
    mp_mutex_init(&dense->lock, MP_LOCK_CONTEXT, "dense");
    mp_cond_init(&dense->changed);
    if (dense->wanted != NULL && mp_thread_start(&dense->thread, "mp-dense", run, dense) == 0)
        return dense;
    free(dense->wanted);
    free(dense);
    return NULL;
}

void mp_paged_dense_add(struct mp_paged_dense *dense, uint32_t file)
{
    if (dense == NULL)
        return;
    mp_lock(&dense->lock);
    dense->wanted[file] = true;
    dense->done = false;
    mp_cond_signal(&dense->changed);
    mp_unlock(&dense->lock);
}

bool mp_paged_dense_done(struct mp_paged_dense *dense, uint64_t *bytes_p)
{
    bool done;

    mp_lock(&dense->lock);
    done = dense->done;
    *bytes_p = dense->bytes;
    mp_unlock(&dense->lock);
    return done;
}

void mp_paged_dense_destroy(struct mp_paged_dense *dense)
{
    if (dense == NULL)
        return;
    mp_lock(&dense->lock);
    dense->stop = true;
    mp_cond_signal(&dense->changed);
    mp_unlock(&dense->lock);
    pthread_join(dense->thread, NULL);
    mp_cond_fini(&dense->changed);
    mp_mutex_fini(&dense->lock);
    free(dense->wanted);
    free(dense);
}
