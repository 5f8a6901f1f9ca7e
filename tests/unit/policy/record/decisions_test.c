/*
 * Decision logs: whatever the policies, what was recorded is decided again in the same way; another
 * result is found and named; damaged logs are refused, never believed.
 */
#include "policy/record/decisions.h"
#include "tests/unit/policy/record/decisions_play.h"

#include <stdint.h>

#include "policy/record/decisions_code.h"
#include "tests/support/test.h"
#include "tests/unit/policy/groups.h"
#include "vmm/base/error.h"

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
    default: CHECK_EQ(set.evict_ops->pick(set.evict, &query), MP_UNIT_NONE); break;
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

/* A log of two questions, the second with one number of the costs changed; returns its bytes. */
static size_t record_costs(const char *path, unsigned field)
{
    static const uint32_t experts[2] = { 1, 4 }, tokens[2] = { 1, 2 };
    static const uint8_t resident[2] = { 0, 1 };
    static const float scores[2] = { 0.5f, 0.25f };
    const struct mp_profile chosen = make_profile(MP_POLICY_ASSIGN, "greedy");
    struct mp_costs now = costs;
    struct mp_assign_facts facts = { .count = 2,
                                     .experts = experts,
                                     .tokens = tokens,
                                     .scores = scores,
                                     .resident = resident,
                                     .costs = &now };
    struct mp_executor *last = &now.executors[now.executor_count - 1];
    struct mp_decisions_report report;
    struct mp_policies set;
    struct mp_decisions *log;
    uint32_t executors[2];
    char bytes[4096 * 4];

    CHECK_EQ(create(&chosen, &set), MP_OK);
    CHECK_EQ(mp_decisions_create(path, &chosen, &shape, test_default_groups(), &log), MP_OK);
    mp_decisions_record(log, &set);
    set.assign_ops->assign(set.assign, &facts, executors);
    switch (field) {
    case 1: now.load_ns++; break;
    case 2: now.predict_ns++; break;
    case 3: now.layer_ns++; break;
    case 4: now.transient++; break;
    case 5: now.executor_count--; break;
    case 6: last->fixed_ns++; break;
    case 7: last->token_ns++; break;
    case 8: last->handoff_ns++; break;
    case 9: last->processor ^= 1; break;
    case 10: last->reads = last->reads == MP_READS_LINK ? MP_READS_HOST : MP_READS_LINK; break;
    default: break;
    }
    set.assign_ops->assign(set.assign, &facts, executors);
    CHECK_EQ(mp_decisions_close(log), MP_OK);
    mp_policies_destroy(&set);
    mp_decisions_destroy(log);
    CHECK_EQ(mp_decisions_replay(path, NULL, &report), MP_OK);
    return read_file(path, bytes, sizeof(bytes));
}

/* Costs are written again if any of their numbers is another one. */
static void costs_are_written_when_they_change(void)
{
    const char *path = path_of("costs");
    const size_t unchanged = record_costs(path, 0);

    CHECK(costs.executor_count > 1);
    for (unsigned field = 1; field <= 10; field++)
        CHECK(record_costs(path, field) > unchanged);
}

int main(void)
{
    make_facts();
    RUN(every_policy_decides_again_in_the_same_way);
    RUN(another_result_is_found_and_named);
    RUN(costs_are_written_when_they_change);
    RUN(units_end_with_the_last_one);
    return 0;
}
