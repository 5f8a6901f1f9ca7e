#ifndef MP_TEST_MOVE_WORLD_H
#define MP_TEST_MOVE_WORLD_H

#include <stdlib.h>
#include <string.h>

#include "engine/cluster/hash.h"
#include "engine/cluster/rank_int.h"
#include "policy/pager/pager.h"
#include "tests/model/cluster/loopback.h"
#include "tests/model/harness.h"
#include "tests/support/test.h"
#include "vmm/base/version.h"

/*
 * Rank 2 of three with an engine (or another one, w.self); what the others say is written by the
 * test, and what it says to them is read. One world at a time, one thread.
 */
#define SELF 2u
#define MS UINT64_C(1000000)
#define LAYERS 8u
#define EXPERTS 32u
#define IDS (LAYERS * EXPERTS)
#define KEPT 20u /* of the placements here, by rank 2: ids 0 to 19, then 1 to 20 */

static struct world {
    uint32_t self;
    struct harness h;
    struct loopback *net;
    struct mp_rank *rank;
    char *file[IDS]; /* bytes of each expert, as they are in the file */
    uint64_t bytes;
    uint64_t held_ns; /* how long rank 0 keeps a FETCH before it answers */
    uint32_t asked;   /* FETCH that rank 0 has got */
    bool lies;        /* it answers with the next expert's bytes */
} w;

static inline uint64_t now_ns(void)
{
    return mp_clock_now_ns(mp_clock_monotonic());
}

static inline enum mp_status make_rank(void *ctx, struct mp_engine_config *config)
{
    const struct mp_rank_config rank = { .transport = loopback_rank(w.net, w.self),
                                         .engine = config,
                                         .place = mp_place_find("naive"),
                                         .slots = KEPT,
                                         .reads = true,
                                         .deadline_ns = 500 * MS };

    (void)ctx;
    CHECK_EQ(mp_rank_create(&rank, &w.rank), MP_OK);
    config->peers = mp_rank_peers(w.rank);
    return MP_OK;
}

/* ---- what ranks 0 and 1 say */

struct said {
    struct mp_message_head head;
    char body[80 << 10];
};

static inline void say(uint32_t from, struct said *said, enum mp_message_kind kind, size_t body)
{
    said->head.magic = MP_MESSAGE_MAGIC;
    said->head.kind = kind;
    said->head.bytes = (uint32_t)(sizeof(said->head) + body);
    loopback_inject(w.net, from, w.self, said, said->head.bytes);
}

static inline void say_bare(uint32_t from, enum mp_message_kind kind, uint32_t epoch)
{
    struct said said = { .head = { .epoch = epoch } };

    say(from, &said, kind, 0);
}

/* Rank 2 keeps KEPT experts from `first` on, rank 1 all others and rank 0 all. */
static inline void fill_placement(uint16_t *device, uint32_t first)
{
    memset(device, 0, 3 * IDS * sizeof(*device));
    for (uint32_t id = 0; id < IDS; id++)
        device[(id >= first && id < first + KEPT ? SELF : 1) * IDS + id] = 1;
}

static inline void say_place(uint32_t epoch, uint32_t first)
{
    static struct said said;

    memset(&said, 0, sizeof(said));
    fill_placement((uint16_t *)said.body, first);
    said.head.epoch = epoch;
    say(0, &said, MP_MESSAGE_PLACE, 3 * IDS * sizeof(uint16_t));
}

static inline void say_have(uint32_t from, uint32_t move, uint32_t id, uint64_t hash)
{
    struct said said = { .head = { .epoch = move, .groups = 1 } };

    *(struct mp_message_copy *)said.body = (struct mp_message_copy){ .id = id, .hash = hash };
    say(from, &said, MP_MESSAGE_HAVE, sizeof(struct mp_message_copy));
}

/* LEAVE or LEFT */
static inline void say_id(uint32_t from, enum mp_message_kind kind, uint32_t move, uint32_t id)
{
    struct said said = { .head = { .epoch = move, .groups = 1 } };

    memcpy(said.body, &id, sizeof(id));
    say(from, &said, kind, sizeof(id));
}

static inline void say_leaving(uint32_t from, uint32_t move, uint32_t id)
{
    say_id(from, MP_MESSAGE_LEAVE, move, id);
}

static inline void say_bytes(uint32_t from, const struct mp_message_head *asked)
{
    const uint32_t id = asked->layer * EXPERTS + asked->groups;
    static struct said said;
    const uint64_t hash = mp_hash_bytes(w.file[id + w.lies], w.bytes);

    CHECK(w.bytes + sizeof(hash) <= sizeof(said.body));
    said.head = (struct mp_message_head){ .id = asked->id,
                                          .layer = asked->layer,
                                          .groups = asked->groups + w.lies };
    memcpy(said.body, &hash, sizeof(hash));
    memcpy(said.body + sizeof(hash), w.file[id + w.lies], w.bytes);
    say(from, &said, MP_MESSAGE_BYTES, sizeof(hash) + w.bytes);
}

/* ---- what rank 2 says */

/* The last message of this kind that rank `to` got is copied to said_p; what it is asked for it
 * sends. */
static inline bool hear(uint32_t to, enum mp_message_kind kind, struct said *said_p)
{
    struct mp_transport *transport = loopback_rank(w.net, to);
    struct mp_arrival arrival;
    bool any = false, found = true;

    for (;;) {
        const struct mp_message_head *head;

        CHECK_EQ(transport->ops->poll(transport, UINT64_MAX, &arrival, &found), MP_OK);
        if (!found)
            return any;
        if (arrival.lost)
            continue;
        head = arrival.data;
        if (head->kind == MP_MESSAGE_FETCH) {
            const struct mp_message_head asked = *head;
            const uint64_t until = now_ns() + w.held_ns;

            w.asked++;
            while (now_ns() < until)
                ;
            say_bytes(to, &asked);
            continue;
        }
        if (head->kind != kind || arrival.bytes > sizeof(*said_p))
            continue;
        memcpy(said_p, arrival.data, arrival.bytes);
        any = true;
    }
}

/* Rank 2 does what it has to, and gets answers, for so long. */
static inline void turn(uint64_t ns)
{
    const uint64_t until = now_ns() + ns;
    static struct said said;

    do {
        CHECK_EQ(mp_rank_idle(w.rank, now_ns() + MS / 4), MP_OK);
        hear(1, MP_MESSAGE_KIND_COUNT, &said);
    } while (now_ns() < until);
}

static inline bool has(uint32_t id)
{
    char *bytes = malloc(w.bytes);
    const bool there = mp_pager_get(mp_engine_pager(w.h.engine), id, bytes);

    CHECK(!there || memcmp(bytes, w.file[id], w.bytes) == 0);
    free(bytes);
    return there;
}

static inline void wait_until_there(uint32_t id)
{
    const uint64_t until = now_ns() + 10000 * MS;

    while (!has(id) && now_ns() < until)
        turn(MS);
    CHECK(has(id));
}

/* Rank 0 asks for each expert that rank 2 does not keep, so that it reads them: whatever may leave
 * its memory does. */
static inline void press(void)
{
    for (uint32_t id = 2 * KEPT; id < 2 * KEPT + 64; id++) {
        struct said said = { .head = { .id = id + 1, .layer = id / EXPERTS } };
        struct mp_message_group *group = (void *)said.body;

        said.head.groups = said.head.tokens = said.head.rows = 1;
        *group = (struct mp_message_group){ id % EXPERTS, 1 };
        say(0, &said, MP_MESSAGE_CALL,
            mp_message_call_bytes(&w.rank->limits, 1, 1, 1) - sizeof(said.head));
        turn(MS / 4);
    }
    CHECK(mp_pager_check(mp_engine_pager(w.h.engine)));
}

/* ---- the world */

static inline void read_file(void)
{
    const struct mp_weights *weights = w.h.config.weights;

    w.bytes = mp_pager_expert_bytes(mp_engine_pager(w.h.engine), 0);
    CHECK_EQ(weights->slices.count, 1);
    for (uint32_t id = 0; id < IDS; id++) {
        char *at = w.file[id] = malloc(w.bytes);

        CHECK(at != NULL);
        for (uint32_t k = 0; k < weights->units[id].piece_count; k++) {
            const struct mp_piece *piece = &weights->units[id].pieces[k];

            CHECK_EQ(
                mp_files_read(w.h.config.files, piece->file, piece->offset_bytes, piece->bytes, at),
                MP_OK);
            at += piece->bytes;
        }
    }
}

/* Rank `self` has joined, and has in memory what the placement gives it; rank 2: KEPT experts from
 * 0 on. */
static inline void open_world_of(uint32_t self, struct mp_clock *clock)
{
    struct harness_options options = harness_defaults("models/tiny-moe");
    struct said hello = { .head = { 0 } };
    struct mp_space_plan plan;

    memset(&w, 0, sizeof(w));
    w.self = self;
    w.net = loopback_create(3);
    options.policies.profile = "lru";
    options.clock = clock;
    options.no_uring = true; /* the slow clock knows the threads of the other reader */
    plan = harness_plan(&options, NULL);
    options.before_engine = make_rank; /* not for the plan, which opens an engine, too */
    options.budget_bytes = plan.full_bytes * (KEPT + 2) / IDS + plan.smallest_bytes / 2;
    harness_open(&options, &w.h);
    CHECK_EQ(w.h.model.moe_layers * w.h.model.experts, IDS);
    for (uint32_t from = 0; from < 3; from++) {
        struct mp_hello *about = (void *)hello.body;

        if (from == self)
            continue;
        *about = (struct mp_hello){ .ranks = 3,
                                    .layers = LAYERS,
                                    .experts = EXPERTS,
                                    .top_k = w.h.model.experts_per_token,
                                    .hidden = w.h.model.hidden,
                                    .tokens_max = w.h.config.tokens_max,
                                    .slots = IDS,
                                    .reads = 1 };
        strcpy(about->version, mp_version);
        strcpy(about->kernels, w.h.config.kernels->name);
        CHECK_EQ(mp_model_hash(&w.h.config, &about->model), MP_OK);
        say(from, &hello, MP_MESSAGE_HELLO, sizeof(*about));
        say_bare(from, MP_MESSAGE_READY, 0);
    }
    CHECK_EQ(mp_rank_join(w.rank, w.h.engine), MP_OK);
    fill_placement(w.rank->now.device, 0);
    mp_rank_keep(w.rank);
    read_file();
    for (uint32_t id = 0; id < KEPT && self == SELF; id++)
        wait_until_there(id);
}

static inline void open_world(struct mp_clock *clock)
{
    open_world_of(SELF, clock);
}

static inline void close_world(void)
{
    harness_close(&w.h);
    mp_rank_destroy(w.rank);
    loopback_destroy(w.net);
    for (uint32_t id = 0; id < IDS; id++)
        free(w.file[id]);
}

static inline uint64_t right(uint32_t id)
{
    return mp_hash_bytes(w.file[id], w.bytes);
}

#endif
