#ifndef MP_DEVICE_FACTS_H
#define MP_DEVICE_FACTS_H

#include "engine/session/device_choice.h"
#include "engine/probe/probe.h"

/*
 * What a run needs to know and can only measure: from the cache of `moepager probe`, or measured
 * now, by children of this program (engine/probe/probe.h).
 */
struct mp_device_facts {
    bool probed; /* `probe` holds what was measured with experts of this shape */
    struct mp_probe probe;
    bool no_host_handles; /* memory by handle on a NUMA node must not be tried here */
};

/*
 * For a CUDA device. `may_run`: this program is moepager, and may run itself as a child.
 * `want_costs`: policies ask for costs, so that it is worth some seconds to measure them once,
 * where MOEPAGER_PROBE allows it.
 *
 * Whether memory on a NUMA node works is found out in a child whatever MOEPAGER_PROBE says, because
 * there are drivers that crash in it; the result is kept. Where it cannot be measured it is not
 * used. A child that crashes is one warning. Without a result there is no error: less is known.
 */
void mp_device_facts_read(const struct mp_run_settings *run, const struct mp_device_choice *device,
                          const struct mp_probe_shape *shape, bool may_run, bool want_costs,
                          struct mp_device_facts *facts);

#endif
