/*
 * What goes wrong between ranks: one dies, the first one too; one is silent and comes back; queues
 * are full; bytes are none of ours; a rank has other kernels; nobody has an expert any more; memory
 * is short. Logits that were made are those of one machine, or there is an error with a name.
 */
#include <stdio.h>
#include <string.h>

#include "tests/model/cluster/team.h"
#include "tests/support/fault/wrap.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

#define MS UINT64_C(1000000)

static struct team_options tiny(uint32_t ranks)
{
    return (struct team_options){
        .model = "models/tiny-moe",
        .expect = "tests/data/models/tiny-moe-expect",
        .batch = "b4",
        .ranks = ranks,
        .steps = 8,
        .place = "uniform",
        .room = 1.2,
        .deadline_ns = 300 * MS,
    };
}

static uint32_t victim;

static void kill_at_3(struct loopback *net, uint32_t number, struct mp_rank *rank, uint32_t step)
{
    (void)rank;
    if (number == victim && step == 3)
        loopback_kill(net, number);
}

/* The rank that dies ends, here by the error of its own next message; others go on. */
static void a_rank_dies(void)
{
    struct team_rank ranks[TEAM_MAX];

    for (victim = 0; victim < 3; victim++) {
        struct team_options options = tiny(3);

        options.on_step = kill_at_3;
        team_run(&options, ranks);
        for (uint32_t r = 0; r < 3; r++) {
            CHECK(ranks[r].same);
            if (r == victim)
                continue;
            CHECK_EQ(ranks[r].status, MP_OK);
            CHECK_EQ(ranks[r].rows, 4 * 9);
            CHECK_EQ(ranks[r].report.lost, 1);
            CHECK_EQ(ranks[r].reports, r == (victim == 0));
            for (uint32_t of = 0; of < 3; of++)
                CHECK_EQ(ranks[r].results[of], of == victim ? 3 : 9);
        }
    }
}

static bool killed;

static void kill_once_at_3(struct loopback *net, uint32_t number, struct mp_rank *rank,
                           uint32_t step)
{
    (void)rank;
    if (number == victim && step == 3 && !killed) {
        killed = true;
        loopback_kill(net, number);
    }
}

/* It has the results that it had given, runs the rest, and is in the next placement. */
static void a_rank_comes_back(void)
{
    struct team_rank ranks[TEAM_MAX];

    for (victim = 0; victim < 2; victim++) {
        struct team_options options = tiny(3);

        killed = false;
        options.on_step = kill_once_at_3;
        options.comes_back = true;
        options.restarts = 1;
        team_run(&options, ranks);
        for (uint32_t r = 0; r < 3; r++) {
            CHECK_EQ(ranks[r].status, MP_OK);
            CHECK(ranks[r].same && ranks[r].rows == 4 * 9);
            CHECK_EQ(ranks[r].report.lost, 0);
            CHECK_EQ(ranks[r].report.returned, r != victim);
            CHECK(ranks[r].report.epoch >= 1 && ranks[r].report.migrations >= 1);
            for (uint32_t of = 0; of < 3; of++)
                CHECK_EQ(ranks[r].results[of], 9);
        }
    }
}

/* The others go on without. */
static void a_rank_cannot_come_back(void)
{
    struct team_options options = tiny(3);
    struct team_rank ranks[TEAM_MAX];

    victim = 1;
    killed = false;
    options.on_step = kill_once_at_3;
    options.restarts = 1;
    team_run(&options, ranks);
    for (uint32_t r = 0; r < 3; r += 2) {
        CHECK(ranks[r].status == MP_OK && ranks[r].same && ranks[r].rows == 4 * 9);
        CHECK(ranks[r].report.lost == 1 && ranks[r].report.returned == 0);
    }
}

static void call_at_3(struct loopback *net, uint32_t number, struct mp_rank *rank, uint32_t step)
{
    struct mp_message_head head = { .magic = MP_MESSAGE_MAGIC, .bytes = sizeof(head), .epoch = 1 };

    (void)rank;
    head.kind = MP_MESSAGE_GATE;
    if (number == 2 && step == 3)
        loopback_inject(net, 0, 2, &head, sizeof(head));
    head.kind = MP_MESSAGE_STAY;
    head.epoch = 2;
    if (number == 2 && step == 6)
        loopback_inject(net, 0, 2, &head, sizeof(head));
}

/* Ranks meet for nothing, and go on. */
static void nobody_is_dead_when_ranks_are_called(void)
{
    struct team_options options = tiny(3);
    struct team_rank ranks[TEAM_MAX];

    options.on_step = call_at_3;
    options.comes_back = true;
    team_run(&options, ranks);
    for (uint32_t r = 0; r < 3; r++) {
        CHECK(ranks[r].status == MP_OK && ranks[r].same && ranks[r].rows == 4 * 9);
        CHECK(ranks[r].report.lost == 0 && ranks[r].report.returned == 0);
    }
}

/* Rank 0 goes on until it has the results of all others, and dies with them. */
static void kill_0_at_its_end(struct loopback *net, uint32_t number, struct mp_rank *rank)
{
    uint32_t count = 0;

    while (number == 0 && count < 3 * 9) {
        CHECK_EQ(mp_rank_idle(rank, mp_clock_now_ns(mp_clock_monotonic()) + MS), MP_OK);
        (void)mp_rank_results(rank, &count);
    }
    if (number == 0)
        loopback_kill(net, 0);
}

/* Results do not die with the rank that would have reported them. */
static void who_has_the_results_dies(void)
{
    struct team_options options = tiny(3);
    struct team_rank ranks[TEAM_MAX];

    options.on_end = kill_0_at_its_end;
    team_run(&options, ranks);
    for (uint32_t r = 1; r < 3; r++) {
        CHECK_EQ(ranks[r].status, MP_OK);
        CHECK_EQ(ranks[r].report.lost, 1);
        for (uint32_t of = 0; of < 3; of++)
            CHECK_EQ(ranks[r].results[of], 9);
        CHECK_EQ(ranks[r].reports, r == 1);
    }
}

static void cut_from_3_to_6(struct loopback *net, uint32_t number, struct mp_rank *rank,
                            uint32_t step)
{
    (void)rank;
    if (number == 1 && (step == 3 || step == 6))
        loopback_cut(net, 1, step == 3);
}

static void a_link_is_cut_and_comes_back(void)
{
    struct team_options options = tiny(3);
    struct team_rank ranks[TEAM_MAX];

    options.on_step = cut_from_3_to_6;
    team_run(&options, ranks);
    for (uint32_t r = 0; r < 3; r++) {
        CHECK_EQ(ranks[r].status, MP_OK);
        CHECK(ranks[r].same && ranks[r].rows == 4 * 9);
        CHECK_EQ(ranks[r].report.lost, 0);
    }
    CHECK(ranks[1].report.redone > 0);
    CHECK(ranks[0].report.redone + ranks[2].report.redone > 0);
}

static void limit_at_2(struct loopback *net, uint32_t number, struct mp_rank *rank, uint32_t step)
{
    (void)rank;
    if (number == 0 && step == 2)
        loopback_limit(net, 1);
    if (number == 0 && step == 7)
        loopback_limit(net, 0);
}

static void queues_are_full(void)
{
    struct team_options options = tiny(3);
    struct team_rank ranks[TEAM_MAX];

    options.on_step = limit_at_2;
    team_run(&options, ranks);
    for (uint32_t r = 0; r < 3; r++) {
        CHECK(ranks[r].status == MP_OK && ranks[r].same && ranks[r].rows == 4 * 9);
        CHECK_EQ(ranks[r].results[r], 9);
    }
}

static void inject_at_2(struct loopback *net, uint32_t number, struct mp_rank *rank, uint32_t step)
{
    static const char garbage[64] = "none of ours";

    (void)rank;
    if (number == 2 && step == 2)
        loopback_inject(net, 1, 2, garbage, sizeof(garbage));
}

/* Rank 2 gets bytes in the name of rank 1, and has nothing more to do with it. */
static void bytes_that_are_none_of_ours(void)
{
    struct team_options options = tiny(3);
    struct team_rank ranks[TEAM_MAX];

    options.on_step = inject_at_2;
    team_run(&options, ranks);
    for (uint32_t r = 0; r < 3; r++)
        CHECK(ranks[r].status == MP_OK && ranks[r].same && ranks[r].rows == 4 * 9);
    CHECK_EQ(ranks[2].report.lost, 1);
    CHECK_EQ(ranks[0].report.lost, 0);
}

static void other_kernels(void)
{
    struct team_options options = tiny(2);
    struct team_rank ranks[TEAM_MAX];

    if (!strcmp(mp_kernels_best()->name, "ref"))
        return;
    options.kernels = "ref";
    team_run(&options, ranks);
    CHECK_EQ(ranks[0].status, MP_ERR_CLUSTER);
    CHECK_EQ(ranks[1].status, MP_ERR_CLUSTER);
    CHECK_STR(ranks[0].code, "E_CLUSTER_KERNELS");
    CHECK_STR(ranks[1].code, "E_CLUSTER_KERNELS");
}

/* Nobody reads what it does not keep: without rank 2 some experts are nowhere. */
static void nobody_has_an_expert(void)
{
    struct team_options options = tiny(3);
    struct team_rank ranks[TEAM_MAX];

    victim = 2;
    options.no_reads = true;
    options.room = 1.0;
    options.on_step = kill_at_3;
    team_run(&options, ranks);
    CHECK(ranks[0].same && ranks[1].same);
    CHECK_EQ(ranks[0].status, MP_ERR_CLUSTER);
    CHECK_STR(ranks[0].code, "E_EXPERT_LOST");
    CHECK(ranks[0].rows < 4 * 9);
}

static void too_many_experts_for_all(void)
{
    struct team_options options = tiny(2);
    struct team_rank ranks[TEAM_MAX];

    options.place = "prism";
    options.room = 0.5;
    team_run(&options, ranks);
    CHECK_EQ(ranks[0].status, MP_ERR_CONFIG);
    CHECK_STR(ranks[0].code, "E_PLACE_ROOM");
    CHECK_STR(ranks[1].code, "E_PLACE_ROOM");
}

/* Each allocation of an engine that has peers fails once. */
static void an_engine_with_peers(const struct mp_engine_config *alone,
                                 struct mp_transport *transport)
{
    struct mp_engine_config with = *alone;
    const struct mp_rank_config config = { .transport = transport,
                                           .engine = &with,
                                           .place = mp_place_find("prism") };
    struct mp_rank *rank = NULL;
    bool failed = true;

    CHECK_EQ(mp_rank_create(&config, &rank), MP_OK);
    with.peers = mp_rank_peers(rank);
    for (uint64_t n = 0; failed; n++) {
        struct mp_engine *engine = NULL;
        enum mp_status status;

        fault_nth(FAULT_ALLOCATIONS, n);
        status = mp_engine_create(&with, &engine);
        failed = fault_end() > 0;
        CHECK(failed || status == MP_OK);
        CHECK(status == MP_OK || engine == NULL);
        mp_engine_destroy(engine);
    }
    mp_rank_destroy(rank);
}

static void a_result_does_not_fit(const struct mp_rank_config *config)
{
    const struct mp_message_result result = { 0 };
    struct mp_rank *rank = NULL;
    uint32_t count;

    CHECK_EQ(mp_rank_create(config, &rank), MP_OK);
    for (uint64_t n = 0; n < 2; n++) {
        fault_nth(FAULT_ALLOCATIONS, n);
        CHECK_EQ(mp_rank_add_result(rank, &result), MP_ERR_NO_MEMORY);
        CHECK_EQ(fault_end(), 1);
    }
    CHECK_EQ(mp_rank_add_result(rank, &result), MP_OK);
    (void)mp_rank_results(rank, &count);
    CHECK_EQ(count, 1);
    mp_rank_destroy(rank);
}

/* What the queue of rank 1 refuses comes later, in order and once. */
static void a_full_queue_delays_results(const struct mp_rank_config *config, struct loopback *net)
{
    const struct mp_message_limits limits = { .layers = 1 };
    struct mp_transport *to = loopback_rank(net, 1);
    struct mp_rank *rank = NULL;
    struct mp_arrival arrival;
    struct mp_message message;
    bool found = true;
    uint32_t next = 0;

    CHECK_EQ(mp_rank_create(config, &rank), MP_OK);
    while (found)
        CHECK_EQ(to->ops->poll(to, UINT64_MAX, &arrival, &found), MP_OK);
    loopback_limit(net, 1);
    for (uint64_t i = 0; i < 4; i++)
        CHECK_EQ(mp_rank_add_result(rank, &(struct mp_message_result){ .request = i }), MP_OK);
    loopback_limit(net, 0);
    CHECK_EQ(mp_rank_idle(rank, 0), MP_OK);
    CHECK_EQ(mp_rank_idle(rank, 0), MP_OK);
    for (found = true; found;) {
        CHECK_EQ(to->ops->poll(to, UINT64_MAX, &arrival, &found), MP_OK);
        if (!found)
            break;
        CHECK_EQ(mp_message_parse(arrival.data, arrival.bytes, &limits, &message), MP_OK);
        for (uint64_t i = 0; message.results != NULL && i < message.head->id; i++)
            CHECK_EQ(message.results[i].request, next++);
    }
    CHECK_EQ(next, 4);
    mp_rank_destroy(rank);
}

static bool give_one(void *ctx, uint32_t to, uint64_t *request_p)
{
    uint64_t *left = ctx;

    CHECK_EQ(to, 1);
    if (*left == 0)
        return false;
    *request_p = 100 + (*left)--;
    return true;
}

static void inject(struct loopback *net, enum mp_message_kind kind, uint64_t id)
{
    const struct mp_message_head head = {
        .magic = MP_MESSAGE_MAGIC, .kind = kind, .bytes = sizeof(head), .id = id
    };

    loopback_inject(net, 1, 0, &head, sizeof(head));
}

/* What rank 1 was given last; 0: nothing. heard[]: how many messages of each kind came. */
static uint32_t heard[MP_MESSAGE_KIND_COUNT];

static uint64_t fetch_given(struct loopback *net)
{
    struct mp_transport *to = loopback_rank(net, 1);
    const struct mp_message_head *head;
    struct mp_arrival arrival;
    uint64_t given = 0;
    bool found = true;

    memset(heard, 0, sizeof(heard));
    for (;;) {
        CHECK_EQ(to->ops->poll(to, UINT64_MAX, &arrival, &found), MP_OK);
        if (!found)
            return given;
        head = arrival.data;
        CHECK(head->kind < MP_MESSAGE_KIND_COUNT);
        heard[head->kind]++;
        given = head->kind == MP_MESSAGE_TAKE ? head->id : given;
    }
}

/* Between two layers of rank 0, before which `kind` came if it is one; what rank 1 was given. */
static uint64_t given_in_a_layer(struct mp_rank *rank, struct loopback *net,
                                 enum mp_message_kind kind)
{
    const struct mp_peers *peers = mp_rank_peers(rank);

    if (kind != MP_MESSAGE_KIND_COUNT)
        inject(net, kind, 0);
    CHECK_EQ(peers->poll(peers->ctx), MP_OK);
    return fetch_given(net);
}

/* Rank 1 gets a request when one waits, for as long as it wants one. */
static void what_waits_later_is_given(struct mp_rank *rank, struct loopback *net, uint64_t *left)
{
    CHECK_EQ(given_in_a_layer(rank, net, MP_MESSAGE_WANT), 0);
    CHECK_EQ(heard[MP_MESSAGE_TAKE], 0);
    *left = 1;
    CHECK_EQ(given_in_a_layer(rank, net, MP_MESSAGE_KIND_COUNT), 101);
    *left = 1;
    CHECK_EQ(given_in_a_layer(rank, net, MP_MESSAGE_KIND_COUNT), 0);
    *left = 0;
    CHECK_EQ(given_in_a_layer(rank, net, MP_MESSAGE_WANT), 0);
    *left = 1;
    CHECK_EQ(given_in_a_layer(rank, net, MP_MESSAGE_BUSY), 0);
}

/* Who has nothing to do asks once, and says once that it has. */
static void who_is_idle_asks(struct mp_rank *rank, struct loopback *net, struct mp_clock *clock)
{
    CHECK_EQ(mp_rank_idle(rank, mp_clock_now_ns(clock) + 50 * MS), MP_OK);
    (void)fetch_given(net);
    CHECK(heard[MP_MESSAGE_WANT] == 1 && heard[MP_MESSAGE_BUSY] == 0);
    (void)given_in_a_layer(rank, net, MP_MESSAGE_KIND_COUNT);
    CHECK(heard[MP_MESSAGE_WANT] == 0 && heard[MP_MESSAGE_BUSY] == 1);
    (void)given_in_a_layer(rank, net, MP_MESSAGE_KIND_COUNT);
    CHECK(heard[MP_MESSAGE_WANT] == 0 && heard[MP_MESSAGE_BUSY] == 0);
    CHECK_EQ(mp_rank_idle(rank, mp_clock_now_ns(clock) + 50 * MS), MP_OK);
    (void)fetch_given(net);
    CHECK_EQ(heard[MP_MESSAGE_WANT], 1);
}

/* Who asks gets a request; what cannot be sent stays; a result that comes twice counts once. */
static void requests_move(const struct mp_rank_config *without, struct loopback *net)
{
    struct {
        struct mp_message_head head;
        struct mp_message_result result;
    } twice = { .head = { .magic = MP_MESSAGE_MAGIC, .kind = MP_MESSAGE_RESULT, .id = 1 } };
    struct mp_rank_config config = *without;
    struct mp_rank *rank = NULL;
    uint64_t left = 2, request = 0;
    uint32_t count;

    config.give = give_one;
    config.give_ctx = &left;
    CHECK_EQ(mp_rank_create(&config, &rank), MP_OK);
    (void)fetch_given(net);
    inject(net, MP_MESSAGE_WANT, 0);
    CHECK_EQ(mp_rank_idle(rank, 0), MP_OK);
    CHECK_EQ(fetch_given(net), 102);
    CHECK(!mp_rank_take_request(rank, &request));
    loopback_limit(net, 1);
    loopback_inject(net, 2, 1, &twice.head, sizeof(twice.head));
    inject(net, MP_MESSAGE_WANT, 0);
    CHECK_EQ(mp_rank_idle(rank, 0), MP_OK);
    CHECK(mp_rank_take_request(rank, &request) && request == 101);
    loopback_limit(net, 0);
    (void)fetch_given(net);
    what_waits_later_is_given(rank, net, &left);
    who_is_idle_asks(rank, net, config.engine->clock);
    inject(net, MP_MESSAGE_TAKE, 5);
    CHECK_EQ(mp_rank_idle(rank, 0), MP_OK);
    CHECK(mp_rank_take_request(rank, &request) && request == 5);
    CHECK(!mp_rank_take_request(rank, &request));
    twice.head.bytes = sizeof(twice);
    twice.result.request = 7;
    loopback_inject(net, 1, 0, &twice, sizeof(twice));
    loopback_inject(net, 2, 0, &twice, sizeof(twice));
    CHECK_EQ(mp_rank_idle(rank, 0), MP_OK);
    (void)mp_rank_results(rank, &count);
    CHECK_EQ(count, 1);
    CHECK(mp_rank_is_there(rank, 0) && mp_rank_is_there(rank, 2));
    mp_rank_destroy(rank);
}

/* Each allocation of a rank fails once. */
static void memory_is_short(void)
{
    struct harness_options options = harness_defaults("models/tiny-moe");
    struct loopback *net = loopback_create(3);
    struct harness h;
    struct mp_rank_config config;
    uint64_t failures = 0;

    harness_open(&options, &h);
    config = (struct mp_rank_config){ .transport = loopback_rank(net, 0),
                                      .engine = &h.config,
                                      .place = mp_place_find("prism") };
    for (uint64_t n = 0;; n++) {
        struct mp_rank *rank = NULL;
        enum mp_status status;

        fault_nth(FAULT_ALLOCATIONS, n);
        status = mp_rank_create(&config, &rank);
        if (fault_end() == 0) {
            CHECK_EQ(status, MP_OK);
            mp_rank_destroy(rank);
            break;
        }
        CHECK_EQ(status, MP_ERR_NO_MEMORY);
        failures++;
    }
    CHECK(failures >= 26);
    a_result_does_not_fit(&config);
    a_full_queue_delays_results(&config, net);
    requests_move(&config, net);
    an_engine_with_peers(&h.config, loopback_rank(net, 0));
    harness_close(&h);
    loopback_destroy(net);
}

int main(void)
{
    RUN(a_rank_dies);
    RUN(a_rank_comes_back);
    RUN(a_rank_cannot_come_back);
    RUN(nobody_is_dead_when_ranks_are_called);
    RUN(who_has_the_results_dies);
    RUN(a_link_is_cut_and_comes_back);
    RUN(queues_are_full);
    RUN(bytes_that_are_none_of_ours);
    RUN(other_kernels);
    RUN(nobody_has_an_expert);
    RUN(too_many_experts_for_all);
    RUN(memory_is_short);
    return 0;
}
