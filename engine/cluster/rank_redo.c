/*
 * Calls that nobody will answer: a rank has died, is silent, refuses, or its queue is full. With
 * `reads` all of a call is computed here. Without, its experts go to those who have them: to as few
 * other ranks as possible, each with the rows of its experts only, or here, if a placement has
 * given them to this rank meanwhile. Who was asked and refused is not asked again. What only such
 * ranks have waits until the deadline, as does what they could not be sent: another rank may be
 * about to say that it has the expert, which is why they dropped it, or a queue may get shorter.
 */
#include <string.h>

#include "engine/cluster/rank_int.h"

void mp_rank_send_call(struct mp_rank *rank, uint32_t to)
{
    struct mp_call *call = &rank->peer[to].call;

    call->sent_ns = mp_rank_now_ns(rank);
    call->waited = false;
    call->failed = !mp_rank_send(rank, to, call->message, call->bytes);
    call->tried |= (uint64_t)!call->failed << to;
    rank->report.calls++;
}

/* ---- here */

static enum mp_status redo_here(struct mp_rank *rank, struct mp_call *call)
{
    const size_t H = rank->limits.hidden, R = rank->limits.top_k;
    struct mp_message message;
    enum mp_status status = mp_message_parse(call->message, call->bytes, &rank->limits, &message);

    if (status == MP_OK)
        status = mp_rank_compute(rank, &message);
    if (status != MP_OK)
        return status;
    for (uint32_t i = 0; i < message.head->rows; i++) {
        const size_t from = message.rows[i];
        const size_t to = call->token[from / R] * R + from % R;

        memcpy(rank->results + to * H, rank->served + from * H, H * sizeof(float));
    }
    call->open = false;
    rank->report.redone++;
    return MP_OK;
}

/* ---- by others */

static const struct mp_message_group *groups_of(const struct mp_call *call)
{
    return (const void *)((const struct mp_message_head *)call->message + 1);
}

static uint32_t id_of(const struct mp_rank *rank, const struct mp_call *call, uint32_t g)
{
    const struct mp_message_head *head = call->message;

    return head->layer * rank->limits.experts + groups_of(call)[g].expert;
}

/* Is rank `p` there, and has it the expert, or may read it? */
static bool has(const struct mp_rank *rank, uint32_t p, uint32_t id)
{
    if (p == rank->self)
        return mp_rank_may_have(rank, p, id);
    return rank->peer[p].state == MP_PEER_LIVE &&
           (rank->peer[p].about.reads != 0 || mp_rank_keeps(rank, p, id) ||
            mp_rank_may_have(rank, p, id));
}

/* Can rank `p` be asked for expert `g` of the call, which this one has not? */
static bool can_take(const struct mp_rank *rank, const struct mp_call *call, uint32_t p, uint32_t g)
{
    const uint32_t id = id_of(rank, call, g);

    return p != rank->self && (call->tried >> p & 1) == 0 && has(rank, p, id) &&
           !has(rank, rank->self, id);
}

static uint32_t count_for(const struct mp_rank *rank, const struct mp_call *call, uint32_t p)
{
    const struct mp_message_head *head = call->message;
    uint32_t count = 0;

    for (uint32_t g = 0; g < head->groups; g++)
        count += can_take(rank, call, p, g);
    return count;
}

/* Who can be asked for most of the call, other than `from`, whose call it is; the lowest if several
 * are. A rank whose own call is open is asked later. rank->ranks: nobody. */
static uint32_t find_other(const struct mp_rank *rank, uint32_t from)
{
    uint32_t best = rank->ranks, most = 0;

    for (uint32_t p = 0; p < rank->ranks; p++) {
        const uint32_t count =
            p == from || rank->peer[p].call.open ? 0 : count_for(rank, &rank->peer[from].call, p);

        if (count > most) {
            best = p;
            most = count;
        }
    }
    return best;
}

/* Tokens of the experts for which rank->where is `to` get the numbers they will have there. Heads
 * count them, and groups and rows. */
static void number_tokens(struct mp_rank *rank, const struct mp_call *call, uint32_t to,
                          struct mp_message_head *head)
{
    const struct mp_message_head *whole = call->message;
    const struct mp_message_group *group = groups_of(call);
    const uint32_t *row = (const void *)(group + whole->groups);

    for (uint32_t t = 0; t < whole->tokens; t++)
        rank->place[t] = UINT32_MAX;
    for (uint32_t g = 0; g < whole->groups; row += group[g++].rows) {
        if (rank->where[group[g].expert] != to)
            continue;
        head->groups++;
        head->rows += group[g].rows;
        for (uint32_t r = 0; r < group[g].rows; r++)
            rank->place[row[r] / rank->limits.top_k] = 0;
    }
    for (uint32_t t = 0; t < whole->tokens; t++) {
        if (rank->place[t] != UINT32_MAX)
            rank->place[t] = head->tokens++;
    }
}

/* The message `out` about the experts for which rank->where is `to`; `tokens` is as mp_call.token,
 * and may be that of the whole call. 0: there are none. */
static uint64_t make_part(struct mp_rank *rank, const struct mp_call *call, uint32_t to, void *out,
                          uint32_t *tokens)
{
    const size_t H = rank->limits.hidden, R = rank->limits.top_k;
    const struct mp_message_head *whole = call->message;
    const struct mp_message_group *group = groups_of(call);
    const uint32_t *row = (const void *)(group + whole->groups);
    const float *values = (const void *)(row + whole->rows);
    struct mp_message_head *head = out, numbers = *whole;
    struct mp_message_group *to_group = (void *)(head + 1);
    uint32_t *to_row;
    float *to_values;

    numbers.groups = numbers.tokens = numbers.rows = 0;
    number_tokens(rank, call, to, &numbers);
    numbers.bytes = (uint32_t)mp_message_call_bytes(&rank->limits, numbers.groups, numbers.tokens,
                                                    numbers.rows);
    *head = numbers;
    to_row = (void *)(to_group + head->groups);
    to_values = (void *)(to_row + head->rows);
    for (uint32_t g = 0; g < whole->groups; row += group[g++].rows) {
        if (rank->where[group[g].expert] != to)
            continue;
        *to_group++ = group[g];
        for (uint32_t r = 0; r < group[g].rows; r++)
            *to_row++ = rank->place[row[r] / R] * (uint32_t)R + row[r] % (uint32_t)R;
    }
    for (uint32_t t = 0; t < whole->tokens; t++) {
        if (rank->place[t] == UINT32_MAX)
            continue;
        tokens[rank->place[t]] = call->token[t];
        memcpy(to_values + rank->place[t] * H, values + t * H, H * sizeof(float));
    }
    return head->groups > 0 ? head->bytes : 0;
}

/* Rank `to` gets what it can take of the call of rank `from`, where the rest stays. */
static void hand_over(struct mp_rank *rank, uint32_t from, uint32_t to)
{
    struct mp_call *call = &rank->peer[from].call, *part = &rank->peer[to].call;
    const struct mp_message_head *head = call->message;

    for (uint32_t g = 0; g < head->groups; g++)
        rank->where[groups_of(call)[g].expert] = can_take(rank, call, to, g) ? to : from;
    part->id = ++rank->next_call;
    part->bytes = make_part(rank, call, to, part->message, part->token);
    ((struct mp_message_head *)part->message)->id = part->id;
    part->began_ns = call->began_ns;
    part->tried = call->tried;
    part->stuck_ns = 0;
    part->open = true;
    call->bytes = make_part(rank, call, from, rank->out, call->token);
    call->open = call->bytes > 0;
    memcpy(call->message, rank->out, call->bytes);
    mp_rank_send_call(rank, to);
    rank->report.redone++;
}

/* ---- what is left */

/* A full queue may have got shorter. */
static void send_again(struct mp_rank *rank, uint32_t to)
{
    struct mp_call *call = &rank->peer[to].call;

    if (!mp_rank_send(rank, to, call->message, call->bytes))
        return;
    call->failed = false;
    call->tried |= UINT64_C(1) << to;
    call->sent_ns = mp_rank_now_ns(rank);
}

/* Can another one than rank `from` be asked for expert `g` of its call, now or when its own call
 * has ended? */
static bool can_wait(const struct mp_rank *rank, uint32_t from, uint32_t g)
{
    uint32_t p = 0;

    while (p < rank->ranks && (p == from || !can_take(rank, &rank->peer[from].call, p, g)))
        p++;
    return p < rank->ranks;
}

static bool anybody_has(const struct mp_rank *rank, uint32_t id)
{
    uint32_t p = 0;

    while (p < rank->ranks && !has(rank, p, id))
        p++;
    return p < rank->ranks;
}

/* Nobody can be asked now for what is left of the call. */
static enum mp_status keep_rest(struct mp_rank *rank, uint32_t from)
{
    struct mp_call *call = &rank->peer[from].call;
    const struct mp_message_head *head = call->message;
    const uint64_t now = mp_rank_now_ns(rank);
    uint32_t here = 0;
    bool late;

    call->stuck_ns = call->stuck_ns > 0 ? call->stuck_ns : now;
    late = now - call->stuck_ns >= rank->config.deadline_ns;
    for (uint32_t g = 0; g < head->groups; g++) {
        const uint32_t id = id_of(rank, call, g);
        const bool own = has(rank, rank->self, id);

        here += own;
        if (!anybody_has(rank, id) || (late && !own && !can_wait(rank, from, g)))
            return mp_rank_no_holder(rank, head->layer, groups_of(call)[g].expert);
    }
    if (here == head->groups)
        return redo_here(rank, call);
    if (count_for(rank, call, from) == head->groups)
        send_again(rank, from);
    return MP_OK;
}

/* Rank `from` will not answer. */
static enum mp_status redo(struct mp_rank *rank, uint32_t from)
{
    struct mp_call *call = &rank->peer[from].call;
    uint32_t to;

    if (rank->config.reads)
        return redo_here(rank, call);
    while (call->open && (to = find_other(rank, from)) < rank->ranks)
        hand_over(rank, from, to);
    return call->open ? keep_rest(rank, from) : MP_OK;
}

enum mp_status mp_rank_check_calls(struct mp_rank *rank, bool *open_p)
{
    enum mp_status status = MP_OK;

    *open_p = false;
    for (uint32_t p = 0; p < rank->ranks && status == MP_OK; p++) {
        struct mp_peer *peer = &rank->peer[p];

        if (!peer->call.open)
            continue;
        mp_rank_check_silence(rank, p, peer->call.sent_ns);
        if (peer->call.failed || peer->state != MP_PEER_LIVE)
            status = redo(rank, p);
    }
    for (uint32_t p = 0; p < rank->ranks; p++)
        *open_p |= rank->peer[p].call.open;
    return status;
}
