#ifndef MP_TEST_PLACE_WORLD_H
#define MP_TEST_PLACE_WORLD_H

#include "policy/place/place.h"

/*
 * Facts with arrays of their own, large enough for every case of these tests.
 */
#define WORLD_SERVERS 6u
#define WORLD_DEVICES 24u
#define WORLD_IDS 96u

struct place_world {
    struct mp_place_facts facts;
    uint32_t first_device[WORLD_SERVERS + 1], slots[WORLD_DEVICES];
    double tokens[WORLD_SERVERS * WORLD_IDS], calls[WORLD_SERVERS * WORLD_IDS];
    double call_s[WORLD_SERVERS * WORLD_SERVERS], token_s[WORLD_SERVERS * WORLD_SERVERS];
    double page_s[WORLD_SERVERS], copy_s[WORLD_SERVERS], steps[WORLD_SERVERS];
};

/* Servers of one device with these slots; nothing is known, a call costs 1 s, reading 10 s. */
static inline void world_init(struct place_world *w, uint32_t layers, uint32_t experts,
                              uint32_t servers, const uint32_t *slots)
{
    memset(w, 0, sizeof(*w));
    w->facts = (struct mp_place_facts){
        .layers = layers,
        .experts = experts,
        .servers = servers,
        .first_device = w->first_device,
        .slots = w->slots,
        .tokens = w->tokens,
        .calls = w->calls,
        .seconds = 1,
        .call_s = w->call_s,
        .token_s = w->token_s,
        .page_s = w->page_s,
        .copy_s = w->copy_s,
        .seed = 5,
    };
    for (uint32_t n = 0; n < servers; n++) {
        w->first_device[n + 1] = n + 1;
        w->slots[n] = slots[n];
        w->page_s[n] = 10;
        w->copy_s[n] = 2;
        for (uint32_t m = 0; m < servers; m++)
            w->call_s[n * servers + m] = 1;
    }
}

/* Tokens and calls of server n: of ids 0, 1, ... */
static inline void world_count(struct place_world *w, uint32_t n, const double *counts)
{
    const uint32_t ids = w->facts.layers * w->facts.experts;

    for (uint32_t u = 0; u < ids; u++)
        w->tokens[n * ids + u] = w->calls[n * ids + u] = counts[u];
}

/* The ids that server n keeps, one bit each. */
static inline uint64_t world_kept(const struct place_world *w, const struct mp_placement *p,
                                  uint32_t n)
{
    const uint32_t ids = w->facts.layers * w->facts.experts;
    uint64_t kept = 0;

    for (uint32_t u = 0; u < ids; u++)
        kept |= (uint64_t)(p->device[n * ids + u] != 0) << u;
    return kept;
}

#endif
