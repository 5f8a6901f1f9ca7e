/*
 * An expert that is missing here comes from the model's file or out of the memory of a rank that
 * has it, whichever was measured to be faster. What a peer sends is checked against its hash and
 * against the size of the expert, and is what the peer had read from its own file: the ranks have
 * compared their models. A peer that does not answer in time costs time and no result.
 */
#include "engine/cluster/hash.h"
#include "engine/cluster/rank_int.h"
#include "policy/pager/pager.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

/* What is not used is expected to have become cheaper by this share with each use of the other, so
 * that it is tried again. */
#define FORGET 32
#define WAIT_NS UINT64_C(50000)

static struct mp_fetch *find(struct mp_rank *rank, uint32_t id)
{
    for (uint32_t i = 0; i < MP_FETCHES_MAX; i++) {
        if (rank->fetch[i].call != 0 && rank->fetch[i].id == id)
            return &rank->fetch[i];
    }
    return NULL;
}

static struct mp_fetch *find_free(struct mp_rank *rank)
{
    uint32_t i = 0;

    while (i < MP_FETCHES_MAX && rank->fetch[i].call != 0)
        i++;
    return i < MP_FETCHES_MAX ? &rank->fetch[i] : NULL;
}

/* Is there room for what would come, beside what is on its way? Looks at all units, so that after
 * one no it is not asked again until mp_rank_follow_fetches(). */
static bool has_room(struct mp_rank *rank, uint32_t id)
{
    uint32_t coming = 0;

    for (uint32_t i = 0; i < MP_FETCHES_MAX; i++)
        coming += rank->fetch[i].call != 0;
    rank->full = rank->full || mp_pager_spare(mp_engine_pager(rank->engine), id) <= coming;
    return !rank->full;
}

static uint32_t find_source(const struct mp_rank *rank, uint32_t id)
{
    uint32_t p = 0;

    while (p < rank->ranks && (p == rank->self || rank->peer[p].state != MP_PEER_LIVE ||
                               !mp_rank_may_have(rank, p, id)))
        p++;
    return p;
}

/* It did not come: from its file, then. */
static void give_up(struct mp_rank *rank, struct mp_fetch *fetch)
{
    rank->no_fetch[fetch->id] = 1;
    fetch->call = 0;
}

static void forget(double *ns)
{
    *ns -= *ns / FORGET;
}

/* The last sample weighs as much as all before it: one that came after long forgetting is to be
 * believed. */
static void learn(double *ns, double sample)
{
    *ns = *ns == 0 ? sample : (*ns + sample) / 2;
}

/* Ask `from`; false: that was not possible. */
static bool ask_for(struct mp_rank *rank, struct mp_fetch *fetch, uint32_t id, uint32_t from,
                    double *read_ns)
{
    struct mp_message_head head;

    forget(read_ns);
    mp_rank_head(rank, &head, MP_MESSAGE_FETCH, sizeof(head));
    head.id = ++rank->next_call;
    head.layer = id / rank->limits.experts;
    head.groups = id % rank->limits.experts;
    *fetch = (struct mp_fetch){
        .call = head.id, .id = id, .from = from, .sent_ns = mp_rank_now_ns(rank)
    };
    if (mp_rank_send(rank, from, &head, sizeof(head)))
        return true;
    give_up(rank, fetch);
    return false;
}

/* Is asking faster than reading, which takes read_ns? Each is tried once, reading first. */
static bool is_faster(const struct mp_rank *rank, double read_ns)
{
    return read_ns > 0 && rank->fetch_ns < read_ns;
}

/* One read at a time is measured, from when it was decided on until it is seen to be there. */
static void follow_probe(struct mp_rank *rank)
{
    if (rank->probe_ns == 0)
        return;
    if (mp_pager_has(mp_engine_pager(rank->engine), rank->probe))
        learn(&rank->fill_ns, (double)(mp_rank_now_ns(rank) - rank->probe_ns));
    else if (mp_rank_now_ns(rank) - rank->probe_ns < rank->config.deadline_ns)
        return;
    rank->probe_ns = 0;
}

void mp_rank_follow_fetches(struct mp_rank *rank)
{
    rank->full = false;
    follow_probe(rank);
    for (uint32_t i = 0; i < MP_FETCHES_MAX; i++) {
        struct mp_fetch *fetch = &rank->fetch[i];
        const uint64_t ns = mp_rank_now_ns(rank) - fetch->sent_ns;

        if (fetch->call == 0 ||
            (rank->peer[fetch->from].state == MP_PEER_LIVE && ns < rank->config.deadline_ns))
            continue;
        learn(&rank->fetch_ns, (double)ns);
        give_up(rank, fetch);
    }
}

bool mp_rank_comes_elsewhere(void *ctx, uint32_t id)
{
    struct mp_rank *rank = ctx;
    struct mp_fetch *fetch = find_free(rank);
    const uint32_t from = find_source(rank, id);
    const bool may = rank->config.place->calls && from < rank->ranks && !rank->no_fetch[id];

    if (find(rank, id) != NULL)
        return true;
    if (may && is_faster(rank, rank->fill_ns))
        return fetch == NULL || !has_room(rank, id) ||
               ask_for(rank, fetch, id, from, &rank->fill_ns);
    if (rank->probe_ns == 0 && has_room(rank, id)) {
        rank->probe = id;
        rank->probe_ns = mp_rank_now_ns(rank);
        if (may)
            forget(&rank->fetch_ns);
    }
    return false;
}

/* ---- before a layer */

/* Ask for those of the layer that are to come from a rank. True: at least one is on its way. */
static bool ask_for_missing(struct mp_rank *rank, const struct mp_assign_facts *facts)
{
    bool any = false;

    for (uint32_t i = 0; i < facts->count; i++) {
        const uint32_t id = facts->layer * rank->limits.experts + facts->experts[i];
        struct mp_fetch *fetch = find(rank, id), *unused = find_free(rank);
        uint32_t from;

        if (facts->resident[i] || rank->where[facts->experts[i]] != MP_WHERE_HERE)
            continue;
        from = find_source(rank, id);
        if (fetch == NULL && unused != NULL && from < rank->ranks && !rank->no_fetch[id] &&
            is_faster(rank, rank->reads.first_ns) && has_room(rank, id) &&
            ask_for(rank, unused, id, from, &rank->reads.first_ns))
            fetch = unused;
        if (fetch != NULL)
            any = fetch->needed = true;
    }
    return any;
}

/* Is a fetch open, or (needed) one that a layer waits for? */
static bool is_open(const struct mp_rank *rank, bool needed)
{
    for (uint32_t i = 0; i < MP_FETCHES_MAX; i++) {
        if (rank->fetch[i].call != 0 && (rank->fetch[i].needed || !needed))
            return true;
    }
    return false;
}

static enum mp_status wait_for(struct mp_rank *rank, bool needed)
{
    enum mp_status status = MP_OK;
    bool any;

    while (is_open(rank, needed) && status == MP_OK) {
        status = mp_rank_receive(rank, &any);
        if (status == MP_OK && !any)
            rank->config.transport->ops->wait(rank->config.transport, WAIT_NS);
        mp_rank_follow_fetches(rank);
    }
    return status;
}

enum mp_status mp_rank_end_fetches(struct mp_rank *rank)
{
    return wait_for(rank, false);
}

enum mp_status mp_rank_fetch_missing(struct mp_rank *rank, const struct mp_assign_facts *facts)
{
    const uint64_t before = rank->report.fetched;
    enum mp_status status;

    if (!rank->placed || !rank->config.place->calls || rank->own_reads == 0 ||
        !ask_for_missing(rank, facts))
        return MP_OK;
    status = wait_for(rank, true);
    /* Others may have come meanwhile, for later. */
    rank->own_reads -= rank->report.fetched - before < rank->own_reads
                           ? (uint32_t)(rank->report.fetched - before)
                           : rank->own_reads;
    return status;
}

/* ---- messages */

void mp_rank_take_fetch(struct mp_rank *rank, uint32_t from, const struct mp_message *message)
{
    const uint32_t id = message->head->layer * rank->limits.experts + message->head->groups;
    struct mp_message_head *head = rank->out;
    uint64_t *hash = (uint64_t *)(head + 1), bytes;

    if (rank->engine == NULL || !rank->placed ||
        !mp_pager_get(mp_engine_pager(rank->engine), id, hash + 1)) {
        mp_rank_refuse(rank, from, message->head->id);
        return;
    }
    bytes = mp_pager_expert_bytes(mp_engine_pager(rank->engine), id);
    *hash = mp_hash_bytes(hash + 1, bytes);
    mp_rank_head(rank, head, MP_MESSAGE_BYTES, sizeof(*head) + sizeof(*hash) + bytes);
    head->id = message->head->id;
    head->layer = message->head->layer;
    head->groups = message->head->groups;
    rank->report.lent += mp_rank_send(rank, from, head, head->bytes);
}

static struct mp_fetch *find_call(struct mp_rank *rank, uint32_t from, uint64_t call)
{
    for (uint32_t i = 0; i < MP_FETCHES_MAX; i++) {
        if (call != 0 && rank->fetch[i].call == call && rank->fetch[i].from == from)
            return &rank->fetch[i];
    }
    return NULL;
}

bool mp_rank_take_no_bytes(struct mp_rank *rank, uint32_t from, uint64_t call)
{
    struct mp_fetch *fetch = find_call(rank, from, call);

    if (fetch != NULL)
        give_up(rank, fetch);
    return fetch != NULL;
}

void mp_rank_take_bytes(struct mp_rank *rank, uint32_t from, const struct mp_message *message)
{
    struct mp_fetch *fetch = find_call(rank, from, message->head->id);
    struct mp_pager *pager;
    enum mp_status status;

    if (fetch == NULL) {
        rank->report.late++;
        return;
    }
    pager = mp_engine_pager(rank->engine);
    learn(&rank->fetch_ns, (double)(mp_rank_now_ns(rank) - fetch->sent_ns));
    if (message->head->layer * rank->limits.experts + message->head->groups != fetch->id ||
        message->bytes_count != mp_pager_expert_bytes(pager, fetch->id)) {
        mp_log_warn("cluster", "rank %u was asked for expert %u of MoE layer %u and sent another",
                    from, fetch->id % rank->limits.experts, fetch->id / rank->limits.experts);
        give_up(rank, fetch);
        return;
    }
    status = mp_pager_put(pager, fetch->id, MP_PRIORITY_PREFETCH, message->bytes);
    if (status == MP_OK) {
        rank->report.fetched++;
        rank->report.fetched_bytes += message->bytes_count;
    }
    if (status != MP_OK)
        mp_error_clear(); /* it has come from the file, or there is no room for it now */
    fetch->call = 0;
}
