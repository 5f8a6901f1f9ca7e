/*
 * Moves: units that are wanted on the device change places with those that are not.
 *
 * A swap is two shifts. A shift copies a unit to the spare frame and lets that take its place; the
 * unit's old frame is the spare of the next. So a host unit shifts to the device spare, which
 * leaves a host spare, and then a device unit shifts to that. Where the second half fails the next
 * call begins with it.
 *
 * A worthier kind takes from a lesser one without asking. Among one kind the evict policy says who
 * leaves, and it does only for a unit that was touched clearly more often: a swap costs two copies.
 */
#include "interpose/cuda/tiers_int.h"

#include <inttypes.h>
#include <string.h>

#include "vmm/base/assert.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

#define TRIES 3
#define HALVE_EVERY 64 /* quiet points, after which touches count half */
#define CLEARLY 2      /* times as many touches, and two more */

static enum mp_status wait_for_copies(struct mp_tiers *tiers)
{
    const struct mp_backend_ops *ops = tiers->backend->ops;
    enum mp_status status = ops->event_record(tiers->backend, tiers->stream, 0);

    return status == MP_OK ? ops->event_wait(tiers->backend, tiers->stream, 0) : status;
}

/* Something failed after a copy was begun: nobody may free or remap what it touches before its end
 * was seen. Closing a stream sees it too. */
static void see_end(struct mp_tiers *tiers)
{
    const struct mp_backend_ops *ops = tiers->backend->ops;
    const struct mp_error before = *mp_error_last();

    if (wait_for_copies(tiers) != MP_OK) {
        ops->stream_close(tiers->backend, tiers->stream);
        tiers->stream = NULL;
        if (ops->stream_open(tiers->backend, &tiers->stream) != MP_OK)
            tiers->stream = NULL; /* nothing moves any more */
    }
    mp_error_set(&before);
}

static enum mp_status copy_to_spare(struct mp_tiers *tiers, const struct tiers_unit *unit)
{
    const enum mp_copy copy = unit->frame.tier == MP_TIER_HOST    ? MP_COPY_TO_DEVICE
                              : tiers->spare.tier == MP_TIER_HOST ? MP_COPY_TO_HOST
                                                                  : MP_COPY_ON_DEVICE;
    enum mp_status status =
        tiers->backend->ops->stream_copy(tiers->backend, tiers->stream, copy, tiers->spare.alias,
                                         unit->frame.alias, tiers->unit_bytes);

    if (status == MP_OK)
        status = wait_for_copies(tiers);
    if (status != MP_OK)
        see_end(tiers);
    return status;
}

/* A hole would end the program: one of the frames has to go there. True: it is the spare. */
static bool map_one_of(struct mp_tiers *tiers, struct tiers_unit *unit, char *place, bool *hole_p)
{
    const struct mp_backend_ops *ops = tiers->backend->ops;

    *hole_p = false;
    for (unsigned i = 0; i < TRIES; i++) {
        const struct mp_frame *frames[2] = { &tiers->spare, &unit->frame };

        for (unsigned f = 0; f < 2; f++) {
            const enum mp_status status = ops->window_map(tiers->backend, place, frames[f]);

            if (status == MP_OK)
                return f == 0;
            if (status == MP_ERR_BUSY) /* mapped, but not to be touched */
                (void)ops->window_unmap(tiers->backend, place, tiers->unit_bytes);
        }
    }
    *hole_p = true;
    return false;
}

/* The unit's bytes move to the spare, and the unit's frame is the spare. False: nothing changed. */
static bool shift(struct mp_tiers *tiers, uint32_t id)
{
    struct tiers_unit *unit = tiers->by_id[id];
    char *place = tiers->place_by_id[id];
    const enum mp_tier_kind from = unit->frame.tier, to = tiers->spare.tier;
    struct mp_frame old;
    enum mp_status status = copy_to_spare(tiers, unit);
    bool hole = false, moved = false;

    if (status == MP_OK)
        status = tiers->backend->ops->window_unmap(tiers->backend, place, tiers->unit_bytes);
    if (status == MP_OK)
        moved = map_one_of(tiers, unit, place, &hole);
    if (!moved) {
        tiers->stats.failed_moves++;
        mp_log_once(MP_LOG_WARN, "gpu", "a unit stays where it is: %s", mp_error_last()->text);
        if (hole) {
            tiers->stats.broken = true;
            mp_log_error("gpu", "%" PRIu64 " bytes at %p are not mapped any more: %s",
                         tiers->unit_bytes, (void *)place, mp_error_last()->text);
        }
        return false;
    }
    old = unit->frame;
    unit->frame = tiers->spare;
    tiers->spare = old;
    if (from == MP_TIER_DEVICE && to == MP_TIER_HOST)
        tiers->evict_ops->on_remove(tiers->evict, id, tiers->now);
    if (from == MP_TIER_HOST && to == MP_TIER_DEVICE)
        tiers->evict_ops->on_insert(tiers->evict, id, tiers->now);
    tiers->stats.moves++;
    tiers->stats.moved_bytes += tiers->unit_bytes;
    return true;
}

/* Of the host's units the worthiest, and among these the one touched most; none: id_count. */
static uint32_t most_wanted(const struct mp_tiers *tiers)
{
    uint32_t best = tiers->id_count;
    enum mp_tiers_kind best_kind = MP_TIERS_EXPERT;

    for (uint32_t id = 0; id < tiers->id_count; id++) {
        const struct tiers_unit *unit = tiers->by_id[id];
        enum mp_tiers_kind kind;

        if (unit == NULL || unit->frame.tier != MP_TIER_HOST || unit->pinned)
            continue;
        kind = mp_tiers_kind_locked(tiers, unit);
        if (best == tiers->id_count || kind > best_kind ||
            (kind == best_kind && unit->heat > tiers->by_id[best]->heat)) {
            best = id;
            best_kind = kind;
        }
    }
    return best;
}

/* Who leaves the device for a unit of this kind and heat; id_count: nobody. */
static uint32_t choose_victim(struct mp_tiers *tiers, uint32_t for_id, bool any)
{
    const struct tiers_unit *in = for_id < tiers->id_count ? tiers->by_id[for_id] : NULL;
    const enum mp_tiers_kind kind = in != NULL ? mp_tiers_kind_locked(tiers, in) : MP_TIERS_OTHER;
    enum mp_tiers_kind least = MP_TIERS_KIND_COUNT;
    struct mp_evict_query query = { .for_id = MP_EXPERT_NONE, .scope_layer = MP_LAYER_ANY };
    uint32_t out, count = 0;

    for (uint32_t id = 0; id < tiers->id_count; id++) {
        const struct tiers_unit *unit = tiers->by_id[id];

        tiers->evictable[id] = unit != NULL && unit->frame.tier == MP_TIER_DEVICE && !unit->pinned;
        if (tiers->evictable[id] && mp_tiers_kind_locked(tiers, unit) < least)
            least = mp_tiers_kind_locked(tiers, unit);
    }
    for (uint32_t id = 0; id < tiers->id_count; id++) {
        if (tiers->evictable[id])
            tiers->evictable[id] = mp_tiers_kind_locked(tiers, tiers->by_id[id]) == least;
        count += tiers->evictable[id];
    }
    if (count == 0 || (!any && least > kind))
        return tiers->id_count;
    query.experts = tiers->id_count < 4096 ? tiers->id_count : 4096;
    query.evictable = tiers->evictable;
    out = tiers->evict_ops->pick(tiers->evict, &query);
    if (out >= tiers->id_count || !tiers->evictable[out])
        return tiers->id_count;
    if (!any && least == kind &&
        (uint64_t)in->heat < CLEARLY * (uint64_t)tiers->by_id[out]->heat + 2)
        return tiers->id_count;
    return out;
}

static void cool(struct mp_tiers *tiers)
{
    if (++tiers->quiet_points % HALVE_EVERY != 0)
        return;
    for (uint32_t id = 0; id < tiers->id_count; id++) {
        if (tiers->by_id[id] != NULL)
            tiers->by_id[id]->heat /= 2;
    }
}

/* One swap, or what is left of one. False: nothing is worth it, or nothing goes. */
static bool swap(struct mp_tiers *tiers, unsigned *moved_p)
{
    uint32_t in = tiers->id_count, out;

    if (tiers->spare.tier == MP_TIER_DEVICE) {
        in = most_wanted(tiers);
        if (in == tiers->id_count || choose_victim(tiers, in, false) == tiers->id_count ||
            !shift(tiers, in))
            return false;
        ++*moved_p;
    }
    /* Somebody has to leave now; not the one that came. */
    if (in < tiers->id_count)
        tiers->by_id[in]->pinned = true;
    out = choose_victim(tiers, tiers->id_count, true);
    if (in < tiers->id_count)
        tiers->by_id[in]->pinned = false;
    if (out == tiers->id_count || !shift(tiers, out))
        return false;
    ++*moved_p;
    return true;
}

unsigned mp_tiers_move(struct mp_tiers *tiers, unsigned swaps_max)
{
    unsigned moved = 0;
    bool more = true;

    mp_lock(&tiers->lock);
    cool(tiers);
    for (unsigned s = 0; s < swaps_max && more; s++)
        more = !tiers->stats.broken && tiers->stream != NULL && tiers->spare.bytes > 0 &&
               swap(tiers, &moved);
    if (!more) /* nothing is left to be done until something is touched again */
        atomic_store_explicit(&tiers->wanted, false, memory_order_relaxed);
    mp_unlock(&tiers->lock);
    return moved;
}
