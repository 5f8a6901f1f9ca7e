/* Sweeps over whole runs; see engine_fault_run.h. */
#include "tests/model/fault/engine_fault_run.h"

#include "engine/session/generate.h"
#include "engine/session/session.h"
#include "tests/support/fault/wrap.h"
#include "tests/support/log_guard.h"
#include "tests/support/test.h"

#define SEQUENCES 2
#define TOKENS 3
#define VOCAB_MAX 128

/* What a run gives: every logit that a token was chosen from. */
struct output {
    float logits[SEQUENCES][TOKENS][VOCAB_MAX];
    uint32_t ids[SEQUENCES][TOKENS];
};

static struct mp_settings settings;
static struct output reference;
static unsigned failed_runs;
static uint32_t vocab;
static const char *model_path;

static uint32_t prompt_ids[SEQUENCES][9] = { { 3, 14, 15, 92, 65, 35, 89, 79, 32 },
                                             { 27, 18, 28, 18, 28 } };
static struct mp_ids prompts[SEQUENCES] = { { .ids = prompt_ids[0] }, { .ids = prompt_ids[1] } };

void fault_check_error(enum mp_status status)
{
    const struct mp_error *error = mp_error_last();

    CHECK_EQ(error->status, status);
    CHECK(status != MP_ERR_INVALID);
    CHECK(error->code[0] == 'E' && error->code[1] == '_');
    CHECK(error->text[0] != '\0' && strchr(error->text, '\n') == NULL);
    fault_went_up();
}

/* Prompts of two batches each. The device's kernels run on the CPU, and slowly: shorter ones. */
static void choose(const struct fault_run *run)
{
    const bool cuda = strcmp(run->device, "cuda") == 0;
    const uint64_t guesses = run->draft_model == NULL ? 0 : 2;

    snprintf(settings.run.device, sizeof(settings.run.device), "%s", run->device);
    settings.run.ctx = 16;
    settings.run.draft_tokens = guesses;
    snprintf(settings.run.draft_model, sizeof(settings.run.draft_model), "%s",
             guesses > 0 ? run->draft_model : "");
    settings.run.lookahead = guesses;
    settings.run.prefill_tokens = cuda ? 2 : 6;
    prompts[0].count = cuda ? 3 : 9;
    prompts[1].count = cuda ? 2 : 5;
    settings.run.budget = (struct mp_share){ MP_SHARE_PPM, 400000 };
    settings.pool.threads = 2;
    settings.io.mode = run->io;
    settings.io.uring = run->uring;
    settings.io.threads = 2;
    settings.io.depth = 4;
    settings.io.chunk_bytes = 4096;
    snprintf(settings.run.profile, sizeof(settings.run.profile), "%s", run->profile);
    model_path = run->model;
    /* On a device a partial forward has memory of its own. */
    snprintf(settings.run.policy[MP_POLICY_PREDICT], sizeof(settings.run.policy[0]), "%s",
             cuda ? "partial" : "");
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
        .drafts = settings.run.draft_tokens > 0,
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

/* What the machine that computes gives when nothing fails and everything has room. */
static void make_reference(const struct fault_run *of)
{
    struct fault_run run = *of;
    struct mp_session session;

    run.io = MP_IO_BUFFERED;
    run.uring = false;
    run.profile = "lru";
    choose(&run);
    settings.run.budget.kind = MP_SHARE_ALL;
    CHECK_EQ(open_session(&session), MP_OK);
    vocab = session.model.vocab;
    CHECK(vocab > 92 && vocab <= VOCAB_MAX);
    CHECK_EQ(generate(&session, &reference), MP_OK);
    CHECK_EQ(mp_engine_counters(session.engine)->evictions, 0);
    mp_session_close(&session);
}

bool fault_run_init(bool one_way)
{
    const char *faults = getenv("MP_FAULTS");

    one_way = one_way || (faults != NULL && strcmp(faults, "one-way") == 0);
    CHECK_EQ(setenv("MOEPAGER_DEVICE", "cpu", 1), 0);   /* where nothing else is said */
    CHECK_EQ(setenv("FAKECUDA_GRANULE", "4096", 1), 0); /* for a budget below all */
    CHECK_EQ(mp_settings_load(&settings), MP_OK);
    fault_sweep_one_way(one_way);
    mp_test_drop_log(); /* injected failures are warned of, rightly */
    return one_way;
}

void fault_run_sweep(const struct fault_run *run, const char *sites_path)
{
    uint32_t runs;

    make_reference(run);
    choose(run);
    failed_runs = 0;
    runs = fault_sweep(FAULT_ANY, run_once, NULL);
    if (sites_path != NULL)
        fault_write_failed(sites_path);
    fprintf(stderr, "  %s: %u sites, %u runs, %u of them with an error\n", run->name,
            fault_sites_failed(FAULT_ANY), runs, failed_runs);
    CHECK(failed_runs > 40 && failed_runs < runs);
}
