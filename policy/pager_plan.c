/*
 * Moves that no need asked for: the first residents that a partition names, swaps that an evict
 * policy plans after a layer, and new shares between steps. What is loaded here is read behind all
 * else and counts as prefetched. Answers are checked like all others.
 */
#include <string.h>

#include "policy/pager_int.h"

static const struct mp_policies *policies(const struct mp_pager *pager)
{
    return pager->config.policies;
}

static bool is_cold(const struct mp_pager *pager, uint32_t unit)
{
    const enum mp_res_state state = mp_space_state(pager->config.space, unit);

    return state == MP_RES_ABSENT || state == MP_RES_FAILED;
}

static bool has_free_slot(const struct mp_pager *pager, uint32_t unit)
{
    struct mp_space *space = pager->config.space;

    return mp_space_class_free(space, mp_space_unit_class(space, unit)) > 0;
}

void mp_pager_load_first(struct mp_pager *pager)
{
    const struct mp_partition_ops *ops = policies(pager)->partition_ops;
    uint32_t count;

    if (ops->first == NULL)
        return;
    count = ops->first(policies(pager)->partition, &pager->config.shape, pager->wait_list);
    if (count > pager->config.shape.slots) {
        pager->config.counters->policy_strikes++;
        count = 0;
    }
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t unit = pager->wait_list[i];

        if (unit >= pager->units || !is_cold(pager, unit))
            pager->config.counters->policy_strikes++;
        else if (has_free_slot(pager, unit) &&
                 !mp_pager_over_quota(pager, mp_pager_layer_of(pager, unit)))
            (void)mp_pager_load_ahead(pager, unit, MP_PAGER_AHEAD);
    }
}

/* May `swap` be carried out? `out` must be allowed by `query` and make room for `in`. */
static bool swap_is_sane(const struct mp_pager *pager, const struct mp_evict_query *query,
                         const struct mp_swap *swap)
{
    const struct mp_space *space = pager->config.space;

    if (swap->in >= pager->units || mp_pager_layer_of(pager, swap->in) != query->scope_layer ||
        !is_cold(pager, swap->in))
        return false;
    return swap->out == MP_UNIT_NONE ||
           (swap->out < pager->units && mp_evict_allows(query, swap->out) &&
            mp_space_unit_class(space, swap->in) == mp_space_unit_class(space, swap->out));
}

void mp_pager_replace(struct mp_pager *pager, uint32_t layer)
{
    const struct mp_policies *set = policies(pager);
    const struct mp_evict_query query = {
        .for_unit = MP_UNIT_NONE,
        .scope_layer = layer,
        .experts = pager->config.shape.experts,
        .evictable = pager->evictable,
    };
    const uint64_t start_ns = mp_clock_now_ns(pager->config.clock);
    uint32_t count;

    if (set->evict_ops->replace == NULL)
        return;
    count = set->evict_ops->replace(set->evict, &query, pager->now, pager->swaps,
                                    pager->config.shape.experts);
    pager->config.counters->decisions_ns += mp_clock_now_ns(pager->config.clock) - start_ns;
    if (count > pager->config.shape.experts) {
        pager->config.counters->policy_strikes++;
        count = 0;
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct mp_swap *swap = &pager->swaps[i];

        if (!swap_is_sane(pager, &query, swap)) {
            pager->config.counters->policy_strikes++;
            continue;
        }
        if (swap->out != MP_UNIT_NONE)
            mp_pager_evict(pager, swap->out);
        if (has_free_slot(pager, swap->in))
            (void)mp_pager_load_ahead(pager, swap->in, MP_PAGER_AHEAD);
    }
}

void mp_pager_revise(struct mp_pager *pager)
{
    const struct mp_policies *set = policies(pager);
    const struct mp_shape *shape = &pager->config.shape;
    uint64_t sum = 0;
    bool idle;

    if (pager->global || set->partition_ops->revise == NULL)
        return;
    /* Timing must not show in what a deterministic run decides. */
    idle = pager->config.deterministic ||
           (pager->ahead_count == 0 && mp_space_reader_idle(pager->config.space));
    memcpy(pager->revised, pager->quota, shape->layers * sizeof(pager->quota[0]));
    if (!set->partition_ops->revise(set->partition, shape, idle, pager->revised))
        return;
    for (uint32_t l = 0; l < shape->layers; l++)
        sum += pager->revised[l];
    if (sum > shape->slots)
        pager->config.counters->policy_strikes++;
    else
        memcpy(pager->quota, pager->revised, shape->layers * sizeof(pager->quota[0]));
}
