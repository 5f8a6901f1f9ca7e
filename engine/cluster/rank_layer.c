/* One MoE layer across ranks: a message to each rank that is to compute some of it (rank_choose.c
 * says which), and their results. What becomes of a message that is not answered: rank_redo.c. */
#include <inttypes.h>
#include <string.h>

#include "engine/cluster/rank_int.h"
#include "policy/place/learn.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

/* Between two looks at what has come. */
#define WAIT_NS 50000

static struct mp_rank *rank_of(void *ctx)
{
    return ctx;
}

/* ---- asking */

/* Number the tokens that rank `to` gets, ascending; groups and rows are counted. */
static void number_tokens(struct mp_rank *rank, uint32_t to, const struct mp_expert_work *work,
                          uint32_t count, struct mp_message_head *head)
{
    struct mp_call *call = &rank->peer[to].call;

    for (uint32_t t = 0; t < rank->limits.tokens_max; t++)
        rank->place[t] = UINT32_MAX;
    for (uint32_t i = 0; i < count; i++) {
        if (rank->where[work[i].expert] != to)
            continue;
        head->groups++;
        head->rows += work[i].rows.count;
        for (uint32_t r = 0; r < work[i].rows.count; r++)
            rank->place[work[i].rows.token[r]] = 0;
    }
    for (uint32_t t = 0; t < rank->limits.tokens_max; t++) {
        if (rank->place[t] == UINT32_MAX)
            continue;
        call->token[head->tokens] = t;
        rank->place[t] = head->tokens++;
    }
}

/* The message to rank `to`, in its call. */
static void make_call(struct mp_rank *rank, uint32_t to, const float *input,
                      const struct mp_expert_work *work, uint32_t count)
{
    const size_t H = rank->limits.hidden;
    struct mp_call *call = &rank->peer[to].call;
    struct mp_message_head *head = call->message;
    struct mp_message_head numbers = { 0 };
    struct mp_message_group *group = (void *)(head + 1);
    uint32_t *row;
    float *values;

    number_tokens(rank, to, work, count, &numbers);
    call->bytes =
        mp_message_call_bytes(&rank->limits, numbers.groups, numbers.tokens, numbers.rows);
    mp_rank_head(rank, head, MP_MESSAGE_CALL, call->bytes);
    head->id = call->id;
    head->layer = rank->layer;
    head->groups = numbers.groups;
    head->tokens = numbers.tokens;
    head->rows = numbers.rows;
    row = (void *)(group + numbers.groups);
    values = (void *)(row + numbers.rows);
    for (uint32_t i = 0; i < count; i++) {
        if (rank->where[work[i].expert] != to)
            continue;
        *group++ = (struct mp_message_group){ work[i].expert, work[i].rows.count };
        for (uint32_t r = 0; r < work[i].rows.count; r++)
            *row++ = rank->place[work[i].rows.token[r]] * rank->limits.top_k + work[i].rows.rank[r];
    }
    for (uint32_t t = 0; t < numbers.tokens; t++)
        memcpy(values + t * H, input + call->token[t] * H, H * sizeof(float));
}

static bool is_asked(const struct mp_rank *rank, uint32_t peer, const struct mp_expert_work *work,
                     uint32_t count)
{
    uint32_t i = 0;

    while (i < count && rank->where[work[i].expert] != peer)
        i++;
    return i < count;
}

static enum mp_status ask(void *ctx, uint32_t layer, const float *input,
                          const struct mp_expert_work *work, uint32_t count)
{
    struct mp_rank *rank = rank_of(ctx);

    rank->layer = layer;
    for (uint32_t p = 0; p < rank->ranks; p++) {
        struct mp_call *call = &rank->peer[p].call;

        if (p == rank->self || !is_asked(rank, p, work, count))
            continue;
        call->id = ++rank->next_call;
        call->open = true;
        call->tried = 0;
        call->stuck_ns = 0;
        call->began_ns = mp_timeline_now_ns(rank->config.engine->timeline);
        make_call(rank, p, input, work, count);
        mp_rank_send_call(rank, p);
        mp_rank_note_message(rank, "send", call->began_ns, call->message);
    }
    rank->asked_ns = mp_rank_now_ns(rank);
    return MP_OK;
}

/* ---- results */

/* Put the results of a call, in the order of its rows, where local ones are. */
static void put_results(struct mp_rank *rank, const struct mp_call *call, const float *values)
{
    const struct mp_message_head *head = call->message;
    const struct mp_message_group *groups = (const void *)(head + 1);
    const uint32_t *rows = (const void *)(groups + head->groups);
    const size_t H = rank->limits.hidden, R = rank->limits.top_k;

    for (uint32_t i = 0; i < head->rows; i++) {
        const size_t at = call->token[rows[i] / R] * R + rows[i] % R;

        memcpy(rank->results + at * H, values + i * H, H * sizeof(float));
    }
}

static void note_call(struct mp_rank *rank, struct mp_peer *peer,
                      const struct mp_message_head *head)
{
    const struct mp_engine_config *engine = rank->config.engine;
    const double ns = (double)(mp_rank_now_ns(rank) - peer->call.sent_ns);

    mp_timeline_span(
        engine->timeline, peer->track, "call", peer->call.began_ns,
        mp_timeline_now_ns(engine->timeline),
        &(struct mp_timeline_args){ { "experts", "rows" }, { head->groups, head->rows } });
    if (!peer->call.waited && ns > peer->fixed_ns + peer->row_ns * head->rows)
        return; /* nobody looked when it came: own work ended later */
    peer->samples++;
    mp_learn_call(&peer->fixed_ns, &peer->row_ns, ns, head->rows);
}

/* How much longer the layer's own part took for its reads. */
static void note_reads(struct mp_rank *rank)
{
    const double ns = (double)(mp_rank_now_ns(rank) - rank->asked_ns) - rank->own_ns;

    if (rank->own_reads == 0 || ns <= 0)
        return;
    rank->reads = mp_rank_reads(rank);
    mp_learn_reads(&rank->reads, ns, rank->own_reads);
}

void mp_rank_take_reply(struct mp_rank *rank, uint32_t from, const struct mp_message *message)
{
    struct mp_peer *peer = &rank->peer[from];
    const struct mp_message_head *asked = peer->call.message;

    if (!peer->call.open || message->head->id != peer->call.id || rank->results == NULL ||
        message->head->layer != asked->layer || message->head->rows != asked->rows) {
        rank->report.late++;
        return;
    }
    put_results(rank, &peer->call, message->values);
    peer->call.open = false;
    note_call(rank, peer, asked);
    mp_rank_note_message(rank, "take", rank->found_ns, asked);
}

void mp_rank_take_refusal(struct mp_rank *rank, uint32_t from, const struct mp_message *message)
{
    struct mp_call *call = &rank->peer[from].call;

    if (mp_rank_take_no_bytes(rank, from, message->head->id))
        return;
    if (call->open && message->head->id == call->id)
        call->failed = true;
    else
        rank->report.late++;
}

static enum mp_status check_cancel(const struct mp_rank *rank)
{
    const volatile sig_atomic_t *cancel = rank->config.engine->cancel;

    return cancel != NULL && *cancel ? mp_fail(MP_ERR_CANCELED, "E_CANCELED", "interrupted")
                                     : MP_OK;
}

static void wait_for_replies(struct mp_rank *rank)
{
    for (uint32_t p = 0; p < rank->ranks; p++)
        rank->peer[p].call.waited = true;
    rank->config.transport->ops->wait(rank->config.transport, WAIT_NS);
}

static enum mp_status collect(void *ctx, float *results)
{
    struct mp_rank *rank = rank_of(ctx);
    const uint64_t start_ns = mp_rank_now_ns(rank);
    bool open = false, any;
    enum mp_status status;

    note_reads(rank);
    rank->results = results;
    status = mp_rank_check_calls(rank, &open);
    while (open && status == MP_OK) {
        status = mp_rank_receive(rank, &any);
        if (status == MP_OK)
            status = check_cancel(rank);
        if (status == MP_OK)
            status = mp_rank_check_calls(rank, &open);
        if (open && !any && status == MP_OK)
            wait_for_replies(rank);
    }
    rank->results = NULL;
    rank->report.wait_ns += mp_rank_now_ns(rank) - start_ns;
    return status;
}

static enum mp_status poll(void *ctx)
{
    struct mp_rank *rank = rank_of(ctx);
    bool any;
    enum mp_status status = mp_rank_receive(rank, &any);

    mp_rank_follow_requests(rank);
    if (status == MP_OK)
        status = mp_rank_follow_epoch(rank);
    return status == MP_OK ? mp_rank_follow_restart(rank) : status;
}

void mp_rank_fill_peers(struct mp_rank *rank)
{
    rank->peers = (struct mp_peers){
        .ctx = rank, .poll = poll, .choose = mp_rank_choose, .ask = ask, .collect = collect
    };
}
