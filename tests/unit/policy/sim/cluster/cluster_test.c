/*
 * Several servers on a virtual clock: times worked out by hand, what must hold in any run, and
 * every allocation failing once.
 */
#include <math.h>

#include "policy/sim/cluster/cluster.h"
#include "tests/support/fault/wrap.h"
#include "tests/support/log_guard.h"
#include "tests/support/random.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

static uint64_t random_state = 40;

/* A layer takes 1 ms, an expert 100 us and 10 us a token, reading one 5 ms. */
#define MACHINE                                                                        \
    "link_gbps 1\ncopy_us 1\ndevice_gbps 1\ndevice_gflops 1\nlaunch_us 1\ndevice_gib " \
    "1\nexpert_us 100\nexpert_token_us 10\nlayer_us 1000\nload_us 5000\n"

struct cluster_world {
    struct mp_cluster cluster;
    struct mp_cluster_server servers[4];
};

/* Servers with one device of `slots` slots. Links carry a byte in a microsecond, a row is 1000
 * bytes, and a message takes 125 us more. One request of one token for each; nobody waits. */
static void world_init(struct cluster_world *w, uint32_t servers, uint32_t slots, uint32_t layers,
                       uint32_t experts, uint32_t top_k)
{
    char text[256];
    struct mp_cluster *c = &w->cluster;

    memset(w, 0, sizeof(*w));
    snprintf(text, sizeof(text),
             "layers %u\nexperts %u\ntop_k %u\nhidden 500\nexpert_ffn 1000\nvocabulary "
             "1\nattention_params 1\nkv_bytes 0\n",
             layers, experts, top_k);
    CHECK_EQ(mp_sim_model_parse("m", text, &c->model), MP_OK);
    c->server_count = servers;
    c->servers = w->servers;
    c->requests = c->prompt = c->gen = c->domains = c->known = c->copies = 1;
    c->latency_us = 100;
    c->call_us = 50;
    c->value_bytes = 2;
    for (uint32_t n = 0; n < servers; n++) {
        CHECK_EQ(mp_sim_machine_parse("m", MACHINE, &w->servers[n].machine), MP_OK);
        w->servers[n].devices = w->servers[n].reads = 1;
        w->servers[n].device_gib = (double)(mp_sim_other_bytes(&c->model) +
                                            (slots + 1.5) * mp_sim_expert_bytes(&c->model)) /
                                   1073741824;
        w->servers[n].mbit = 8;
        w->servers[n].arrival_s = 1e6;
        CHECK_EQ(mp_cluster_slots(c, n), slots);
    }
}

static struct mp_cluster_result run(const struct cluster_world *w, const char *place)
{
    const struct mp_cluster_config config = {
        .cluster = &w->cluster, .place = mp_place_find(place), .seed = 3, .check = true
    };
    struct mp_cluster_result r;
    enum mp_status status = mp_cluster_run(&config, &r);

    if (status != MP_OK)
        fprintf(stderr, "%s: %s\n", place, mp_error_last()->text);
    CHECK_EQ(status, MP_OK);
    return r;
}

static bool takes_us(double s, double us)
{
    return fabs(s * 1e6 - us) < 2;
}

/* A prompt of 4: 1000 + 140; two further tokens: 1000 + 110 each. */
static void a_server_alone_takes_its_layers(void)
{
    struct cluster_world w;
    struct mp_cluster_result r;

    world_init(&w, 1, 1, 1, 1, 1);
    w.cluster.prompt = 4;
    w.cluster.gen = 3;
    r = run(&w, "prism");
    CHECK(takes_us(r.mean_s, 3360) && takes_us(r.p95_s, 3360));
    CHECK(r.local_share == 1 && r.sent_bytes == 0 && r.reads == 0 && r.requests == 1);
    mp_cluster_result_fini(&r);
    w.cluster.requests = 2; /* both come at once: the second waits for the first */
    w.servers[0].arrival_s = 1e-6;
    r = run(&w, "prism");
    CHECK(fabs(r.mean_s * 1e6 - 1.5 * 3360) < 20 && fabs(r.p95_s * 1e6 - 6720) < 20);
    mp_cluster_result_fini(&r);
}

/* Both experts of each token, one of them elsewhere. Routed at 1000; the row is sent until 2000, is
 * there at 2125, computed at 2235, sent back until 3235 and there at 3360. */
static void asking_takes_two_messages_and_the_work(void)
{
    struct cluster_world w;
    struct mp_cluster_result r;

    world_init(&w, 2, 1, 1, 2, 2);
    r = run(&w, "prism");
    CHECK(takes_us(r.mean_s, 3360) && takes_us(r.server_mean_s[1], 3360));
    CHECK(r.local_share == 0.5 && r.sent_bytes == 4000 && r.reads == 0);
    mp_cluster_result_fini(&r);
    w.cluster.value_bytes = 4;
    r = run(&w, "prism");
    CHECK(takes_us(r.mean_s, 5360) && r.sent_bytes == 8000);
    mp_cluster_result_fini(&r);
    w.cluster.value_bytes = 2;
    w.servers[1].mbit = 4; /* the slower link counts, both ways */
    r = run(&w, "prism");
    CHECK(takes_us(r.server_mean_s[0], 5360) && takes_us(r.server_mean_s[1], 5360));
    mp_cluster_result_fini(&r);
}

/* Of a row 400 bytes leave at once: it is there at 1725, and its result at 2560. With two messages
 * the second leaves at 2600. */
static void links_send_a_burst_at_once(void)
{
    static const double us[2][3] = { { 3360, 2560, 1360 }, { 4360, 3560, 1360 } };
    static const double bytes[3] = { 0, 400, 2000 };

    for (uint32_t peers = 1; peers <= 2; peers++) {
        for (int i = 0; i < 3; i++) {
            struct cluster_world w;
            struct mp_cluster_result r;

            world_init(&w, peers + 1, 1, 1, peers + 1, peers + 1);
            w.cluster.burst_bytes = bytes[i];
            r = run(&w, "prism");
            CHECK(takes_us(r.mean_s, us[peers - 1][i]));
            mp_cluster_result_fini(&r);
        }
    }
}

/* The same with devices that have work for messages: the row leaves at 1011 and is there at 2136;
 * its rows and its expert take until 2288; the result is back at 3413, and taken at 3434. */
static void messages_take_time_of_both_devices(void)
{
    struct cluster_world w;
    struct mp_cluster_result r;

    world_init(&w, 2, 1, 1, 2, 2);
    w.cluster.send_us = 10;
    w.cluster.take_us = 20;
    w.cluster.serve_us = 40;
    w.cluster.row_us = 1;
    r = run(&w, "prism");
    CHECK(takes_us(r.mean_s, 3434) && r.sent_bytes == 4000);
    mp_cluster_result_fini(&r);
}

/* Of three servers on one host with two processors the third one's layer waits until 1000, and then
 * the experts of the other two wait for each other. */
static void servers_of_one_host_share_its_processors(void)
{
    static const double arrivals[3] = { 0 };
    struct cluster_world w;
    struct mp_cluster_config config = { .cluster = &w.cluster,
                                        .place = mp_place_find("prism"),
                                        .arrivals = arrivals };
    struct mp_cluster_result r;

    for (uint32_t processors = 0; processors <= 3; processors++) {
        static const double us[4][3] = {
            { 1110, 1110, 1110 }, { 3110, 3220, 3330 }, { 1110, 1220, 2110 }, { 1110, 1110, 1110 }
        };

        world_init(&w, 3, 1, 1, 1, 1);
        w.cluster.processors = processors;
        CHECK_EQ(mp_cluster_run(&config, &r), MP_OK);
        for (uint32_t n = 0; n < 3; n++)
            CHECK(takes_us(r.server_mean_s[n], us[processors][n]));
        mp_cluster_result_fini(&r);
    }
}

/* One is read at 6000 and computed at 6110; the other server's is read after it. */
static void servers_of_one_host_share_its_disk(void)
{
    static const double arrivals[2] = { 0 };
    struct cluster_world w;
    struct mp_cluster_config config = { .cluster = &w.cluster,
                                        .place = mp_place_find("local"),
                                        .arrivals = arrivals };
    struct mp_cluster_result r;

    world_init(&w, 2, 1, 1, 2, 2);
    w.cluster.processors = 2;
    CHECK_EQ(mp_cluster_run(&config, &r), MP_OK);
    CHECK(takes_us(r.server_mean_s[0], 6110) && takes_us(r.server_mean_s[1], 11110));
    mp_cluster_result_fini(&r);
}

/* The first one reads what it keeps and then the other expert, as the second one does, on one disk:
 * at the end of the last read the second one still computes, and later nobody does. */
static void ranks_that_have_read_wait_for_a_processor(void)
{
    static const double arrivals[2] = { 0 };
    struct cluster_world w;
    struct mp_cluster_config config = { .cluster = &w.cluster,
                                        .place = mp_place_find("local"),
                                        .arrivals = arrivals };
    struct mp_cluster_result at_once, later;

    for (int processors = 0; processors <= 2; processors += 2) {
        world_init(&w, 2, 1, 1, 2, 2);
        w.cluster.rows_once = 1;
        w.cluster.processors = processors;
        CHECK_EQ(mp_cluster_run(&config, &at_once), MP_OK);
        w.cluster.wake_us = 300;
        CHECK_EQ(mp_cluster_run(&config, &later), MP_OK);
        CHECK(takes_us(later.server_mean_s[0] - at_once.server_mean_s[0], processors ? 300 : 0));
        CHECK(takes_us(later.server_mean_s[1] - at_once.server_mean_s[1], 0));
        mp_cluster_result_fini(&later);
        mp_cluster_result_fini(&at_once);
    }
}

/* What processors do for a message on its way is part of it, 125 us each time, as long as it is
 * shorter and one is free. The row leaves at 1001, when the only processor computes until 1110:
 * then it is there at 1235, and after 110 us, one on the link and a way back at 1471. */
static void messages_take_processors_on_their_way(void)
{
    static const double arrivals[2] = { 0, 1 };
    static const double us[2][3] = { { 1362, 1362, 1512 }, { 1362, 1471, 1621 } };
    struct cluster_world w;
    struct mp_cluster_config config = { .cluster = &w.cluster,
                                        .place = mp_place_find("prism"),
                                        .arrivals = arrivals };
    struct mp_cluster_result r;

    for (int few = 0; few < 2; few++) {
        for (int i = 0; i < 3; i++) {
            world_init(&w, 2, 1, 1, 2, 2);
            w.servers[0].mbit = w.servers[1].mbit = 8000;
            w.cluster.processors = few ? 1 : 4;
            w.cluster.way_us = i * 100;
            CHECK_EQ(mp_cluster_run(&config, &r), MP_OK);
            CHECK(takes_us(r.mean_s, us[few][i]));
            CHECK_EQ(r.messages, 4);
            CHECK(takes_us(r.work_s, 2 * (1000 + 2 * 110) + 4 * i * 100));
            mp_cluster_result_fini(&r);
        }
    }
}

/* An expert is read from 1000 to 6000 and computed until 6110. A processor that does more than that
 * for it begins when it has computed the other expert, at 1110. */
static void reads_take_processors(void)
{
    static const double us[3][2] = { { 0, 6110 }, { 4000, 6110 }, { 5500, 6720 } };
    struct cluster_world w;
    struct mp_cluster_result r;

    for (int i = 0; i < 3; i++) {
        world_init(&w, 1, 1, 1, 2, 2);
        w.cluster.load_work_us = us[i][0];
        r = run(&w, "local");
        CHECK(takes_us(r.mean_s, 6110)); /* a machine of its own */
        mp_cluster_result_fini(&r);
        w.cluster.processors = 1;
        r = run(&w, "local");
        CHECK(takes_us(r.mean_s, us[i][1]) && takes_us(r.work_s, 1220 + us[i][0]));
        mp_cluster_result_fini(&r);
    }
}

/* Two experts of each token are elsewhere, at one peer. Its rows go once: sent until 2000, there at
 * 2125, both computed at 2345; two come back until 4345, and are there at 4470. A head of 100 bytes
 * takes 100 more each way. */
static void rows_go_once_to_a_server(void)
{
    struct cluster_world w;
    struct mp_cluster_result r;

    world_init(&w, 2, 2, 1, 4, 4);
    r = run(&w, "prism");
    CHECK(takes_us(r.mean_s, 5470) && r.sent_bytes == 8000);
    mp_cluster_result_fini(&r);
    w.cluster.rows_once = 1;
    r = run(&w, "prism");
    CHECK(takes_us(r.mean_s, 4470) && r.sent_bytes == 6000);
    mp_cluster_result_fini(&r);
    w.cluster.head_bytes = 100;
    r = run(&w, "prism");
    CHECK(takes_us(r.mean_s, 4670) && r.sent_bytes == 6400);
    mp_cluster_result_fini(&r);
    w.cluster.prompt = 100; /* more than are drawn: each stands for others */
    r = run(&w, "prism");
    CHECK(r.sent_bytes == 100 * 6000 + 400);
    mp_cluster_result_fini(&r);
}

/* Each server's users choose what it keeps, and after the shift what the other one keeps. */
static void tokens_choose_by_shares(void)
{
    double shares[] = { 1, 0, 0, 1, 0, 1, 1, 0 }; // (2 * domains, layers, experts)
    struct cluster_world w;
    struct mp_cluster_result r;

    world_init(&w, 2, 1, 1, 2, 1);
    w.cluster.domains = 2;
    w.cluster.shares = shares;
    w.servers[1].domain = 1;
    r = run(&w, "prism");
    CHECK(r.local_share == 1);
    mp_cluster_result_fini(&r);
    w.cluster.requests = 10;
    w.cluster.shift_after = 5;
    w.cluster.epoch_s = 0;
    r = run(&w, "prism");
    CHECK(r.local_share == 0.5 && r.local_share_2 == 0);
    mp_cluster_result_fini(&r);
}

static void requests_arrive_when_they_are_told(void)
{
    static const double arrivals[] = { 0.5, 0.75, 0.25, 2 };
    struct cluster_world w;
    struct mp_cluster_config config = { .cluster = &w.cluster,
                                        .place = mp_place_find("prism"),
                                        .arrivals = arrivals };
    struct mp_cluster_result r;

    world_init(&w, 2, 1, 1, 1, 1);
    w.cluster.requests = 2;
    CHECK_EQ(mp_cluster_run(&config, &r), MP_OK);
    CHECK(takes_us(r.mean_s, 1110) && takes_us(r.end_s, 2e6 + 1110));
    mp_cluster_result_fini(&r);
}

/* Routed at 1000, read at 6000, computed at 6110; where asking is possible it is done at 3360. If
 * reading takes 500, it is computed at 1610, after what is kept. */
static void reading_and_asking_are_compared(void)
{
    struct cluster_world w;
    struct mp_cluster_result r;

    world_init(&w, 2, 1, 1, 2, 2);
    r = run(&w, "local");
    CHECK(takes_us(r.mean_s, 6110) && r.reads == 2 && r.sent_bytes == 0 && r.local_share == 1);
    mp_cluster_result_fini(&r);
    r = run(&w, "united");
    CHECK(takes_us(r.mean_s, 3360) && r.reads == 0 && r.sent_bytes == 4000);
    mp_cluster_result_fini(&r);
    w.servers[0].machine.load_us = w.servers[1].machine.load_us = 500;
    r = run(&w, "united");
    CHECK(takes_us(r.mean_s, 1610) && r.reads == 2 && r.sent_bytes == 0);
    mp_cluster_result_fini(&r);
    w.servers[0].reads = w.servers[1].reads = 0;
    r = run(&w, "united");
    CHECK(takes_us(r.mean_s, 3360) && r.reads == 0);
    mp_cluster_result_fini(&r);
}

/* Two experts are missing: read one after the other at 11000, and computed at 11110 and so on; the
 * layer waits 300 longer however many it reads. */
static void a_layer_that_reads_waits_once_more(void)
{
    struct cluster_world w;
    struct mp_cluster_result plain, longer;

    world_init(&w, 1, 1, 1, 3, 3);
    plain = run(&w, "local");
    w.cluster.read_us = 300;
    longer = run(&w, "local");
    CHECK(plain.reads == 2 && plain.reading_layers == 1);
    CHECK(takes_us(longer.mean_s - plain.mean_s, 300));
    mp_cluster_result_fini(&longer);
    mp_cluster_result_fini(&plain);
}

/* A message to the other server takes 2360 us and a read 3000, so that servers that are ranks ask;
 * what they have not tried for long becomes cheaper, and is tried. */
static void ranks_try_again_what_they_do_not_do(void)
{
    struct cluster_world w;
    struct mp_cluster_result r;

    world_init(&w, 2, 1, 1, 2, 2);
    w.cluster.rows_once = 1;
    w.cluster.gen = 1000;
    w.servers[0].machine.load_us = w.servers[1].machine.load_us = 3000;
    r = run(&w, "united");
    CHECK(r.reads > 0 && r.reads < 400);
    mp_cluster_result_fini(&r);
}

/* A rank that has not waited for a read knows those in the background only, so that it tries one.
 */
static void ranks_expect_what_reads_took_in_the_background(void)
{
    struct cluster_world w;
    struct mp_cluster_result r;

    world_init(&w, 2, 1, 1, 2, 2);
    w.cluster.rows_once = 1;
    w.cluster.gen = 100;
    w.cluster.read_us = 1e6;
    w.servers[0].machine.load_us = w.servers[1].machine.load_us = 500;
    r = run(&w, "united");
    CHECK(r.reads > 0);
    mp_cluster_result_fini(&r);
}

/* A message takes 10 ms each way and a read 5, so that ranks do not ask when they have seen that.
 * The first one, whose first layer waited for a read, tries to get the expert out of the other
 * one's memory, once; the other one reads. In two parts it is two ways more. */
static void ranks_fetch_what_another_one_has(void)
{
    static const double arrivals[2] = { 0, 1 };
    struct cluster_world w;
    struct mp_cluster_config config = { .cluster = &w.cluster,
                                        .place = mp_place_find("united"),
                                        .arrivals = arrivals };
    struct mp_cluster_result whole, parts;

    world_init(&w, 2, 1, 1, 2, 2);
    w.cluster.rows_once = 1;
    w.cluster.gen = 200;
    w.cluster.latency_us = 9975;
    w.servers[0].mbit = w.servers[1].mbit = 80000;
    CHECK_EQ(mp_cluster_run(&config, &whole), MP_OK);
    CHECK(whole.fetched == 1 && whole.reads == 1);
    w.cluster.once_bytes = 1e6;
    CHECK_EQ(mp_cluster_run(&config, &parts), MP_OK);
    CHECK(parts.fetched == 1 && parts.reads == 1);
    CHECK(takes_us(parts.server_mean_s[0] - whole.server_mean_s[0], 2 * 10000));
    CHECK(takes_us(parts.server_mean_s[1] - whole.server_mean_s[1], 0));
    mp_cluster_result_fini(&parts);
    mp_cluster_result_fini(&whole);
}

/* While the first one gets an expert, which takes 30 ms of the second one's link, the third one's
 * rows wait for all of it, or for a piece of one; the second one's requests come when all is over.
 */
static void others_send_between_pieces_of_an_expert(void)
{
    static const double arrivals[3] = { 0, 10, 0.3 };
    struct cluster_world w;
    struct mp_cluster_config config = { .cluster = &w.cluster,
                                        .place = mp_place_find("united"),
                                        .arrivals = arrivals };
    struct mp_cluster_result whole, parts;

    world_init(&w, 3, 1, 1, 3, 3);
    w.cluster.rows_once = 1;
    w.cluster.gen = 200;
    w.cluster.latency_us = 9975;
    for (int n = 0; n < 3; n++)
        w.servers[n].mbit = 800;
    CHECK_EQ(mp_cluster_run(&config, &whole), MP_OK);
    w.cluster.once_bytes = 1e5;
    CHECK_EQ(mp_cluster_run(&config, &parts), MP_OK);
    CHECK(whole.fetched == 2 && parts.fetched == 2);
    CHECK(whole.server_mean_s[1] == parts.server_mean_s[1]);
    CHECK(whole.server_mean_s[2] > whole.server_mean_s[1] + 0.05);
    CHECK(parts.server_mean_s[2] < whole.server_mean_s[1] + 0.015);
    mp_cluster_result_fini(&parts);
    mp_cluster_result_fini(&whole);
}

static void requests_are_redirected_to_idle_servers(void)
{
    struct cluster_world w;
    struct mp_cluster_result own, redirected;

    world_init(&w, 2, 1, 1, 1, 1);
    w.cluster.requests = 20;
    w.servers[0].arrival_s = 1e-6;
    own = run(&w, "local");
    redirected = run(&w, "redirect");
    CHECK(own.moved == 0 && redirected.moved == 10);
    CHECK(redirected.server_mean_s[0] < 0.6 * own.server_mean_s[0]);
    mp_cluster_result_fini(&redirected);
    mp_cluster_result_fini(&own);
}

/* Placed for the mean of two domains, then for the own one. */
static void migration_follows_what_is_used(void)
{
    struct cluster_world w;
    struct mp_cluster_result still, moved;

    world_init(&w, 2, 16, 2, 16, 2);
    w.cluster.requests = 200;
    w.cluster.gen = 4;
    w.cluster.domains = 2;
    w.cluster.known = 0;
    w.cluster.skew = 2;
    w.servers[1].domain = 1;
    w.servers[0].arrival_s = w.servers[1].arrival_s = 1;
    still = run(&w, "prism");
    w.cluster.epoch_s = w.cluster.horizon_s = 20;
    moved = run(&w, "prism");
    CHECK(still.migrations == 0 && still.copied == 0);
    CHECK(moved.migrations >= 1 && moved.copied > 0);
    CHECK(moved.local_share_2 > still.local_share_2 + 0.05);
    CHECK(moved.mean_s < still.mean_s);
    mp_cluster_result_fini(&moved);
    mp_cluster_result_fini(&still);
    w.cluster.horizon_s = 0; /* nothing pays in no time */
    moved = run(&w, "prism");
    CHECK_EQ(moved.migrations, 0);
    mp_cluster_result_fini(&moved);
}

/* What a placement gives a rank is read or comes from another one, before it is in use. */
static void ranks_read_what_a_new_placement_gives_them(void)
{
    struct cluster_world w;
    struct mp_cluster_result still, moved;

    world_init(&w, 2, 16, 2, 16, 2);
    w.cluster.rows_once = 1;
    w.cluster.requests = 200;
    w.cluster.gen = 4;
    w.cluster.domains = 2;
    w.cluster.known = 0;
    w.cluster.skew = 2;
    w.servers[1].domain = 1;
    w.servers[0].arrival_s = w.servers[1].arrival_s = 1;
    still = run(&w, "prism");
    w.cluster.epoch_s = w.cluster.horizon_s = 20;
    moved = run(&w, "prism");
    CHECK_EQ(still.filled + still.reads + still.fetched, 2 * 16);
    CHECK(moved.migrations >= 1 && moved.copied > 0);
    CHECK(moved.filled + moved.reads + moved.fetched >= 2 * 16 + moved.copied);
    mp_cluster_result_fini(&moved);
    mp_cluster_result_fini(&still);
}

/* 300 small clusters, each placement twice: checked while it runs, and the same to the last bit. */
static void runs_repeat_to_the_last_bit(void)
{
    for (uint32_t i = 0; i < 300; i++) {
        const struct mp_place_ops *ops = mp_place_builtin(i % 9);
        const uint32_t layers = 1 + random_below(3), experts = 2 + random_below(6);
        const uint32_t servers = 1 + random_below(4);
        struct cluster_world w;
        struct mp_cluster_result a, b;
        double *a_mean, *b_mean;

        world_init(&w, servers, layers * experts / servers + 1 + random_below(3), layers, experts,
                   1 + random_below(2));
        w.cluster.requests = 10;
        w.cluster.prompt = 1 + random_below(200);
        w.cluster.gen = 1 + random_below(3);
        w.cluster.domains = 2;
        w.cluster.shift_after = random_below(10);
        w.cluster.epoch_s = random_below(2);
        w.cluster.horizon_s = 300;
        for (uint32_t n = 0; n < servers; n++) {
            w.servers[n].arrival_s = 0.01;
            w.servers[n].domain = n % 2;
            w.servers[n].reads = random_below(2);
        }
        if (ops->pages && !ops->calls) {
            for (uint32_t n = 0; n < servers; n++)
                w.servers[n].reads = 1;
        }
        a = run(&w, ops->name);
        b = run(&w, ops->name);
        CHECK(a.local_share >= 0 && a.local_share <= 1 && a.busy_share <= 1);
        CHECK(a.requests == 10 * servers && a.p95_s >= a.mean_s * 0.5);
        CHECK(ops->pages || a.reads == 0);
        CHECK(ops->calls || (a.sent_bytes == 0 && a.local_share == 1));
        a_mean = a.server_mean_s;
        b_mean = b.server_mean_s;
        CHECK(memcmp(a_mean, b_mean, servers * sizeof(*a_mean)) == 0);
        a.server_mean_s = b.server_mean_s = NULL;
        CHECK(memcmp(&a, &b, sizeof(a)) == 0);
        free(a_mean);
        free(b_mean);
    }
}

static void what_cannot_be_simulated_is_refused(void)
{
    struct cluster_world w;
    struct mp_cluster_result r;
    static const volatile sig_atomic_t canceled = 1;
    struct mp_cluster_config config = {
        .cluster = &w.cluster, .place = mp_place_find("prism"), .seed = 3, .check = true
    };

    world_init(&w, 2, 1, 1, 3, 2);
    CHECK_EQ(mp_cluster_run(&config, &r), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_PLACE_ROOM");
    CHECK(strstr(mp_error_last()->text, "keep 2 experts, need all 3") != NULL);
    config.place = mp_place_find("local");
    w.servers[1].reads = 0; /* and it cannot ask */
    CHECK_EQ(mp_cluster_run(&config, &r), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_CLUSTER");
    w.servers[1].reads = 1;
    w.servers[1].device_gib = 1e-9;
    CHECK_EQ(mp_cluster_run(&config, &r), MP_ERR_CONFIG);
    CHECK(strstr(mp_error_last()->text, "of server 1 has no room") != NULL);
    world_init(&w, 2, 2, 1, 3, 2);
    config.cancel = &canceled;
    CHECK_EQ(mp_cluster_run(&config, &r), MP_ERR_CANCELED);
    mp_error_clear();
}

static void every_allocation_fails_once(void)
{
    struct cluster_world w;
    const struct mp_cluster_config config = { .cluster = &w.cluster,
                                              .place = mp_place_find("united"),
                                              .seed = 3 };
    struct mp_cluster_result r;
    uint64_t n = 0;

    world_init(&w, 2, 2, 1, 3, 2);
    for (;; n++) {
        enum mp_status status;

        fault_nth(FAULT_ALLOCATIONS, n);
        status = mp_cluster_run(&config, &r);
        if (fault_end() == 0) {
            CHECK_EQ(status, MP_OK);
            break;
        }
        CHECK_EQ(status, MP_ERR_NO_MEMORY);
        CHECK(r.server_mean_s == NULL);
    }
    CHECK_EQ(n, 6); /* domains, the block, two placements, latencies, the servers' means */
    mp_cluster_result_fini(&r);
}

int main(void)
{
    mp_test_drop_log();
    RUN(a_server_alone_takes_its_layers);
    RUN(asking_takes_two_messages_and_the_work);
    RUN(links_send_a_burst_at_once);
    RUN(messages_take_time_of_both_devices);
    RUN(servers_of_one_host_share_its_processors);
    RUN(servers_of_one_host_share_its_disk);
    RUN(ranks_that_have_read_wait_for_a_processor);
    RUN(messages_take_processors_on_their_way);
    RUN(reads_take_processors);
    RUN(rows_go_once_to_a_server);
    RUN(requests_arrive_when_they_are_told);
    RUN(tokens_choose_by_shares);
    RUN(reading_and_asking_are_compared);
    RUN(a_layer_that_reads_waits_once_more);
    RUN(ranks_try_again_what_they_do_not_do);
    RUN(ranks_expect_what_reads_took_in_the_background);
    RUN(ranks_fetch_what_another_one_has);
    RUN(others_send_between_pieces_of_an_expert);
    RUN(requests_are_redirected_to_idle_servers);
    RUN(migration_follows_what_is_used);
    RUN(ranks_read_what_a_new_placement_gives_them);
    RUN(runs_repeat_to_the_last_bit);
    RUN(what_cannot_be_simulated_is_refused);
    RUN(every_allocation_fails_once);
    return 0;
}
