#ifndef MP_BENCH_CLUSTER_H
#define MP_BENCH_CLUSTER_H

#include "engine/cli/args/args.h"

/* `moepager bench --cluster FILE --requests FILE`, as one rank of those that mpirun started: runs
 * the requests of this rank's users and computes experts for the others. */
enum mp_status mp_bench_cluster(const struct mp_args *args,
                                const struct mp_settings *settings) MP_MUST_CHECK;

#endif
