/*
 * Ranks that have died come back. The scheduler calls all live ranks together: each of them says
 * GATE when it has nothing under way, and from then on only answers the others. When all have said
 * so the scheduler says OPEN, and all let the transport start the dead ones again; if one does not
 * come in time it says STAY, and all go on without. GATE and STAY bear the number of the attempt,
 * so that what comes late counts for nothing.
 *
 * A rank that comes back gets all results from the scheduler, loads its files, says hello, and is
 * asked for nothing until then. A new placement counts with it.
 */
#include "engine/cluster/rank_int.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

#define WAIT_NS UINT64_C(200000)
/* After a death, so that whoever dies together with it is known, too. */
#define SETTLE_NS UINT64_C(1000000000)
/* For so long whoever has nothing more to do waits for the others to meet. */
#define EXPECTED_NS UINT64_C(30000000000)

static bool is_alive(const struct mp_rank *rank, uint32_t p)
{
    return p != rank->self && rank->peer[p].state != MP_PEER_LOST;
}

/* Is anybody dead, and everybody else well enough to meet? */
static bool can_call(const struct mp_rank *rank)
{
    uint32_t dead = 0;

    for (uint32_t p = 0; p < rank->ranks; p++) {
        const struct mp_peer *peer = &rank->peer[p];

        if (p == rank->self)
            continue;
        if (peer->garbled || peer->state == MP_PEER_SILENT || peer->returning)
            return false;
        dead += peer->state == MP_PEER_LOST;
    }
    return dead > 0;
}

static bool may_try(const struct mp_rank *rank)
{
    return rank->placed && rank->attempt < rank->config.restarts &&
           rank->config.transport->ops->restart != NULL && rank->config.transport->survives;
}

/* Does anybody, the dead included, still have requests? */
static bool has_work(const struct mp_rank *rank)
{
    bool any = !rank->leaving;

    for (uint32_t p = 0; p < rank->ranks; p++)
        any |= p != rank->self && !rank->peer[p].done;
    return any;
}

static bool wants(const struct mp_rank *rank)
{
    return may_try(rank) && mp_rank_scheduler(rank) == rank->self &&
           mp_rank_now_ns(rank) - rank->lost_ns >= SETTLE_NS && can_call(rank) && has_work(rank);
}

bool mp_rank_expects(const struct mp_rank *rank)
{
    bool any = false;

    for (uint32_t p = 0; p < rank->ranks; p++)
        any |= rank->peer[p].state == MP_PEER_LOST && !rank->peer[p].done && !rank->peer[p].garbled;
    return any && may_try(rank) && mp_rank_now_ns(rank) - rank->lost_ns < EXPECTED_NS;
}

static bool all_gated(const struct mp_rank *rank, uint32_t number)
{
    bool all = true;

    for (uint32_t p = 0; p < rank->ranks; p++)
        all &= !is_alive(rank, p) || rank->peer[p].gated >= number;
    return all;
}

void mp_rank_take_gate(struct mp_rank *rank, uint32_t from, const struct mp_message_head *head)
{
    switch ((enum mp_message_kind)head->kind) {
    case MP_MESSAGE_GATE: rank->peer[from].gated = head->epoch; break;
    case MP_MESSAGE_OPEN: rank->opened = head->epoch > rank->attempt; break;
    default: rank->stays_shut = head->epoch > rank->attempt; break;
    }
}

/* Answer the others until all may meet. *open_p: they may. */
static enum mp_status wait_at_gate(struct mp_rank *rank, uint32_t number, bool *open_p)
{
    struct mp_transport *transport = rank->config.transport;
    const uint32_t scheduler = mp_rank_scheduler(rank);
    const uint64_t start_ns = mp_rank_now_ns(rank);
    enum mp_status status = MP_OK;
    bool any;

    *open_p = false;
    while (status == MP_OK && !rank->stays_shut && mp_rank_scheduler(rank) == scheduler) {
        if (all_gated(rank, number) && (rank->opened || scheduler == rank->self)) {
            *open_p = true;
            break;
        }
        if (scheduler == rank->self && mp_rank_now_ns(rank) - start_ns > rank->config.deadline_ns)
            break;
        status = mp_rank_receive(rank, &any);
        if (status == MP_OK && !any)
            transport->ops->wait(transport, WAIT_NS);
    }
    if (scheduler == rank->self)
        mp_rank_tell_all(rank, *open_p ? MP_MESSAGE_OPEN : MP_MESSAGE_STAY, number);
    return status;
}

/* What the others have of this rank's results before the dead one was lost, the scheduler gives. */
static void welcome(struct mp_rank *rank, uint32_t p)
{
    struct mp_peer *peer = &rank->peer[p];
    const uint32_t scheduler = mp_rank_scheduler(rank);

    *peer = (struct mp_peer){
        .state = MP_PEER_SILENT,
        .heard_ns = mp_rank_now_ns(rank),
        .about = peer->about,
        .call = peer->call,
        .track = peer->track,
        .load_s = peer->load_s,
        .returning = true,
        .told = scheduler == rank->self ? rank->own.count : rank->peer[scheduler].told,
    };
    peer->call.open = false;
    rank->report.lost--;
    rank->report.returned++;
    if (scheduler == rank->self)
        mp_rank_send_results(rank, p, &rank->all, 0);
    mp_log_warn("cluster", "rank %u was started again", p);
}

static enum mp_status meet(struct mp_rank *rank)
{
    struct mp_transport *transport = rank->config.transport;
    bool dead[MP_RANKS_MAX];

    for (uint32_t p = 0; p < rank->ranks; p++)
        dead[p] = p != rank->self && !is_alive(rank, p);
    if (transport->ops->restart(transport) != MP_OK) {
        mp_log_warn("cluster", "%s", mp_error_last()->text);
        mp_error_clear();
        return MP_OK;
    }
    for (uint32_t p = 0; p < rank->ranks; p++) {
        rank->peer[p].heard_ns = mp_rank_now_ns(rank);
        if (dead[p])
            welcome(rank, p);
    }
    return MP_OK;
}

enum mp_status mp_rank_follow_restart(struct mp_rank *rank)
{
    uint32_t number = rank->attempt + wants(rank);
    bool open = false;
    enum mp_status status;

    for (uint32_t p = 0; p < rank->ranks; p++) {
        if (is_alive(rank, p) && rank->peer[p].gated > number)
            number = rank->peer[p].gated;
    }
    if (number == rank->attempt)
        return MP_OK;
    status = mp_rank_end_fetches(rank);
    if (status != MP_OK)
        return status;
    mp_rank_tell_all(rank, MP_MESSAGE_GATE, number);
    status = wait_at_gate(rank, number, &open);
    rank->attempt = number;
    if (status == MP_OK && open)
        status = meet(rank);
    rank->opened = rank->stays_shut = false;
    return status;
}

/* Somebody who comes back has its files: tell it who is there, the epoch, and how many attempts
 * there were. */
void mp_rank_greet(struct mp_rank *rank, uint32_t to)
{
    struct {
        struct mp_message_head head;
        struct mp_hello hello;
    } message = { .hello = rank->peer[rank->self].about };

    mp_rank_head(rank, &message.head, MP_MESSAGE_HELLO, sizeof(message));
    message.head.id = rank->attempt;
    message.head.epoch = mp_rank_last_epoch(rank); /* if it schedules, it goes on from there */
    (void)mp_rank_send(rank, to, &message, sizeof(message));
    mp_rank_head(rank, &message.head, MP_MESSAGE_READY, sizeof(message.head));
    message.head.epoch = 0;
    (void)mp_rank_send(rank, to, &message.head, sizeof(message.head));
}
