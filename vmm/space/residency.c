/*
 * The transition table. A transition that is not in it is MP_ERR_INVALID, an error of the caller.
 * MP_ERR_BUSY is listed where waiting helps: for a lease to end, for a read or a copy to finish.
 */
#include "vmm/space/residency.h"

#include "vmm/base/assert.h"

/* Leases exist in VALID only, so the guard matters in that row alone. */
enum guard { GUARD_NONE, GUARD_UNLEASED, GUARD_LEASED };

struct cell {
    uint8_t kind; /* enum cell_kind */
    uint8_t guard;
    uint8_t next;
};

enum cell_kind { CELL_INVALID, CELL_BUSY, CELL_GO };

/* clang-format off */
#define GO(next_)               { CELL_GO, GUARD_NONE, MP_RES_##next_ }
#define GO_UNLEASED(next_)      { CELL_GO, GUARD_UNLEASED, MP_RES_##next_ } /* else busy */
#define GO_LEASED(next_)        { CELL_GO, GUARD_LEASED, MP_RES_##next_ }   /* else invalid */
#define BUSY                    { CELL_BUSY, GUARD_NONE, 0 }

static const struct cell table[MP_RES_STATE_COUNT][MP_RES_EVENT_COUNT] = {
    [MP_RES_ABSENT] = {
        [MP_RES_EV_FILL_BEGIN]    = GO(FILLING),
    },
    [MP_RES_FILLING] = {
        [MP_RES_EV_FILL_DONE]     = GO(VALID),
        [MP_RES_EV_FILL_FAILED]   = GO(FAILED),
        [MP_RES_EV_FILL_CANCELED] = GO(ABSENT),
        [MP_RES_EV_DRAIN_BEGIN]   = BUSY,
        [MP_RES_EV_EVICT]         = BUSY,
    },
    [MP_RES_VALID] = {
        [MP_RES_EV_LEASE]         = GO(VALID),
        [MP_RES_EV_RELEASE]       = GO_LEASED(VALID),
        [MP_RES_EV_DRAIN_BEGIN]   = GO_UNLEASED(DRAINING),
        [MP_RES_EV_EVICT]         = GO_UNLEASED(ABSENT),
    },
    [MP_RES_DRAINING] = {
        [MP_RES_EV_FILL_BEGIN]    = BUSY,
        [MP_RES_EV_DRAIN_DONE]    = GO(ABSENT),
        [MP_RES_EV_DRAIN_ABORTED] = GO(VALID),
        [MP_RES_EV_EVICT]         = BUSY,
    },
    [MP_RES_FAILED] = {
        [MP_RES_EV_FILL_BEGIN]    = GO(FILLING),
    },
};
/* clang-format on */

struct mp_res_rule mp_res_rule(enum mp_res_state state, enum mp_res_event event, bool leased)
{
    struct mp_res_rule rule = { MP_ERR_INVALID, state };
    const struct cell *cell;

    if ((unsigned)state >= MP_RES_STATE_COUNT || (unsigned)event >= MP_RES_EVENT_COUNT)
        return rule;
    if (leased && state != MP_RES_VALID)
        return rule;

    cell = &table[state][event];
    if (cell->kind == CELL_BUSY || (cell->guard == GUARD_UNLEASED && leased)) {
        rule.status = MP_ERR_BUSY;
    } else if (cell->kind == CELL_GO && !(cell->guard == GUARD_LEASED && !leased)) {
        rule.status = MP_OK;
        rule.next = (enum mp_res_state)cell->next;
    }
    mp_assert(rule.status == MP_OK || rule.next == state);
    return rule;
}

enum mp_status mp_res_apply(struct mp_residency *residency, enum mp_res_event event)
{
    const struct mp_res_rule rule =
        mp_res_rule((enum mp_res_state)residency->state, event, residency->leases > 0);

    if (rule.status != MP_OK)
        return rule.status;
    if (event == MP_RES_EV_LEASE) {
        if (residency->leases == UINT32_MAX)
            return MP_ERR_BUSY;
        residency->leases++;
    } else if (event == MP_RES_EV_RELEASE) {
        residency->leases--;
    }
    residency->state = (uint8_t)rule.next;
    mp_assert(residency->leases == 0 || residency->state == MP_RES_VALID);
    return MP_OK;
}

const char *mp_res_state_name(enum mp_res_state state)
{
    static const char *const names[] = {
#define X(name) #name,
        MP_RES_STATE_MAP(X)
#undef X
    };

    return (unsigned)state < MP_RES_STATE_COUNT ? names[state] : "unknown state";
}

const char *mp_res_event_name(enum mp_res_event event)
{
    static const char *const names[] = {
#define X(name) #name,
        MP_RES_EVENT_MAP(X)
#undef X
    };

    return (unsigned)event < MP_RES_EVENT_COUNT ? names[event] : "unknown event";
}
