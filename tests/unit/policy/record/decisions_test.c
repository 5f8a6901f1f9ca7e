/*
 * Decision logs: whatever the policies, what was recorded is decided again in the same way; another
 * result is found and named; damaged logs are refused, never believed.
 */
#include "policy/record/decisions.h"

#include <glob.h>
#include <inttypes.h>
#include <stdint.h>
#include <unistd.h>

#include "policy/record/decisions_code.h"
#include "tests/support/executors.h"
#include "tests/support/random.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "tests/unit/policy/groups.h"
#include "vmm/base/error.h"
#include "vmm/options/opt.h"

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

static const char *path_of(const char *name)
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

static void add(struct play *play, uint64_t result)
{
    play->sum = (play->sum ^ result) * UINT64_C(0x100000001b3);
}

static void add_list(struct play *play, const uint32_t *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        add(play, list[i]);
}

static void remove_unit(struct play *play, uint32_t unit)
{
    play->resident[unit] = 0;
    play->held--;
    play->set->evict_ops->on_remove(play->set->evict, unit, play->now);
}

static void insert_unit(struct play *play, uint32_t unit, uint32_t tokens)
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

static void play_route(struct play *play, uint32_t layer, uint32_t tokens)
{
    const struct mp_policies *set = play->set;
    const struct mp_route_facts facts = { layer,        tokens,
                                          EXPERTS,      TOP_K,
                                          play->scores, play->resident + (size_t)layer * EXPERTS,
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

static void play_assign(struct play *play, uint32_t layer, uint32_t tokens, struct needs *n)
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
        .costs = random_below(2) ? &alone : &costs,
        .link_busy_ns = random_below(1000),
        .next_tokens = random_below(2) ? n->next_tokens : NULL,
        .next_resident = play->resident,
    };
    set->assign_ops->assign(set->assign, &n->facts, n->executors);
    add_list(play, (const uint32_t *)n->executors, n->count);
}

static void play_ahead(struct play *play, uint32_t layer, uint32_t tokens, const struct needs *n)
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

static void play_layer(struct play *play, uint32_t layer)
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

/* What the results add up to. */
static uint64_t play(struct mp_policies *set, unsigned steps)
{
    struct play play = { .set = set };
    uint32_t units[UNITS];

    random_state = 5;
    costs =
        (struct mp_costs){ TEST_THREE_EXECUTORS, .load_ns = 1, .executors[TEST_CPU].token_ns = 7,
                           .executors[TEST_DEVICE].fixed_ns = 2 };
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

static enum mp_status create(const struct mp_profile *chosen, struct mp_policies *set)
{
    return mp_policies_create(chosen, &shape, test_default_groups(), set);
}

/* Play with a log into `path`, and without one; both do the same. */
static void record(const struct mp_profile *chosen, unsigned steps, const char *path)
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

static struct mp_profile make_profile(unsigned kind, const char *name)
{
    struct mp_policy_names names = { .profile = NULL };
    struct mp_profile chosen;

    names.policy[kind] = name;
    CHECK_EQ(mp_policy_resolve(&names, &chosen), MP_OK);
    return chosen;
}

/* Each built-in policy of each kind, whatever there is. */
static void every_policy_decides_again_in_the_same_way(void)
{
    const struct mp_policy_info *info;
    const char *path = path_of("log");
    unsigned policies = 0;

    for (unsigned kind = 0; kind < MP_POLICY_KIND_COUNT; kind++) {
        for (size_t i = 0; (info = mp_policy_builtin(kind, i)) != NULL; i++) {
            const struct mp_profile chosen = make_profile(kind, info->name);
            struct mp_decisions_report report;

            record(&chosen, 40, path);
            CHECK(mp_decisions_is_log(path));
            if (mp_decisions_replay(path, NULL, &report) != MP_OK)
                fprintf(stderr, "%s: %s\n", info->name, mp_error_last()->text);
            CHECK_EQ(mp_error_last()->status, MP_OK);
            CHECK_STR(report.policy[kind], info->name);
            CHECK(report.calls_of[MP_POLICY_ROUTE] == 40 * LAYERS &&
                  report.results > 40 * LAYERS * 2);
            policies++;
        }
    }
    CHECK(policies >= 14);
}

static size_t read_file(const char *path, char *bytes, size_t max)
{
    FILE *file = fopen(path, "rbe");
    size_t count;

    CHECK(file != NULL);
    count = fread(bytes, 1, max, file);
    CHECK(count < max);
    fclose(file);
    return count;
}

static void write_file(const char *path, const char *bytes, size_t count)
{
    FILE *file = fopen(path, "wbe");

    CHECK(file != NULL);
    CHECK_EQ(fwrite(bytes, 1, count, file), count);
    CHECK_EQ(fclose(file), 0);
}

/* A log whose last call is a pick: its result is a byte at a known place from the end. */
static void another_result_is_found_and_named(void)
{
    static uint8_t resident[UNITS];
    const struct mp_profile chosen = make_profile(MP_POLICY_EVICT, "lru");
    const struct mp_evict_query query = { 20, 1, EXPERTS, 0, resident };
    const char *path = path_of("pick");
    struct mp_decisions_report report;
    struct mp_policies set;
    struct mp_decisions *log;
    char bytes[4096 * 4];
    size_t count;

    CHECK_EQ(create(&chosen, &set), MP_OK);
    CHECK_EQ(mp_decisions_create(path, &chosen, &shape, test_default_groups(), &log), MP_OK);
    mp_decisions_record(log, &set);
    for (uint32_t u = 8; u < 12; u++) {
        resident[u] = 1;
        set.evict_ops->on_insert(set.evict, u, u);
    }
    CHECK_EQ(set.evict_ops->pick(set.evict, &query), 8);
    CHECK_EQ(mp_decisions_close(log), MP_OK);
    mp_policies_destroy(&set);
    mp_decisions_destroy(log);
    count = read_file(path, bytes, sizeof(bytes));
    /* result, no list, no values; end, five calls */
    CHECK_EQ(memcmp(bytes + count - 5, "\x08\0\0\0\x05", 5), 0);
    CHECK_EQ(mp_decisions_replay(path, NULL, &report), MP_OK);
    CHECK_EQ(report.calls, 5);
    CHECK_EQ(report.results, 1);
    bytes[count - 5] = 9;
    write_file(path, bytes, count);
    CHECK_EQ(mp_decisions_replay(path, NULL, &report), MP_ERR_MODEL);
    CHECK_STR(mp_error_last()->code, "E_DECISION_DIFFERS");
    CHECK(strstr(mp_error_last()->text,
                 "call 5, evict.pick of 'lru', MoE layer 2: result: got 8, need 9") != NULL);
}

/* One call about the last unit there is, written to `path`. */
static void record_use(enum mp_call call, const char *path)
{
    static uint8_t resident[UNITS];
    const struct mp_profile chosen = make_profile(MP_POLICY_EVICT, "lru");
    const struct mp_evict_query query = { UNITS - 1, 1, EXPERTS, 0, resident };
    struct mp_policies set;
    struct mp_decisions *log;

    CHECK_EQ(create(&chosen, &set), MP_OK);
    CHECK_EQ(mp_decisions_create(path, &chosen, &shape, test_default_groups(), &log), MP_OK);
    mp_decisions_record(log, &set);
    if (call != MP_CALL_INSERT)
        set.evict_ops->on_insert(set.evict, UNITS - 1, 1);
    switch (call) {
    case MP_CALL_INSERT: set.evict_ops->on_insert(set.evict, UNITS - 1, 2); break;
    case MP_CALL_REMOVE: set.evict_ops->on_remove(set.evict, UNITS - 1, 2); break;
    case MP_CALL_ACCESS: set.evict_ops->on_access(set.evict, UNITS - 1, 1, 2); break;
    case MP_CALL_ADMIT: CHECK(set.admit_ops->admit(set.admit, UNITS - 1, 1, 2)); break;
    default: CHECK_EQ(set.evict_ops->pick(set.evict, &query), MP_EXPERT_NONE); break;
    }
    CHECK_EQ(mp_decisions_close(log), MP_OK);
    mp_policies_destroy(&set);
    mp_decisions_destroy(log);
}

/* What a log says may be anything: tables have a place for the last unit, and none behind it. */
static void units_end_with_the_last_one(void)
{
    static const enum mp_call calls[] = { MP_CALL_INSERT, MP_CALL_REMOVE, MP_CALL_ACCESS,
                                          MP_CALL_ADMIT, MP_CALL_PICK };
    const char *path = path_of("use");

    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        const char last = calls[i] == MP_CALL_PICK ? UNITS : UNITS - 1; /* a pick's counts from 1 */
        struct mp_decisions_report report;
        char bytes[4096 * 4];
        size_t count, at;

        record_use(calls[i], path);
        count = read_file(path, bytes, sizeof(bytes));
        at = count - 1;
        while (bytes[at] != last)
            at--;
        CHECK(count - at < 24); /* in the last call */
        CHECK_EQ(mp_decisions_replay(path, NULL, &report), MP_OK);
        bytes[at]++;
        write_file(path, bytes, count);
        CHECK_EQ(mp_decisions_replay(path, NULL, &report), MP_ERR_MODEL);
        CHECK_STR(mp_error_last()->code, "E_DECISION_LOG");
        CHECK(strstr(mp_error_last()->text, "a number is out of range") != NULL);
    }
}

/* `text` of a file with "\nKEY ...\n" replaced by another value, written to `path`. */
static void write_head(const char *path, const char *text, size_t count, const char *key,
                       uint64_t value)
{
    const char *at = memmem(text, count, key, strlen(key)), *end = strchr(at + 1, '\n');
    FILE *file = fopen(path, "wbe");

    CHECK(file != NULL);
    fwrite(text, 1, (size_t)(at - text), file);
    fprintf(file, "%s %" PRIu64, key, value);
    fwrite(end, 1, count - (size_t)(end - text), file);
    CHECK_EQ(fclose(file), 0);
}

/* A log of no calls, whose shape is not what was recorded. */
static void numbers_of_the_head_have_bounds(void)
{
    static const struct {
        const char *key;
        uint64_t min, max;
    } cases[] = {
        { "\nlayers", 1, 4096 },   { "\nexperts", TOP_K, 4096 },
        { "\ntop_k", 1, EXPERTS }, { "\ntokens_max", 1, 65536 },
        { "\nslots", 1, 1 << 24 }, { "\nunit_bytes", 1, UINT64_C(1) << 40 },
        { "\nslices", 0, 16 },     { "\ncosts", 0, 1 },
        { "\ncalibration", 0, 1 },
    };
    const struct mp_profile chosen = make_profile(MP_POLICY_EVICT, "lru");
    const char *path = path_of("bare"), *changed = path_of("changed");
    struct mp_decisions_report report;
    struct mp_shape bare = shape;
    struct mp_decisions *log;
    char text[4096 * 4];
    size_t count;

    bare.calibration = NULL;
    bare.costs = NULL;
    CHECK_EQ(mp_decisions_create(path, &chosen, &bare, test_default_groups(), &log), MP_OK);
    CHECK_EQ(mp_decisions_close(log), MP_OK);
    mp_decisions_destroy(log);
    count = read_file(path, text, sizeof(text));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const uint64_t values[] = { cases[i].min, cases[i].max, cases[i].max + 1,
                                    cases[i].min - 1 };

        for (unsigned n = 0; n < 4 - (cases[i].min == 0); n++) {
            mp_error_clear();
            write_head(changed, text, count, cases[i].key, values[n]);
            if (mp_decisions_replay(changed, NULL, &report) == MP_OK) {
                CHECK(n < 2);
                continue;
            }
            CHECK_STR(mp_error_last()->code, "E_DECISION_LOG");
            /* Where costs or a calibration should follow there are none. */
            CHECK_EQ(strstr(mp_error_last()->text, "of the head is missing or out") != NULL, n > 1);
            CHECK(n > 1 || !strcmp(cases[i].key, "\ncosts") ||
                  !strcmp(cases[i].key, "\ncalibration"));
        }
    }
}

/* Partitions are asked with slots and bytes of their own. */
static void numbers_of_a_partition_have_bounds(void)
{
    static const struct {
        uint32_t slots;
        uint64_t expert_bytes;
        const char *says;
    } cases[] = {
        { 1, 1, NULL },
        { 1 << 24, UINT64_C(1) << 40, NULL },
        { 0, 1, "a number is out of range" },
        { (1 << 24) + 1, 1, "a number is out of range" },
        { 1, (UINT64_C(1) << 40) + 1, "a number is out of range" },
        { 1, 0, "experts have no bytes" },
    };
    const struct mp_profile chosen = make_profile(MP_POLICY_PARTITION, "uniform");
    const char *path = path_of("shares");

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mp_decisions_report report;
        struct mp_shape asked = shape;
        struct mp_policies set;
        struct mp_decisions *log;
        uint32_t quota[LAYERS];

        asked.slots = cases[i].slots;
        asked.expert_bytes = cases[i].expert_bytes;
        CHECK_EQ(create(&chosen, &set), MP_OK);
        CHECK_EQ(mp_decisions_create(path, &chosen, &shape, test_default_groups(), &log), MP_OK);
        mp_decisions_record(log, &set);
        set.partition_ops->quota(set.partition, &asked, quota);
        CHECK_EQ(mp_decisions_close(log), MP_OK);
        mp_policies_destroy(&set);
        mp_decisions_destroy(log);
        CHECK_EQ(mp_decisions_replay(path, NULL, &report),
                 cases[i].says == NULL ? MP_OK : MP_ERR_MODEL);
        CHECK(cases[i].says == NULL || strstr(mp_error_last()->text, cases[i].says) != NULL);
    }
}

/* One bit of each byte turned over: refused, or found to differ, or a fact that changes nothing. */
static void no_damage_is_believed(void)
{
    static char bytes[1 << 17];
    const struct mp_profile chosen = make_profile(MP_POLICY_EVICT, "layer-lfu");
    const char *path = path_of("whole"), *damaged = path_of("damaged");
    struct mp_decisions_report report;
    unsigned refused = 0, differs = 0;
    size_t count;

    record(&chosen, 3, path);
    count = read_file(path, bytes, sizeof(bytes));
    for (size_t i = 0; i < count; i++) {
        enum mp_status status;

        bytes[i] ^= (char)(1 << i % 8);
        write_file(damaged, bytes, count);
        bytes[i] ^= (char)(1 << i % 8);
        mp_error_clear();
        status = mp_decisions_replay(damaged, NULL, &report);
        CHECK(status == MP_OK || status == MP_ERR_MODEL || status == MP_ERR_UNSUPPORTED ||
              status == MP_ERR_NO_MEMORY);
        differs += status == MP_ERR_MODEL && !strcmp(mp_error_last()->code, "E_DECISION_DIFFERS");
        refused += status != MP_OK;
    }
    CHECK(differs > 100 && refused > differs + 100);
    for (size_t cut = 0; cut < count; cut += 1 + cut / 50) {
        write_file(damaged, bytes, cut);
        CHECK_EQ(mp_decisions_replay(damaged, NULL, &report), MP_ERR_MODEL);
    }
    memcpy(bytes + count, "x", 1);
    write_file(damaged, bytes, count + 1);
    CHECK_EQ(mp_decisions_replay(damaged, NULL, &report), MP_ERR_MODEL);
}

/* A policy or an option that this version does not have. */
static void logs_of_other_versions_are_named(void)
{
    static const char *const parts[][2] = {
        { "# moepager decisions v3\n", "# moepager decisions v2\n" },
        { "\nabi 4\n", "\nabi 3\n" },
        { "\nevict ema\n", "\nevict emx\n" },
        { "option RANKS ", "option RANGS " },
    };
    static char bytes[1 << 17];
    const struct mp_profile chosen = make_profile(MP_POLICY_PREFETCH, "top");
    const char *path = path_of("version");
    struct mp_decisions_report report;
    size_t count;

    record(&chosen, 1, path);
    count = read_file(path, bytes, sizeof(bytes));
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        char *at = memmem(bytes, count, parts[i][0], strlen(parts[i][0]));

        CHECK(at != NULL);
        memcpy(at, parts[i][1], strlen(parts[i][1]));
        write_file(path, bytes, count);
        CHECK(mp_decisions_is_log(path));
        CHECK_EQ(mp_decisions_replay(path, NULL, &report), MP_ERR_UNSUPPORTED);
        CHECK_STR(mp_error_last()->code, "E_DECISION_VERSION");
        memcpy(at, parts[i][0], strlen(parts[i][0]));
    }
}

static void files_that_cannot_be_are_errors(void)
{
    const struct mp_profile chosen = make_profile(MP_POLICY_EVICT, "lru");
    const volatile sig_atomic_t stop = 1;
    const char *path = path_of("abandoned");
    struct mp_decisions_report report;
    struct mp_decisions *log;

    CHECK_EQ(mp_decisions_replay(path_of("missing"), NULL, &report), MP_ERR_IO);
    CHECK_EQ(mp_decisions_replay("tests", NULL, &report), MP_ERR_IO);
    CHECK(!mp_decisions_is_log(path_of("missing")) && !mp_decisions_is_log("README.md"));
    CHECK_EQ(mp_decisions_create("/nonexistent/x", &chosen, &shape, test_default_groups(), &log),
             MP_ERR_IO);
    CHECK_EQ(mp_decisions_create(path, &chosen, &shape, test_default_groups(), &log), MP_OK);
    mp_decisions_destroy(log);
    mp_decisions_destroy(NULL);
    CHECK(access(path, F_OK) != 0);
    if (access("/dev/full", W_OK) == 0) {
        CHECK_EQ(mp_decisions_create("/dev/full", &chosen, &shape, test_default_groups(), &log),
                 MP_OK);
        CHECK_EQ(mp_decisions_close(log), MP_ERR_IO);
        mp_decisions_destroy(log);
    }
    record(&chosen, 2, path);
    CHECK_EQ(mp_decisions_replay(path, &stop, &report), MP_ERR_CANCELED);
}

/* What the fuzzer starts from would be of no use in a format that is not read any more. */
static void the_corpus_of_the_fuzzer_can_be_read(void)
{
    struct mp_decisions_report report;
    unsigned equal = 0;
    glob_t files;

    CHECK_EQ(glob("tests/data/fuzz/decision_log_fuzz/*", 0, NULL, &files), 0);
    for (size_t i = 0; i < files.gl_pathc; i++)
        equal += mp_decisions_replay(files.gl_pathv[i], NULL, &report) == MP_OK;
    CHECK(equal >= 7 && equal + 1 >= files.gl_pathc); /* but for size-of-earlier */
    globfree(&files);
}

int main(void)
{
    for (uint32_t i = 0; i < UNITS; i++)
        hot[i] = (float)(i % 5 + 1) / EXPERTS;
    for (uint32_t i = 0; i < UNITS * EXPERTS; i++)
        pairs[i] = (float)(i % 7) / 7;
    RUN(every_policy_decides_again_in_the_same_way);
    RUN(another_result_is_found_and_named);
    RUN(units_end_with_the_last_one);
    RUN(numbers_of_the_head_have_bounds);
    RUN(numbers_of_a_partition_have_bounds);
    RUN(no_damage_is_believed);
    RUN(logs_of_other_versions_are_named);
    RUN(files_that_cannot_be_are_errors);
    RUN(the_corpus_of_the_fuzzer_can_be_read);
    return 0;
}
