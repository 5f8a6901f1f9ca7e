/*
 * A table of ids, four places for each hash; the place seen least gives way. For each layer a place
 * counts twice as many experts as a token chooses; one that is not counted yet takes the place of
 * the least counted one when that has worn off.
 */
#include "policy/lookahead/heat.h"

#include <stdlib.h>
#include <string.h>

#include "vmm/base/arena.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"

#define WAYS 4u
#define PLACES_MAX 4096u
#define SEEN_MOST MP_HEAT_SEEN_MAX /* then all counts of the place are halved */
#define DOUBT 1.5f /* occurrences of another kind that are assumed: one is no certainty */
#define NOBODY UINT32_MAX

struct entry {
    uint16_t expert, count;
};

struct mp_heat {
    struct mp_heat_shape shape;
    uint32_t sets, entries; /* of a layer */
    uint32_t *id;           // (sets, WAYS)
    uint32_t *seen;         // (sets, WAYS)
    struct entry *entry;    // (sets, WAYS, layers, entries)
    void *block;
};

_Static_assert((PLACES_MAX / WAYS + 1) * WAYS <= MP_HEAT_PLACES_MAX, "the header's bound holds");

uint32_t mp_heat_entries(const struct mp_heat_shape *shape)
{
    return 2 * shape->top_k < shape->experts ? 2 * shape->top_k : shape->experts;
}

static void take_arrays(struct mp_heat *heat, struct mp_arena *arena)
{
    const uint64_t places = (uint64_t)heat->sets * WAYS;

    heat->id = mp_arena_take(arena, places, sizeof(uint32_t));
    heat->seen = mp_arena_take(arena, places, sizeof(uint32_t));
    heat->entry =
        mp_arena_take(arena, places * heat->shape.layers, heat->entries * sizeof(struct entry));
}

enum mp_status mp_heat_create(const struct mp_heat_shape *shape, struct mp_heat **heat_p)
{
    const uint32_t places = shape->vocab < PLACES_MAX ? shape->vocab : PLACES_MAX;
    struct mp_heat *heat = calloc(1, sizeof(*heat));
    struct mp_arena arena = { 0 };
    enum mp_status status;

    mp_assert(shape->experts <= UINT16_MAX && shape->top_k <= shape->experts);
    if (heat == NULL)
        return mp_fail_no_memory("the lookahead", sizeof(*heat));
    heat->shape = *shape;
    heat->sets = places / WAYS + 1;
    heat->entries = mp_heat_entries(shape);
    take_arrays(heat, &arena);
    status = mp_arena_open(&arena, "the lookahead");
    if (status != MP_OK) {
        free(heat);
        return status;
    }
    take_arrays(heat, &arena);
    heat->block = arena.block;
    for (uint32_t i = 0; i < heat->sets * WAYS; i++)
        heat->id[i] = NOBODY;
    *heat_p = heat;
    return MP_OK;
}

void mp_heat_destroy(struct mp_heat *heat)
{
    if (heat == NULL)
        return;
    free(heat->block);
    free(heat);
}

static uint32_t find(const struct mp_heat *heat, uint32_t id)
{
    const uint32_t first = (uint32_t)(id * UINT64_C(2654435761) % heat->sets) * WAYS;

    for (uint32_t way = 0; way < WAYS; way++) {
        if (heat->id[first + way] == id)
            return first + way;
    }
    return NOBODY;
}

static struct entry *entries_of(const struct mp_heat *heat, uint32_t place, uint32_t layer)
{
    return heat->entry + ((size_t)place * heat->shape.layers + layer) * heat->entries;
}

static void halve(struct mp_heat *heat, uint32_t place)
{
    struct entry *entry = entries_of(heat, place, 0);

    heat->seen[place] /= 2;
    for (size_t i = 0; i < (size_t)heat->shape.layers * heat->entries; i++)
        entry[i].count /= 2;
}

/* A place for a new id, or NOBODY as long as those there have been seen more. */
static uint32_t make_place(struct mp_heat *heat, uint32_t id)
{
    const uint32_t first = (uint32_t)(id * UINT64_C(2654435761) % heat->sets) * WAYS;
    uint32_t place = first;

    for (uint32_t way = 1; way < WAYS; way++) {
        if (heat->seen[first + way] < heat->seen[place])
            place = first + way;
    }
    if (heat->seen[place] > 1) {
        halve(heat, place);
        return NOBODY;
    }
    heat->id[place] = id;
    heat->seen[place] = 0;
    memset(entries_of(heat, place, 0), 0,
           (size_t)heat->shape.layers * heat->entries * sizeof(struct entry));
    return place;
}

static void count(struct mp_heat *heat, struct entry *entry, uint32_t expert)
{
    uint32_t least = 0;

    for (uint32_t i = 0; i < heat->entries; i++) {
        if (entry[i].count > 0 && entry[i].expert == expert) {
            entry[i].count++;
            return;
        }
        if (entry[i].count < entry[least].count)
            least = i;
    }
    if (entry[least].count > 1)
        entry[least].count--;
    else
        entry[least] = (struct entry){ (uint16_t)expert, 1 };
}

void mp_heat_learn(struct mp_heat *heat, uint32_t layer, uint32_t id, const uint32_t *chosen)
{
    uint32_t place = find(heat, id);

    mp_assert(layer < heat->shape.layers);
    if (layer == 0) {
        if (place == NOBODY)
            place = make_place(heat, id);
        if (place != NOBODY && heat->seen[place]++ == SEEN_MOST)
            halve(heat, place);
    }
    if (place == NOBODY)
        return;
    for (uint32_t r = 0; r < heat->shape.top_k; r++)
        count(heat, entries_of(heat, place, layer), chosen[r]);
}

void mp_heat_add(const struct mp_heat *heat, uint32_t layer, uint32_t id, float weight,
                 float *share)
{
    const uint32_t place = find(heat, id);
    const struct entry *entry;

    mp_assert(layer < heat->shape.layers);
    if (place == NOBODY)
        return;
    entry = entries_of(heat, place, layer);
    for (uint32_t i = 0; i < heat->entries; i++) {
        const float p = (float)entry[i].count / ((float)heat->seen[place] + DOUBT);

        if (entry[i].count > 0)
            share[entry[i].expert] = 1 - (1 - share[entry[i].expert]) * (1 - weight * p);
    }
}

uint32_t mp_heat_places(const struct mp_heat *heat)
{
    return heat->sets * WAYS;
}

bool mp_heat_get(const struct mp_heat *heat, uint32_t place, struct mp_heat_row *row)
{
    const struct entry *entry = entries_of(heat, place, 0);

    mp_assert(place < mp_heat_places(heat));
    if (heat->id[place] == NOBODY)
        return false;
    row->id = (float)heat->id[place];
    row->seen = (float)heat->seen[place];
    for (size_t i = 0; i < (size_t)heat->shape.layers * heat->entries; i++) {
        row->expert[i] = entry[i].expert;
        row->count[i] = entry[i].count;
    }
    return true;
}

/* A whole number from 0 to `most`; 0 for what is none. */
static uint32_t whole(float value, uint32_t most)
{
    return value >= 0 && value <= (float)most ? (uint32_t)value : 0;
}

void mp_heat_put(struct mp_heat *heat, const struct mp_heat_row *row)
{
    const uint32_t id = whole(row->id, heat->shape.vocab - 1);
    const uint32_t seen = whole(row->seen, SEEN_MOST);
    uint32_t place;
    struct entry *entry;

    if (seen == 0 || find(heat, id) != NOBODY)
        return;
    place = make_place(heat, id);
    if (place == NOBODY)
        return;
    heat->seen[place] = seen;
    entry = entries_of(heat, place, 0);
    for (size_t i = 0; i < (size_t)heat->shape.layers * heat->entries; i++) {
        entry[i].expert = (uint16_t)whole(row->expert[i], heat->shape.experts - 1);
        entry[i].count = (uint16_t)whole(row->count[i], seen);
    }
}

uint32_t mp_heat_list(const float *share, uint32_t experts, float least, uint32_t max,
                      uint32_t *list)
{
    uint32_t count = 0;

    for (uint32_t e = 0; e < experts; e++) {
        uint32_t at = count;

        if (!(share[e] >= least) || max == 0)
            continue;
        while (at > 0 && share[list[at - 1]] < share[e])
            at--;
        if (at == max)
            continue;
        count += count < max;
        memmove(list + at + 1, list + at, (count - 1 - at) * sizeof(list[0]));
        list[at] = e;
    }
    return count;
}
