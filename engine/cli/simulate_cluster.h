#ifndef MP_SIMULATE_CLUSTER_H
#define MP_SIMULATE_CLUSTER_H

#include "engine/cli/args/args.h"

/* `moepager simulate --cluster FILE`: placements on several servers, on a virtual clock. */
enum mp_status mp_simulate_cluster(const struct mp_args *args,
                                   const struct mp_settings *settings) MP_MUST_CHECK;

#endif
