/*
 * Placements: the first one, and in each epoch a new one if it pays. The lowest live rank
 * schedules: it gets what all ranks used, decides when all have said so, or a quarter of an epoch
 * later without, and sends the placement; each rank gets what it is to keep, in the background;
 * when all have it, the scheduler lets all switch, each between two layers. If a rank dies before
 * that which was to keep some, or it takes too long, all stay with what they had. If one dies that
 * was the only one to keep an expert, there is a new placement at once: whoever gets such an expert
 * reads it from the model's file, as for the first one. A rank that missed any of this is asked for
 * what it does not keep, or does not ask who keeps it: that takes time and changes no result. Its
 * next BEAT shows it, and it gets the placement in use.
 */
#include <string.h>

#include "engine/cluster/rank_int.h"
#include "policy/pager/pager.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

/* Before anything was measured. */
#define UNKNOWN_CALL_S 1e-3
#define UNKNOWN_LOAD_S 1e-2
/* A placement that is not everywhere after so many deadlines is given up. */
#define COPY_DEADLINES 12
/* Part of an epoch that a decision waits for what others used. */
#define COUNTS_WAIT 4

uint32_t mp_rank_last_epoch(const struct mp_rank *rank)
{
    return rank->next_epoch > rank->report.epoch ? rank->next_epoch : rank->report.epoch;
}

uint32_t mp_rank_scheduler(const struct mp_rank *rank)
{
    uint32_t p = 0;

    while (p < rank->self && rank->peer[p].state != MP_PEER_LIVE)
        p++;
    return p;
}

static bool is_dead(const struct mp_rank *rank, uint32_t p)
{
    return p != rank->self && rank->peer[p].state == MP_PEER_LOST;
}

static double known_or(double value, double other)
{
    return value > 0 ? value : other;
}

/* The mean of what ranks have measured stands for pairs that nobody has. */
static double mean_call_s(const struct mp_rank *rank)
{
    double sum = 0;
    uint32_t count = 0;

    for (uint32_t pair = 0; pair < rank->ranks * rank->ranks; pair++) {
        sum += rank->call_s[pair];
        count += rank->call_s[pair] > 0;
    }
    return count > 0 ? sum / count : UNKNOWN_CALL_S;
}

/* The same of reads. */
static double mean_load_s(const struct mp_rank *rank)
{
    double sum = 0;
    uint32_t count = 0;

    for (uint32_t p = 0; p < rank->ranks; p++) {
        sum += rank->peer[p].load_s;
        count += rank->peer[p].load_s > 0;
    }
    return count > 0 ? sum / count : UNKNOWN_LOAD_S;
}

/* What this rank has measured of calls to others, waiting there included. */
static void put_measured(const struct mp_rank *rank, double *call_s, double *row_s)
{
    for (uint32_t p = 0; p < rank->ranks; p++) {
        call_s[p] = rank->peer[p].fixed_ns / 1e9;
        row_s[p] = rank->peer[p].row_ns / 1e9;
    }
}

/* Arrays of the facts that are made for one decision. */
struct numbers {
    uint32_t first_device[MP_RANKS_MAX + 1], slots[MP_RANKS_MAX];
    double call_s[MP_RANKS_MAX * MP_RANKS_MAX], token_s[MP_RANKS_MAX * MP_RANKS_MAX];
    double page_s[MP_RANKS_MAX], copy_s[MP_RANKS_MAX];
};

static void fill_facts(struct mp_rank *rank, struct numbers *n)
{
    const double mean_s = mean_call_s(rank), read_s = mean_load_s(rank);
    double seconds = 0;

    for (uint32_t p = 0; p < rank->ranks; p++) {
        const struct mp_peer *peer = &rank->peer[p];

        n->first_device[p + 1] = p + 1;
        n->slots[p] = mp_rank_is_there(rank, p) ? peer->about.slots : 0;
        n->copy_s[p] = known_or(peer->load_s, read_s);
        n->page_s[p] = peer->about.reads ? n->copy_s[p] : -1;
        if (is_dead(rank, p)) { /* its users ask for nothing */
            memset(rank->sum_tokens + (size_t)p * rank->ids, 0, rank->ids * sizeof(double));
            memset(rank->sum_calls + (size_t)p * rank->ids, 0, rank->ids * sizeof(double));
        }
        seconds = rank->rank_seconds[p] > seconds ? rank->rank_seconds[p] : seconds;
        for (uint32_t q = 0; q < rank->ranks; q++) {
            const uint32_t pair = p * rank->ranks + q;

            n->call_s[pair] = known_or(rank->call_s[pair], mean_s);
            n->token_s[pair] = rank->row_s[pair];
        }
    }
    rank->facts = (struct mp_place_facts){
        .layers = rank->limits.layers,
        .experts = rank->limits.experts,
        .servers = rank->ranks,
        .first_device = n->first_device,
        .slots = n->slots,
        .tokens = rank->sum_tokens,
        .calls = rank->sum_calls,
        .seconds = seconds > 0 ? seconds : 1,
        .steps = rank->rank_steps,
        .call_s = n->call_s,
        .token_s = n->token_s,
        .page_s = n->page_s,
        .copy_s = n->copy_s,
        .seed = rank->config.seed + rank->next_epoch,
    };
}

enum mp_status mp_rank_place_first(struct mp_rank *rank)
{
    struct numbers numbers = { { 0 }, { 0 }, { 0 }, { 0 }, { 0 }, { 0 } };
    enum mp_status status;

    fill_facts(rank, &numbers);
    status = mp_placement_init(&rank->now, &rank->facts);
    if (status == MP_OK)
        status = mp_placement_init(&rank->next, &rank->facts);
    if (status == MP_OK)
        status = mp_place(rank->config.place, &rank->facts, &rank->now);
    if (status != MP_OK)
        return status;
    rank->placed = true;
    rank->stats_ns = rank->epoch_ns = mp_rank_now_ns(rank);
    mp_rank_keep(rank);
    return MP_OK;
}

/* ---- what was used */

static void add_stats(struct mp_rank *rank, uint32_t from, const struct mp_message_stats *stats,
                      const double *tokens, const double *calls)
{
    const size_t at = (size_t)from * rank->ids;

    /* What was seen under earlier requests fades. */
    rank->rank_seconds[from] = rank->rank_seconds[from] / 2 + stats->seconds;
    rank->rank_steps[from] = rank->rank_steps[from] / 2 + stats->steps;
    for (uint32_t id = 0; id < rank->ids; id++) {
        rank->sum_tokens[at + id] = rank->sum_tokens[at + id] / 2 + tokens[id];
        rank->sum_calls[at + id] = rank->sum_calls[at + id] / 2 + calls[id];
    }
}

void mp_rank_take_stats(struct mp_rank *rank, uint32_t from, const struct mp_message *message)
{
    struct mp_peer *peer = &rank->peer[from];

    peer->counted = true;
    add_stats(rank, from, message->stats, message->tokens, message->calls);
    peer->load_s = message->stats->load_s;
    memcpy(rank->call_s + (size_t)from * rank->ranks, message->call_s,
           rank->ranks * sizeof(double));
    memcpy(rank->row_s + (size_t)from * rank->ranks, message->row_s, rank->ranks * sizeof(double));
}

static void send_stats(struct mp_rank *rank, uint32_t to)
{
    const struct mp_message_stats seen = {
        .seconds = (double)(mp_rank_now_ns(rank) - rank->stats_ns) / 1e9,
        .steps = rank->steps,
        .load_s = mp_rank_reads(rank).first_ns / 1e9,
    };
    struct mp_message_head *head = rank->out;
    struct mp_message_stats *stats = (void *)(head + 1);
    double *tokens = (void *)(stats + 1), *calls = tokens + rank->ids;
    const size_t row = (size_t)rank->self * rank->ranks;
    const uint64_t bytes =
        sizeof(*head) + sizeof(*stats) + 2 * (rank->ids + rank->ranks) * sizeof(double);

    rank->stats_ns = mp_rank_now_ns(rank);
    rank->peer[rank->self].load_s = seen.load_s;
    rank->steps = 0;
    put_measured(rank, rank->call_s + row, rank->row_s + row);
    if (to == rank->self) {
        add_stats(rank, to, &seen, rank->tokens, rank->calls);
    } else {
        mp_rank_head(rank, head, MP_MESSAGE_STATS, bytes);
        *stats = seen;
        memcpy(tokens, rank->tokens, rank->ids * sizeof(double));
        memcpy(calls, rank->calls, rank->ids * sizeof(double));
        put_measured(rank, calls + rank->ids, calls + rank->ids + rank->ranks);
        (void)mp_rank_send(rank, to, head, bytes);
    }
    memset(rank->tokens, 0, rank->ids * sizeof(double));
    memset(rank->calls, 0, rank->ids * sizeof(double));
}

/* ---- a new placement */

static void begin_copying(struct mp_rank *rank, uint32_t from, uint32_t epoch)
{
    rank->next_epoch = epoch;
    rank->proposer = from;
    rank->copying = true;
    rank->peer[rank->self].ready = false;
    mp_rank_begin_move(rank, 2 * epoch);
}

/* The placement that was to come does not: what has left comes back. */
static void go_back(struct mp_rank *rank)
{
    rank->proposed = rank->copying = false;
    rank->orphans = true; /* if it was to place some, they still have to be */
    mp_rank_begin_move(rank, 2 * rank->next_epoch + 1);
}

static void give_up(struct mp_rank *rank)
{
    mp_rank_tell_all(rank, MP_MESSAGE_GIVEUP, rank->next_epoch);
    go_back(rank);
}

static void send_placement(struct mp_rank *rank, uint32_t to, const struct mp_placement *placement,
                           uint32_t epoch)
{
    const uint64_t values = (uint64_t)rank->ranks * rank->ids;
    const uint64_t bytes = sizeof(struct mp_message_head) + values * sizeof(uint16_t);
    struct mp_message_head *head = rank->out;

    mp_rank_head(rank, head, MP_MESSAGE_PLACE, bytes);
    head->epoch = epoch;
    memcpy(head + 1, placement->device, values * sizeof(uint16_t));
    (void)mp_rank_send(rank, to, head, bytes);
}

/* What another rank said is its epoch: if the one in use here passed it by, it switches at once, as
 * all others have done. What it is to drop stays there until another one has it, as always. */
void mp_rank_take_beat(struct mp_rank *rank, uint32_t from, uint32_t epoch)
{
    struct mp_message_head head;

    if (!rank->placed || rank->proposed || mp_rank_scheduler(rank) != rank->self ||
        epoch >= rank->report.epoch)
        return;
    send_placement(rank, from, &rank->now, rank->report.epoch);
    mp_rank_head(rank, &head, MP_MESSAGE_SWITCH, sizeof(head));
    (void)mp_rank_send(rank, from, &head, sizeof(head));
}

/* `always`: a new placement, worse or not. A scheduler that died may have used the next number. */
static void decide(struct mp_rank *rank, bool always)
{
    const uint32_t epoch = mp_rank_last_epoch(rank) + 1 + rank->report.lost;
    const struct mp_place_ops *place = rank->config.place;
    const double horizon_s = (double)rank->config.horizon_ns / 1e9;
    struct numbers numbers = { { 0 }, { 0 }, { 0 }, { 0 }, { 0 }, { 0 } };

    rank->due = false;
    for (uint32_t p = 0; p < rank->ranks; p++)
        rank->peer[p].counted = false;
    if (rank->copying) /* of another scheduler, who is silent */
        give_up(rank);
    fill_facts(rank, &numbers);
    if (mp_place(place, &rank->facts, &rank->next) != MP_OK) {
        if (!rank->stays) /* said once: each epoch finds the same until a rank comes back */
            mp_log_warn("cluster", "the placement stays: %s", mp_error_last()->text);
        rank->stays = true;
        mp_error_clear();
        return;
    }
    rank->stays = false;
    if (!always && !mp_place_adopts(place, &rank->facts, &rank->now, &rank->next, horizon_s))
        return;
    rank->proposed = true;
    for (uint32_t p = 0; p < rank->ranks; p++) {
        rank->peer[p].ready = false;
        if (p != rank->self)
            send_placement(rank, p, &rank->next, epoch);
    }
    begin_copying(rank, rank->self, epoch);
}

void mp_rank_take_place(struct mp_rank *rank, uint32_t from, const struct mp_message *message)
{
    if (!rank->placed || message->head->epoch <= mp_rank_last_epoch(rank))
        return;
    rank->proposed = false; /* there is another scheduler */
    memcpy(rank->next.device, message->device, (size_t)rank->ranks * rank->ids * sizeof(uint16_t));
    begin_copying(rank, from, message->head->epoch);
}

void mp_rank_take_switch(struct mp_rank *rank, uint32_t epoch)
{
    const struct mp_placement before = rank->now;
    const bool went_back = !rank->copying;

    if (epoch != rank->next_epoch || epoch <= rank->report.epoch)
        return;
    rank->now = rank->next;
    rank->next = before;
    rank->copying = false;
    rank->report.epoch = epoch;
    rank->report.migrations++;
    if (went_back) /* and all others did not */
        mp_rank_begin_move(rank, 2 * epoch);
    else
        mp_rank_keep(rank);
}

void mp_rank_take_give_up(struct mp_rank *rank, uint32_t epoch)
{
    if (rank->copying && epoch == rank->next_epoch)
        go_back(rank);
}

static bool all_ready(const struct mp_rank *rank)
{
    bool all = true;

    for (uint32_t p = 0; p < rank->ranks; p++)
        all &= !mp_rank_is_there(rank, p) || rank->peer[p].ready;
    return all;
}

static void follow_copies(struct mp_rank *rank)
{
    struct mp_message_head head;

    mp_pager_fill_placed(mp_engine_pager(rank->engine), mp_rank_comes_elsewhere, rank);
    mp_rank_follow_fetches(rank);
    mp_rank_tell_copies(rank);
    if (!rank->copying)
        return;
    if (!rank->peer[rank->self].ready && mp_rank_has_copied(rank)) {
        rank->peer[rank->self].ready = true;
        mp_rank_head(rank, &head, MP_MESSAGE_READY, sizeof(head));
        head.epoch = rank->next_epoch;
        if (rank->proposer != rank->self) /* who may schedule before this rank knows it */
            (void)mp_rank_send(rank, rank->proposer, &head, sizeof(head));
    }
    if (!rank->proposed)
        return;
    if (all_ready(rank)) {
        rank->proposed = false;
        mp_rank_tell_all(rank, MP_MESSAGE_SWITCH, rank->next_epoch);
        mp_rank_take_switch(rank, rank->next_epoch);
    } else if (mp_rank_now_ns(rank) - rank->epoch_ns > COPY_DEADLINES * rank->config.deadline_ns) {
        give_up(rank);
    }
}

static bool all_placed(const struct mp_rank *rank)
{
    bool all = true;

    for (uint32_t p = 0; p < rank->ranks; p++)
        all &= !mp_rank_is_there(rank, p) || rank->peer[p].placed;
    return all;
}

/* Is anything of the placement that comes on a dead rank, or was it a dead one's? */
static bool cannot_come(const struct mp_rank *rank)
{
    bool dead = is_dead(rank, rank->proposer);

    for (uint32_t p = 0; p < rank->ranks && !dead; p++) {
        for (uint32_t id = 0; id < rank->ids && is_dead(rank, p) && !dead; id++)
            dead = rank->next.device[(size_t)p * rank->ids + id] != 0;
    }
    return dead;
}

/* Is an expert kept by dead ranks only? */
static bool any_orphan(const struct mp_rank *rank)
{
    bool any = false;

    for (uint32_t id = 0; id < rank->ids && !any; id++) {
        bool died = false, lives = false;

        for (uint32_t p = 0; p < rank->ranks; p++) {
            died |= is_dead(rank, p) && mp_rank_keeps(rank, p, id);
            lives |= !is_dead(rank, p) && mp_rank_keeps(rank, p, id);
        }
        any = died && !lives;
    }
    return any;
}

/* True: a placement was proposed in which experts that only dead ranks kept are somewhere again, if
 * there is room. */
static bool place_orphans(struct mp_rank *rank)
{
    if (!rank->orphans || rank->proposed || mp_rank_scheduler(rank) != rank->self)
        return false;
    rank->orphans = false;
    if (!any_orphan(rank) || (!rank->config.place->calls && rank->config.reads))
        return false;
    rank->epoch_ns = mp_rank_now_ns(rank);
    decide(rank, true);
    return true;
}

/* Who has nothing more to run says nothing more of it. */
static bool all_counted(const struct mp_rank *rank)
{
    bool all = true;

    for (uint32_t p = 0; p < rank->ranks; p++) {
        const struct mp_peer *peer = &rank->peer[p];

        all &= p == rank->self || !mp_rank_is_there(rank, p) || peer->done || peer->counted;
    }
    return all;
}

enum mp_status mp_rank_follow_epoch(struct mp_rank *rank)
{
    const uint64_t now = mp_rank_now_ns(rank);
    const uint32_t scheduler = mp_rank_scheduler(rank);

    if (!rank->placed)
        return MP_OK;
    if (rank->shrunk && rank->copying && cannot_come(rank))
        go_back(rank);
    else if (rank->shrunk) /* nobody relies on what the dead one has, and it on nobody */
        mp_rank_keep(rank);
    rank->shrunk = false;
    follow_copies(rank);
    if (rank->welcomes && scheduler != rank->self)
        rank->welcomes = false;
    if (rank->welcomes && rank->proposed) /* who was not there has never heard of it */
        give_up(rank);
    if (rank->welcomes && all_placed(rank)) {
        rank->welcomes = false;
        rank->epoch_ns = now;
        decide(rank, true);
        return MP_OK;
    }
    if (place_orphans(rank))
        return MP_OK;
    if (rank->config.epoch_ns == 0 || rank->leaving || rank->proposed)
        return MP_OK;
    if (now - rank->epoch_ns >= rank->config.epoch_ns) {
        rank->epoch_ns = now;
        send_stats(rank, scheduler);
        rank->due = rank->config.place->migrates || rank->config.always_adopts;
    }
    if (scheduler == rank->self && rank->due &&
        (all_counted(rank) || now - rank->epoch_ns >= rank->config.epoch_ns / COUNTS_WAIT))
        decide(rank, rank->config.always_adopts);
    return MP_OK;
}
