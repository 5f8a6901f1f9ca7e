/*
 * Slots of one size class stand side by side in frames. How many share a frame follows from the
 * slot's size and the backend's granule alone, so that the cost of a set of classes is known
 * before anything is made. Free slots are bits; the lowest free one is found from a hint below
 * which nothing is free.
 */
#include "vmm/tier.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/base/assert.h"
#include "vmm/base/checked.h"
#include "vmm/base/error.h"

/* Large enough for huge pages and few mappings, small enough to be made and pinned in pieces. */
#define FRAME_BYTES_TARGET (UINT64_C(64) << 20)

/* Rounding frames up to granules may cost 1/50 of them. */
#define WASTE_DIVISOR 50

#define SLOT_ALIGN_BYTES 4096
#define SLOTS_MIN 2
#define WORD_BITS 64

struct tier_class {
    uint64_t slot_bytes;
    uint32_t slots, free_slots;
    uint32_t slots_per_frame;
    uint32_t frame_first; /* in tier->frames */
    uint32_t hint_word;   /* no free slot in the words before it */
    uint64_t *free_map;   /* bit set: free */
};

struct mp_tier {
    struct mp_backend *backend;
    struct tier_class classes[MP_TIER_CLASSES_MAX];
    uint32_t class_count;
    uint32_t frame_count;
    struct mp_frame *frames;
    uint64_t frame_bytes;
};

/*
 * The largest count whose frame is at most the target (or one slot, or one granule, if those are
 * larger) and wastes little; if every count wastes more, the one that wastes the smallest part.
 */
static uint32_t slots_per_frame(const struct mp_backend *backend, uint64_t slot_bytes)
{
    const uint64_t granule = backend->caps.granule_bytes;
    uint64_t target = granule > FRAME_BYTES_TARGET ? granule : FRAME_BYTES_TARGET;
    uint64_t best = 1, best_ppm = UINT64_MAX;

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

static uint32_t frames_of(uint32_t slots, uint32_t per_frame)
{
    return slots / per_frame + (slots % per_frame > 0);
}

/* Bytes of the frame that holds `slots` slots. */
static bool frame_bytes_of(const struct mp_backend *backend, uint64_t slot_bytes, uint32_t slots,
                           uint64_t *bytes_p)
{
    uint64_t used;

    return mp_mul_u64(slot_bytes, slots, &used) &&
           mp_round_up_u64(used, backend->caps.granule_bytes, bytes_p);
}

/* Never decreases when `slots` grows; mp_tier_fit() depends on it. */
static bool class_cost(const struct mp_backend *backend, uint64_t slot_bytes, uint32_t slots,
                       uint64_t *bytes_p)
{
    const uint32_t per_frame = slots_per_frame(backend, slot_bytes);
    uint64_t full, rest;

    return frame_bytes_of(backend, slot_bytes, per_frame, &full) &&
           mp_mul_u64(full, slots / per_frame, &full) &&
           frame_bytes_of(backend, slot_bytes, slots % per_frame, &rest) &&
           mp_add_u64(full, rest, bytes_p);
}

static bool total_cost(const struct mp_backend *backend, const struct mp_tier_class *classes,
                       uint32_t class_count, const uint32_t *slots, uint64_t *bytes_p)
{
    uint64_t total = 0, bytes;

    for (uint32_t i = 0; i < class_count; i++) {
        if (!class_cost(backend, classes[i].slot_bytes, slots[i], &bytes) ||
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
        if (classes[i].slot_bytes == 0 || classes[i].slot_bytes % SLOT_ALIGN_BYTES != 0 ||
            classes[i].slots == 0)
            return mp_fail(MP_ERR_INVALID, "E_INTERNAL",
                           "size class %" PRIu32 " has %" PRIu32 " slots of %" PRIu64 " bytes", i,
                           classes[i].slots, classes[i].slot_bytes);
    }
    return MP_OK;
}

static enum mp_status fail_overflow(void)
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
        return fail_overflow();
    return MP_OK;
}

/* Slots per class at step `step` of `steps`: the minimum at 0, all that are wanted at `steps`. */
static void slots_at(const struct mp_tier_class *classes, uint32_t class_count, uint32_t step,
                     uint32_t steps, uint32_t *slots)
{
    for (uint32_t i = 0; i < class_count; i++) {
        const uint32_t least = classes[i].slots < SLOTS_MIN ? classes[i].slots : SLOTS_MIN;
        const uint64_t more = classes[i].slots - least;

        slots[i] = least + (steps == 0 ? 0 : (uint32_t)(more * step / steps));
    }
}

static enum mp_status fail_small(uint64_t budget_bytes, uint64_t least_bytes, uint32_t class_count)
{
    return mp_fail(MP_ERR_CONFIG, "E_BUDGET_SMALL",
                   "budget of %" PRIu64 " bytes is below the minimum of %" PRIu64
                   " bytes for this model (two slots in each of %" PRIu32
                   " size classes); raise --budget",
                   budget_bytes, least_bytes, class_count);
}

enum mp_status mp_tier_fit(const struct mp_backend *backend, uint64_t budget_bytes,
                           struct mp_tier_class *classes, uint32_t class_count)
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
        return fail_overflow();
    if (bytes > budget_bytes)
        return fail_small(budget_bytes, bytes, class_count);

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
    for (uint32_t i = 0; i < class_count; i++)
        classes[i].slots = slots[i];
    return MP_OK;
}

/* Full frames, and a last one that is only as large as the slots that are left. */
static enum mp_status make_frames(struct mp_tier *tier, enum mp_tier_kind kind,
                                  const struct tier_class *class)
{
    const struct mp_backend *backend = tier->backend;
    uint32_t left = class->slots;

    while (left > 0) {
        const uint32_t slots = left < class->slots_per_frame ? left : class->slots_per_frame;
        struct mp_frame *frame = &tier->frames[tier->frame_count];
        uint64_t bytes;
        enum mp_status status;

        if (!frame_bytes_of(backend, class->slot_bytes, slots, &bytes))
            return fail_overflow();
        status = backend->ops->frame_create(tier->backend, kind, bytes, frame);
        if (status != MP_OK)
            return status;
        mp_assert(frame->handle != 0 && frame->bytes == bytes);
        mp_assert((uintptr_t)frame->alias % SLOT_ALIGN_BYTES == 0);
        tier->frame_count++;
        tier->frame_bytes += bytes;
        left -= slots;
    }
    return MP_OK;
}

/* Counts and the map of free slots; frames come later. */
static enum mp_status init_class(struct mp_tier *tier, const struct mp_tier_class *wanted,
                                 uint64_t *frames_total)
{
    struct tier_class *class = &tier->classes[tier->class_count];
    const uint32_t words = wanted->slots / WORD_BITS + (wanted->slots % WORD_BITS > 0);

    class->free_map = malloc(words * sizeof(*class->free_map));
    if (class->free_map == NULL)
        return mp_fail_no_memory("the map of free slots", words * sizeof(*class->free_map));
    tier->class_count++;
    memset(class->free_map, 0xff, words * sizeof(*class->free_map));
    if (wanted->slots % WORD_BITS > 0)
        class->free_map[words - 1] = (UINT64_C(1) << (wanted->slots % WORD_BITS)) - 1;
    class->slot_bytes = wanted->slot_bytes;
    class->slots = wanted->slots;
    class->free_slots = wanted->slots;
    class->slots_per_frame = slots_per_frame(tier->backend, wanted->slot_bytes);
    class->frame_first = (uint32_t)*frames_total;
    *frames_total += frames_of(class->slots, class->slots_per_frame);
    return MP_OK;
}

/* Frames may cost nothing until they are written, and ending the process then is too late. */
static enum mp_status check_room(struct mp_backend *backend, enum mp_tier_kind kind, uint64_t bytes)
{
    uint64_t free_bytes, total_bytes;
    const enum mp_status status =
        backend->ops->memory_info(backend, kind, &free_bytes, &total_bytes);

    if (status != MP_OK || bytes <= free_bytes)
        return status;
    return mp_fail(MP_ERR_NO_SPACE, "E_TIER_MEMORY",
                   "the %s tier needs %" PRIu64 " bytes, and %" PRIu64 " of %" PRIu64
                   " are free; lower --budget",
                   mp_tier_kind_name(kind), bytes, free_bytes, total_bytes);
}

enum mp_status mp_tier_create(struct mp_backend *backend, enum mp_tier_kind kind,
                              const struct mp_tier_class *classes, uint32_t class_count,
                              struct mp_tier **tier_p)
{
    struct mp_tier *tier;
    uint64_t frames_total = 0, bytes;
    enum mp_status status = mp_tier_cost(backend, classes, class_count, &bytes);

    if (status == MP_OK)
        status = check_room(backend, kind, bytes);
    if (status != MP_OK)
        return status;
    tier = calloc(1, sizeof(*tier));
    if (tier == NULL)
        return mp_fail_no_memory("a tier", sizeof(*tier));
    tier->backend = backend;

    for (uint32_t i = 0; i < class_count; i++) {
        status = init_class(tier, &classes[i], &frames_total);
        if (status != MP_OK)
            goto err_destroy;
    }
    if (frames_total > backend->caps.frames_max) {
        status = mp_fail(MP_ERR_NO_SPACE, "E_FRAMES",
                         "the tier needs %" PRIu64 " frames and backend %s makes at most %" PRIu32
                         "; lower --budget",
                         frames_total, backend->ops->name, backend->caps.frames_max);
        goto err_destroy;
    }
    tier->frames = calloc(frames_total, sizeof(*tier->frames));
    if (tier->frames == NULL) {
        status = mp_fail_no_memory("the list of frames", frames_total * sizeof(*tier->frames));
        goto err_destroy;
    }
    for (uint32_t i = 0; i < class_count; i++) {
        status = make_frames(tier, kind, &tier->classes[i]);
        if (status != MP_OK)
            goto err_destroy;
    }
    mp_assert(tier->frame_count == frames_total && tier->frame_bytes == bytes);
    mp_assert(mp_tier_check(tier));
    *tier_p = tier;
    return MP_OK;

err_destroy:
    mp_tier_destroy(tier);
    return status;
}

/* Also takes a half-made tier: counts say what exists. */
void mp_tier_destroy(struct mp_tier *tier)
{
    if (tier == NULL)
        return;
    while (tier->frame_count > 0)
        tier->backend->ops->frame_destroy(tier->backend, &tier->frames[--tier->frame_count]);
    free(tier->frames);
    while (tier->class_count > 0)
        free(tier->classes[--tier->class_count].free_map);
    free(tier);
}

enum mp_status mp_tier_take(struct mp_tier *tier, uint32_t class_index, struct mp_slot *slot_p)
{
    struct tier_class *class = &tier->classes[class_index];
    uint32_t word = class->hint_word;

    mp_assert(class_index < tier->class_count);
    if (class->free_slots == 0)
        return MP_ERR_NO_SPACE;
    while (class->free_map[word] == 0)
        word++;
    slot_p->class_index = class_index;
    slot_p->index = word * WORD_BITS + (uint32_t)__builtin_ctzll(class->free_map[word]);
    class->free_map[word] &= class->free_map[word] - 1;
    class->free_slots--;
    class->hint_word = word;
    return MP_OK;
}

void mp_tier_give(struct mp_tier *tier, struct mp_slot slot)
{
    struct tier_class *class = &tier->classes[slot.class_index];
    const uint32_t word = slot.index / WORD_BITS;
    const uint64_t bit = UINT64_C(1) << (slot.index % WORD_BITS);

    mp_assert(slot.class_index < tier->class_count && slot.index < class->slots);
    mp_assert((class->free_map[word] & bit) == 0);
    class->free_map[word] |= bit;
    class->free_slots++;
    if (word < class->hint_word)
        class->hint_word = word;
}

void *mp_tier_address(const struct mp_tier *tier, struct mp_slot slot)
{
    const struct tier_class *class = &tier->classes[slot.class_index];
    const uint32_t frame = class->frame_first + slot.index / class->slots_per_frame;

    mp_assert(slot.class_index < tier->class_count && slot.index < class->slots);
    return (char *)tier->frames[frame].alias +
           slot.index % class->slots_per_frame * class->slot_bytes;
}

uint32_t mp_tier_slots(const struct mp_tier *tier, uint32_t class_index)
{
    mp_assert(class_index < tier->class_count);
    return tier->classes[class_index].slots;
}

uint32_t mp_tier_free_slots(const struct mp_tier *tier, uint32_t class_index)
{
    mp_assert(class_index < tier->class_count);
    return tier->classes[class_index].free_slots;
}

uint64_t mp_tier_frame_bytes(const struct mp_tier *tier)
{
    return tier->frame_bytes;
}

const struct mp_frame *mp_tier_frames(const struct mp_tier *tier, uint32_t *count_p)
{
    *count_p = tier->frame_count;
    return tier->frames;
}

static bool check_class(const struct mp_tier *tier, const struct tier_class *class)
{
    const uint32_t frames = frames_of(class->slots, class->slots_per_frame);
    uint32_t free_slots = 0, held = 0;

    for (uint64_t word = 0; word * WORD_BITS < class->slots; word++) {
        free_slots += (uint32_t)__builtin_popcountll(class->free_map[word]);
        if (word < class->hint_word && class->free_map[word] != 0)
            return false;
    }
    for (uint32_t i = 0; i < frames; i++) {
        const struct mp_frame *frame = &tier->frames[class->frame_first + i];
        const uint32_t left = class->slots - held;
        const uint32_t here = left < class->slots_per_frame ? left : class->slots_per_frame;

        if (frame->handle == 0 || frame->bytes / class->slot_bytes < here)
            return false;
        held += here;
    }
    if (class->slots % WORD_BITS > 0 &&
        class->free_map[class->slots / WORD_BITS] >> (class->slots % WORD_BITS) != 0)
        return false;
    return held == class->slots && free_slots == class->free_slots;
}

bool mp_tier_check(const struct mp_tier *tier)
{
    uint64_t bytes = 0;
    uint32_t frames = 0;

    for (uint32_t i = 0; i < tier->class_count; i++) {
        if (tier->classes[i].frame_first != frames || !check_class(tier, &tier->classes[i]))
            return false;
        frames += frames_of(tier->classes[i].slots, tier->classes[i].slots_per_frame);
    }
    for (uint32_t i = 0; i < tier->frame_count; i++)
        bytes += tier->frames[i].bytes;
    return frames == tier->frame_count && bytes == tier->frame_bytes;
}
