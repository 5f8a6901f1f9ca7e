/*
 * Recorded requests on several servers: every token chooses what the trace says, what is no such
 * trace is refused, and servers that are ranks have the memory of a pager.
 */
#include <math.h>
#include <unistd.h>

#include "policy/sim/cluster/cluster.h"
#include "tests/support/fault/wrap.h"
#include "tests/support/log_guard.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

/* A layer takes 1 ms, an expert 100 us and 10 us a token, reading one 5 ms. */
#define MACHINE                                                                        \
    "link_gbps 1\ncopy_us 1\ndevice_gbps 1\ndevice_gflops 1\nlaunch_us 1\ndevice_gib " \
    "1\nexpert_us 100\nexpert_token_us 10\nlayer_us 1000\nload_us 5000\n"
#define HEAD(layers, experts, top_k)                                                       \
    "# moepager trace v1\n# model=m layers=" #layers " experts=" #experts " top_k=" #top_k \
    " expert_bytes=1\n"

static char path[64];

static enum mp_status read_text(const char *text, struct mp_cluster_routing *routing)
{
    FILE *file = fopen(path, "w");

    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
    return mp_cluster_routing_read(path, routing);
}

struct world {
    struct mp_cluster cluster;
    struct mp_cluster_server servers[2];
    struct mp_cluster_routing routing;
};

static void world_init(struct world *w, uint32_t servers, uint32_t slots, const char *trace)
{
    char text[256];
    struct mp_cluster *c = &w->cluster;

    memset(w, 0, sizeof(*w));
    CHECK_EQ(read_text(trace, &w->routing), MP_OK);
    snprintf(text, sizeof(text),
             "layers %u\nexperts %u\ntop_k %u\nhidden 500\nexpert_ffn 1000\nvocabulary "
             "1\nattention_params 1\nkv_bytes 0\n",
             w->routing.layers, w->routing.experts, w->routing.top_k);
    CHECK_EQ(mp_sim_model_parse("m", text, &c->model), MP_OK);
    c->server_count = servers;
    c->servers = w->servers;
    c->requests = c->prompt = c->gen = c->domains = c->copies = c->rows_once = 1;
    c->known = -1;
    c->value_bytes = 2;
    c->horizon_s = 1e6;
    for (uint32_t n = 0; n < servers; n++) {
        CHECK_EQ(mp_sim_machine_parse("m", MACHINE, &w->servers[n].machine), MP_OK);
        w->servers[n].devices = w->servers[n].reads = 1;
        w->servers[n].device_gib = (double)(mp_sim_other_bytes(&c->model) +
                                            (slots + 1.5) * mp_sim_expert_bytes(&c->model)) /
                                   1073741824;
        w->servers[n].mbit = 8;
        w->servers[n].arrival_s = 1e6;
    }
}

static struct mp_cluster_result run(const struct world *w, const char *place,
                                    const double *arrivals, const uint32_t *recorded)
{
    const struct mp_cluster_config config = { .cluster = &w->cluster,
                                              .place = mp_place_find(place),
                                              .arrivals = arrivals,
                                              .routing = &w->routing,
                                              .recorded = recorded,
                                              .check = true };
    struct mp_cluster_result r;

    CHECK_EQ(mp_cluster_run(&config, &r), MP_OK);
    return r;
}

static bool takes_us(double s, double us)
{
    return fabs(s * 1e6 - us) < 2;
}

/* A prompt of three tokens in two batches and a token behind it; then a request of one token. */
static const char two_requests[] = HEAD(2, 4, 2) "0 0 0 0 1:1 0:1\n0 0 0 1 2:1 1:1\n"
                                                 "0 1 0 0 3:1 0:1\n0 1 0 1 3:1 2:1\n"
                                                 "0 0 0 2 1:1 3:1\n0 1 0 2 0:1 1:1\n"
                                                 "1 0 0 3 2:1 3:1\n1 1 0 3 1:1 2:1\n"
                                                 "0 0 0 0 0:1 1:1\n0 1 0 0 0:1 1:1\n";

static void a_trace_is_read_by_requests_and_batches(void)
{
    struct mp_cluster_routing r;

    CHECK_EQ(read_text(two_requests, &r), MP_OK);
    CHECK(r.layers == 2 && r.experts == 4 && r.top_k == 2 && r.tokens_max == 2);
    CHECK(r.requests == 2 && r.batches == 4);
    CHECK(r.first_batch[0] == 0 && r.first_batch[1] == 3 && r.first_batch[2] == 4);
    CHECK(r.batch[0].tokens == 2 && r.batch[1].tokens == 1 && r.batch[3].tokens == 1);
    CHECK(r.batch[1].first_row == 4 && r.batch[2].first_row == 6);
    CHECK(r.chosen[0] == 1 && r.chosen[1] == 0 && r.chosen[2] == 2 && r.chosen[2 * 5] == 0);
    mp_cluster_routing_fini(&r);
    CHECK_EQ(read_text(HEAD(1, 2, 1) "0 0 0 0 1:1\n1 0 0 1 0:1\n0 0 0 0 1:1\n", &r), MP_OK);
    CHECK(r.requests == 2 && r.batches == 3); /* with one layer, too */
    mp_cluster_routing_fini(&r);
}

/* All is kept. Batches of the first request: 2000 us of layers and 120 + 2 * 110 us and so on; the
 * second one arrives long after. */
static void tokens_choose_what_was_recorded(void)
{
    static const double arrivals[] = { 1, 2 };
    static const uint32_t recorded[] = { 0, 1 }, swapped[] = { 1, 0 };
    struct world w;
    struct mp_cluster_result r;

    world_init(&w, 1, 8, two_requests);
    w.cluster.requests = 2;
    w.cluster.prompt = 7; /* of what is drawn only */
    r = run(&w, "local", arrivals, recorded);
    CHECK_EQ(r.chosen, 20); /* two of each token and layer */
    CHECK(r.local_share == 1 && r.reads == 0 && r.filled == 8);
    CHECK(takes_us(r.end_s, 2e6 + 2440));
    CHECK(takes_us(2 * r.mean_s, 2440 + (2000 + 340 + 340) + 2440 + 2440));
    mp_cluster_result_fini(&r);
    r = run(&w, "local", arrivals, swapped);
    CHECK(r.chosen == 20 && takes_us(r.end_s, 2e6 + 7560));
    mp_cluster_result_fini(&r);
    w.cluster.model.experts = 3;
    CHECK_EQ(mp_cluster_run(&(struct mp_cluster_config){ .cluster = &w.cluster,
                                                         .place = mp_place_find("local"),
                                                         .routing = &w.routing,
                                                         .recorded = recorded },
                            &r),
             MP_ERR_CONFIG);
    CHECK(strstr(mp_error_last()->text, "2 MoE layers with 4 experts") != NULL);
    mp_cluster_routing_fini(&w.routing);
}

static void other_traces_are_refused(void)
{
    static const struct {
        const char *text, *why;
    } bad[] = {
        { HEAD(2, 4, 1), "nothing is recorded" },
        { HEAD(2, 4, 1) "0 0 0 1 1:1\n", "does not begin with a prompt" },
        { HEAD(2, 4, 1) "0 0 1 0 1:1\n", "more than one sequence" },
        { HEAD(2, 4, 1) "0 0 0 0 1:1\n", "not go through all layers" },
        { HEAD(2, 4, 1) "0 0 0 0 1:1\n0 0 0 0 1:1\n", "not go through all layers" },
        { HEAD(2, 4, 1) "0 1 0 0 1:1\n", "does not begin with a prompt" },
        { HEAD(2, 4, 1) "0 0 0 0 1:1\n0 0 0 1 1:1\n0 1 0 0 1:1\n", "not go through all layers" },
        { HEAD(2, 4, 1) "0 0 0 0 1:1\n0 1 0 0 1:1\n0 1 0 1 1:1\n", "not the tokens of the one" },
        { HEAD(3, 4, 1) "0 0 0 0 1:1\n0 2 0 0 1:1\n", "not the tokens of the one" },
    };
    struct mp_cluster_routing r;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        CHECK_EQ(read_text(bad[i].text, &r), MP_ERR_CONFIG);
        CHECK(strstr(mp_error_last()->text, bad[i].why) != NULL);
        CHECK(r.chosen == NULL && r.batch == NULL && r.first_batch == NULL);
    }
    CHECK_EQ(mp_cluster_routing_read("/nonexistent", &r), MP_ERR_IO);
    mp_error_clear();
}

static void every_allocation_of_reading_fails_once(void)
{
    struct mp_cluster_routing r;
    uint64_t n = 0;

    CHECK_EQ(read_text(two_requests, &r), MP_OK);
    mp_cluster_routing_fini(&r);
    for (;; n++) {
        enum mp_status status;

        fault_nth(FAULT_ALLOCATIONS, n);
        status = mp_cluster_routing_read(path, &r);
        if (fault_end() == 0) {
            CHECK_EQ(status, MP_OK);
            break;
        }
        CHECK_EQ(status, MP_ERR_NO_MEMORY);
        CHECK(r.chosen == NULL && r.batch == NULL && r.first_batch == NULL);
    }
    CHECK(n >= 3);
    mp_cluster_routing_fini(&r);
}

/* Layer 0 is kept, and room for two more. Layer 1 reads four, for which two of layer 0 go; those
 * come back before layer 0, in place of two of the others, which are read again. */
static void what_a_rank_reads_takes_the_place_of_what_it_keeps(void)
{
    static const double arrivals[] = { 1 };
    static const uint32_t recorded[] = { 0 };
    struct world w;
    struct mp_cluster_result r;

    world_init(&w, 1, 4,
               HEAD(2, 4, 4) "0 0 0 0 0:1 1:1 2:1 3:1\n0 1 0 0 0:1 1:1 2:1 3:1\n"
                             "1 0 0 1 0:1 1:1 2:1 3:1\n1 1 0 1 0:1 1:1 2:1 3:1\n"
                             "2 0 0 2 0:1 1:1 2:1 3:1\n2 1 0 2 0:1 1:1 2:1 3:1\n");
    r = run(&w, "local", arrivals, recorded);
    CHECK_EQ(r.chosen, 24);
    CHECK_EQ(r.reads, 4 + 2 + 2);
    CHECK_EQ(r.reading_layers, 5); /* layer 0 waits for what is on its way back */
    CHECK_EQ(r.filled, 4 + 2 + 2 + 2);
    mp_cluster_result_fini(&r);
    w.cluster.rows_once = 0; /* no ranks: of what is read nothing stays */
    r = run(&w, "local", arrivals, recorded);
    CHECK(r.reads == 12 && r.filled == 0);
    mp_cluster_result_fini(&r);
    mp_cluster_routing_fini(&w.routing);
}

/* Expert 0 is kept. It was chosen four times in the first epoch and expert 1 three times in the
 * fourth, when the former has faded to half of one. */
static void what_ranks_have_told_fades(void)
{
    static const double arrivals[] = { 0.1, 0.2, 0.3, 0.4, 3.1, 3.2, 3.3, 5.5 };
    static const uint32_t recorded[] = { 0, 0, 0, 0, 1, 1, 1, 1 };
    struct world w;
    struct mp_cluster_result r;

    world_init(&w, 1, 1, HEAD(1, 8, 1) "0 0 0 0 0:1\n0 0 0 0 1:1\n");
    w.cluster.requests = 8;
    w.cluster.epoch_s = 1;
    r = run(&w, "local", arrivals, recorded);
    CHECK_EQ(r.migrations, 1);
    mp_cluster_result_fini(&r);
    w.cluster.rows_once = 0;
    r = run(&w, "local", arrivals, recorded);
    CHECK_EQ(r.migrations, 0);
    mp_cluster_result_fini(&r);
    mp_cluster_routing_fini(&w.routing);
}

/* Both servers compute when the second request of the first one comes. It waits there until the
 * second server has done its short one: 1110 us each token. */
static void a_rank_that_is_free_takes_what_waits(void)
{
    static const double arrivals[] = { 1, 1.0001, 1, 9 };
    static const uint32_t recorded[] = { 0, 1, 1, 1 };
    struct world w;
    struct mp_cluster_result r;

    world_init(&w, 2, 1,
               HEAD(1, 1, 1) "0 0 0 0 0:1\n1 0 0 1 0:1\n2 0 0 2 0:1\n3 0 0 3 0:1\n0 0 0 0 0:1\n");
    w.cluster.requests = 2;
    r = run(&w, "redirect", arrivals, recorded);
    CHECK_EQ(r.moved, 1);
    CHECK(takes_us(2 * r.server_mean_s[0], 4 * 1110 + 2 * 1110 - 100));
    mp_cluster_result_fini(&r);
    mp_cluster_routing_fini(&w.routing);
}

int main(void)
{
    mp_test_drop_log();
    snprintf(path, sizeof(path), "/tmp/cluster_routing_test.%d", (int)getpid());
    RUN(a_trace_is_read_by_requests_and_batches);
    RUN(tokens_choose_what_was_recorded);
    RUN(other_traces_are_refused);
    RUN(every_allocation_of_reading_fails_once);
    RUN(what_a_rank_reads_takes_the_place_of_what_it_keeps);
    RUN(what_ranks_have_told_fades);
    RUN(a_rank_that_is_free_takes_what_waits);
    unlink(path);
    return 0;
}
