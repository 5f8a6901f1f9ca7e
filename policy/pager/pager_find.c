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
