/*
 * Requests that move: a rank that has nothing to do asks all others for one. Whose requests wait
 * gives it the oldest, at once or when one does; so nobody asks again and again, which would take
 * time of ranks that compute. Who has begun a request of its own says so.
 */
#include <string.h>

#include "engine/cluster/rank_int.h"

#define NONE UINT64_MAX

/* Of each rank there is one question at a time, and of this one what it could not give away. */
static void put(struct mp_rank *rank, uint64_t request)
{
    if (rank->given_count < 2 * MP_RANKS_MAX)
        rank->given[rank->given_count++] = request;
}

bool mp_rank_is_there(const struct mp_rank *rank, uint32_t peer)
{
    return peer == rank->self || rank->peer[peer].state == MP_PEER_LIVE;
}

static bool say(struct mp_rank *rank, uint32_t to, enum mp_message_kind kind, uint64_t request)
{
    struct mp_message_head head;

    mp_rank_head(rank, &head, kind, sizeof(head));
    head.id = request;
    return mp_rank_send(rank, to, &head, sizeof(head));
}

void mp_rank_want(struct mp_rank *rank)
{
    for (uint32_t p = 0; rank->config.give != NULL && p < rank->ranks; p++) {
        struct mp_peer *peer = &rank->peer[p];

        if (p != rank->self && peer->state == MP_PEER_LIVE && !peer->done && !peer->wanted)
            peer->wanted = say(rank, p, MP_MESSAGE_WANT, 0);
    }
}

/* One that waits goes to a rank that wants it; false: none does wait. */
static bool offer(struct mp_rank *rank, uint32_t to)
{
    uint64_t request = NONE;

    if (!rank->config.give(rank->config.give_ctx, to, &request))
        return false;
    rank->peer[to].wants = false;
    if (!say(rank, to, MP_MESSAGE_TAKE, request))
        put(rank, request); /* it stays here */
    return true;
}

void mp_rank_follow_requests(struct mp_rank *rank)
{
    bool any = true;

    if (rank->config.give == NULL)
        return;
    for (uint32_t p = 0; p < rank->ranks; p++) {
        if (rank->peer[p].wanted && say(rank, p, MP_MESSAGE_BUSY, 0))
            rank->peer[p].wanted = false;
    }
    for (uint32_t i = 1; any && i < rank->ranks; i++) {
        const uint32_t p = (rank->self + i) % rank->ranks;

        if (rank->peer[p].wants && rank->peer[p].state == MP_PEER_LIVE)
            any = offer(rank, p);
    }
}

void mp_rank_take_want(struct mp_rank *rank, uint32_t from, bool wants)
{
    rank->peer[from].wants = wants && rank->config.give != NULL;
    if (rank->peer[from].wants)
        (void)offer(rank, from);
}

void mp_rank_take_given(struct mp_rank *rank, uint32_t from, uint64_t request)
{
    rank->peer[from].wanted = false;
    if (rank->config.give != NULL)
        put(rank, request);
}

bool mp_rank_take_request(struct mp_rank *rank, uint64_t *request_p)
{
    if (rank->given_count == 0)
        return false;
    *request_p = rank->given[0];
    memmove(rank->given, rank->given + 1, --rank->given_count * sizeof(*rank->given));
    rank->report.taken++;
    return true;
}
