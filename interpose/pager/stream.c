/*
 * Experts that there is no room for: a prompt's layer may need more of them than the budget holds.
 * They are read where they are, in the file's mapping, once each. The kernel is advised to read the
 * next ones ahead and to drop those already used, so that neither side waits and nothing else is
 * evicted.
 */
#include <fcntl.h>
#include <sys/mman.h>

#include "interpose/pager/paged.h"
#include "vmm/base/checked.h"

/* What is on its way at a time. */
#define AHEAD_BYTES (UINT64_C(16) << 20)
#define AHEAD_MAX 16

/* Whole pages of an expert in one tensor, and where they are mapped; NULL: nowhere. */
static char *find(struct mp_paged *paged, const struct mp_expert_tensor *tensor, uint32_t expert,
                  uint64_t *begin_p, uint64_t *bytes_p)
{
    const uint64_t page = MP_SPACE_PAGE_BYTES;
    const uint64_t at = tensor->offset_bytes + expert * tensor->expert_bytes;
    const uint64_t begin = mp_round_down_u64(at + page - 1, page);
    const uint64_t end = mp_round_down_u64(at + tensor->expert_bytes, page);

    *begin_p = begin;
    *bytes_p = end > begin ? end - begin : 0;
    return end > begin ? mp_mappings_address(paged->mappings, tensor->file, begin, end - begin)
                       : NULL;
}

static bool is_in_place(const struct mp_paged *paged, const struct mp_expert_tensor *tensor,
                        uint32_t expert)
{
    const uint32_t unit = tensor->layer * paged->experts.experts + expert;

    return atomic_load_explicit(&paged->ready[unit], memory_order_acquire) == MP_READY_IN_PLACE;
}

void mp_paged_stream(struct mp_paged *paged, const struct mp_expert_tensor *tensor, uint32_t expert)
{
    const struct mp_real *real = &paged->host.real;
    uint64_t begin, bytes, ahead_bytes = 0;
    char *at;

    for (uint32_t e = expert + 1, n = 0;
         e < paged->experts.experts && n < AHEAD_MAX && ahead_bytes < AHEAD_BYTES; e++) {
        if (!is_in_place(paged, tensor, e))
            continue;
        n++;
        ahead_bytes += tensor->expert_bytes;
        at = find(paged, tensor, e, &begin, &bytes);
        if (at != NULL)
            (void)real->madvise(at, bytes, MADV_WILLNEED);
    }
    /* One behind the last: other threads may still be at that. */
    for (uint32_t e = expert, n = 0; e-- > 0 && n < 2;) {
        if (!is_in_place(paged, tensor, e) || n++ == 0)
            continue;
        at = find(paged, tensor, e, &begin, &bytes);
        if (at == NULL)
            continue;
        (void)real->madvise(at, bytes, MADV_DONTNEED);
        (void)posix_fadvise(mp_files_fd(paged->experts.files, tensor->file), (off_t)begin,
                            (off_t)bytes, POSIX_FADV_DONTNEED);
    }
}
