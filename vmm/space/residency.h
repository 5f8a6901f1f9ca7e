#ifndef MP_RESIDENCY_H
#define MP_RESIDENCY_H

#include <stdbool.h>
#include <stdint.h>

#include "vmm/base/status.h"

/*
 * The residency of a unit in one tier: one table of state transitions, and a lease count.
 *
 *     ABSENT    no slot
 *     FILLING   a slot, bytes in flight; not readable
 *     VALID     a slot with all bytes; the only state in which a lease can begin
 *     DRAINING  valid bytes are being copied to a lower tier; then the slot is free
 *     FAILED    the last fill failed; no slot. A new fill may be tried
 *
 * A unit with leases > 0 remains VALID: drain and evict are refused with MP_ERR_BUSY. The table is
 * data: the code, the exhaustive test and the picture in docs/architecture.md come from it.
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

/* The table's entry for (state, event): the next state, or a refusal. */
struct mp_res_rule {
    enum mp_status status; /* MP_OK, MP_ERR_BUSY or MP_ERR_INVALID */
    enum mp_res_state next;
};

/* Pure. `leased` is leases > 0 before the event. */
struct mp_res_rule mp_res_rule(enum mp_res_state state, enum mp_res_event event, bool leased);

/* Apply an event. A refused one changes nothing. Overflow of the lease count is MP_ERR_BUSY. */
enum mp_status mp_res_apply(struct mp_residency *residency, enum mp_res_event event) MP_MUST_CHECK;

const char *mp_res_state_name(enum mp_res_state state);
const char *mp_res_event_name(enum mp_res_event event);

#endif
