/*
 * Prefetching: a prediction becomes a queued prefetch, then a read that no need waits for, then a
 * resident that is kept until its layer has run.
 */
#include <string.h>

#include "policy/pager/pager_int.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"

void mp_pager_settle_ahead(struct mp_pager *pager, bool block)
{
    struct mp_space *space = pager->config.space;
    uint32_t left = 0;

    mp_assert(pager->ahead_count <= pager->units);
    for (uint32_t i = 0; i < pager->ahead_count; i++) {
        const uint32_t unit = pager->ahead[i];
        enum mp_res_state state;

        if (block && mp_space_wait(space, unit) != MP_OK)
            mp_error_clear(); /* a guess that failed; a demand will try again and report */
        state = mp_space_poll(space, unit);
        if (state == MP_RES_FILLING)
            pager->ahead[left++] = unit;
        else if (state == MP_RES_VALID)
            mp_pager_refresh(pager, unit);
        else
            mp_pager_note_nothing(pager, unit);
    }
    pager->room_changed |= left < pager->ahead_count;
    pager->ahead_count = left;
}

bool mp_pager_forget_ahead(struct mp_pager *pager, uint32_t unit)
{
    mp_assert(unit < pager->units);
    for (uint32_t i = 0; i < pager->ahead_count; i++) {
        if (pager->ahead[i] == unit) {
            memmove(&pager->ahead[i], &pager->ahead[i + 1],
                    (pager->ahead_count - i - 1) * sizeof(pager->ahead[0]));
            pager->ahead_count--;
            return true;
        }
    }
    return false;
}

/* Take back the read of ahead[i]. False: it has started. */
static bool cancel_one(struct mp_pager *pager, uint32_t i)
{
    const uint32_t unit = pager->ahead[i];

    mp_assert(i < pager->ahead_count);
    mp_assert(!(pager->flags[unit] & MP_PAGER_NEEDED));
    if (mp_space_cancel(pager->config.space, unit) != MP_OK)
        return false;
    mp_pager_forget_ahead(pager, unit);
    if (pager->flags[unit] & MP_PAGER_AHEAD)
        pager->config.counters->prefetch_canceled++;
    mp_pager_note_nothing(pager, unit);
    return true;
}

bool mp_pager_cancel_ahead(struct mp_pager *pager, uint32_t class_index)
{
    struct mp_space *space = pager->config.space;

    mp_assert(class_index == MP_CLASS_ANY || class_index < mp_space_class_count(space));
    for (uint32_t i = pager->ahead_count; i-- > 0;) {
        const uint32_t unit = pager->ahead[i];

        if ((class_index == MP_CLASS_ANY || mp_space_unit_class(space, unit) == class_index) &&
            cancel_one(pager, i))
            return true;
    }
    return false;
}

uint32_t mp_pager_count_ahead(const struct mp_pager *pager, enum mp_ahead_kind kind)
{
    uint32_t guesses = 0;

    mp_assert(pager->ahead_count <= pager->units);
    for (uint32_t i = 0; i < pager->ahead_count; i++)
        guesses += (pager->flags[pager->ahead[i]] & MP_PAGER_GUESSED) != 0;
    return kind == MP_AHEAD_GUESS ? guesses : pager->ahead_count - guesses;
}

void mp_pager_drop_all(struct mp_pager *pager)
{
    pager->config.counters->guesses_superseded += pager->queued_count;
    pager->queued_count = 0;
    while (mp_pager_cancel_ahead(pager, MP_CLASS_ANY))
        ;
}

uint32_t mp_pager_prefetch_room(const struct mp_pager *pager, uint32_t layer)
{
    const uint32_t limit = pager->slots / 4;
    const uint32_t taken = pager->kept_count + pager->queued_count;

    mp_assert(pager->kept_count <= pager->units);
    if (layer >= pager->config.shape.layers || (pager->open && layer == pager->layer))
        return 0;
    return limit > taken ? (limit - taken) / pager->slices.count : 0;
}

bool mp_pager_load_ahead(struct mp_pager *pager, uint32_t unit, uint8_t flags)
{
    const enum mp_status status = mp_pager_start_load(pager, unit, MP_PRIORITY_PREFETCH);

    mp_assert(pager->ahead_count < pager->units);
    mp_assert(!(flags & MP_PAGER_NEEDED));
    if (status != MP_OK) {
        mp_error_clear(); /* only a guess */
        return false;
    }
    pager->ahead[pager->ahead_count++] = unit;
    mp_pager_set_flags(pager, unit, flags);
    pager->config.counters->prefetch_issued++;
    return true;
}

/* True: it is in the tier or on its way, and is kept now. */
static bool keep_resident(struct mp_pager *pager, uint32_t unit)
{
    const enum mp_res_state state = mp_space_state(pager->config.space, unit);
    const uint8_t flags = pager->flags[unit] & (uint8_t)~MP_PAGER_MISPREDICTED;

    mp_assert(unit < pager->units);
    if (state != MP_RES_VALID && state != MP_RES_FILLING)
        return false;
    mp_pager_set_flags(pager, unit, flags | MP_PAGER_KEEP);
    return true;
}

static bool is_queued(const struct mp_pager *pager, uint32_t unit)
{
    uint32_t i = 0;

    mp_assert(pager->queued_count <= pager->units);
    while (i < pager->queued_count && pager->queued[i] != unit)
        i++;
    return i < pager->queued_count;
}

/* Keep what is there of an expert and queue the rest. */
static void queue_prefetch(struct mp_pager *pager, uint32_t expert)
{
    const struct mp_unit_range units = mp_slices_of_expert(&pager->slices, expert);

    mp_assert(expert < pager->experts);
    for (uint32_t unit = units.first; unit < units.end; unit++) {
        if (keep_resident(pager, unit) || is_queued(pager, unit))
            continue;
        pager->queued[pager->queued_count++] = unit;
        pager->config.counters->guesses_planned++;
    }
}

void mp_pager_prefetch(struct mp_pager *pager, uint32_t layer, const uint32_t *experts,
                       uint32_t count)
{
    const struct mp_shape *shape = &pager->config.shape;

    mp_assert(experts != NULL || count == 0);
    for (uint32_t i = 0; i < count && mp_pager_prefetch_room(pager, layer) > 0; i++) {
        if (experts[i] < shape->experts)
            queue_prefetch(pager, layer * shape->experts + experts[i]);
        else
            pager->config.counters->invalid_decisions++;
        /* Decisions of a deterministic run must not depend on what has been read by now. */
        if (pager->config.deterministic)
            mp_pager_pursue(pager);
    }
    mp_pager_pursue(pager);
}

void mp_pager_foresee(struct mp_pager *pager, uint32_t layer, const uint32_t *experts,
                      uint32_t count)
{
    mp_assert(layer < pager->config.shape.layers);
    mp_assert(!pager->open || layer != pager->layer);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t expert = layer * pager->config.shape.experts + experts[i];
        const struct mp_unit_range units = mp_slices_of_expert(&pager->slices, expert);

        mp_assert(experts[i] < pager->config.shape.experts);
        for (uint32_t unit = units.first; unit < units.end; unit++) {
            if (mp_pager_is_present(pager, unit))
                mp_pager_set_flags(pager, unit, pager->flags[unit] | MP_PAGER_FORESEEN);
        }
    }
}

static bool needs_are_read(const struct mp_pager *pager)
{
    mp_assert(pager->open || pager->need_count == 0);
    for (uint32_t i = 0; i < pager->need_count; i++) {
        if (pager->needs[i].state == MP_NEED_WAITING || pager->needs[i].state == MP_NEED_LOADING)
            return false;
    }
    return true;
}

/* Start queued prefetches, as many as their window has room for. */
static void start_guesses(struct mp_pager *pager, bool patient)
{
    struct mp_counters *counters = pager->config.counters;
    uint32_t reading = mp_pager_count_ahead(pager, MP_AHEAD_GUESS);

    mp_assert(pager->window[MP_AHEAD_GUESS] > 0);
    while (pager->queued_count > 0 && (!patient || reading < pager->window[MP_AHEAD_GUESS])) {
        const uint32_t unit = pager->queued[0];
        bool started;

        pager->queued_count--;
        memmove(pager->queued, pager->queued + 1, pager->queued_count * sizeof(pager->queued[0]));
        started =
            !keep_resident(pager, unit) &&
            mp_pager_load_ahead(pager, unit, MP_PAGER_KEEP | MP_PAGER_AHEAD | MP_PAGER_GUESSED);
        reading += started;
        counters->guesses_started += started;
        counters->guesses_superseded += !started; /* it came another way, or finds no slot */
    }
}

void mp_pager_pursue(struct mp_pager *pager)
{
    const bool patient = !pager->config.deterministic;

    if (pager->yields || pager->queued_count + pager->planned_count == 0 ||
        (patient && !needs_are_read(pager)))
        return;
    if (patient)
        mp_pager_settle_ahead(pager, false);
    start_guesses(pager, patient); /* they have a deadline, and swaps a window of their own */
    mp_pager_carry_out_swaps(pager);
}

/* Leave one read unfinished when a layer begins: none would mean an idle disk, more of them slots
 * that were taken from others too early. */
static void adapt_window(const struct mp_pager *pager, uint32_t *window, uint32_t unfinished,
                         uint32_t waiting)
{
    mp_assert(unfinished <= pager->units);
    if (unfinished == 0 && waiting > 0 && *window < pager->slots / 8)
        *window *= 2;
    else if (unfinished > 1)
        *window = *window > unfinished ? *window - unfinished + 1 : 1;
}

void mp_pager_adapt_windows(struct mp_pager *pager)
{
    if (pager->yields)
        return;
    adapt_window(pager, &pager->window[MP_AHEAD_GUESS], mp_pager_count_ahead(pager, MP_AHEAD_GUESS),
                 pager->queued_count);
    adapt_window(pager, &pager->window[MP_AHEAD_PLAN], mp_pager_count_ahead(pager, MP_AHEAD_PLAN),
                 pager->planned_count);
}

/* Is the unit a need of the open layer? */
static bool is_needed(const struct mp_pager *pager, uint32_t unit)
{
    uint32_t i = 0;

    mp_assert(pager->open);
    while (i < pager->need_count && pager->needs[i].unit != unit)
        i++;
    return i < pager->need_count;
}

void mp_pager_drop_guesses(struct mp_pager *pager)
{
    const uint8_t guess = MP_PAGER_KEEP | MP_PAGER_AHEAD;
    const struct mp_unit_range units = mp_slices_of_layer(&pager->slices, pager->layer);
    struct mp_counters *counters = pager->config.counters;
    uint32_t left = 0;

    mp_assert(pager->open);
    for (uint32_t u = units.first; u < units.end; u++) {
        if (pager->flags[u] & MP_PAGER_FORESEEN)
            mp_pager_set_flags(pager, u, pager->flags[u] & (uint8_t)~MP_PAGER_FORESEEN);
    }
    for (uint32_t i = 0; i < pager->queued_count; i++) {
        const uint32_t unit = pager->queued[i];

        if (mp_slices_layer(&pager->slices, unit) != pager->layer)
            pager->queued[left++] = unit;
        else
            counters->guesses_late += is_needed(pager, unit);
    }
    counters->guesses_superseded += pager->queued_count - left;
    pager->queued_count = left;
    for (uint32_t i = pager->ahead_count; i-- > 0;) {
        const uint32_t unit = pager->ahead[i];

        if (mp_slices_layer(&pager->slices, unit) == pager->layer &&
            (pager->flags[unit] & guess) == guess)
            (void)cancel_one(pager, i);
    }
}

uint64_t mp_pager_unused_bytes(const struct mp_pager *pager)
{
    uint64_t bytes = 0;

    for (uint32_t u = 0; u < pager->units; u++) {
        if ((pager->flags[u] & MP_PAGER_AHEAD) &&
            mp_space_state(pager->config.space, u) == MP_RES_VALID)
            bytes += mp_space_unit_bytes(pager->config.space, u);
    }
    return bytes;
}
