/*
 * The engine on a CUDA device, here the driver without one (tests/device/fakecuda), on a small
 * model in many ways: budgets, addressings, residencies, host budgets, executors, graphs, prefetch.
 * Every way has the bits of the first one, the values of the CPU's engine, and breaks no law of the
 * driver. tests/mutation/run.py shows that a fault in the order of things does not get past this.
 *
 * The variant says how streams lag behind: prompt, seeded, lazy; or cublas: the stand-in for that
 * library (tests/device/fakecublas) multiplies dense weights, with rounded activations. in_place:
 * streams stand still whenever experts are read where the host has them. graphs: what has to be so
 * when a graph is recorded or replayed. bf16, f16: keys and values of that type, on the device and
 * on the CPU, in a third of the ways. early: as many, and all but the first runs have kernels that
 * begin early.
 */
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include "engine/forward/cuda/device.h"
#include "tests/model/harness.h"
#include "tests/device/fakecuda/client.h"
#include "tests/support/log_guard.h"
#include "tests/support/test.h"
#include "vmm/base/compiler.h"
#include "vmm/base/error.h"

#define MODEL "tests/data/models/mixtral-tiny"
#define SEQUENCES 2
#define STEPS 5
#define STRIDE 16
#define LOGITS_MAX (SEQUENCES * (STEPS + 1) * 128)

static const int32_t tokens[SEQUENCES][STRIDE] = { { 3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26,
                                                     43, 38, 3 },
                                                   { 27, 18, 28, 18, 28, 45, 90, 45, 23, 53, 60 } };
static const int32_t lens[SEQUENCES] = { 9, 5 };

static bool cublas, early;
static enum mp_wtype kv_type = MP_WTYPE_F32;
static float near = 2e-3f; /* sums in another order, or of other roundings */
static struct mp_assign_ops plan;
static float first[2][LOGITS_MAX], got[LOGITS_MAX]; /* first: by graphs */

/* Every expert's executor by a rule that looks at nothing else. */
static void plan_assign(struct mp_policy *policy, const struct mp_assign_facts *facts,
                        uint32_t *executors)
{
    (void)policy;
    for (uint32_t i = 0; i < facts->count; i++)
        executors[i] = ((facts->experts[i] + facts->layer) % facts->costs->executor_count);
}

static enum mp_status set_kv_type(void *ctx, struct mp_engine_config *config)
{
    (void)ctx;
    config->kv_type = kv_type;
    return MP_OK;
}

static struct harness_options small(const char *backend)
{
    struct harness_options options = harness_defaults(MODEL);

    options.before_engine = set_kv_type;

    options.backend = backend;
    options.sequences = SEQUENCES;
    options.ctx = STRIDE;
    options.tokens_max = cublas ? 16 : 8; /* it is for more than 8 */
    options.gemm = cublas ? MP_GEMM_CUBLAS : MP_GEMM_OWN;
    options.threads = 2;
    options.policies.profile = "lru";
    return options;
}

static struct mp_counters counted; /* of all runs */

/* Twice, so that the second time finds what the first has left; returns evictions. */
static uint64_t run(const struct harness_options *options, struct mp_space_plan *space)
{
    struct mp_counters counters;
    struct harness h;

    harness_open(options, &h);
    if (!options->graphs && strcmp(options->backend, "cuda") == 0) {
        plan = *h.engine->policies.assign_ops;
        plan.assign = plan_assign;
        h.engine->policies.assign_ops = &plan;
    }
    for (unsigned i = 0; i < 2; i++) {
        memset(got, 0, sizeof(got));
        if (harness_run(&h, tokens[0], STRIDE, lens, SEQUENCES, STEPS, got) != MP_OK) {
            fprintf(stderr, "error[%s]: %s\n", mp_error_last()->code, mp_error_last()->text);
            exit(1);
        }
    }
    CHECK(mp_pager_check(mp_engine_pager(h.engine)));
    counters = *mp_engine_counters(h.engine);
    CHECK_EQ(counters.invalid_decisions, 0);
    CHECK(counters.resident_peak_bytes <= options->budget_bytes);
    counted.prefetch_issued += counters.prefetch_issued;
    counted.elsewhere += counters.elsewhere;
    counted.evictions += counters.evictions;
    if (space != NULL)
        mp_engine_plan(h.engine, space);
    harness_close(&h);
    return counters.evictions;
}

static void compare(const float *want, float tolerance, const char *what)
{
    for (size_t i = 0; i < LOGITS_MAX; i++) {
        const bool same = tolerance > 0 ? fabsf(got[i] - want[i]) <= tolerance
                                        : memcmp(&got[i], &want[i], sizeof(float)) == 0;

        if (same)
            continue;
        fprintf(stderr, "%s: logit %zu is %a, expected %a\n", what, i, (double)got[i],
                (double)want[i]);
        exit(1);
    }
}

static void one_way(const struct mp_space_plan *space, unsigned way)
{
    struct harness_options options = small("cuda");
    const uint64_t span = space->full_bytes - space->smallest_bytes;
    struct mp_space_plan now;
    char what[160];

    options.graphs = way & 1;
    options.addressing = way & 2 ? MP_ADDRESSING_WINDOW : MP_ADDRESSING_TABLE;
    options.residency = way & 4 ? MP_HOST_EXCLUSIVE : MP_HOST_INCLUSIVE;
    options.budget_bytes = space->smallest_bytes + span * (way / 8) / 3;
    if (way / 8 % 2 == !options.graphs)
        options.host_budget_bytes = space->unit_bytes / 2;
    if (way % 3 == 0)
        options.policies.profile = "gate-lru";
    options.threads = 1 + way % 2;
    if (!cublas && way % 5 == 4)
        options.tokens_max = 3; /* a prompt in parts */
    snprintf(what, sizeof(what), "budget %llu of %llu, host budget %llu, %s, %s, %s, profile %s",
             (unsigned long long)options.budget_bytes, (unsigned long long)space->full_bytes,
             (unsigned long long)options.host_budget_bytes, way & 1 ? "graphs" : "three executors",
             way & 2 ? "window" : "table", way & 4 ? "exclusive" : "inclusive",
             options.policies.profile);
    (void)run(&options, &now);
    CHECK_EQ(now.window_bytes > 0, options.addressing == MP_ADDRESSING_WINDOW);
    /* What is not in the host tier cannot be computed elsewhere: then the plan is another one. */
    compare(first[options.graphs],
            !options.graphs && (way & 4 || options.host_budget_bytes != UINT64_MAX) ? near : 0,
            what);
    check_nothing_lives();
}

static void every_way_has_the_same_bits(void)
{
    struct harness_options options = small("cuda");
    struct mp_space_plan space;
    struct fakecuda_work work;
    static float cpu[LOGITS_MAX];

    for (int graphs = 0; graphs < 2; graphs++) {
        options.graphs = graphs;
        CHECK_EQ(run(&options, &space), 0);
        memcpy(first[graphs], got, sizeof(got));
        check_nothing_lives();
    }
    options = small("host");
    (void)run(&options, NULL);
    memcpy(cpu, got, sizeof(got));
    for (int graphs = 0; graphs < 2; graphs++) {
        memcpy(got, first[graphs], sizeof(got));
        compare(cpu, near, "against the CPU");
    }
    mp_gpu_configure(&(struct mp_gpu_config){ .pdl = early });
    for (unsigned way = 0; way < 32; way += cublas ? 5 : kv_type != MP_WTYPE_F32 || early ? 3 : 1)
        one_way(&space, way);
    CHECK(counted.prefetch_issued > 0 && counted.elsewhere > 0 && counted.evictions > 0);
    CHECK(fake_api.calls("cuMemMap") > 0 && fake_api.calls("cuGraphLaunch") > 0);
    CHECK(fake_api.calls("cuMemcpyDtoHAsync_v2") > 0);
    fake_api.work(&work);
    CHECK_EQ(work.early > 0, early);
}

/* The type is that of what is allocated and computed, and of what is counted before. */
static void a_cache_of_16_bits_takes_half(void)
{
    const enum mp_wtype types[] = { MP_WTYPE_F32, kv_type };
    struct harness_options options = small("cuda");
    uint64_t kv_bytes[2], state_bytes, device_bytes[2];

    for (int i = 0; i < 2; i++) {
        struct fakecuda_live live;
        struct harness h;

        kv_type = types[i];
        harness_open(&options, &h);
        CHECK_EQ(mp_engine_measure(&h.config, &kv_bytes[i], &state_bytes), MP_OK);
        fake_api.live(&live);
        device_bytes[i] = live.device_bytes;
        memset(got, 0, sizeof(got));
        CHECK_EQ(harness_run(&h, tokens[0], STRIDE, lens, SEQUENCES, STEPS, got), MP_OK);
        memcpy(first[i], got, sizeof(got));
        harness_close(&h);
    }
    CHECK_EQ(kv_bytes[0], 2 * kv_bytes[1]);
    CHECK(device_bytes[0] >= device_bytes[1] + kv_bytes[1]);
    CHECK(memcmp(first[0], first[1], sizeof(got)) != 0);
}

/* Device memory is taken away and given back between steps: down in six parts, and up again. */
static void a_budget_that_moves_changes_no_bit(void)
{
    struct harness_options options = small("cuda");
    struct mp_space_plan space;
    uint64_t least = UINT64_MAX;
    struct harness h;

    options.addressing = MP_ADDRESSING_WINDOW;
    options.residency = MP_HOST_EXCLUSIVE;
    CHECK_EQ(run(&options, &space), 0);
    harness_open(&options, &h);
    for (unsigned i = 0; i <= 12; i++) {
        const unsigned sixths = i < 6 ? 6 - i : i - 6;
        const uint64_t budget =
            space.smallest_bytes + (space.full_bytes - space.smallest_bytes) * sixths / 6;
        struct fakecuda_live live;

        if (mp_engine_set_budget(h.engine, budget) != MP_OK) {
            fprintf(stderr, "%u: error[%s]: %s\n", i, mp_error_last()->code, mp_error_last()->text);
            exit(1);
        }
        fake_api.live(&live);
        least = live.device_bytes < least ? live.device_bytes : least;
        memset(got, 0, sizeof(got));
        CHECK_EQ(harness_run(&h, tokens[0], STRIDE, lens, SEQUENCES, STEPS, got), MP_OK);
        compare(first[1], 0, "with a budget that moves");
        CHECK(mp_pager_check(mp_engine_pager(h.engine)));
        if (i == 12)
            CHECK(live.device_bytes > least); /* it came back */
    }
    harness_close(&h);
    check_nothing_lives();
}

/* One token of a sequence, or its prompt; its logits go to got[step]. */
static void feed(struct harness *h, uint32_t from, uint32_t count, uint32_t step)
{
    uint32_t token[STRIDE], sequence[STRIDE] = { 0 }, position[STRIDE];
    uint8_t want[STRIDE] = { 0 };
    const struct mp_batch batch = {
        .count = count, .token = token, .sequence = sequence, .position = position, .want = want
    };
    const float *logits;

    for (uint32_t i = 0; i < count; i++) {
        token[i] = (uint32_t)tokens[0][from + i];
        position[i] = from + i;
    }
    want[count - 1] = 1;
    CHECK_EQ(mp_forward(h->engine, &batch, &logits), MP_OK);
    memcpy(got + step * h->model.vocab, logits, h->model.vocab * sizeof(float));
}

/* The budget changes between two steps of one sequence, with what is in its cache and with graphs
 * that know where experts are; every step has the bits of a run at one budget. */
static void budgets_move_between_two_steps(unsigned way, const struct mp_space_plan *space,
                                           float *want)
{
    static const unsigned sixths[] = { 6, 3, 0, 1, 5, 2, 6 };
    struct harness_options options = small("cuda");
    struct harness h;

    options.graphs = way & 1;
    options.addressing = way & 2 ? MP_ADDRESSING_WINDOW : MP_ADDRESSING_TABLE;
    options.residency = way & 4 ? MP_HOST_EXCLUSIVE : MP_HOST_INCLUSIVE;
    memset(got, 0, sizeof(got));
    harness_open(&options, &h);
    feed(&h, 0, 8, 0);
    for (uint32_t step = 1; step <= 7; step++) {
        const uint64_t span = space->full_bytes - space->smallest_bytes;

        if (want != NULL)
            CHECK_EQ(
                mp_engine_set_budget(h.engine, space->smallest_bytes + span * sixths[step - 1] / 6),
                MP_OK);
        CHECK_EQ(mp_engine_shape(h.engine)->slots, mp_pager_slots(mp_engine_pager(h.engine)));
        feed(&h, 7 + step, 1, step);
    }
    CHECK_EQ(mp_engine_set_budget(h.engine, space->smallest_bytes - 1), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_BUDGET_SMALL");
    CHECK(mp_pager_check(mp_engine_pager(h.engine)));
    CHECK(want == NULL || mp_engine_counters(h.engine)->evictions > 0);
    harness_close(&h);
    check_nothing_lives();
    if (want != NULL)
        compare(want, 0, "with budgets that move between steps");
}

static void a_budget_may_change_between_two_steps(void)
{
    static float want[LOGITS_MAX];
    struct harness_options options = small("cuda");
    struct mp_space_plan space;

    (void)run(&options, &space);
    budgets_move_between_two_steps(0, &space, NULL);
    memcpy(want, got, sizeof(want));
    for (unsigned way = 0; way < 8; way++)
        budgets_move_between_two_steps(way, &space, want);
}

/* ---- reading in place */

static enum mp_status (*queue_experts)(void *ctx, uint32_t layer, const struct mp_expert_work *work,
                                       uint32_t count);
static unsigned in_place;

static void plan_in_place(struct mp_policy *policy, const struct mp_assign_facts *facts,
                          uint32_t *executors)
{
    (void)policy;
    for (uint32_t i = 0; i < facts->count; i++)
        executors[i] = MP_GPU_IN_PLACE;
}

static void sleep_ms(long ms)
{
    const struct timespec time = { 0, 1000000 * ms };

    nanosleep(&time, NULL);
}

/* Work that is read in place stays unfinished for a while in which loads from the file have taken
 * every free slot of the host tier, and want more. */
static enum mp_status queue_experts_late(void *ctx, uint32_t layer,
                                         const struct mp_expert_work *work, uint32_t count)
{
    enum mp_status status;

    CHECK_EQ(work[0].executor, MP_GPU_IN_PLACE);
    in_place += count;
    fake_api.stall(true);
    sleep_ms(10);
    status = queue_experts(ctx, layer, work, count);
    sleep_ms(10);
    fake_api.stall(false);
    return status;
}

static void run_in_place(const struct harness_options *options)
{
    struct harness h;

    harness_open(options, &h);
    mp_space_wait_filled(h.engine->space);
    plan = *h.engine->policies.assign_ops;
    plan.assign = plan_in_place;
    h.engine->policies.assign_ops = &plan;
    queue_experts = h.engine->device->compute.executors[MP_GPU_IN_PLACE].begin;
    h.engine->device->compute.executors[MP_GPU_IN_PLACE].begin = queue_experts_late;
    memset(got, 0, sizeof(got));
    CHECK_EQ(harness_run(&h, tokens[0], STRIDE, lens, SEQUENCES, STEPS, got), MP_OK);
    harness_close(&h);
    check_nothing_lives();
}

/* Where slots of the host tier are few, one that is free is filled anew at once. */
static void what_is_read_in_place_stays(void)
{
    struct harness_options options = small("cuda");
    struct mp_space_plan space;

    (void)run(&options, &space);
    options.graphs = true;
    (void)run(&options, NULL);
    memcpy(first[1], got, sizeof(got));
    options.graphs = false;
    options.residency = MP_HOST_EXCLUSIVE;
    options.budget_bytes = space.smallest_bytes + (space.full_bytes - space.smallest_bytes) / 3;
    options.host_budget_bytes = space.unit_bytes / 2;
    for (unsigned i = 0; i < 4; i++) {
        run_in_place(&options);
        compare(first[1], 0, "read in place");
    }
    CHECK(in_place >= 8);
}

/* ---- what a graph must know */

/* A token by itself, until its experts are there and a graph has been recorded. */
static void repeat(struct harness *h, uint32_t index)
{
    for (unsigned i = 0; i < 6; i++)
        feed(h, index, 1, 0);
}

/* A budget that shrinks makes a frame smaller that is not full: its units move, and nothing is read
 * or evicted. */
static void a_graph_finds_what_has_moved(void)
{
    struct harness_options options = small("cuda");
    struct mp_space_plan space;
    static float want[LOGITS_MAX];
    unsigned only_moved = 0;
    struct harness h;

    options.graphs = true;
    harness_open(&options, &h);
    mp_engine_plan(h.engine, &space);
    repeat(&h, 0);
    repeat(&h, 1);
    memcpy(want, got, sizeof(want));
    for (unsigned part = 24; part > 0; part--) {
        const uint64_t span = space.full_bytes - space.smallest_bytes;
        const uint64_t generation = mp_space_generation(h.engine->space);
        const struct mp_device_graph_counts before = mp_device_graphs_counted(h.engine->device);

        CHECK_EQ(mp_engine_set_budget(h.engine, space.smallest_bytes + span * part / 24), MP_OK);
        if (mp_engine_counters(h.engine)->evictions > 0)
            break;
        only_moved += mp_space_generation(h.engine->space) != generation;
        feed(&h, 1, 1, 0);
        compare(want, 0, "after a move");
        CHECK_EQ(mp_device_graphs_counted(h.engine->device).complete, before.complete + 1);
    }
    CHECK(only_moved > 0);
    harness_close(&h);
    check_nothing_lives();
}

static bool captured_meanwhile;

/* Until the step captures, or it is clear that it waits. */
static void *let_streams_go(void *unused)
{
    (void)unused;
    for (int i = 0; i < 200 && fake_api.calls("cuStreamBeginCapture_v2") == 0; i++)
        sleep_ms(1);
    captured_meanwhile = fake_api.calls("cuStreamBeginCapture_v2") > 0;
    fake_api.stall(false);
    return NULL;
}

/* While a graph is recorded nobody may map anything, as a read that ends does. */
static void a_graph_is_recorded_when_nothing_is_read(void)
{
    struct harness_options options = small("cuda");
    uint8_t resident[64];
    uint32_t cold = 0;
    pthread_t thread;
    struct harness h;

    options.graphs = true;
    options.addressing = MP_ADDRESSING_WINDOW;
    harness_open(&options, &h);
    mp_space_wait_filled(h.engine->space);
    fake_api.reset();
    feed(&h, 0, 1, 0); /* misses; kernel by kernel */
    CHECK_EQ(fake_api.calls("cuStreamBeginCapture_v2"), 0);
    mp_pager_residents(mp_engine_pager(h.engine), 1, true, resident);
    while (resident[cold])
        cold++;
    fake_api.stall(true);
    mp_pager_prefetch(mp_engine_pager(h.engine), 1, &cold, 1);
    CHECK(!mp_space_reader_idle(h.engine->space));
    CHECK_EQ(pthread_create(&thread, NULL, let_streams_go, NULL), 0);
    feed(&h, 0, 1, 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK(!captured_meanwhile);
    CHECK(fake_api.calls("cuStreamBeginCapture_v2") > 0);
    harness_close(&h);
    check_nothing_lives();
}

static void plan_every_other_in_place(struct mp_policy *policy, const struct mp_assign_facts *facts,
                                      uint32_t *executors)
{
    (void)policy;
    for (uint32_t i = 0; i < facts->count; i++)
        executors[i] = facts->experts[i] % 2 == 0 ? MP_GPU_IN_PLACE : MP_GPU_DEVICE;
}

/* The host drives a layer whose graph is done, because an expert is read in place although it is
 * resident: all of its experts get the layer's input, not what the graph left behind. */
static void a_policy_takes_a_layer_from_a_graph(void)
{
    void (*const plans[])(struct mp_policy *, const struct mp_assign_facts *,
                          uint32_t *) = { plan_in_place, plan_every_other_in_place };
    struct harness_options options = small("cuda");
    static float want[LOGITS_MAX];
    struct harness h;

    options.graphs = true;
    harness_open(&options, &h);
    mp_space_wait_filled(h.engine->space);
    plan = *h.engine->policies.assign_ops;
    for (size_t i = 0; i < MP_ARRAY_LEN(plans); i++) {
        const struct mp_assign_ops *own = h.engine->policies.assign_ops;
        struct mp_device_graph_counts before;

        repeat(&h, 2);
        memcpy(want, got, sizeof(want));
        before = mp_device_graphs_counted(h.engine->device);
        CHECK(before.complete > 0);
        plan.assign = plans[i];
        h.engine->policies.assign_ops = &plan;
        fake_api.reset();
        feed(&h, 2, 1, 0);
        compare(want, 0, "taken from a graph");
        CHECK_EQ(mp_device_graphs_counted(h.engine->device).replays, before.replays + 1);
        CHECK_EQ(mp_device_graphs_counted(h.engine->device).complete, before.complete);
        h.engine->policies.assign_ops = own;
    }
    harness_close(&h);
    check_nothing_lives();
}

/* More layers than the model has that the other tests use, and so more misses in a step: the rest
 * behind each is a graph, or, the first time, its kernels. */
static void what_comes_behind_a_miss_has_the_same_bits(void)
{
    struct harness_options options = small("cuda");
    static float want[SEQUENCES * (STEPS + 1) * 1024], behind[MP_ARRAY_LEN(want)];
    struct mp_space_plan space;
    struct harness h;

    options.model = "tests/data/models/qwen3moe-tiny";
    space = harness_plan(&options, NULL);
    for (unsigned i = 0; i < 5; i++) {
        options.graphs = i > 0;
        options.addressing = i & 1 ? MP_ADDRESSING_WINDOW : MP_ADDRESSING_TABLE;
        options.budget_bytes =
            space.smallest_bytes + (space.full_bytes - space.smallest_bytes) * (4 - i) / 4;
        harness_open(&options, &h);
        CHECK(SEQUENCES * (STEPS + 1) * h.model.vocab <= MP_ARRAY_LEN(want));
        for (unsigned twice = 0; twice < 2; twice++) {
            CHECK_EQ(
                harness_run(&h, tokens[0], STRIDE, lens, SEQUENCES, STEPS, i == 0 ? want : behind),
                MP_OK);
            CHECK(i == 0 || memcmp(want, behind, sizeof(want)) == 0);
        }
        CHECK_EQ(mp_device_graphs_counted(h.engine->device).segments > 0, i > 0);
        CHECK(mp_pager_check(mp_engine_pager(h.engine)));
        harness_close(&h);
        check_nothing_lives();
    }
}

static volatile sig_atomic_t cancel;
static enum mp_status (*sum_up)(void *ctx, uint32_t layer, const uint32_t *experts,
                                const float *weights);

static enum mp_status set_cancel(void *ctx, struct mp_engine_config *config)
{
    (void)ctx;
    config->cancel = &cancel;
    return MP_OK;
}

static enum mp_status cancel_behind(void *ctx, uint32_t layer, const uint32_t *experts,
                                    const float *weights)
{
    cancel = 1;
    return sum_up(ctx, layer, experts, weights);
}

/* Before the rest of the step begins, also as a graph; the step can be taken again. */
static void a_step_is_canceled_behind_a_miss(void)
{
    struct harness_options options = small("cuda");
    const uint32_t token = 3, sequence = 0, position = 0;
    const uint8_t wanted = 1;
    const struct mp_batch batch = {
        .count = 1, .token = &token, .sequence = &sequence, .position = &position, .want = &wanted
    };
    const float *logits;
    struct harness h;

    options.before_engine = set_cancel;
    options.graphs = true;
    harness_open(&options, &h);
    sum_up = h.engine->step_ops.combine;
    h.engine->step_ops.combine = cancel_behind;
    fake_api.reset();
    CHECK_EQ(mp_forward(h.engine, &batch, &logits), MP_ERR_CANCELED);
    CHECK_EQ(h.engine->device->seen_count, 1); /* for the graph */
    CHECK_EQ(fake_api.calls("cuStreamSynchronize"), h.engine->device->queue_count); /* all idle */
    CHECK_EQ(mp_device_graphs_counted(h.engine->device).replays, 1);
    CHECK_EQ(mp_device_graphs_counted(h.engine->device).segments, 0);
    h.engine->step_ops.combine = sum_up;
    cancel = 0;
    CHECK_EQ(mp_forward(h.engine, &batch, &logits), MP_OK);
    CHECK(mp_pager_check(mp_engine_pager(h.engine)));
    harness_close(&h);
    check_nothing_lives();
}

int main(int argc, char **argv)
{
    const bool graphs = argc > 1 && strcmp(argv[1], "graphs") == 0;

    /* else units are too small for a window, or, with graphs, each has a frame of its own */
    setenv("FAKECUDA_GRANULE", graphs ? "16384" : "4096", 1);
    find_fake();
    if (argc > 1 && strcmp(argv[1], "seeded") == 0)
        fake_api.timing(20, 0);
    cublas = argc > 1 && strcmp(argv[1], "cublas") == 0;
    early = argc > 1 && strcmp(argv[1], "early") == 0;
    near = cublas ? 0.1f : near;
    if (argc > 1 && strcmp(argv[1], "bf16") == 0)
        kv_type = MP_WTYPE_BF16;
    if (argc > 1 && strcmp(argv[1], "f16") == 0)
        kv_type = MP_WTYPE_F16;
    if (argc > 1 && strcmp(argv[1], "lazy") == 0)
        fake_api.timing(0, 2);
    if (argc > 1 && strcmp(argv[1], "in_place") == 0) {
        RUN(what_is_read_in_place_stays);
        return 0;
    }
    if (graphs) {
        RUN(a_graph_finds_what_has_moved);
        RUN(a_graph_is_recorded_when_nothing_is_read);
        RUN(a_policy_takes_a_layer_from_a_graph);
        RUN(what_comes_behind_a_miss_has_the_same_bits);
        RUN(a_step_is_canceled_behind_a_miss);
        return 0;
    }
    RUN(every_way_has_the_same_bits);
    if (kv_type != MP_WTYPE_F32) {
        RUN(a_cache_of_16_bits_takes_half);
        return 0;
    }
    RUN(a_budget_that_moves_changes_no_bit);
    RUN(a_budget_may_change_between_two_steps);
    return 0;
}
