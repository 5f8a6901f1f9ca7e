/*
 * The slots of a size class are adjacent in frames. Free slots are a bitmap; the search for the
 * lowest free one starts at a hint below which nothing is free.
 */
#include "vmm/space/tier_int.h"

#include <inttypes.h>
#include <stdlib.h>

#include "vmm/base/arena.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"
#include "vmm/backend/frames.h"

#define WORD_BITS 64

struct tier_class {
    uint64_t slot_bytes;
    uint32_t slots, free_slots;
    uint32_t slots_max;
    uint32_t slots_per_frame;
    uint32_t frame_first; /* in tier->frames */
    uint32_t frame_count; /* numbers of frames, existing or not */
    uint32_t words;       /* of free_map */
    uint32_t hint_word;   /* no free slot in the words before it */
    uint64_t *free_map;   /* bit set: free */
};

struct mp_tier {
    struct mp_backend *backend;
    enum mp_tier_kind kind;
    struct tier_class classes[MP_TIER_CLASSES_MAX];
    uint32_t class_count;
    uint32_t frame_count; /* numbers, existing or not */
    void *arrays;         /* the block of all arrays */
    struct mp_frame *frames;
    uint32_t *frame_slots; // (frames): 0 where there is none
    uint64_t frame_bytes;
};

static uint32_t frames_of(uint32_t slots, uint32_t per_frame)
{
    mp_assert(per_frame > 0);
    return slots / per_frame + (slots % per_frame > 0);
}

/* The frame of this number exists now, with `slots` slots, all of them free. */
static void adopt_frame(struct mp_tier *tier, struct tier_class *class, uint32_t number,
                        uint32_t slots)
{
    const struct mp_frame *frame = &tier->frames[class->frame_first + number];
    const uint32_t first = number * class->slots_per_frame;

    mp_assert(frame->handle != 0 && frame->bytes / class->slot_bytes >= slots);
    mp_assert((uintptr_t)frame->alias % MP_SLOT_ALIGN_BYTES == 0);
    tier->frame_slots[class->frame_first + number] = slots;
    tier->frame_bytes += frame->bytes;
    for (uint32_t i = first; i < first + slots; i++)
        class->free_map[i / WORD_BITS] |= UINT64_C(1) << (i % WORD_BITS);
    class->slots += slots;
    class->free_slots += slots;
    if (first / WORD_BITS < class->hint_word)
        class->hint_word = first / WORD_BITS;
}

static enum mp_status make_frame(struct mp_tier *tier, struct tier_class *class, uint32_t number,
                                 uint32_t slots)
{
    const struct mp_backend *backend = tier->backend;
    uint64_t bytes;
    enum mp_status status;

    mp_assert(slots > 0 && slots <= class->slots_per_frame);
    mp_assert(tier->frame_slots[class->frame_first + number] == 0);
    if (!mp_tier_frame_bytes_of(backend, class->slot_bytes, slots, &bytes))
        return mp_tier_fail_overflow();
    status = backend->ops->frame_create(tier->backend, tier->kind, bytes,
                                        &tier->frames[class->frame_first + number]);
    if (status == MP_OK)
        adopt_frame(tier, class, number, slots);
    return status;
}

static void destroy_frame(struct mp_tier *tier, uint32_t frame)
{
    mp_assert(tier->frame_slots[frame] > 0);
    mp_assert(tier->frame_bytes >= tier->frames[frame].bytes);
    tier->frame_bytes -= tier->frames[frame].bytes;
    tier->backend->ops->frame_destroy(tier->backend, &tier->frames[frame]);
    tier->frames[frame] = (struct mp_frame){ .handle = 0 };
    tier->frame_slots[frame] = 0;
}

static uint32_t slots_in(const struct tier_class *class, uint32_t slots, uint32_t number)
{
    const uint32_t left = slots - number * class->slots_per_frame;

    mp_assert(number * class->slots_per_frame < slots);
    return left < class->slots_per_frame ? left : class->slots_per_frame;
}

/* Full frames, and a last one of each class that is only as large as the slots that are left. */
static enum mp_status make_frames(struct mp_tier *tier, const struct mp_tier_class *wanted)
{
    struct mp_frame_order *orders = calloc(tier->frame_count, sizeof(*orders));
    enum mp_status status = MP_OK;
    uint32_t count = 0;

    if (orders == NULL)
        return mp_fail_no_memory("the list of frames to make", tier->frame_count * sizeof(*orders));
    for (uint32_t c = 0; status == MP_OK && c < tier->class_count; c++) {
        const struct tier_class *class = &tier->classes[c];
        const uint32_t frames = frames_of(wanted[c].slots, class->slots_per_frame);

        for (uint32_t i = 0; status == MP_OK && i < frames; i++, count++) {
            orders[count].frame_p = &tier->frames[class->frame_first + i];
            if (!mp_tier_frame_bytes_of(tier->backend, class->slot_bytes,
                                        slots_in(class, wanted[c].slots, i), &orders[count].bytes))
                status = mp_tier_fail_overflow();
        }
    }
    mp_assert(status != MP_OK || count <= tier->frame_count);
    if (status == MP_OK)
        status = mp_frames_make(tier->backend, tier->kind, orders, count);
    free(orders);
    for (uint32_t c = 0; status == MP_OK && c < tier->class_count; c++) {
        struct tier_class *class = &tier->classes[c];
        const uint32_t frames = frames_of(wanted[c].slots, class->slots_per_frame);

        for (uint32_t i = 0; i < frames; i++)
            adopt_frame(tier, class, i, slots_in(class, wanted[c].slots, i));
    }
    return status;
}

/* Counts of the next class; its arrays and frames come later. */
static enum mp_status init_class(struct mp_tier *tier, const struct mp_tier_class *wanted,
                                 uint64_t *frames_total)
{
    struct tier_class *class = &tier->classes[tier->class_count];
    const uint32_t max = wanted->slots_max > wanted->slots ? wanted->slots_max : wanted->slots;
    uint64_t ends;

    mp_assert(tier->class_count < MP_TIER_CLASSES_MAX);
    class->slots_per_frame = mp_tier_per_frame(tier->backend, wanted);
    if (class->slots_per_frame > max)
        class->slots_per_frame = max;
    class->frame_count = frames_of(max, class->slots_per_frame);
    if (wanted->slots_max > 0) /* so that one can take the place of another */
        class->frame_count++;
    ends = (uint64_t) class->frame_count * class->slots_per_frame;
    if (ends > UINT32_MAX || *frames_total + class->frame_count > UINT32_MAX)
        return mp_tier_fail_overflow();
    class->words = (uint32_t)(ends / WORD_BITS) + (ends % WORD_BITS > 0);
    tier->class_count++;
    class->slot_bytes = wanted->slot_bytes;
    class->slots_max = max;
    class->frame_first = (uint32_t)*frames_total;
    *frames_total += class->frame_count;
    return MP_OK;
}

static void take_arrays(struct mp_tier *tier, uint32_t frame_count, struct mp_arena *arena)
{
    tier->frames = mp_arena_take(arena, frame_count, sizeof(*tier->frames));
    tier->frame_slots = mp_arena_take(arena, frame_count, sizeof(*tier->frame_slots));
    for (uint32_t c = 0; c < tier->class_count; c++) {
        struct tier_class *class = &tier->classes[c];

        class->free_map = mp_arena_take(arena, class->words, sizeof(*class->free_map));
    }
}

static enum mp_status make_arrays(struct mp_tier *tier, uint32_t frame_count)
{
    struct mp_arena arena = { 0 };
    enum mp_status status;

    mp_assert(tier->arrays == NULL);
    take_arrays(tier, frame_count, &arena);
    status = mp_arena_open(&arena, "a tier");
    if (status != MP_OK)
        return status;
    take_arrays(tier, frame_count, &arena);
    tier->arrays = arena.block;
    tier->frame_count = frame_count;
    return MP_OK;
}

/* Frames may cost nothing until they are written, and ending the process then is too late. */
static enum mp_status check_room(struct mp_backend *backend, enum mp_tier_kind kind, uint64_t bytes)
{
    uint64_t free_bytes, total_bytes;
    const enum mp_status status =
        backend->ops->memory_info(backend, kind, &free_bytes, &total_bytes);

    mp_assert(bytes > 0);
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
    uint64_t frames_total = 0, frames_now = 0, bytes;
    enum mp_status status = mp_tier_cost(backend, classes, class_count, &bytes);

    if (status == MP_OK)
        status = check_room(backend, kind, bytes);
    if (status != MP_OK)
        return status;
    tier = calloc(1, sizeof(*tier));
    if (tier == NULL)
        return mp_fail_no_memory("a tier", sizeof(*tier));
    tier->backend = backend;
    tier->kind = kind;

    for (uint32_t i = 0; i < class_count; i++) {
        status = init_class(tier, &classes[i], &frames_total);
        if (status != MP_OK)
            goto err_destroy;
        frames_now += frames_of(classes[i].slots, tier->classes[i].slots_per_frame);
    }
    if (frames_now > backend->caps.frames_max) {
        status = mp_fail(MP_ERR_NO_SPACE, "E_FRAMES",
                         "the tier needs %" PRIu64 " frames and backend %s makes at most %" PRIu32
                         "; lower --budget",
                         frames_now, backend->ops->name, backend->caps.frames_max);
        goto err_destroy;
    }
    status = make_arrays(tier, (uint32_t)frames_total);
    if (status == MP_OK)
        status = make_frames(tier, classes);
    if (status != MP_OK)
        goto err_destroy;
    mp_assert(tier->frame_bytes == bytes);
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
    while (tier->frame_count > 0) {
        if (tier->frame_slots[--tier->frame_count] > 0)
            destroy_frame(tier, tier->frame_count);
    }
    free(tier->arrays);
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

    mp_assert(slot.class_index < tier->class_count && word < class->words);
    mp_assert((class->free_map[word] & bit) == 0);
    mp_assert(class->free_slots < class->slots);
    class->free_map[word] |= bit;
    class->free_slots++;
    if (word < class->hint_word)
        class->hint_word = word;
}

const struct mp_frame *mp_tier_frame(const struct mp_tier *tier, struct mp_slot slot)
{
    const struct tier_class *class = &tier->classes[slot.class_index];
    const uint32_t frame = class->frame_first + slot.index / class->slots_per_frame;

    mp_assert(slot.class_index < tier->class_count);
    mp_assert(slot.index % class->slots_per_frame < tier->frame_slots[frame]);
    return &tier->frames[frame];
}

void *mp_tier_address(const struct mp_tier *tier, struct mp_slot slot)
{
    const struct tier_class *class = &tier->classes[slot.class_index];

    return (char *)mp_tier_frame(tier, slot)->alias +
           slot.index % class->slots_per_frame * class->slot_bytes;
}

bool mp_tier_is_free(const struct mp_tier *tier, struct mp_slot slot)
{
    const struct tier_class *class = &tier->classes[slot.class_index];

    mp_assert(slot.class_index < tier->class_count && slot.index / WORD_BITS < class->words);
    return class->free_map[slot.index / WORD_BITS] >> (slot.index % WORD_BITS) & 1;
}

void mp_tier_take_slot(struct mp_tier *tier, struct mp_slot slot)
{
    struct tier_class *class = &tier->classes[slot.class_index];

    mp_assert(mp_tier_is_free(tier, slot));
    class->free_map[slot.index / WORD_BITS] &= ~(UINT64_C(1) << (slot.index % WORD_BITS));
    mp_assert(class->free_slots > 0);
    class->free_slots--;
}

uint32_t mp_tier_frame_count(const struct mp_tier *tier, uint32_t class_index)
{
    mp_assert(class_index < tier->class_count);
    return tier->classes[class_index].frame_count;
}

uint32_t mp_tier_frame_slots(const struct mp_tier *tier, uint32_t class_index, uint32_t frame,
                             uint32_t *first_p)
{
    const struct tier_class *class = &tier->classes[class_index];

    mp_assert(class_index < tier->class_count && frame < class->frame_count);
    *first_p = frame * class->slots_per_frame;
    return tier->frame_slots[class->frame_first + frame];
}

void mp_tier_remove_frame(struct mp_tier *tier, uint32_t class_index, uint32_t frame)
{
    struct tier_class *class = &tier->classes[class_index];
    uint32_t first;
    const uint32_t slots = mp_tier_frame_slots(tier, class_index, frame, &first);

    mp_assert(slots > 0);
    for (uint32_t i = first; i < first + slots; i++)
        mp_tier_take_slot(tier, (struct mp_slot){ class_index, i });
    class->slots -= slots;
    destroy_frame(tier, class->frame_first + frame);
}

/* The first number without a frame, and how many slots one there would have; 0: none. */
static uint32_t find_gap(const struct mp_tier *tier, const struct tier_class *class,
                         uint32_t *number_p)
{
    const uint32_t room = class->slots_max > class->slots ? class->slots_max - class->slots : 0;
    uint32_t number = 0;

    mp_assert(class->slots_per_frame > 0);
    while (number < class->frame_count && tier->frame_slots[class->frame_first + number] > 0)
        number++;
    *number_p = number;
    if (number == class->frame_count)
        return 0;
    return room < class->slots_per_frame ? room : class->slots_per_frame;
}

uint32_t mp_tier_frame_gap(const struct mp_tier *tier, uint32_t class_index)
{
    uint32_t number;

    mp_assert(class_index < tier->class_count);
    (void)find_gap(tier, &tier->classes[class_index], &number);
    return number < tier->classes[class_index].frame_count ? number : UINT32_MAX;
}

uint64_t mp_tier_next_frame_bytes(const struct mp_tier *tier, uint32_t class_index, uint32_t slots)
{
    const struct tier_class *class = &tier->classes[class_index];
    uint64_t bytes = 0;
    uint32_t number;
    const uint32_t most = find_gap(tier, class, &number);

    mp_assert(class_index < tier->class_count && slots <= class->slots_per_frame);
    if (slots == 0)
        slots = most;
    return slots > 0 && mp_tier_frame_bytes_of(tier->backend, class->slot_bytes, slots, &bytes)
               ? bytes
               : 0;
}

enum mp_status mp_tier_add_frame(struct mp_tier *tier, uint32_t class_index, uint32_t slots)
{
    struct tier_class *class = &tier->classes[class_index];
    uint32_t number;
    const uint32_t most = find_gap(tier, class, &number);

    mp_assert(class_index < tier->class_count && slots <= class->slots_per_frame);
    if (slots == 0)
        slots = most;
    return slots > 0 && number < class->frame_count ? make_frame(tier, class, number, slots)
                                                    : MP_ERR_INVALID;
}

uint32_t mp_tier_slots_per_frame(const struct mp_tier *tier, uint32_t class_index)
{
    mp_assert(class_index < tier->class_count);
    return tier->classes[class_index].slots_per_frame;
}

uint32_t mp_tier_index_end(const struct mp_tier *tier, uint32_t class_index)
{
    mp_assert(class_index < tier->class_count);
    return tier->classes[class_index].frame_count * tier->classes[class_index].slots_per_frame;
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
    mp_assert(tier->frames != NULL);
    *count_p = tier->frame_count;
    return tier->frames;
}

static bool check_class(const struct mp_tier *tier, const struct tier_class *class)
{
    uint32_t free_slots = 0, held = 0;

    for (uint32_t word = 0; word < class->words; word++) {
        free_slots += (uint32_t)__builtin_popcountll(class->free_map[word]);
        if (word < class->hint_word && class->free_map[word] != 0)
            return false;
    }
    for (uint32_t i = 0; i < class->frame_count; i++) {
        const struct mp_frame *frame = &tier->frames[class->frame_first + i];
        const uint32_t here = tier->frame_slots[class->frame_first + i];

        if ((frame->handle == 0) != (here == 0) || here > class->slots_per_frame ||
            frame->bytes / class->slot_bytes < here)
            return false;
        held += here;
        /* Beyond a frame's slots nothing is free. */
        for (uint32_t k = here; k < class->slots_per_frame; k++) {
            const uint32_t index = i * class->slots_per_frame + k;

            if (class->free_map[index / WORD_BITS] >> (index % WORD_BITS) & 1)
                return false;
        }
    }
    /* A frame that takes the place of another one is there beside it for a while. */
    return held == class->slots && held <= class->slots_max + class->slots_per_frame &&
           free_slots == class->free_slots;
}

bool mp_tier_check(const struct mp_tier *tier)
{
    uint64_t bytes = 0;
    uint32_t frames = 0;

    for (uint32_t i = 0; i < tier->class_count; i++) {
        if (tier->classes[i].frame_first != frames || !check_class(tier, &tier->classes[i]))
            return false;
        frames += tier->classes[i].frame_count;
    }
    for (uint32_t i = 0; i < tier->frame_count; i++)
        bytes += tier->frames[i].bytes;
    return frames == tier->frame_count && bytes == tier->frame_bytes;
}
