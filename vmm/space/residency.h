#ifndef MP_RESIDENCY_H
#define MP_RESIDENCY_H

#include <stdbool.h>
#include <stdint.h>

#include "vmm/base/status.h"

/*
 * Where a unit stands in one tier: one table of transitions, and leases as a count.
 *
 *     ABSENT    no slot
 *     FILLING   a slot, bytes on their way; nobody may read
 *     VALID     a slot with all bytes; the only state in which a lease can begin
 *     DRAINING  valid bytes being copied down to another tier; then the slot is free
 *     FAILED    the last fill failed; no slot. A new fill may be tried
 *
 * A unit with leases > 0 is VALID and stays so: drain and evict are refused with MP_ERR_BUSY. The
 * table is data: the code, the exhaustive test and the picture in docs/architecture.md come from
 * it.
 *
 * Locking: none; one caller at a time (the pager's thread).
 */
#define MP_RES_STATE_MAP(X) X(ABSENT) X(FILLING) X(VALID) X(DRAINING) X(FAILED)

enum mp_res_state {
#define X(name) MP_RES_##name,
    MP_RES_STATE_MAP(X)
#undef X
        MP_RES_STATE_COUNT
};

#define MP_RES_EVENT_MAP(X) \
    X(FILL_BEGIN)           \
    X(FILL_DONE)            \
    X(FILL_FAILED)          \
    X(FILL_CANCELED)        \
    X(LEASE)                \
    X(RELEASE)              \
    X(DRAIN_BEGIN)          \
    X(DRAIN_DONE)           \
    X(DRAIN_ABORTED)        \
    X(EVICT)

enum mp_res_event {
#define X(name) MP_RES_EV_##name,
    MP_RES_EVENT_MAP(X)
#undef X
        MP_RES_EVENT_COUNT
};

struct mp_residency {
    uint32_t leases;
    uint8_t state; /* enum mp_res_state */
};

/* What the table says of (state, event): the next state, or a refusal. */
struct mp_res_rule {
    enum mp_status status; /* MP_OK, MP_ERR_BUSY or MP_ERR_INVALID */
    enum mp_res_state next;
};

/* Pure. `leased` is leases > 0 before the event. */
struct mp_res_rule mp_res_rule(enum mp_res_state state, enum mp_res_event event, bool leased);

/* Apply an event. A refused one changes nothing. Lease counts that overflow are MP_ERR_BUSY. */
enum mp_status mp_res_apply(struct mp_residency *residency, enum mp_res_event event) MP_MUST_CHECK;

const char *mp_res_state_name(enum mp_res_state state);
const char *mp_res_event_name(enum mp_res_event event);

#endif
