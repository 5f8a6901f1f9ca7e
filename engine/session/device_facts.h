#ifndef MP_DEVICE_FACTS_H
#define MP_DEVICE_FACTS_H

#include "engine/model/weights.h"
#include "engine/probe/probe.h"
#include "engine/session/device_choice.h"

/*
 * Measured facts about a device that a run needs: from the cache of `moepager probe`, or measured
 * now, by children of this program (engine/probe/probe.h).
 */
struct mp_device_facts {
    bool probed; /* `probe` holds what was measured with experts of this shape */
    struct mp_probe probe;
    bool no_host_handles; /* memory by handle on a NUMA node must not be tried here */
};

/*
 * The experts to time for a model: types as most layers have them. BF16 where that is not known
 * (weights NULL), or where devices have no kernels for them. Where experts are stored in slices it
 * is a slice that is timed: a device has two launches for each. The CPU, which takes slices side by
 * side, then counts the handing out of work once for each, a little too much.
 */
struct mp_probe_shape mp_device_facts_shape(const struct mp_model_config *model,
                                            const struct mp_weights *weights);

/*
 * For a CUDA device. `may_run`: this program is moepager and may run itself as a child.
 * `want_costs`: policies use costs, so that measuring them once, for some seconds, is justified if
 * MOEPAGER_PROBE allows it.
 *
 * Whether memory on a NUMA node works is tested in a child regardless of MOEPAGER_PROBE, because
 * some drivers crash; the result is cached. If it cannot be tested it is not used. A crashed child
 * causes one warning. Missing results are not an error.
 */
void mp_device_facts_read(const struct mp_run_settings *run, const struct mp_device_choice *device,
                          const struct mp_probe_shape *shape, bool may_run, bool want_costs,
                          struct mp_device_facts *facts);

#endif
