/*
 * Scores of simulated routers, synthetic or from a trace; sim_load.h has the model. Predictors'
 * scores are in sim_load_predict.c.
 */
#include "policy/sim/sim_load_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/base/arena.h"
#include "vmm/base/assert.h"

/* Nothing generated yet, in generated[]. */
#define NEVER UINT32_MAX

static void make_layers(struct mp_sim_load *load)
{
    for (uint32_t l = 0; l < load->layers; l++) {
        load->share[l] = mp_sim_fit_share(&load->fit, load->config.model->variation,
                                          mp_sim_uniform(&load->random));
        for (uint32_t e = 0; e < load->experts; e++)
            load->fixed[(size_t)l * load->experts + e] = mp_sim_normal(&load->random);
        load->generated[l] = NEVER;
    }
    for (size_t i = 0; i < (size_t)load->layers * load->config.sequences * load->experts; i++)
        load->moving[i] = mp_sim_normal(&load->random);
}

/* Which experts are used most: as a calibration run on other text would count them. */
static void make_hot(struct mp_sim_load *load)
{
    enum { SAMPLES = 512 };
    uint64_t random = load->config.seed ^ UINT64_C(0x5deece66d);
    float *logits = load->logits;

    for (uint32_t l = 0; l < load->layers; l++) {
        float *hot = load->hot + (size_t)l * load->experts;
        const float *fixed = load->fixed + (size_t)l * load->experts;
        const float w = load->share[l], rest = sqrtf(1 - w * w);

        for (uint32_t t = 0; t < SAMPLES; t++) {
            for (uint32_t e = 0; e < load->experts; e++)
                logits[e] = w * fixed[e] + rest * mp_sim_normal(&random);
            mp_sim_top(logits, load->experts, load->k, load->best);
            for (uint32_t r = 0; r < load->k; r++)
                hot[load->best[r]] += 1.0f / ((float)SAMPLES * (float)load->k);
        }
    }
    load->calibration.hot = load->hot;
}

/* Experts are chosen independently of each other; how alike their outputs are is any number. */
static void make_pairs(struct mp_sim_load *load)
{
    const uint32_t experts = load->experts;
    const size_t all = (size_t)load->layers * experts * experts;
    uint64_t random = load->config.seed ^ UINT64_C(0x2bd1e995);
    float *similarity = load->pairs + 2 * all;

    for (size_t i = 0; i < all; i++) {
        const uint32_t layer = (uint32_t)(i / experts / experts);
        const uint32_t from = (uint32_t)(i / experts % experts), to = (uint32_t)(i % experts);
        const size_t base = (size_t)layer * experts * experts;

        load->pairs[i] = load->hot[(size_t)layer * experts + to] * (float)load->k;
        load->pairs[all + i] =
            load->hot[(size_t)((layer + 1) % load->layers) * experts + to] * (float)load->k;
        if (from < to)
            similarity[i] = similarity[base + (size_t)to * experts + from] =
                (float)mp_sim_uniform(&random);
        else if (from == to)
            similarity[i] = load->pairs[i] = 1;
    }
    for (uint32_t l = 0; l < load->layers; l++)
        load->group[l] = 3 * l / load->layers;
    load->calibration.together = load->pairs;
    load->calibration.next = load->pairs + all;
    load->calibration.similarity = similarity;
    load->calibration.group = load->group;
}

static enum mp_status make_synthetic(struct mp_sim_load *load)
{
    enum mp_status status = MP_OK;

    if (load->config.fit != NULL)
        load->fit = *load->config.fit;
    else
        status = mp_sim_fit(load->config.model, load->config.seed, &load->fit);
    if (status != MP_OK)
        return status;
    make_layers(load);
    make_hot(load);
    make_pairs(load);
    return MP_OK;
}

/* A step ends where the layers begin again. */
static bool begins_step(const struct mp_replay_trace *trace, size_t group)
{
    return group == 0 || trace->groups[group].layer <= trace->groups[group - 1].layer ||
           trace->groups[group].decode != trace->groups[group - 1].decode;
}

static void make_steps(struct mp_sim_load *load)
{
    const struct mp_replay_trace *trace = load->config.trace;

    for (size_t g = 0; g < trace->group_count; g++) {
        if (begins_step(trace, g))
            load->step_group[load->step_count++] = g;
    }
    load->step_group[load->step_count] = trace->group_count;
}

static uint32_t group_tokens(const struct mp_replay_trace *trace,
                             const struct mp_replay_group *group)
{
    uint64_t choices = 0;

    for (uint32_t i = 0; i < group->count; i++)
        choices += trace->uses[group->first + i].tokens;
    return (uint32_t)(choices / trace->top_k);
}

void mp_sim_load_trace_size(const struct mp_replay_trace *trace, uint32_t *tokens_max_p,
                            uint32_t *decode_steps_p)
{
    *tokens_max_p = 1;
    *decode_steps_p = 0;
    for (size_t g = 0; g < trace->group_count; g++) {
        const uint32_t tokens = group_tokens(trace, &trace->groups[g]);

        if (tokens > *tokens_max_p)
            *tokens_max_p = tokens;
        *decode_steps_p += trace->groups[g].decode && begins_step(trace, g);
    }
}

static void take_parts(struct mp_sim_load *load, struct mp_arena *arena)
{
    const struct mp_sim_load_config *config = &load->config;
    const uint64_t layers = load->layers, units = layers * load->experts;

    load->counts = mp_arena_take(arena, units, sizeof(uint32_t));
    load->best = mp_arena_take(arena, load->k, sizeof(uint32_t));
    load->chosen = mp_arena_take(arena, load->experts, 1);
    load->previous = mp_arena_take(arena, layers * config->sequences * load->k, sizeof(uint32_t));
    if (config->trace != NULL) {
        load->step_group =
            mp_arena_take(arena, config->trace->group_count + UINT64_C(1), sizeof(size_t));
        return;
    }
    load->fixed = mp_arena_take(arena, units, sizeof(float));
    load->share = mp_arena_take(arena, layers, sizeof(float));
    load->moving = mp_arena_take(arena, units * config->sequences, sizeof(float));
    load->logits = mp_arena_take(arena, units * config->tokens_max, sizeof(float));
    load->generated = mp_arena_take(arena, layers, sizeof(uint32_t));
    load->hot = mp_arena_take(arena, units, sizeof(float));
    load->pairs = mp_arena_take(arena, 3 * units * load->experts, sizeof(float));
    load->group = mp_arena_take(arena, layers, sizeof(uint32_t));
}

enum mp_status mp_sim_load_create(const struct mp_sim_load_config *config,
                                  struct mp_sim_load **load_p)
{
    struct mp_sim_load draft = {
        .config = *config,
        .layers = (uint32_t)config->model->layers,
        .experts = (uint32_t)config->model->experts,
        .k = (uint32_t)config->model->top_k,
        .random = config->seed,
    };
    struct mp_arena arena = { 0 };
    struct mp_sim_load *load;
    enum mp_status status;

    mp_arena_take(&arena, 1, sizeof(*load));
    take_parts(&draft, &arena);
    status = mp_arena_open(&arena, "a workload");
    if (status != MP_OK)
        return status;
    load = mp_arena_take(&arena, 1, sizeof(*load));
    *load = draft;
    take_parts(load, &arena);
    if (config->trace != NULL)
        make_steps(load);
    else
        status = make_synthetic(load);
    if (status != MP_OK) {
        mp_sim_load_destroy(load);
        return status;
    }
    *load_p = load;
    return MP_OK;
}

void mp_sim_load_destroy(struct mp_sim_load *load)
{
    free(load);
}

const struct mp_replay_group *mp_sim_load_group(const struct mp_sim_load *load, uint32_t step,
                                                uint32_t layer)
{
    const struct mp_replay_trace *trace = load->config.trace;

    if (step == 0 || step > load->step_count)
        return NULL;
    for (size_t g = load->step_group[step - 1]; g < load->step_group[step]; g++) {
        if (trace->groups[g].layer == layer)
            return &trace->groups[g];
    }
    return NULL;
}

void mp_sim_load_rewind(struct mp_sim_load *load)
{
    load->step = 0;
}

bool mp_sim_load_begin(struct mp_sim_load *load, uint32_t tokens, bool *decode_p)
{
    const struct mp_replay_trace *trace = load->config.trace;

    load->step++;
    if (trace == NULL) {
        mp_assert(tokens <= load->config.tokens_max && tokens % load->config.sequences == 0);
        load->tokens = tokens;
        load->decode = *decode_p;
        return true;
    }
    if (load->step > load->step_count)
        return false;
    load->decode = *decode_p = trace->groups[load->step_group[load->step - 1]].decode;
    return true;
}

uint32_t mp_sim_load_tokens(const struct mp_sim_load *load, uint32_t layer)
{
    const struct mp_replay_group *group;

    if (load->config.trace == NULL)
        return load->tokens;
    group = mp_sim_load_group(load, load->step, layer);
    return group != NULL ? group_tokens(load->config.trace, group) : 0;
}

void mp_sim_load_generate(struct mp_sim_load *load, uint32_t layer, uint32_t step)
{
    const uint32_t sequences = load->config.sequences, experts = load->experts;
    const uint32_t each = load->tokens / sequences;
    const float w = load->share[layer], rest = sqrtf(1 - w * w);
    const float keep = (float)load->fit.keep, fresh = sqrtf(1 - keep * keep);
    const float *fixed = load->fixed + (size_t)layer * experts;

    if (load->generated[layer] == step)
        return;
    load->generated[layer] = step;
    for (uint32_t t = 0; t < load->tokens; t++) {
        float *moving = load->moving + ((size_t)layer * sequences + t / each) * experts;
        float *logits = mp_sim_load_logits(load, layer) + (size_t)t * experts;

        for (uint32_t e = 0; e < experts; e++) {
            moving[e] = keep * moving[e] + fresh * mp_sim_normal(&load->random);
            logits[e] = w * fixed[e] + rest * moving[e];
        }
    }
}

static void softmax(const float *logits, float heat, uint32_t count, float *scores)
{
    float largest = logits[0], sum = 0;

    for (uint32_t i = 1; i < count; i++)
        largest = logits[i] > largest ? logits[i] : largest;
    for (uint32_t i = 0; i < count; i++) {
        scores[i] = expf(heat * (logits[i] - largest));
        sum += scores[i];
    }
    for (uint32_t i = 0; i < count; i++)
        scores[i] /= sum;
}

/* One token of decode: what it has in common with the one before, and how sure the router is. */
static void observe(struct mp_sim_load *load, uint32_t layer, uint32_t token, const float *scores)
{
    uint32_t *previous =
        load->previous + ((size_t)layer * load->config.sequences + token) * load->k;
    uint32_t same = 0;

    mp_sim_top(scores, load->experts, load->k, load->best);
    for (uint32_t r = 0; r < load->k; r++) {
        load->counts[(size_t)layer * load->experts + load->best[r]]++;
        load->mass_sum += scores[load->best[r]];
        for (uint32_t s = 0; s < load->k; s++)
            same += previous[s] == load->best[r];
    }
    load->mass_count++;
    if (previous[0] != 0 || load->k == 1 || previous[1] != 0) {
        load->overlap_sum += (double)same / load->k;
        load->overlap_count++;
    }
    memcpy(previous, load->best, load->k * sizeof(previous[0]));
}

/* Deal the batch's tokens: the copies of one expert go to tokens that follow each other. */
static void deal(struct mp_sim_load *load, const struct mp_replay_group *group, uint32_t tokens,
                 float *scores)
{
    const struct mp_replay_use *uses = load->config.trace->uses + group->first;
    uint32_t at = 0;

    for (size_t i = 0; i < (size_t)tokens * load->experts; i++)
        scores[i] = (float)mp_sim_uniform(&load->random) / (float)(2 * load->experts);
    for (uint32_t i = 0; i < group->count; i++) {
        for (uint32_t n = 0; n < uses[i].tokens; n++, at++)
            scores[(size_t)(at % tokens) * load->experts + uses[i].id % load->experts] +=
                1.0f / (float)load->k;
    }
    for (uint32_t t = 0; t < tokens; t++) {
        float *mine = scores + (size_t)t * load->experts, sum = 0;

        for (uint32_t e = 0; e < load->experts; e++)
            sum += mine[e];
        for (uint32_t e = 0; e < load->experts; e++)
            mine[e] /= sum;
    }
}

static void trace_scores(struct mp_sim_load *load, uint32_t layer, float *scores)
{
    const struct mp_replay_group *group = mp_sim_load_group(load, load->step, layer);
    const uint32_t tokens = group_tokens(load->config.trace, group);

    if (load->config.trace->scores == NULL) {
        deal(load, group, tokens, scores);
        return;
    }
    memcpy(scores, mp_sim_load_recorded(load, group),
           (size_t)tokens * load->experts * sizeof(scores[0]));
    if (load->decode && tokens <= load->config.sequences) {
        for (uint32_t t = 0; t < tokens; t++)
            observe(load, layer, t, scores + (size_t)t * load->experts);
    }
}

void mp_sim_load_scores(struct mp_sim_load *load, uint32_t layer, float *scores)
{
    mp_assert(layer < load->layers);
    if (load->config.trace != NULL) {
        trace_scores(load, layer, scores);
        return;
    }
    mp_sim_load_generate(load, layer, load->step);
    for (uint32_t t = 0; t < load->tokens; t++) {
        const size_t at = (size_t)t * load->experts;

        softmax(mp_sim_load_logits(load, layer) + at, (float)load->fit.heat, load->experts,
                scores + at);
        if (load->decode)
            observe(load, layer, t, scores + at);
    }
}

const struct mp_calibration *mp_sim_load_calibration(const struct mp_sim_load *load)
{
    return &load->calibration;
}

static void see_skew(struct mp_sim_load *load, struct mp_sim_seen *seen)
{
    double sum = 0, squares = 0;

    for (uint32_t l = 0; l < load->layers; l++) {
        const double skew = mp_sim_skew(load->counts + (size_t)l * load->experts, load->experts);

        sum += skew;
        squares += skew * skew;
    }
    seen->skew = sum / load->layers;
    seen->skew_spread = sqrt(fmax(0, squares / load->layers - seen->skew * seen->skew));
}

struct mp_sim_seen mp_sim_load_seen(struct mp_sim_load *load)
{
    struct mp_sim_seen seen = { 0 };

    see_skew(load, &seen);
    if (load->overlap_count > 0)
        seen.overlap = load->overlap_sum / (double)load->overlap_count;
    if (load->mass_count > 0)
        seen.mass = load->mass_sum / (double)load->mass_count;
    if (load->accuracy_count > 0)
        seen.accuracy = load->accuracy_sum / (double)load->accuracy_count;
    return seen;
}
