/*
 * One rank of a cluster, for the commands that run as one.
 */
#include "engine/cli/cluster_rank.h"

#include <string.h>

#include "engine/cli/commands.h"
#include "engine/cluster/mpi.h"
#include "vmm/base/error.h"

#define DEADLINE_NS UINT64_C(5000000000)

enum mp_status mp_cluster_rank_open(const struct mp_args *args, const struct mp_settings *settings,
                                    struct mp_cluster_rank *c)
{
    const char *name = args->places != NULL ? args->places : "prism";
    char quoted[MP_QUOTE_BYTES];
    enum mp_status status;

    *c = (struct mp_cluster_rank){ .settings = settings, .place = mp_place_find(name) };
    if (c->place == NULL)
        return mp_fail(MP_ERR_CONFIG, "E_PLACE", "no placement is called '%s'",
                       mp_quote(quoted, name, strlen(name)));
    status = mp_mpi_open(&c->transport);
    if (status == MP_OK)
        status = mp_cluster_read(args->cluster, NULL, &c->cluster);
    if (status == MP_OK && c->transport->ranks != 1 &&
        c->transport->ranks != c->cluster.server_count)
        status = mp_fail(MP_ERR_CONFIG, "E_CLUSTER",
                         "%u ranks for %u servers; start as many, or one that runs all requests",
                         c->transport->ranks, c->cluster.server_count);
    if (status == MP_OK && c->transport->ranks > 1 && !c->transport->survives)
        mp_log_warn("cluster", "as it was started, this MPI ends all ranks when one dies; one with "
                               "ULFM, such as Open MPI 5 under mpirun --with-ft ulfm, does not");
    return status;
}

void mp_cluster_rank_close(struct mp_cluster_rank *c)
{
    mp_rank_destroy(c->rank);
    mp_cluster_fini(&c->cluster);
    if (c->transport != NULL)
        c->transport->ops->close(c->transport);
}

/* What the devices of this rank's server have for experts; of all servers, if it is alone. */
static uint64_t budget_of(const struct mp_cluster_rank *c, const struct mp_engine_config *config)
{
    const uint64_t others = config->weights->resident_bytes;
    double bytes = 0;

    for (uint32_t n = 0; n < c->cluster.server_count; n++) {
        const struct mp_cluster_server *server = &c->cluster.servers[n];
        const double each = server->device_gib * 1073741824.0 - (double)others;

        if ((c->transport->ranks == 1 || n == c->transport->rank) && each > 0)
            bytes += each * server->devices;
    }
    return bytes < (double)config->weights->expert_bytes ? (uint64_t)bytes : UINT64_MAX;
}

enum mp_status mp_cluster_rank_make(struct mp_cluster_rank *c, struct mp_engine_config *config,
                                    bool (*give)(void *ctx, uint32_t to, uint64_t *request_p),
                                    void *give_ctx)
{
    const bool alone = c->transport->ranks == 1;
    const struct mp_rank_config rank = {
        .transport = c->transport,
        .engine = config,
        .place = alone ? mp_place_find("local") : c->place,
        .slots = UINT32_MAX,
        .reads = alone || c->cluster.servers[c->transport->rank].reads != 0,
        .seed = c->settings->run.seed,
        .epoch_ns = alone ? 0 : (uint64_t)(c->cluster.epoch_s * 1e9),
        .horizon_ns = (uint64_t)(c->cluster.horizon_s * 1e9),
        .deadline_ns = DEADLINE_NS,
        .restarts = (uint32_t)c->cluster.restarts,
        .give = c->place->redirects && !alone ? give : NULL,
        .give_ctx = give_ctx,
    };
    const enum mp_status status = mp_rank_create(&rank, &c->rank);

    if (status != MP_OK)
        return status;
    config->budget_bytes = budget_of(c, config);
    config->peers = mp_rank_peers(c->rank);
    return MP_OK;
}
