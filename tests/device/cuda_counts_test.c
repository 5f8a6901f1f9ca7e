/*
 * What can be counted of a step without a device: kernels, copies, blocks, blocks without work,
 * waits of the host and how often it sleeps for them, calls of the driver, locks. Run by hand it
 * prints a table; as a test it holds those counts to what docs/kernels.md says of them that do not
 * depend on what has moved in time. Nothing is timed: threads wait awake until all is there, or not
 * at all, as on a machine without a processor to spare.
 */
#include <stdatomic.h>

#include "engine/forward/cuda/device.h"
#include "engine/forward/forced_routing.h"
#include "policy/replay/replay.h"
#include "tests/device/fakecuda/client.h"
#include "tests/model/harness.h"
#include "tests/support/log_guard.h"
#include "tests/support/spins.h"
#include "tests/support/test.h"
#include "vmm/base/compiler.h"
#include "vmm/base/error.h"

#define MODEL "tests/data/models/qwen3moe-tiny"
#define LONG_MODEL "models/tiny-moe" /* may have a context for which attention is split */
#define PER_LAYER 8                  /* kernels */
#define OUTSIDE 3                    /* embedding, rows that want logits, head */
#define DENSE 7                      /* kernels of a layer with a dense FFN */
#define SHARED 3                     /* further ones of one with a shared expert */
#define LAYERS 4                     /* of MODEL, with 8 experts, of which a token chooses 2 */

struct counts {
    struct fakecuda_work work;
    uint64_t waits;             /* of the step's thread for the device, awake or asleep */
    uint64_t asleep;            /* waits of all threads in the driver */
    uint64_t sleeps;            /* waits of all threads for another one */
    uint64_t step_locks, locks; /* of the step's thread; of all */
    uint64_t calls;             /* of the driver, but for questions whether something has ended */
    uint64_t thrown;            /* MoE layers that a graph computed for nothing */
};

static const struct mp_spin *spin; /* of engines that are opened */
static const char *model;          /* the same, or NULL */
static uint32_t position;          /* of the step that is counted, where all experts are there */
static const struct mp_sampling *sampling; /* by the device, or NULL */
static const char *predictor;              /* or NULL */
static const char *assign;                 /* of step_at(), or NULL */
static bool early;                         /* kernels begin early */

/* ---- locks, of moepager's own code (tests/tests.cmake) */

static _Atomic uint64_t locks, sleeps;
static _Thread_local uint64_t step_locks; /* of this thread */

int __real_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);
int __real_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex);
int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex);
int __real_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex,
                                  const struct timespec *until);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex,
                                  const struct timespec *until);

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    locks++;
    step_locks++;
    return __real_pthread_mutex_lock(mutex);
}

int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
{
    sleeps++;
    return __real_pthread_cond_wait(cond, mutex);
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex,
                                  const struct timespec *until)
{
    sleeps++;
    return __real_pthread_cond_timedwait(cond, mutex, until);
}

/* ---- steps */

/* One step: a token for each of the sequences, behind those before; its logits. */
static const float *feed(struct harness *h, uint32_t tokens, uint32_t at)
{
    uint32_t token[8], sequence[8], positions[8];
    uint8_t want[8];
    uint32_t uniform[8] = { 0 }, sampled[8];
    const struct mp_sample sample = { sampling, uniform, sampled };
    const struct mp_batch batch = { .count = tokens,
                                    .token = token,
                                    .sequence = sequence,
                                    .position = positions,
                                    .want = want,
                                    .sample = sampling != NULL ? &sample : NULL };
    const float *logits;

    for (uint32_t t = 0; t < tokens; t++) {
        token[t] = (t * 37 + at * 11) % h->model.vocab;
        sequence[t] = t;
        positions[t] = at;
        want[t] = 1;
    }
    if (mp_forward(h->engine, &batch, &logits) != MP_OK) {
        fprintf(stderr, "error[%s]: %s\n", mp_error_last()->code, mp_error_last()->text);
        exit(1);
    }
    return logits;
}

/* Each question sets the context, too. */
static struct counts count(struct harness *h, uint32_t tokens, uint32_t at, const float **logits_p)
{
    const uint64_t locks_before = locks, sleeps_before = sleeps, step_before = step_locks;
    const uint64_t waits_before = h->engine->device->seen_count;
    struct counts c;
    const float *logits;

    fake_api.reset();
    logits = feed(h, tokens, at);
    c = (struct counts){
        .waits = h->engine->device->seen_count - waits_before,
        .asleep = fake_api.calls("cuStreamSynchronize") + fake_api.calls("cuEventSynchronize"),
        .sleeps = sleeps - sleeps_before,
        .step_locks = step_locks - step_before,
        .locks = locks - locks_before,
        .calls = fake_api.calls(NULL) - 2 * fake_api.calls("cuEventQuery"),
    };
    fake_api.work(&c.work);
    if (logits_p != NULL)
        *logits_p = logits;
    return c;
}

/* The last of a few steps; every expert is resident, unless a budget says less: 99 % has those that
 * the steps need. */
static struct counts step(bool graphs, uint32_t tokens, uint32_t ctx, unsigned percent,
                          uint32_t *layers_p)
{
    struct harness_options options = harness_defaults(model != NULL ? model
                                                      : ctx < 1024  ? MODEL
                                                                    : LONG_MODEL);
    struct mp_space_plan plan;
    struct counts counts;
    struct harness h;

    mp_gpu_configure(&(struct mp_gpu_config){ .pdl = early });
    options.backend = "cuda";
    options.sequences = options.tokens_max = options.wanted_max = tokens;
    options.ctx = ctx;
    options.graphs = graphs;
    options.spin = spin;
    options.policies.profile = "lru";
    if (predictor != NULL) {
        options.policies.policy[MP_POLICY_PREDICT] = predictor;
        options.policies.policy[MP_POLICY_PREFETCH] = "top";
    }
    plan = harness_plan(&options, NULL);
    if (percent < 100)
        options.budget_bytes =
            plan.smallest_bytes + (plan.full_bytes - plan.smallest_bytes) / 100 * percent;
    harness_open(&options, &h);
    mp_space_wait_filled(h.engine->space); /* or the stager's locks are counted */
    for (unsigned i = 0; i < 7; i++)
        feed(&h, tokens,
             percent < 99 ? i : position); /* the same: in the end their experts are there */
    counts = count(&h, tokens, percent < 99 ? 7 : position, NULL);
    CHECK_EQ(mp_pager_slots(h.engine->pager) < h.engine->shape.layers * h.engine->shape.experts,
             percent < 100);
    if (graphs && percent >= 99)
        CHECK_EQ(fake_api.calls("cuGraphLaunch"), 1);
    *layers_p = h.model.layers;
    harness_close(&h);
    check_nothing_lives();
    return counts;
}

static void print(const char *what, const struct counts *c, uint32_t layers)
{
    printf("%-34s %8.2f %6llu %5llu %8.2f %5llu %7.2f %6llu %7llu %7llu %6llu %6llu %6llu %7llu\n",
           what, (double)(c->work.kernels - OUTSIDE) / layers, (unsigned long long)c->work.copies,
           (unsigned long long)c->work.fills, (double)c->work.blocks / layers,
           (unsigned long long)c->work.idle_blocks, (double)c->work.idle_attend / layers,
           (unsigned long long)c->waits, (unsigned long long)c->asleep,
           (unsigned long long)c->sleeps, (unsigned long long)c->step_locks,
           (unsigned long long)c->locks, (unsigned long long)c->calls,
           (unsigned long long)c->thrown);
}

static void print_head(void)
{
    printf("%-34s %8s %6s %5s %8s %5s %7s %6s %7s %7s %6s %6s %6s %7s\n", "a step", "kernels",
           "copies", "fills", "blocks", "idle", "attend", "waits", "asleep", "sleeps", "locks",
           "locks", "calls", "thrown");
    printf("%-34s %8s %6s %5s %8s %5s %7s %6s %7s %7s %6s %6s %6s %7s\n", "", "/layer", "", "",
           "/layer", "", "idle/l.", "", "driver", "threads", "step", "all", "", "layers");
}

static void show(const char *what, bool graphs, uint32_t tokens, uint32_t ctx, unsigned percent,
                 uint64_t blocks, uint64_t idle)
{
    uint32_t layers;
    const struct counts c = step(graphs, tokens, ctx, percent, &layers);

    print(what, &c, layers);
    if (percent == 100)
        CHECK_EQ(c.work.kernels, OUTSIDE + PER_LAYER * layers);
    CHECK_EQ(c.work.blocks, blocks);
    CHECK_EQ(c.work.idle_blocks, idle);
    if (percent == 100 && spin == &spin_awake)
        CHECK_EQ(c.calls, graphs ? 12 : 138);
    if (!graphs)
        CHECK_EQ(c.waits, layers + 1); /* the scores of each layer, the logits */
    if (!graphs && percent == 100)
        CHECK_EQ(c.work.copies, 14);
    if (graphs) { /* the batch comes; misses, scores and logits go */
        CHECK_EQ(c.work.copies, 4);
        CHECK_EQ(c.waits, 1);
    }
    if (spin == &spin_awake)
        CHECK_EQ(c.asleep, 0);
    else if (percent == 100)
        CHECK_EQ(c.asleep, c.waits + layers * !graphs); /* and each layer's experts */
    if (percent == 100)
        CHECK_EQ(c.sleeps, 0);
    if (percent == 100) /* a batch of experts is reported, and the step hears it */
        CHECK_EQ(c.step_locks, 2 * layers);
}

static void steps_have_few_kernels(void)
{
    spin = &spin_awake;
    print_head();
    show("graph, 1 token", true, 1, 64, 100, 128, 0);
    show("graph, 1 token, long context", true, 1, 2048, 100, 1130, 0);
    show("graph, 8 tokens", true, 8, 64, 100, 426, 12);
    show("host-driven, 1 token", false, 1, 64, 100, 128, 0);
    show("host-driven, 1 token, 25 %", false, 1, 64, 25, 128, 0);
}

/* A graph has as many blocks for positions as its context has parts of 256; those beyond the
 * token's position end after they have looked at it. With 8 layers of 2 groups of heads. */
static void blocks_of_attention_wait_for_positions(void)
{
    static const struct {
        uint32_t ctx, position, idle; /* blocks of a layer */
    } cases[] = {
        { 512, 0, 0 },            /* not shared out */
        { 2048, 0, 2 * (8 - 1) }, /* as in the table */
        { 2048, 256, 2 * (8 - 2) },
    };

    spin = &spin_awake;
    model = LONG_MODEL;
    print_head();
    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        char what[64];
        uint32_t layers;
        struct counts c;

        position = cases[i].position;
        c = step(true, 1, cases[i].ctx, 100, &layers);
        snprintf(what, sizeof(what), "graph, context %u, position %u", cases[i].ctx, position);
        print(what, &c, layers);
        CHECK_EQ(c.work.idle_attend, cases[i].idle * layers);
        CHECK_EQ(c.work.idle_blocks, 0);
    }
    position = 0;
    model = NULL;
}

/* What layers have that are not like those of MODEL: of these models with shared experts
 * one layer is dense. A graph of them has the four copies of the batch and of results, no other,
 * and no fill. */
static void other_layers_have_these_kernels(void)
{
    static const char *const models[] = { "qwen2moe-tiny", /* its shared expert has a gate */
                                          "deepseek-a" };

    spin = &spin_awake;
    print_head();
    for (size_t i = 0; i < MP_ARRAY_LEN(models); i++) {
        char path[64];

        snprintf(path, sizeof(path), "tests/data/models/%s", models[i]);
        model = path;
        for (int graphs = 0; graphs < 2; graphs++) {
            uint32_t layers;
            const struct counts c = step(graphs, 1, 64, 100, &layers);

            print(models[i], &c, layers);
            CHECK_EQ(c.work.kernels, OUTSIDE + (PER_LAYER + SHARED) * (layers - 1) + DENSE);
            CHECK_EQ(c.work.fills, 0);
            if (graphs)
                CHECK_EQ(c.work.copies, 4);
        }
    }
    model = NULL;
}

/* Two kernels more than a token whose logits the host reads, and no wait more. */
static void a_sampled_token_has_two_kernels(void)
{
    static const struct mp_sampling plain = { .temperature = 0.8, .top_k = 40, .top_p = 0.95 };
    static const struct mp_sampling greedy = { .temperature = 0, .top_p = 1 };

    spin = &spin_awake;
    print_head();
    for (int graphs = 0; graphs < 2; graphs++) {
        for (int best = 0; best < 2; best++) {
            uint32_t layers;
            struct counts c;

            sampling = best ? &greedy : &plain;
            c = step(graphs, 1, 64, 100, &layers);
            print(best ? "greedy token" : "sampled token", &c, layers);
            CHECK_EQ(c.work.kernels, OUTSIDE + PER_LAYER * layers + 2);
            CHECK_EQ(c.waits, graphs ? 1 : layers + 1);
        }
    }
    sampling = NULL;
}

static void waits_are_asleep_where_no_processor_is_left(void)
{
    spin = &spin_asleep;
    print_head();
    show("graph, 1 token, asleep", true, 1, 64, 100, 128, 0);
    show("host-driven, 1 token, asleep", false, 1, 64, 100, 128, 0);
    show("host-driven, 1 token, 25 %, asleep", false, 1, 64, 25, 128, 0);
}

/* What the next layer's gate says comes with a layer's scores, or with a graph. */
static void a_guess_costs_no_wait_and_no_launch(void)
{
    uint32_t layers;
    struct counts c;

    spin = &spin_awake;
    predictor = "gate";
    c = step(false, 1, 64, 25, &layers);
    print("host-driven, gate, 25 %", &c, layers);
    CHECK_EQ(c.waits, layers + 1);
    c = step(false, 1, 64, 99, &layers);
    print("host-driven, gate, 99 %", &c, layers);
    CHECK_EQ(c.waits, layers + 1);
    CHECK_EQ(c.work.kernels, OUTSIDE + PER_LAYER * layers);
    c = step(true, 1, 64, 99, &layers);
    print("graph, gate, 99 %", &c, layers);
    CHECK_EQ(c.waits, 1);
    CHECK_EQ(c.work.kernels, OUTSIDE + PER_LAYER * layers);
    CHECK_EQ(c.work.copies, 5); /* the guesses, too */
    predictor = NULL;
}

/* All of a graph's but the first, which is behind a copy; of those that the host queues, all that
 * are not behind a copy or an event. */
static void most_kernels_begin_early(void)
{
    uint32_t layers;
    struct counts c;

    spin = &spin_awake;
    early = true;
    c = step(true, 1, 64, 100, &layers);
    printf("graph, early: %llu of %llu\n", (unsigned long long)c.work.early,
           (unsigned long long)c.work.kernels);
    CHECK_EQ(c.work.early, OUTSIDE + PER_LAYER * layers - 1);
    c = step(false, 1, 64, 100, &layers);
    printf("host-driven, early: %llu of %llu\n", (unsigned long long)c.work.early,
           (unsigned long long)c.work.kernels);
    CHECK_EQ(c.work.early, 26);
    early = false;
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
    struct counts counts = { .waits = 0 };
    struct harness h;

    options.backend = "cuda";
    options.graphs = graphs;
    options.spin = spin;
    options.before_engine = set_routing;
    options.policies.profile = "lru";
    options.policies.policy[MP_POLICY_ASSIGN] = assign;
    if (least)
        options.budget_bytes = harness_plan(&options, NULL).smallest_bytes;
    harness_open(&options, &h);
    mp_space_wait_filled(h.engine->space);
    for (size_t i = 0; positions[i] != '\0'; i++) {
        thrown = mp_device_graphs_counted(h.engine->device).thrown;
        counts = count(&h, 1, (uint32_t)(positions[i] - '0'), &now);
    }
    counts.thrown = mp_device_graphs_counted(h.engine->device).thrown - thrown;
    memcpy(logits, now, h.model.vocab * sizeof(float));
    harness_close(&h);
    check_nothing_lives();
    return counts;
}

/* As many waits as layers with misses, and one; and the bits of the host's steps. */
static void show_misses(const char *what, const char *positions, bool least, uint32_t layers,
                        uint64_t thrown, uint64_t least_calls, uint64_t most_calls,
                        uint64_t most_locks)
{
    static float want[4096], got[4096];
    const struct counts host = step_at(positions, false, least, want);
    const struct counts c = step_at(positions, true, least, got);

    print(what, &c, LAYERS);
    CHECK_EQ(host.waits, LAYERS + 1);
    CHECK_EQ(c.waits, layers + 1);
    CHECK_EQ(c.thrown, thrown);
    if (layers == 1) /* 13.5 a layer, and two launches more where one of the two comes later */
        CHECK(c.work.kernels == OUTSIDE + 54 || c.work.kernels == OUTSIDE + 54 + 2);
    CHECK(c.calls >= least_calls && c.calls <= most_calls);
    CHECK(c.step_locks <= most_locks);
    CHECK(memcmp(want, got, sizeof(want)) == 0);
}

/* The CPU gets the layer's input when it is there, so that layers of which it computes experts have
 * a second wait; the host's steps, too, and they have it in these layers alone. */
static void experts_of_the_cpu_cost_a_second_wait(void)
{
    static float host[4096], graph[4096];
    struct counts c;

    make_routing();
    assign = "resident";
    print_head();
    c = step_at("03030303", false, true, host);
    print("host-driven, the CPU has experts", &c, LAYERS);
    CHECK_EQ(c.waits, 2 * LAYERS + 1);
    c = step_at("03030303", true, true, graph);
    print("graph, the CPU has experts", &c, LAYERS);
    CHECK_EQ(c.waits, 2 * LAYERS + 1);
    assign = NULL;
    mp_forced_routing_destroy(forced);
}

static void a_layer_with_misses_costs_a_wait(void)
{
    make_routing();
    show_misses("misses in one layer", "000000100002", false, 1, 3, 58, 100, 40);
    show_misses("misses in every layer", "0000003", false, LAYERS, 4 + 3 + 2, 180, 340, 80);
    show_misses("misses in every layer of each step", "03030303", true, LAYERS, 0, 180, 340, 80);
    mp_forced_routing_destroy(forced);
}

int main(void)
{
    setenv("FAKECUDA_GRANULE", "4096", 1);
    find_fake();
    RUN(steps_have_few_kernels);
    RUN(blocks_of_attention_wait_for_positions);
    RUN(other_layers_have_these_kernels);
    RUN(a_sampled_token_has_two_kernels);
    RUN(a_guess_costs_no_wait_and_no_launch);
    RUN(most_kernels_begin_early);
    RUN(waits_are_asleep_where_no_processor_is_left);
    RUN(a_layer_with_misses_costs_a_wait);
    RUN(experts_of_the_cpu_cost_a_second_wait);
    return 0;
}
