/*
 * Ranks compute what one machine computes, bit for bit: any number of them, any placement, whatever
 * they hold, while placements change in every step, and for all models of the tests.
 */
#include <stdio.h>

#include "tests/model/cluster/team.h"
#include "tests/model/families.h"
#include "tests/support/test.h"
#include "vmm/base/compiler.h"

#define TINY "models/tiny-moe"
#define TINY_LAYERS 8u
#define TINY_EXPECT "tests/data/models/tiny-moe-expect"

static struct team_options tiny(uint32_t ranks, const char *place)
{
    return (struct team_options){
        .model = TINY,
        .expect = TINY_EXPECT,
        .batch = "b4",
        .ranks = ranks,
        .steps = 4,
        .place = place,
        .room = 1.2,
    };
}

static void check_team(const struct team_options *options, struct team_rank ranks[TEAM_MAX])
{
    team_run(options, ranks);
    for (uint32_t r = 0; r < options->ranks; r++) {
        if (ranks[r].status == MP_OK && ranks[r].same && ranks[r].rows > 0)
            continue;
        fprintf(stderr, "%s with %u ranks, %s: rank %u: status %d, same %d, %u rows\n",
                options->model, options->ranks, options->place, r, ranks[r].status, ranks[r].same,
                ranks[r].rows);
        exit(1);
    }
}

static void any_number_of_ranks_and_any_placement(void)
{
    static const uint32_t counts[] = { 1, 2, 3, 5 };
    struct team_rank ranks[TEAM_MAX];
    const struct mp_place_ops *place;

    for (size_t c = 0; c < MP_ARRAY_LEN(counts); c++) {
        for (size_t i = 0; (place = mp_place_builtin(i)) != NULL; i++) {
            const struct team_options options = tiny(counts[c], place->name);
            uint64_t calls = 0;

            if (place->redirects)
                continue;
            check_team(&options, ranks);
            for (uint32_t r = 0; r < counts[c]; r++) {
                calls += ranks[r].report.calls;
                /* One message for each layer and peer, whatever it asks for. */
                CHECK(ranks[r].report.calls <=
                      (uint64_t)ranks[r].forwards * TINY_LAYERS * (counts[c] - 1));
                CHECK_EQ(ranks[r].report.redone, 0);
                CHECK_EQ(ranks[r].report.lost, 0);
            }
            CHECK(counts[c] > 1 && place->calls && !place->pages ? calls > 0 : true);
            CHECK(!place->calls ? calls == 0 : true);
        }
    }
}

static void whatever_fits(void)
{
    static const double rooms[] = { 0.3, 1, 1.05, 2, 5 };
    struct team_rank ranks[TEAM_MAX];

    for (size_t i = 0; i < MP_ARRAY_LEN(rooms); i++) {
        struct team_options options = tiny(3, rooms[i] < 1 ? "united" : "prism");

        options.room = rooms[i];
        check_team(&options, ranks);
    }
}

static void nobody_reads_what_it_does_not_keep(void)
{
    struct team_options options = tiny(3, "uniform");
    struct team_rank ranks[TEAM_MAX];

    options.no_reads = true;
    check_team(&options, ranks);
    for (uint32_t r = 0; r < 3; r++)
        CHECK(ranks[r].report.calls > 0 && ranks[r].report.served > 0);
}

/* Switches of each rank while it computed: from one hook to the next, of which none waits. */
static uint32_t seen[TEAM_MAX], during[TEAM_MAX];

static void count_switches(struct loopback *net, uint32_t number, struct mp_rank *rank,
                           uint32_t step)
{
    struct mp_rank_report report;

    (void)net;
    mp_rank_report(rank, &report);
    if (step == 0)
        during[number] = 0;
    else
        during[number] += report.migrations > seen[number];
    seen[number] = report.migrations;
}

#define STEPS 16u

static void check_changes(const char *place, uint32_t count, const char *profile, bool no_reads)
{
    struct team_options options = tiny(count, place);
    struct team_rank ranks[TEAM_MAX];

    options.steps = STEPS;
    options.epoch_ns = 1;
    options.always_adopts = true;
    options.profile = profile;
    options.no_reads = no_reads;
    options.on_step = count_switches;
    check_team(&options, ranks);
    for (uint32_t r = 0; r < count; r++) {
        if (during[r] < STEPS / 4)
            fprintf(stderr, "%s with %u ranks: rank %u switched in %u of %u steps\n", place, count,
                    r, during[r], STEPS);
        CHECK(during[r] >= STEPS / 4);
        CHECK(ranks[r].report.epoch <= ranks[0].report.epoch);
    }
}

static void while_placements_change(void)
{
    static const uint32_t counts[] = { 2, 3, 5 };
    const struct mp_place_ops *place;

    for (size_t i = 0; (place = mp_place_builtin(i)) != NULL; i++) {
        for (size_t c = 0; c < MP_ARRAY_LEN(counts) && place->migrates && !place->redirects; c++)
            check_changes(place->name, counts[c], "lru", false);
    }
    check_changes("naive", 3, "lru", false); /* nearly all moves, each time */
    check_changes("naive", 3, "auto", false);
    for (size_t c = 0; c < MP_ARRAY_LEN(counts); c++)
        check_changes("naive", counts[c], "lru", true);
}

/* Placements that are of ranks alone; NULL behind the last one. */
static const struct mp_place_ops *placement_of_ranks(size_t number)
{
    const struct mp_place_ops *place;

    for (size_t i = 0; (place = mp_place_builtin(i)) != NULL; i++) {
        if (!place->redirects && number-- == 0)
            return place;
    }
    return NULL;
}

static size_t count_placements(void)
{
    size_t count = 0;

    while (placement_of_ranks(count) != NULL)
        count++;
    return count;
}

/* One model with one number of ranks and one placement, which stays; then with another one in each
 * step. Returns how often a rank switched. */
static uint32_t check_cell(const char *fixture, uint32_t count, const char *place)
{
    struct team_options options = tiny(count, place);
    struct team_rank ranks[TEAM_MAX];
    char model[256], expect[300];
    uint32_t migrations = 0;

    if (fixture != NULL) {
        snprintf(model, sizeof(model), "tests/data/models/%s", fixture);
        snprintf(expect, sizeof(expect), "%s/expect", model);
        options.model = model;
        options.expect = expect;
    }
    check_team(&options, ranks);
    options.epoch_ns = 1;
    options.always_adopts = true;
    if (count > 1)
        check_team(&options, ranks);
    for (uint32_t r = 0; r < count; r++)
        migrations += ranks[r].report.migrations;
    return migrations;
}

#define X(name) name,
static const char *const fixtures[] = {
    "mixtral-tiny",         "qwen2moe-tiny", "qwen3moe-tiny",
    "qwen3moe-tiny-nonorm", "gpt_oss-mxfp4", FAMILY_FIXTURES(X)
};
#undef X
static const uint32_t rank_counts[] = { 1, 2, 3, 5 };

/* Each model with each number of ranks, and each placement with some of the models. */
static void all_models_of_the_tests(void)
{
    const size_t places = count_placements();

    for (size_t i = 0; i < MP_ARRAY_LEN(fixtures); i++) {
        uint32_t migrations = 0;

        for (size_t c = 0; c < MP_ARRAY_LEN(rank_counts); c++)
            migrations += check_cell(fixtures[i], rank_counts[c],
                                     placement_of_ranks((i + 3 * c) % places)->name);
        CHECK(migrations > 0);
    }
}

/* All of it. */
static void each_model_with_each_placement(void)
{
    const struct mp_place_ops *place;

    for (size_t n = 0; (place = placement_of_ranks(n)) != NULL; n++) {
        for (size_t c = 0; c < MP_ARRAY_LEN(rank_counts); c++) {
            uint32_t migrations = check_cell(NULL, rank_counts[c], place->name);

            for (size_t i = 0; i < MP_ARRAY_LEN(fixtures); i++)
                migrations += check_cell(fixtures[i], rank_counts[c], place->name);
            CHECK(migrations > 0 || rank_counts[c] == 1);
        }
    }
}

static void under_policies_that_predict(void)
{
    static const char *const profiles[] = { "auto", "gate-lru", "dali", "moepic" };
    struct team_rank ranks[TEAM_MAX];

    for (size_t i = 0; i < MP_ARRAY_LEN(profiles); i++) {
        struct team_options options = tiny(2, "naive");

        options.profile = profiles[i];
        options.room = 0.8;
        options.place = "united";
        check_team(&options, ranks);
    }
}

int main(int argc, char **argv)
{
    const char *only = argc > 1 ? argv[1] : "";

    if (strcmp(only, "models") == 0) {
        all_models_of_the_tests();
        return 0;
    }
    if (strcmp(only, "few") == 0) {
        CHECK(check_cell(NULL, 3, "prism") > 0);
        CHECK(check_cell(NULL, 3, "united") > 0);
        return 0;
    }
    if (strcmp(only, "matrix") == 0) {
        each_model_with_each_placement();
        return 0;
    }
    if (strcmp(only, "changes") == 0) {
        while_placements_change();
        return 0;
    }
    any_number_of_ranks_and_any_placement();
    whatever_fits();
    nobody_reads_what_it_does_not_keep();
    under_policies_that_predict();
    return 0;
}
