/*
 * What policies know of costs: as the probe found them, per whole expert however experts are
 * stored, then followed while running, or frozen. On a CUDA device, here the driver without one
 * (tests/device/fakecuda), and on the CPU.
 */
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/convert/convert.h"
#include "engine/forward/cuda/device.h"
#include "engine/session/generate.h"
#include "engine/probe/probe.h"
#include "engine/session/session.h"
#include "tests/model/repack_check.h"
#include "tests/device/fakecuda/client.h"
#include "tests/support/slow_link.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "vmm/base/error.h"
#include "vmm/backend/cuda/cuda_driver.h"

#define MODEL "tests/data/models/qwen3moe-tiny"
#define TOKENS 24

static struct mp_settings settings;
static char cache[4200];
static struct mp_clock *clock_of_sessions;

static void open_session(const char *model, struct mp_session *session)
{
    const struct mp_session_config config = {
        .model = model,
        .sequences = 1,
        .probe = false,
        .clock = clock_of_sessions,
    };

    if (mp_session_open(&settings, &config, session) != MP_OK) {
        fprintf(stderr, "error[%s]: %s\n", mp_error_last()->code, mp_error_last()->text);
        exit(1);
    }
}

static void choose(const char *device, const char *profile, bool deterministic)
{
    CHECK_EQ(mp_settings_load(&settings), MP_OK);
    snprintf(settings.run.device, sizeof(settings.run.device), "%s", device);
    snprintf(settings.run.profile, sizeof(settings.run.profile), "%s", profile);
    snprintf(settings.run.cache_dir, sizeof(settings.run.cache_dir), "%s", cache);
    settings.run.ctx = 64;
    settings.run.prefill_tokens = 6;
    settings.run.budget = (struct mp_share){ MP_SHARE_PPM, 400000 };
    settings.run.deterministic = deterministic;
    settings.pool.threads = 2;
}

static void generate(struct mp_session *session)
{
    static uint32_t ids[] = { 3, 14, 15, 92, 65, 35, 89, 79, 32 };
    const struct mp_ids prompt = { .ids = ids, .count = 9 };
    const struct mp_generate_config config = {
        .engine = session->engine,
        .engine_config = &session->engine_config,
        .sampling = { .temperature = 0, .top_p = 1 },
        .max_tokens = TOKENS,
        .ignore_eos = true,
        .clock = mp_clock_monotonic(),
    };
    struct mp_output output = { 0 };
    struct mp_generate_stats stats;

    CHECK_EQ(mp_generate(&config, &prompt, 1, &output, &stats), MP_OK);
    mp_outputs_free(&output, 1);
}

static const struct mp_costs *costs_of(const struct mp_session *session)
{
    return mp_engine_shape(session->engine)->costs;
}

/* A link that is so slow that loads show, whatever else takes time. */
static void store_probe(struct mp_probe_shape shape, double expert_us, double remap_us)
{
    struct mp_probe probe = { .shape = shape };
    const struct mp_cuda *cuda;
    struct mp_cuda_device device;

    CHECK_EQ(mp_cuda_get(&cuda), MP_OK);
    CHECK_EQ(mp_cuda_describe(cuda, 0, &device), MP_OK);
    for (unsigned i = 0; i < MP_PROBE_COUNT; i++)
        probe.value[i] = 1;
    probe.value[MP_PROBE_COPY_256K_1] = probe.value[MP_PROBE_COPY_4M_1] = 1e-3;
    probe.value[MP_PROBE_COPY_1M_1] = 1e-3;
    for (unsigned i = MP_PROBE_MAP_2M; i <= MP_PROBE_REMAP_BUSY_64M; i++)
        probe.value[i] = remap_us / 3;
    probe.value[MP_PROBE_CPU_8] = 8;
    probe.value[MP_PROBE_EXPERT_1] = expert_us;
    probe.value[MP_PROBE_EXPERT_8] = 8 * expert_us;
    snprintf(probe.device, sizeof(probe.device), "%s", device.name);
    snprintf(probe.uuid, sizeof(probe.uuid), "%s", device.uuid);
    probe.driver = cuda->version;
    CHECK(mp_probe_store(cache, &probe));
}

/* What was measured of another type, or of lists of another length, does not count. */
static void costs_are_those_of_the_models_types(void)
{
    const struct mp_probe_shape own = { 128, 96, 4, MP_WTYPE_Q8_0, MP_WTYPE_Q8_0 };
    const struct mp_pool_config pool_config = { .threads = 1 };
    struct mp_probe_shape other = own;
    struct mp_topology *topology = NULL;
    struct mp_convert_report report;
    struct mp_session session;
    char path[4200];
    struct mp_convert_config job = { .model = "models/tiny-moe", .out = path, .type = "q8_0" };

    snprintf(path, sizeof(path), "%s/q8_0.gguf", test_tmpdir());
    CHECK_EQ(mp_topology_load(NULL, &topology), MP_OK);
    CHECK_EQ(mp_pool_create(&pool_config, topology, 0, &job.pool), MP_OK);
    CHECK_EQ(mp_convert(&job, &report), MP_OK);
    mp_pool_destroy(job.pool);
    mp_topology_destroy(topology);
    other.gate = other.down = MP_WTYPE_BF16;
    store_probe(other, 5, 3);
    other = own;
    other.experts = 1;
    store_probe(other, 5, 3);
    for (int known = 0; known < 2; known++) {
        if (known)
            store_probe(own, 7, 3);
        choose("cuda", "lru", true);
        settings.run.probe = MP_PROBE_CACHED;
        open_session(path, &session);
        /* Nothing depends on the tokens of an expert: 1 us fixed, the least, and 7 for each. */
        CHECK_EQ(costs_of(&session)->executors[MP_GPU_DEVICE].token_ns, known ? 7000 : 0);
        mp_session_close(&session);
    }
    check_nothing_lives();
}

/* Of what a child measured, by the device's clock, which says 2 ms for each batch of lists. */
static uint64_t measured_ns(uint32_t experts)
{
    const struct mp_probe_shape shape = { 64, 32, experts, MP_WTYPE_Q8_0, MP_WTYPE_BF16 };
    struct mp_probe probe = { .shape = shape };
    FILE *out = tmpfile();
    struct mp_costs costs;
    char key[64];
    double value;

    CHECK(out != NULL);
    CHECK_EQ(mp_probe_measure(0, &shape, "host-numa,copies,launches,graph,cpu,maps,maps-busy,reads",
                              out),
             MP_OK);
    rewind(out);
    while (fscanf(out, "%63s", key) == 1) {
        const enum mp_probe_item item = mp_probe_find(key, strlen(key));

        if (item < MP_PROBE_COUNT && fscanf(out, "%lf", &value) == 1)
            probe.value[item] = value;
    }
    CHECK_EQ(fclose(out), 0);
    mp_probe_costs(&probe, mp_probe_expert_bytes(&shape), 1, &costs);
    return costs.executors[MP_GPU_DEVICE].fixed_ns;
}

/* A step starts a layer's experts with two launches: what they cost is shared out. */
static void an_expert_costs_its_share_of_a_list(void)
{
    fake_api.elapsed(2);
    CHECK_EQ(measured_ns(1), 250000);
    CHECK_EQ(measured_ns(4), 62500);
    CHECK_EQ(measured_ns(8), 31250);
    fake_api.elapsed(0);
    check_nothing_lives();
}

/* Costs are of a whole expert, but what is measured is a slice by itself: each is launched by
 * itself. Half of an expert that takes 4 us of each token makes one of 8. */
static void costs_of_slices_are_those_of_their_sum(void)
{
    const struct mp_probe_shape half = { 40, 12, 2, MP_WTYPE_BF16, MP_WTYPE_BF16 };
    char dir[4200] = "";
    struct mp_repack_config config = repack_config(MODEL, dir);
    uint64_t whole_load_ns = 0;

    snprintf(dir, sizeof(dir), "%s/sliced", test_tmpdir());
    config.slices = 2;
    CHECK_EQ(repack_must(&config).slices, 2);
    choose("cuda", "lru", true);
    settings.run.probe = MP_PROBE_CACHED;
    for (unsigned i = 0; i < 3; i++) {
        struct mp_session session;

        if (i == 2)
            store_probe(half, 4, 3);
        open_session(i == 0 ? MODEL : dir, &session);
        CHECK_EQ(session.engine_config.weights->slices.count, i == 0 ? 1 : 2);
        CHECK_EQ(costs_of(&session)->executors[MP_GPU_DEVICE].token_ns,
                 i == 0   ? 1000
                 : i == 1 ? 0 /* the whole expert was measured */
                          : 2 * 4000);
        if (i == 0)
            whole_load_ns = costs_of(&session)->load_ns;
        CHECK(whole_load_ns > 0);
        CHECK_EQ(costs_of(&session)->load_ns, i == 1 ? 0 : whole_load_ns);
        mp_session_close(&session);
    }
    check_nothing_lives();
}

static void a_deterministic_run_has_frozen_costs(void)
{
    struct mp_session session;
    struct mp_costs before;

    choose("cuda", "dali", true);
    open_session(MODEL, &session);
    before = *costs_of(&session);
    CHECK(before.load_ns > 0 && before.executors[MP_GPU_CPU].fixed_ns > 0 &&
          before.executors[MP_GPU_CPU].handoff_ns == 1000);
    generate(&session);
    CHECK(mp_engine_counters(session.engine)->elsewhere > 0);
    CHECK(memcmp(&before, costs_of(&session), sizeof(before)) == 0);
    mp_session_close(&session);
    check_nothing_lives();
}

static void what_work_costs_is_followed(const char *device, const char *profile)
{
    struct mp_session session;

    choose(device, profile, false);
    settings.run.probe = MP_PROBE_OFF;
    open_session(MODEL, &session);
    CHECK_EQ(costs_of(&session)->layer_ns, 0);
    generate(&session);
    CHECK(mp_engine_counters(session.engine)->loads > 0);
    CHECK(costs_of(&session)->load_ns > 0);
    CHECK(costs_of(&session)->layer_ns > 0);
    CHECK(costs_of(&session)->predict_ns > 0);
    CHECK(costs_of(&session)->executors[MP_GPU_DEVICE].fixed_ns > 0);
    mp_session_close(&session);
}

static void a_device_and_the_cpu_follow_what_work_costs(void)
{
    what_work_costs_is_followed("cuda", "auto");
    what_work_costs_is_followed("cuda", "moepic");
    check_nothing_lives();
    what_work_costs_is_followed("cpu", "auto");
}

/* Of a copy over the link, and of experts, by the device's clock. */
static void a_load_costs_what_the_device_says(void)
{
    struct mp_session session;

    fake_api.elapsed(2);
    choose("cuda", "lru", false);
    settings.run.probe = MP_PROBE_OFF;
    open_session(MODEL, &session);
    generate(&session);
    CHECK(mp_engine_counters(session.engine)->loads > 0);
    CHECK_EQ(costs_of(&session)->load_ns, 2000000);
    mp_session_close(&session);
    fake_api.elapsed(0);
    check_nothing_lives();
}

/* The measured link is slow, a change of opinion is due every four tokens. */
static void shares_move_where_costs_are_known(void)
{
    for (int known = 0; known < 2; known++) {
        struct mp_session session;
        bool moved = false;

        CHECK_EQ(setenv("MOEPAGER_FIXED_POINT_TAU", "4", 1), 0);
        choose("cuda", "moepic", true);
        settings.run.probe = known ? MP_PROBE_CACHED : MP_PROBE_OFF;
        open_session(MODEL, &session);
        CHECK_EQ(costs_of(&session)->load_ns > 0, known);
        generate(&session);
        for (uint32_t l = 1; l < session.model.moe_layers; l++) {
            const struct mp_pager *pager = mp_engine_pager(session.engine);

            /* Equal shares differ by one. */
            moved |= mp_pager_quota(pager, l) + 1 < mp_pager_quota(pager, 0) ||
                     mp_pager_quota(pager, l) > mp_pager_quota(pager, 0);
        }
        CHECK_EQ(moved, known);
        mp_session_close(&session);
        CHECK_EQ(unsetenv("MOEPAGER_FIXED_POINT_TAU"), 0);
    }
    check_nothing_lives();
}

#define DUE 8u    /* tokens */
#define STEPS 48u /* of one token */

/* Tokens one by one: what comes out, and when the shares were given anew. How many steps ended
 * while something was being read? *compute_us_p: of a step, without its waits for reads. */
static uint32_t step_by_step(const char *device, const char *profile, float *logits,
                             uint64_t revisions[STEPS], uint64_t *compute_us_p)
{
    struct mp_clock *clock = mp_clock_monotonic();
    const uint8_t want = 1;
    struct mp_session session;
    uint64_t start_ns, wait_ns;
    uint32_t busy = 0;

    choose(device, profile, false);
    settings.run.probe = MP_PROBE_OFF;
    settings.io.mode = MP_IO_BUFFERED;
    settings.io.uring = false;
    clock_of_sessions = slow_link_clock();
    open_session(MODEL, &session);
    start_ns = mp_clock_now_ns(clock);
    for (uint32_t t = 0; t < STEPS; t++) {
        const uint32_t token = 3 + t * 37 % 90, sequence = 0;
        const struct mp_batch batch = {
            .count = 1, .token = &token, .sequence = &sequence, .position = &t, .want = &want
        };
        const float *out;

        CHECK_EQ(mp_forward(session.engine, &batch, &out), MP_OK);
        memcpy(logits + (size_t)t * session.model.vocab, out, session.model.vocab * sizeof(float));
        busy += mp_pager_reading(mp_engine_pager(session.engine)) > 0;
        revisions[t] = mp_pager_revisions(mp_engine_pager(session.engine));
    }
    wait_ns = mp_engine_counters(session.engine)->exposed_wait_ns;
    *compute_us_p = (mp_clock_now_ns(clock) - start_ns - wait_ns) / 1000 / STEPS;
    mp_session_close(&session);
    clock_of_sessions = mp_clock_monotonic();
    return busy;
}

/* Guesses for the first layer of the next token are being read at the end of most tokens.
 * Shares that are due every eight tokens are given anew all the same, within eight tokens. */
static void shares_move_although_guesses_keep_the_link_busy(void)
{
    static const char *const devices[] = { "cpu", "cuda" };
    const size_t vocab = 160;

    CHECK_EQ(setenv("MOEPAGER_FIXED_POINT_TAU", "8", 1), 0);
    CHECK_EQ(setenv("MOEPAGER_WINDOW_BUFFER", "8", 1), 0); /* there is always more to guess */
    for (size_t d = 0; d < 2; d++) {
        float *plain = calloc(STEPS * vocab, sizeof(float));
        float *moved = calloc(STEPS * vocab, sizeof(float));
        uint64_t revisions[STEPS], compute_us;
        uint32_t busy, last = DUE;

        CHECK(plain != NULL && moved != NULL);
        (void)step_by_step(devices[d], "lru", plain, revisions, &compute_us);
        CHECK_EQ(revisions[STEPS - 1], 0);
        busy = step_by_step(devices[d], "moepic", moved, revisions, &compute_us);
        printf("    %s: %u of %u tokens ended while something was read, %u revisions; %u us each\n",
               devices[d], busy, STEPS, (unsigned)revisions[STEPS - 1], (unsigned)compute_us);
        /* Where tokens take longer than a load, guesses are there before they end. */
        CHECK(busy > STEPS / 4 || compute_us > 2 * SLOW_LINK_US);
        for (uint32_t t = 0; t < STEPS; t++) {
            if (revisions[t] > (t == 0 ? 0 : revisions[t - 1]))
                last = t + 1 + DUE; /* the next one is due */
            CHECK(t + 1 <= last + DUE);
        }
        CHECK(memcmp(plain, moved, STEPS * vocab * sizeof(float)) == 0);
        free(plain);
        free(moved);
    }
    CHECK_EQ(unsetenv("MOEPAGER_FIXED_POINT_TAU"), 0);
    CHECK_EQ(unsetenv("MOEPAGER_WINDOW_BUFFER"), 0);
    check_nothing_lives();
}

/* Who computes an expert must not depend on when copies end. */
static void what_depends_on_copies_is_refused_in_a_deterministic_run(void)
{
    const struct mp_session_config config = { .model = MODEL,
                                              .sequences = 1,
                                              .clock = mp_clock_monotonic() };
    struct mp_session session;

    choose("cuda", "dali", true);
    settings.run.residency = MP_HOST_EXCLUSIVE;
    CHECK_EQ(mp_session_open(&settings, &config, &session), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_RESIDENCY");
    check_nothing_lives();
}

/* The machine of the probe copies an expert of this model, 18 granules, in 73.7 ms. */
static void mappings_that_cost_little_make_windows(void)
{
    static const struct {
        const char *setting, *said;
        double remap_us;
        enum mp_probe_use use;
        bool window;
    } cases[] = {
        { "auto", "mapping an expert takes 1.0 % of copying it", 737.28, MP_PROBE_CACHED, true },
        { "auto", "mapping an expert takes 20.0 % of copying it", 14745.6, MP_PROBE_CACHED, false },
        { "auto", "has not measured mappings", 50, MP_PROBE_OFF, false },
        { "table", "", 50, MP_PROBE_CACHED, false },
        { "window", "", 1000, MP_PROBE_CACHED, true },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mp_session session;

        store_probe((struct mp_probe_shape){ 128, 96, 4, MP_WTYPE_BF16, MP_WTYPE_BF16 }, 1,
                    cases[i].remap_us);
        choose("cuda", "lru", true);
        settings.run.probe = cases[i].use;
        CHECK_EQ(mp_opt_set(settings.groups, "MOEPAGER_ADDRESSING", cases[i].setting), MP_OK);
        open_session("models/tiny-moe", &session);
        if (strstr(session.addressing, cases[i].said) == NULL)
            CHECK_STR(session.addressing, cases[i].said);
        CHECK_EQ(session.engine_config.addressing,
                 cases[i].window ? MP_ADDRESSING_WINDOW : MP_ADDRESSING_TABLE);
        CHECK_EQ(session.memory.window_bytes > 0, cases[i].window);
        mp_session_close(&session);
    }
    check_nothing_lives();
}

static void profiles_say_whether_they_ask(void)
{
    static const char *const asking[] = { "smoe",     "dali",   "hybrimoe", "fiddler",
                                          "prescope", "moepic", "auto" };
    struct mp_policy_names names = { 0 };
    struct mp_profile chosen;

    for (const struct mp_profile *p = mp_profiles; p->name != NULL; p++) {
        bool asks = false;

        for (size_t i = 0; i < sizeof(asking) / sizeof(asking[0]); i++)
            asks |= strcmp(p->name, asking[i]) == 0;
        names.profile = p->name;
        CHECK_EQ(mp_policy_resolve(&names, &chosen), MP_OK);
        CHECK_EQ(mp_policies_want_costs(&chosen), asks);
    }
}

int main(void)
{
    CHECK_EQ(setenv("FAKECUDA_GRANULE", "4096", 1), 0);
    find_fake();
    clock_of_sessions = mp_clock_monotonic();
    snprintf(cache, sizeof(cache), "%s/cache", test_tmpdir());
    CHECK_EQ(mkdir(cache, 0700), 0);
    store_probe((struct mp_probe_shape){ 40, 24, 2, MP_WTYPE_BF16, MP_WTYPE_BF16 }, 1, 3);
    RUN(profiles_say_whether_they_ask);
    RUN(costs_of_slices_are_those_of_their_sum);
    RUN(costs_are_those_of_the_models_types);
    RUN(an_expert_costs_its_share_of_a_list);
    RUN(mappings_that_cost_little_make_windows);
    RUN(a_deterministic_run_has_frozen_costs);
    RUN(what_depends_on_copies_is_refused_in_a_deterministic_run);
    RUN(a_device_and_the_cpu_follow_what_work_costs);
    RUN(a_load_costs_what_the_device_says);
    RUN(shares_move_where_costs_are_known);
    RUN(shares_move_although_guesses_keep_the_link_busy);
    return 0;
}
