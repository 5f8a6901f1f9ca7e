/*
 * What is known of units: what their bytes are, how often they are touched, in which tier they lie.
 */
#include "interpose/cuda/tiers_int.h"

/* The units of [address, +bytes) in the window that holds its first byte. */
struct units_in {
    struct tiers_window *window;
    uint32_t first, end;
};

static struct units_in units_in(struct mp_tiers *tiers, const void *address, uint64_t bytes)
{
    struct units_in in = { .window = mp_tiers_window_locked(tiers, address) };
    uint64_t at, left;

    if (in.window == NULL || bytes == 0)
        return (struct units_in){ NULL, 0, 0 };
    at = (uint64_t)((const char *)address - in.window->base);
    left = in.window->bytes - at;
    in.first = (uint32_t)(at / tiers->unit_bytes);
    in.end = (uint32_t)((at + (bytes < left ? bytes : left) - 1) / tiers->unit_bytes) + 1;
    return in;
}

enum mp_tier_kind mp_tiers_run(struct mp_tiers *tiers, const void *address, uint64_t bytes,
                               uint64_t *run_bytes_p)
{
    enum mp_tier_kind tier = MP_TIER_KIND_COUNT;
    struct units_in in;
    uint32_t end;

    *run_bytes_p = bytes;
    if (!mp_tiers_may_hold(tiers, (uintptr_t)address, bytes))
        return tier;
    mp_lock(&tiers->lock);
    in = units_in(tiers, address, bytes);
    if (in.window != NULL) {
        tier = in.window->units[in.first].frame.tier;
        end = in.first + 1;
        while (tier == MP_TIER_DEVICE && end < in.end &&
               in.window->units[end].frame.tier == MP_TIER_DEVICE)
            end++;
        if (end < in.end)
            *run_bytes_p =
                (uint64_t)(in.window->base + end * tiers->unit_bytes - (const char *)address);
    }
    mp_unlock(&tiers->lock);
    return tier;
}

enum mp_tiers_kind mp_tiers_kind_locked(const struct mp_tiers *tiers, const struct tiers_unit *unit)
{
    uint64_t other = tiers->unit_bytes;
    enum mp_tiers_kind most = MP_TIERS_EXPERT;

    for (int k = MP_TIERS_EXPERT; k < MP_TIERS_OTHER; k++) {
        other -= unit->kind_bytes[k] < other ? unit->kind_bytes[k] : other;
        if (unit->kind_bytes[k] > unit->kind_bytes[most])
            most = (enum mp_tiers_kind)k;
    }
    return unit->kind_bytes[most] >= other ? most : MP_TIERS_OTHER;
}

void mp_tiers_mark(struct mp_tiers *tiers, const void *address, uint64_t bytes,
                   enum mp_tiers_kind kind)
{
    struct units_in in;

    if (!mp_tiers_may_hold(tiers, (uintptr_t)address, bytes))
        return;
    mp_lock(&tiers->lock);
    in = units_in(tiers, address, bytes);
    for (uint32_t u = in.first; u < in.end; u++) {
        const char *begin = in.window->base + u * tiers->unit_bytes;
        const char *end = begin + tiers->unit_bytes, *last = (const char *)address + bytes;
        uint64_t part;

        begin = begin > (const char *)address ? begin : address;
        part = (uint64_t)((end < last ? end : last) - begin);
        for (int k = 0; k < MP_TIERS_KIND_COUNT; k++) { /* what was there before is gone */
            uint64_t *was = &in.window->units[u].kind_bytes[k];

            if (k != (int)kind)
                *was -= *was > tiers->unit_bytes - part ? *was - (tiers->unit_bytes - part) : 0;
        }
        in.window->units[u].kind_bytes[kind] += part;
        if (in.window->units[u].kind_bytes[kind] > tiers->unit_bytes)
            in.window->units[u].kind_bytes[kind] = tiers->unit_bytes;
    }
    atomic_store_explicit(&tiers->wanted, true, memory_order_relaxed);
    mp_unlock(&tiers->lock);
}

void mp_tiers_pin(struct mp_tiers *tiers, const void *address, uint64_t bytes)
{
    struct units_in in;

    if (!mp_tiers_may_hold(tiers, (uintptr_t)address, bytes))
        return;
    mp_lock(&tiers->lock);
    in = units_in(tiers, address, bytes);
    for (uint32_t u = in.first; u < in.end; u++)
        in.window->units[u].pinned = true;
    mp_unlock(&tiers->lock);
}

void mp_tiers_touch(struct mp_tiers *tiers, const void *address, uint64_t bytes)
{
    struct units_in in;

    if (!mp_tiers_may_hold(tiers, (uintptr_t)address, bytes))
        return;
    mp_lock(&tiers->lock);
    in = units_in(tiers, address, bytes);
    for (uint32_t u = in.first; u < in.end; u++) {
        struct tiers_unit *unit = &in.window->units[u];

        unit->heat += unit->heat < UINT32_MAX;
        tiers->stats.touches++;
        if (tiers->evict_ops->on_access != NULL)
            tiers->evict_ops->on_access(tiers->evict, unit->id, 1, tiers->now);
    }
    tiers->now += in.end > in.first;
    if (in.end > in.first)
        atomic_store_explicit(&tiers->wanted, true, memory_order_relaxed);
    mp_unlock(&tiers->lock);
}
