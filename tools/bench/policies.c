/*
 * What decisions cost: `bench_policies [repeats]` runs every built-in policy on random layers of
 * 64, 128 and 512 experts and batches of 1, 16 and 64 tokens, and prints microseconds per decision
 * as a table. A third of the experts is resident; the last column is of a model of more layers, of
 * which that third is 4096 experts.
 *
 * A decision is one route(), assign(), predict() with what was observed, choose() for one layer
 * ahead, admit(), one victim of pick(), one quota() and revise(). The line "facts" of an evict
 * policy is all its calls in one layer: scores, uses, swaps at the layer's end. Times are of this
 * thread's processor time; each figure is the median of the repeats.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/gpu/executors.h"
#include "policy/builtins.h"
#include "policy/top_k.h"
#include "vmm/base/error.h"

#define TOP_K 8
#define INPUTS 8 /* different layers that a measurement goes through */
#define REPEATS_MAX 101

static const struct column {
    uint32_t layers, experts, tokens;
    const char *title;
} columns[] = {
    { 48, 64, 1, "64, 1" },           { 48, 64, 16, "64, 16" },   { 48, 64, 64, "64, 64" },
    { 48, 128, 1, "128, 1" },         { 48, 128, 16, "128, 16" }, { 48, 128, 64, "128, 64" },
    { 16, 512, 1, "512, 1" },         { 16, 512, 16, "512, 16" }, { 16, 512, 64, "512, 64" },
    { 96, 128, 1, "128, 1 of 4096" },
};

#define COLUMNS (sizeof(columns) / sizeof(columns[0]))

/* One layer's facts. */
struct input {
    float *scores;     // (tokens, experts)
    uint32_t *chosen;  // (tokens, TOP_K)
    float *weights;    // (tokens, TOP_K)
    uint8_t *resident; // (experts)
    uint32_t *experts; // (experts): the needed ones
    uint32_t *tokens;  // (experts)
    float *need_scores;
    uint8_t *need_resident;
    uint32_t *executors;
    struct mp_assign_facts assign;
};

struct bench {
    struct mp_shape shape;
    struct mp_calibration calibration;
    struct mp_costs costs;
    struct input inputs[INPUTS];
    uint32_t tokens;
    uint8_t *evictable; // (units)
    uint32_t *out;      // (units, at least experts and tokens * TOP_K)
    float *out_scores;  // (tokens, experts)
    struct mp_swap *swaps;
    uint32_t *executors; // (experts)
    uint64_t now, sink;
};

static uint64_t random_state = 20240720;

static uint32_t random_below(uint32_t limit)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((random_state >> 33) % limit);
}

static void *must(void *memory)
{
    if (memory == NULL) {
        fprintf(stderr, "bench_policies: no memory\n");
        exit(1);
    }
    return memory;
}

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static float *random_floats(size_t count)
{
    float *list = must(calloc(count, sizeof(float)));

    for (size_t i = 0; i < count; i++)
        list[i] = (float)(1 + random_below(1000)) / 1000;
    return list;
}

static void make_input(struct bench *b, struct input *in)
{
    const uint32_t experts = b->shape.experts;
    struct mp_route_facts route = { .tokens = b->tokens, .experts = experts, .k = TOP_K };
    uint32_t count = 0;

    in->scores = random_floats((size_t)b->tokens * experts);
    /* A few favourites, so that a batch's tokens agree now and then. */
    for (uint32_t t = 0; t < b->tokens; t++) {
        for (uint32_t i = 0; i < TOP_K; i++)
            in->scores[(size_t)t * experts + random_below(experts / 4)] += 1;
    }
    in->chosen = must(calloc((size_t)b->tokens * TOP_K, sizeof(uint32_t)));
    in->weights = must(calloc((size_t)b->tokens * TOP_K, sizeof(float)));
    in->resident = must(calloc(experts, 1));
    in->experts = must(calloc(experts, sizeof(uint32_t)));
    in->tokens = must(calloc(experts, sizeof(uint32_t)));
    in->need_scores = must(calloc(experts, sizeof(float)));
    in->need_resident = must(calloc(experts, 1));
    in->executors = must(calloc(experts, sizeof(uint32_t)));
    for (uint32_t e = 0; e < experts; e++)
        in->resident[e] = random_below(3) == 0;
    route.scores = in->scores;
    mp_route_top_k(&route, in->chosen, in->weights);
    for (uint32_t e = 0; e < experts; e++) {
        uint32_t tokens = 0;
        float score = 0;

        for (uint32_t i = 0; i < b->tokens * TOP_K; i++) {
            tokens += in->chosen[i] == e;
            score += in->chosen[i] == e ? in->weights[i] : 0;
        }
        if (tokens == 0)
            continue;
        in->experts[count] = e;
        in->tokens[count] = tokens;
        in->need_scores[count] = score;
        in->executors[count] = in->resident[e] ? MP_GPU_DEVICE : MP_GPU_CPU;
        in->need_resident[count++] = in->resident[e];
    }
    in->assign = (struct mp_assign_facts){
        .count = count,
        .experts = in->experts,
        .tokens = in->tokens,
        .scores = in->need_scores,
        .resident = in->need_resident,
        .costs = &b->costs,
    };
}

static void free_input(struct input *in)
{
    free(in->scores);
    free(in->chosen);
    free(in->weights);
    free(in->resident);
    free(in->experts);
    free(in->tokens);
    free(in->need_scores);
    free(in->need_resident);
    free(in->executors);
}

static void bench_init(struct bench *b, const struct column *column)
{
    const uint32_t layers = column->layers, experts = column->experts, tokens = column->tokens;
    const size_t units = (size_t)layers * experts, pairs = units * experts;
    const size_t outs = units > (size_t)tokens * TOP_K ? units : (size_t)tokens * TOP_K;
    uint32_t *group = must(calloc(layers, sizeof(uint32_t)));

    memset(b, 0, sizeof(*b));
    b->tokens = tokens;
    b->costs = mp_gpu_costs();
    b->costs.load_ns = 400000;
    b->costs.layer_ns = 500000;
    b->costs.executors[MP_GPU_CPU].fixed_ns = 50000;
    b->costs.executors[MP_GPU_CPU].token_ns = 60000;
    b->costs.executors[MP_GPU_DEVICE].fixed_ns = 20000;
    b->costs.executors[MP_GPU_DEVICE].token_ns = 3000;
    for (uint32_t l = layers / 2; l < layers; l++)
        group[l] = 1;
    b->calibration = (struct mp_calibration){
        .hot = random_floats(units),
        .together = random_floats(pairs),
        .next = random_floats(pairs),
        .similarity = random_floats(pairs),
        .group = group,
    };
    b->shape = (struct mp_shape){ .layers = layers,
                                  .experts = experts,
                                  .top_k = TOP_K,
                                  .tokens_max = tokens,
                                  .slots = (uint32_t)units / 3,
                                  .expert_bytes = 1 << 20,
                                  .seed = 1,
                                  .calibration = &b->calibration,
                                  .costs = &b->costs,
                                  .slices = 16 };
    for (uint32_t i = 0; i < INPUTS; i++)
        make_input(b, &b->inputs[i]);
    b->evictable = must(calloc(units, 1));
    b->out = must(calloc(outs, sizeof(uint32_t)));
    b->out_scores = must(calloc((size_t)tokens * experts, sizeof(float)));
    b->swaps = must(calloc(experts, sizeof(struct mp_swap)));
    b->executors = must(calloc(experts, sizeof(uint32_t)));
}

static void bench_fini(struct bench *b)
{
    for (uint32_t i = 0; i < INPUTS; i++)
        free_input(&b->inputs[i]);
    free((void *)b->calibration.hot);
    free((void *)b->calibration.together);
    free((void *)b->calibration.next);
    free((void *)b->calibration.similarity);
    free((void *)b->calibration.group);
    free(b->evictable);
    free(b->out);
    free(b->out_scores);
    free(b->swaps);
    free(b->executors);
}

/* Each of the following makes INPUTS decisions. */

static void decide_route(struct bench *b, const struct mp_route_ops *ops, struct mp_policy *policy)
{
    for (uint32_t i = 0; i < INPUTS; i++) {
        const struct mp_route_facts facts = { .layer = i,
                                              .tokens = b->tokens,
                                              .experts = b->shape.experts,
                                              .k = TOP_K,
                                              .scores = b->inputs[i].scores,
                                              .resident = b->inputs[i].resident,
                                              .costs = &b->costs };

        ops->route(policy, &facts, b->out, b->out_scores);
        b->sink += b->out[0];
    }
}

static void decide_assign(struct bench *b, const struct mp_assign_ops *ops,
                          struct mp_policy *policy)
{
    for (uint32_t i = 0; i < INPUTS; i++) {
        struct mp_assign_facts facts = b->inputs[i].assign;

        facts.layer = i;
        if (ops->looks_ahead) {
            memset(b->out, 0, b->shape.experts * sizeof(b->out[0]));
            for (uint32_t n = 0; n < b->inputs[(i + 1) % INPUTS].assign.count; n++)
                b->out[b->inputs[(i + 1) % INPUTS].experts[n]] =
                    b->inputs[(i + 1) % INPUTS].tokens[n];
            facts.next_tokens = b->out;
            facts.next_resident = b->inputs[(i + 1) % INPUTS].resident;
        }
        ops->assign(policy, &facts, b->executors);
        b->sink += b->executors[0];
    }
}

static void decide_predict(struct bench *b, const struct mp_predict_ops *ops,
                           struct mp_policy *policy)
{
    for (uint32_t i = 0; i < INPUTS; i++) {
        const struct mp_predict_facts facts = {
            .layer = i,
            .target_layer = (i + 1) % INPUTS,
            .tokens = b->tokens,
            .experts = b->shape.experts,
            .k = TOP_K,
            .chosen = b->inputs[i].chosen,
            .source = ops->source != MP_SCORES_NONE ? b->inputs[i].scores : NULL,
        };

        if (ops->predict != NULL && (i + 1 < INPUTS || ops->wraps))
            b->sink += ops->predict(policy, &facts, b->out_scores);
        if (ops->observe != NULL)
            ops->observe(policy, i, b->tokens, TOP_K, b->inputs[i].chosen);
    }
}

static void decide_prefetch(struct bench *b, const struct mp_prefetch_ops *ops,
                            struct mp_policy *policy)
{
    for (uint32_t i = 0; i < INPUTS; i++) {
        const struct input *next = &b->inputs[(i + 1) % INPUTS];
        const struct mp_prefetch_facts facts = {
            .layer = i,
            .target_layer = (i + 1) % INPUTS,
            .tokens = b->tokens,
            .experts = b->shape.experts,
            .k = TOP_K,
            .scores = next->scores,
            .resident = next->resident,
            .max = b->shape.slots / 4,
            .distance = 1,
            .current = &b->inputs[i].assign,
            .executors = b->inputs[i].executors,
        };

        if (ops->choose != NULL)
            b->sink += ops->choose(policy, &facts, b->out);
        if (ops->observe != NULL)
            ops->observe(policy, i, b->tokens, TOP_K, b->inputs[i].chosen);
    }
}

static void decide_admit(struct bench *b, const struct mp_admit_ops *ops, struct mp_policy *policy)
{
    for (uint32_t i = 0; i < INPUTS; i++)
        b->sink += ops->admit(policy, i * b->shape.experts, 1 + i, ++b->now);
}

static struct mp_evict_query query_of(struct bench *b, uint32_t for_id, uint32_t layer)
{
    return (struct mp_evict_query){ .for_id = for_id,
                                    .scope_layer = layer,
                                    .experts = b->shape.experts,
                                    .evictable = b->evictable };
}

static void decide_evict(struct bench *b, const struct mp_evict_ops *ops, struct mp_policy *policy)
{
    for (uint32_t i = 0; i < INPUTS; i++) {
        const struct mp_evict_query query =
            query_of(b, i * b->shape.experts + b->inputs[i].experts[0], MP_LAYER_ANY);

        b->sink += ops->pick(policy, &query);
    }
}

/* The calls of an evict policy in a layer; swaps are carried out. */
static void notify_evict(struct bench *b, const struct mp_evict_ops *ops, struct mp_policy *policy)
{
    for (uint32_t i = 0; i < INPUTS; i++) {
        const struct input *in = &b->inputs[i];
        const struct mp_evict_query query = query_of(b, MP_EXPERT_NONE, i);
        uint32_t count = 0;

        b->now++;
        if (ops->on_scores != NULL)
            ops->on_scores(policy, i, b->tokens, TOP_K, in->scores, in->chosen, b->now);
        if (ops->on_access != NULL) {
            for (uint32_t n = 0; n < in->assign.count; n++)
                ops->on_access(policy, i * b->shape.experts + in->experts[n], in->tokens[n],
                               b->now);
        }
        if (ops->replace != NULL)
            count = ops->replace(policy, &query, b->now, b->swaps, b->shape.experts);
        for (uint32_t s = 0; s < count; s++) {
            if (b->swaps[s].out != MP_EXPERT_NONE) {
                ops->on_remove(policy, b->swaps[s].out, b->now);
                b->evictable[b->swaps[s].out] = 0;
            }
            ops->on_insert(policy, b->swaps[s].in, b->now);
            b->evictable[b->swaps[s].in] = 1;
        }
    }
}

static void decide_partition(struct bench *b, const struct mp_partition_ops *ops,
                             struct mp_policy *policy)
{
    for (uint32_t i = 0; i < INPUTS; i++) {
        if (ops->quota != NULL)
            ops->quota(policy, &b->shape, b->out);
        if (ops->observe != NULL)
            ops->observe(policy, i, TOP_K, TOP_K / 2, ++b->now);
        if (ops->revise != NULL)
            b->sink += ops->revise(policy, &b->shape, true, b->out);
    }
}

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Microseconds of one decision; with `facts` of all calls of an evict policy in a layer. */
static double measure(struct bench *b, enum mp_policy_kind kind, const void *ops,
                      struct mp_policy *policy, bool facts, int repeats)
{
    double times[REPEATS_MAX];

    for (int r = -1; r < repeats; r++) { /* the first one warms up */
        const double start = now_us();

        switch (kind) {
        case MP_POLICY_ROUTE: decide_route(b, ops, policy); break;
        case MP_POLICY_ASSIGN: decide_assign(b, ops, policy); break;
        case MP_POLICY_PREDICT: decide_predict(b, ops, policy); break;
        case MP_POLICY_PREFETCH: decide_prefetch(b, ops, policy); break;
        case MP_POLICY_ADMIT: decide_admit(b, ops, policy); break;
        case MP_POLICY_EVICT:
            if (facts)
                notify_evict(b, ops, policy);
            else
                decide_evict(b, ops, policy);
            break;
        case MP_POLICY_PARTITION: decide_partition(b, ops, policy); break;
        case MP_POLICY_KIND_COUNT: break;
        }
        if (r >= 0)
            times[r] = (now_us() - start) / INPUTS;
    }
    qsort(times, (size_t)repeats, sizeof(times[0]), compare_double);
    return times[repeats / 2];
}

static struct mp_policy *create(struct bench *b, enum mp_policy_kind kind,
                                const struct mp_policy_info *info, struct mp_policies *set)
{
    struct mp_profile chosen = mp_profiles[0];

    chosen.policy[kind] = info->name;
    if (mp_policies_create(&chosen, &b->shape, NULL, set) != MP_OK) {
        fprintf(stderr, "bench_policies: %s: %s\n", info->name, mp_error_last()->text);
        exit(1);
    }
    switch (kind) {
#define X(name, NAME) \
    case MP_POLICY_##NAME: return set->name;
        MP_POLICY_KIND_MAP(X)
#undef X
    case MP_POLICY_KIND_COUNT: break;
    }
    return NULL;
}

/* Fill a third of the units in and run some layers, so that there is something to weigh. */
static void fill(struct bench *b, const struct mp_evict_ops *ops, struct mp_policy *policy)
{
    const uint32_t units = b->shape.layers * b->shape.experts;

    memset(b->evictable, 0, units);
    b->now = 0;
    for (uint32_t u = 0; u + 2 < units; u += 3) {
        ops->on_insert(policy, u, 0);
        b->evictable[u] = 1;
    }
    for (unsigned i = 0; i < 4; i++)
        notify_evict(b, ops, policy);
}

static void bench_line(enum mp_policy_kind kind, const struct mp_policy_info *info, bool facts,
                       int repeats)
{
    printf("| %s `%s`%s |", mp_policy_kind_name(kind), info->name, facts ? ", facts" : "");
    for (size_t i = 0; i < COLUMNS; i++) {
        struct mp_policies set;
        struct mp_policy *policy;
        struct bench b;
        double us;

        bench_init(&b, &columns[i]);
        policy = create(&b, kind, info, &set);
        if (kind == MP_POLICY_EVICT)
            fill(&b, (const void *)info, policy);
        us = measure(&b, kind, info, policy, facts, repeats);
        printf(us < 10 ? " %.2f |" : us < 100 ? " %.1f |" : " %.0f |", us);
        fflush(stdout);
        mp_policies_destroy(&set);
        bench_fini(&b);
    }
    printf("\n");
}

int main(int argc, char **argv)
{
    const int repeats = argc > 1 ? atoi(argv[1]) : 11;

    if (repeats < 1 || repeats > REPEATS_MAX) {
        fprintf(stderr, "usage: bench_policies [repeats, 1..%d]\n", REPEATS_MAX);
        return 2;
    }
    printf("| us per decision |");
    for (size_t i = 0; i < COLUMNS; i++)
        printf(" %s |", columns[i].title);
    printf("\n|---|");
    for (size_t i = 0; i < COLUMNS; i++)
        printf("--:|");
    printf("\n");
    for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT; kind++) {
        const struct mp_policy_info *info;

        for (size_t i = 0; (info = mp_policy_builtin(kind, i)) != NULL; i++) {
            bench_line(kind, info, false, repeats);
            if (kind == MP_POLICY_EVICT)
                bench_line(kind, info, true, repeats);
        }
    }
    return 0;
}
