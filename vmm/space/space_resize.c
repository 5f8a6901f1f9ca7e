/*
 * Changes of the budget. Whole frames are released: first those with the fewest units, on a tie the
 * last. Their units move to the lowest free slots of other frames, by copies inside the device. A
 * unit with a lease or in flight does not move.
 */
#include <inttypes.h>
#include <string.h>

#include "vmm/base/assert.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"
#include "vmm/space/space_int.h"

#define SLOTS_MIN 2
#define NO_FRAME UINT32_MAX

uint64_t mp_space_frame_bytes(const struct mp_space *space)
{
    return mp_tier_frame_bytes(space->tier);
}

uint64_t mp_space_lost_bytes(const struct mp_space *space)
{
    struct mp_backend *backend = space->backend;

    return (space->windows != NULL ? mp_windows_lost_bytes(space->windows) : 0) +
           (backend->ops->lost_bytes != NULL ? backend->ops->lost_bytes(backend) : 0);
}

/* Slots of each class that the budget pays for. */
static enum mp_status fit(const struct mp_space *space, uint64_t budget_bytes,
                          struct mp_tier_class *target)
{
    memcpy(target, space->layout.classes, sizeof(space->layout.classes));
    for (uint32_t c = 0; c < space->layout.class_count; c++)
        target[c].slots = space->layout.class_units[c];
    if (budget_bytes == UINT64_MAX)
        return MP_OK;
    return mp_tier_fit(space->backend, budget_bytes, "--budget", target, space->layout.class_count);
}

/* Units in the frame; false: one of them cannot be moved. */
static bool count_taken(const struct mp_space *space, uint32_t class_index, uint32_t frame,
                        uint32_t *taken_p)
{
    uint32_t first, taken = 0;
    const uint32_t slots = mp_tier_frame_slots(space->tier, class_index, frame, &first);

    for (uint32_t i = first; i < first + slots; i++) {
        const uint32_t unit = space->owner[class_index][i];

        if (unit == SPACE_NOBODY)
            continue;
        if (mp_space_state(space, unit) != MP_RES_VALID || mp_space_leases(space, unit) > 0)
            return false;
        taken++;
    }
    mp_assert(taken <= slots);
    *taken_p = taken;
    return true;
}

/* The frame of the class that is easiest to empty, of those with at most `slots_max` slots, or
 * NO_FRAME. */
static uint32_t find_frame(const struct mp_space *space, uint32_t class_index, uint32_t slots_max)
{
    uint32_t best = NO_FRAME, least = UINT32_MAX;

    mp_assert(slots_max > 0);
    for (uint32_t f = mp_tier_frame_count(space->tier, class_index); f-- > 0;) {
        uint32_t first, taken;
        const uint32_t slots = mp_tier_frame_slots(space->tier, class_index, f, &first);

        if (slots > 0 && slots <= slots_max && count_taken(space, class_index, f, &taken) &&
            taken < least) {
            least = taken;
            best = f;
        }
    }
    return best;
}

static enum mp_status copy_unit(struct mp_space *space, struct mp_stream *stream, void *dst,
                                const void *src, uint64_t bytes)
{
    struct mp_backend *backend = space->backend;
    enum mp_status status;

    mp_assert(dst != src && bytes > 0);
    if (space->shared_memory) {
        memcpy(dst, src, bytes);
        return MP_OK;
    }
    status = backend->ops->stream_copy(backend, stream, MP_COPY_ON_DEVICE, dst, src, bytes);
    if (status == MP_OK)
        status = backend->ops->event_record(backend, stream, 0);
    return status == MP_OK ? backend->ops->event_wait(backend, stream, 0) : status;
}

/* Give the unit another slot of its class; one outside of its frame is free, and those in it are
 * taken out of circulation. */
static enum mp_status move_unit(struct mp_space *space, struct mp_stream *stream, uint32_t unit)
{
    const uint64_t bytes = space->layout.classes[layout_of(space, unit)->class_index].slot_bytes;
    struct mp_slot *slot = &space->units[unit].slot;
    struct mp_slot to = { 0 };
    enum mp_status status = mp_tier_take(space->tier, slot->class_index, &to);

    mp_assert(mp_space_state(space, unit) == MP_RES_VALID && mp_space_leases(space, unit) == 0);
    mp_assert(status == MP_OK);
    if (status != MP_OK)
        return status;
    if (space->windows != NULL)
        mp_windows_clear(space->windows, to);
    status = copy_unit(space, stream, mp_tier_address(space->tier, to),
                       mp_tier_address(space->tier, *slot), bytes);
    if (status != MP_OK) {
        mp_tier_give(space->tier, to);
        return status;
    }
    space->owner[to.class_index][to.index] = unit;
    space->owner[slot->class_index][slot->index] = SPACE_NOBODY;
    *slot = to;
    space->generation++;
    return MP_OK;
}

/* Move the frame's units out. All of its slots are taken afterwards, whatever happened; those that
 * are nobody's have to be given back. */
static enum mp_status empty_frame(struct mp_space *space, uint32_t class_index, uint32_t first,
                                  uint32_t slots)
{
    struct mp_backend *backend = space->backend;
    struct mp_stream *stream = NULL;
    enum mp_status status = MP_OK;

    mp_assert(slots > 0);
    for (uint32_t i = first; i < first + slots; i++) {
        const struct mp_slot slot = { class_index, i };

        if (mp_tier_is_free(space->tier, slot))
            mp_tier_take_slot(space->tier, slot);
    }
    for (uint32_t i = first; status == MP_OK && i < first + slots; i++) {
        const uint32_t unit = space->owner[class_index][i];

        if (unit == SPACE_NOBODY)
            continue;
        if (stream == NULL && !space->shared_memory)
            status = backend->ops->stream_open(backend, &stream);
        if (status == MP_OK)
            status = move_unit(space, stream, unit);
    }
    if (stream != NULL)
        backend->ops->stream_close(backend, stream);
    return status;
}

static enum mp_status remove_frame(struct mp_space *space, uint32_t class_index, uint32_t frame)
{
    uint32_t first;
    const uint32_t slots = mp_tier_frame_slots(space->tier, class_index, frame, &first);
    const enum mp_status status = empty_frame(space, class_index, first, slots);

    for (uint32_t i = first; i < first + slots; i++) {
        const struct mp_slot slot = { class_index, i };

        if (space->owner[class_index][i] == SPACE_NOBODY)
            mp_tier_give(space->tier, slot);
        if (status == MP_OK && space->windows != NULL)
            mp_windows_clear(space->windows, slot);
    }
    if (status == MP_OK)
        mp_tier_remove_frame(space->tier, class_index, frame);
    return status;
}

static uint32_t least_slots(const struct mp_space *space, uint32_t class_index)
{
    const uint32_t units = space->layout.class_units[class_index];

    mp_assert(units > 0);
    return units < SLOTS_MIN ? units : SLOTS_MIN;
}

/* The class that has most slots above its target, in parts of the target; of equal ones the first.
 */
static uint32_t find_above(const struct mp_space *space, const struct mp_tier_class *target)
{
    uint32_t best = MP_TIER_CLASSES_MAX;
    uint64_t most = 0;

    for (uint32_t c = 0; c < space->layout.class_count; c++) {
        const uint64_t slots = mp_tier_slots(space->tier, c);
        const uint64_t score = slots * 1000 / (target[c].slots + 1u);

        if (slots > target[c].slots && score > most) {
            most = score;
            best = c;
        }
    }
    return best;
}

/* The class with most slots, where there are more than the least; of equal ones the first. */
static uint32_t find_largest(const struct mp_space *space)
{
    uint32_t best = MP_TIER_CLASSES_MAX;
    uint32_t most = 0;

    for (uint32_t c = 0; c < space->layout.class_count; c++) {
        const uint32_t slots = mp_tier_slots(space->tier, c);

        if (slots > least_slots(space, c) && slots > most) {
            most = slots;
            best = c;
        }
    }
    return best;
}

/* Give one frame back, in steps that callers see. One that has more slots than are to go makes way
 * for a smaller one. */
static enum mp_status shrink_class(struct mp_space *space, uint32_t c, uint32_t target_slots,
                                   uint32_t *class_p, uint32_t *evict_p)
{
    const uint32_t all = mp_tier_slots(space->tier, c);
    const uint32_t goal = all > target_slots ? target_slots : all - 1;
    uint32_t frame = find_frame(space, c, all - goal), first, slots, keep, free_slots;
    enum mp_status status;

    mp_assert(goal < all);
    if (frame == NO_FRAME)
        frame = find_frame(space, c, UINT32_MAX);
    if (frame == NO_FRAME)
        return MP_ERR_BUSY;
    slots = mp_tier_frame_slots(space->tier, c, frame, &first);
    keep = slots > all - goal ? slots - (all - goal) : 0;
    if (keep > 0 && mp_tier_frame_gap(space->tier, c) == NO_FRAME) {
        if (all - slots < least_slots(space, c))
            return MP_ERR_BUSY;
        keep = 0; /* more goes than has to; what there is room for comes back */
    }
    free_slots = mp_tier_free_slots(space->tier, c) + keep;
    if (free_slots < slots) {
        *class_p = c;
        *evict_p = slots - free_slots;
        return MP_ERR_NO_SPACE;
    }
    status = keep > 0 ? mp_tier_add_frame(space->tier, c, keep) : MP_OK;
    return status == MP_OK ? remove_frame(space, c, frame) : status;
}

/* Are these two frames of which no unit has to stay, and that fit into one? That never costs more.
 */
static bool can_join(const struct mp_space *space, uint32_t class_index, uint32_t a, uint32_t b)
{
    uint32_t first, taken;
    const uint32_t slots_a = mp_tier_frame_slots(space->tier, class_index, a, &first);
    const uint32_t slots_b = mp_tier_frame_slots(space->tier, class_index, b, &first);

    mp_assert(a != b);
    return slots_a > 0 && slots_b > 0 &&
           slots_a + slots_b <= mp_tier_slots_per_frame(space->tier, class_index) &&
           count_taken(space, class_index, a, &taken) && count_taken(space, class_index, b, &taken);
}

/* Two frames of the class that are not full, as a lease may have left them. False: there are none
 * that can become one. */
static bool find_halves(const struct mp_space *space, uint32_t class_index, uint32_t *halves)
{
    const uint32_t frames = mp_tier_frame_count(space->tier, class_index);
    const uint32_t per_frame = mp_tier_slots_per_frame(space->tier, class_index);
    uint32_t first;

    if (mp_tier_frame_gap(space->tier, class_index) == NO_FRAME)
        return false;
    for (halves[0] = 0; halves[0] < frames; halves[0]++) {
        if (mp_tier_frame_slots(space->tier, class_index, halves[0], &first) == per_frame)
            continue;
        for (halves[1] = halves[0] + 1; halves[1] < frames; halves[1]++) {
            if (can_join(space, class_index, halves[0], halves[1]))
                return true;
        }
    }
    return false;
}

/* One new frame has the slots of both. */
static enum mp_status join_halves(struct mp_space *space, uint32_t class_index,
                                  const uint32_t *halves)
{
    uint32_t first;
    const uint32_t slots = mp_tier_frame_slots(space->tier, class_index, halves[0], &first) +
                           mp_tier_frame_slots(space->tier, class_index, halves[1], &first);
    enum mp_status status = mp_tier_add_frame(space->tier, class_index, slots);

    mp_assert(halves[0] != halves[1]);
    for (uint32_t i = 0; status == MP_OK && i < 2; i++)
        status = remove_frame(space, class_index, halves[i]);
    return status;
}

/*
 * One step towards the budget. Classes above their targets come first. Where there is none and
 * frames still cost too much, because some are not full, two of those are joined; where a lease
 * forbids that, classes go below their targets.
 */
static enum mp_status shrink_once(struct mp_space *space, const struct mp_tier_class *target,
                                  uint32_t *class_p, uint32_t *evict_p)
{
    uint32_t c = find_above(space, target), halves[2];

    for (uint32_t i = 0; c == MP_TIER_CLASSES_MAX && i < space->layout.class_count; i++) {
        if (find_halves(space, i, halves))
            return join_halves(space, i, halves);
    }
    if (c == MP_TIER_CLASSES_MAX)
        c = find_largest(space);
    if (c == MP_TIER_CLASSES_MAX)
        return MP_ERR_BUSY;
    return shrink_class(space, c, target[c].slots, class_p, evict_p);
}

/* The first frame of the class that is not full, or NO_FRAME. */
static uint32_t find_partial(const struct mp_space *space, uint32_t class_index)
{
    const uint32_t per_frame = mp_tier_slots_per_frame(space->tier, class_index);
    uint32_t first;

    for (uint32_t f = 0; f < mp_tier_frame_count(space->tier, class_index); f++) {
        const uint32_t slots = mp_tier_frame_slots(space->tier, class_index, f, &first);

        if (slots > 0 && slots < per_frame)
            return f;
    }
    return NO_FRAME;
}

/* Less than a full frame more for a class below its target: a larger frame takes the place of one
 * that is not full and of which no unit has to stay, or a small one is added. */
static enum mp_status grow_part(struct mp_space *space, uint32_t c, uint32_t target_slots,
                                uint64_t budget_bytes)
{
    const uint32_t now = mp_tier_slots(space->tier, c), old = find_partial(space, c);
    uint64_t room = budget_bytes - mp_tier_frame_bytes(space->tier);
    uint32_t slots, kept = 0, first, taken;
    enum mp_status status;

    mp_assert(now < target_slots);
    if (mp_tier_frame_gap(space->tier, c) == NO_FRAME)
        return MP_OK;
    if (old != NO_FRAME) {
        if (!count_taken(space, c, old, &taken))
            return MP_OK;
        kept = mp_tier_frame_slots(space->tier, c, old, &first);
        room += mp_tier_next_frame_bytes(space->tier, c, kept);
    }
    slots = mp_tier_slots_per_frame(space->tier, c);
    if (slots - kept > target_slots - now)
        slots = kept + target_slots - now;
    while (slots > kept && mp_tier_next_frame_bytes(space->tier, c, slots) > room)
        slots--;
    if (slots == kept)
        return MP_OK;
    status = mp_tier_add_frame(space->tier, c, slots);
    return status == MP_OK && old != NO_FRAME ? remove_frame(space, c, old) : status;
}

static enum mp_status grow_class(struct mp_space *space, uint32_t c, uint32_t target_slots,
                                 uint64_t budget_bytes)
{
    const uint64_t bytes = mp_tier_next_frame_bytes(space->tier, c, 0);

    if (mp_tier_slots(space->tier, c) >= target_slots)
        return MP_OK;
    if (bytes > 0 && bytes <= budget_bytes - mp_tier_frame_bytes(space->tier))
        return mp_tier_add_frame(space->tier, c, 0);
    return grow_part(space, c, target_slots, budget_bytes);
}

/* Take frames for classes below their target, one for each in turn. */
static enum mp_status grow(struct mp_space *space, const struct mp_tier_class *target,
                           uint64_t budget_bytes)
{
    bool more = true;

    mp_assert(mp_tier_frame_bytes(space->tier) <= budget_bytes);
    while (more) {
        more = false;
        for (uint32_t c = 0; c < space->layout.class_count; c++) {
            const uint32_t before = mp_tier_slots(space->tier, c);
            const enum mp_status status = grow_class(space, c, target[c].slots, budget_bytes);

            if (status != MP_OK)
                return status;
            more |= mp_tier_slots(space->tier, c) > before;
        }
    }
    return MP_OK;
}

enum mp_status mp_space_set_budget(struct mp_space *space, uint64_t budget_bytes, uint32_t *class_p,
                                   uint32_t *evict_p)
{
    struct mp_tier_class target[MP_TIER_CLASSES_MAX];
    enum mp_status status;

    *class_p = *evict_p = 0;
    if (space->whole_pages)
        return mp_fail(MP_ERR_INVALID, "E_INTERNAL",
                       "slots whose pages are elsewhere do not move, so the budget stays");
    status = fit(space, budget_bytes, target);
    if (status != MP_OK)
        return status;
    /* The slots of units that are being copied down are free already, but not unused. */
    while (space->draining_count > 0)
        mp_space_settle_drains(space, space->draining[0], true);
    /* A thread that touches frames must not touch one that is gone. */
    mp_populate_stop(space->populate);
    space->populate = NULL;
    while (status == MP_OK && mp_tier_frame_bytes(space->tier) > budget_bytes)
        status = shrink_once(space, target, class_p, evict_p);
    if (status == MP_OK)
        status = grow(space, target, budget_bytes);
    space->layout.plan.slots = 0;
    for (uint32_t c = 0; c < space->layout.class_count; c++)
        space->layout.plan.slots += mp_tier_slots(space->tier, c);
    mp_log_debug("space", "%" PRIu32 " slots in %" PRIu64 " bytes", space->layout.plan.slots,
                 mp_tier_frame_bytes(space->tier));
    mp_assert(mp_space_check(space));
    return status;
}
