/*
 * From one placement to the next: an expert leaves memory here when another rank has it. Who wants
 * to drop experts lists them (LEAVE); whoever keeps one of those says so when it is in its memory,
 * with a hash of the bytes there (HAVE), which is compared with those here. So there is a copy at
 * every moment, also if a rank that was to get one dies, or a read fails: then nobody says HAVE.
 * What was told to be here stays as long as somebody has yet to drop it; who has says so (LEFT).
 * From then on a demand may take its place, as that of all that is kept.
 *
 * A move has a number, twice the epoch, and one more if the placement is given up and all go back;
 * what was said in another move does not count. In one move a rank believes those who keep the
 * expert when it is over and those with a lower number. The former do not drop it, the latter
 * believe only lower ones still, so that some copy is believed in by nobody who drops it.
 *
 * It ends. Each rank has two slots more than it keeps, and reads into them what it is to get. If
 * ranks that lack something had all slots full, each would hold two experts more, which nobody has
 * got yet, than it lacks; but each of these is lacking somewhere.
 */
#include <inttypes.h>
#include <string.h>

#include "engine/cluster/hash.h"
#include "engine/cluster/rank_int.h"
#include "policy/pager/pager.h"
#include "vmm/base/log.h"

/* Bytes that are hashed between two layers, for those who wait to hear it. */
#define HASH_BYTES_MAX (UINT64_C(16) << 20)
#define AGAIN_NS UINT64_C(1000000000)

static uint64_t bit_of(uint32_t rank)
{
    return UINT64_C(1) << rank;
}

static struct mp_pager *pager_of(const struct mp_rank *rank)
{
    return mp_engine_pager(rank->engine);
}

static bool will_keep(const struct mp_rank *rank, uint32_t server, uint32_t id)
{
    const struct mp_placement *target = rank->copying ? &rank->next : &rank->now;

    return target->device[(size_t)server * rank->ids + id] != 0;
}

static bool anybody_keeps(const struct mp_rank *rank, uint32_t id)
{
    uint32_t p = 0;

    while (p < rank->ranks && !will_keep(rank, p, id))
        p++;
    return p < rank->ranks;
}

/* Has a rank said that it has the expert that `server` may drop it for? */
static bool is_elsewhere(const struct mp_rank *rank, uint32_t server, uint32_t id)
{
    for (uint32_t p = 0; p < rank->ranks; p++) {
        if (p != server && (rank->live[id] & bit_of(p)) != 0 &&
            rank->peer[p].state == MP_PEER_LIVE && (p < server || will_keep(rank, p, id)))
            return true;
    }
    return false;
}

/* Is it in memory, to be dropped? Once it has left all are to hear of it. */
static bool is_dropping(struct mp_rank *rank, uint32_t id)
{
    if (rank->drops[id] != 0 && !mp_pager_has(pager_of(rank), id)) {
        rank->drops[id] = 0;
        rank->left[id] = UINT64_MAX;
        rank->unleft = true;
    }
    return rank->drops[id] != 0;
}

/* Has another rank, which is yet to drop the expert, been told that it is here? */
static bool is_relied_on(const struct mp_rank *rank, uint32_t id)
{
    uint32_t p = 0;

    if (rank->told[id] == 0 || rank->wanted_move[id] != rank->move)
        return false;
    while (p < rank->ranks &&
           ((rank->wanted[id] & bit_of(p)) == 0 || rank->peer[p].state == MP_PEER_LOST))
        p++;
    return p < rank->ranks;
}

/* keeps := what this rank is to have, and what must not leave yet. */
void mp_rank_keep(struct mp_rank *rank)
{
    for (uint32_t id = 0; id < rank->ids; id++) {
        const bool drops = is_dropping(rank, id);

        if (will_keep(rank, rank->self, id))
            rank->keeps[id] = is_relied_on(rank, id) ? MP_PLACED_SOLE : MP_PLACED_KEEP;
        else
            rank->keeps[id] =
                drops && !is_elsewhere(rank, rank->self, id) ? MP_PLACED_SOLE : MP_PLACED_NOT;
    }
    mp_pager_place(pager_of(rank), rank->keeps);
}

/* rank->out := a message with the ids behind its head; returns its bytes. */
static uint32_t make_list(struct mp_rank *rank, enum mp_message_kind kind, uint32_t count)
{
    struct mp_message_head *head = rank->out;

    mp_rank_head(rank, head, kind, sizeof(*head) + count * sizeof(uint32_t));
    head->epoch = rank->move;
    head->groups = count;
    return head->bytes;
}

/* Tell all what is to leave here. */
static void send_leaving(struct mp_rank *rank)
{
    uint32_t *id_of = (uint32_t *)((struct mp_message_head *)rank->out + 1), count = 0, bytes;

    for (uint32_t id = 0; id < rank->ids; id++) {
        if (rank->drops[id] && !is_elsewhere(rank, rank->self, id))
            id_of[count++] = id;
    }
    rank->leave_ns = mp_rank_now_ns(rank);
    if (count == 0)
        return;
    bytes = make_list(rank, MP_MESSAGE_LEAVE, count);
    for (uint32_t p = 0; p < rank->ranks; p++) {
        if (p != rank->self)
            (void)mp_rank_send(rank, p, rank->out, bytes);
    }
}

/* Tell a rank what has left; what it could not be told it is told again. */
static bool send_left(struct mp_rank *rank, uint32_t to)
{
    uint32_t *id_of = (uint32_t *)((struct mp_message_head *)rank->out + 1), count = 0;

    for (uint32_t id = 0; id < rank->ids; id++) {
        if ((rank->left[id] & bit_of(to)) != 0)
            id_of[count++] = id;
    }
    if (count > 0 && rank->peer[to].state != MP_PEER_LOST &&
        !mp_rank_send(rank, to, rank->out, make_list(rank, MP_MESSAGE_LEFT, count)))
        return false;
    for (uint32_t id = 0; id < rank->ids; id++)
        rank->left[id] &= ~bit_of(to);
    return true;
}

static void tell_what_left(struct mp_rank *rank)
{
    bool dropping = false;

    for (uint32_t id = 0; id < rank->ids && rank->dropping; id++)
        dropping |= is_dropping(rank, id);
    rank->dropping = dropping;
    if (!rank->unleft)
        return;
    rank->unleft = false;
    for (uint32_t p = 0; p < rank->ranks; p++)
        rank->unleft |= p != rank->self && !send_left(rank, p);
}

void mp_rank_begin_move(struct mp_rank *rank, uint32_t move)
{
    for (uint32_t id = 0; id < rank->ids; id++) {
        rank->drops[id] = rank->keeps[id] != MP_PLACED_NOT && !will_keep(rank, rank->self, id) &&
                          anybody_keeps(rank, id) && mp_pager_has(pager_of(rank), id);
        rank->live[id] = rank->told[id] = rank->left[id] = 0;
        rank->no_fetch[id] = rank->seen[id] = 0;
    }
    rank->move = move;
    rank->untold = rank->dropping = true;
    send_leaving(rank);
    mp_rank_keep(rank);
}

/* mp_hash_bytes() of what is in memory. */
static uint64_t hash_of(struct mp_rank *rank, uint32_t id)
{
    struct mp_pager *pager = pager_of(rank);

    return mp_pager_get(pager, id, rank->expert)
               ? mp_hash_bytes(rank->expert, mp_pager_expert_bytes(pager, id))
               : 0;
}

void mp_rank_take_leaving(struct mp_rank *rank, uint32_t from, const struct mp_message *message)
{
    const uint32_t move = message->head->epoch;

    for (uint32_t i = 0; i < message->head->groups; i++) {
        const uint32_t id = message->leaving[i];

        if (move < rank->move || move < rank->wanted_move[id])
            continue;
        if (move > rank->wanted_move[id])
            rank->wanted[id] = 0;
        rank->wanted_move[id] = move;
        rank->wanted[id] |= bit_of(from);
        rank->told[id] &= ~bit_of(from);
        rank->untold = true;
    }
}

void mp_rank_take_copies(struct mp_rank *rank, uint32_t from, const struct mp_message *message)
{
    if (!rank->placed || message->head->epoch != rank->move)
        return;
    for (uint32_t i = 0; i < message->head->groups; i++) {
        const struct mp_message_copy *copy = &message->copies[i];

        if (is_dropping(rank, copy->id) && hash_of(rank, copy->id) != copy->hash)
            mp_log_warn("cluster",
                        "rank %u has other bytes of expert %u of MoE layer %u, which stays here",
                        from, copy->id % rank->limits.experts, copy->id / rank->limits.experts);
        else
            rank->live[copy->id] |= bit_of(from);
    }
    mp_rank_keep(rank);
}

void mp_rank_take_left(struct mp_rank *rank, uint32_t from, const struct mp_message *message)
{
    const uint32_t move = message->head->epoch;

    for (uint32_t i = 0; i < message->head->groups; i++) {
        const uint32_t id = message->leaving[i];

        if (move == rank->wanted_move[id])
            rank->wanted[id] &= ~bit_of(from);
    }
    if (move == rank->move)
        mp_rank_keep(rank);
}

static bool waits_to_hear(const struct mp_rank *rank, uint32_t id)
{
    return rank->wanted_move[id] == rank->move && (rank->wanted[id] & ~rank->told[id]) != 0;
}

/* To all: also who drops nothing then asks a rank that has it. */
static void send_copies(struct mp_rank *rank, struct mp_message_head *head, uint32_t count)
{
    const struct mp_message_copy *copies = (const void *)(head + 1);

    mp_rank_head(rank, head, MP_MESSAGE_HAVE, sizeof(*head) + count * sizeof(*copies));
    head->epoch = rank->move;
    head->groups = count;
    for (uint32_t p = 0; p < rank->ranks; p++) {
        if (p == rank->self || !mp_rank_send(rank, p, head, head->bytes))
            continue;
        for (uint32_t i = 0; i < count; i++)
            rank->told[copies[i].id] |= bit_of(p);
    }
}

bool mp_rank_has_copied(struct mp_rank *rank)
{
    bool all = true;

    for (uint32_t id = 0; id < rank->ids; id++) {
        if (rank->seen[id] || !will_keep(rank, rank->self, id))
            continue;
        rank->seen[id] = mp_pager_has(pager_of(rank), id);
        all &= rank->seen[id];
    }
    return all;
}

void mp_rank_tell_copies(struct mp_rank *rank)
{
    struct mp_message_head *head = rank->out;
    struct mp_message_copy *copies = (struct mp_message_copy *)(head + 1);
    uint64_t hashed = 0;
    uint32_t count = 0;
    bool left = false;

    if (rank->move > 0 && mp_rank_now_ns(rank) - rank->leave_ns > AGAIN_NS)
        send_leaving(rank); /* a full queue may have lost it, or what was said of it */
    tell_what_left(rank);
    for (uint32_t id = 0; id < rank->ids && rank->untold; id++) {
        if (!waits_to_hear(rank, id) || (!will_keep(rank, rank->self, id) && !rank->drops[id]))
            continue;
        left = true;
        if (hashed > HASH_BYTES_MAX || rank->keeps[id] == MP_PLACED_NOT ||
            !mp_pager_has(pager_of(rank), id))
            continue;
        copies[count++] = (struct mp_message_copy){ .id = id, .hash = hash_of(rank, id) };
        hashed += mp_pager_expert_bytes(pager_of(rank), id);
    }
    rank->untold = left;
    if (count == 0)
        return;
    /* Before it is said: from now on no demand takes them. */
    for (uint32_t i = 0; i < count; i++)
        rank->told[copies[i].id] |= bit_of(rank->self);
    mp_rank_keep(rank);
    send_copies(rank, head, count);
}

bool mp_rank_may_have(const struct mp_rank *rank, uint32_t p, uint32_t id)
{
    const bool said = (rank->live[id] & bit_of(p)) != 0;

    if (!said && !mp_rank_keeps(rank, p, id))
        return false;
    /* What it is to drop is there no more when it has heard that another rank has it. */
    return will_keep(rank, p, id) || (rank->copying && !is_elsewhere(rank, p, id));
}
