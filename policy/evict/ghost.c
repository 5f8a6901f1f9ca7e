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

/* Half-lives of the shares, in tokens. */
static const double share_lives[MP_GHOST_SHARES] = { 1, 6, 32 };

/* As evict policy `ema` with its default. */
#define EMA_KEEP 0.9

#define RARE 1e-6 /* a share that no expert's is below, so that it can be divided by */

/* Its victims are looked for among flags. */
static bool is_flagged(enum mp_ghost_kind kind)
{
    return kind == MP_GHOST_NEXT_USE || kind == MP_GHOST_LAYER_LFU || kind == MP_GHOST_EMA;
}

/* Its order among the experts of a layer changes only with a batch of the layer. */
static bool is_cached(enum mp_ghost_kind kind)
{
    return kind == MP_GHOST_NEXT_USE || kind == MP_GHOST_EMA;
}

static bool is_heaped(enum mp_ghost_kind kind)
{
    return kind == MP_GHOST_LCP || kind == MP_GHOST_LRU;
}

void mp_ghost_facts_take(struct mp_ghost_facts *facts, const struct mp_shape *shape,
                         struct mp_arena *arena)
{
    const size_t ids = (size_t)shape->layers * shape->experts;

    *facts = (struct mp_ghost_facts){
        .layers = shape->layers,
        .experts = shape->experts,
        .slots = shape->slots,
        .top_k = shape->top_k,
        .fade = -log(LCP_RHO) / LCP_OMEGA / shape->top_k,
    };
    facts->used = mp_arena_take(arena, ids, sizeof(uint64_t));
    facts->count = mp_arena_take(arena, ids, sizeof(uint64_t));
    facts->pairs = mp_arena_take(arena, shape->layers, sizeof(uint64_t));
    facts->faded = mp_arena_take(arena, ids * MP_GHOST_SHARES, sizeof(double));
    facts->total = mp_arena_take(arena, (size_t)shape->layers * MP_GHOST_SHARES, sizeof(double));
    facts->wait = mp_arena_take(arena, ids, sizeof(double));
    facts->batches = mp_arena_take(arena, shape->layers, sizeof(uint64_t));
    facts->average = mp_arena_take(arena, ids, sizeof(double));
    facts->weighed = mp_arena_take(arena, shape->layers, sizeof(double));
    facts->sum = mp_arena_take(arena, shape->experts, sizeof(double));
}

void mp_ghost_facts_use(struct mp_ghost_facts *facts, uint32_t id, uint32_t tokens)
{
    mp_assert(id < facts->layers * facts->experts);
    facts->used[id] = ++facts->uses;
    facts->count[id]++;
    facts->pairs[id / facts->experts] += tokens;
}

/* A batch of `tokens` tokens, for which the experts' means are sum[e] / count. */
static void average(struct mp_ghost_facts *facts, uint32_t layer, double tokens, double count)
{
    const double keep = pow(EMA_KEEP, tokens);
    double *of_layer = facts->average + (size_t)layer * facts->experts;

    for (uint32_t e = 0; e < facts->experts; e++)
        of_layer[e] = keep * of_layer[e] + (1 - keep) * facts->sum[e] / count;
    facts->weighed[layer] = keep * facts->weighed[layer] + 1 - keep;
}

void mp_ghost_facts_scores(struct mp_ghost_facts *facts, uint32_t layer, uint32_t tokens,
                           const float *scores)
{
    const uint32_t experts = facts->experts;

    mp_assert(layer < facts->layers && tokens > 0);
    memset(facts->sum, 0, experts * sizeof(facts->sum[0]));
    for (uint32_t t = 0; t < tokens; t++) {
        for (uint32_t e = 0; e < experts; e++)
            facts->sum[e] += (double)scores[(size_t)t * experts + e];
    }
    average(facts, layer, tokens, tokens);
    facts->scored = true;
}

/* Shares of what was chosen stand for scores. */
static void average_shares(struct mp_ghost_facts *facts, uint32_t layer, const uint32_t *ids,
                           const uint32_t *tokens, uint32_t count)
{
    double total = 0;

    memset(facts->sum, 0, facts->experts * sizeof(facts->sum[0]));
    for (uint32_t i = 0; i < count; i++) {
        facts->sum[ids[i] - layer * facts->experts] = tokens[i];
        total += tokens[i];
    }
    average(facts, layer, fmax(total / facts->top_k, 1), total);
}

/* From the shares of the layer's tokens in wait[] to the tokens until the next use. */
static void estimate_waits(struct mp_ghost_facts *facts, uint32_t layer)
{
    const double *scores = facts->average + (size_t)layer * facts->experts;
    double *wait = facts->wait + (size_t)layer * facts->experts;

    for (uint32_t e = 0; e < facts->experts; e++) {
        double share = wait[e];

        if (facts->scored)
            share = (share + fmin(facts->top_k * scores[e] / facts->weighed[layer], 1)) / 2;
        wait[e] = 1 / (share + RARE) - 1;
    }
}

void mp_ghost_facts_batch(struct mp_ghost_facts *facts, uint32_t layer, const uint32_t *ids,
                          const uint32_t *tokens, uint32_t count)
{
    const uint32_t experts = facts->experts, first = layer * experts;
    double *wait = facts->wait + first;
    double rows = 0;

    mp_assert(layer < facts->layers);
    mp_assert(count > 0 && ids[0] >= first && ids[count - 1] < first + experts);
    for (uint32_t i = 0; i < count; i++)
        rows += (double)tokens[i] / facts->top_k;
    memset(wait, 0, experts * sizeof(wait[0]));
    for (uint32_t s = 0; s < MP_GHOST_SHARES; s++) {
        double *faded = facts->faded + ((size_t)layer * MP_GHOST_SHARES + s) * experts;
        double *total = &facts->total[layer * MP_GHOST_SHARES + s];
        const double keep = exp2(-rows / share_lives[s]);

        for (uint32_t e = 0; e < experts; e++)
            faded[e] *= keep;
        for (uint32_t i = 0; i < count; i++)
            faded[ids[i] - first] += (1 - keep) * tokens[i] / rows;
        *total = *total * keep + 1 - keep;
        for (uint32_t e = 0; e < experts; e++)
            wait[e] += faded[e] / *total / MP_GHOST_SHARES;
    }
    if (!facts->scored)
        average_shares(facts, layer, ids, tokens, count);
    estimate_waits(facts, layer);
    facts->batches[layer]++;
    facts->layer = layer;
}

void mp_ghost_take(struct mp_ghost *ghost, enum mp_ghost_kind kind,
                   const struct mp_ghost_facts *facts, struct mp_arena *arena)
{
    const size_t ids = (size_t)facts->layers * facts->experts;
    const size_t heaped = is_heaped(kind) ? ids : 0;
    const size_t cached = is_cached(kind) ? facts->layers : 0;
    const size_t listed = kind == MP_GHOST_LAYER_LRU ? ids + facts->layers : 0;

    *ghost = (struct mp_ghost){ .kind = kind, .facts = facts };
    ghost->held = mp_arena_take(arena, ids, 1);
    ghost->attached = mp_arena_take(arena, is_flagged(kind) ? ids : 0, 1);
    ghost->last = mp_arena_take(arena, cached, sizeof(uint32_t));
    ghost->last_for = mp_arena_take(arena, cached, sizeof(uint64_t));
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

/* Tokens until the expert is expected to be chosen. The layer of the last batch runs last. */
static double time_until(const struct mp_ghost_facts *facts, uint32_t id)
{
    const uint32_t layer = id / facts->experts;
    const uint32_t layers =
        layer > facts->layer ? layer - facts->layer : layer + facts->layers - facts->layer;

    return facts->wait[id] + (double)layers / facts->layers;
}

bool mp_ghost_before(const struct mp_ghost *ghost, uint32_t a, uint32_t b)
{
    const uint64_t *used = ghost->facts->used;
    const uint64_t *count = ghost->facts->count;
    const bool counted = ghost->kind == MP_GHOST_LAYER_LFU || ghost->kind == MP_GHOST_STATIC;

    mp_assert(a < ghost->facts->layers * ghost->facts->experts);
    if (ghost->kind == MP_GHOST_NEXT_USE) {
        const double mine = time_until(ghost->facts, a), other = time_until(ghost->facts, b);

        if (mine != other)
            return mine > other;
    }
    if (ghost->kind == MP_GHOST_EMA && ghost->facts->average[a] != ghost->facts->average[b])
        return ghost->facts->average[a] < ghost->facts->average[b];
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

/* The attached ones of a layer are others now. */
static void flag(struct mp_ghost *ghost, uint32_t id, bool attached)
{
    ghost->attached[id] = attached;
    if (is_cached(ghost->kind))
        ghost->last_for[id / ghost->facts->experts] = 0;
}

void mp_ghost_detach(struct mp_ghost *ghost, uint32_t id)
{
    if (is_flagged(ghost->kind)) {
        flag(ghost, id, false);
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

    if (is_flagged(ghost->kind)) {
        flag(ghost, id, true);
    } else if (ghost->kind == MP_GHOST_LAYER_LRU) {
        const uint32_t list = facts->layers * facts->experts + id / facts->experts;

        ghost->previous[id] = ghost->previous[list];
        ghost->next[id] = list;
        ghost->next[ghost->previous[list]] = id;
        ghost->previous[list] = id;
    } else if (ghost->kind != MP_GHOST_STATIC) {
        ghost->key[id] = ghost->kind == MP_GHOST_LCP ? key_of(ghost, id) : 0;
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

/* The attached expert of first..end-1 that leaves first, or MP_EXPERT_NONE. */
static uint32_t first_to_leave(const struct mp_ghost *ghost, uint32_t first, uint32_t end)
{
    uint32_t best = MP_EXPERT_NONE;

    for (uint32_t id = first; id < end; id++) {
        if (ghost->attached[id] && (best == MP_EXPERT_NONE || mp_ghost_before(ghost, id, best)))
            best = id;
    }
    return best;
}

/* The attached expert that leaves first. Within a layer that changes only with a
 * batch of it, or with what is attached. */
static uint32_t needed_last(struct mp_ghost *ghost)
{
    const struct mp_ghost_facts *facts = ghost->facts;
    uint32_t best = MP_EXPERT_NONE;

    for (uint32_t l = 0; l < facts->layers; l++) {
        if (ghost->last_for[l] != facts->batches[l] + 1) {
            ghost->last[l] = first_to_leave(ghost, l * facts->experts, (l + 1) * facts->experts);
            ghost->last_for[l] = facts->batches[l] + 1;
        }
        if (ghost->last[l] != MP_EXPERT_NONE &&
            (best == MP_EXPERT_NONE || mp_ghost_before(ghost, ghost->last[l], best)))
            best = ghost->last[l];
    }
    return best;
}

static uint32_t victim_of(struct mp_ghost *ghost, uint32_t id)
{
    const uint32_t layers = ghost->facts->layers, experts = ghost->facts->experts;
    uint32_t layer, victim;

    if (is_cached(ghost->kind))
        return needed_last(ghost);
    if (ghost->kind == MP_GHOST_LAYER_LRU)
        return oldest(ghost, id / experts);
    if (is_heaped(ghost->kind))
        return ghost->heap_size > 0 ? ghost->heap[0] : MP_EXPERT_NONE;
    layer = giving_layer(ghost, id / experts);
    victim = first_to_leave(ghost, layer * experts, (layer + 1) * experts);
    return victim != MP_EXPERT_NONE ? victim : first_to_leave(ghost, 0, layers * experts);
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
