#ifndef MP_CLI_CLUSTER_RANK_H
#define MP_CLI_CLUSTER_RANK_H

#include "engine/cli/args/args.h"
#include "engine/cluster/rank.h"
#include "policy/sim/cluster/cluster.h"

/*
 * What one rank of `bench --cluster` and of `serve --cluster` needs: the cluster file, the
 * transport to the others that mpirun started, the placement, and the rank itself.
 */
struct mp_cluster_rank {
    const struct mp_settings *settings;
    const struct mp_place_ops *place;
    struct mp_transport *transport;
    struct mp_cluster cluster;
    struct mp_rank *rank;
};

/* All but the rank. MP_ERR_CONFIG: E_PLACE, E_CLUSTER; else as mp_mpi_open() and
 * mp_cluster_read(). What is there is mp_cluster_rank_close()'s, also after a failure. */
enum mp_status mp_cluster_rank_open(const struct mp_args *args, const struct mp_settings *settings,
                                    struct mp_cluster_rank *c) MP_MUST_CHECK;
void mp_cluster_rank_close(struct mp_cluster_rank *c); /* safe on a zeroed one */

/* For before_engine of a session: makes the rank, and gives `config` its budget and peers. `give`
 * as in struct mp_rank_config, or NULL. */
enum mp_status mp_cluster_rank_make(struct mp_cluster_rank *c, struct mp_engine_config *config,
                                    bool (*give)(void *ctx, uint32_t to, uint64_t *request_p),
                                    void *give_ctx) MP_MUST_CHECK;

#endif
