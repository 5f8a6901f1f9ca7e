/*
 * What can be counted of a step without a device: kernels, copies, blocks, blocks without work,
 * waits of the host, calls of the driver. Run by hand it prints a table; as a test it holds the
 * counts to what docs/kernels.md says of them. Nothing is timed.
 */
#include "engine/forward/cuda/device.h"
#include "engine/forward/forced_routing.h"
#include "policy/replay/replay.h"
#include "tests/device/fakecuda/client.h"
#include "tests/model/harness.h"
#include "tests/support/log_guard.h"
#include "tests/support/test.h"
#include "vmm/base/compiler.h"
#include "vmm/base/error.h"

#define MODEL "tests/data/models/qwen3moe-tiny"
#define LONG_MODEL "models/tiny-moe" /* may have a context for which attention is split */
#define PER_LAYER 8                  /* kernels */
#define OUTSIDE 3                    /* embedding, rows that want logits, head */
#define LAYERS 4                     /* of MODEL, with 8 experts, of which a token chooses 2 */

struct counts {
    struct fakecuda_work work;
    uint64_t waits;  /* of the step's thread */
    uint64_t beside; /* of threads that note the end of experts, for which the step does not wait */
    uint64_t calls;
    uint64_t thrown; /* MoE layers that a graph computed for nothing */
};

/* One step: a token for each of the sequences, behind those before; its logits. */
static const float *feed(struct harness *h, uint32_t tokens, uint32_t position)
{
    uint32_t token[8], sequence[8], positions[8];
    uint8_t want[8];
    const struct mp_batch batch = {
        .count = tokens, .token = token, .sequence = sequence, .position = positions, .want = want
    };
    const float *logits;

    for (uint32_t t = 0; t < tokens; t++) {
        token[t] = (t * 37 + position * 11) % h->model.vocab;
        sequence[t] = t;
        positions[t] = position;
        want[t] = 1;
    }
    if (mp_forward(h->engine, &batch, &logits) != MP_OK) {
        fprintf(stderr, "error[%s]: %s\n", mp_error_last()->code, mp_error_last()->text);
        exit(1);
    }
    return logits;
}

static struct counts count_now(void)
{
    struct counts c = { .calls = fake_api.calls(NULL) };

    fake_api.work(&c.work);
    c.waits = fake_api.calls("cuStreamSynchronize");
    c.beside = fake_api.calls("cuEventSynchronize");
    return c;
}

/* The last of a few steps; every expert is resident, unless a budget says less. */
static struct counts step(bool graphs, uint32_t tokens, uint32_t ctx, unsigned percent,
                          uint32_t *layers_p)
{
    struct harness_options options = harness_defaults(ctx < 1024 ? MODEL : LONG_MODEL);
    struct mp_space_plan plan;
    struct counts counts;
    struct harness h;

    options.backend = "cuda";
    options.sequences = options.tokens_max = options.wanted_max = tokens;
    options.ctx = ctx;
    options.graphs = graphs;
    options.policies.profile = "lru";
    plan = harness_plan(&options, NULL);
    if (percent < 100)
        options.budget_bytes =
            plan.smallest_bytes + (plan.full_bytes - plan.smallest_bytes) / 100 * percent;
    harness_open(&options, &h);
    for (unsigned i = 0; i < 7; i++)
        feed(&h, tokens, percent < 100 ? i : 0); /* the same: in the end their experts are there */
    fake_api.reset();
    feed(&h, tokens, percent < 100 ? 7 : 0);
    counts = count_now();
    if (graphs && percent == 100)
        CHECK_EQ(fake_api.calls("cuGraphLaunch"), 1);
    *layers_p = h.model.layers;
    harness_close(&h);
    check_nothing_lives();
    return counts;
}

static void print(const char *what, const struct counts *c, uint32_t layers)
{
    printf("%-34s %8.2f %7llu %6llu %8.2f %6llu %7llu %7llu %7llu %7llu\n", what,
           (double)(c->work.kernels - OUTSIDE) / layers, (unsigned long long)c->work.copies,
           (unsigned long long)c->work.fills, (double)c->work.blocks / layers,
           (unsigned long long)c->work.idle_blocks, (unsigned long long)c->waits,
           (unsigned long long)c->beside, (unsigned long long)c->calls,
           (unsigned long long)c->thrown);
}

static void print_head(void)
{
    printf("%-34s %8s %7s %6s %8s %6s %7s %7s %7s %7s\n", "a step", "kernels", "copies", "fills",
           "blocks", "idle", "waits", "beside", "calls", "thrown");
    printf("%-34s %8s %7s %6s %8s %46s\n", "", "/layer", "", "", "/layer", "layers");
}

static void show(const char *what, bool graphs, uint32_t tokens, uint32_t ctx, unsigned percent)
{
    uint32_t layers;
    const struct counts c = step(graphs, tokens, ctx, percent, &layers);

    print(what, &c, layers);
    if (percent == 100)
        CHECK_EQ(c.work.kernels, OUTSIDE + PER_LAYER * layers);
    if (tokens == 1)
        CHECK_EQ(c.work.idle_blocks, 0);
    if (!graphs && percent == 100)
        CHECK_EQ(c.waits, layers + 1); /* the scores of each layer, the logits */
    if (graphs) {                      /* the batch comes; misses, scores and logits go */
        CHECK_EQ(c.work.copies, 4);
        CHECK_EQ(c.waits, 1);
    }
}

static void steps_have_few_kernels(void)
{
    print_head();
    show("graph, 1 token", true, 1, 64, 100);
    show("graph, 1 token, long context", true, 1, 2048, 100);
    show("graph, 8 tokens", true, 8, 64, 100);
    show("host-driven, 1 token", false, 1, 64, 100);
    show("host-driven, 1 token, 25 %", false, 1, 64, 25);
}

/* ---- misses where they are wanted: the pair of experts of each layer, by position */

static const uint32_t pairs[][LAYERS] = {
    { 0, 0, 0, 0 }, { 0, 1, 0, 0 }, { 0, 2, 0, 0 }, { 3, 3, 3, 3 }
};
static struct mp_forced_routing *forced;

static void make_routing(void)
{
    struct mp_replay_trace trace;

    CHECK_EQ(mp_replay_trace_init(&trace, LAYERS, 8, 2), MP_OK);
    for (uint32_t l = 0; l < LAYERS; l++)
        trace.layer_bytes[l] = 1;
    for (uint32_t i = 0; i < MP_ARRAY_LEN(pairs) * LAYERS; i++) {
        const uint32_t pair = pairs[i / LAYERS][i % LAYERS];

        CHECK_EQ(mp_replay_trace_begin(&trace, i % LAYERS, true), MP_OK);
        CHECK_EQ(mp_replay_trace_choose(&trace, 2 * pair), MP_OK);
        CHECK_EQ(mp_replay_trace_choose(&trace, 2 * pair + 1), MP_OK);
    }
    CHECK_EQ(mp_replay_trace_end(&trace), MP_OK);
    CHECK_EQ(mp_forced_routing_make(&trace, "pairs", LAYERS, 8, 2, &forced), MP_OK);
    mp_replay_trace_fini(&trace);
}

static enum mp_status set_routing(void *ctx, struct mp_engine_config *config)
{
    (void)ctx;
    config->forced_routing = forced;
    return MP_OK;
}

/* The last of the steps at these positions (digits), and its logits. */
static struct counts step_at(const char *positions, bool graphs, bool least, float *logits)
{
    struct harness_options options = harness_defaults(MODEL);
    const float *now = NULL;
    uint64_t thrown = 0;
    struct counts counts;
    struct harness h;

    options.backend = "cuda";
    options.graphs = graphs;
    options.before_engine = set_routing;
    options.policies.profile = "lru";
    if (least)
        options.budget_bytes = harness_plan(&options, NULL).smallest_bytes;
    harness_open(&options, &h);
    for (size_t i = 0; positions[i] != '\0'; i++) {
        thrown = mp_device_graphs_counted(h.engine->device).thrown;
        fake_api.reset();
        now = feed(&h, 1, (uint32_t)(positions[i] - '0'));
    }
    counts = count_now();
    counts.thrown = mp_device_graphs_counted(h.engine->device).thrown - thrown;
    memcpy(logits, now, h.model.vocab * sizeof(float));
    harness_close(&h);
    check_nothing_lives();
    return counts;
}

/* As many waits as layers with misses, and one; and the bits of the host's steps. */
static void show_misses(const char *what, const char *positions, bool least, uint32_t layers,
                        uint64_t thrown)
{
    static float want[4096], got[4096];
    const struct counts host = step_at(positions, false, least, want);
    const struct counts c = step_at(positions, true, least, got);

    print(what, &c, LAYERS);
    CHECK_EQ(host.waits, LAYERS + 1);
    CHECK_EQ(c.waits, layers + 1);
    CHECK_EQ(c.thrown, thrown);
    CHECK(memcmp(want, got, sizeof(want)) == 0);
}

static void a_layer_with_misses_costs_a_wait(void)
{
    make_routing();
    show_misses("misses in one layer", "000000100002", false, 1, 3);
    show_misses("misses in every layer", "0000003", false, LAYERS, 4 + 3 + 2);
    show_misses("misses in every layer of each step", "03030303", true, LAYERS, 0);
    mp_forced_routing_destroy(forced);
}

int main(void)
{
    setenv("FAKECUDA_GRANULE", "4096", 1);
    find_fake();
    RUN(steps_have_few_kernels);
    RUN(a_layer_with_misses_costs_a_wait);
    return 0;
}
