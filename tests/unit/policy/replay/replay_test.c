/*
 * Replay: a trace worked out by hand, random traces against the bound, and files that are refused.
 */
#include "policy/replay/replay.h"

#include <stdint.h>

#include "policy/replay/replay_int.h"
#include "tests/support/executors.h"
#include "tests/support/random.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "vmm/base/error.h"

static uint64_t random_state = 7;

static void begin_trace(struct mp_replay_trace *trace, uint32_t layers, uint32_t experts,
                        uint32_t top_k)
{
    CHECK_EQ(mp_replay_trace_init(trace, layers, experts, top_k), MP_OK);
    for (uint32_t l = 0; l < layers; l++)
        trace->layer_bytes[l] = 10;
}

/* One layer of 4 experts, two slots, decode of one expert each: 0 1 2 0 1 2 0 1. */
static void a_small_trace_gives_the_numbers_worked_out_by_hand(void)
{
    static const uint32_t chosen[] = { 0, 1, 2, 0, 1, 2, 0, 1 };
    struct mp_replay_config config = { .evict = "lru", .partition = "global", .budget_bytes = 29 };
    struct mp_replay_trace trace;
    struct mp_replay_result r;

    begin_trace(&trace, 1, 4, 1);
    for (size_t i = 0; i < 8; i++) {
        CHECK_EQ(mp_replay_trace_begin(&trace, 0, i > 0), MP_OK);
        CHECK_EQ(mp_replay_trace_choose(&trace, chosen[i]), MP_OK);
    }
    CHECK_EQ(mp_replay_trace_end(&trace), MP_OK);
    CHECK_EQ(trace.total_bytes, 40);
    CHECK_EQ(trace.cycle_bytes, 10);
    CHECK_EQ(mp_replay(&trace, &config, &r), MP_OK);
    CHECK_EQ(r.lookups, 8);
    CHECK_EQ(r.decode_lookups, 7);
    CHECK_EQ(r.hits, 0); /* a loop longer than the slots */
    CHECK_EQ(r.bytes_read, 80);
    /* Two intervals at a time: 0-0 and 1-1 (2 is not kept), then of 0-0, 1-1 again: 4 hits less
     * none dropped; 2-2 fits nowhere. */
    CHECK_EQ(r.bound_decode_hits, 4);
    config.evict = "belady";
    CHECK_EQ(mp_replay(&trace, &config, &r), MP_OK);
    CHECK_EQ(r.hits, 4);
    CHECK_EQ(r.bytes_read, 40);
    CHECK_STR(r.evict, "belady");
    config.evict = "layer";
    CHECK_EQ(mp_replay(&trace, &config, &r), MP_OK);
    CHECK_STR(r.evict, "layer-lru");
    config.evict = "lru";
    config.budget_bytes = 30;
    CHECK_EQ(mp_replay(&trace, &config, &r), MP_OK);
    CHECK_EQ(r.hits, 5); /* everything that comes again */
    mp_replay_trace_fini(&trace);
}

/* A token that chooses top_k different experts, with scores that say so. */
static void add_token(struct mp_replay_trace *trace, unsigned kind, uint32_t step)
{
    float scores[16];
    uint32_t chosen[16];

    CHECK(trace->experts <= 16);
    for (uint32_t e = 0; e < trace->experts; e++)
        scores[e] = (float)random_below(1000) * 1e-6f;
    for (uint32_t r = 0; r < trace->top_k; r++) {
        uint32_t e = kind % 3 == 0   ? (step + r) % trace->experts
                     : kind % 3 == 1 ? random_below(trace->experts)
                                     : random_below(1 + random_below(trace->experts));

        while (scores[e] >= 0.01f)
            e = (e + 1) % trace->experts;
        chosen[r] = e;
        scores[e] = 0.5f / (float)(r + 1);
    }
    CHECK_EQ(mp_replay_trace_score(trace, scores), MP_OK);
    for (uint32_t r = 0; r < trace->top_k; r++)
        CHECK_EQ(mp_replay_trace_choose(trace, chosen[r]), MP_OK);
}

static void make_random(struct mp_replay_trace *trace, unsigned kind)
{
    const uint32_t layers = 1 + random_below(4), experts = 2 + random_below(9);
    const uint32_t top_k = 1 + random_below(experts < 3 ? experts : 3);

    begin_trace(trace, layers, experts, top_k);
    for (uint32_t step = 0; step < 120; step++) {
        const uint32_t tokens = step % 40 == 0 ? 8 : 1;

        for (uint32_t l = 0; l < layers; l++) {
            CHECK_EQ(mp_replay_trace_begin(trace, l, step % 40 != 0), MP_OK);
            for (uint32_t t = 0; t < tokens; t++)
                add_token(trace, kind, step + t);
        }
    }
    CHECK_EQ(mp_replay_trace_end(trace), MP_OK);
}

static const void *builtin(enum mp_policy_kind kind, size_t i)
{
    return mp_policy_builtin(kind, i);
}

/*
 * Every evict policy with this partition and budget, against the bound. Those that bring in what
 * nobody asked for are no demand policies: they may pass it, but not without reading for it.
 */
static unsigned compare_with_bound(const struct mp_replay_trace *trace,
                                   const struct mp_partition_ops *partition, uint64_t budget)
{
    struct mp_replay_config config = { .evict = "belady",
                                       .partition = partition->info.name,
                                       .budget_bytes = budget };
    const struct mp_evict_ops *evict;
    struct mp_replay_result best, r;
    unsigned close_calls = 0;

    CHECK_EQ(mp_replay(trace, &config, &best), MP_OK);
    CHECK(best.decode_hits <= best.bound_decode_hits);
    for (size_t i = 0; (evict = builtin(MP_POLICY_EVICT, i)) != NULL; i++) {
        const bool demand_only = evict->replace == NULL && partition->first == NULL;

        config.evict = evict->info.name;
        config.slices = random_below(8) > 0 ? 1 : 2 + random_below(3);
        CHECK_EQ(mp_replay(trace, &config, &r), MP_OK);
        CHECK_STR(r.partition, partition->info.name);
        CHECK_EQ(r.lookups, best.lookups);
        CHECK(r.bytes_read >= (r.lookups - r.hits - r.partial_hits) * 10);
        CHECK(r.partial_hits == 0 || config.slices > 1);
        if (!demand_only)
            continue;
        CHECK(r.decode_hits <= r.bound_decode_hits);
        CHECK(r.bytes_read <= (r.lookups - r.hits) * 10);
        CHECK(r.partial_hits > 0 || r.bytes_read == (r.lookups - r.hits) * 10);
        if (partition->revise == NULL) {
            CHECK_EQ(r.bound_decode_hits, best.bound_decode_hits);
            CHECK(r.hits <= best.hits);
        }
        close_calls += r.hits * 10 > best.hits * 9;
    }
    return close_calls;
}

/*
 * Slots of 4 experts in 2 slices, the default share of which fixed-point keeps one: 3 experts'
 * worth for beginnings, which holds all four, and one expert's for ends. The second round through
 * the four finds every beginning and no end.
 */
static void ends_of_experts_come_and_go(void)
{
    struct mp_replay_config config = {
        .evict = "lcp", .partition = "fixed-point", .budget_bytes = 40, .slices = 2
    };
    struct mp_replay_trace trace;
    struct mp_replay_result r;

    begin_trace(&trace, 1, 4, 1);
    for (uint32_t i = 0; i < 8; i++) {
        CHECK_EQ(mp_replay_trace_begin(&trace, 0, i > 0), MP_OK);
        CHECK_EQ(mp_replay_trace_choose(&trace, i % 4), MP_OK);
    }
    CHECK_EQ(mp_replay_trace_end(&trace), MP_OK);
    CHECK_EQ(mp_replay(&trace, &config, &r), MP_OK);
    CHECK_EQ(r.hits, 0);
    CHECK_EQ(r.partial_hits, 4);
    CHECK_EQ(r.bytes_read, 4 * 10 + 4 * 5);
    config.slices = 1;
    CHECK_EQ(mp_replay(&trace, &config, &r), MP_OK);
    CHECK_EQ(r.hits, 4);
    CHECK_EQ(r.partial_hits, 0);
    CHECK_EQ(r.bytes_read, 40);
    mp_replay_trace_fini(&trace);
}

/* Every evict and partition policy that there is, budgets from one expert to all. */
static void no_demand_policy_passes_the_bound(void)
{
    const struct mp_partition_ops *partition;
    unsigned close_calls = 0;

    for (unsigned kind = 0; kind < 60; kind++) {
        struct mp_replay_trace trace;
        uint32_t units;

        make_random(&trace, kind);
        units = trace.layers * trace.experts;
        for (uint32_t slots = 1; slots <= units; slots += 1 + units / 8) {
            for (size_t p = 0; (partition = builtin(MP_POLICY_PARTITION, p)) != NULL; p++) {
                if (!partition->info.calibrated) /* nothing was measured of a random trace */
                    close_calls += compare_with_bound(&trace, partition, slots * 10);
            }
        }
        mp_replay_trace_fini(&trace);
    }
    CHECK(close_calls > 100);
}

static void what_cannot_be_replayed_is_refused(void)
{
    struct mp_replay_config config = { .evict = "lru", .partition = "global", .budget_bytes = 9 };
    struct mp_replay_trace trace;
    struct mp_replay_result r;

    make_random(&trace, 0);
    CHECK_EQ(mp_replay(&trace, &config, &r), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_REPLAY");
    config.evict = "lrru";
    CHECK_EQ(mp_replay(&trace, &config, &r), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_POLICY");
    config.accounting = MP_REPLAY_CURVE;
    CHECK_EQ(mp_replay(&trace, &config, &r), MP_ERR_CONFIG);
    mp_replay_trace_fini(&trace);
    begin_trace(&trace, 2, 4, 1);
    trace.layer_bytes[1] = 0;
    CHECK_EQ(mp_replay_trace_end(&trace), MP_ERR_UNSUPPORTED);
    mp_replay_trace_fini(&trace);
}

/* What a policy lacks is reported as such, and a calibration makes it run. */
static void what_a_policy_lacks_is_reported(void)
{
    struct mp_replay_config config = { .evict = "none",
                                       .partition = "hot-table",
                                       .budget_bytes = 30 };
    struct mp_calibration calibration = { 0 };
    struct mp_replay_trace trace;
    struct mp_replay_result r;
    float hot[4] = { 0.1f, 0.2f, 0.3f, 0.4f };

    begin_trace(&trace, 1, 4, 1);
    for (uint32_t i = 0; i < 40; i++) {
        CHECK_EQ(mp_replay_trace_begin(&trace, 0, true), MP_OK);
        CHECK_EQ(mp_replay_trace_choose(&trace, i % 4), MP_OK);
    }
    CHECK_EQ(mp_replay_trace_end(&trace), MP_OK);
    CHECK_EQ(mp_replay(&trace, &config, &r), MP_ERR_UNSUPPORTED);
    CHECK_STR(mp_error_last()->code, "E_REPLAY_NA");
    CHECK(strstr(mp_error_last()->text, "calibration") != NULL);
    calibration.hot = hot;
    config.calibration = &calibration;
    CHECK_EQ(mp_replay(&trace, &config, &r), MP_OK);
    CHECK_EQ(r.hits, 10); /* the hottest one stays in one slot; two are for what comes and goes */
    hot[3] = 0;
    CHECK_EQ(mp_replay(&trace, &config, &r), MP_OK);
    CHECK_EQ(r.hits, 10); /* now it is 2 */
    config.predict = "gate";
    CHECK_EQ(mp_replay(&trace, &config, &r), MP_ERR_UNSUPPORTED);
    CHECK(strstr(mp_error_last()->text, "hidden states") != NULL);
    mp_replay_trace_fini(&trace);
}

/*
 * A partition that counts what is routed and predicted hears of it: two layers, the first one
 * always wants one expert, the second one six in turn. Of six slots the second layer then gets
 * five.
 */
static void partitions_hear_what_is_routed_and_predicted(void)
{
    const struct mp_costs costs = { TEST_THREE_EXECUTORS, .load_ns = 1000,
                                    .executors[TEST_DEVICE].fixed_ns = 10, .layer_ns = 10 };
    struct mp_replay_config config = {
        .evict = "lcp", .partition = "fixed-point", .budget_bytes = 60, .costs = &costs
    };
    struct mp_replay_trace trace;
    struct mp_replay_result r, late;

    begin_trace(&trace, 2, 6, 1);
    for (uint32_t i = 0; i < 12000; i++) {
        CHECK_EQ(mp_replay_trace_begin(&trace, 0, i >= 6000), MP_OK);
        CHECK_EQ(mp_replay_trace_choose(&trace, 3), MP_OK);
        CHECK_EQ(mp_replay_trace_begin(&trace, 1, i >= 6000), MP_OK);
        CHECK_EQ(mp_replay_trace_choose(&trace, i % 5), MP_OK);
    }
    CHECK_EQ(mp_replay_trace_end(&trace), MP_OK);
    CHECK_EQ(mp_replay(&trace, &config, &r), MP_OK);
    config.partition = "uniform";
    CHECK_EQ(mp_replay(&trace, &config, &late), MP_OK);
    CHECK(late.decode_hits < 10000);
    CHECK(r.decode_hits > 11900); /* moved after 5000 tokens, in the prompt */
    mp_replay_trace_fini(&trace);
}

#define CSV_HEAD                                              \
    "# route_trace v1\n"                                      \
    "# model=m arch=a n_layer=2 n_expert=4 n_expert_used=2\n" \
    "# layer=0 expert_bytes=10 dense_bytes=5\n"               \
    "# layer=1 expert_bytes=20 dense_bytes=5\n"               \
    "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes\n"
#define OURS_HEAD "# moepager trace v1\n# model=m layers=2 experts=4 top_k=2 expert_bytes=10\n"

static enum mp_status read_text(const char *text, struct mp_replay_trace *trace)
{
    char path[4200];
    FILE *file;

    snprintf(path, sizeof(path), "%s/trace", test_tmpdir());
    file = fopen(path, "we");
    CHECK(file != NULL);
    fputs(text, file);
    CHECK_EQ(fclose(file), 0);
    return mp_replay_trace_read(path, trace);
}

static void both_formats_are_read(void)
{
    static const char *const texts[] = {
        CSV_HEAD "0,0,0,0,0,3,0.5,0,10\n0,0,0,0,1,1,0.5,0,10\n0,0,1,0,0,1,0.5,0,0\n"
                 "0,0,1,0,1,2,0.5,1,0\n0,1,2,0,0,1,0.5,0,0\n0,1,2,0,1,3,0.5,0,0\n",
        OURS_HEAD "0 0 0 0 3:0.5 1:0.5\n0 0 0 1 1:0.5 2:0.5\n1 0 0 2 1:0.5 3:0.5\n",
    };

    for (size_t i = 0; i < 2; i++) {
        struct mp_replay_trace t;

        CHECK_EQ(read_text(texts[i], &t), MP_OK);
        CHECK_EQ(t.group_count, 2);
        CHECK_EQ(t.use_count, 5);
        CHECK_EQ(t.groups[0].count, 3);
        CHECK(!t.groups[0].decode && t.groups[1].decode);
        CHECK_EQ(t.uses[0].id * 100 + t.uses[1].id * 10 + t.uses[2].id, 312);
        CHECK_EQ(t.uses[1].tokens, 2);
        CHECK_EQ(t.uses[0].next, 1);
        CHECK_EQ(t.uses[2].next, MP_REPLAY_NEVER);
        CHECK_EQ(t.cycle_bytes, i == 0 ? 60 : 40);
        mp_replay_trace_fini(&t);
    }
}

static void damaged_lines_are_named(void)
{
    static const struct {
        const char *text, *part;
    } cases[] = {
        { "# route_trace v1\n", "line 2" },
        { "# route_trace v1\n# model=m n_layer=0 n_expert=4 n_expert_used=2\n", "line 2" },
        { "# route_trace v1\n# model=m n_layer=1 n_expert=4 n_expert_used=5\n", "line 2" },
        { "# route_trace v1\n# m n_layer=1 n_expert=4 n_expert_used=2\n# layer=1 x\n", "line 3" },
        { "# route_trace v1\n# m n_layer=4096 n_expert=4 n_expert_used=2\n", "line 3" },
        { "# route_trace v1\n# m n_layer=4097 n_expert=4 n_expert_used=2\n", "line 2" },
        { "# route_trace v1\n# m n_layer=1 n_expert=4096 n_expert_used=2\n", "line 3" },
        { "# route_trace v1\n# m n_layer=1 n_expert=4097 n_expert_used=2\n", "line 2" },
        { "# route_trace v1\n# m n_layer=1 n_expert=100 n_expert_used=64\n", "line 3" },
        { "# route_trace v1\n# m n_layer=1 n_expert=100 n_expert_used=65\n", "line 2" },
        { CSV_HEAD "0,0,0,0,0,4,0.5,0,10\n", "line 6" },
        { CSV_HEAD "0,0,0,2,0,3,0.5,0,10\n", "line 6" },
        { CSV_HEAD "0,2,0,0,0,3,0.5,0,10\n", "line 6" },
        { CSV_HEAD "0,0,99999999999999999999999,0,0,3,0.5,0,10\n", "line 6" },
        { CSV_HEAD "0,0,0,0,1,3,0.5,0,10\n", "not in order" },
        { CSV_HEAD "0,0,0,0,0,3,0.5,0,10\n0,0,0,0,1,3,0.5,0,10\n", "a token has an expert twice" },
        { CSV_HEAD "0,0,0,0,0,3,x,0,10\n", "weight" },
        { CSV_HEAD "0,0,0,0,0,3,0.5,0\n", "weight" },
        { CSV_HEAD "0,0,0,0,0,3\n", "weight" },
        { CSV_HEAD "0,0,0,0,0,3,0.5,0,10", "cut off" },
        { CSV_HEAD "0,0,0,0,0,3,0.5,0,10\n0,0,1,0,1,2,0.5,0,10\n", "line 7" },
        { CSV_HEAD "0,0,0,0,0,3,0.5,0,10\n", "line 7" },
        { OURS_HEAD "0 0 0 0 3:0.5\n", "line 3" },
        { "hello\n", "line 1" },
        { "", "line 1" },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mp_replay_trace t;

        CHECK_EQ(read_text(cases[i].text, &t), MP_ERR_MODEL);
        CHECK_STR(mp_error_last()->code, "E_TRACE_LINE");
        CHECK(strstr(mp_error_last()->text, cases[i].part) != NULL);
        CHECK(t.groups == NULL);
    }
    {
        struct mp_replay_trace t;

        CHECK_EQ(mp_replay_trace_read("/nonexistent", &t), MP_ERR_IO);
        CHECK_EQ(mp_replay_trace_read("tests", &t), MP_ERR_IO);
    }
}

int main(void)
{
    RUN(a_small_trace_gives_the_numbers_worked_out_by_hand);
    RUN(ends_of_experts_come_and_go);
    RUN(no_demand_policy_passes_the_bound);
    RUN(what_cannot_be_replayed_is_refused);
    RUN(what_a_policy_lacks_is_reported);
    RUN(partitions_hear_what_is_routed_and_predicted);
    RUN(both_formats_are_read);
    RUN(damaged_lines_are_named);
    return 0;
}
