/*
 * Budgets of a pager that change between layers: room is made by the evict policy, nothing that is
 * used gets lost, and the partition shares out what is left.
 */
#include "policy/record/decisions.h"
#include "tests/support/log_guard.h"
#include "tests/unit/policy/groups.h"
#include "tests/unit/policy/pager/pager_world.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "vmm/base/error.h"

static const uint32_t all[] = { 0, 1, 2, 3, 4, 5, 6, 7 };

static uint32_t count_residents(struct world *w)
{
    uint32_t count = 0;

    for (uint32_t u = 0; u < w->unit_count; u++)
        count += mp_space_state(w->space, u) == MP_RES_VALID;
    return count;
}

static uint64_t bytes_of(const struct world *w, uint32_t slots)
{
    struct mp_space_plan plan;

    mp_space_get_plan(w->space, &plan);
    return slots * plan.slot_bytes_max;
}

static void the_least_recent_leave(void)
{
    const struct world_options options = { .layers = 1, .experts = 8, .top_k = 2, .slots = 8 };
    static const uint32_t late[] = { 1, 4, 6 };
    struct world w;

    world_open(&options, &w);
    world_run(&w, 0, all, 8);
    world_run(&w, 0, late, 3);
    CHECK_EQ(mp_pager_set_budget(w.pager, bytes_of(&w, 3)), MP_OK);
    CHECK(mp_pager_check(w.pager));
    CHECK(mp_space_frame_bytes(w.space) <= bytes_of(&w, 3));
    CHECK_EQ(count_residents(&w), 3);
    for (uint32_t i = 0; i < 3; i++)
        CHECK_EQ(mp_space_state(w.space, late[i]), MP_RES_VALID);
    world_run(&w, 0, late, 3);
    CHECK_EQ(w.counters.loads, 8); /* they were all there */
    world_run(&w, 0, all, 8);

    CHECK_EQ(mp_pager_set_budget(w.pager, UINT64_MAX), MP_OK);
    CHECK(mp_pager_check(w.pager));
    world_run(&w, 0, all, 8);
    world_run(&w, 0, all, 8);
    CHECK_EQ(count_residents(&w), 8);
    world_close(&w);
}

static void too_small_a_budget_changes_nothing(void)
{
    const struct world_options options = { .layers = 2, .experts = 4, .top_k = 2, .slots = 4 };
    struct world w;

    world_open(&options, &w);
    world_run(&w, 0, all, 4);
    CHECK_EQ(mp_pager_set_budget(w.pager, 1), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_BUDGET_SMALL");
    CHECK_EQ(count_residents(&w), 4);
    CHECK(mp_pager_check(w.pager));
    CHECK_EQ(world_begin(&w, 1, all, 2), MP_OK);
    CHECK_EQ(mp_pager_set_budget(w.pager, UINT64_MAX), MP_ERR_INVALID);
    CHECK_EQ(world_finish(&w, 1, all, 2), MP_OK);
    world_close(&w);
}

/* A walk over budgets, with every kind of partition, sizes of one and of three classes. */
static void any_budget_will_do(void)
{
    static const char *const partitions[] = { "global", "uniform" };

    for (uint32_t round = 0; round < 4; round++) {
        const struct world_options options = {
            .layers = 3,
            .experts = 8,
            .top_k = 2,
            .slots = 14,
            .sizes = round / 2 == 1 ? 3 : 1,
            .names = { .profile = "lru", .policy[MP_POLICY_PARTITION] = partitions[round % 2] },
        };
        struct mp_space_plan plan;
        struct world w;

        world_open(&options, &w);
        mp_space_get_plan(w.space, &plan);
        for (uint32_t i = 0; i < 60; i++) {
            const uint64_t budget =
                plan.smallest_bytes + (plan.full_bytes - plan.smallest_bytes) * (i * 7 % 13) / 12;

            CHECK_EQ(mp_pager_set_budget(w.pager, budget), MP_OK);
            CHECK(mp_space_frame_bytes(w.space) <= budget);
            CHECK(mp_pager_check(w.pager));
            for (uint32_t l = 0; l < 3; l++)
                world_run(&w, l, &all[i % 4], 1 + i % 5);
        }
        world_close(&w);
    }
}

/* Layers under budgets that shrink and grow, written down by `log` into `path`. */
static void play_budgets(struct world_options *options, const struct mp_profile *chosen,
                         const char *path)
{
    struct mp_space_plan plan;
    struct mp_policies set;
    struct mp_decisions *log;
    struct world w;

    options->set = NULL;
    world_open(options, &w); /* says what policies get when they are made */
    CHECK_EQ(mp_policies_create(chosen, &w.shape, test_default_groups(), &set), MP_OK);
    CHECK_EQ(mp_decisions_create(path, chosen, &w.shape, test_default_groups(), &log), MP_OK);
    mp_decisions_record(log, &set);
    world_close(&w);

    options->set = &set;
    world_open(options, &w);
    mp_space_get_plan(w.space, &plan);
    for (uint32_t i = 0; i < 60; i++) {
        const uint64_t span = plan.full_bytes - plan.smallest_bytes;

        if (i % 3 == 0)
            CHECK_EQ(mp_pager_set_budget(w.pager, plan.smallest_bytes + span * (i * 7 % 13) / 12),
                     MP_OK);
        for (uint32_t l = 0; l < options->layers; l++)
            world_run(&w, l, &all[i % 4], 1 + i % 5);
    }
    world_close(&w);
    CHECK_EQ(mp_decisions_close(log), MP_OK);
    mp_policies_destroy(&set);
    mp_decisions_destroy(log);
}

/* What a partition says depends on the slots that there are when it is asked. */
static void a_log_of_budgets_that_change_is_decided_again(void)
{
    static const char *const evicts[] = { "lru", "lcp" };
    const struct mp_policy_info *info;
    char path[4200];
    unsigned asked = 0;

    snprintf(path, sizeof(path), "%s/log", test_tmpdir());
    for (size_t i = 0; (info = mp_policy_builtin(MP_POLICY_PARTITION, i)) != NULL; i++) {
        for (unsigned sliced = 0; sliced < 2; sliced++) {
            struct world_options options = { .layers = 3,
                                             .experts = 8,
                                             .top_k = 2,
                                             .slices = sliced ? 2 : 0,
                                             .slots = sliced ? 28 : 14,
                                             .names = { .profile = "lru" } };
            struct mp_decisions_report report;
            struct mp_profile chosen;
            enum mp_status status;

            options.names.policy[MP_POLICY_PARTITION] = info->name;
            options.names.policy[MP_POLICY_EVICT] = evicts[sliced];
            CHECK_EQ(mp_policy_resolve(&options.names, &chosen), MP_OK);
            play_budgets(&options, &chosen, path);
            status = mp_decisions_replay(path, NULL, &report);
            if (status != MP_OK)
                fprintf(stderr, "%s: %s\n", info->name, mp_error_last()->text);
            CHECK_EQ(status, MP_OK);
            CHECK_STR(report.policy[MP_POLICY_PARTITION], info->name);
            CHECK(report.results > 20);
            asked += report.calls_of[MP_POLICY_PARTITION] >= 20;
        }
    }
    CHECK(asked >= 6); /* uniform, adapmoe, fixed-point: at each budget */
}

int main(void)
{
    mp_test_drop_log(); /* few slots are warned of, rightly */
    world_prepare();
    RUN(the_least_recent_leave);
    RUN(too_small_a_budget_changes_nothing);
    RUN(any_budget_will_do);
    RUN(a_log_of_budgets_that_change_is_decided_again);
    return 0;
}
