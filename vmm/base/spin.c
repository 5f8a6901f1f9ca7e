/*
 * How long a thread waits awake; see spin.h. The clock is the machine's, because what is spent is
 * its time.
 */
#include "vmm/base/spin.h"

#include <stddef.h>

#include "vmm/base/clock.h"

bool mp_spin_again(struct mp_spin_wait *wait)
{
    const struct mp_spin *spin = wait->spin;
    uint64_t now_ns;

    if (spin == NULL || spin->ns == 0 || (spin->spares != NULL && !spin->spares(spin->ctx)))
        return false;
    now_ns = mp_clock_now_ns(mp_clock_monotonic());
    if (wait->start_ns == 0)
        wait->start_ns = now_ns;
    else
        mp_spin_pause();
    return now_ns - wait->start_ns < spin->ns;
}
