/*
 * What can be counted of a step without a device: kernels, copies, blocks, blocks without work,
 * waits of the host, calls of the driver. Run by hand it prints a table; as a test it holds the
 * counts to what docs/kernels.md says of them. Nothing is timed.
 */
#include "engine/forward/cuda/device.h"
#include "tests/device/fakecuda/client.h"
#include "tests/model/harness.h"
#include "tests/support/log_guard.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

#define MODEL "tests/data/models/qwen3moe-tiny"
#define LONG_MODEL "models/tiny-moe" /* may have a context for which attention is split */
#define PER_LAYER 8                  /* kernels */
#define OUTSIDE 3                    /* embedding, rows that want logits, head */

struct counts {
    struct fakecuda_work work;
    uint64_t waits;  /* of the step's thread */
    uint64_t beside; /* of threads that note the end of experts, for which the step does not wait */
    uint64_t calls;
};

/* One step: a token for each of the sequences, behind those before. */
static void feed(struct harness *h, uint32_t tokens, uint32_t position)
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

static void show(const char *what, bool graphs, uint32_t tokens, uint32_t ctx, unsigned percent)
{
    uint32_t layers;
    const struct counts c = step(graphs, tokens, ctx, percent, &layers);

    printf("%-34s %8.2f %7llu %6llu %8.2f %6llu %7llu %7llu %7llu\n", what,
           (double)(c.work.kernels - OUTSIDE) / layers, (unsigned long long)c.work.copies,
           (unsigned long long)c.work.fills, (double)c.work.blocks / layers,
           (unsigned long long)c.work.idle_blocks, (unsigned long long)c.waits,
           (unsigned long long)c.beside, (unsigned long long)c.calls);
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
    printf("%-34s %8s %7s %6s %8s %6s %7s %7s %7s\n", "a step", "kernels", "copies", "fills",
           "blocks", "idle", "waits", "beside", "calls");
    printf("%-34s %8s %7s %6s %8s\n", "", "/layer", "", "", "/layer");
    show("graph, 1 token", true, 1, 64, 100);
    show("graph, 1 token, long context", true, 1, 2048, 100);
    show("graph, 8 tokens", true, 8, 64, 100);
    show("host-driven, 1 token", false, 1, 64, 100);
    show("host-driven, 1 token, 25 %", false, 1, 64, 25);
}

int main(void)
{
    setenv("FAKECUDA_GRANULE", "4096", 1);
    find_fake();
    RUN(steps_have_few_kernels);
    return 0;
}
