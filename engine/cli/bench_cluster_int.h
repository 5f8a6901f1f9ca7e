#ifndef MP_BENCH_CLUSTER_INT_H
#define MP_BENCH_CLUSTER_INT_H

#include "engine/cli/cluster_rank.h"
#include "engine/cli/commands.h"
#include "engine/cli/requests.h"
#include "engine/session/session.h"

/*
 * Parts of `bench --cluster`: requests (bench_cluster.c), what is printed (bench_cluster_print.c).
 */
struct mp_bench_cluster {
    const struct mp_args *args;
    const struct mp_settings *settings;
    struct mp_clock *clock;
    struct mp_timeline *timeline;
    struct mp_trace_sink trace;
    struct mp_cluster_rank c;
    struct mp_requests requests;
    struct mp_session session;
    uint32_t done;   /* requests of this rank */
    uint64_t cpu_ns; /* of processors, while requests were computed */
    uint64_t start_ns;
    uint32_t first;            /* no request below waits */
    uint32_t *runs;            // (requests): 1 + the rank that runs it; 0: it waits
    uint64_t digest, first_ns; /* of the request that runs */
};

/* Does this rank run it? One rank alone runs those of all servers. */
static inline bool mp_bench_is_own(const struct mp_bench_cluster *bench, uint64_t request)
{
    return bench->c.transport->ranks == 1 ||
           (request < bench->requests.count &&
            bench->requests.list[request].server == bench->c.transport->rank);
}

void mp_bench_print_json(const struct mp_bench_cluster *bench, const struct mp_rank_report *r);
void mp_bench_print_text(const struct mp_bench_cluster *bench, const struct mp_rank_report *r);

#endif
