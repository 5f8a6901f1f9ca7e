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
