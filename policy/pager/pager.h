#ifndef MP_PAGER_H
#define MP_PAGER_H

#include <stdbool.h>
#include <stdint.h>

#include "policy/policy.h"
#include "vmm/space/space.h"

/*
 * The pager: the one loop that turns "layer 7 needs experts 3, 9, 21" into leases, loads and
 * evictions, and the only caller of the space's mutators. It asks the policies and carries out what
 * they say, after checking it.
 *
 * A layer:
 *
 *     mp_pager_begin(pager, layer, needs, count)    leases hits, starts demand loads
 *     mp_pager_prefetch(pager, ...)                 starts prefetches behind them
 *     while (mp_pager_next(pager, &ready) == MP_OK && ready.need != MP_NEED_NONE) {
 *         ... compute with ready.pieces ...
 *         mp_pager_done(pager, ready.need);         gives the lease back, may start more loads
 *     }
 *     mp_pager_end(pager)
 *
 * Where experts are paged in slices (shape.slices > 1), unit (layer * experts + expert) * slices +
 * s of the space is slice s, and what is handed out is a slice: `need` is then index * slices + s.
 * The slices of an expert come in ascending order, each as soon as it and those before it are
 * there, so that the first ones are computed while the last ones load. A slice that is done may
 * leave.
 *
 * Needs that are resident come first, then the others as their reads finish; when there are more
 * needs than slots they come in waves, each loaded once. The order in which needs become ready
 * never changes results: the caller sums by rank. What a policy decides is a guess about time only:
 * whatever it says, every need is handed out exactly once with complete bytes, or an error is
 * returned.
 *
 * Progress: a need waits only for leases that the caller holds and reads in flight. With no lease
 * outstanding two slots of the unit's class always suffice.
 *
 * Thread safety: one thread at a time. Those that wait are mp_pager_next(), settle, pause,
 * set_budget, destroy and, with `deterministic`, mp_pager_begin(); and whatever begins a load, for
 * a unit that is still being copied to the host tier (exclusive residency).
 */
struct mp_pager;

#define MP_NEED_NONE UINT32_MAX
#define MP_UNIT_NONE UINT32_MAX /* instead of a unit of the space */

struct mp_pager_config {
    struct mp_space *space;             /* outlives the pager; units as in policy.h, none loaded */
    const struct mp_policies *policies; /* outlives the pager */
    struct mp_shape shape;              /* layers * experts * slices == units of the space */
    struct mp_clock *clock;
    struct mp_counters *counters;
    struct mp_timeline *timeline; /* or NULL */
    /* Prefetches become visible only at mp_pager_begin(), which waits for all of them, and needs
     * are handed out in the order given: decisions no longer depend on timing. */
    bool deterministic;
};

/* From shape->slices and what the space can hold: shape->slots and expert_bytes, of whole experts.
 */
void mp_pager_fit_shape(const struct mp_space *space, struct mp_shape *shape);

/*
 * Fixes the partition and starts to read the first residents that it names. With a global
 * partition, an evict policy that is not per_layer and fewer slots than one token cycle, one
 * warning is logged and the layers get equal shares, because a global order would then hit exactly
 * never.
 */
enum mp_status mp_pager_create(const struct mp_pager_config *config,
                               struct mp_pager **pager_p) MP_MUST_CHECK;

/* No layer may be open. Reads ahead are cancelled, or waited for where they have started;
 * prefetched bytes that nobody used are counted; what is loaded stays in the space. NULL is
 * allowed. */
void mp_pager_destroy(struct mp_pager *pager);

/*
 * The router's result of `layer`, before mp_pager_begin() of it: for evict policies that look at
 * scores. scores(tokens, experts), chosen(tokens, k).
 */
void mp_pager_scores(struct mp_pager *pager, uint32_t layer, uint32_t tokens, uint32_t k,
                     const float *scores, const uint32_t *chosen);

struct mp_need {
    uint32_t expert;
    uint32_t tokens; /* that chose it, >= 1 */
    bool elsewhere;  /* somebody computes it without a slot: the policies hear of it, but it is
                        neither loaded nor leased nor handed out */
};

struct mp_ready {
    uint32_t need; /* index in the needs of begin, times slices, plus the slice; MP_NEED_NONE: all
                      were handed out */
    const void *pieces[MP_UNIT_PIECES_MAX];
};

/*
 * Open a layer. `needs` in ascending order of experts, each expert once; it is copied.
 * MP_ERR_INVALID: a layer is open already, or a number is out of range.
 */
enum mp_status mp_pager_begin(struct mp_pager *pager, uint32_t layer, const struct mp_need *needs,
                              uint32_t count) MP_MUST_CHECK;

/*
 * The next need whose bytes are complete, leased until mp_pager_done(). Blocks while none is; that
 * time is counted as exposed wait. MP_ERR_BUSY (without a text): the rest waits for slots that the
 * caller holds; call mp_pager_done() for one of them first. On any other error (a read that failed
 * for good) nothing was leased by this call; the caller gives up with mp_pager_abort().
 */
enum mp_status mp_pager_next(struct mp_pager *pager, struct mp_ready *ready_p) MP_MUST_CHECK;

/*
 * The same, but MP_ERR_BUSY also when the interrupt (vmm/io/reader.h) is ready before a need is:
 * one wait for whatever ends first, a read or a computation. Such waits are not exposed. NULL:
 * none. mp_pager_wake(), from any thread, lets the interrupt be asked again.
 */
enum mp_status mp_pager_next_or(struct mp_pager *pager, const struct mp_interrupt *interrupt,
                                struct mp_ready *ready_p) MP_MUST_CHECK;
void mp_pager_wake(struct mp_pager *pager);

/*
 * The same without waiting: MP_NEED_NONE where mp_pager_next() would block or say MP_ERR_BUSY. Also
 * while needs wait for a slot: what the caller holds should then come back one by one.
 */
enum mp_status mp_pager_next_now(struct mp_pager *pager, struct mp_ready *ready_p) MP_MUST_CHECK;

/* The same for a caller that will wait for the others: in a deterministic run only what was
 * resident when the layer began, because what has been read since is chance. */
enum mp_status mp_pager_next_early(struct mp_pager *pager, struct mp_ready *ready_p) MP_MUST_CHECK;

void mp_pager_done(struct mp_pager *pager, uint32_t need);

/* All needs must have been handed out and done. Carries out swaps of the evict policy and, after
 * the last layer, new shares of the partition. If a partition wants an idle device for that and
 * something is being read, nothing is read ahead until it was idle: after the next last layer, or
 * when what had begun by then has come. */
void mp_pager_end(struct mp_pager *pager);

/* Between layers: waits for what is being read ahead. */
void mp_pager_settle(struct mp_pager *pager);

/* Between layers: nothing is computed for a while. Waits for what is being read, then does what a
 * partition put off until the device is idle. */
void mp_pager_pause(struct mp_pager *pager);

/* Close the layer whatever its state: leases end, reads that have not started are cancelled, those
 * of prefetches for other layers too. The pager can be used again afterwards; the thread's error
 * record is left alone. No effect if no layer is open. */
void mp_pager_abort(struct mp_pager *pager);

/* How many experts mp_pager_prefetch() would keep for `layer`, besides those that are kept already
 * or wait to be: a quarter of the slots at most, 0 for the open layer. */
uint32_t mp_pager_prefetch_room(const struct mp_pager *pager, uint32_t layer);

/*
 * The experts that a later layer is expected to want, most urgent first. While there is room (see
 * mp_pager_prefetch_room()), resident ones are kept until that layer has run, unless a demand finds
 * no other victim, and the others are loaded and kept likewise: as soon as no need of the open
 * layer is left to be read, and only as many at a time as the disk reads until the next layer
 * begins, which is learned. When their layer begins and does not want them, those that have not
 * started are dropped. If the prediction was wrong, its unit is the first to leave. Never takes a
 * slot from a unit that is leased, needed by the open layer, or kept. Numbers out of range are
 * skipped and counted.
 *
 * With `deterministic` all are started at once.
 */
void mp_pager_prefetch(struct mp_pager *pager, uint32_t layer, const uint32_t *experts,
                       uint32_t count);

/* Bytes that were prefetched, are in the device tier, and have not been needed so far. What has
 * left already is in the counter prefetch_unused_bytes, where these go when the pager is destroyed.
 */
uint64_t mp_pager_unused_bytes(const struct mp_pager *pager);

/*
 * Change the device tier's budget (mp_space_set_budget()) between two layers: units leave by the
 * evict policy, reads ahead are dropped, and the partition shares out the slots anew. Policies that
 * remember how many slots there were at the start go on with that. MP_ERR_BUSY: units are leased
 * by somebody else; what could be given back was.
 */
enum mp_status mp_pager_set_budget(struct mp_pager *pager, uint64_t budget_bytes) MP_MUST_CHECK;

/* Time that it takes to read one expert when the disk has nothing else to do, from the reads that
 * needs have waited for; 0: there was none yet. */
uint64_t mp_pager_load_ns(const struct mp_pager *pager);

/* resident(experts) := 1 if wholly in the device tier or (with `on_the_way`) being read. */
void mp_pager_residents(struct mp_pager *pager, uint32_t layer, bool on_the_way, uint8_t *resident);

/* Where the bytes of a unit of the space, an expert or a slice of one, are, if they are in the
 * device tier. They stay there until the next call of this header but questions; nobody moves them
 * in between. */
bool mp_pager_find(struct mp_pager *pager, uint32_t unit, const void *piece_p[MP_UNIT_PIECES_MAX]);

/*
 * Begin to use a unit where the host tier has it: its pieces stay at these addresses, for the CPU
 * and for the device over its link, until mp_pager_release_host(). False: the host tier does not
 * hold it, or there is none. The device tier is not touched, and no layer needs to be open.
 */
bool mp_pager_lease_host(struct mp_pager *pager, uint32_t unit,
                         const void *piece_p[MP_UNIT_PIECES_MAX]);
void mp_pager_release_host(struct mp_pager *pager, uint32_t unit);

/* Between layers: units whose transfer has started, or is about to. */
uint32_t mp_pager_reading(const struct mp_pager *pager);

/* Whole experts that the device tier holds at once, with the budget of now. */
uint32_t mp_pager_slots(const struct mp_pager *pager);

/* The next three show what a partition has decided, for tests and for whoever looks for a fault.
 *
 * Slots of a layer, as decided, in units of the space; MP_LAYER_ANY when the partition is global.
 */
uint32_t mp_pager_quota(const struct mp_pager *pager, uint32_t layer);

/* How often the partition has given the layers new shares since the start. */
uint64_t mp_pager_revisions(const struct mp_pager *pager);

/* Slices of an expert that the layer keeps; the others do not count for its slots. */
uint32_t mp_pager_retained(const struct mp_pager *pager, uint32_t layer);

/* Invariants of the pager and its space; false is a bug of ours. */
bool mp_pager_check(struct mp_pager *pager);

#endif
