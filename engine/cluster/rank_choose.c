/*
 * Which rank computes an expert of a layer. Each one that is not kept here goes to the rank that
 * keeps it and is expected to be done first. Then, with a placement that also reads, some of them
 * are read instead if the layer is expected to end earlier: a message serves all experts that one
 * rank has of a layer, so it is compared with reading all of them, or the most loaded ones.
 */
#include <stdio.h>

#include "engine/cluster/rank_int.h"
#include "policy/pager/pager.h"
#include "policy/place/learn.h"
#include "vmm/base/error.h"

/* How much longer the layer is expected to take if `peer` gets these rows, too. */
static double peer_ns(const struct mp_peer *peer, uint32_t tokens)
{
    const double fixed = peer->planned_ns > 0 ? 0 : peer->fixed_ns;

    return (double)peer->planned_ns + fixed + peer->row_ns * tokens;
}

/* The live rank that keeps the expert, or `reads` what it does not keep, and is expected to be done
 * first; the lowest if several are. */
static uint32_t find_holder(const struct mp_rank *rank, uint32_t id, uint32_t tokens, bool reads,
                            double *best_p)
{
    uint32_t holder = MP_WHERE_HERE;

    for (uint32_t p = 0; p < rank->ranks; p++) {
        double ns;

        if (p == rank->self || rank->peer[p].state != MP_PEER_LIVE ||
            !(reads ? rank->peer[p].about.reads != 0 : mp_rank_may_have(rank, p, id)))
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

/* Who computes an expert that is not in memory here, if nothing but what is kept is read. */
static enum mp_status choose_one(struct mp_rank *rank, const struct mp_assign_facts *facts,
                                 uint32_t i, uint32_t *where_p)
{
    const uint32_t id = facts->layer * rank->limits.experts + facts->experts[i];
    double ns = 0;
    uint32_t holder;

    *where_p = MP_WHERE_HERE;
    if (mp_rank_may_have(rank, rank->self, id) ||
        (!rank->config.place->calls && rank->config.reads))
        return MP_OK;
    holder = find_holder(rank, id, facts->tokens[i], false, &ns);
    if (holder == MP_WHERE_HERE && !rank->config.reads)
        holder = find_holder(rank, id, facts->tokens[i], true, &ns);
    if (holder == MP_WHERE_HERE)
        return rank->config.reads ? MP_OK
                                  : mp_rank_no_holder(rank, facts->layer, facts->experts[i]);
    *where_p = holder;
    rank->peer[holder].planned_ns = (uint64_t)ns;
    return MP_OK;
}

/* ---- reading instead */

/* Before a layer has waited for a read: what one took in the background, less the longer none was
 * tried, so that one will be. */
struct mp_learn_reads mp_rank_reads(const struct mp_rank *rank)
{
    double guess;

    if (rank->reads.first_ns > 0)
        return rank->reads;
    guess = (1 - rank->forgotten) * (rank->fill_ns > 0
                                         ? rank->fill_ns
                                         : (double)mp_pager_load_ns(mp_engine_pager(rank->engine)));
    return (struct mp_learn_reads){ guess, guess };
}

static double compute_ns(const struct mp_assign_facts *facts, uint32_t i)
{
    const struct mp_executor *home = &facts->costs->executors[MP_EXECUTOR_HOME];

    return (double)(home->fixed_ns + home->token_ns * facts->tokens[i]);
}

/* The one that is expected to be done last, of those that are known. */
static uint32_t latest_peer(const struct mp_rank *rank)
{
    uint32_t latest = MP_WHERE_HERE;

    for (uint32_t p = 0; p < rank->ranks; p++) {
        if (rank->peer[p].planned_ns > 0 && rank->peer[p].samples >= MP_LEARN_SAMPLES_MIN &&
            (latest == MP_WHERE_HERE || rank->peer[p].planned_ns > rank->peer[latest].planned_ns))
            latest = p;
    }
    return latest;
}

/* Some of what the rank is asked for that is expected to be done last is read here instead. True:
 * at least one. */
static bool take_back(struct mp_rank *rank, const struct mp_assign_facts *facts, uint32_t peer,
                      uint32_t *reads_p, double *own_p)
{
    const struct mp_learn_reads reads = mp_rank_reads(rank);
    double left = (double)rank->peer[peer].planned_ns;
    uint32_t count = 0, taken;

    for (uint32_t i = 0; i < facts->count; i++) {
        if (rank->where[facts->experts[i]] == peer)
            rank->take[count++] = (struct mp_take_group){ .number = facts->experts[i],
                                                          .tokens = facts->tokens[i],
                                                          .compute_ns = compute_ns(facts, i) };
    }
    taken = mp_place_take_back(rank->take, count, &reads, rank->peer[peer].row_ns, reads_p, own_p,
                               &left);
    rank->peer[peer].planned_ns = (uint64_t)left;
    for (uint32_t i = 0; i < taken; i++)
        rank->where[rank->take[i].number] = MP_WHERE_HERE;
    return taken > 0;
}

/* Costs of ways that a layer could have taken and did not. */
static void forget(struct mp_rank *rank, bool could_read)
{
    if (could_read) {
        mp_learn_forget(&rank->reads.first_ns);
        mp_learn_forget(&rank->reads.more_ns);
        rank->forgotten += (1 - rank->forgotten) / MP_LEARN_FORGET;
    }
    for (uint32_t p = 0; p < rank->ranks; p++) {
        if (rank->peer[p].planned_ns > 0)
            continue;
        mp_learn_forget(&rank->peer[p].fixed_ns);
        mp_learn_forget(&rank->peer[p].row_ns);
    }
}

static void read_some(struct mp_rank *rank, const struct mp_assign_facts *facts)
{
    const bool may_read =
        rank->config.place->pages && rank->config.place->calls && rank->config.reads;
    const struct mp_learn_reads known =
        may_read ? mp_rank_reads(rank) : (struct mp_learn_reads){ 0 };
    uint32_t reads = rank->own_reads, peer;
    double own = rank->own_ns + mp_learn_reads_ns(&known, reads);

    do
        peer = known.first_ns > 0 ? latest_peer(rank) : MP_WHERE_HERE;
    while (peer != MP_WHERE_HERE && take_back(rank, facts, peer, &reads, &own));
    forget(rank, peer != MP_WHERE_HERE);
}

/* ---- a layer */

/* What it takes here but for reads, and how many of those. */
static void expect(struct mp_rank *rank, const struct mp_assign_facts *facts)
{
    rank->own_ns = 0;
    rank->own_reads = 0;
    for (uint32_t i = 0; i < facts->count; i++) {
        if (rank->where[facts->experts[i]] != MP_WHERE_HERE)
            continue;
        rank->own_ns += compute_ns(facts, i);
        rank->own_reads += !facts->resident[i];
    }
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
        uint32_t where = MP_WHERE_HERE;

        if (!facts->resident[i] && rank->placed)
            status = choose_one(rank, facts, i, &where);
        rank->where[facts->experts[i]] = where;
    }
    if (status != MP_OK)
        return status;
    expect(rank, facts);
    read_some(rank, facts);
    expect(rank, facts);
    status = mp_rank_fetch_missing(rank, facts);
    if (status != MP_OK)
        return status;
    rank->steps += facts->layer == 0;
    for (uint32_t i = 0; i < facts->count; i++) {
        const uint32_t id = facts->layer * rank->limits.experts + facts->experts[i];
        const bool here = rank->where[facts->experts[i]] == MP_WHERE_HERE;

        rank->tokens[id] += facts->tokens[i];
        rank->calls[id] += 1;
        rank->report.all_tokens += facts->tokens[i];
        rank->report.local_tokens += here ? facts->tokens[i] : 0;
        if (!here)
            executors[i] = MP_EXECUTOR_PEERS;
    }
    rank->asked_ns = mp_rank_now_ns(rank);
    return MP_OK;
}
