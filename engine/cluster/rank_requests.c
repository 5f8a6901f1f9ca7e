/*
 * Requests that move: a rank that has nothing to do asks the others in turn, and one whose requests
 * wait gives it the oldest. So a request begins where a rank is free first.
 */
#include <string.h>

#include "engine/cluster/rank_int.h"

/* Between two questions. */
#define WANT_NS UINT64_C(1000000)
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

void mp_rank_want(struct mp_rank *rank)
{
    const uint64_t now = mp_rank_now_ns(rank);
    struct mp_message_head head;
    struct mp_peer *peer;

    if (rank->config.give == NULL || rank->ranks < 2 || now - rank->want_ns < WANT_NS)
        return;
    rank->want_ns = now;
    rank->want_next = (rank->want_next + 1) % rank->ranks;
    if (rank->want_next == rank->self)
        rank->want_next = (rank->want_next + 1) % rank->ranks;
    peer = &rank->peer[rank->want_next];
    if (peer->state != MP_PEER_LIVE || peer->done || peer->wanted)
        return;
    mp_rank_head(rank, &head, MP_MESSAGE_WANT, sizeof(head));
    peer->wanted = mp_rank_send(rank, rank->want_next, &head, sizeof(head));
}

void mp_rank_take_want(struct mp_rank *rank, uint32_t from)
{
    struct mp_message_head head;
    uint64_t request = NONE;
    const bool any =
        rank->config.give != NULL && rank->config.give(rank->config.give_ctx, from, &request);

    mp_rank_head(rank, &head, MP_MESSAGE_TAKE, sizeof(head));
    head.id = any ? request : NONE;
    if (!mp_rank_send(rank, from, &head, sizeof(head)) && any)
        put(rank, request); /* it stays here */
}

void mp_rank_take_given(struct mp_rank *rank, uint32_t from, uint64_t request)
{
    rank->peer[from].wanted = false;
    if (rank->config.give != NULL && request != NONE)
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
