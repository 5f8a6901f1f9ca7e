/*
 * Queries of residents and reads in flight, for clients that do not open a layer.
 */
#include "policy/pager/pager_int.h"
#include "vmm/base/assert.h"

bool mp_pager_find(struct mp_pager *pager, uint32_t unit, const void *piece_p[MP_UNIT_PIECES_MAX])
{
    struct mp_space *space = pager->config.space;

    mp_assert(unit < pager->units);
    if (mp_space_state(space, unit) != MP_RES_VALID ||
        mp_space_lease(space, unit, piece_p) != MP_OK)
        return false;
    mp_space_release(space, unit);
    return true;
}

uint32_t mp_pager_spare(const struct mp_pager *pager, uint32_t expert)
{
    const struct mp_space *space = pager->config.space;
    const uint32_t class_index =
        mp_space_unit_class(space, mp_slices_of_expert(&pager->slices, expert).first);
    uint32_t spare = mp_space_class_free(space, class_index);

    mp_assert(expert < pager->experts);
    for (uint32_t unit = 0; unit < pager->units; unit++) {
        const uint32_t owner = mp_slices_expert(&pager->slices, unit);

        spare += pager->may_go[unit] && mp_space_unit_class(space, unit) == class_index &&
                 (pager->placed == NULL || pager->placed[owner] == MP_PLACED_NOT);
    }
    return spare / pager->slices.count;
}

uint64_t mp_pager_expert_bytes(const struct mp_pager *pager, uint32_t expert)
{
    const struct mp_unit_range units = mp_slices_of_expert(&pager->slices, expert);
    uint64_t bytes = 0;

    mp_assert(expert < pager->experts);
    for (uint32_t unit = units.first; unit < units.end; unit++)
        bytes += mp_space_unit_bytes(pager->config.space, unit);
    return bytes;
}

bool mp_pager_get(struct mp_pager *pager, uint32_t expert, void *bytes)
{
    const struct mp_unit_range units = mp_slices_of_expert(&pager->slices, expert);
    char *to = bytes;

    mp_assert(expert < pager->experts);
    for (uint32_t unit = units.first; unit < units.end; unit++) {
        if (!mp_space_get(pager->config.space, unit, to))
            return false;
        to += mp_space_unit_bytes(pager->config.space, unit);
    }
    return true;
}

enum mp_status mp_pager_put(struct mp_pager *pager, uint32_t expert, enum mp_priority priority,
                            const void *bytes)
{
    const struct mp_unit_range units = mp_slices_of_expert(&pager->slices, expert);
    const char *from = bytes;
    enum mp_status status = MP_OK;

    mp_assert(!pager->open && expert < pager->experts);
    mp_pager_settle_ahead(pager, false);
    for (uint32_t unit = units.first; unit < units.end; unit++) {
        if (mp_pager_is_present(pager, unit))
            return MP_ERR_BUSY;
    }
    for (uint32_t unit = units.first; unit < units.end && status == MP_OK; unit++) {
        pager->coming = from;
        status = mp_pager_start_load(pager, unit, priority);
        pager->coming = NULL;
        if (status == MP_OK)
            mp_pager_refresh(pager, unit);
        from += mp_space_unit_bytes(pager->config.space, unit);
    }
    return status;
}

bool mp_pager_arrivals(const struct mp_pager *pager, uint32_t layer, const uint8_t *resident,
                       uint64_t first_ns, uint64_t unit_ns, uint64_t *arrival_ns)
{
    const uint32_t first = layer * pager->config.shape.experts;
    uint64_t at_ns = pager->config.deterministic ? 0 : first_ns;
    bool any = false;

    mp_assert(layer < pager->config.shape.layers);
    for (uint32_t e = 0; e < pager->config.shape.experts; e++)
        arrival_ns[e] = resident[e] ? 0 : MP_ARRIVAL_NEVER;
    for (uint32_t i = 0; i < pager->ahead_count; i++) {
        const uint32_t expert = mp_slices_expert(&pager->slices, pager->ahead[i]);

        if (expert >= first && expert - first < pager->config.shape.experts &&
            !resident[expert - first] && pager->slices.present[expert] == pager->slices.count) {
            arrival_ns[expert - first] = at_ns; /* the last of its units counts */
            any = true;
        }
        at_ns += pager->config.deterministic ? 0 : unit_ns;
    }
    return any;
}

bool mp_pager_lease_host(struct mp_pager *pager, uint32_t unit,
                         const void *piece_p[MP_UNIT_PIECES_MAX])
{
    mp_assert(unit < pager->units);
    return mp_space_lease_host(pager->config.space, unit, piece_p) == MP_OK;
}

void mp_pager_release_host(struct mp_pager *pager, uint32_t unit)
{
    mp_assert(unit < pager->units);
    mp_space_release_host(pager->config.space, unit);
}

uint32_t mp_pager_reading(const struct mp_pager *pager)
{
    return pager->ahead_count;
}

bool mp_pager_is_deterministic(const struct mp_pager *pager)
{
    return pager->config.deterministic;
}
