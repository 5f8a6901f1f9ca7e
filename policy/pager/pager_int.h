#ifndef MP_PAGER_INT_H
#define MP_PAGER_INT_H

#include "policy/pager/pager.h"
#include "policy/pager/slices.h"

/*
 * Private to the files of the pager: pager.c opens and closes layers, pager_needs.c leases needs,
 * pager_room.c makes room (flags, victims, quotas), pager_ahead.c prefetches, pager_plan.c carries
 * out what policies plan without a need (first residents, swaps, quotas).
 *
 * Everything here is about units of the space. slices.h maps units to experts and counts what
 * layers hold of their quotas. Policies decide about experts, by id (layer * experts + expert). A
 * policy is notified when the first unit of an expert is inserted and when its last one is removed.
 * A policy names an expert as victim; its last units are evicted first, so that a prefix of the
 * expert remains.
 *
 * Every unit has flags. NEEDED: the open layer still needs it. KEEP: predicted for a layer that has
 * not run. FORESEEN: the same, but only of residents, as many as there are, and not beyond the
 * layer's begin. AHEAD: prefetched and not used yet (for accounting only). GUESSED: loaded because
 * it was predicted. MISPREDICTED: the layer that it was predicted for has run without it. A unit
 * may be evicted when it is VALID, unleased and none of NEEDED, KEEP and FORESEEN; a demand that
 * finds no such unit may take one with KEEP or FORESEEN, never one that is NEEDED. `may_go` caches
 * that rule as one byte per unit, updated on each change, so that a call of a policy needs no scan.
 * Units with MISPREDICTED are evicted first, without a call, so that wrong predictions do not
 * displace what the policy keeps.
 *
 * A prediction becomes a queued prefetch, a swap of the evict policy a plan. Each takes a slot, and
 * evicts for it, only while no demand is being read and fewer reads of its kind are in flight than
 * window[kind], which follows what the disk completes between two layers. So neither kind can take
 * the other's turn. A guess ends with its layer; a plan waits, however late, until a newer one
 * names one of its experts, or until it has no sense any more.
 *
 *     swaps_planned       == swaps_started + swaps_superseded + planned_count
 *     guesses_planned     == guesses_started + guesses_superseded + queued_count
 *     FILLING             == units in ahead[] + needs that are LOADING        between calls
 *     kept_count          == units with KEEP
 *     mispredicted[layer] == units of it with MISPREDICTED; mispredicted_count == all of them
 */
enum {
    MP_PAGER_NEEDED = 1,
    MP_PAGER_KEEP = 2,
    MP_PAGER_AHEAD = 4,
    MP_PAGER_MISPREDICTED = 8,
    MP_PAGER_GUESSED = 16,
    MP_PAGER_FORESEEN = 32
};

/* Reads ahead, by what asked for them; each kind has a window of its own. */
enum mp_ahead_kind { MP_AHEAD_GUESS, MP_AHEAD_PLAN, MP_AHEAD_KINDS };

/* A swap that waits for its turn. */
struct mp_pager_plan {
    struct mp_swap swap;
    bool late; /* its layer has run since */
};

enum mp_need_state {
    MP_NEED_WAITING,
    MP_NEED_LOADING,
    MP_NEED_LEASED,
    MP_NEED_HANDED,
    MP_NEED_DONE
};

/* One unit that the open layer needs; the units of an expert are adjacent and in order. */
struct mp_pager_need {
    uint32_t unit;
    uint32_t tokens;
    enum mp_need_state state;
    bool elsewhere;
    bool hit;    /* resident at begin */
    bool loaded; /* on demand, for admit */
    const void *pieces[MP_UNIT_PIECES_MAX];
};

struct mp_pager {
    struct mp_pager_config config;
    struct mp_slices slices; /* maps units to experts */
    uint32_t units;
    uint32_t experts;  /* of all layers */
    uint32_t slots;    /* capacity of the device tier, in units */
    void *block;       /* all arrays */
    uint8_t *may_go;   // (units): VALID, unleased, no protecting flag
    uint8_t *flags;    // (units)
    uint8_t *fallback; // (experts): scratch for queries whose candidates differ from `evictable`
    uint32_t *mispredicted; // (layers)
    const uint8_t *placed;  // (experts) or NULL
    bool takes_placed;      /* the victim that is being looked for may be placed */
    const void *coming;     /* the bytes of the unit that is to be loaded; NULL: they are read */
    bool global;
    uint64_t now;     /* logical time: number of layers begun */
    uint64_t read_ns; /* of one unit, as measured; 0: not yet */
    unsigned track;   /* of the timeline */

    /* Reads in flight that no need waits for: prefetches, and loads of an aborted layer. */
    uint32_t *ahead; // (units)
    uint32_t ahead_count;
    uint32_t kept_count, mispredicted_count;

    uint32_t *queued; // (units): queued prefetches, most urgent first
    uint32_t queued_count;
    uint32_t window[MP_AHEAD_KINDS]; /* most reads in flight, each >= 1 */
    uint64_t revisions;
    bool yields; /* no prefetching: the partition waits for an idle device */

    bool open;
    bool room_changed; /* since needs were last started: waiting needs may find a slot now */
    uint32_t layer;
    struct mp_pager_need *needs; // (units of a layer)
    uint32_t need_count;
    uint32_t *wait_list;           // (units): scratch of waits, and of first residents
    uint32_t *revised;             // (layers): scratch of new quotas and retained
    struct mp_swap *swaps;         // (experts of a layer): scratch
    struct mp_pager_plan *planned; // (experts): swaps not carried out yet, oldest first
    uint32_t planned_count;
    const char *notice; /* of the evict policy, at the last check */
};

/* True if the unit has a slot: it is resident or in flight. */
static inline bool mp_pager_is_present(const struct mp_pager *pager, uint32_t unit)
{
    const enum mp_res_state state = mp_space_state(pager->config.space, unit);

    return state == MP_RES_FILLING || state == MP_RES_VALID;
}

static inline const struct mp_policies *mp_pager_policies(const struct mp_pager *pager)
{
    return pager->config.policies;
}

/* Recompute may_go[unit] and the counts that depend on it, after its state, leases or flags
 * changed. */
void mp_pager_refresh(struct mp_pager *pager, uint32_t unit);

void mp_pager_set_flags(struct mp_pager *pager, uint32_t unit, uint8_t flags);

/* Account for a unit that has left the device tier or whose read did not complete. Flags except
 * NEEDED are cleared; with AHEAD it counts as an unused prefetch. */
void mp_pager_note_removed(struct mp_pager *pager, uint32_t unit);

/* The same for a read that failed or was cancelled: no bytes were moved, so none were wasted. */
void mp_pager_note_nothing(struct mp_pager *pager, uint32_t unit);

/* Evict a unit that is VALID and not leased. */
void mp_pager_evict(struct mp_pager *pager, uint32_t unit);

/* A victim of the size class that is not evicted for a particular unit, or MP_UNIT_NONE. */
uint32_t mp_pager_pick_leaving(struct mp_pager *pager, uint32_t class_index);

/* Start to load `unit`, evicting another one if that is allowed. MP_ERR_NO_SPACE: nothing may be
 * evicted now. */
enum mp_status mp_pager_start_load(struct mp_pager *pager, uint32_t unit,
                                   enum mp_priority priority) MP_MUST_CHECK;

/* Process reads in ahead[] that have ended; with `block` wait for all of them. */
void mp_pager_settle_ahead(struct mp_pager *pager, bool block);

/* Remove the unit from ahead[]. False: it was not there. */
bool mp_pager_forget_ahead(struct mp_pager *pager, uint32_t unit);

#define MP_CLASS_ANY UINT32_MAX

/* Cancel the latest read in ahead[] of this size class that has not started. False: none. */
bool mp_pager_cancel_ahead(struct mp_pager *pager, uint32_t class_index);

/* Drop all queued prefetches and cancel all reads in ahead[] that have not started. */
void mp_pager_drop_all(struct mp_pager *pager);

/* Start queued prefetches as far as they do not delay demands. */
void mp_pager_pursue(struct mp_pager *pager);

/* Reads of one kind in flight. */
uint32_t mp_pager_count_ahead(const struct mp_pager *pager, enum mp_ahead_kind kind);

/* A layer begins: adjust the windows by what is still in flight. */
void mp_pager_adapt_windows(struct mp_pager *pager);

/* The open layer's needs are known: drop prefetches for it that are not among them and have not
 * started, and what else was predicted of it. */
void mp_pager_drop_guesses(struct mp_pager *pager);

/* Start a read that no need waits for; `flags` are set for the unit. False: it could not be
 * started. */
bool mp_pager_load_ahead(struct mp_pager *pager, uint32_t unit, uint8_t flags);

/* True if a unit of this size class has a slot and is still needed by the open layer. */
bool mp_pager_in_use(const struct mp_pager *pager, uint32_t class_index);

/* pager_plan.c: load the first residents; plan swaps and set new quotas after `layer`. */
void mp_pager_load_first(struct mp_pager *pager);
void mp_pager_replace(struct mp_pager *pager, uint32_t layer);
/* Carry out planned swaps, as far as there is time for prefetches. */
void mp_pager_carry_out_swaps(struct mp_pager *pager);
/* The open layer runs before its waiting swaps. */
void mp_pager_note_late(struct mp_pager *pager);
void mp_pager_revise(struct mp_pager *pager);

/* Log the evict policy's notice, once. */
void mp_pager_take_notice(struct mp_pager *pager);

/* Set the quotas from the partition policy. False: their sum exceeds the slots. */
bool mp_pager_make_partition(struct mp_pager *pager) MP_MUST_CHECK;

/* Get the retained slices from the partition policy and recount. */
void mp_pager_ask_retained(struct mp_pager *pager);

/* pager_needs.c: start loads for needs that have no slot yet, in order; a size class that is full
 * is skipped. */
enum mp_status mp_pager_start_waiting(struct mp_pager *pager) MP_MUST_CHECK;
enum mp_status mp_pager_lease_need(struct mp_pager *pager,
                                   struct mp_pager_need *need) MP_MUST_CHECK;
void mp_pager_release_need(struct mp_pager *pager, struct mp_pager_need *need);
uint32_t mp_pager_count_needs(const struct mp_pager *pager, enum mp_need_state state);

#endif
