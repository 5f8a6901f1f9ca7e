/*
 * The memory that slots need. How many share a frame depends only on the slot's size and the
 * backend's granule, so the size of a set of classes is known before anything is allocated.
 */
#include <inttypes.h>

#include "vmm/base/assert.h"
#include "vmm/base/checked.h"
#include "vmm/base/error.h"
#include "vmm/space/tier_int.h"

/* Large enough for huge pages and few mappings, small enough to be made and pinned in pieces. */
#define FRAME_BYTES_TARGET (UINT64_C(64) << 20)

/* Rounding frames up to granules may cost 1/50 of them. */
#define WASTE_DIVISOR 50

#define SLOTS_MIN 2

/*
 * The largest count whose frame is at most the target (or one slot, or one granule, if those are
 * larger) and wastes little; if every count wastes more, the one that wastes the smallest part.
 */
static uint32_t best_per_frame(const struct mp_backend *backend, uint64_t slot_bytes)
{
    const uint64_t granule = backend->caps.granule_bytes;
    uint64_t target = granule > FRAME_BYTES_TARGET ? granule : FRAME_BYTES_TARGET;
    uint64_t best = 1, best_ppm = UINT64_MAX;

    mp_assert(slot_bytes > 0 && granule > 0);
    if (target > backend->caps.frame_bytes_max)
        target = backend->caps.frame_bytes_max;
    for (uint64_t count = slot_bytes < target ? target / slot_bytes : 1; count >= 1; count--) {
        uint64_t used, frame_bytes, waste_ppm;

        if (!mp_mul_u64(count, slot_bytes, &used) || !mp_round_up_u64(used, granule, &frame_bytes))
            continue;
        if (count > 1 && frame_bytes > target)
            continue;
        if (frame_bytes - used <= frame_bytes / WASTE_DIVISOR)
            return (uint32_t)count;
        waste_ppm = (frame_bytes - used) / (frame_bytes / 1000000 + 1);
        if (waste_ppm < best_ppm) {
            best_ppm = waste_ppm;
            best = count;
        }
    }
    return (uint32_t)best;
}

/* The smallest count that wastes little, below `most`. */
static uint32_t least_per_frame(const struct mp_backend *backend, uint64_t slot_bytes,
                                uint32_t most)
{
    uint32_t count = 1;

    mp_assert(most >= 1);
    for (; count < most; count++) {
        uint64_t frame_bytes;

        if (mp_tier_frame_bytes_of(backend, slot_bytes, count, &frame_bytes) &&
            frame_bytes - slot_bytes * count <= frame_bytes / WASTE_DIVISOR)
            break;
    }
    return count;
}

uint32_t mp_tier_per_frame(const struct mp_backend *backend, const struct mp_tier_class *class)
{
    const uint32_t most = class->own_frames ? 1 : best_per_frame(backend, class->slot_bytes);

    mp_assert(class->slot_bytes > 0);
    return class->small_frames ? least_per_frame(backend, class->slot_bytes, most) : most;
}

/* Bytes of the frame that holds `slots` slots. */
bool mp_tier_frame_bytes_of(const struct mp_backend *backend, uint64_t slot_bytes, uint32_t slots,
                            uint64_t *bytes_p)
{
    uint64_t used;

    mp_assert(backend->caps.granule_bytes > 0);
    return mp_mul_u64(slot_bytes, slots, &used) &&
           mp_round_up_u64(used, backend->caps.granule_bytes, bytes_p);
}

/* Never decreases when `slots` grows; mp_tier_fit() depends on it. */
static bool class_cost(const struct mp_backend *backend, const struct mp_tier_class *class,
                       uint32_t slots, uint64_t *bytes_p)
{
    const uint32_t per_frame = mp_tier_per_frame(backend, class);
    const uint64_t slot_bytes = class->slot_bytes;
    uint64_t full, rest;

    mp_assert(per_frame > 0);
    return mp_tier_frame_bytes_of(backend, slot_bytes, per_frame, &full) &&
           mp_mul_u64(full, slots / per_frame, &full) &&
           mp_tier_frame_bytes_of(backend, slot_bytes, slots % per_frame, &rest) &&
           mp_add_u64(full, rest, bytes_p);
}

static bool total_cost(const struct mp_backend *backend, const struct mp_tier_class *classes,
                       uint32_t class_count, const uint32_t *slots, uint64_t *bytes_p)
{
    uint64_t total = 0, bytes;

    mp_assert(class_count <= MP_TIER_CLASSES_MAX);
    for (uint32_t i = 0; i < class_count; i++) {
        if (!class_cost(backend, &classes[i], slots[i], &bytes) ||
            !mp_add_u64(total, bytes, &total))
            return false;
    }
    *bytes_p = total;
    return true;
}

static enum mp_status check_classes(const struct mp_tier_class *classes, uint32_t class_count)
{
    if (class_count == 0 || class_count > MP_TIER_CLASSES_MAX)
        return mp_fail(MP_ERR_INVALID, "E_INTERNAL",
                       "a tier has 1 to %d size classes, not %" PRIu32, MP_TIER_CLASSES_MAX,
                       class_count);
    for (uint32_t i = 0; i < class_count; i++) {
        if (classes[i].slot_bytes == 0 || classes[i].slot_bytes % MP_SLOT_ALIGN_BYTES != 0 ||
            classes[i].slots == 0)
            return mp_fail(MP_ERR_INVALID, "E_INTERNAL",
                           "size class %" PRIu32 " has %" PRIu32 " slots of %" PRIu64 " bytes", i,
                           classes[i].slots, classes[i].slot_bytes);
    }
    return MP_OK;
}

enum mp_status mp_tier_fail_overflow(void)
{
    return mp_fail(MP_ERR_OVERFLOW, "E_TIER_SIZE", "the slots of all units exceed 2^64 bytes");
}

enum mp_status mp_tier_cost(const struct mp_backend *backend, const struct mp_tier_class *classes,
                            uint32_t class_count, uint64_t *bytes_p)
{
    uint32_t slots[MP_TIER_CLASSES_MAX];
    enum mp_status status = check_classes(classes, class_count);

    if (status != MP_OK)
        return status;
    for (uint32_t i = 0; i < class_count; i++)
        slots[i] = classes[i].slots;
    if (!total_cost(backend, classes, class_count, slots, bytes_p))
        return mp_tier_fail_overflow();
    return MP_OK;
}

/* Slots per class at step `step` of `steps`: the minimum at 0, all that are wanted at `steps`. */
static void slots_at(const struct mp_tier_class *classes, uint32_t class_count, uint32_t step,
                     uint32_t steps, uint32_t *slots)
{
    mp_assert(step <= steps);
    for (uint32_t i = 0; i < class_count; i++) {
        const uint32_t least = classes[i].slots < SLOTS_MIN ? classes[i].slots : SLOTS_MIN;
        const uint64_t more = classes[i].slots - least;

        slots[i] = least + (steps == 0 ? 0 : (uint32_t)(more * step / steps));
    }
}

static enum mp_status fail_small(uint64_t budget_bytes, uint64_t least_bytes, uint32_t class_count,
                                 const char *option)
{
    mp_assert(budget_bytes < least_bytes);
    return mp_fail(MP_ERR_CONFIG, "E_BUDGET_SMALL",
                   "budget of %" PRIu64 " bytes is below the minimum of %" PRIu64
                   " bytes for this model (two slots in each of %" PRIu32
                   " size classes); raise %s",
                   budget_bytes, least_bytes, class_count, option);
}

enum mp_status mp_tier_fit(const struct mp_backend *backend, uint64_t budget_bytes,
                           const char *option, struct mp_tier_class *classes, uint32_t class_count)
{
    uint32_t slots[MP_TIER_CLASSES_MAX];
    uint32_t low = 0, high, steps = 0;
    uint64_t bytes;
    enum mp_status status = check_classes(classes, class_count);

    if (status != MP_OK)
        return status;
    for (uint32_t i = 0; i < class_count; i++)
        steps = classes[i].slots > steps ? classes[i].slots : steps;

    slots_at(classes, class_count, 0, steps, slots);
    if (!total_cost(backend, classes, class_count, slots, &bytes))
        return mp_tier_fail_overflow();
    if (bytes > budget_bytes)
        return fail_small(budget_bytes, bytes, class_count, option);

    /* The last step that fits; step 0 does. */
    high = steps;
    while (low < high) {
        const uint32_t middle = high - (high - low) / 2;

        slots_at(classes, class_count, middle, steps, slots);
        if (total_cost(backend, classes, class_count, slots, &bytes) && bytes <= budget_bytes)
            low = middle;
        else
            high = middle - 1;
    }
    slots_at(classes, class_count, low, steps, slots);

    /* What the proportion left over: one more slot where it still fits, in the order given. */
    for (uint32_t i = 0; i < class_count; i++) {
        if (slots[i] == classes[i].slots)
            continue;
        slots[i]++;
        if (!total_cost(backend, classes, class_count, slots, &bytes) || bytes > budget_bytes)
            slots[i]--;
    }
    for (uint32_t i = 0; i < class_count; i++) {
        mp_assert(slots[i] > 0 && slots[i] <= classes[i].slots);
        classes[i].slots = slots[i];
    }
    return MP_OK;
}
