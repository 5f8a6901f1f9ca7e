#ifndef MP_TESTS_SPINS_H
#define MP_TESTS_SPINS_H

#include <sched.h>

#include "vmm/base/spin.h"

/* Who waits asleep, and who waits awake until what he waits for is there, however long that takes:
 * so time does not choose the way. The processor is left to the driver's threads meanwhile. */
static inline bool spin_yields(void *ctx)
{
    (void)ctx;
    sched_yield();
    return true;
}

static const struct mp_spin spin_asleep = { .ns = 0 };
static const struct mp_spin spin_awake = { .ns = UINT64_C(60000000000), .spares = spin_yields };

#endif
