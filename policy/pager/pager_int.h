#ifndef MP_PAGER_INT_H
#define MP_PAGER_INT_H

#include "policy/pager/pager.h"
#include "policy/pager/slices.h"

/*
 * What the parts of the pager share: pager.c is the life of a layer, pager_needs.c hands out what
 * it needs, pager_room.c finds room (flags, victims, quotas), pager_ahead.c reads ahead,
 * pager_plan.c moves residents that no need asked for. Nobody else includes this.
 *
 * Everything here is about units of the space. Which of them are the slices of an expert, what the
 * partition keeps of it, and how much a layer holds of its quota is in slices.h. Policies decide
 * about experts, which they call units, numbered layer * experts + expert over all layers. An
 * expert enters a policy's books with its first unit and leaves them with its last one. A policy
 * names the expert that gives way; it gives its last units first, so that what stays of it is its
 * beginning.
 *
 * Every unit has flags. NEEDED: the open layer has not finished with it. KEEP: predicted for a
 * layer that has not run. AHEAD: prefetched, nobody has used it yet (for the accounts only).
 * GUESSED: loaded because it was predicted. MISPREDICTED: the layer that it was guessed for has run
 * without it. A unit may be evicted when it is VALID, unleased and neither NEEDED nor KEEP; a
 * demand that finds no such unit may take one with KEEP, never one that is NEEDED. `may_go` is that
 * rule as one byte per unit, kept up to date on each change so that asking a policy costs no scan.
 * Units with MISPREDICTED go first, without a question, so that wrong guesses do not crowd out what
 * the policy has reasons to keep.
 *
 * What is predicted becomes a queued prefetch. It takes a slot, and somebody's place, only when
 * nothing that is needed now is being read and few enough reads ahead are on their way: `window` of
 * them, which follows what the disk gets done between the layers.
 *
 *     FILLING             == units in ahead[] + needs that are LOADING        between calls
 *     kept_count          == units with KEEP
 *     mispredicted[layer] == units of it with MISPREDICTED; mispredicted_count == all of them
 */
enum {
    MP_PAGER_NEEDED = 1,
    MP_PAGER_KEEP = 2,
    MP_PAGER_AHEAD = 4,
    MP_PAGER_MISPREDICTED = 8,
    MP_PAGER_GUESSED = 16
};

enum mp_need_state {
    MP_NEED_WAITING,
    MP_NEED_LOADING,
    MP_NEED_LEASED,
    MP_NEED_HANDED,
    MP_NEED_DONE
};

/* One unit that the open layer needs; those of one expert stand together, in order. */
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
    struct mp_slices slices; /* which units are which expert */
    uint32_t units;
    uint32_t experts;       /* of all layers */
    uint32_t slots;         /* units that the device tier can hold */
    void *block;            /* all arrays */
    uint8_t *may_go;        // (units): VALID, unleased, no protecting flag
    uint8_t *flags;         // (units)
    uint8_t *fallback;      // (experts): scratch for questions about less or more than `evictable`
    uint32_t *mispredicted; // (layers)
    bool global;
    uint64_t now;     /* logical time: layers begun */
    uint64_t read_ns; /* of one unit, as measured; 0: not yet */
    unsigned track;   /* of the timeline */

    /* Reads in flight that no need waits for: prefetches, and loads of a layer that was aborted. */
    uint32_t *ahead; // (units)
    uint32_t ahead_count;
    uint32_t kept_count, mispredicted_count;

    uint32_t *queued; // (units): predicted and cold, most urgent first
    uint32_t queued_count;
    uint32_t window; /* >= 1 */
    uint64_t revisions;
    bool yields; /* nothing is read ahead: the partition waits for an idle device */

    bool open;
    bool room_changed; /* since needs were last started: waiting ones may find a slot now */
    uint32_t layer;
    struct mp_pager_need *needs; // (units of a layer)
    uint32_t need_count;
    uint32_t *wait_list;     // (units): scratch of waits, and of first residents
    uint32_t *revised;       // (layers): scratch of new quotas and retained
    struct mp_swap *swaps;   // (experts of a layer): scratch
    struct mp_swap *planned; // (experts): swaps that wait for their turn, oldest first
    uint32_t planned_count;
    const char *notice; /* of the evict policy, as last seen */
};

/* Does it have a slot: is it there, or being read? */
static inline bool mp_pager_is_present(const struct mp_pager *pager, uint32_t unit)
{
    const enum mp_res_state state = mp_space_state(pager->config.space, unit);

    return state == MP_RES_FILLING || state == MP_RES_VALID;
}

static inline const struct mp_policies *mp_pager_policies(const struct mp_pager *pager)
{
    return pager->config.policies;
}

/* Derive may_go[unit] again, and what follows from it, after its state, leases or flags changed. */
void mp_pager_refresh(struct mp_pager *pager, uint32_t unit);

void mp_pager_set_flags(struct mp_pager *pager, uint32_t unit, uint8_t flags);

/* The unit has left the device tier, or its read came to nothing. Flags but NEEDED are dropped; one
 * that still has AHEAD is accounted as prefetched and not used. */
void mp_pager_note_removed(struct mp_pager *pager, uint32_t unit);

/* A read that came to nothing: no bytes were moved, so none were wasted. */
void mp_pager_note_nothing(struct mp_pager *pager, uint32_t unit);

/* Evict a unit that is VALID and not leased. */
void mp_pager_evict(struct mp_pager *pager, uint32_t unit);

/* A unit of the size class that leaves where nobody in particular needs its slot, or MP_UNIT_NONE.
 */
uint32_t mp_pager_pick_leaving(struct mp_pager *pager, uint32_t class_index);

/* Start to load `unit`, making room if that is allowed. MP_ERR_NO_SPACE: nothing may go now. */
enum mp_status mp_pager_start_load(struct mp_pager *pager, uint32_t unit,
                                   enum mp_priority priority) MP_MUST_CHECK;

/* Take note of reads in ahead[] that have ended; with `block` of all of them. */
void mp_pager_settle_ahead(struct mp_pager *pager, bool block);

/* Take the unit off ahead[]. False: it was not there. */
bool mp_pager_forget_ahead(struct mp_pager *pager, uint32_t unit);

#define MP_CLASS_ANY UINT32_MAX

/* Cancel the latest read in ahead[] of this size class that has not started. False: none. */
bool mp_pager_cancel_ahead(struct mp_pager *pager, uint32_t class_index);

/* Give up on all queued prefetches and on all reads in ahead[] that have not started. */
void mp_pager_drop_all(struct mp_pager *pager);

/* Start what is queued as far as that disturbs nobody. */
void mp_pager_pursue(struct mp_pager *pager);

/* The open layer's needs are known: give up on what is queued for it, or is about to be read for
 * it, and is not among them. `unfinished`: reads ahead that the layer found on their way, from
 * which is learned how many there is time for. */
void mp_pager_drop_guesses(struct mp_pager *pager, uint32_t unfinished);

/* Start a read that no need waits for; `flags` say what it is. False: it could not be started. */
bool mp_pager_load_ahead(struct mp_pager *pager, uint32_t unit, uint8_t flags);

/* Is there a unit of this size class that the open layer has a slot for and has not finished? */
bool mp_pager_in_use(const struct mp_pager *pager, uint32_t class_index);

/* pager_plan.c: start the first residents; plan swaps and take new shares after `layer`. */
void mp_pager_load_first(struct mp_pager *pager);
void mp_pager_replace(struct mp_pager *pager, uint32_t layer);
/* Carry out swaps that wait, as far as reads ahead have time for them. */
void mp_pager_carry_out_swaps(struct mp_pager *pager);
void mp_pager_revise(struct mp_pager *pager);

/* Log the evict policy's notice, once. */
void mp_pager_take_notice(struct mp_pager *pager);

/* Ask the partition policy. False: it gave away more slots than there are. */
bool mp_pager_make_partition(struct mp_pager *pager) MP_MUST_CHECK;

/* Ask it how much of each expert stays, and count anew what follows from that. */
void mp_pager_ask_retained(struct mp_pager *pager);

/* pager_needs.c: start loads for needs that have no slot yet, in order; a size class that is full
 * is skipped. */
enum mp_status mp_pager_start_waiting(struct mp_pager *pager) MP_MUST_CHECK;
enum mp_status mp_pager_lease_need(struct mp_pager *pager,
                                   struct mp_pager_need *need) MP_MUST_CHECK;
void mp_pager_release_need(struct mp_pager *pager, struct mp_pager_need *need);
uint32_t mp_pager_count_needs(const struct mp_pager *pager, enum mp_need_state state);

#endif
