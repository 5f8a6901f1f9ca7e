/* Changes of the budget: evicts by the policies and distributes the remaining slots. */
#include "policy/pager/pager_int.h"

#include "vmm/base/assert.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

/* One unit of the class leaves. False: none may, now. */
static bool make_one_leave(struct mp_pager *pager, uint32_t class_index)
{
    const uint32_t unit = mp_pager_pick_leaving(pager, class_index);

    mp_assert(class_index < mp_space_class_count(pager->config.space));
    if (unit == MP_UNIT_NONE)
        return false;
    mp_pager_evict(pager, unit);
    return true;
}

/* Shares of the slots that there are now. A partition that cannot have fewer gives way. */
static void share_again(struct mp_pager *pager)
{
    struct mp_shape *shape = &pager->config.shape;
    struct mp_space_plan plan;

    mp_assert(!pager->open && pager->ahead_count == 0);
    mp_space_get_plan(pager->config.space, &plan);
    mp_pager_fit_shape(pager->config.space, shape);
    pager->slots = plan.slots;
    if (mp_pager_make_partition(pager))
        return;
    mp_log_info("pager", "%u slots are too few for the partition, the layers get equal shares",
                pager->slots);
    for (uint32_t l = 0; l < shape->layers; l++)
        pager->slices.quota[l] = mp_equal_share(pager->slots, shape->layers, l);
    mp_pager_ask_retained(pager);
}

enum mp_status mp_pager_set_budget(struct mp_pager *pager, uint64_t budget_bytes)
{
    struct mp_space *space = pager->config.space;
    uint32_t class_index, count;
    enum mp_status status;

    if (pager->open)
        return mp_fail(MP_ERR_INVALID, "E_PAGER_ORDER",
                       "the budget cannot change while a layer is open");
    mp_pager_drop_all(pager);
    mp_pager_settle_ahead(pager, true);
    for (;;) {
        status = mp_space_set_budget(space, budget_bytes, &class_index, &count);
        if (status != MP_ERR_NO_SPACE || count == 0)
            break;
        while (count > 0 && make_one_leave(pager, class_index))
            count--;
        if (count > 0) {
            status = MP_ERR_BUSY;
            break;
        }
    }
    share_again(pager);
    return status;
}
