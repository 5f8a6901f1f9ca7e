/*
 * Real runs of what was simulated: a prompt and some tokens after it, as `moepager bench` has them.
 */
#include "engine/measure/measure.h"

#include <stdlib.h>
#include <string.h>

#include "engine/session/generate.h"
#include "engine/session/report.h"
#include "engine/session/session.h"

#define RUNS_MIN 3u /* the second one may still teach policies the text */
#define RUNS_MAX 64u
#define SETTLE_NS UINT64_C(500000000) /* a disk and processors that stood still wake up */
#define WARM_NS UINT64_C(1500000000)  /* no further run when those since the first took so long */
#define RUN_NS UINT64_C(5000000000)   /* nor one that is expected to take longer */
#define STEPS_MIN 4u

struct trying {
    const struct mp_measure_config *config;
    struct mp_settings settings;
    struct mp_session session;
    struct mp_ids prompt;
};

static enum mp_status make_prompt(struct trying *t)
{
    uint64_t state = t->settings.run.seed;
    enum mp_status status = MP_OK;

    for (uint32_t i = 0; i < t->config->prompt && status == MP_OK; i++)
        status = mp_ids_append(&t->prompt, mp_session_random_token(&t->session, &state));
    return status;
}

static enum mp_status open_model(struct trying *t, const struct mp_trial *trials, size_t count)
{
    const struct mp_session_config config = { .model = t->config->model,
                                              .sequences = 1,
                                              .clock = t->config->clock,
                                              .cancel = t->config->cancel };
    uint64_t most = 0;

    for (size_t i = 0; i < count; i++)
        most = trials[i].budget_bytes > most ? trials[i].budget_bytes : most;
    t->settings = *t->config->settings;
    snprintf(t->settings.run.device, sizeof(t->settings.run.device), "cpu");
    memset(t->settings.run.policy, 0, sizeof(t->settings.run.policy));
    t->settings.run.lookahead = t->settings.run.draft_tokens = 0;
    t->settings.run.budget = (struct mp_share){ MP_SHARE_BYTES, most };
    return mp_session_open(&t->settings, &config, &t->session);
}

/* Tokens to generate, so that a run does not take long; 0: it would. */
static uint32_t tokens_of(const struct trying *t, const struct mp_trial *trial)
{
    const uint32_t ctx = t->session.engine_config.ctx;
    const uint64_t left =
        trial->expected_prefill_ns < RUN_NS ? RUN_NS - trial->expected_prefill_ns : 0;
    const uint64_t most = left / (trial->expected_step_ns + 1);
    uint64_t tokens = t->config->gen;

    if (t->config->prompt >= ctx)
        return 0;
    tokens = tokens < most ? tokens : most;
    tokens = tokens < ctx - t->config->prompt ? tokens : ctx - t->config->prompt;
    return tokens >= STEPS_MIN || tokens == t->config->gen ? (uint32_t)tokens : 0;
}

static enum mp_status run_once(struct trying *t, uint32_t tokens, struct mp_report *report)
{
    const struct mp_generate_config config = {
        .engine = t->session.engine,
        .engine_config = &t->session.engine_config,
        .sampling = { .temperature = 0, .top_p = 1, .seed = t->settings.run.seed },
        .max_tokens = tokens,
        .ignore_eos = true,
        .clock = t->config->clock,
    };
    const struct mp_counters before = mp_report_counters(&t->session);
    struct mp_output output = { 0 };
    struct mp_generate_stats stats;
    const enum mp_status status = mp_generate(&config, &t->prompt, 1, &output, &stats);

    mp_outputs_free(&output, 1);
    if (status == MP_OK)
        mp_report_make(&t->session, &stats, &before, 0, report);
    return status;
}

static int compare(const void *a, const void *b)
{
    const struct mp_report *x = a, *y = b;

    return x->tpot_ms != y->tpot_ms ? (x->tpot_ms < y->tpot_ms ? -1 : 1) : 0;
}

/* The first run fills memory. Those that ended before the machine had settled do not count. */
static enum mp_status run_some(struct trying *t, uint32_t tokens, struct mp_report *reports,
                               uint32_t *count_p)
{
    enum mp_status status = run_once(t, tokens, &reports[0]);
    const uint64_t warm_ns = mp_clock_now_ns(t->config->clock);
    uint64_t spent_ns = 0;
    uint32_t count = 0;

    while (status == MP_OK && count < RUNS_MAX && (count < RUNS_MIN || spent_ns < WARM_NS)) {
        if (spent_ns < SETTLE_NS)
            count = 0;
        status = run_once(t, tokens, &reports[count++]);
        spent_ns = mp_clock_now_ns(t->config->clock) - warm_ns;
    }
    *count_p = count;
    return status;
}

static enum mp_status run_trial(struct trying *t, struct mp_trial *trial)
{
    const uint32_t tokens = tokens_of(t, trial);
    struct mp_report reports[RUNS_MAX];
    const struct mp_report *median;
    enum mp_status status;

    trial->runs = 0;
    if (tokens == 0)
        return MP_OK;
    t->session.engine_config.budget_bytes = trial->budget_bytes;
    status = mp_session_renew(&t->session, trial->policies, NULL);
    if (status == MP_OK)
        status = run_some(t, tokens, reports, &trial->runs);
    if (status != MP_OK)
        return status;
    qsort(reports, trial->runs, sizeof(reports[0]), compare);
    median = &reports[trial->runs / 2];
    trial->ttft_ms = median->ttft_ms;
    trial->tpot_ms = median->tpot_ms;
    trial->hit_rate = median->hit_rate;
    return MP_OK;
}

enum mp_status mp_measure_try(const struct mp_measure_config *config, struct mp_trial *trials,
                              size_t count)
{
    struct trying t = { .config = config };
    enum mp_status status = open_model(&t, trials, count);

    if (status == MP_OK)
        status = make_prompt(&t);
    for (size_t i = 0; i < count && status == MP_OK; i++)
        status = run_trial(&t, &trials[i]);
    mp_ids_free(&t.prompt);
    mp_session_close(&t.session);
    return status;
}
