/*
 * A run of a small model, from opening its directory to the last token, with every call that can
 * fail made to fail once, always, and always but twice, at every place in the code that makes it.
 * After each failure: a status with a code and one line of text or the right output to the bit,
 * nothing left over, and the same run tried again gives the right output.
 *
 * At the end the program's own machine code is searched for calls that were never reached.
 *
 * With MP_FAULTS=one-way each call fails in one way only, and nothing is searched: for sanitizers,
 * with which whole runs are slow, beside a build in which each fails in every way.
 */
#include <unistd.h>

#include "engine/session/generate.h"
#include "engine/repack/repack.h"
#include "engine/session/session.h"
#include "tests/model/fault/engine_fault_parts.h"
#include "tests/support/fault/wrap.h"
#include "tests/support/log_guard.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"

#define MODEL "tests/data/models/mixtral-tiny" /* two layers */
#define SLICES 2
#define SEQUENCES 2
#define TOKENS 3
#define VOCAB_MAX 128

struct variant {
    const char *name, *device;
    enum mp_io_mode io;
    bool uring;
    const char *profile;
    bool sliced; /* the copy of the model in slices */
};

/* What a run gives: every logit that a token was chosen from. */
struct output {
    float logits[SEQUENCES][TOKENS][VOCAB_MAX];
    uint32_t ids[SEQUENCES][TOKENS];
};

static struct mp_settings settings;
static struct output reference;
static unsigned failed_runs;
static bool one_way;
static uint32_t vocab;
static char sites_path[4200], sliced_path[4200];
static const char *model_path;

static uint32_t prompt_ids[SEQUENCES][9] = { { 3, 14, 15, 92, 65, 35, 89, 79, 32 },
                                             { 27, 18, 28, 18, 28 } };
static struct mp_ids prompts[SEQUENCES] = { { .ids = prompt_ids[0] }, { .ids = prompt_ids[1] } };

/* Prompts of two batches each. The device's kernels run on the CPU, and slowly: shorter ones. */
static void choose(const struct variant *variant)
{
    const bool cuda = strcmp(variant->device, "cuda") == 0;

    snprintf(settings.run.device, sizeof(settings.run.device), "%s", variant->device);
    settings.run.ctx = 16;
    settings.run.draft_tokens = cuda ? 0 : 2;
    snprintf(settings.run.draft_model, sizeof(settings.run.draft_model), "%s",
             variant->sliced ? MODEL : ""); /* or the text */
    settings.run.lookahead = cuda ? 0 : 2;
    settings.run.prefill_tokens = cuda ? 2 : 6;
    prompts[0].count = cuda ? 3 : 9;
    prompts[1].count = cuda ? 2 : 5;
    settings.run.budget = (struct mp_share){ MP_SHARE_PPM, 400000 };
    settings.pool.threads = 2;
    settings.io.mode = variant->io;
    settings.io.uring = variant->uring;
    settings.io.threads = 2;
    settings.io.depth = 4;
    settings.io.chunk_bytes = 4096;
    snprintf(settings.run.profile, sizeof(settings.run.profile), "%s", variant->profile);
    model_path = variant->sliced ? sliced_path : MODEL;
    /* On a device a partial forward has memory of its own. */
    snprintf(settings.run.policy[MP_POLICY_PREDICT], sizeof(settings.run.policy[0]), "%s",
             cuda ? "partial" : "");
}

static void make_sliced(void)
{
    const struct mp_repack_config config = {
        .model = MODEL, .out = sliced_path, .slices = SLICES, .shard_bytes = UINT64_C(1) << 30
    };
    struct mp_repack_report report;

    snprintf(sliced_path, sizeof(sliced_path), "%s/sliced", test_tmpdir());
    CHECK_EQ(mp_repack(&config, &report), MP_OK);
    CHECK_EQ(report.slices, SLICES);
}

static enum mp_status keep_logits(void *ctx, uint32_t sequence, uint32_t step, const float *logits)
{
    struct output *out = ctx;

    CHECK(sequence < SEQUENCES && step < TOKENS);
    memcpy(out->logits[sequence][step], logits, vocab * sizeof(float));
    return MP_OK;
}

static enum mp_status open_session(struct mp_session *session)
{
    const struct mp_session_config config = {
        .model = model_path,
        .sequences = SEQUENCES,
        .drafts = true,
        .clock = mp_clock_monotonic(),
    };

    return mp_session_open(&settings, &config, session);
}

static enum mp_status generate(struct mp_session *session, struct output *out)
{
    const struct mp_generate_config config = {
        .engine = session->engine,
        .engine_config = &session->engine_config,
        .sampling = { .temperature = 0, .top_p = 1 },
        .max_tokens = TOKENS,
        .ignore_eos = true,
        .clock = mp_clock_monotonic(),
        .on_logits = keep_logits,
        .drafts = session->drafts,
        .ctx = out,
    };
    struct mp_output outputs[SEQUENCES] = { 0 };
    struct mp_generate_stats stats;
    enum mp_status status;

    memset(out, 0, sizeof(*out));
    status = mp_generate(&config, prompts, SEQUENCES, outputs, &stats);
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        CHECK(outputs[s].ids.count <= TOKENS);
        if (status == MP_OK)
            CHECK_EQ(outputs[s].ids.count, TOKENS);
        for (size_t i = 0; i < outputs[s].ids.count; i++)
            out->ids[s][i] = outputs[s].ids.ids[i];
    }
    mp_outputs_free(outputs, SEQUENCES);
    CHECK(mp_pager_check(mp_engine_pager(session->engine)));
    return status;
}

static void check_output(const struct output *out)
{
    CHECK(memcmp(out, &reference, sizeof(*out)) == 0);
}

/* With an engine that has survived, and with a new one, the same run gives the right output. */
static void run_once(const struct fault_plan *plan, void *ctx)
{
    struct mp_session session;
    struct output out;
    enum mp_status status;
    uint64_t hits;

    (void)ctx;
    mp_error_clear();
    fault_begin(plan);
    status = open_session(&session);
    if (status == MP_OK)
        status = generate(&session, &out);
    hits = fault_end();
    if (status == MP_OK) {
        check_output(&out);
    } else {
        CHECK(hits > 0);
        fault_check_error(status);
        failed_runs++;
    }
    if (session.engine == NULL)
        CHECK_EQ(open_session(&session), MP_OK);
    status = generate(&session, &out);
    if (status != MP_OK)
        fprintf(stderr, "tried again: error[%s]: %s\n", mp_error_last()->code,
                mp_error_last()->text);
    CHECK_EQ(status, MP_OK);
    check_output(&out);
    mp_session_close(&session);
}

static void every_call_site_fails_cleanly(const struct variant *variant)
{
    uint32_t runs;

    choose(variant);
    failed_runs = 0;
    runs = fault_sweep(FAULT_ANY, run_once, NULL);
    fault_write_failed(sites_path);
    fprintf(stderr, "  %s: %u sites, %u runs, %u of them with an error\n", variant->name,
            fault_sites_failed(FAULT_ANY), runs, failed_runs);
    CHECK(failed_runs > 40 && failed_runs < runs);
}

/* What the machine that computes gives when nothing fails and everything has room. */
static void make_reference(const struct variant *of)
{
    const struct variant variant = { "reference", of->device, MP_IO_BUFFERED,
                                     false,       "lru",      of->sliced };
    struct mp_session session;

    choose(&variant);
    settings.run.budget.kind = MP_SHARE_ALL;
    CHECK_EQ(open_session(&session), MP_OK);
    vocab = session.model.vocab;
    CHECK(vocab > 92 && vocab <= VOCAB_MAX);
    CHECK_EQ(generate(&session, &reference), MP_OK);
    CHECK_EQ(mp_engine_counters(session.engine)->evictions, 0);
    mp_session_close(&session);
}

/* The sweeps found the sites that were reached; are there others in the program? */
static void every_site_was_reached(void)
{
    char program[4096] = { 0 }, command[16384];

    CHECK(readlink("/proc/self/exe", program, sizeof(program) - 1) > 0);
    snprintf(
        command, sizeof(command),
        "python3 tests/support/fault/sites.py '%s' '%s' tests/model/fault/engine_fault_excuses.txt 1>&2",
        program, sites_path);
    fflush(stdout);
    CHECK_EQ(system(command), 0);
}

int main(void)
{
    static const struct variant variants[] = {
        { "threads, buffered", "cpu", MP_IO_BUFFERED, false, "lru", false },
        { "io_uring, direct where possible", "cpu", MP_IO_AUTO, true, "gate-lru", false },
        { "slices", "cpu", MP_IO_AUTO, true, "moepic", true },
        { "cuda", "cuda", MP_IO_AUTO, true, "gate-lru", false }, /* on the fake driver */
    };

    CHECK_EQ(setenv("MOEPAGER_DEVICE", "cpu", 1), 0);   /* where nothing else is said */
    CHECK_EQ(setenv("FAKECUDA_GRANULE", "4096", 1), 0); /* for a budget below all */
    CHECK_EQ(mp_settings_load(&settings), MP_OK);
    one_way = getenv("MP_FAULTS") != NULL && strcmp(getenv("MP_FAULTS"), "one-way") == 0;
    fault_sweep_one_way(one_way);
    mp_test_drop_log(); /* injected failures are warned of, rightly */
    snprintf(sites_path, sizeof(sites_path), "%s/sites", test_tmpdir());
    make_sliced();
    for (size_t i = 0; i < MP_ARRAY_LEN(variants); i++) {
        make_reference(&variants[i]);
        fault_sweep_briefly(i >= 2);
        every_call_site_fails_cleanly(&variants[i]);
    }
    CHECK(freopen("/dev/null", "w", stdout) != NULL); /* where commands print */
    fault_sweep_briefly(true);
    fault_sweep_commands(sites_path);
    fault_sweep_calibration(sites_path);
    fault_sweep_tokenizers(sites_path);
    fault_sweep_policies(sites_path);
    fault_sweep_single_calls(sites_path);
    if (!one_way)
        every_site_was_reached();
    return 0;
}
