/*
 * A rank: its memory, messages in and out, and who is still there.
 */
#include "engine/cluster/rank.h"

#include <stdlib.h>
#include <string.h>

#include "engine/cluster/rank_int.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"
#include "vmm/output/counters.h"

#define BEAT_NS UINT64_C(1000000000)
#define WAIT_NS UINT64_C(200000)
#define LONG_BYTES 65456 /* Open MPI sends a longer message over TCP in parts */

/* Of ranks, on the timeline, which does not copy them. */
#define TEN(rank)                                                                             \
    rank "0", rank "1", rank "2", rank "3", rank "4", rank "5", rank "6", rank "7", rank "8", \
        rank "9"
static const char *const tracks[] = { TEN("rank "),  TEN("rank 1"), TEN("rank 2"), TEN("rank 3"),
                                      TEN("rank 4"), TEN("rank 5"), TEN("rank 6") };
_Static_assert(sizeof(tracks) / sizeof(tracks[0]) >= MP_RANKS_MAX, "a name for each rank");

void mp_rank_head(const struct mp_rank *rank, struct mp_message_head *head,
                  enum mp_message_kind kind, uint64_t bytes)
{
    *head = (struct mp_message_head){
        .magic = MP_MESSAGE_MAGIC,
        .kind = kind,
        .bytes = (uint32_t)bytes,
        .epoch = rank->report.epoch,
    };
}

void mp_rank_note_message(const struct mp_rank *rank, const char *what, uint64_t start_ns,
                          const struct mp_message_head *call)
{
    struct mp_timeline *timeline = rank->config.engine->timeline;

    mp_timeline_span(
        timeline, rank->track, what, start_ns, mp_timeline_now_ns(timeline),
        &(struct mp_timeline_args){ { "experts", "rows" }, { call->groups, call->rows } });
}

/* What a peer sent before it died counts; what came after garbage does not. */
static void lose(struct mp_rank *rank, uint32_t peer, const char *why)
{
    if (rank->peer[peer].state == MP_PEER_LOST)
        return;
    rank->peer[peer].state = MP_PEER_LOST;
    rank->peer[peer].returning = false;
    rank->lost_ns = mp_rank_now_ns(rank);
    rank->shrunk = true;
    if (rank->leaving && rank->peer[peer].done)
        return; /* it has left, as this one is about to */
    rank->report.lost++;
    rank->orphans = true;
    mp_log_warn("cluster", "rank %u is lost: %s; its experts are computed elsewhere", peer, why);
}

bool mp_rank_send(struct mp_rank *rank, uint32_t to, void *message, uint64_t bytes)
{
    struct mp_transport *transport = rank->config.transport;
    enum mp_status status;

    mp_assert(to != rank->self && bytes <= rank->message_bytes_max);
    if (rank->peer[to].state == MP_PEER_LOST)
        return false;
    status = transport->ops->send(transport, to, message, bytes);
    rank->report.messages += status == MP_OK;
    rank->report.long_messages += status == MP_OK && bytes > LONG_BYTES;
    if (status == MP_OK)
        rank->report.sent_bytes += bytes;
    else if (status == MP_ERR_CLUSTER)
        lose(rank, to, mp_error_last()->text);
    if (status != MP_OK)
        mp_error_clear();
    return status == MP_OK;
}

void mp_rank_tell_all(struct mp_rank *rank, enum mp_message_kind kind, uint32_t epoch)
{
    struct mp_message_head head;

    mp_rank_head(rank, &head, kind, sizeof(head));
    head.epoch = epoch;
    for (uint32_t p = 0; p < rank->ranks; p++) {
        if (p != rank->self)
            (void)mp_rank_send(rank, p, &head, sizeof(head));
    }
}

void mp_rank_check_silence(struct mp_rank *rank, uint32_t peer, uint64_t since_ns)
{
    struct mp_peer *p = &rank->peer[peer];
    const uint64_t now = mp_rank_now_ns(rank);
    const uint64_t last = p->heard_ns > since_ns ? p->heard_ns : since_ns;

    if (p->state != MP_PEER_LIVE || now < last || now - last < rank->config.deadline_ns)
        return;
    p->state = MP_PEER_SILENT;
    mp_log_warn("cluster", "rank %u has not answered for %.1f s; not asked until it does", peer,
                (double)(now - last) / 1e9);
}

/* ---- what comes */

static enum mp_status take(struct mp_rank *rank, uint32_t from, const struct mp_message *message)
{
    switch ((enum mp_message_kind)message->head->kind) {
    case MP_MESSAGE_HELLO: return mp_rank_take_hello(rank, from, message);
    case MP_MESSAGE_CALL: return mp_rank_serve(rank, from, message);
    case MP_MESSAGE_REPLY: mp_rank_take_reply(rank, from, message); break;
    case MP_MESSAGE_REFUSE: mp_rank_take_refusal(rank, from, message); break;
    case MP_MESSAGE_STATS: mp_rank_take_stats(rank, from, message); break;
    case MP_MESSAGE_PLACE: mp_rank_take_place(rank, from, message); break;
    case MP_MESSAGE_READY:
        rank->welcomes |= rank->peer[from].returning;
        rank->peer[from].returning = false;
        rank->peer[from].placed = true;
        rank->peer[from].ready |= message->head->epoch == rank->next_epoch;
        break;
    case MP_MESSAGE_SWITCH: mp_rank_take_switch(rank, message->head->epoch); break;
    case MP_MESSAGE_GIVEUP: mp_rank_take_give_up(rank, message->head->epoch); break;
    case MP_MESSAGE_LEAVE: mp_rank_take_leaving(rank, from, message); break;
    case MP_MESSAGE_HAVE: mp_rank_take_copies(rank, from, message); break;
    case MP_MESSAGE_LEFT: mp_rank_take_left(rank, from, message); break;
    case MP_MESSAGE_FETCH: mp_rank_take_fetch(rank, from, message); break;
    case MP_MESSAGE_BYTES: mp_rank_take_bytes(rank, from, message); break;
    case MP_MESSAGE_RESULT: return mp_rank_take_results(rank, message);
    case MP_MESSAGE_DONE: rank->peer[from].done = true; break;
    case MP_MESSAGE_WANT: mp_rank_take_want(rank, from, true); break;
    case MP_MESSAGE_BUSY: mp_rank_take_want(rank, from, false); break;
    case MP_MESSAGE_TAKE: mp_rank_take_given(rank, from, message->head->id); break;
    case MP_MESSAGE_GATE:
    case MP_MESSAGE_OPEN:
    case MP_MESSAGE_STAY: mp_rank_take_gate(rank, from, message->head); break;
    case MP_MESSAGE_BEAT: mp_rank_take_beat(rank, from, message->head->epoch); break;
    default: break;
    }
    return MP_OK;
}

static enum mp_status take_arrival(struct mp_rank *rank, const struct mp_arrival *arrival)
{
    struct mp_peer *peer = &rank->peer[arrival->from];
    struct mp_message message;

    mp_assert(arrival->from < rank->ranks);
    if (arrival->lost) {
        lose(rank, arrival->from, "its process has ended");
        return MP_OK;
    }
    if (peer->garbled)
        return MP_OK;
    if (mp_message_parse(arrival->data, arrival->bytes, &rank->limits, &message) != MP_OK) {
        peer->garbled = true;
        lose(rank, arrival->from, mp_error_last()->text);
        mp_error_clear();
        return MP_OK;
    }
    if (peer->state == MP_PEER_LOST)
        return message.head->kind == MP_MESSAGE_RESULT ? mp_rank_take_results(rank, &message)
                                                       : MP_OK;
    if (peer->state == MP_PEER_SILENT)
        mp_log_warn("cluster", "rank %u answers again", arrival->from);
    peer->state = MP_PEER_LIVE;
    peer->heard_ns = mp_rank_now_ns(rank);
    return take(rank, arrival->from, &message);
}

enum mp_status mp_rank_receive(struct mp_rank *rank, bool *any_p)
{
    struct mp_transport *transport = rank->config.transport;
    struct mp_arrival arrival;
    bool found = true;
    enum mp_status status = MP_OK;

    *any_p = false;
    if (mp_rank_now_ns(rank) - rank->beat_ns >= BEAT_NS) {
        rank->beat_ns = mp_rank_now_ns(rank);
        mp_rank_tell_all(rank, MP_MESSAGE_BEAT, rank->report.epoch);
        mp_rank_tell_results(rank);
    }
    while (found && status == MP_OK) {
        rank->found_ns = mp_timeline_now_ns(rank->config.engine->timeline);
        status = transport->ops->poll(transport, rank->message_bytes_max, &arrival, &found);
        if (status == MP_OK && found) {
            *any_p = true;
            status = take_arrival(rank, &arrival);
        }
    }
    return status;
}

/* ---- nothing to compute */

/* Has everybody who is there said that it asks nothing any more? */
static bool all_done(struct mp_rank *rank)
{
    bool all = true;

    for (uint32_t p = 0; p < rank->ranks; p++) {
        if (p == rank->self || rank->peer[p].done)
            continue;
        mp_rank_check_silence(rank, p, 0);
        all &= rank->peer[p].state != MP_PEER_LIVE && !rank->peer[p].returning;
    }
    return all;
}

/* Tell each that this rank asks nothing any more, after all of its results. True: those who are
 * there have been told. */
static bool tell_done(struct mp_rank *rank)
{
    struct mp_message_head head;
    bool all = true;

    mp_rank_tell_results(rank);
    mp_rank_head(rank, &head, MP_MESSAGE_DONE, sizeof(head));
    for (uint32_t p = 0; p < rank->ranks; p++) {
        struct mp_peer *peer = &rank->peer[p];

        if (p == rank->self || peer->told_done)
            continue;
        if (peer->told == rank->own.count)
            peer->told_done = mp_rank_send(rank, p, &head, sizeof(head));
        mp_rank_check_silence(rank, p, 0);
        all &= peer->told_done || peer->state != MP_PEER_LIVE;
    }
    return all;
}

enum mp_status mp_rank_idle(struct mp_rank *rank, uint64_t until_ns)
{
    struct mp_transport *transport = rank->config.transport;
    const volatile sig_atomic_t *cancel = rank->config.engine->cancel;
    enum mp_status status = MP_OK;
    bool any;

    rank->leaving = until_ns == UINT64_MAX;
    while (status == MP_OK) {
        status = mp_rank_receive(rank, &any);
        if (status == MP_OK)
            status = mp_rank_follow_epoch(rank);
        if (status == MP_OK)
            status = mp_rank_follow_restart(rank);
        if (rank->given_count > 0)
            break;
        if (mp_rank_now_ns(rank) < until_ns)
            mp_rank_want(rank);
        if (status == MP_OK && cancel != NULL && *cancel)
            return mp_fail(MP_ERR_CANCELED, "E_CANCELED", "interrupted");
        if (rank->leaving ? tell_done(rank) && all_done(rank) && !mp_rank_expects(rank)
                          : mp_rank_now_ns(rank) >= until_ns)
            break;
        if (status == MP_OK && !any)
            transport->ops->wait(transport, WAIT_NS);
    }
    return status;
}

/* ---- life cycle */

static enum mp_status allocate_peers(struct mp_rank *rank)
{
    const struct mp_message_limits *l = &rank->limits;
    const uint64_t call =
        mp_message_call_bytes(l, l->experts, l->tokens_max, l->tokens_max * l->top_k);

    rank->track = rank->config.engine->timeline != NULL
                      ? mp_timeline_add_track(rank->config.engine->timeline, "messages")
                      : 0;
    for (uint32_t p = 0; p < rank->ranks; p++) {
        struct mp_peer *peer = &rank->peer[p];

        peer->track = rank->config.engine->timeline != NULL && p != rank->self
                          ? mp_timeline_add_track(rank->config.engine->timeline, tracks[p])
                          : 0;
        if (p == rank->self)
            continue;
        peer->call.message = malloc(call);
        peer->call.token = calloc(l->tokens_max, sizeof(uint32_t));
        if (peer->call.message == NULL || peer->call.token == NULL)
            return mp_fail_no_memory("calls to other ranks", call);
    }
    return MP_OK;
}

static enum mp_status allocate(struct mp_rank *rank)
{
    const struct mp_message_limits *l = &rank->limits;
    const uint64_t rows = (uint64_t)l->tokens_max * l->top_k, ids = rank->ids;

    rank->peer = calloc(rank->ranks, sizeof(*rank->peer));
    rank->where = calloc(l->experts, sizeof(uint32_t));
    rank->place = calloc(l->tokens_max, sizeof(uint32_t));
    rank->served = calloc(rows, l->hidden * sizeof(float));
    rank->out = malloc(rank->message_bytes_max);
    rank->list = calloc(l->experts, sizeof(*rank->list));
    rank->take = calloc(l->experts, sizeof(*rank->take));
    rank->list_tokens = calloc(rows, sizeof(uint32_t));
    rank->list_ranks = calloc(rows, sizeof(uint32_t));
    rank->tokens = calloc(ids, sizeof(double));
    rank->calls = calloc(ids, sizeof(double));
    rank->sum_tokens = calloc(rank->ranks * ids, sizeof(double));
    rank->sum_calls = calloc(rank->ranks * ids, sizeof(double));
    rank->rank_seconds = calloc(rank->ranks, sizeof(double));
    rank->rank_steps = calloc(rank->ranks, sizeof(double));
    rank->call_s = calloc(rank->ranks, rank->ranks * sizeof(double));
    rank->row_s = calloc(rank->ranks, rank->ranks * sizeof(double));
    rank->slots = calloc(rank->ranks, sizeof(uint32_t));
    rank->keeps = calloc(ids, 1);
    rank->drops = calloc(ids, 1);
    rank->seen = calloc(ids, 1);
    rank->no_fetch = calloc(ids, 1);
    rank->live = calloc(ids, sizeof(uint64_t));
    rank->left = calloc(ids, sizeof(uint64_t));
    rank->wanted = calloc(ids, sizeof(uint64_t));
    rank->told = calloc(ids, sizeof(uint64_t));
    rank->wanted_move = calloc(ids, sizeof(uint32_t));
    rank->expert = malloc(l->expert_bytes);
    if (rank->peer == NULL || rank->where == NULL || rank->place == NULL || rank->served == NULL ||
        rank->out == NULL || rank->list == NULL || rank->take == NULL ||
        rank->list_tokens == NULL || rank->list_ranks == NULL || rank->tokens == NULL ||
        rank->calls == NULL || rank->sum_tokens == NULL || rank->sum_calls == NULL ||
        rank->rank_seconds == NULL || rank->rank_steps == NULL || rank->call_s == NULL ||
        rank->row_s == NULL || rank->slots == NULL || rank->keeps == NULL || rank->drops == NULL ||
        rank->seen == NULL || rank->no_fetch == NULL || rank->live == NULL || rank->left == NULL ||
        rank->wanted == NULL || rank->told == NULL || rank->wanted_move == NULL ||
        rank->expert == NULL)
        return mp_fail_no_memory("a rank", rank->message_bytes_max + rows * l->hidden * 4 +
                                               2 * rank->ranks * ids * sizeof(double));
    return allocate_peers(rank);
}

/* Bytes of the largest expert: its pieces, of all slices. */
static uint64_t largest_expert(const struct mp_weights *weights, uint32_t experts)
{
    const uint32_t slices = weights->slices.count;
    uint64_t most = 0;

    for (uint32_t id = 0; id < experts; id++) {
        uint64_t bytes = 0;

        for (uint32_t u = id * slices; u < (id + 1) * slices; u++) {
            for (uint32_t k = 0; k < weights->units[u].piece_count; k++)
                bytes += weights->units[u].pieces[k].bytes;
        }
        most = bytes > most ? bytes : most;
    }
    return most;
}

enum mp_status mp_rank_create(const struct mp_rank_config *config, struct mp_rank **rank_p)
{
    const struct mp_model_config *m = config->engine->model;
    struct mp_rank *rank;
    enum mp_status status;

    if (config->transport->ranks > MP_RANKS_MAX)
        return mp_fail(MP_ERR_CONFIG, "E_CLUSTER_SIZE", "%u ranks, at most %u are supported",
                       config->transport->ranks, MP_RANKS_MAX);
    rank = calloc(1, sizeof(*rank));
    if (rank == NULL)
        return mp_fail_no_memory("a rank", sizeof(*rank));
    rank->config = *config;
    rank->self = config->transport->rank;
    rank->ranks = config->transport->ranks;
    rank->ids = m->moe_layers * m->experts;
    rank->limits = (struct mp_message_limits){
        .ranks = rank->ranks,
        .layers = m->moe_layers,
        .experts = m->experts,
        .top_k = m->experts_per_token,
        .hidden = m->hidden,
        .tokens_max = config->engine->tokens_max,
        .expert_bytes = largest_expert(config->engine->weights, rank->ids),
    };
    mp_rank_fill_peers(rank);
    status = mp_message_bytes_max(&rank->limits, &rank->message_bytes_max);
    if (status == MP_OK)
        status = allocate(rank);
    if (status != MP_OK) {
        mp_rank_destroy(rank);
        return status;
    }
    *rank_p = rank;
    return MP_OK;
}

void mp_rank_destroy(struct mp_rank *rank)
{
    if (rank == NULL)
        return;
    for (uint32_t p = 0; rank->peer != NULL && p < rank->ranks; p++) {
        free(rank->peer[p].call.message);
        free(rank->peer[p].call.token);
    }
    mp_placement_fini(&rank->now);
    mp_placement_fini(&rank->next);
    free(rank->peer);
    free(rank->where);
    free(rank->place);
    free(rank->served);
    free(rank->out);
    free(rank->list);
    free(rank->take);
    free(rank->list_tokens);
    free(rank->list_ranks);
    free(rank->tokens);
    free(rank->calls);
    free(rank->sum_tokens);
    free(rank->sum_calls);
    free(rank->rank_seconds);
    free(rank->rank_steps);
    free(rank->call_s);
    free(rank->row_s);
    free(rank->slots);
    free(rank->keeps);
    free(rank->drops);
    free(rank->seen);
    free(rank->no_fetch);
    free(rank->live);
    free(rank->wanted);
    free(rank->told);
    free(rank->left);
    free(rank->wanted_move);
    free(rank->expert);
    free(rank->all.list);
    free(rank->own.list);
    free(rank);
}

const struct mp_peers *mp_rank_peers(struct mp_rank *rank)
{
    return &rank->peers;
}

void mp_rank_report(const struct mp_rank *rank, struct mp_rank_report *report_p)
{
    *report_p = rank->report;
    report_p->read_ns = rank->reads.first_ns;
    report_p->read_more_ns = rank->reads.more_ns;
    report_p->fetch_ns = rank->fetch_ns;
    report_p->fill_ns = rank->fill_ns;
    if (rank->engine != NULL) {
        const struct mp_counters *counters = mp_engine_counters(rank->engine);

        report_p->read_bytes = counters->load_bytes + counters->prefetch_bytes;
    }
    for (uint32_t id = 0; id < rank->ids && rank->placed; id++)
        report_p->kept += mp_rank_keeps(rank, rank->self, id);
    for (uint32_t p = 0; p < rank->ranks; p++)
        report_p->silent += rank->peer[p].state == MP_PEER_SILENT;
}

void mp_rank_call_ns(const struct mp_rank *rank, uint32_t peer, double *fixed_p, double *row_p)
{
    *fixed_p = rank->peer[peer].fixed_ns;
    *row_p = rank->peer[peer].row_ns;
}
