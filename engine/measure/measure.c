/*
 * The short run of mp_measure_run(): made-up routing first, then the model's own.
 */
#include "engine/measure/measure.h"

#include <stdlib.h>
#include <string.h>

#include "engine/forward/forced_routing.h"
#include "engine/forward/sampler.h"
#include "engine/session/evaluate.h"
#include "engine/session/session.h"
#include "vmm/base/error.h"

#define STEPS_MIN 4u
#define STEPS_MAX 16u
#define READ_BYTES (UINT64_C(2) << 30) /* about so much is read for a pattern, each time */
#define ROUNDS 2u
#define NOT_CACHED_BYTES (UINT64_C(1) << 30) /* more than a processor caches */
#define ROOM_PARTS 4                         /* of the free RAM, for that */
#define BATCH 64u                            /* tokens of a prompt at once */
#define PROMPT_MAX 256u
#define CTX_MAX 4096u
#define OWN_NS UINT64_C(10000000000) /* no further token of the model's own after this time */

struct measuring {
    const struct mp_measure_config *config;
    struct mp_settings settings; /* on the CPU, with a small budget, profile lru */
    struct mp_session session;
    struct mp_replay_trace patterns;
    struct mp_forced_routing *forced;
    struct mp_evaluator *evaluator;
    struct mp_sampler *sampler; /* greedy */
    struct mp_measured *out;
    uint64_t sets_bytes;         /* budget in which nothing is read from all sets */
    bool decode;                 /* of the batch that is routed */
    enum mp_status trace_status; /* of recording */
};

/* What reads most of a model anyway says no more for being longer. */
static uint32_t prompt_of(const struct mp_measure_config *config)
{
    return config->prompt < PROMPT_MAX ? config->prompt : PROMPT_MAX;
}

/* Of a context that has room for what is run, and for not much more. */
static uint64_t positions_for(const struct mp_measure_config *config, uint32_t most)
{
    const uint64_t own = (uint64_t)prompt_of(config) + config->gen;
    const uint64_t made_up = STEPS_MAX * MP_PATTERN_COUNT * ROUNDS;
    const uint64_t wanted = own > made_up ? own : made_up;

    return wanted < most && wanted < CTX_MAX ? wanted : most < CTX_MAX ? most : CTX_MAX;
}

/* As many sets of experts as no cache holds, each with those of one token. */
static void choose_sets(struct measuring *m, const struct mp_memory_plan *memory,
                        uint64_t cycle_bytes)
{
    struct mp_measured *out = m->out;
    const uint64_t room = memory->room_bytes / ROOM_PARTS;
    const uint64_t most = room < memory->full_bytes ? room : memory->full_bytes;

    out->sets = 1;
    m->sets_bytes = out->budget_bytes;
    while (out->sets * cycle_bytes < NOT_CACHED_BYTES && out->sets + STEPS_MIN < STEPS_MAX &&
           (out->sets + 1) * out->top_k <= out->experts && m->sets_bytes + cycle_bytes <= most) {
        m->sets_bytes += cycle_bytes;
        out->sets++;
    }
}

/* Little enough to be read, and enough that what is not to be read stays. */
static enum mp_status plan(struct measuring *m)
{
    const struct mp_session_config config = { .model = m->config->model,
                                              .sequences = 1,
                                              .plan_only = true,
                                              .clock = m->config->clock,
                                              .cancel = m->config->cancel };
    struct mp_measured *out = m->out;
    struct mp_session session;
    enum mp_status status;
    uint64_t cycle_bytes;

    m->settings = *m->config->settings;
    snprintf(m->settings.run.device, sizeof(m->settings.run.device), "cpu");
    snprintf(m->settings.run.profile, sizeof(m->settings.run.profile), "lru");
    memset(m->settings.run.policy, 0, sizeof(m->settings.run.policy));
    m->settings.run.prefill_tokens = BATCH;
    m->settings.run.lookahead = m->settings.run.draft_tokens = m->settings.run.ctx = 0;
    status = mp_session_open(&m->settings, &config, &session);
    if (status != MP_OK)
        return status;
    out->layers = session.model.moe_layers;
    out->experts = session.model.experts;
    out->top_k = session.model.experts_per_token;
    cycle_bytes = session.memory.expert_bytes / out->experts * out->top_k;
    out->budget_bytes = cycle_bytes + cycle_bytes / 2;
    if (out->budget_bytes < session.memory.smallest_bytes)
        out->budget_bytes = session.memory.smallest_bytes;
    if (out->budget_bytes > session.memory.full_bytes)
        out->budget_bytes = session.memory.full_bytes;
    out->steps = (uint32_t)(READ_BYTES / (cycle_bytes + 1));
    out->steps = out->steps < STEPS_MIN   ? STEPS_MIN
                 : out->steps > STEPS_MAX ? STEPS_MAX
                                          : out->steps;
    choose_sets(m, &session.memory, cycle_bytes);
    if (out->steps < out->sets + STEPS_MIN)
        out->steps = out->sets + STEPS_MIN;
    if (out->steps > session.engine_config.ctx / (MP_PATTERN_COUNT * ROUNDS))
        out->steps = session.engine_config.ctx / (MP_PATTERN_COUNT * ROUNDS);
    if (out->sets >= out->steps) { /* a short context */
        out->sets = 1;
        m->sets_bytes = out->budget_bytes;
    }
    m->settings.run.ctx = positions_for(m->config, session.engine_config.ctx);
    m->settings.run.budget = (struct mp_share){ MP_SHARE_BYTES, m->sets_bytes };
    mp_session_close(&session);
    return MP_OK;
}

static enum mp_status use_patterns(void *ctx, struct mp_engine_config *config)
{
    struct measuring *m = ctx;
    const struct mp_measured *out = m->out;
    enum mp_status status =
        mp_measure_pattern(out, (1u << MP_PATTERN_COUNT) - 1, ROUNDS, &m->patterns);

    if (status == MP_OK)
        status = mp_forced_routing_make(&m->patterns, "patterns", out->layers, out->experts,
                                        out->top_k, &m->forced);
    config->forced_routing = m->forced;
    return status;
}

/* Some token for a position of made-up routing. */
static uint32_t token_at(const struct mp_session *session, uint32_t position)
{
    const uint32_t vocab = session->model.vocab;

    return vocab > 1 ? 1 + (uint32_t)(position * UINT64_C(2654435761) % (vocab - 1)) : 0;
}

static enum mp_status run_token(struct mp_session *session, uint32_t token, uint32_t position,
                                const float **logits_p)
{
    const uint32_t sequence = 0;
    const uint8_t want = 1;
    const struct mp_batch batch = {
        .count = 1, .token = &token, .sequence = &sequence, .position = &position, .want = &want
    };

    return mp_forward(session->engine, &batch, logits_p);
}

static int compare(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* The median time of a step of this pattern; the first one finds what others have left. */
static enum mp_status time_pattern(struct measuring *m, enum mp_pattern pattern, uint32_t *position)
{
    struct mp_measured *out = m->out;
    const uint64_t loads = mp_engine_counters(m->session.engine)->loads;
    uint64_t ns[STEPS_MAX];
    enum mp_status status = MP_OK;

    for (uint32_t t = 0; t < out->steps && status == MP_OK; t++, (*position)++) {
        const uint64_t start_ns = mp_clock_now_ns(m->config->clock);
        const float *logits;

        status = run_token(&m->session, token_at(&m->session, *position), *position, &logits);
        ns[t] = mp_clock_now_ns(m->config->clock) - start_ns;
    }
    if (status != MP_OK)
        return status;
    qsort(ns + 1, out->steps - 1, sizeof(ns[0]), compare);
    out->loads[pattern] = mp_engine_counters(m->session.engine)->loads - loads;
    out->step_ns[pattern] = ns[1 + (out->steps - 1) / 2];
    return MP_OK;
}

/* One pattern after the other, so that the budget changes once, and what that takes from memory is
 * read anew by steps that read. */
static enum mp_status time_patterns(struct measuring *m)
{
    struct mp_measured *out = m->out;
    enum mp_status status = MP_OK;
    uint32_t position = 0;

    for (uint32_t i = 0; i < ROUNDS * MP_PATTERN_COUNT && status == MP_OK; i++) {
        const enum mp_pattern pattern = (enum mp_pattern)(i / ROUNDS);

        if (i == (MP_PATTERN_NONE_READ + 1) * ROUNDS && out->sets > 1)
            status = mp_engine_set_budget(m->session.engine, out->budget_bytes);
        if (status == MP_OK)
            status = time_pattern(m, pattern, &position);
    }
    for (uint32_t i = 1; i < MP_PATTERN_COUNT; i++) {
        if (out->step_ns[i] < out->step_ns[i - 1]) /* something else was in the way */
            out->step_ns[i] = out->step_ns[i - 1];
    }
    out->sets = 1; /* in the simulator nothing is cached */
    return status;
}

static void routed(void *ctx, uint32_t layer, uint32_t tokens, uint32_t k, const uint32_t *experts,
                   const float *weights)
{
    struct measuring *m = ctx;
    struct mp_replay_trace *trace = &m->out->routing;

    (void)weights;
    if (m->trace_status == MP_OK)
        m->trace_status = mp_replay_trace_begin(trace, layer, m->decode);
    for (uint32_t i = 0; i < tokens * k && m->trace_status == MP_OK; i++)
        m->trace_status = mp_replay_trace_choose(trace, experts[i]);
}

static enum mp_status run_prompt(struct measuring *m, uint32_t count, const float **logits_p)
{
    static const uint32_t sequence[BATCH];
    uint64_t seed = m->settings.run.seed;
    uint32_t token[BATCH], position[BATCH];
    uint8_t want[BATCH] = { 0 };
    enum mp_status status = MP_OK;

    for (uint32_t done = 0; done < count && status == MP_OK;) {
        const uint32_t now = count - done < BATCH ? count - done : BATCH;
        const struct mp_batch batch = {
            .count = now, .token = token, .sequence = sequence, .position = position, .want = want
        };

        for (uint32_t i = 0; i < now; i++) {
            token[i] = mp_session_random_token(&m->session, &seed);
            position[i] = done + i;
        }
        done += now;
        want[now - 1] = done == count;
        status = mp_forward(m->session.engine, &batch, logits_p);
    }
    return status;
}

static enum mp_status run_own(struct measuring *m)
{
    const struct mp_engine_config *engine = &m->session.engine_config;
    const uint32_t most = prompt_of(m->config);
    const uint32_t prompt = most < engine->ctx ? most : engine->ctx - 1;
    const float *logits = NULL;
    uint64_t start_ns;
    uint32_t token;
    enum mp_status status = run_prompt(m, prompt, &logits);

    mp_evaluator_reset(m->evaluator);
    m->decode = true;
    start_ns = mp_clock_now_ns(m->config->clock);
    for (uint32_t t = 0; t < m->config->gen && prompt + t < engine->ctx && status == MP_OK; t++) {
        if (t >= STEPS_MIN && mp_clock_now_ns(m->config->clock) - start_ns > OWN_NS)
            break;
        status = mp_sampler_pick(m->sampler, 0, logits, &token);
        if (status == MP_OK)
            status = run_token(&m->session, token, prompt + t, &logits);
    }
    return status == MP_OK ? m->trace_status : status;
}

static double mean_accuracy(const struct measuring *m)
{
    double sum = 0;
    uint32_t count = 0;

    for (uint32_t l = 1; l < m->out->layers; l++) {
        struct mp_evaluation result;

        mp_evaluator_result(m->evaluator, l, &result);
        sum += result.tokens > 0 ? result.recall : 0;
        count += result.tokens > 0;
    }
    return count > 0 ? sum / count : 0;
}

/* A new engine: the model routes, the next layer's router guesses. */
static enum mp_status record_own(struct measuring *m)
{
    struct mp_measured *out = m->out;
    struct mp_engine_config *engine = &m->session.engine_config;
    const struct mp_sampling greedy = { .top_p = 1 };
    struct mp_profile policies = engine->policies;
    struct mp_model_id id;
    enum mp_status status =
        mp_replay_trace_init(&out->routing, out->layers, out->experts, out->top_k);

    if (status != MP_OK)
        return status;
    for (uint32_t l = 0; l < out->layers; l++)
        out->routing.layer_bytes[l] = 1; /* as of patterns */
    mp_model_id_make(&m->session.model, m->session.weights, &id);
    status = mp_evaluator_create(&id, engine->tokens_max, &m->evaluator);
    if (status == MP_OK)
        status = mp_sampler_create(&greedy, m->session.model.vocab, 1, &m->sampler);
    if (status != MP_OK)
        return status;
    engine->forced_routing = NULL;
    engine->routed = routed;
    engine->routed_ctx = m;
    policies.policy[MP_POLICY_PREDICT] = "gate";
    policies.policy[MP_POLICY_PREFETCH] = "top";
    status = mp_session_renew(&m->session, &policies, mp_evaluator_observer(m->evaluator));
    if (status == MP_OK)
        status = run_own(m);
    if (status == MP_OK)
        status = mp_replay_trace_end(&out->routing);
    if (status == MP_OK)
        out->accuracy = mean_accuracy(m);
    return status;
}

enum mp_status mp_measure_run(const struct mp_measure_config *config,
                              struct mp_measured *measured_p)
{
    struct mp_measured out = { 0 };
    struct measuring m = { .config = config, .out = &out };
    const struct mp_session_config session = {
        .model = config->model,
        .sequences = 1,
        .before_engine = use_patterns,
        .before_engine_ctx = &m,
        .clock = config->clock,
        .cancel = config->cancel,
    };
    enum mp_status status = plan(&m);

    if (status == MP_OK)
        status = mp_session_open(&m.settings, &session, &m.session);
    if (status == MP_OK)
        status = time_patterns(&m);
    if (status == MP_OK)
        status = record_own(&m);
    mp_session_close(&m.session);
    mp_evaluator_destroy(m.evaluator);
    mp_sampler_destroy(m.sampler);
    mp_forced_routing_destroy(m.forced);
    mp_replay_trace_fini(&m.patterns);
    if (status != MP_OK) {
        mp_measured_fini(&out);
        return status;
    }
    *measured_p = out;
    return MP_OK;
}

void mp_measured_fini(struct mp_measured *measured)
{
    mp_replay_trace_fini(&measured->routing);
}
