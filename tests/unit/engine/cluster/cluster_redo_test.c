/*
 * Calls that are not answered, without `reads`: who is asked for what then, and that each result is
 * where it belongs. Rank 0 is real; the others answer as the test says, on a clock of its own.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/cluster/rank_int.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

#define RANKS 5u
#define EXPERTS 6u
#define LAYERS 2u
#define LAYER 1u
#define TOKENS 4u
#define TOP_K 3u
#define HIDDEN 3u
#define MS UINT64_C(1000000)
#define DEADLINE_NS (100 * MS)

enum way { ANSWERS, REFUSES, DIES, STANDS_STILL };

struct letter {
    struct mp_arrival arrival;
    char *data;
};

struct world {
    struct mp_transport transport;
    struct mp_clock_virtual clock;
    struct mp_engine_config engine;
    struct mp_rank rank;
    struct mp_peer peers[RANKS];
    uint16_t now[RANKS * LAYERS * EXPERTS], next[RANKS * LAYERS * EXPERTS];
    uint64_t live[LAYERS * EXPERTS];
    uint32_t where[EXPERTS], place[TOKENS];
    char out[4096];
    float input[TOKENS * HIDDEN], results[TOKENS * TOP_K * HIDDEN];
    enum way way[RANKS];
    uint64_t full_ns[RANKS];   /* until when its queue is full */
    uint64_t slow_ns[RANKS];   /* until when its answers are held */
    uint64_t have_ns;          /* when rank 0 hears that rank 3 has expert 1; 0: never */
    uint32_t asked[RANKS];     /* bits of the experts that it was asked for last */
    uint32_t tokens[RANKS];    /* and of how many tokens */
    uint32_t times[RANKS];     /* calls that it got */
    struct letter letters[64]; /* to rank 0 */
    uint32_t first, count;
};

static uint64_t now_ns(struct world *w)
{
    return mp_clock_now_ns(&w->clock.super);
}

static void put(struct world *w, uint32_t from, const void *data, uint64_t bytes)
{
    struct letter *letter = &w->letters[w->count++];

    CHECK(w->count < 64);
    letter->data = malloc(bytes);
    CHECK(letter->data != NULL);
    memcpy(letter->data, data, bytes);
    letter->arrival = (struct mp_arrival){ .from = from, .data = letter->data, .bytes = bytes };
}

/* Expert e multiplies by e + 1. */
static void answer(struct world *w, uint32_t from, const struct mp_message *message)
{
    struct {
        struct mp_message_head head;
        float values[TOKENS * TOP_K * HIDDEN];
    } reply = { .head = *message->head };
    uint32_t row = 0;

    reply.head.kind = MP_MESSAGE_REPLY;
    reply.head.bytes = (uint32_t)mp_message_reply_bytes(&w->rank.limits, message->head->rows);
    for (uint32_t g = 0; g < message->head->groups; g++) {
        for (uint32_t r = 0; r < message->groups[g].rows; r++, row++) {
            const uint32_t token = message->rows[row] / TOP_K;

            for (uint32_t h = 0; h < HIDDEN; h++)
                reply.values[row * HIDDEN + h] =
                    message->values[token * HIDDEN + h] * (float)(message->groups[g].expert + 1);
        }
    }
    put(w, from, &reply, reply.head.bytes);
}

static void refuse(struct world *w, uint32_t from, uint64_t id)
{
    const struct mp_message_head head = {
        .magic = MP_MESSAGE_MAGIC, .kind = MP_MESSAGE_REFUSE, .bytes = sizeof(head), .id = id
    };

    put(w, from, &head, sizeof(head));
}

static enum mp_status world_send(struct mp_transport *transport, uint32_t to, const void *data,
                                 uint64_t bytes)
{
    struct world *w = (struct world *)transport;
    struct mp_message message;

    CHECK_EQ(mp_message_parse(data, bytes, &w->rank.limits, &message), MP_OK);
    if (message.head->kind != MP_MESSAGE_CALL)
        return MP_OK;
    if (now_ns(w) < w->full_ns[to])
        return MP_ERR_BUSY;
    w->times[to]++;
    w->tokens[to] = message.head->tokens;
    w->asked[to] = 0;
    for (uint32_t g = 0; g < message.head->groups; g++)
        w->asked[to] |= 1u << message.groups[g].expert;
    if (w->way[to] == ANSWERS)
        answer(w, to, &message);
    else if (w->way[to] == REFUSES)
        refuse(w, to, message.head->id);
    else if (w->way[to] == DIES)
        w->letters[w->count++].arrival = (struct mp_arrival){ .from = to, .lost = true };
    return MP_OK;
}

static enum mp_status world_poll(struct mp_transport *transport, uint64_t bytes_max,
                                 struct mp_arrival *arrival, bool *found)
{
    struct world *w = (struct world *)transport;

    (void)bytes_max;
    if (w->have_ns > 0 && now_ns(w) >= w->have_ns) {
        w->have_ns = 0;
        w->live[LAYER * EXPERTS + 1] |= 1 << 3;
    }
    *found = w->first < w->count && now_ns(w) >= w->slow_ns[w->letters[w->first].arrival.from];
    if (*found)
        *arrival = w->letters[w->first++].arrival;
    return MP_OK;
}

static void world_wait(struct mp_transport *transport, uint64_t ns)
{
    mp_clock_virtual_advance(&((struct world *)transport)->clock, ns);
}

static const struct mp_transport_ops ops = { .send = world_send,
                                             .poll = world_poll,
                                             .wait = world_wait };

/* Rank p keeps the experts whose bits are set in keeps[p]. */
static void world_init(struct world *w, const uint32_t *keeps)
{
    const struct mp_message_limits limits = { RANKS, LAYERS, EXPERTS, TOP_K, HIDDEN, TOKENS, 64 };

    memset(w, 0, sizeof(*w));
    mp_clock_virtual_init(&w->clock);
    mp_clock_virtual_advance(&w->clock, MS);
    w->transport = (struct mp_transport){ .ops = &ops, .ranks = RANKS };
    w->engine.clock = &w->clock.super;
    w->rank = (struct mp_rank){
        .config = { .transport = &w->transport,
                    .engine = &w->engine,
                    .place = mp_place_find("uniform"),
                    .deadline_ns = DEADLINE_NS },
        .limits = limits,
        .ranks = RANKS,
        .ids = LAYERS * EXPERTS,
        .message_bytes_max = sizeof(w->out),
        .peer = w->peers,
        .now.device = w->now,
        .next.device = w->next,
        .placed = true,
        .where = w->where,
        .place = w->place,
        .out = w->out,
        .live = w->live,
    };
    mp_rank_fill_peers(&w->rank);
    for (uint32_t p = 0; p < RANKS; p++) {
        w->peers[p].call.message = malloc(sizeof(w->out));
        w->peers[p].call.token = calloc(TOKENS, sizeof(uint32_t));
        for (uint32_t e = 0; e < EXPERTS; e++)
            w->now[p * w->rank.ids + LAYER * EXPERTS + e] = keeps[p] >> e & 1;
    }
    for (uint32_t i = 0; i < TOKENS * HIDDEN; i++)
        w->input[i] = 1.5f + (float)i;
}

static void world_fini(struct world *w)
{
    for (uint32_t i = 0; i < w->count; i++)
        free(w->letters[i].data);
    for (uint32_t p = 0; p < RANKS; p++) {
        free(w->peers[p].call.message);
        free(w->peers[p].call.token);
    }
}

/* Tokens 0 to 3 have experts {0, 1}, {1, 2}, {2, 3} and {3, 0}, and token 2 expert 4, too. */
static const uint32_t tokens_of[5][2] = { { 0, 3 }, { 0, 1 }, { 1, 2 }, { 2, 3 }, { 2 } };
static const uint32_t ranks_of[5][2] = { { 0, 1 }, { 1, 0 }, { 1, 0 }, { 1, 0 }, { 2 } };

/* One layer whose expert e rank holder[e] is asked for. */
static enum mp_status layer(struct world *w, const uint32_t *holder, uint32_t count)
{
    const struct mp_peers *peers = mp_rank_peers(&w->rank);
    struct mp_expert_work work[5];
    enum mp_status status;

    for (uint32_t e = 0; e < count; e++) {
        work[e] = (struct mp_expert_work){ .expert = e,
                                           .rows = { tokens_of[e], ranks_of[e], e < 4 ? 2 : 1 } };
        w->where[e] = holder[e];
    }
    CHECK_EQ(peers->ask(&w->rank, LAYER, w->input, work, count), MP_OK);
    status = peers->collect(&w->rank, w->results);
    for (uint32_t e = 0; e < count && status == MP_OK; e++) {
        for (uint32_t r = 0; r < work[e].rows.count; r++) {
            const uint32_t t = tokens_of[e][r], at = (t * TOP_K + ranks_of[e][r]) * HIDDEN;

            for (uint32_t h = 0; h < HIDDEN; h++)
                CHECK(w->results[at + h] == w->input[t * HIDDEN + h] * (float)(e + 1));
        }
    }
    return status;
}

static const uint32_t all_1[5] = { 1, 1, 1, 1, 1 };

/* Rank 1 kept all five; 2, 3 and 4 have them between them: who has most of what is left is asked
 * for that, with the rows of it only. */
static void no_other_rank_has_all(void)
{
    static const uint32_t keeps[RANKS] = { 0, 31, 1 << 0 | 1 << 1, 1 << 1 | 1 << 2 | 1 << 3,
                                           1 << 4 };
    static const enum way ways[] = { DIES, REFUSES, STANDS_STILL };
    struct world w;

    for (uint32_t i = 0; i < 3; i++) {
        world_init(&w, keeps);
        w.way[1] = ways[i];
        CHECK_EQ(layer(&w, all_1, 5), MP_OK);
        CHECK(w.asked[1] == 31 && w.tokens[1] == 4);
        CHECK(w.asked[3] == (1 << 1 | 1 << 2 | 1 << 3) && w.tokens[3] == 4);
        CHECK(w.asked[2] == 1 << 0 && w.tokens[2] == 2);
        CHECK(w.asked[4] == 1 << 4 && w.tokens[4] == 1);
        CHECK_EQ(w.rank.report.redone, 3);
        CHECK_EQ(w.rank.report.late, 0);
        CHECK_EQ(w.peers[1].state, ways[i] == DIES      ? MP_PEER_LOST
                                   : ways[i] == REFUSES ? MP_PEER_LIVE
                                                        : MP_PEER_SILENT);
        world_fini(&w);
    }
}

/* Rank 3 refuses its part, which rank 4 has. */
static void a_part_is_refused(void)
{
    static const uint32_t keeps[RANKS] = { 0, 7, 1, 6, 4 | 2 };
    struct world w;

    world_init(&w, keeps);
    w.way[1] = DIES;
    w.way[3] = REFUSES;
    CHECK_EQ(layer(&w, all_1, 3), MP_OK);
    CHECK(w.asked[2] == 1 && w.asked[3] == 6 && w.asked[4] == 6);
    world_fini(&w);
}

/* Rank 2 has a call of the same layer, which ends first. */
static void who_is_asked_already_is_asked_again(void)
{
    static const uint32_t keeps[RANKS] = { 0, 3, 4 | 1, 2, 0 }, holder[] = { 1, 1, 2 };
    struct world w;

    world_init(&w, keeps);
    w.way[1] = REFUSES;
    w.slow_ns[2] = 20 * MS;
    CHECK_EQ(layer(&w, holder, 3), MP_OK);
    CHECK(w.times[2] == 2 && w.asked[2] == 1 && w.asked[3] == 2);
    CHECK(now_ns(&w) >= 20 * MS && now_ns(&w) < DEADLINE_NS);
    world_fini(&w);
}

/* It may read what it does not keep. */
static void a_rank_that_reads_takes_all(void)
{
    static const uint32_t keeps[RANKS] = { 0, 7, 3, 0, 0 };
    struct world w;

    world_init(&w, keeps);
    w.way[1] = DIES;
    w.peers[4].about.reads = 1;
    CHECK_EQ(layer(&w, all_1, 3), MP_OK);
    CHECK(w.asked[4] == 7 && w.times[2] == 0);
    world_fini(&w);
}

/* Rank 1 has dropped expert 1, as rank 3 has it, which rank 0 hears 30 ms later. */
static void a_copy_is_heard_of_after_the_refusal(void)
{
    static const uint32_t keeps[RANKS] = { 0, 2, 0, 0, 0 };
    static const uint32_t holder[] = { 2, 1 };
    struct world w;

    world_init(&w, keeps);
    w.way[1] = REFUSES;
    w.have_ns = 30 * MS;
    w.rank.copying = true;
    w.now[2 * w.rank.ids + LAYER * EXPERTS] = 1;
    memcpy(w.next, w.now, sizeof(w.next));
    w.next[1 * w.rank.ids + LAYER * EXPERTS + 1] = 0;
    w.next[3 * w.rank.ids + LAYER * EXPERTS + 1] = 1;
    CHECK_EQ(layer(&w, holder, 2), MP_OK);
    CHECK(w.asked[3] == 2 && now_ns(&w) >= 30 * MS && now_ns(&w) < 40 * MS);
    world_fini(&w);
}

/* Nobody else keeps it: rank 1 gets the call when its queue is shorter. */
static void a_queue_is_full_for_a_while(void)
{
    static const uint32_t keeps[RANKS] = { 0, 7, 1, 0, 0 };
    struct world w;

    world_init(&w, keeps);
    w.full_ns[1] = 50 * MS;
    CHECK_EQ(layer(&w, all_1, 3), MP_OK);
    CHECK(w.times[1] == 1 && w.asked[1] == 6 && w.asked[2] == 1);
    CHECK(now_ns(&w) >= 50 * MS && now_ns(&w) < 51 * MS);
    world_fini(&w);
}

/* At once if nobody is left, after the deadline if somebody might say that it has it. */
static void nobody_has_a_part(void)
{
    static const uint32_t keeps[RANKS] = { 0, 7, 1, 2, 0 };
    static const enum way ways[] = { DIES, REFUSES, ANSWERS };
    struct world w;

    for (uint32_t i = 0; i < 3; i++) {
        world_init(&w, keeps);
        w.way[1] = ways[i];
        w.full_ns[1] = ways[i] == ANSWERS ? 1000 * MS : 0;
        CHECK_EQ(layer(&w, all_1, 3), MP_ERR_CLUSTER);
        CHECK_STR(mp_error_last()->code, "E_EXPERT_LOST");
        CHECK(strstr(mp_error_last()->text, "expert 2 of MoE layer 1") != NULL);
        CHECK(strstr(mp_error_last()->text, "(rank 1)") != NULL);
        CHECK(ways[i] == DIES ? now_ns(&w) < 2 * MS
                              : now_ns(&w) >= DEADLINE_NS && now_ns(&w) < DEADLINE_NS + 3 * MS);
        mp_error_clear();
        world_fini(&w);
    }
}

int main(void)
{
    RUN(no_other_rank_has_all);
    RUN(a_part_is_refused);
    RUN(who_is_asked_already_is_asked_again);
    RUN(a_rank_that_reads_takes_all);
    RUN(a_copy_is_heard_of_after_the_refusal);
    RUN(a_queue_is_full_for_a_while);
    RUN(nobody_has_a_part);
    return 0;
}
