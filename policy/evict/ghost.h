#ifndef MP_POLICY_GHOST_H
#define MP_POLICY_GHOST_H

#include "policy/policy.h"
#include "vmm/base/arena.h"

/*
 * Ghosts (ghost caches): the sets of experts that evict policies layer-lfu, layer-lru, lcp, lru and
 * ema (without its swaps) would hold if each had all slots, a static set, and those that are likely
 * to be needed soonest. For evict policy `shadow`, which compares their costs. No bytes are moved;
 * a load or a use costs O(log experts), for layer-lfu a load O(experts), for next-use and ema
 * O(experts + layers).
 *
 * next-use: the expert leaves whose next use is expected last: in 1 / p - 1 + d / L tokens, where p
 * is the share of its layer's tokens that choose it and its layer runs next in d of L layers. p is
 * the mean of three shares, which forget half in 1, 6 and 32 tokens: what is used now, what the
 * subject wants, what is always wanted. Where the router's scores are given, p is the mean of that
 * and of k times the moving average of its scores: who was nearly chosen is chosen soon.
 *
 * Experts of the current batch are detached from the order and attached again at its end, with
 * their new keys; so a batch never evicts its own experts.
 *
 *     held[u]  for `count` experts
 *     attached: held, and flagged (next-use, layer-lfu, ema), in the list of its layer (layer-lru)
 *               or in the heap (lcp, lru)
 */
enum mp_ghost_kind {
    MP_GHOST_NEXT_USE,
    MP_GHOST_LAYER_LFU,
    MP_GHOST_LAYER_LRU,
    MP_GHOST_LCP,
    MP_GHOST_LRU,
    MP_GHOST_EMA,
    MP_GHOST_STATIC
};

#define MP_GHOST_SHARES 3u

/* Statistics of the experts; shared by all ghosts. */
struct mp_ghost_facts {
    uint32_t layers, experts, slots, top_k;
    uint64_t *used;  // (ids): order of the last use
    uint64_t *count; // (ids): batches that used it
    uint64_t *pairs; // (layers): (token, expert) pairs so far
    double fade;     /* decay of the logarithm of lcp's priority per pair of its layer */
    uint64_t uses;

    double *faded;     // (layers, SHARES, experts): tokens that chose it, fading
    double *total;     // (layers, SHARES): tokens, fading
    double *wait;      // (ids): tokens expected until it is chosen, if its layer ran now
    uint64_t *batches; // (layers)
    double *average;   // (ids): moving average of scores, or of shares where nobody gives scores,
                       // times `weighed`
    double *weighed;   // (layers): at first 0, later 1
    double *sum;       // (experts): scratch
    bool scored;       /* the router's scores are given */
    uint32_t layer;    /* of the last batch */
};

struct mp_ghost {
    enum mp_ghost_kind kind;
    const struct mp_ghost_facts *facts;
    uint8_t *held; // (ids)
    uint32_t count;

    uint8_t *attached;  // (ids): next-use, layer-lfu, ema
    double *key;        // (ids): lcp: smallest leaves first, then the oldest use
    uint32_t *heap;     // (ids): the attached ones
    uint32_t *place;    // (ids): in heap; MP_EXPERT_NONE: not attached
    uint32_t heap_size; /* of heap */

    uint32_t *next, *previous; // (ids + layers): layer-lru; entry ids + l is the list of l
    uint32_t *in_layer;        // (layers): held

    uint32_t *last;     // (layers): next-use, ema: the attached one of the layer that leaves first
    uint64_t *last_for; // (layers): batches of the layer when that was found, plus 1; 0: not known
};

/* Take the arrays; called twice, before and after mp_arena_open(), as is mp_ghost_take(). */
void mp_ghost_facts_take(struct mp_ghost_facts *facts, const struct mp_shape *shape,
                         struct mp_arena *arena);

/* Count a use of the expert by a batch of its layer. It must be detached in all ghosts. */
void mp_ghost_facts_use(struct mp_ghost_facts *facts, uint32_t id, uint32_t tokens);

/* Count a batch of `layer`: tokens[i] tokens chose ids[i]. All these must be detached. */
void mp_ghost_facts_batch(struct mp_ghost_facts *facts, uint32_t layer, const uint32_t *ids,
                          const uint32_t *tokens, uint32_t count);

/* The router's scores (tokens, experts) of a batch of `layer`, before what it uses is counted. */
void mp_ghost_facts_scores(struct mp_ghost_facts *facts, uint32_t layer, uint32_t tokens,
                           const float *scores);

/* `facts` must outlive the ghost. */
void mp_ghost_take(struct mp_ghost *ghost, enum mp_ghost_kind kind,
                   const struct mp_ghost_facts *facts, struct mp_arena *arena);

/* Detach a held expert from the order, and attach it again. No effect on a static ghost. */
void mp_ghost_detach(struct mp_ghost *ghost, uint32_t id);
void mp_ghost_attach(struct mp_ghost *ghost, uint32_t id);

/*
 * Hold `id`, which is not held and then not attached. Returns the expert that leaves for it,
 * MP_EXPERT_NONE if there was room, or `id` itself if none can leave or the ghost is static.
 */
uint32_t mp_ghost_load(struct mp_ghost *ghost, uint32_t id);

/* True if `a` would be evicted before `b`. Either both have been used or neither has. */
bool mp_ghost_before(const struct mp_ghost *ghost, uint32_t a, uint32_t b);

#endif
