/*
 * Windows: reserved, mapped as a whole, given back.
 *
 * Units have numbers for the evict policy, which wants to know at the start how many there can be:
 * as many as both budgets hold. It sees them as experts of as few layers as its limits allow.
 */
#include "interpose/cuda/tiers_int.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/base/assert.h"
#include "vmm/base/checked.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

#define EXPERTS_MAX 4096u
#define IDS_MAX (1u << 20)

static enum mp_status make_policy(struct mp_tiers *tiers, const char *name)
{
    const struct mp_policy_info *info = mp_policy_find(MP_POLICY_EVICT, name);
    struct mp_shape shape = { .top_k = 1, .tokens_max = 1, .expert_bytes = tiers->unit_bytes };

    if (info == NULL || info->config_size > 0 || info->calibrated || info->costs)
        return mp_fail(MP_ERR_CONFIG, "E_POLICY",
                       "evict policy '%s' cannot place units of a window; lfru, lru and lfu can",
                       name);
    shape.experts = tiers->id_count < EXPERTS_MAX ? tiers->id_count : EXPERTS_MAX;
    shape.layers = (tiers->id_count + shape.experts - 1) / shape.experts;
    shape.slots = tiers->id_count;
    tiers->evict_ops = mp_container_of(info, const struct mp_evict_ops, info);
    return tiers->evict_ops->create(NULL, &shape, &tiers->evict);
}

static enum mp_status make_ids(struct mp_tiers *tiers)
{
    const uint64_t count = (tiers->device_bytes + tiers->host_bytes) / tiers->unit_bytes;
    const uint64_t padded = count + EXPERTS_MAX; /* the policy's last layer may be short */

    if (tiers->device_bytes < 2 * tiers->unit_bytes || count > IDS_MAX)
        return mp_fail(MP_ERR_CONFIG, "E_BUDGET_SMALL",
                       "a device budget of %" PRIu64 " bytes and %" PRIu64
                       " of the host make %" PRIu64 " units of %" PRIu64
                       " bytes, need 2 of the device and at most %u",
                       tiers->device_bytes, tiers->host_bytes, count, tiers->unit_bytes, IDS_MAX);
    tiers->id_count = (uint32_t)count;
    tiers->by_id = calloc(padded, sizeof(tiers->by_id[0]));
    tiers->place_by_id = calloc(padded, sizeof(tiers->place_by_id[0]));
    tiers->evictable = calloc(padded, 1);
    if (tiers->by_id == NULL || tiers->place_by_id == NULL || tiers->evictable == NULL)
        return mp_fail_no_memory("the units of windows", padded * 17);
    return MP_OK;
}

enum mp_status mp_tiers_open(const struct mp_tiers_config *config, struct mp_tiers **tiers_p)
{
    const struct mp_backend_caps *caps = &config->backend->caps;
    struct mp_tiers *tiers;
    enum mp_status status;

    if (!caps->windows || !(caps->tiers & 1u << MP_TIER_HOST))
        return mp_fail(MP_ERR_UNSUPPORTED, "E_CUDA_OFF", "this device has no windows");
    tiers = calloc(1, sizeof(*tiers));
    if (tiers == NULL)
        return mp_fail_no_memory("windows", sizeof(*tiers));
    tiers->backend = config->backend;
    tiers->device_bytes = config->device_bytes;
    tiers->host_bytes = config->host_bytes;
    mp_mutex_init(&tiers->lock, MP_LOCK_REGION, "tiers");
    if (!mp_round_up_u64(config->unit_bytes, caps->granule_bytes, &tiers->unit_bytes) ||
        tiers->unit_bytes == 0)
        tiers->unit_bytes = caps->granule_bytes;
    status = make_ids(tiers);
    if (status == MP_OK)
        status = make_policy(tiers, config->evict);
    if (status == MP_OK)
        status = tiers->backend->ops->stream_open(tiers->backend, &tiers->stream);
    if (status != MP_OK) {
        mp_tiers_close(tiers);
        return status;
    }
    *tiers_p = tiers;
    return MP_OK;
}

void mp_tiers_end(struct mp_tiers *tiers)
{
    while (tiers->windows != NULL)
        (void)mp_tiers_free(tiers, tiers->windows->base);
    mp_lock(&tiers->lock);
    if (tiers->spare.bytes > 0)
        mp_tiers_drop_locked(tiers, &tiers->spare);
    if (tiers->stream != NULL)
        tiers->backend->ops->stream_close(tiers->backend, tiers->stream);
    tiers->stream = NULL;
    tiers->id_count = 0;
    mp_unlock(&tiers->lock);
}

void mp_tiers_close(struct mp_tiers *tiers)
{
    if (tiers == NULL)
        return;
    mp_tiers_end(tiers);
    if (tiers->evict != NULL)
        tiers->evict_ops->destroy(tiers->evict);
    free(tiers->by_id);
    free(tiers->place_by_id);
    free(tiers->evictable);
    mp_mutex_fini(&tiers->lock);
    free(tiers);
}

/* ---- frames */

enum mp_status mp_tiers_frame_locked(struct mp_tiers *tiers, enum mp_tier_kind tier,
                                     struct mp_frame *frame_p)
{
    uint64_t *used = tier == MP_TIER_DEVICE ? &tiers->device_used : &tiers->host_used;
    const uint64_t budget = tier == MP_TIER_DEVICE ? tiers->device_bytes : tiers->host_bytes;
    enum mp_status status;

    mp_assert_held(&tiers->lock);
    if (*used + tiers->unit_bytes > budget)
        return MP_ERR_NO_SPACE;
    status = tiers->backend->ops->frame_create(tiers->backend, tier, tiers->unit_bytes, frame_p);
    if (status == MP_OK)
        *used += tiers->unit_bytes;
    return status;
}

void mp_tiers_drop_locked(struct mp_tiers *tiers, struct mp_frame *frame)
{
    uint64_t *used = frame->tier == MP_TIER_DEVICE ? &tiers->device_used : &tiers->host_used;

    mp_assert_held(&tiers->lock);
    *used -= tiers->unit_bytes;
    tiers->backend->ops->frame_destroy(tiers->backend, frame);
}

enum mp_status mp_tiers_spare_locked(struct mp_tiers *tiers)
{
    return tiers->spare.bytes > 0 ? MP_OK
                                  : mp_tiers_frame_locked(tiers, MP_TIER_DEVICE, &tiers->spare);
}

/* ---- units */

static bool name_unit(struct mp_tiers *tiers, struct tiers_unit *unit, char *place)
{
    for (uint32_t id = 0; id < tiers->id_count; id++) {
        if (tiers->by_id[id] == NULL) {
            tiers->by_id[id] = unit;
            tiers->place_by_id[id] = place;
            unit->id = id;
            return true;
        }
    }
    return false;
}

static void end_unit(struct mp_tiers *tiers, struct tiers_unit *unit, char *place)
{
    if (unit->frame.bytes == 0)
        return;
    if (unit->frame.tier == MP_TIER_DEVICE)
        tiers->evict_ops->on_remove(tiers->evict, unit->id, tiers->now);
    tiers->by_id[unit->id] = NULL;
    if (tiers->backend->ops->window_unmap(tiers->backend, place, tiers->unit_bytes) == MP_OK)
        mp_tiers_drop_locked(tiers, &unit->frame);
    else
        tiers->stats.lost_bytes += tiers->unit_bytes; /* the frame stays where it is mapped */
    unit->frame.bytes = 0;
}

static enum mp_status make_unit(struct mp_tiers *tiers, struct tiers_unit *unit, char *place)
{
    enum mp_status status = mp_tiers_frame_locked(tiers, MP_TIER_DEVICE, &unit->frame);

    if (status == MP_ERR_NO_SPACE)
        status = mp_tiers_frame_locked(tiers, MP_TIER_HOST, &unit->frame);
    if (status != MP_OK)
        return status;
    if (!name_unit(tiers, unit, place)) {
        mp_tiers_drop_locked(tiers, &unit->frame);
        unit->frame.bytes = 0;
        return MP_ERR_NO_SPACE;
    }
    status = tiers->backend->ops->window_map(tiers->backend, place, &unit->frame);
    if (status == MP_OK) {
        if (unit->frame.tier == MP_TIER_DEVICE)
            tiers->evict_ops->on_insert(tiers->evict, unit->id, tiers->now);
        return MP_OK;
    }
    tiers->by_id[unit->id] = NULL;
    if (status != MP_ERR_BUSY)
        mp_tiers_drop_locked(tiers, &unit->frame);
    else
        tiers->stats.lost_bytes += tiers->unit_bytes;
    unit->frame.bytes = 0;
    return status;
}

/* ---- windows */

static void widen(struct mp_tiers *tiers, const struct tiers_window *window)
{
    const uintptr_t low = (uintptr_t)window->base, high = low + window->bytes;

    if (tiers->windows == NULL || low < atomic_load_explicit(&tiers->low, memory_order_relaxed))
        atomic_store_explicit(&tiers->low, low, memory_order_relaxed);
    if (high > atomic_load_explicit(&tiers->high, memory_order_relaxed))
        atomic_store_explicit(&tiers->high, high, memory_order_relaxed);
}

static void end_window(struct mp_tiers *tiers, struct tiers_window *window)
{
    const uint64_t lost = tiers->stats.lost_bytes;

    for (uint32_t u = 0; u < window->unit_count; u++)
        end_unit(tiers, &window->units[u], window->base + u * tiers->unit_bytes);
    if (tiers->stats.lost_bytes == lost)
        tiers->backend->ops->window_free(tiers->backend, window->base, window->bytes);
    free(window->units);
    free(window);
}

static enum mp_status map_all(struct mp_tiers *tiers, struct tiers_window *window)
{
    enum mp_status status = mp_tiers_spare_locked(tiers);

    for (uint32_t u = 0; u < window->unit_count && status == MP_OK; u++)
        status = make_unit(tiers, &window->units[u], window->base + u * tiers->unit_bytes);
    return status;
}

static enum mp_status draft(struct mp_tiers *tiers, uint64_t bytes, struct tiers_window **window_p)
{
    struct tiers_window *window = calloc(1, sizeof(*window));
    enum mp_status status = MP_OK;
    void *base = NULL;

    if (window == NULL || !mp_round_up_u64(bytes, tiers->unit_bytes, &window->bytes) ||
        window->bytes / tiers->unit_bytes > tiers->id_count) {
        status = window == NULL ? mp_fail_no_memory("a window", sizeof(*window)) : MP_ERR_NO_SPACE;
        free(window);
        return status;
    }
    window->unit_count = (uint32_t)(window->bytes / tiers->unit_bytes);
    window->units = calloc(window->unit_count, sizeof(window->units[0]));
    if (window->units == NULL)
        status = mp_fail_no_memory("the units of a window",
                                   window->unit_count * sizeof(window->units[0]));
    if (status == MP_OK)
        status = tiers->backend->ops->window_reserve(tiers->backend, window->bytes, &base);
    if (status != MP_OK) {
        free(window->units);
        free(window);
        return status;
    }
    window->base = base;
    *window_p = window;
    return MP_OK;
}

enum mp_status mp_tiers_reserve(struct mp_tiers *tiers, uint64_t bytes, void **address_p)
{
    struct tiers_window *window = NULL;
    enum mp_status status;

    mp_lock(&tiers->lock);
    status = bytes > 0 ? draft(tiers, bytes, &window)
                       : mp_fail(MP_ERR_INVALID, "E_INTERNAL", "a window of no bytes");
    if (status == MP_OK)
        status = map_all(tiers, window);
    if (status == MP_OK) {
        widen(tiers, window);
        window->next = tiers->windows;
        tiers->windows = window;
        tiers->stats.windows++;
        tiers->stats.made++;
        *address_p = window->base;
    } else {
        tiers->stats.refused++;
        if (window != NULL)
            end_window(tiers, window);
    }
    mp_unlock(&tiers->lock);
    return status;
}

bool mp_tiers_free(struct mp_tiers *tiers, const void *address)
{
    struct tiers_window **link = &tiers->windows, *window;

    mp_lock(&tiers->lock);
    while (*link != NULL && (*link)->base != address)
        link = &(*link)->next;
    window = *link;
    if (window != NULL) {
        *link = window->next;
        tiers->stats.windows--;
        end_window(tiers, window);
        if (tiers->windows == NULL) {
            atomic_store_explicit(&tiers->high, 0, memory_order_relaxed);
            if (tiers->spare.bytes > 0)
                mp_tiers_drop_locked(tiers, &tiers->spare);
        }
    }
    mp_unlock(&tiers->lock);
    return window != NULL;
}

/* ---- what lies where */

struct tiers_window *mp_tiers_window_locked(struct mp_tiers *tiers, const void *address)
{
    struct tiers_window *window = tiers->windows;

    mp_assert_held(&tiers->lock);
    while (window != NULL && ((const char *)address < window->base ||
                              (const char *)address >= window->base + window->bytes))
        window = window->next;
    return window;
}

bool mp_tiers_holds(struct mp_tiers *tiers, const void *address)
{
    bool holds = false;

    if (mp_tiers_may_hold(tiers, (uintptr_t)address, 1)) {
        mp_lock(&tiers->lock);
        holds = mp_tiers_window_locked(tiers, address) != NULL;
        mp_unlock(&tiers->lock);
    }
    return holds;
}

uint64_t mp_tiers_window_bytes(struct mp_tiers *tiers, const void *address)
{
    const struct tiers_window *window;
    uint64_t bytes;

    mp_lock(&tiers->lock);
    window = mp_tiers_window_locked(tiers, address);
    bytes = window != NULL && window->base == address ? window->bytes : 0;
    mp_unlock(&tiers->lock);
    return bytes;
}

bool mp_tiers_find_window(struct mp_tiers *tiers, const void **address_p, uint64_t *bytes_p)
{
    bool found;

    mp_lock(&tiers->lock);
    found = tiers->windows != NULL;
    if (found) {
        *address_p = tiers->windows->base;
        *bytes_p = tiers->windows->bytes;
    }
    mp_unlock(&tiers->lock);
    return found;
}

bool mp_tiers_is_begin(struct mp_tiers *tiers, const void *address)
{
    return mp_tiers_window_bytes(tiers, address) > 0;
}

/* ---- facts */

bool mp_tiers_wants(const struct mp_tiers *tiers)
{
    return atomic_load_explicit(&tiers->wanted, memory_order_relaxed);
}

void mp_tiers_room(struct mp_tiers *tiers, uint64_t *device_bytes_p, uint64_t *host_bytes_p)
{
    mp_lock(&tiers->lock);
    *device_bytes_p =
        tiers->device_bytes > tiers->device_used ? tiers->device_bytes - tiers->device_used : 0;
    *host_bytes_p = tiers->host_bytes - tiers->host_used;
    mp_unlock(&tiers->lock);
}

void mp_tiers_set_device_budget(struct mp_tiers *tiers, uint64_t bytes)
{
    mp_lock(&tiers->lock);
    tiers->device_bytes = bytes;
    mp_unlock(&tiers->lock);
}

void mp_tiers_get_stats(struct mp_tiers *tiers, struct mp_tiers_stats *stats)
{
    mp_lock(&tiers->lock);
    *stats = tiers->stats;
    stats->units = stats->device_units = 0;
    for (const struct tiers_window *w = tiers->windows; w != NULL; w = w->next) {
        stats->units += w->unit_count;
        for (uint32_t u = 0; u < w->unit_count; u++)
            stats->device_units += w->units[u].frame.tier == MP_TIER_DEVICE;
    }
    mp_unlock(&tiers->lock);
}

bool mp_tiers_check(struct mp_tiers *tiers)
{
    uint64_t used[2] = { 0, 0 }, named = 0, units = 0;
    bool ok = true;

    mp_lock(&tiers->lock);
    for (const struct tiers_window *w = tiers->windows; w != NULL; w = w->next) {
        for (uint32_t u = 0; u < w->unit_count; u++) {
            const struct tiers_unit *unit = &w->units[u];

            ok &= unit->frame.bytes == tiers->unit_bytes && tiers->by_id[unit->id] == unit &&
                  tiers->place_by_id[unit->id] == w->base + u * tiers->unit_bytes;
            used[unit->frame.tier == MP_TIER_HOST] += unit->frame.bytes;
            units++;
        }
    }
    if (tiers->spare.bytes > 0)
        used[tiers->spare.tier == MP_TIER_HOST] += tiers->spare.bytes;
    for (uint32_t id = 0; id < tiers->id_count; id++)
        named += tiers->by_id[id] != NULL;
    ok &= named == units;
    if (tiers->stats.lost_bytes == 0)
        ok &= used[0] == tiers->device_used && used[1] == tiers->host_used;
    mp_unlock(&tiers->lock);
    return ok;
}
