/*
 * Counts for a calibration, token by token, and computes shares at the end. Runs no model; groups
 * of layers are in calibrate_groups.c, files in engine/model/sidecar/calibration.c.
 */
#include "engine/calibrate/calibrate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/forward/forced_routing.h"
#include "vmm/base/arena.h"
#include "vmm/base/error.h"

/* L layers, E experts, H hidden, k of a token, T tokens of a batch. */
struct mp_calibrator {
    struct mp_model_id id;
    uint64_t tokens;      /* seen by layer 0 */
    uint64_t *chosen;     // (L, E): how often
    uint64_t *next_total; // (L, E): of those, how often the following layer was seen too
    uint32_t *together;   // (L, E, E): both by one token
    uint32_t *next;       // (L, E, E): second in the following layer, by the same token
    double *similarity;   // (L, E, E): sum of cosines, over `together`
    double *residual;     // (L, H): sum of differences
    double *cosine;       // (L): sum, with the layer before
    double *top_share;    // (L): sum
    float *input;         // (T, H): of the layer before
    uint32_t *before;     // (T, k): chosen in the layer before
    uint32_t *last;       // (sequences, k): chosen in the last layer by the token before
    uint32_t *last_at;    // (sequences): position of that token + 1; 0: there is none
    double *norm;         // (k): scratch
    void *block;          /* of all these arrays */
};

static void take_arrays(struct mp_calibrator *c, uint32_t sequences, uint32_t tokens_max,
                        struct mp_arena *arena)
{
    const uint64_t L = c->id.layers, E = c->id.experts, H = c->id.hidden, k = c->id.top_k;

    c->chosen = mp_arena_take(arena, L * E, sizeof(*c->chosen));
    c->next_total = mp_arena_take(arena, L * E, sizeof(*c->next_total));
    c->together = mp_arena_take(arena, L * E * E, sizeof(*c->together));
    c->next = mp_arena_take(arena, L * E * E, sizeof(*c->next));
    c->similarity = mp_arena_take(arena, L * E * E, sizeof(*c->similarity));
    c->residual = mp_arena_take(arena, L * H, sizeof(*c->residual));
    c->cosine = mp_arena_take(arena, L, sizeof(*c->cosine));
    c->top_share = mp_arena_take(arena, L, sizeof(*c->top_share));
    c->input = mp_arena_take(arena, tokens_max * H, sizeof(*c->input));
    c->before = mp_arena_take(arena, tokens_max * k, sizeof(*c->before));
    c->last = mp_arena_take(arena, sequences * k, sizeof(*c->last));
    c->last_at = mp_arena_take(arena, sequences, sizeof(*c->last_at));
    c->norm = mp_arena_take(arena, k, sizeof(*c->norm));
}

enum mp_status mp_calibrator_create(const struct mp_model_id *id, uint32_t sequences,
                                    uint32_t tokens_max, struct mp_calibrator **calibrator_p)
{
    struct mp_calibrator *c = calloc(1, sizeof(*c));
    struct mp_arena arena = { 0 };
    enum mp_status status;

    if (c == NULL)
        return mp_fail_no_memory("a calibration", sizeof(*c));
    c->id = *id;
    take_arrays(c, sequences, tokens_max, &arena);
    status = mp_arena_open(&arena, "a calibration");
    if (status != MP_OK) {
        free(c);
        return status;
    }
    take_arrays(c, sequences, tokens_max, &arena);
    c->block = arena.block;
    *calibrator_p = c;
    return MP_OK;
}

void mp_calibrator_destroy(struct mp_calibrator *c)
{
    if (c == NULL)
        return;
    free(c->block);
    free(c);
}

static double dot(const float *a, const float *b, size_t count)
{
    double sum = 0;

    for (size_t i = 0; i < count; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

static double cosine(double product, double norm_a, double norm_b)
{
    return norm_a > 0 && norm_b > 0 ? product / (norm_a * norm_b) : 0;
}

/* Pairs that one token chose: how often, and how alike their results were. */
static void add_pairs(struct mp_calibrator *c, const struct mp_layer_seen *seen, size_t t)
{
    const size_t E = c->id.experts, H = c->id.hidden, k = seen->k;
    const uint32_t *experts = seen->experts + t * k;
    const float *results = seen->results + t * k * H;

    for (size_t r = 0; r < k; r++) {
        c->chosen[seen->layer * E + experts[r]]++;
        c->norm[r] = sqrt(dot(results + r * H, results + r * H, H));
    }
    for (size_t r = 0; r < k; r++) {
        for (size_t s = 0; s < r; s++) {
            const double alike =
                cosine(dot(results + r * H, results + s * H, H), c->norm[r], c->norm[s]);
            const size_t one = (seen->layer * E + experts[r]) * E + experts[s];
            const size_t other = (seen->layer * E + experts[s]) * E + experts[r];

            c->together[one]++;
            c->together[other]++;
            c->similarity[one] += alike;
            c->similarity[other] += alike;
        }
    }
}

/* `second` was chosen in the layer that follows `layer`, in which `first` was. */
static void add_next(struct mp_calibrator *c, uint32_t layer, const uint32_t *first,
                     const uint32_t *second)
{
    const size_t E = c->id.experts, k = c->id.top_k;

    for (size_t r = 0; r < k; r++) {
        c->next_total[layer * E + first[r]]++;
        for (size_t s = 0; s < k; s++)
            c->next[(layer * E + first[r]) * E + second[s]]++;
    }
}

static void add_change(struct mp_calibrator *c, uint32_t layer, const float *before,
                       const float *now)
{
    const size_t H = c->id.hidden;
    double *sum = c->residual + (layer - 1) * H;

    for (size_t i = 0; i < H; i++)
        sum[i] += (double)now[i] - (double)before[i];
    c->cosine[layer] +=
        cosine(dot(before, now, H), sqrt(dot(before, before, H)), sqrt(dot(now, now, H)));
}

/* Layer 0 of a token follows the last layer of the token before it. */
static void add_wrap(struct mp_calibrator *c, const struct mp_layer_seen *seen, size_t t)
{
    const uint32_t sequence = seen->batch->sequence[t], position = seen->batch->position[t];
    const size_t k = seen->k;

    if (seen->layer == 0 && position > 0 && c->last_at[sequence] == position)
        add_next(c, c->id.layers - 1, c->last + sequence * k, seen->experts + t * k);
    if (seen->layer + 1 == c->id.layers) {
        memcpy(c->last + sequence * k, seen->experts + t * k, k * sizeof(*c->last));
        c->last_at[sequence] = position + 1;
    }
}

void mp_calibrator_seen(void *calibrator, const struct mp_layer_seen *seen)
{
    struct mp_calibrator *c = calibrator;
    const size_t H = c->id.hidden, k = seen->k, tokens = seen->batch->count;

    for (size_t t = 0; t < tokens; t++) {
        float total = 0;

        for (size_t r = 0; r < k; r++)
            total += seen->weights[t * k + r];
        c->top_share[seen->layer] += total > 0 ? (double)(seen->weights[t * k] / total) : 0;
        add_pairs(c, seen, t);
        if (seen->layer > 0) {
            add_change(c, seen->layer, c->input + t * H, seen->input + t * H);
            add_next(c, seen->layer - 1, c->before + t * k, seen->experts + t * k);
        }
        add_wrap(c, seen, t);
    }
    memcpy(c->input, seen->input, tokens * H * sizeof(float));
    memcpy(c->before, seen->experts, tokens * k * sizeof(uint32_t));
    if (seen->layer == 0)
        c->tokens += tokens;
}

enum mp_status mp_calibrator_trace(struct mp_calibrator *c, const struct mp_forced_routing *from,
                                   uint64_t steps)
{
    const uint32_t all = mp_forced_routing_steps(from), sequence = 0;
    /* Inputs, results and weights of one token: nothing is known of them. */
    float *zeros = calloc((size_t)c->id.hidden * c->id.top_k + c->id.top_k, sizeof(*zeros));

    if (zeros == NULL)
        return mp_fail_no_memory("a calibration", (uint64_t)c->id.hidden * c->id.top_k * 4);
    for (uint32_t step = 0; step < all && step < steps; step++) {
        const struct mp_batch batch = { .count = 1, .sequence = &sequence, .position = &step };

        for (uint32_t l = 0; l < c->id.layers; l++) {
            const struct mp_layer_seen seen = {
                .layer = l,
                .k = c->id.top_k,
                .batch = &batch,
                .input = zeros,
                .experts = mp_forced_routing_chosen(from, step, l),
                .weights = zeros,
                .results = zeros,
            };

            mp_calibrator_seen(c, &seen);
        }
    }
    free(zeros);
    return MP_OK;
}

double mp_calibrator_cosine(const struct mp_calibrator *c, uint32_t layer)
{
    return c->tokens > 0 ? c->cosine[layer] / (double)c->tokens : 0;
}

double mp_calibrator_top_share(const struct mp_calibrator *c, uint32_t layer)
{
    return c->tokens > 0 ? c->top_share[layer] / (double)c->tokens : 0;
}

static float share(double part, double whole)
{
    return whole > 0 ? (float)(part / whole) : 0;
}

static uint64_t finish_layer(const struct mp_calibrator *c, struct mp_calibration_data *data,
                             uint32_t layer)
{
    const size_t E = c->id.experts, H = c->id.hidden, at = layer * E;
    struct mp_calibration *facts = &data->facts;
    float *block = data->block;
    uint64_t pairs = 0;

    /* The arrays lie in the block, which is ours to fill. */
    for (size_t e = 0; e < E; e++)
        block[facts->hot - block + (ptrdiff_t)(at + e)] =
            share((double)c->chosen[at + e], (double)c->tokens * c->id.top_k);
    for (size_t i = at * E; i < (at + E) * E; i++) {
        const size_t first = i / E;

        pairs += c->together[i] > 0;
        block[facts->together - block + (ptrdiff_t)i] =
            share(c->together[i], (double)c->chosen[first]);
        block[facts->next - block + (ptrdiff_t)i] = share(c->next[i], (double)c->next_total[first]);
        block[facts->similarity - block + (ptrdiff_t)i] = share(c->similarity[i], c->together[i]);
        if (i % E == first % E) {
            block[facts->together - block + (ptrdiff_t)i] = c->chosen[first] > 0;
            block[facts->similarity - block + (ptrdiff_t)i] = 1;
        }
    }
    for (size_t i = layer * H; i < (layer + 1) * H; i++)
        block[data->residual - block + (ptrdiff_t)i] = share(c->residual[i], (double)c->tokens);
    return pairs;
}

void mp_calibrator_finish(const struct mp_calibrator *c, struct mp_calibration_data *data,
                          struct mp_calibration_summary *summary_p)
{
    const double all = (double)c->id.layers * c->id.experts * (c->id.experts - 1.0);
    uint64_t pairs = 0;

    for (uint32_t l = 0; l < c->id.layers; l++)
        pairs += finish_layer(c, data, l);
    /* Sums instead of means: the groups do not depend on the scale. */
    mp_calibrate_groups(c->cosine, c->top_share, c->id.layers, data->groups);
    *summary_p = (struct mp_calibration_summary){
        .tokens = c->tokens,
        .similar_pairs = all > 0 ? (double)pairs / all : 1,
    };
}
