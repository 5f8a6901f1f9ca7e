/*
 * Opening and closing of layers. pager.h has the contract, pager_int.h the state and the other
 * parts.
 */
#include "policy/pager/pager_int.h"

#include <stdlib.h>
#include <string.h>

#include "vmm/base/arena.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"

/* Reads ahead at a time before anything is known of the disk: one is read, one is next. */
#define WINDOW_START 2

/* The open layer uses the unit, here or elsewhere: what brought it was right. */
static void note_used(struct mp_pager *pager, uint32_t unit, uint8_t flags)
{
    mp_assert(unit < pager->units);
    if (pager->flags[unit] & MP_PAGER_AHEAD)
        pager->config.counters->prefetch_used++;
    mp_pager_set_flags(pager, unit, flags);
}

static enum mp_status begin_need(struct mp_pager *pager, struct mp_pager_need *need)
{
    struct mp_counters *counters = pager->config.counters;
    const uint32_t unit = need->unit;
    bool on_the_way;
    enum mp_res_state state;

    mp_assert(unit < pager->units);
    mp_assert(need->state == MP_NEED_WAITING);
    if (need->elsewhere) {
        need->hit = mp_space_state(pager->config.space, unit) == MP_RES_VALID;
        need->state = MP_NEED_DONE;
        if (need->hit)
            note_used(pager, unit, 0);
        return MP_OK;
    }
    on_the_way = mp_pager_forget_ahead(pager, unit);
    state = mp_space_poll(pager->config.space, unit);
    if (state != MP_RES_VALID && on_the_way && (pager->flags[unit] & MP_PAGER_GUESSED))
        counters->guesses_late++;
    note_used(pager, unit, MP_PAGER_NEEDED);
    if (state == MP_RES_VALID) {
        need->hit = true;
        return mp_pager_lease_need(pager, need);
    }
    need->state = MP_NEED_WAITING;
    if (state == MP_RES_FILLING) {
        mp_space_promote(pager->config.space, unit);
        need->state = MP_NEED_LOADING;
    } else if (on_the_way) {
        mp_pager_note_removed(pager, unit); /* it failed just now */
    }
    return MP_OK;
}

/* How the open layer found its needs: for the counters and for the partition policy. */
static void observe(struct mp_pager *pager)
{
    const struct mp_policies *set = mp_pager_policies(pager);
    struct mp_counters *counters = pager->config.counters;
    uint32_t needed = 0, all_hits = 0;

    mp_assert(pager->need_count % pager->slices.count == 0);
    for (uint32_t i = 0; i < pager->need_count; i += pager->slices.count) {
        uint32_t hits = 0;
        bool hit;

        for (uint32_t s = 0; s < pager->slices.count; s++)
            hits += pager->needs[i + s].hit;
        hit = hits == pager->slices.count;
        needed++;
        all_hits += hit;
        counters->hits += hit;
        counters->partial_hits += hits > 0 && !hit;
        counters->misses += !hit && !pager->needs[i].elsewhere;
        counters->elsewhere += !hit && pager->needs[i].elsewhere;
    }
    if (set->partition_ops->observe != NULL)
        set->partition_ops->observe(set->partition, pager->layer, needed, all_hits, pager->now);
}

/* The units of an expert as needs of the open layer. */
static void add_needs(struct mp_pager *pager, const struct mp_need *need)
{
    const struct mp_policies *set = mp_pager_policies(pager);
    const uint32_t expert = pager->layer * pager->config.shape.experts + need->expert;
    const struct mp_unit_range units = mp_slices_of_expert(&pager->slices, expert);

    mp_assert(need->tokens > 0);
    mp_assert(expert < pager->experts);
    for (uint32_t u = units.first; u < units.end; u++)
        pager->needs[pager->need_count++] = (struct mp_pager_need){
            .unit = u,
            .tokens = need->tokens,
            .elsewhere = need->elsewhere,
        };
    if (set->evict_ops->on_access != NULL)
        set->evict_ops->on_access(set->evict, expert, need->tokens, pager->now);
}

void mp_pager_scores(struct mp_pager *pager, uint32_t layer, uint32_t tokens, uint32_t k,
                     const float *scores, const uint32_t *chosen)
{
    const struct mp_policies *set = mp_pager_policies(pager);

    mp_assert(!pager->open);
    mp_assert(layer < pager->config.shape.layers);
    mp_assert(k > 0 && k <= pager->config.shape.experts);
    /* The time that mp_pager_begin() will give to this layer. */
    if (set->evict_ops->on_scores != NULL)
        set->evict_ops->on_scores(set->evict, layer, tokens, k, scores, chosen, pager->now + 1);
}

enum mp_status mp_pager_begin(struct mp_pager *pager, uint32_t layer, const struct mp_need *needs,
                              uint32_t count)
{
    const struct mp_shape *shape = &pager->config.shape;
    enum mp_status status = MP_OK;

    mp_assert(needs != NULL || count == 0);
    if (pager->open || layer >= shape->layers || count > shape->experts)
        return mp_fail(MP_ERR_INVALID, "E_PAGER_ORDER", "layer %u begun at the wrong time", layer);
    for (uint32_t i = 0; i < count; i++) {
        if (needs[i].expert >= shape->experts || (i > 0 && needs[i].expert <= needs[i - 1].expert))
            return mp_fail(MP_ERR_INVALID, "E_PAGER_NEEDS", "needs of layer %u are not ascending",
                           layer);
    }

    mp_pager_settle_ahead(pager, pager->config.deterministic);
    mp_pager_adapt_windows(pager);
    pager->open = true;
    pager->layer = layer;
    pager->need_count = 0;
    pager->now++;
    for (uint32_t i = 0; i < count; i++)
        add_needs(pager, &needs[i]);
    for (uint32_t i = 0; i < pager->need_count && status == MP_OK; i++)
        status = begin_need(pager, &pager->needs[i]);
    observe(pager);
    mp_pager_note_late(pager);
    mp_pager_drop_guesses(pager);
    if (mp_pager_policies(pager)->prefetch_ops->until_routed)
        mp_pager_drop_all(pager);
    if (status == MP_OK)
        status = mp_pager_start_waiting(pager);
    if (status != MP_OK)
        mp_pager_abort(pager);
    else if (mp_pager_count_needs(pager, MP_NEED_LOADING) > 0)
        mp_space_push(pager->config.space);
    return status;
}

static void close_layer(struct mp_pager *pager)
{
    const uint8_t guess = MP_PAGER_AHEAD | MP_PAGER_GUESSED;
    const struct mp_unit_range units = mp_slices_of_layer(&pager->slices, pager->layer);

    mp_assert(pager->open);
    for (uint32_t i = 0; i < pager->need_count; i++) {
        if (pager->needs[i].elsewhere && mp_pager_is_present(pager, pager->needs[i].unit))
            note_used(pager, pager->needs[i].unit, 0);
    }
    for (uint32_t u = units.first; u < units.end; u++) {
        const uint8_t flags = pager->flags[u];

        /* What was kept for this layer has had its chance. What was mispredicted stays marked
         * until it is used or evicted; what came for another reason has that reason still. */
        if ((flags & MP_PAGER_KEEP) && (flags & guess) == guess)
            mp_pager_set_flags(pager, u, guess | MP_PAGER_MISPREDICTED);
        else if (flags & (MP_PAGER_NEEDED | MP_PAGER_KEEP))
            mp_pager_set_flags(pager, u, flags & guess);
    }
    pager->open = false;
    pager->need_count = 0;
}

void mp_pager_end(struct mp_pager *pager)
{
    mp_assert(pager->open);
    mp_assert(mp_pager_count_needs(pager, MP_NEED_DONE) == pager->need_count);
    close_layer(pager);
    mp_pager_replace(pager, pager->layer);
    mp_pager_take_notice(pager);
    if (pager->layer + 1 == pager->config.shape.layers)
        mp_pager_revise(pager);
    mp_pager_pursue(pager);
}

void mp_pager_settle(struct mp_pager *pager)
{
    mp_assert(!pager->open);
    mp_pager_settle_ahead(pager, true);
}

void mp_pager_pause(struct mp_pager *pager)
{
    mp_assert(!pager->open);
    mp_pager_settle(pager);
    mp_pager_revise(pager);
}

/* The layer gives up on a need that is being read: the read may end, but nobody waits for it. */
static void abandon_read(struct mp_pager *pager, struct mp_pager_need *need)
{
    const enum mp_res_state state = mp_space_poll(pager->config.space, need->unit);

    mp_assert(need->state == MP_NEED_LOADING);
    mp_assert(pager->ahead_count < pager->units);
    mp_pager_set_flags(pager, need->unit, 0);
    if (state == MP_RES_FILLING)
        pager->ahead[pager->ahead_count++] = need->unit;
    else if (state != MP_RES_VALID)
        mp_pager_note_removed(pager, need->unit);
}

void mp_pager_abort(struct mp_pager *pager)
{
    if (!pager->open)
        return;
    for (uint32_t i = 0; i < pager->need_count; i++) {
        struct mp_pager_need *need = &pager->needs[i];

        if (need->state == MP_NEED_LEASED || need->state == MP_NEED_HANDED)
            mp_pager_release_need(pager, need);
        else if (need->state == MP_NEED_LOADING)
            abandon_read(pager, need);
    }
    mp_pager_drop_all(pager);
    close_layer(pager);
}

/* One expert's numbers against the states of its units; adds to what is summed over all. */
static bool check_expert(struct mp_pager *pager, uint32_t expert, uint32_t *held, uint32_t *surplus)
{
    const struct mp_unit_range units = mp_slices_of_expert(&pager->slices, expert);
    bool present[MP_SLICES_MAX], going[MP_SLICES_MAX];

    mp_assert(expert < pager->experts);
    for (uint32_t u = units.first; u < units.end; u++) {
        const uint8_t was = pager->may_go[u];

        mp_pager_refresh(pager, u);
        if (pager->may_go[u] != was || (!pager->open && (pager->flags[u] & MP_PAGER_NEEDED)))
            return false;
        present[u - units.first] = mp_pager_is_present(pager, u);
        going[u - units.first] = was;
    }
    *surplus += mp_slices_going(&pager->slices, expert, MP_SLICES_SURPLUS);
    return mp_slices_check(&pager->slices, expert, present, going, held);
}

bool mp_pager_check(struct mp_pager *pager)
{
    const uint32_t experts = pager->config.shape.experts;
    uint32_t kept = 0, mispredicted = 0, filling = 0, surplus = 0;

    for (uint32_t l = 0; l < pager->config.shape.layers; l++) {
        uint32_t held = 0;

        mispredicted += pager->mispredicted[l];
        for (uint32_t e = l * experts; e < (l + 1) * experts; e++) {
            if (!check_expert(pager, e, &held, &surplus))
                return false;
        }
        if (held != pager->slices.held[l])
            return false;
    }
    if (mispredicted != pager->mispredicted_count)
        return false;
    for (uint32_t u = 0; u < pager->units; u++) {
        kept += (pager->flags[u] & MP_PAGER_KEEP) != 0;
        mispredicted -= (pager->flags[u] & MP_PAGER_MISPREDICTED) != 0;
        filling += mp_space_state(pager->config.space, u) == MP_RES_FILLING;
    }
    for (uint32_t i = 0; i < pager->ahead_count; i++) {
        if (mp_space_state(pager->config.space, pager->ahead[i]) != MP_RES_FILLING ||
            (pager->flags[pager->ahead[i]] & MP_PAGER_NEEDED))
            return false;
    }
    return kept == pager->kept_count && mispredicted == 0 &&
           surplus == pager->slices.surplus_going &&
           filling == pager->ahead_count + mp_pager_count_needs(pager, MP_NEED_LOADING) &&
           mp_space_check(pager->config.space);
}

static enum mp_status check_config(const struct mp_pager_config *config)
{
    const struct mp_shape *shape = &config->shape;
    const uint32_t units = mp_space_unit_count(config->space);
    const uint32_t slices = shape->slices > 1 ? shape->slices : 1;

    mp_assert(config->space != NULL && config->policies != NULL);
    if (shape->layers == 0 || shape->experts == 0 || slices > MP_SLICES_MAX ||
        (uint64_t)shape->layers * shape->experts * slices != units)
        return mp_fail(MP_ERR_INVALID, "E_PAGER_SHAPE",
                       "%u layers of %u experts of %u slices are not %u units", shape->layers,
                       shape->experts, slices, units);
    for (uint32_t u = 0; u < units; u++) {
        const enum mp_res_state state = mp_space_state(config->space, u);

        if (state == MP_RES_FILLING || state == MP_RES_VALID)
            return mp_fail(MP_ERR_INVALID, "E_PAGER_SPACE",
                           "unit %u of the space is in use by somebody else", u);
    }
    return MP_OK;
}

static void take_tables(struct mp_pager *pager, struct mp_arena *arena)
{
    const uint64_t units = pager->units, experts = pager->experts;
    const uint64_t layers = pager->config.shape.layers;

    mp_assert(units > 0 && layers > 0);
    mp_slices_take(&pager->slices, arena);
    pager->may_go = mp_arena_take(arena, units, 1);
    pager->flags = mp_arena_take(arena, units, 1);
    pager->fallback = mp_arena_take(arena, experts, 1);
    pager->mispredicted = mp_arena_take(arena, layers, sizeof(uint32_t));
    pager->ahead = mp_arena_take(arena, units, sizeof(uint32_t));
    pager->queued = mp_arena_take(arena, units, sizeof(uint32_t));
    pager->needs = mp_arena_take(arena, units / layers, sizeof(struct mp_pager_need));
    pager->wait_list = mp_arena_take(arena, units, sizeof(uint32_t));
    pager->revised = mp_arena_take(arena, layers, sizeof(uint32_t));
    pager->swaps = mp_arena_take(arena, experts / layers, sizeof(struct mp_swap));
    pager->planned = mp_arena_take(arena, experts, sizeof(struct mp_pager_plan));
}

static enum mp_status make_tables(struct mp_pager *pager)
{
    struct mp_arena arena = { 0 };
    enum mp_status status;

    mp_assert(pager->block == NULL);
    take_tables(pager, &arena);
    status = mp_arena_open(&arena, "the pager's tables");
    if (status != MP_OK)
        return status;
    pager->block = arena.block;
    take_tables(pager, &arena);
    for (size_t l = 0; l < pager->config.shape.layers; l++)
        pager->revised[l] = pager->slices.count;
    mp_slices_retain(&pager->slices, pager->revised);
    return MP_OK;
}

void mp_pager_fit_shape(const struct mp_space *space, struct mp_shape *shape)
{
    const uint32_t slices = shape->slices > 1 ? shape->slices : 1;
    struct mp_space_plan plan;

    mp_assert(slices <= MP_SLICES_MAX);
    mp_space_get_plan(space, &plan);
    shape->slots = plan.slots > slices ? plan.slots / slices : 1;
    shape->expert_bytes = plan.slot_bytes_max * slices;
}

enum mp_status mp_pager_create(const struct mp_pager_config *config, struct mp_pager **pager_p)
{
    const struct mp_shape *shape = &config->shape;
    struct mp_space_plan plan;
    struct mp_pager *pager;
    enum mp_status status = check_config(config);

    mp_assert(config->clock != NULL && config->counters != NULL);
    if (status != MP_OK)
        return status;
    pager = calloc(1, sizeof(*pager));
    if (pager == NULL)
        return mp_fail_no_memory("the pager", sizeof(*pager));
    mp_space_get_plan(config->space, &plan);
    pager->config = *config;
    pager->units = mp_space_unit_count(config->space);
    pager->experts = shape->layers * shape->experts;
    pager->slices.count = shape->slices > 1 ? shape->slices : 1;
    pager->slices.layers = shape->layers;
    pager->slices.experts = shape->experts;
    pager->slots = plan.slots;
    for (uint32_t kind = 0; kind < MP_AHEAD_KINDS; kind++)
        pager->window[kind] = WINDOW_START * pager->slices.count;
    status = make_tables(pager);
    if (status != MP_OK) {
        free(pager);
        return status;
    }
    if (!mp_pager_make_partition(pager)) {
        mp_pager_destroy(pager);
        return mp_fail(MP_ERR_INVALID, "E_PARTITION",
                       "partition policy '%s' gives away more than %u slots",
                       config->policies->partition_ops->info.name, shape->slots);
    }
    if (config->timeline != NULL)
        pager->track = mp_timeline_add_track(config->timeline, "wait");
    mp_pager_load_first(pager);
    *pager_p = pager;
    return MP_OK;
}

void mp_pager_destroy(struct mp_pager *pager)
{
    const struct mp_error before = *mp_error_last();

    if (pager == NULL)
        return;
    mp_assert(!pager->open);
    /* A prefetch on the way is either cancelled or paid for; it does not fall through the books. */
    mp_pager_drop_all(pager);
    mp_pager_settle_ahead(pager, true);
    mp_error_set(&before); /* report what ended the run, not that a guess came to nothing */
    pager->config.counters->prefetch_unused_bytes += mp_pager_unused_bytes(pager);
    free(pager->block);
    free(pager);
}
