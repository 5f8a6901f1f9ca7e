/*
 * Planned moves without a need: the first residents of a partition, swaps of an evict policy after
 * a layer, and new quotas between steps. These loads have the lowest priority and count as
 * prefetches. Decisions are checked like all others.
 */
#include <string.h>

#include "policy/hot.h"
#include "policy/pager/pager_int.h"
#include "vmm/base/assert.h"
#include "vmm/base/log.h"

/* Nothing of the expert is in the tier or on its way. */
static bool is_cold(const struct mp_pager *pager, uint32_t expert)
{
    mp_assert(expert < pager->experts);
    return pager->slices.present[expert] == 0;
}

/* Read what is kept of an expert, as far as slots are free. */
static void load_expert(struct mp_pager *pager, uint32_t expert, bool within_quota)
{
    const struct mp_unit_range units =
        mp_slices_part_of(&pager->slices, expert, MP_SLICES_RETAINED);
    struct mp_space *space = pager->config.space;

    for (uint32_t unit = units.first; unit < units.end; unit++) {
        if (mp_space_class_free(space, mp_space_unit_class(space, unit)) > 0 &&
            !(within_quota && mp_slices_over_quota(&pager->slices, unit)))
            (void)mp_pager_load_ahead(pager, unit, MP_PAGER_AHEAD);
    }
}

/* As many of the given ones as there are slots, less those that demands and guesses take. The least
 * important come first, because what came first leaves first. */
static void load_given(struct mp_pager *pager)
{
    const struct mp_pager_config *c = &pager->config;
    const uint32_t kept = mp_buffer_slots(&c->shape);
    const uint32_t most = c->shape.slots > kept ? c->shape.slots - kept : 0;

    for (uint32_t i = c->first_count < most ? c->first_count : most; i-- > 0;) {
        mp_assert(c->first[i] < pager->experts);
        if (is_cold(pager, c->first[i]))
            load_expert(pager, c->first[i], true);
    }
}

/* wait_list := the experts that the partition names, if it does; returns how many. */
static uint32_t ask_first(struct mp_pager *pager)
{
    const struct mp_policies *set = mp_pager_policies(pager);
    uint32_t count;

    mp_assert(mp_partition_first_max(&pager->config.shape) <= pager->units);
    if (set->partition_ops->first == NULL)
        return 0;
    count = set->partition_ops->first(set->partition, &pager->config.shape, pager->wait_list);
    if (count <= mp_partition_first_max(&pager->config.shape))
        return count;
    pager->config.counters->invalid_decisions++;
    return 0;
}

void mp_pager_load_first(struct mp_pager *pager)
{
    const uint32_t count = ask_first(pager);

    mp_assert(!pager->open);
    if (count == 0)
        load_given(pager);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t expert = pager->wait_list[i];

        if (expert >= pager->experts || !is_cold(pager, expert))
            pager->config.counters->invalid_decisions++;
        else
            load_expert(pager, expert, true);
    }
}

/* Does `out`, if it is an expert, leave the room that `in` takes? Policies do not know sizes. */
static bool fits(const struct mp_pager *pager, uint32_t in, uint32_t out)
{
    if (out == MP_EXPERT_NONE)
        return true;

    const struct mp_unit_range from = mp_slices_of_expert(&pager->slices, in);
    const uint32_t to = mp_slices_of_expert(&pager->slices, out).first;
    const struct mp_space *space = pager->config.space;

    mp_assert(in < pager->experts && out < pager->experts);
    for (uint32_t unit = from.first; unit < from.end; unit++) {
        if (mp_space_unit_class(space, unit) != mp_space_unit_class(space, to + unit - from.first))
            return false;
    }
    return true;
}

/* May a policy ask for `swap`? `out` must be allowed by `query`. */
static bool swap_is_sane(const struct mp_pager *pager, const struct mp_evict_query *query,
                         const struct mp_swap *swap)
{
    mp_assert(query->scope_layer < pager->config.shape.layers);
    if (swap->in >= pager->experts || swap->in / query->experts != query->scope_layer ||
        !is_cold(pager, swap->in))
        return false;
    return swap->out == MP_EXPERT_NONE ||
           (swap->out < pager->experts &&
            (mp_evict_allows(query, swap->out) || (query->shared && query->evictable[swap->out])));
}

static void evict_expert(struct mp_pager *pager, uint32_t expert)
{
    const struct mp_unit_range units = mp_slices_of_expert(&pager->slices, expert);

    mp_assert(expert < pager->experts);
    for (uint32_t unit = units.end; unit-- > units.first;) {
        if (pager->may_go[unit])
            mp_pager_evict(pager, unit);
    }
}

static struct mp_evict_query query_for(const struct mp_pager *pager, uint32_t layer)
{
    mp_assert(layer < pager->config.shape.layers);
    return (struct mp_evict_query){
        .for_id = MP_EXPERT_NONE,
        .scope_layer = layer,
        .experts = pager->config.shape.experts,
        .shared = pager->global,
        .evictable = pager->slices.evictable,
    };
}

/* A newer swap names one of its experts: it has been decided anew. */
static void supersede(struct mp_pager *pager, const struct mp_swap *by)
{
    uint32_t left = 0;

    mp_assert(pager->planned_count <= pager->experts);
    for (uint32_t i = 0; i < pager->planned_count; i++) {
        const struct mp_swap *old = &pager->planned[i].swap;

        if (old->in != by->in && (old->out != by->out || by->out == MP_EXPERT_NONE))
            pager->planned[left++] = pager->planned[i];
    }
    pager->config.counters->swaps_superseded += pager->planned_count - left;
    pager->planned_count = left;
}

static void plan_swap(struct mp_pager *pager, const struct mp_swap *swap)
{
    supersede(pager, swap);
    mp_assert(pager->planned_count < pager->experts); /* each is to bring in another one */
    pager->planned[pager->planned_count++] = (struct mp_pager_plan){ .swap = *swap };
    pager->config.counters->swaps_planned++;
}

void mp_pager_replace(struct mp_pager *pager, uint32_t layer)
{
    const struct mp_policies *set = mp_pager_policies(pager);
    const struct mp_evict_query query = query_for(pager, layer);
    const uint64_t start_ns = mp_clock_now_ns(pager->config.clock);
    uint32_t count;

    mp_assert(!pager->open);
    if (set->evict_ops->replace == NULL)
        return;
    count = set->evict_ops->replace(set->evict, &query, pager->now, pager->swaps,
                                    pager->config.shape.experts);
    pager->config.counters->decisions_ns += mp_clock_now_ns(pager->config.clock) - start_ns;
    if (count > pager->config.shape.experts) {
        pager->config.counters->invalid_decisions++;
        count = 0;
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct mp_swap swap = pager->swaps[i];

        if (!swap_is_sane(pager, &query, &swap))
            pager->config.counters->invalid_decisions++;
        else if (fits(pager, swap.in, swap.out))
            plan_swap(pager, &swap);
    }
    mp_pager_carry_out_swaps(pager);
}

void mp_pager_place(struct mp_pager *pager, const uint8_t *placed)
{
    mp_assert(!pager->open);
    pager->placed = placed;
    if (placed == NULL)
        return;
    pager->global = true;
    for (uint32_t l = 0; l < pager->config.shape.layers; l++)
        pager->slices.quota[l] = UINT32_MAX;
}

/* Reads at a time: enough for a disk, few enough for a demand that comes now. */
#define FILLING_MAX 4

void mp_pager_fill_placed(struct mp_pager *pager, bool (*elsewhere)(void *ctx, uint32_t expert),
                          void *ctx)
{
    mp_assert(!pager->open);
    mp_pager_settle_ahead(pager, false);
    for (uint32_t unit = 0; unit < pager->units && pager->placed != NULL; unit++) {
        const uint32_t expert = mp_slices_expert(&pager->slices, unit);

        if (pager->placed[expert] == MP_PLACED_NOT ||
            mp_space_state(pager->config.space, unit) == MP_RES_VALID)
            continue;
        if (pager->ahead_count >= FILLING_MAX)
            break;
        if (!mp_pager_is_present(pager, unit) && (elsewhere == NULL || !elsewhere(ctx, expert)))
            (void)mp_pager_load_ahead(pager, unit, MP_PAGER_AHEAD);
    }
}

/* A resident leaves when its successor is read, not when that is decided: on a busy link the one
 * would be gone long before the other comes. In the meantime either can have gone another way. */
void mp_pager_carry_out_swaps(struct mp_pager *pager)
{
    const bool patient = !pager->config.deterministic;
    struct mp_counters *counters = pager->config.counters;
    uint32_t reading = mp_pager_count_ahead(pager, MP_AHEAD_PLAN), left = 0;

    mp_assert(pager->planned_count <= pager->experts);
    for (uint32_t i = 0; i < pager->planned_count; i++) {
        const struct mp_pager_plan plan = pager->planned[i];
        const uint32_t layer = plan.swap.in / pager->config.shape.experts;
        const struct mp_evict_query query = query_for(pager, layer);
        const uint32_t before = pager->ahead_count;

        if ((pager->open && layer == pager->layer) ||
            (patient && (pager->yields || reading >= pager->window[MP_AHEAD_PLAN]))) {
            pager->planned[left++] = plan;
            continue;
        }
        if (swap_is_sane(pager, &query, &plan.swap)) {
            if (plan.swap.out != MP_EXPERT_NONE)
                evict_expert(pager, plan.swap.out);
            load_expert(pager, plan.swap.in, false);
        }
        reading += pager->ahead_count - before;
        counters->swaps_started += pager->ahead_count > before;
        counters->swaps_superseded += pager->ahead_count == before;
    }
    pager->planned_count = left;
}

void mp_pager_note_late(struct mp_pager *pager)
{
    mp_assert(pager->open);
    for (uint32_t i = 0; i < pager->planned_count; i++) {
        struct mp_pager_plan *plan = &pager->planned[i];

        if (plan->swap.in / pager->config.shape.experts != pager->layer || plan->late)
            continue;
        plan->late = true;
        pager->config.counters->swaps_late++;
    }
}

void mp_pager_take_notice(struct mp_pager *pager)
{
    const struct mp_policies *set = mp_pager_policies(pager);
    const char *notice = pager->notice;

    if (set->evict_ops->notice != NULL)
        notice = set->evict_ops->notice(set->evict);
    if (notice != NULL && notice != pager->notice)
        mp_log_info("pager", "%s", notice);
    pager->notice = notice;
}

/* Is there a slot that nobody's share has a right to? */
static bool has_room(const struct mp_pager *pager, uint32_t unit)
{
    const struct mp_space *space = pager->config.space;

    mp_assert(unit < pager->units);
    return mp_space_class_free(space, mp_space_unit_class(space, unit)) > 0 ||
           pager->slices.surplus_going > 0 ||
           mp_slices_greediest_layer(&pager->slices) != MP_LAYER_ANY;
}

/* The room that new shares have made is filled with what the partition names: else it would fill
 * one demand at a time, and until then the revision has only taken something from other layers. */
static void fill_shares(struct mp_pager *pager)
{
    const uint32_t count = ask_first(pager);

    mp_assert(!pager->open);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t expert = pager->wait_list[i];
        struct mp_unit_range units;

        if (expert >= pager->experts) {
            pager->config.counters->invalid_decisions++;
            continue;
        }
        units = mp_slices_part_of(&pager->slices, expert, MP_SLICES_RETAINED);
        for (uint32_t u = units.first; u < units.end; u++) {
            if (!mp_pager_is_present(pager, u) && !mp_slices_over_quota(&pager->slices, u) &&
                has_room(pager, u))
                (void)mp_pager_load_ahead(pager, u, MP_PAGER_AHEAD);
        }
    }
}

void mp_pager_revise(struct mp_pager *pager)
{
    const struct mp_policies *set = mp_pager_policies(pager);
    const struct mp_shape *shape = &pager->config.shape;
    uint64_t sum = 0;
    bool idle;

    mp_assert(!pager->open);
    if (pager->global || set->partition_ops->revise == NULL)
        return;
    pager->yields = false;
    /* Timing must not show in what a deterministic run decides. */
    idle = pager->config.deterministic ||
           (pager->ahead_count == 0 && mp_space_reader_idle(pager->config.space));
    for (uint32_t l = 0; l < shape->layers; l++)
        pager->revised[l] = pager->slices.quota[l] / pager->slices.count;
    if (!set->partition_ops->revise(set->partition, shape, idle, pager->revised)) {
        pager->yields = !idle && set->partition_ops->due != NULL &&
                        set->partition_ops->due(set->partition, shape);
        return;
    }
    for (uint32_t l = 0; l < shape->layers; l++)
        sum += pager->revised[l];
    if (sum > shape->slots) {
        pager->config.counters->invalid_decisions++;
        return;
    }
    pager->revisions++;
    for (uint32_t l = 0; l < shape->layers; l++)
        pager->slices.quota[l] = pager->revised[l] * pager->slices.count;
    mp_pager_ask_retained(pager);
    fill_shares(pager);
}
