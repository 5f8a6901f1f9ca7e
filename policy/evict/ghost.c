/*
 * Ghosts: what an evict policy would hold, as a heap or as lists of layers; see ghost.h. No expert
 * is loaded here, and nothing is compared: evict policy `shadow` does that.
 */
#include "policy/evict/ghost.h"

#include <math.h>
#include <string.h>

#include "vmm/base/assert.h"

/* As evict policy `lcp` with the paper's parameters. */
#define LCP_RHO 0.25
#define LCP_OMEGA 128

void mp_ghost_facts_take(struct mp_ghost_facts *facts, const struct mp_shape *shape,
                         struct mp_arena *arena)
{
    const size_t ids = (size_t)shape->layers * shape->experts;

    *facts = (struct mp_ghost_facts){
        .layers = shape->layers,
        .experts = shape->experts,
        .slots = shape->slots,
        .fade = -log(LCP_RHO) / LCP_OMEGA / shape->top_k,
    };
    facts->used = mp_arena_take(arena, ids, sizeof(uint64_t));
    facts->count = mp_arena_take(arena, ids, sizeof(uint64_t));
    facts->pairs = mp_arena_take(arena, shape->layers, sizeof(uint64_t));
}

void mp_ghost_facts_use(struct mp_ghost_facts *facts, uint32_t id, uint32_t tokens)
{
    mp_assert(id < facts->layers * facts->experts);
    facts->used[id] = ++facts->uses;
    facts->count[id]++;
    facts->pairs[id / facts->experts] += tokens;
}

void mp_ghost_take(struct mp_ghost *ghost, enum mp_ghost_kind kind,
                   const struct mp_ghost_facts *facts, struct mp_arena *arena)
{
    const size_t ids = (size_t)facts->layers * facts->experts;
    const size_t heaped = kind == MP_GHOST_LCP ? ids : 0;
    const size_t listed = kind == MP_GHOST_LAYER_LRU ? ids + facts->layers : 0;

    *ghost = (struct mp_ghost){ .kind = kind, .facts = facts };
    ghost->held = mp_arena_take(arena, ids, 1);
    ghost->attached = mp_arena_take(arena, kind == MP_GHOST_LAYER_LFU ? ids : 0, 1);
    ghost->key = mp_arena_take(arena, heaped, sizeof(double));
    ghost->heap = mp_arena_take(arena, heaped, sizeof(uint32_t));
    ghost->place = mp_arena_take(arena, heaped, sizeof(uint32_t));
    ghost->next = mp_arena_take(arena, listed, sizeof(uint32_t));
    ghost->previous = mp_arena_take(arena, listed, sizeof(uint32_t));
    ghost->in_layer = mp_arena_take(arena, facts->layers, sizeof(uint32_t));
    if (arena->block == NULL)
        return;
    memset(ghost->place, 0xff, heaped * sizeof(uint32_t));
    for (size_t l = ids; l < listed; l++)
        ghost->next[l] = ghost->previous[l] = (uint32_t)l;
}

bool mp_ghost_before(const struct mp_ghost *ghost, uint32_t a, uint32_t b)
{
    const uint64_t *used = ghost->facts->used;
    const uint64_t *count = ghost->facts->count;
    const bool counted = ghost->kind == MP_GHOST_LAYER_LFU || ghost->kind == MP_GHOST_STATIC;

    mp_assert(a < ghost->facts->layers * ghost->facts->experts);
    if (ghost->kind == MP_GHOST_LCP && ghost->key[a] != ghost->key[b])
        return ghost->key[a] < ghost->key[b];
    if (counted && count[a] != count[b])
        return count[a] < count[b];
    return used[a] < used[b] || (used[a] == used[b] && a < b);
}

static void put(struct mp_ghost *ghost, uint32_t place, uint32_t id)
{
    ghost->heap[place] = id;
    ghost->place[id] = place;
}

static void sift_up(struct mp_ghost *ghost, uint32_t place, uint32_t id)
{
    while (place > 0 && mp_ghost_before(ghost, id, ghost->heap[(place - 1) / 2])) {
        put(ghost, place, ghost->heap[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    put(ghost, place, id);
}

static void sift_down(struct mp_ghost *ghost, uint32_t place, uint32_t id)
{
    for (;;) {
        uint32_t child = 2 * place + 1;

        if (child + 1 < ghost->heap_size &&
            mp_ghost_before(ghost, ghost->heap[child + 1], ghost->heap[child]))
            child++;
        if (child >= ghost->heap_size || !mp_ghost_before(ghost, ghost->heap[child], id))
            break;
        put(ghost, place, ghost->heap[child]);
        place = child;
    }
    put(ghost, place, id);
}

static void heap_remove(struct mp_ghost *ghost, uint32_t id)
{
    const uint32_t place = ghost->place[id];
    uint32_t last;

    mp_assert(place < ghost->heap_size);
    ghost->place[id] = MP_EXPERT_NONE;
    last = ghost->heap[--ghost->heap_size];
    if (last == id)
        return;
    if (place > 0 && mp_ghost_before(ghost, last, ghost->heap[(place - 1) / 2]))
        sift_up(ghost, place, last);
    else
        sift_down(ghost, place, last);
}

void mp_ghost_detach(struct mp_ghost *ghost, uint32_t id)
{
    if (ghost->kind == MP_GHOST_LAYER_LFU) {
        ghost->attached[id] = 0;
    } else if (ghost->kind == MP_GHOST_LAYER_LRU) {
        ghost->next[ghost->previous[id]] = ghost->next[id];
        ghost->previous[ghost->next[id]] = ghost->previous[id];
    } else if (ghost->kind != MP_GHOST_STATIC) {
        heap_remove(ghost, id);
    }
}

/* Static form of lcp: all priorities of a layer fade alike, so only what differs is kept. */
static double key_of(const struct mp_ghost *ghost, uint32_t id)
{
    const struct mp_ghost_facts *facts = ghost->facts;

    return log((double)facts->count[id]) + facts->fade * (double)facts->pairs[id / facts->experts];
}

void mp_ghost_attach(struct mp_ghost *ghost, uint32_t id)
{
    const struct mp_ghost_facts *facts = ghost->facts;

    if (ghost->kind == MP_GHOST_LAYER_LFU) {
        ghost->attached[id] = 1;
    } else if (ghost->kind == MP_GHOST_LAYER_LRU) {
        const uint32_t list = facts->layers * facts->experts + id / facts->experts;

        ghost->previous[id] = ghost->previous[list];
        ghost->next[id] = list;
        ghost->next[ghost->previous[list]] = id;
        ghost->previous[list] = id;
    } else if (ghost->kind != MP_GHOST_STATIC) {
        ghost->key[id] = key_of(ghost, id);
        sift_up(ghost, ghost->heap_size++, id);
    }
}

static uint32_t share_of(const struct mp_ghost_facts *facts, uint32_t layer)
{
    return mp_equal_share(facts->slots, facts->layers, layer);
}

/* The layer that should give up an expert: `own` if it has its share, else the one that exceeds its
 * share most. */
static uint32_t giving_layer(const struct mp_ghost *ghost, uint32_t own)
{
    const struct mp_ghost_facts *facts = ghost->facts;
    uint32_t layer = own, worst_excess = 0;

    mp_assert(own < facts->layers);
    if (ghost->in_layer[own] >= share_of(facts, own))
        return own;
    for (uint32_t l = 0; l < facts->layers; l++) {
        const uint32_t share = share_of(facts, l);

        if (ghost->in_layer[l] > share && ghost->in_layer[l] - share > worst_excess) {
            worst_excess = ghost->in_layer[l] - share;
            layer = l;
        }
    }
    return layer;
}

static uint32_t oldest(const struct mp_ghost *ghost, uint32_t own)
{
    const struct mp_ghost_facts *facts = ghost->facts;
    const uint32_t ids = facts->layers * facts->experts;
    uint32_t layer = giving_layer(ghost, own);

    for (uint32_t l = 0; ghost->next[ids + layer] == ids + layer && l < facts->layers; l++)
        layer = l; /* all of that one is in use: the first that has something */
    return ghost->next[ids + layer] < ids ? ghost->next[ids + layer] : MP_EXPERT_NONE;
}

/* The attached expert of first..end-1 that was used least, or MP_EXPERT_NONE. */
static uint32_t least_used(const struct mp_ghost *ghost, uint32_t first, uint32_t end)
{
    uint32_t best = MP_EXPERT_NONE;

    for (uint32_t id = first; id < end; id++) {
        if (ghost->attached[id] && (best == MP_EXPERT_NONE || mp_ghost_before(ghost, id, best)))
            best = id;
    }
    return best;
}

static uint32_t victim_of(const struct mp_ghost *ghost, uint32_t id)
{
    const uint32_t layers = ghost->facts->layers, experts = ghost->facts->experts;
    uint32_t layer, victim;

    if (ghost->kind == MP_GHOST_LAYER_LRU)
        return oldest(ghost, id / experts);
    if (ghost->kind == MP_GHOST_LCP)
        return ghost->heap_size > 0 ? ghost->heap[0] : MP_EXPERT_NONE;
    layer = giving_layer(ghost, id / experts);
    victim = least_used(ghost, layer * experts, (layer + 1) * experts);
    return victim != MP_EXPERT_NONE ? victim : least_used(ghost, 0, layers * experts);
}

uint32_t mp_ghost_load(struct mp_ghost *ghost, uint32_t id)
{
    uint32_t victim = MP_EXPERT_NONE;

    mp_assert(!ghost->held[id]);
    mp_assert(ghost->count <= ghost->facts->slots);
    if (ghost->kind == MP_GHOST_STATIC)
        return id;
    if (ghost->count == ghost->facts->slots) {
        victim = victim_of(ghost, id);
        if (victim == MP_EXPERT_NONE)
            return id; /* one batch fills all slots: not kept */
        mp_ghost_detach(ghost, victim);
        ghost->held[victim] = 0;
        ghost->count--;
        ghost->in_layer[victim / ghost->facts->experts]--;
    }
    ghost->held[id] = 1;
    ghost->count++;
    ghost->in_layer[id / ghost->facts->experts]++;
    return victim;
}
