#ifndef MP_TESTS_DECISIONS_PLAY_H
#define MP_TESTS_DECISIONS_PLAY_H

/* Plays a few steps with every policy of a profile and records what they decide. */
#include "policy/record/decisions.h"

#include <glob.h>
#include <stdint.h>

#include "tests/support/executors.h"
#include "tests/support/random.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "tests/unit/policy/groups.h"
#include "vmm/base/error.h"

enum { LAYERS = 3, EXPERTS = 8, TOP_K = 2, TOKENS_MAX = 3, SLOTS = 9, UNITS = LAYERS * EXPERTS };

static struct mp_costs costs; /* what facts and the shape point to */
static struct mp_costs alone; /* the same without anybody else than the home executor */
static float hot[UNITS], pairs[UNITS * EXPERTS];
static const uint32_t groups_of_layers[LAYERS] = { 0, 0, 1 };
static const struct mp_calibration calibration = {
    .hot = hot, .together = pairs, .next = pairs, .similarity = pairs, .group = groups_of_layers
};
static const struct mp_shape shape = {
    .layers = LAYERS,
    .experts = EXPERTS,
    .top_k = TOP_K,
    .tokens_max = TOKENS_MAX,
    .slots = SLOTS,
    .expert_bytes = 4096,
    .seed = 11,
    .calibration = &calibration,
    .costs = &costs,
    .slices = 16,
};

static inline const char *path_of(const char *name)
{
    static char paths[4][4200];
    static unsigned next;
    char *path = paths[next++ % 4];

    snprintf(path, sizeof(paths[0]), "%s/%s", test_tmpdir(), name);
    return path;
}

/* A run without a model: what pager and step would say, and the results as one number. */
struct play {
    struct mp_policies *set;
    uint8_t resident[UNITS];
    uint32_t held;
    uint64_t now, sum;
    float scores[TOKENS_MAX * EXPERTS], guess[TOKENS_MAX * EXPERTS];
    uint32_t chosen[TOKENS_MAX * TOP_K];
    uint32_t quota[LAYERS];
};

static inline void add(struct play *play, uint64_t result)
{
    play->sum = (play->sum ^ result) * UINT64_C(0x100000001b3);
}

static inline void add_list(struct play *play, const uint32_t *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        add(play, list[i]);
}

static inline void remove_unit(struct play *play, uint32_t unit)
{
    play->resident[unit] = 0;
    play->held--;
    play->set->evict_ops->on_remove(play->set->evict, unit, play->now);
}

static inline void insert_unit(struct play *play, uint32_t unit, uint32_t tokens)
{
    const struct mp_evict_query query = { unit, MP_LAYER_ANY, EXPERTS, 0, play->resident };
    uint32_t victim;

    if (play->held == SLOTS) {
        victim = play->set->evict_ops->pick(play->set->evict, &query);
        add(play, victim);
        for (uint32_t u = 0; victim == MP_EXPERT_NONE && u < UNITS; u++)
            victim = play->resident[u] ? u : victim;
        CHECK(victim < UNITS && play->resident[victim]);
        remove_unit(play, victim);
    }
    play->resident[unit] = 1;
    play->held++;
    play->set->evict_ops->on_insert(play->set->evict, unit, play->now);
    if (play->set->admit_ops->admit(play->set->admit, unit, tokens, play->now))
        add(play, 1);
    else
        remove_unit(play, unit);
}

/* Some of the absent experts are on their way, or nobody says so. */
static inline const uint64_t *arrivals(const uint8_t *resident)
{
    static uint64_t arrival_ns[EXPERTS];

    for (uint32_t e = 0; e < EXPERTS; e++)
        arrival_ns[e] = resident[e] ? 0 : random_below(2) ? random_below(9000) : MP_ARRIVAL_NEVER;
    return random_below(3) > 0 ? arrival_ns : NULL;
}

static inline void play_route(struct play *play, uint32_t layer, uint32_t tokens)
{
    const struct mp_policies *set = play->set;
    const struct mp_route_facts facts = { layer,
                                          tokens,
                                          EXPERTS,
                                          TOP_K,
                                          play->scores,
                                          play->resident + (size_t)layer * EXPERTS,
                                          arrivals(play->resident + (size_t)layer * EXPERTS),
                                          layer == 0 ? random_below(9000) : 0,
                                          &costs };
    float weights[TOKENS_MAX * TOP_K];

    for (uint32_t i = 0; i < tokens * EXPERTS; i++)
        play->scores[i] = (float)(random_below(997) + 1) / 1000;
    set->route_ops->route(set->route, &facts, play->chosen, weights);
    add_list(play, play->chosen, (size_t)tokens * TOP_K);
    play->now++;
    if (set->evict_ops->on_scores != NULL)
        set->evict_ops->on_scores(set->evict, layer, tokens, TOP_K, play->scores, play->chosen,
                                  play->now);
}

/* The chosen experts of the layer, as assign gets them. */
struct needs {
    uint32_t experts[EXPERTS], tokens[EXPERTS], count;
    float scores[EXPERTS];
    uint8_t resident[EXPERTS];
    uint32_t executors[EXPERTS];
    uint32_t next_tokens[EXPERTS];
    struct mp_assign_facts facts;
};

static inline void play_assign(struct play *play, uint32_t layer, uint32_t tokens, struct needs *n)
{
    const struct mp_policies *set = play->set;

    for (uint32_t e = 0; e < EXPERTS; e++) {
        uint32_t of = 0;

        for (uint32_t i = 0; i < tokens * TOP_K; i++)
            of += play->chosen[i] == e;
        if (of == 0)
            continue;
        n->experts[n->count] = e;
        n->tokens[n->count] = of;
        n->scores[n->count] = play->scores[e];
        n->resident[n->count++] = play->resident[layer * EXPERTS + e];
    }
    n->facts = (struct mp_assign_facts){
        .layer = layer,
        .count = n->count,
        .experts = n->experts,
        .tokens = n->tokens,
        .scores = n->scores,
        .resident = n->resident,
        .arrival_ns = arrivals(n->resident),
        .costs = random_below(2) ? &alone : &costs,
        .link_busy_ns = random_below(1000),
        .next_tokens = random_below(2) ? n->next_tokens : NULL,
        .next_resident = play->resident,
    };
    set->assign_ops->assign(set->assign, &n->facts, n->executors);
    add_list(play, (const uint32_t *)n->executors, n->count);
}

static inline void play_ahead(struct play *play, uint32_t layer, uint32_t tokens,
                              const struct needs *n)
{
    const struct mp_policies *set = play->set;
    const uint32_t target = (layer + 1) % LAYERS;
    const bool source = set->predict_ops->source != MP_SCORES_NONE;
    const struct mp_predict_facts facts = {
        layer, target, tokens, EXPERTS, TOP_K, play->chosen, source ? play->scores : NULL
    };
    struct mp_prefetch_facts wanted = { layer,
                                        target,
                                        tokens,
                                        EXPERTS,
                                        TOP_K,
                                        play->guess,
                                        play->resident + (size_t)target * EXPERTS,
                                        random_below(4),
                                        1,
                                        &n->facts,
                                        n->executors };
    uint32_t list[EXPERTS], count;

    if (set->predict_ops->observe != NULL)
        set->predict_ops->observe(set->predict, layer, tokens, TOP_K, play->chosen);
    if (set->prefetch_ops->observe != NULL)
        set->prefetch_ops->observe(set->prefetch, layer, tokens, TOP_K, play->chosen);
    if (set->predict_ops->predict == NULL || (target == 0 && !set->predict_ops->wraps) ||
        !set->predict_ops->predict(set->predict, &facts, play->guess))
        return;
    add(play, (uint64_t)(play->guess[0] * 1e6f));
    if (set->prefetch_ops->choose == NULL)
        return;
    count = set->prefetch_ops->choose(set->prefetch, &wanted, list);
    CHECK(count <= EXPERTS);
    add_list(play, list, count);
}

static inline void play_layer(struct play *play, uint32_t layer)
{
    const struct mp_policies *set = play->set;
    const struct mp_evict_query query = { MP_EXPERT_NONE, layer, EXPERTS, layer % 2,
                                          play->resident };
    const uint32_t tokens = 1 + random_below(TOKENS_MAX);
    struct needs needs = { .count = 0 };
    struct mp_swap swaps[EXPERTS];
    uint32_t count;

    costs.load_ns = random_below(3); /* measured anew now and then */
    alone = costs;
    alone.executor_count = 1;
    play_route(play, layer, tokens);
    play_assign(play, layer, tokens, &needs);
    for (uint32_t i = 0; set->evict_ops->on_access != NULL && i < needs.count; i++)
        set->evict_ops->on_access(set->evict, layer * EXPERTS + needs.experts[i], needs.tokens[i],
                                  play->now);
    if (set->partition_ops->observe != NULL)
        set->partition_ops->observe(set->partition, layer, needs.count, 0, play->now);
    for (uint32_t i = 0; i < needs.count; i++) {
        if (!play->resident[layer * EXPERTS + needs.experts[i]])
            insert_unit(play, layer * EXPERTS + needs.experts[i], needs.tokens[i]);
    }
    play_ahead(play, layer, tokens, &needs);
    if (set->evict_ops->replace != NULL) {
        count = set->evict_ops->replace(set->evict, &query, play->now, swaps, EXPERTS);
        CHECK(count <= EXPERTS);
        add_list(play, &swaps[0].in, 2 * (size_t)count);
    }
    if (set->partition_ops->predicted != NULL)
        set->partition_ops->predicted(set->partition, (layer + 1) % LAYERS, tokens, play->guess);
    if (set->partition_ops->routed != NULL)
        set->partition_ops->routed(set->partition, layer, tokens, TOP_K, play->chosen);
    if (layer + 1 == LAYERS && set->partition_ops->revise != NULL)
        add(play, set->partition_ops->revise(set->partition, &shape, true, play->quota));
}

static inline void make_costs(void)
{
    costs =
        (struct mp_costs){ TEST_THREE_EXECUTORS, .load_ns = 1, .executors[TEST_CPU].token_ns = 7,
                           .executors[TEST_DEVICE].fixed_ns = 2 };
}

/* Before the first test. */
static inline void make_facts(void)
{
    for (uint32_t i = 0; i < UNITS; i++)
        hot[i] = (float)(i % 5 + 1) / EXPERTS;
    for (uint32_t i = 0; i < UNITS * EXPERTS; i++)
        pairs[i] = (float)(i % 7) / 7;
    make_costs();
}

/* What the results add up to. */
static inline uint64_t play(struct mp_policies *set, unsigned steps)
{
    struct play play = { .set = set };
    uint32_t units[UNITS];

    random_state = 5;
    make_costs();
    if (!set->partition_ops->global)
        set->partition_ops->quota(set->partition, &shape, play.quota);
    if (set->partition_ops->retained != NULL) {
        uint32_t retained[LAYERS];

        set->partition_ops->retained(set->partition, &shape, retained);
        add_list(&play, retained, LAYERS);
    }
    if (set->partition_ops->first != NULL)
        add_list(&play, units, set->partition_ops->first(set->partition, &shape, units));
    for (unsigned i = 0; i < steps * LAYERS; i++)
        play_layer(&play, i % LAYERS);
    return play.sum;
}

static inline enum mp_status create(const struct mp_profile *chosen, struct mp_policies *set)
{
    return mp_policies_create(chosen, &shape, test_default_groups(), set);
}

/* Play with a log into `path`, and without one; both do the same. */
static inline void record(const struct mp_profile *chosen, unsigned steps, const char *path)
{
    struct mp_policies set;
    struct mp_decisions *log;
    uint64_t bare;

    CHECK_EQ(create(chosen, &set), MP_OK);
    bare = play(&set, steps);
    mp_policies_destroy(&set);
    CHECK_EQ(create(chosen, &set), MP_OK);
    CHECK_EQ(mp_decisions_create(path, chosen, &shape, test_default_groups(), &log), MP_OK);
    mp_decisions_record(log, &set);
    for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT; kind++)
        CHECK(chosen->policy[kind] != NULL);
    CHECK_EQ(play(&set, steps), bare);
    CHECK_EQ(mp_decisions_close(log), MP_OK);
    CHECK_EQ(mp_decisions_close(log), MP_OK);
    set.evict_ops->on_remove(set.evict, 0, 1); /* not recorded any more, and harmless */
    mp_policies_destroy(&set);
    mp_decisions_destroy(log);
}

static inline struct mp_profile make_profile(unsigned kind, const char *name)
{
    struct mp_policy_names names = { .profile = NULL };
    struct mp_profile chosen;

    names.policy[kind] = name;
    CHECK_EQ(mp_policy_resolve(&names, &chosen), MP_OK);
    return chosen;
}

static inline size_t read_file(const char *path, char *bytes, size_t max)
{
    FILE *file = fopen(path, "rbe");
    size_t count;

    CHECK(file != NULL);
    count = fread(bytes, 1, max, file);
    CHECK(count < max);
    fclose(file);
    return count;
}

static inline void write_file(const char *path, const char *bytes, size_t count)
{
    FILE *file = fopen(path, "wbe");

    CHECK(file != NULL);
    CHECK_EQ(fwrite(bytes, 1, count, file), count);
    CHECK_EQ(fclose(file), 0);
}

#endif
