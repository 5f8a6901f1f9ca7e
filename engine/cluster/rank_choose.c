/* Which rank computes an expert of a layer: the one that is expected to be done first. */
#include <stdio.h>

#include "engine/cluster/rank_int.h"
#include "vmm/base/error.h"

/* How much longer the layer is expected to take if `peer` gets these rows, too. */
static double peer_ns(const struct mp_peer *peer, uint32_t tokens)
{
    const double fixed = peer->planned_ns > 0 ? 0 : peer->fixed_ns;

    return (double)peer->planned_ns + fixed + peer->row_ns * tokens;
}

/* The live rank that keeps the expert and is expected to be done first; the lowest if several are.
 */
static uint32_t find_holder(const struct mp_rank *rank, uint32_t id, uint32_t tokens,
                            double *best_p)
{
    uint32_t holder = MP_WHERE_HERE;

    for (uint32_t p = 0; p < rank->ranks; p++) {
        double ns;

        if (p == rank->self || rank->peer[p].state != MP_PEER_LIVE || !mp_rank_keeps(rank, p, id))
            continue;
        ns = peer_ns(&rank->peer[p], tokens);
        if (holder == MP_WHERE_HERE || ns < *best_p) {
            holder = p;
            *best_p = ns;
        }
    }
    return holder;
}

enum mp_status mp_rank_no_holder(const struct mp_rank *rank, uint32_t layer, uint32_t expert)
{
    char names[64] = "none was placed";
    size_t at = 0;

    for (uint32_t p = 0; p < rank->ranks && at + 8 < sizeof(names); p++) {
        if (p != rank->self && mp_rank_keeps(rank, p, layer * rank->limits.experts + expert))
            at += (size_t)snprintf(names + at, sizeof(names) - at, "%srank %u", at > 0 ? ", " : "",
                                   p);
    }
    return mp_fail(MP_ERR_CLUSTER, "E_EXPERT_LOST",
                   "expert %u of MoE layer %u is on no rank that answers (%s), and rank %u may not "
                   "read it; start the rank again, or set \"reads\" in the cluster file",
                   expert, layer, names, rank->self);
}

/* Who computes an expert that is not in memory here. */
static enum mp_status choose_one(struct mp_rank *rank, const struct mp_assign_facts *facts,
                                 uint32_t i, uint32_t *where_p)
{
    const struct mp_place_ops *ops = rank->config.place;
    const uint32_t id = facts->layer * rank->limits.experts + facts->experts[i];
    const bool kept = mp_rank_keeps(rank, rank->self, id);
    const bool may_read = kept || rank->config.reads;
    double ns = 0;
    const uint32_t holder = ops->calls || !rank->config.reads
                                ? find_holder(rank, id, facts->tokens[i], &ns)
                                : MP_WHERE_HERE;

    *where_p = MP_WHERE_HERE;
    if (kept)
        return MP_OK;
    if (holder == MP_WHERE_HERE)
        return may_read ? MP_OK : mp_rank_no_holder(rank, facts->layer, facts->experts[i]);
    if (may_read && ops->pages && (double)facts->costs->load_ns < ns)
        return MP_OK;
    *where_p = holder;
    rank->peer[holder].planned_ns = (uint64_t)ns;
    return MP_OK;
}

enum mp_status mp_rank_choose(void *ctx, const struct mp_assign_facts *facts, uint32_t *executors)
{
    struct mp_rank *rank = ctx;
    enum mp_status status = MP_OK;

    for (uint32_t p = 0; p < rank->ranks; p++) {
        rank->peer[p].planned_ns = 0;
        rank->peer[p].call.open = false; /* of a layer that failed */
    }
    for (uint32_t i = 0; i < facts->count && status == MP_OK; i++) {
        const uint32_t id = facts->layer * rank->limits.experts + facts->experts[i];
        uint32_t where = MP_WHERE_HERE;

        if (!facts->resident[i] && rank->placed)
            status = choose_one(rank, facts, i, &where);
        rank->where[facts->experts[i]] = where;
        rank->tokens[id] += facts->tokens[i];
        rank->calls[id] += 1;
        rank->report.all_tokens += facts->tokens[i];
        if (where == MP_WHERE_HERE)
            rank->report.local_tokens += facts->tokens[i];
        else
            executors[i] = MP_EXECUTOR_PEERS;
    }
    return status;
}
