/*
 * Sources of copies that a program makes itself: found, made resident, pinned.
 *
 * llama.cpp reads the ids of a layer to the host, waits for them, and then queues a copy for each
 * expert, or for each run of neighbours, first of one tensor, then of the next. So the ids of the
 * last read are those of the copies that follow, if they name what is copied; where they do not, a
 * copy speaks for itself, and its experts are read one after the other.
 *
 * Slots lie in one range of addresses, which is pinned in chunks when the first copy is made. A
 * piece that crosses a cut is copied from the mapping: no copy may touch two pinned pieces.
 */
#include "interpose/pager/uploads.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "vmm/base/error.h"

#define TYPE_I32 26
#define IDS_MAX 65536u
#define CHUNK_BYTES (UINT64_C(256) << 20)
/* A copy may be longer than what it copies: kernels read whole blocks, and must not find NaNs. */
#define TAIL_BYTES 4096u

struct ids {
    uint32_t tokens, k;
    int32_t list[]; // (tokens, k)
};

static _Thread_local struct ids *last; /* one for each thread, kept */

void mp_upload_note_ids(const struct mp_ggml_tensor *ids, const void *data, size_t bytes)
{
    const int64_t k = ids->ne[0], tokens = ids->ne[1];

    if (ids->type != TYPE_I32 || k <= 0 || tokens <= 0 || ids->ne[2] != 1 || ids->ne[3] != 1 ||
        k > IDS_MAX || tokens > IDS_MAX / k || ids->nb[0] != sizeof(int32_t) ||
        (uint64_t)(tokens - 1) * ids->nb[1] + (uint64_t)k * sizeof(int32_t) > bytes)
        return;
    if (last == NULL)
        last = malloc(sizeof(*last) + IDS_MAX * sizeof(int32_t));
    if (last == NULL)
        return;
    last->tokens = (uint32_t)tokens;
    last->k = (uint32_t)k;
    for (int64_t t = 0; t < tokens; t++)
        memcpy(last->list + t * k, (const char *)data + (size_t)t * ids->nb[1],
               (size_t)k * sizeof(int32_t));
}

/* ---- which experts */

struct source {
    uint32_t layer, first, last; /* experts */
    uint64_t at;                 /* of the copy within the first expert */
    uint64_t expert_bytes;
};

static bool find_source(struct mp_paged *paged, const void *data, size_t bytes,
                        struct source *source)
{
    const struct mp_expert_tensor *tensor;
    uint64_t offset;
    uint32_t file;

    if (bytes == 0 || !mp_mappings_locate(paged->mappings, data, &file, &offset))
        return false;
    tensor = mp_experts_find(&paged->experts, file, offset);
    if (tensor == NULL)
        return false;
    offset -= tensor->offset_bytes;
    source->layer = tensor->layer;
    source->first = (uint32_t)(offset / tensor->expert_bytes);
    source->at = offset % tensor->expert_bytes;
    source->expert_bytes = tensor->expert_bytes;
    source->last = (uint32_t)((offset + bytes - 1) / tensor->expert_bytes);
    if (source->last > source->first && (offset + bytes) % tensor->expert_bytes <= TAIL_BYTES &&
        (offset + bytes) % tensor->expert_bytes != 0)
        source->last--;
    return source->last < paged->experts.experts;
}

/* Do the ids that were read name every expert of the copy? */
static bool are_routed(const struct source *source)
{
    for (uint32_t e = source->first; e <= source->last; e++) {
        uint32_t i = 0;

        while (i < last->tokens * last->k && last->list[i] != (int32_t)e)
            i++;
        if (i == last->tokens * last->k)
            return false;
    }
    return true;
}

/* One token that has chosen what is copied. */
static void route_as_one_token(const struct source *source, int32_t *ids,
                               struct mp_routing *routing)
{
    const uint32_t count = source->last - source->first + 1;

    for (uint32_t i = 0; i < count; i++)
        ids[i] = (int32_t)(source->first + i);
    *routing = (struct mp_routing){ .tokens = 1, .k = count, .ids = (const char *)ids };
}

static void make_routing(const struct source *source, int32_t *ids, struct mp_routing *routing)
{
    if (last != NULL && are_routed(source))
        *routing = (struct mp_routing){ .tokens = last->tokens,
                                        .k = last->k,
                                        .ids = (const char *)last->list };
    else
        route_as_one_token(source, ids, routing);
    routing->layer = source->layer;
    routing->rank_stride = sizeof(int32_t);
    routing->token_stride = routing->k * sizeof(int32_t);
    routing->key = mp_paged_key(routing);
}

/* ---- pinned slots */

typedef int pin_fn(void *address, size_t bytes, unsigned flags);
typedef int unpin_fn(void *address);

/* All slots, as far as the driver lets us; at the first copy, with `mutex` held. */
static void pin_slots(struct mp_paged *paged, const void *site, const char *slot)
{
    struct mp_uploads *uploads = &paged->uploads;
    pin_fn *pin = (pin_fn *)paged->host.find(site, "cudaHostRegister");
    uint64_t offset;
    const int fd = mp_backend_host_file(paged->backend, slot, &offset);
    struct stat stat;

    uploads->tried = true;
    uploads->unpin = paged->host.find(site, "cudaHostUnregister");
    if (pin == NULL || uploads->unpin == NULL || fd < 0 || fstat(fd, &stat) != 0)
        return;
    uploads->base = (char *)(uintptr_t)slot - offset;
    while (uploads->pinned_bytes < (uint64_t)stat.st_size) {
        const uint64_t left = (uint64_t)stat.st_size - uploads->pinned_bytes;
        const uint64_t bytes = left < CHUNK_BYTES ? left : CHUNK_BYTES;
        const int error = pin(uploads->base + uploads->pinned_bytes, bytes, 1 /* portable */);

        if (error != 0) {
            mp_log_warn("preload",
                        "%" PRIu64 " of %" PRIu64 " bytes of expert slots are pinned (error %d); "
                        "experts in the others are copied to the device through a buffer",
                        uploads->pinned_bytes, (uint64_t)stat.st_size, error);
            break;
        }
        uploads->pinned_bytes += bytes;
    }
    mp_log_info("preload", "%" PRIu64 " bytes of expert slots are pinned", uploads->pinned_bytes);
}

/* Is [address, +bytes) in one pinned chunk? */
static bool is_pinned(const struct mp_uploads *uploads, const char *address, uint64_t bytes)
{
    const uint64_t at = (uint64_t)(address - uploads->base);

    return uploads->base != NULL && address >= uploads->base &&
           at + bytes <= uploads->pinned_bytes &&
           at / CHUNK_BYTES == (at + bytes - 1) / CHUNK_BYTES;
}

/* Where the open layer has the expert's piece that `data` is in; NULL: in no pinned slot. */
static const void *find_alias(struct mp_paged *paged, const void *site, const struct source *source,
                              const void *data, size_t bytes)
{
    const uint32_t unit = source->layer * paged->experts.experts + source->first;
    const struct mp_unit *pieces = &paged->experts.units[unit];
    const char *alias;
    uint64_t offset;
    uint32_t file, need = 0, k = 0;

    while (need < paged->need_count && paged->needs[need].expert != source->first)
        need++;
    if (!paged->open || paged->layer != source->layer || need == paged->need_count ||
        !paged->leased[need] || !mp_mappings_locate(paged->mappings, data, &file, &offset))
        return NULL;
    while (k < pieces->piece_count &&
           (pieces->pieces[k].file != file || offset < pieces->pieces[k].offset_bytes ||
            offset - pieces->pieces[k].offset_bytes >= pieces->pieces[k].bytes))
        k++;
    /* A tail that is not the expert's is only there as far as its last page goes. */
    if (k == pieces->piece_count ||
        offset + bytes >
            (pieces->pieces[k].offset_bytes + pieces->pieces[k].bytes + MP_SPACE_PAGE_BYTES - 1) /
                MP_SPACE_PAGE_BYTES * MP_SPACE_PAGE_BYTES)
        return NULL;
    alias = (const char *)paged->slots[need][k] + (offset - pieces->pieces[k].offset_bytes);
    if (!paged->uploads.tried)
        pin_slots(paged, site, alias);
    return is_pinned(&paged->uploads, alias, bytes) ? alias : NULL;
}

/* From now on a copy from the open layer's slots is under way. NULL: nobody could wait for it. */
static const void *begin_copy(struct mp_paged *paged, const void *site, void *backend,
                              const void *alias)
{
    struct mp_uploads *uploads = &paged->uploads;

    if (uploads->synchronize == NULL)
        uploads->synchronize = paged->host.find(site, "ggml_backend_synchronize");
    if (uploads->synchronize == NULL)
        return NULL;
    if (uploads->backend != backend)
        mp_upload_drain(paged);
    uploads->backend = backend;
    uploads->owner = pthread_self();
    uploads->copies++;
    return alias;
}

/* ---- together */

/* From where the expert source->first is copied, `bytes` of it. */
static const void *resolve_source(struct mp_paged *paged, const void *site, void *backend,
                                  const struct source *source, const void *data, size_t bytes)
{
    const void *alias = NULL;

    pthread_mutex_lock(&paged->mutex);
    if (!mp_upload_blocks(paged))
        alias = find_alias(paged, site, source, data, bytes);
    if (alias != NULL)
        alias = begin_copy(paged, site, backend, alias);
    pthread_mutex_unlock(&paged->mutex);
    return alias != NULL ? alias : data;
}

/* A copy is made from a slot that is leased, and it is when all of it has come. */
static void wait_for_all(struct mp_paged *paged, uint32_t unit, uint64_t key)
{
    for (uint32_t k = 0; k < paged->experts.units[unit].piece_count; k++)
        mp_paged_wait(paged, unit, k, key);
}

/* Expert by expert, so that the first is under way while the next is waited for. */
static void copy_experts(struct mp_paged *paged, const void *site, const struct mp_copy_call *copy,
                         struct source source, uint64_t key)
{
    const uint64_t expert_bytes = source.expert_bytes;
    size_t done = 0;

    for (; source.first <= source.last; source.first++) {
        const char *from = (const char *)copy->data + done;
        const size_t bytes =
            source.first == source.last ? copy->bytes - done : (size_t)(expert_bytes - source.at);

        wait_for_all(paged, source.layer * paged->experts.experts + source.first, key);
        copy->make(copy->ctx, resolve_source(paged, site, copy->backend, &source, from, bytes),
                   done, bytes);
        source.at = 0;
        done += bytes;
    }
}

void mp_upload_copy(struct mp_paged *paged, const void *site, const struct mp_copy_call *copy)
{
    struct mp_routing routing;
    struct source source;
    int32_t *ids = NULL;

    if (find_source(paged, copy->data, copy->bytes, &source) &&
        source.last - source.first + 1 < paged->experts.experts)
        ids = malloc((source.last - source.first + 1) * sizeof(*ids));
    if (ids == NULL) {
        copy->make(copy->ctx, copy->data, 0, copy->bytes);
        return;
    }
    make_routing(&source, ids, &routing);
    mp_paged_route(paged, &routing);
    free(ids);
    copy_experts(paged, site, copy, source, routing.key);
}

void mp_upload_drain(struct mp_paged *paged)
{
    void (*synchronize)(void *) = (void (*)(void *))paged->uploads.synchronize;

    if (paged->uploads.backend != NULL)
        synchronize(paged->uploads.backend);
    paged->uploads.backend = NULL;
}

bool mp_upload_blocks(const struct mp_paged *paged)
{
    return paged->uploads.backend != NULL && !pthread_equal(paged->uploads.owner, pthread_self());
}

/* Also called from within mp_upload_drain(), whose caller holds `mutex`. Another holder waits for
 * the backend itself, or finds that the layer cannot be closed yet. */
void mp_upload_synchronized(struct mp_paged *paged, const void *backend)
{
    if (pthread_mutex_trylock(&paged->mutex) != 0)
        return;
    if (paged->uploads.backend == backend)
        paged->uploads.backend = NULL;
    pthread_mutex_unlock(&paged->mutex);
}

void mp_upload_backend_ends(struct mp_paged *paged, const void *backend)
{
    pthread_mutex_lock(&paged->mutex);
    if (paged->uploads.backend == backend)
        mp_upload_drain(paged);
    pthread_mutex_unlock(&paged->mutex);
}

void mp_upload_read_ahead(struct mp_paged *paged, const void *data, size_t bytes)
{
    const uintptr_t begin = (uintptr_t)data / MP_SPACE_PAGE_BYTES * MP_SPACE_PAGE_BYTES;
    const uintptr_t end = (uintptr_t)data + bytes;
    struct mp_paged_part part;

    if (mp_mappings_find_part(paged->mappings, data, bytes, &part))
        (void)paged->host.real.madvise((void *)begin, end - begin, MADV_WILLNEED);
}

void mp_upload_close(struct mp_paged *paged)
{
    unpin_fn *unpin = (unpin_fn *)paged->uploads.unpin;

    /* Nothing is pinned without `unpin`. */
    for (uint64_t at = 0; at < paged->uploads.pinned_bytes; at += CHUNK_BYTES)
        (void)unpin(paged->uploads.base + at);
    paged->uploads.pinned_bytes = 0;
}
