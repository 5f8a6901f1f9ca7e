#ifndef MP_PAGER_H
#define MP_PAGER_H

#include <stdbool.h>
#include <stdint.h>

#include "policy/policy.h"
#include "vmm/space/space.h"

/*
 * The pager: the one loop that turns "layer 7 needs experts 3, 9, 21" into leases, loads and
 * evictions, and the only caller of the space's mutators. It asks the policies, checks their
 * decisions and carries them out.
 *
 * A layer:
 *
 *     mp_pager_begin(pager, layer, needs, count)    leases hits, starts demand loads
 *     mp_pager_prefetch(pager, ...)                 starts prefetches behind them
 *     while (mp_pager_next(pager, &ready) == MP_OK && ready.need != MP_NEED_NONE) {
 *         ... compute with ready.pieces ...
 *         mp_pager_done(pager, ready.need);         releases the lease, may start more loads
 *     }
 *     mp_pager_end(pager)
 *
 * Where experts are paged in slices (shape.slices > 1), unit (layer * experts + expert) * slices +
 * s of the space is slice s, and leases are of slices: `need` is then index * slices + s. The
 * slices of an expert come in ascending order, each as soon as it and those before it have arrived,
 * so that the first ones are computed while the last ones load. A slice that is done may be
 * evicted.
 *
 * Needs that are resident come first, then the others as their reads finish; when there are more
 * needs than slots they come in waves, each loaded once. The order in which needs become ready
 * never changes results: the caller sums by rank. Policies affect time only: whatever they decide,
 * every need is leased exactly once with complete bytes, or an error is returned.
 *
 * Progress: a need waits only for leases that the caller holds and reads in flight. With no lease
 * outstanding two slots of the unit's class always suffice.
 *
 * Thread safety: one thread at a time. Functions that block: mp_pager_next(), settle, pause,
 * set_budget, destroy and, with `deterministic`, mp_pager_begin(); and all that start a load, if
 * the unit is still being copied to the host tier (exclusive residency).
 */
struct mp_pager;

#define MP_NEED_NONE UINT32_MAX
#define MP_UNIT_NONE UINT32_MAX /* instead of a unit of the space */

struct mp_pager_config {
    struct mp_space *space; /* must outlive the pager; units are as above, none loaded */
    const struct mp_policies *policies; /* outlives the pager */
    struct mp_shape shape;              /* layers * experts * slices == units of the space */
    struct mp_clock *clock;
    struct mp_counters *counters;
    struct mp_timeline *timeline; /* or NULL */
    /* Prefetches become visible only at mp_pager_begin(), which waits for all of them, and needs
     * are leased in the order given: decisions do not depend on timing. */
    bool deterministic;

    /* Experts by id to read first where the partition names none, the most important first; copied
     * from, not kept. Ids are distinct; those without a slot are skipped. */
    const uint32_t *first;
    uint32_t first_count;
};

/* Set shape->slots and expert_bytes, of whole experts, from shape->slices and the capacity of the
 * space. */
void mp_pager_fit_shape(const struct mp_space *space, struct mp_shape *shape);

/*
 * Fixes the partition and starts to read the first residents that it names. With a global
 * partition, an evict policy that is not per_layer and fewer slots than one token cycle, one
 * warning is logged and the layers get equal shares, because a global order would then never hit.
 */
enum mp_status mp_pager_create(const struct mp_pager_config *config,
                               struct mp_pager **pager_p) MP_MUST_CHECK;

/* No layer may be open. Reads ahead are cancelled, or waited for where they have started; unused
 * prefetched bytes are counted; loaded units remain in the space. NULL is allowed. */
void mp_pager_destroy(struct mp_pager *pager);

/*
 * The router's result of `layer`, before mp_pager_begin() of that layer: for evict policies that
 * use scores. scores(tokens, experts), chosen(tokens, k).
 */
void mp_pager_scores(struct mp_pager *pager, uint32_t layer, uint32_t tokens, uint32_t k,
                     const float *scores, const uint32_t *chosen);

struct mp_need {
    uint32_t expert;
    uint32_t tokens; /* that chose it, >= 1 */
    bool elsewhere;  /* computed by an executor that needs no slot: policies see the access, but it
                        is neither loaded nor leased */
};

struct mp_ready {
    uint32_t need; /* index in the needs of begin, times slices, plus the slice; MP_NEED_NONE: all
                      have been leased */
    const void *pieces[MP_UNIT_PIECES_MAX];
};

/*
 * Open a layer. `needs` in ascending order of experts, each expert once; it is copied.
 * MP_ERR_INVALID: a layer is open already, or a number is out of range.
 */
enum mp_status mp_pager_begin(struct mp_pager *pager, uint32_t layer, const struct mp_need *needs,
                              uint32_t count) MP_MUST_CHECK;

/*
 * Lease the next need whose bytes are complete, until mp_pager_done(). Blocks until there is one;
 * that time is counted as exposed wait. MP_ERR_BUSY (without a text): the remaining needs wait for
 * slots that the caller holds; call mp_pager_done() for one of them first. On any other error (a
 * read that failed) nothing was leased by this call; end the layer with mp_pager_abort().
 */
enum mp_status mp_pager_next(struct mp_pager *pager, struct mp_ready *ready_p) MP_MUST_CHECK;

/*
 * The same, but returns MP_ERR_BUSY also if the interrupt (vmm/io/reader.h) is ready before a need
 * is: a single wait for a read or a computation. Such waits are not exposed, unless the interrupt
 * says so. NULL: no interrupt.
 * mp_pager_wake(), from any thread, makes the interrupt be evaluated again.
 */
enum mp_status mp_pager_next_or(struct mp_pager *pager, const struct mp_interrupt *interrupt,
                                struct mp_ready *ready_p) MP_MUST_CHECK;
void mp_pager_wake(struct mp_pager *pager);

/*
 * The same without blocking: MP_NEED_NONE if mp_pager_next() would block or return MP_ERR_BUSY, and
 * also while needs wait for a slot, so that the caller releases its leases one by one.
 */
enum mp_status mp_pager_next_now(struct mp_pager *pager, struct mp_ready *ready_p) MP_MUST_CHECK;

/* The same for a caller that will wait for the other needs later: in a deterministic run only needs
 * that were resident when the layer began, because later arrivals depend on timing. */
enum mp_status mp_pager_next_early(struct mp_pager *pager, struct mp_ready *ready_p) MP_MUST_CHECK;

void mp_pager_done(struct mp_pager *pager, uint32_t need);

/* Close the layer; all needs must be done. Carries out swaps of the evict policy and, after the
 * last layer, new quotas of the partition. If the partition waits for an idle device for that,
 * prefetching stops until reads in flight have ended and the quotas were changed. */
void mp_pager_end(struct mp_pager *pager);

/* Between layers: wait for prefetches in flight. */
void mp_pager_settle(struct mp_pager *pager);

/* Between layers, when nothing will be computed for a while: wait for reads in flight, then do what
 * the partition has postponed until the device is idle. */
void mp_pager_pause(struct mp_pager *pager);

/* Close the layer whatever its state: leases end, reads that have not started are cancelled, those
 * of prefetches for other layers too. The pager can be used again afterwards; the thread's error
 * record is unchanged. No effect if no layer is open. */
void mp_pager_abort(struct mp_pager *pager);

/* How many more experts mp_pager_prefetch() would accept for `layer`: at most a quarter of the
 * slots, less those kept or queued; 0 for the open layer. */
uint32_t mp_pager_prefetch_room(const struct mp_pager *pager, uint32_t layer);

/*
 * Whatever evict policy there is, residents that a later layer is predicted to need do not leave
 * until it begins, unless a demand finds no other slot. `experts` (count) are of that layer, which
 * is not the open one, each below shape.experts.
 */
void mp_pager_foresee(struct mp_pager *pager, uint32_t layer, const uint32_t *experts,
                      uint32_t count);

/*
 * Prefetch experts that a later layer is predicted to need, most urgent first. As long as there is
 * room (see mp_pager_prefetch_room()), resident ones are kept until that layer has run, unless a
 * demand finds no other victim; the others are queued, loaded and then kept in the same way. Loads
 * start when no need of the open layer is left to be read, and only as many at a time as the disk
 * completes before the next layer begins, which is estimated from previous layers. When their layer
 * begins without needing them, those that have not started are dropped. Mispredicted units are
 * evicted first. Never takes a slot from a unit that is leased, needed by the open layer, or kept.
 * Numbers out of range are skipped and counted.
 *
 * With `deterministic` all are started at once.
 */
void mp_pager_prefetch(struct mp_pager *pager, uint32_t layer, const uint32_t *experts,
                       uint32_t count);

/* What a placement says of an expert. */
enum mp_placed {
    MP_PLACED_NOT,
    MP_PLACED_KEEP, /* others are evicted first, and this one only for a demand that finds no other
                       victim */
    MP_PLACED_SOLE  /* nor for that, while what is in use can give room */
};

/*
 * Between layers: from now on keep these experts, placed(layers * experts) by id, if the bytes are
 * there. No layer has a quota any more. The array is read until the next call or the pager's end;
 * NULL: keep none.
 */
void mp_pager_place(struct mp_pager *pager, const uint8_t *placed);

/* Between layers: read experts that are absent and to be kept, a few at a time. `elsewhere` is
 * asked of each that would be read; true: its bytes come by mp_pager_put(). NULL: they never do. */
void mp_pager_fill_placed(struct mp_pager *pager, bool (*elsewhere)(void *ctx, uint32_t expert),
                          void *ctx);

/* Is all of the expert, by id, in memory? As of the last call that looked at reads in flight. */
bool mp_pager_has(const struct mp_pager *pager, uint32_t expert);

/* For how many experts of this one's size, by id, there is room now without a demand for them. */
uint32_t mp_pager_spare(const struct mp_pager *pager, uint32_t expert);

/* Bytes of an expert, by id. */
uint64_t mp_pager_expert_bytes(const struct mp_pager *pager, uint32_t expert);

/*
 * Between layers: the bytes of an expert, its units and their pieces one after the other, out of
 * memory or into it. get: false: not all of it is there. put: room is made as for a read with this
 * priority. MP_ERR_BUSY (no text): some of it is there or on its way; MP_ERR_NO_SPACE (no text):
 * nothing may leave; MP_ERR_UNSUPPORTED: not into this tier. After an error some units may be
 * there.
 */
bool mp_pager_get(struct mp_pager *pager, uint32_t expert, void *bytes);
enum mp_status mp_pager_put(struct mp_pager *pager, uint32_t expert, enum mp_priority priority,
                            const void *bytes) MP_MUST_CHECK;

/* Prefetched bytes in the device tier that have not been used so far. Those evicted unused are in
 * the counter prefetch_unused_bytes, to which these are added when the pager is destroyed. */
uint64_t mp_pager_unused_bytes(const struct mp_pager *pager);

/*
 * Change the device tier's budget (mp_space_set_budget()) between two layers: the evict policy
 * chooses units to evict, queued prefetches are dropped, and the partition distributes the slots
 * anew. Policies that store the number of slots at creation keep that number. MP_ERR_BUSY: units
 * are leased elsewhere; as much as possible was released.
 */
enum mp_status mp_pager_set_budget(struct mp_pager *pager, uint64_t budget_bytes) MP_MUST_CHECK;

/* Time to read one expert from an otherwise idle disk, measured on demand reads; 0: none yet. */
uint64_t mp_pager_load_ns(const struct mp_pager *pager);

/* resident(experts) := 1 if all of it is in the device tier or (with `on_the_way`) in flight. */
void mp_pager_residents(struct mp_pager *pager, uint32_t layer, bool on_the_way, uint8_t *resident);

/*
 * arrival_ns(experts) := time until the expert is there, if reads in flight end one after the
 * other: the first in first_ns, each later one unit_ns after it. 0: it is in the device tier, or
 * will be when the layer begins (`deterministic`); MP_ARRIVAL_NEVER: it is neither there nor on its
 * way. False: nothing of the layer is on its way.
 */
bool mp_pager_arrivals(const struct mp_pager *pager, uint32_t layer, const uint8_t *resident,
                       uint64_t first_ns, uint64_t unit_ns, uint64_t *arrival_ns);

/* Addresses of a unit of the space (an expert or a slice of one), if it is in the device tier. They
 * are valid until the next call of this header that is not a query. */
bool mp_pager_find(struct mp_pager *pager, uint32_t unit, const void *piece_p[MP_UNIT_PIECES_MAX]);

/*
 * Lease a unit in the host tier: its pieces remain at these addresses, for the CPU and for the
 * device over its link, until mp_pager_release_host(). False: the host tier does not hold it, or
 * there is none. No effect on the device tier; no layer needs to be open.
 */
bool mp_pager_lease_host(struct mp_pager *pager, uint32_t unit,
                         const void *piece_p[MP_UNIT_PIECES_MAX]);
void mp_pager_release_host(struct mp_pager *pager, uint32_t unit);

/* As configured: no decision may depend on timing. */
bool mp_pager_is_deterministic(const struct mp_pager *pager);

/* Between layers: number of units in flight or about to be. */
uint32_t mp_pager_reading(const struct mp_pager *pager);

/* Whole experts that the device tier can hold with the current budget. */
uint32_t mp_pager_slots(const struct mp_pager *pager);

/* The next three return decisions of the partition, for tests and debugging. Quota of a layer, in
 * units of the space; MP_LAYER_ANY if the partition is global. */
uint32_t mp_pager_quota(const struct mp_pager *pager, uint32_t layer);

/* How often the partition has changed the quotas since the start. */
uint64_t mp_pager_revisions(const struct mp_pager *pager);

/* Slices of each expert that the layer retains; the others do not count for its quota. */
uint32_t mp_pager_retained(const struct mp_pager *pager, uint32_t layer);

/* Check invariants of the pager and its space. For tests. */
bool mp_pager_check(struct mp_pager *pager);

#endif
