#include "policy/lookahead/bound.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "policy/lookahead/heat.h"
#include "vmm/base/arena.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"

#define WEIGHT 0.1f /* of a use, in the mean */
#define LEAST 0.45f /* share from which an expert is read ahead */
#define NEVER UINT32_MAX

struct bound {
    const struct mp_routed_text *text;
    enum mp_known known;
    uint32_t window, slots, used;
    struct mp_heat *heat;
    float *mean;       // (layers, experts)
    uint8_t *resident; // (layers, experts)
    uint8_t *held;     // (layers, experts): may not leave now
    float *share;      // (experts)
    uint32_t *list;    // (experts)
    uint64_t uses, hits, reads;
};

static const uint32_t *chosen_of(const struct mp_routed_text *text, uint32_t token, uint32_t layer)
{
    return text->chosen + ((size_t)token * text->layers + layer) * text->top_k;
}

/* Layers from the open one to the next use of a unit within the window. */
static uint32_t next_use(const struct bound *b, uint32_t token, uint32_t open, uint32_t unit)
{
    const struct mp_routed_text *text = b->text;
    const uint32_t layer = unit / text->experts, expert = unit % text->experts;

    for (uint32_t d = layer > open ? 0 : 1; d <= b->window && token + d < text->tokens; d++) {
        const uint32_t *chosen = chosen_of(text, token + d, layer);

        for (uint32_t r = 0; r < text->top_k; r++) {
            if (chosen[r] == expert)
                return d * text->layers + layer - open;
        }
    }
    return NEVER;
}

/* Is `a` a better victim than `b`? */
static bool leaves_first(const struct bound *b, uint32_t token, uint32_t open, uint32_t one,
                         uint32_t other)
{
    if (b->known == MP_KNOWN_PERFECT) {
        const uint32_t first = next_use(b, token, open, one);
        const uint32_t second = next_use(b, token, open, other);

        if (first != second)
            return first > second;
    }
    return b->mean[one] < b->mean[other];
}

static void bring(struct bound *b, uint32_t token, uint32_t open, uint32_t unit)
{
    const uint32_t units = b->text->layers * b->text->experts;
    uint32_t victim = NEVER;

    for (uint32_t u = 0; u < units && b->used == b->slots; u++) {
        if (b->resident[u] && !b->held[u] &&
            (victim == NEVER || leaves_first(b, token, open, u, victim)))
            victim = u;
    }
    if (victim != NEVER) {
        b->resident[victim] = 0;
        b->used--;
    }
    if (b->used == b->slots)
        return; /* all are held */
    b->resident[unit] = 1;
    b->used++;
    b->reads++;
}

/* The layer after the open one of the same token, by the token's id. */
static void read_ahead(struct bound *b, uint32_t token, uint32_t open)
{
    const struct mp_routed_text *text = b->text;
    const uint32_t target = open + 1;
    uint32_t count;

    if (b->known != MP_KNOWN_HEAT || target == text->layers)
        return;
    memset(b->share, 0, text->experts * sizeof(b->share[0]));
    mp_heat_add(b->heat, target, text->id[token], 1, b->share);
    count = mp_heat_list(b->share, text->experts, LEAST, text->top_k, b->list);
    for (uint32_t i = 0; i < count; i++)
        b->held[target * text->experts + b->list[i]] = 1;
    for (uint32_t i = 0; i < count; i++) {
        if (!b->resident[target * text->experts + b->list[i]])
            bring(b, token, open, target * text->experts + b->list[i]);
    }
}

static void run_layer(struct bound *b, uint32_t token, uint32_t layer)
{
    const struct mp_routed_text *text = b->text;
    const uint32_t *chosen = chosen_of(text, token, layer), first = layer * text->experts;

    memset(b->held + first, 0, text->experts);
    for (uint32_t e = 0; e < text->experts; e++)
        b->mean[first + e] *= 1 - WEIGHT;
    for (uint32_t r = 0; r < text->top_k; r++) {
        b->held[first + chosen[r]] = 1;
        b->mean[first + chosen[r]] += WEIGHT;
        b->hits += b->resident[first + chosen[r]];
    }
    b->uses += text->top_k;
    for (uint32_t r = 0; r < text->top_k; r++) {
        if (!b->resident[first + chosen[r]])
            bring(b, token, layer, first + chosen[r]);
    }
    read_ahead(b, token, layer);
    memset(b->held + first, 0, text->experts);
    if (b->heat != NULL)
        mp_heat_learn(b->heat, layer, text->id[token], chosen);
}

static void take_arrays(struct bound *b, struct mp_arena *arena)
{
    const uint64_t units = (uint64_t)b->text->layers * b->text->experts;

    b->mean = mp_arena_take(arena, units, sizeof(float));
    b->resident = mp_arena_take(arena, units, 1);
    b->held = mp_arena_take(arena, units, 1);
    b->share = mp_arena_take(arena, b->text->experts, sizeof(float));
    b->list = mp_arena_take(arena, b->text->experts, sizeof(uint32_t));
}

enum mp_status mp_lookahead_bound(const struct mp_routed_text *text, uint32_t slots,
                                  enum mp_known known, uint32_t window, uint32_t from,
                                  struct mp_bound *bound_p)
{
    const struct mp_heat_shape shape = { text->layers, text->experts, text->top_k, text->vocab };
    struct bound b = { .text = text, .known = known, .window = window, .slots = slots };
    struct mp_arena arena = { 0 };
    enum mp_status status;

    mp_assert(slots > 2 * text->top_k && from < text->tokens);
    take_arrays(&b, &arena);
    status = mp_arena_open(&arena, "the bound");
    if (status != MP_OK)
        return status;
    take_arrays(&b, &arena);
    if (known == MP_KNOWN_HEAT)
        status = mp_heat_create(&shape, &b.heat);
    for (uint32_t t = 0; t < text->tokens && status == MP_OK; t++) {
        if (t == from)
            b.uses = b.hits = b.reads = 0;
        for (uint32_t layer = 0; layer < text->layers; layer++)
            run_layer(&b, t, layer);
    }
    if (status == MP_OK)
        *bound_p = (struct mp_bound){ (double)b.hits / (double)b.uses,
                                      (double)b.reads / (double)(text->tokens - from) };
    mp_heat_destroy(b.heat);
    free(arena.block);
    return status;
}
