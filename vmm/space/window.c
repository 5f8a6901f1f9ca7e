/*
 * Places of units in windows, and the mappings there; see window.h. The space decides which unit
 * gets which slot.
 */
#include "vmm/space/window.h"

#include <inttypes.h>
#include <stdlib.h>

#include "vmm/base/arena.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"
#include "vmm/base/lock.h"
#include "vmm/base/log.h"

#define NOBODY UINT32_MAX

struct place {
    char *address;
    struct mp_slot slot; /* whose frame is mapped there */
    bool mapped, lost;
};

struct mp_windows {
    struct mp_backend *backend;
    const struct mp_space_layout *layout;
    const struct mp_tier *tier;
    struct mp_timeline *timeline; /* or NULL */
    unsigned track;
    void *base[MP_TIER_CLASSES_MAX];
    void *arrays;         /* the block of all arrays */
    struct place *places; // (units)

    struct mp_mutex lock;
    uint32_t *unit_of[MP_TIER_CLASSES_MAX] MP_GUARDED_BY(lock); // (slots): mapped as it, or NOBODY
    uint64_t lost_bytes MP_GUARDED_BY(lock);
    uint32_t lost_in[MP_TIER_CLASSES_MAX] MP_GUARDED_BY(lock); /* places */
};

static bool is_lost(struct mp_backend *backend)
{
    return backend->ops->lost != NULL && backend->ops->lost(backend);
}

/* Something stays mapped at the unit's place. */
static void lose_locked(struct mp_windows *windows, uint32_t unit)
{
    const uint32_t class_index = windows->layout->units[unit].class_index;

    mp_assert(!windows->places[unit].lost);
    mp_assert_held(&windows->lock);
    /* One line; where one fails all do, and with a device that was lost that is not news. */
    if (windows->lost_bytes == 0 && !is_lost(windows->backend))
        mp_log_error("window", "the place of unit %" PRIu32 " is lost: %s", unit,
                     mp_error_last()->text);
    windows->places[unit].lost = true;
    windows->lost_bytes += windows->layout->stride_bytes[class_index];
    windows->lost_in[class_index]++;
}

/* On the mapper's track. */
static void note(struct mp_windows *windows, const char *what, uint32_t unit, uint64_t start_ns)
{
    const uint64_t bytes = windows->layout->stride_bytes[windows->layout->units[unit].class_index];

    mp_assert(unit < windows->layout->unit_count);
    mp_timeline_span(windows->timeline, windows->track, what, start_ns,
                     mp_timeline_now_ns(windows->timeline),
                     &(struct mp_timeline_args){ { "unit", "bytes" }, { unit, bytes } });
}

static void clear_locked(struct mp_windows *windows, struct mp_slot slot)
{
    const uint32_t unit = windows->unit_of[slot.class_index][slot.index];
    const uint64_t bytes = windows->layout->stride_bytes[slot.class_index];
    const struct mp_error before = *mp_error_last(); /* maybe why everything ends */
    struct mp_backend *backend = windows->backend;
    struct place *place;
    uint64_t start_ns;

    mp_assert_held(&windows->lock);
    if (unit == NOBODY)
        return;
    place = &windows->places[unit];
    mp_assert(place->mapped);
    windows->unit_of[slot.class_index][slot.index] = NOBODY;
    mp_assert(place->slot.index == slot.index);
    place->mapped = false;
    start_ns = mp_timeline_now_ns(windows->timeline);
    if (backend->ops->window_unmap(backend, place->address, bytes) != MP_OK)
        lose_locked(windows, unit);
    mp_error_set(&before);
    note(windows, "unmap", unit, start_ns);
}

void mp_windows_clear(struct mp_windows *windows, struct mp_slot slot)
{
    mp_assert(slot.index < mp_tier_index_end(windows->tier, slot.class_index));
    mp_lock(&windows->lock);
    clear_locked(windows, slot);
    mp_unlock(&windows->lock);
}

void mp_windows_prepare(struct mp_windows *windows, uint32_t unit, struct mp_slot slot)
{
    const struct place *place = &windows->places[unit];

    mp_assert(unit < windows->layout->unit_count);
    mp_assert(windows->layout->units[unit].class_index == slot.class_index);
    mp_lock(&windows->lock);
    if (windows->unit_of[slot.class_index][slot.index] != unit) {
        clear_locked(windows, slot);
        if (place->mapped)
            clear_locked(windows, place->slot);
    }
    mp_unlock(&windows->lock);
}

void mp_windows_map(struct mp_windows *windows, uint32_t unit, struct mp_slot slot)
{
    struct place *place = &windows->places[unit];
    struct mp_backend *backend = windows->backend;

    mp_assert(unit < windows->layout->unit_count);
    mp_assert(windows->layout->units[unit].class_index == slot.class_index);
    mp_lock(&windows->lock);
    mp_assert(windows->unit_of[slot.class_index][slot.index] == (place->mapped ? unit : NOBODY));
    if (!place->mapped && !place->lost) {
        const uint64_t start_ns = mp_timeline_now_ns(windows->timeline);
        const enum mp_status status =
            backend->ops->window_map(backend, place->address, mp_tier_frame(windows->tier, slot));

        note(windows, "map", unit, start_ns);
        if (status == MP_OK) {
            place->mapped = true;
            place->slot = slot;
            windows->unit_of[slot.class_index][slot.index] = unit;
        } else if (status == MP_ERR_BUSY) {
            lose_locked(windows, unit);
            mp_error_clear();
        } else {
            mp_log_once(MP_LOG_WARN, "window", "units are used at the alias of their slot: %s",
                        mp_error_last()->text);
            mp_error_clear();
        }
    }
    mp_unlock(&windows->lock);
}

const char *mp_windows_address(const struct mp_windows *windows, uint32_t unit)
{
    mp_assert(unit < windows->layout->unit_count);
    return windows->places[unit].mapped ? windows->places[unit].address : NULL;
}

uint64_t mp_windows_lost_bytes(struct mp_windows *windows)
{
    uint64_t bytes;

    mp_lock(&windows->lock);
    bytes = windows->lost_bytes;
    mp_unlock(&windows->lock);
    return bytes;
}

bool mp_windows_check(struct mp_windows *windows)
{
    uint32_t mapped = 0, held = 0;
    bool right = true;

    mp_lock(&windows->lock);
    for (uint32_t c = 0; c < windows->layout->class_count; c++) {
        for (uint32_t i = 0; i < mp_tier_index_end(windows->tier, c); i++) {
            const uint32_t unit = windows->unit_of[c][i];

            held += unit != NOBODY;
            right &= unit == NOBODY || (windows->places[unit].mapped &&
                                        windows->layout->units[unit].class_index == c);
        }
    }
    for (uint32_t i = 0; i < windows->layout->unit_count; i++) {
        mapped += windows->places[i].mapped;
        right &= !(windows->places[i].mapped && windows->places[i].lost);
    }
    mp_unlock(&windows->lock);
    return right && mapped == held;
}

/* Addresses of all units, side by side in the window of their class. */
static enum mp_status reserve(struct mp_windows *windows)
{
    const struct mp_space_layout *layout = windows->layout;
    struct mp_backend *backend = windows->backend;
    uint64_t used[MP_TIER_CLASSES_MAX] = { 0 };

    for (uint32_t c = 0; c < layout->class_count; c++) {
        const enum mp_status status = backend->ops->window_reserve(
            backend, layout->stride_bytes[c] * layout->class_units[c], &windows->base[c]);

        if (status != MP_OK)
            return status;
    }
    for (uint32_t i = 0; i < layout->unit_count; i++) {
        const uint32_t c = layout->units[i].class_index;

        windows->places[i].address = (char *)windows->base[c] + used[c];
        used[c] += layout->stride_bytes[c];
    }
    mp_assert(used[0] == layout->stride_bytes[0] * layout->class_units[0]);
    return MP_OK;
}

static void take_arrays(struct mp_windows *windows, struct mp_arena *arena)
{
    const struct mp_space_layout *layout = windows->layout;

    windows->places = mp_arena_take(arena, layout->unit_count, sizeof(*windows->places));
    for (uint32_t c = 0; c < layout->class_count; c++)
        windows->unit_of[c] =
            mp_arena_take(arena, mp_tier_index_end(windows->tier, c), sizeof(*windows->unit_of[c]));
}

static enum mp_status make_arrays(struct mp_windows *windows)
{
    struct mp_arena arena = { 0 };
    enum mp_status status;

    mp_assert(windows->arrays == NULL);
    take_arrays(windows, &arena);
    status = mp_arena_open(&arena, "windows");
    if (status != MP_OK)
        return status;
    take_arrays(windows, &arena);
    windows->arrays = arena.block;
    for (uint32_t c = 0; c < windows->layout->class_count; c++) {
        for (uint32_t i = 0; i < mp_tier_index_end(windows->tier, c); i++)
            windows->unit_of[c][i] = NOBODY;
    }
    return MP_OK;
}

enum mp_status mp_windows_create(struct mp_backend *backend, const struct mp_space_layout *layout,
                                 const struct mp_tier *tier, struct mp_timeline *timeline,
                                 struct mp_windows **windows_p)
{
    struct mp_windows *windows = calloc(1, sizeof(*windows));
    enum mp_status status;

    mp_assert(backend->ops->window_reserve != NULL && layout->unit_count > 0);
    if (windows == NULL)
        return mp_fail_no_memory("windows", sizeof(*windows));
    windows->backend = backend;
    windows->layout = layout;
    windows->tier = tier;
    windows->timeline = timeline;
    if (timeline != NULL)
        windows->track = mp_timeline_add_track(timeline, "mapper");
    mp_mutex_init(&windows->lock, MP_LOCK_BACKEND, "windows");
    status = make_arrays(windows);
    if (status == MP_OK)
        status = reserve(windows);
    if (status != MP_OK) {
        mp_windows_destroy(windows);
        return status;
    }
    *windows_p = windows;
    return MP_OK;
}

/* Also takes half-made ones. A window with a place that is still mapped cannot be given back. */
void mp_windows_destroy(struct mp_windows *windows)
{
    const struct mp_space_layout *layout;
    struct mp_backend *backend;

    if (windows == NULL)
        return;
    layout = windows->layout;
    backend = windows->backend;
    mp_lock(&windows->lock);
    for (uint32_t c = 0; c < layout->class_count; c++) {
        const uint32_t slots = windows->arrays != NULL ? mp_tier_index_end(windows->tier, c) : 0;

        for (uint32_t i = 0; i < slots; i++)
            clear_locked(windows, (struct mp_slot){ c, i });
        if (windows->base[c] != NULL && windows->lost_in[c] == 0)
            backend->ops->window_free(backend, windows->base[c],
                                      layout->stride_bytes[c] * layout->class_units[c]);
    }
    if (windows->lost_bytes > 0 && !is_lost(backend))
        mp_log_warn("window", "%" PRIu64 " bytes stay mapped", windows->lost_bytes);
    mp_unlock(&windows->lock);
    mp_mutex_fini(&windows->lock);
    free(windows->arrays);
    free(windows);
}
