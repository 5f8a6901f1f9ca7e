/*
 * Every (state, event, leased) against a list written here by hand, with other words than the
 * table in vmm/space/residency.c; what the list leaves out must be refused as invalid.
 *
 *     vmm_residency_test --print     writes docs/residency-table.txt to stdout
 */
#include "tests/support/test.h"
#include "vmm/space/residency.h"

enum when { ALWAYS, IF_FREE, IF_LEASED };

struct expectation {
    enum mp_res_state from;
    enum mp_res_event event;
    enum when when;
    enum mp_status status;
    enum mp_res_state to;
};

#define S(name) MP_RES_##name
#define E(name) MP_RES_EV_##name

static const struct expectation expected[] = {
    /* A fill begins where there is no slot, and ends in one of three ways. */
    { S(ABSENT), E(FILL_BEGIN), IF_FREE, MP_OK, S(FILLING) },
    { S(FAILED), E(FILL_BEGIN), IF_FREE, MP_OK, S(FILLING) },
    { S(FILLING), E(FILL_DONE), IF_FREE, MP_OK, S(VALID) },
    { S(FILLING), E(FILL_FAILED), IF_FREE, MP_OK, S(FAILED) },
    { S(FILLING), E(FILL_CANCELED), IF_FREE, MP_OK, S(ABSENT) },
    /* Leases begin and end on valid units only, and hold them there. */
    { S(VALID), E(LEASE), ALWAYS, MP_OK, S(VALID) },
    { S(VALID), E(RELEASE), IF_LEASED, MP_OK, S(VALID) },
    { S(VALID), E(EVICT), IF_LEASED, MP_ERR_BUSY, S(VALID) },
    { S(VALID), E(DRAIN_BEGIN), IF_LEASED, MP_ERR_BUSY, S(VALID) },
    /* Without a lease a valid unit leaves at once or through draining. */
    { S(VALID), E(EVICT), IF_FREE, MP_OK, S(ABSENT) },
    { S(VALID), E(DRAIN_BEGIN), IF_FREE, MP_OK, S(DRAINING) },
    { S(DRAINING), E(DRAIN_DONE), IF_FREE, MP_OK, S(ABSENT) },
    { S(DRAINING), E(DRAIN_ABORTED), IF_FREE, MP_OK, S(VALID) },
    /* Transfers in flight: ask again later. */
    { S(FILLING), E(EVICT), IF_FREE, MP_ERR_BUSY, S(FILLING) },
    { S(FILLING), E(DRAIN_BEGIN), IF_FREE, MP_ERR_BUSY, S(FILLING) },
    { S(DRAINING), E(EVICT), IF_FREE, MP_ERR_BUSY, S(DRAINING) },
    { S(DRAINING), E(FILL_BEGIN), IF_FREE, MP_ERR_BUSY, S(DRAINING) },
};

static struct mp_res_rule expect(enum mp_res_state state, enum mp_res_event event, bool leased)
{
    for (size_t i = 0; i < MP_ARRAY_LEN(expected); i++) {
        const struct expectation *e = &expected[i];

        if (e->from != state || e->event != event)
            continue;
        if (e->when == ALWAYS || (e->when == IF_LEASED) == leased)
            return (struct mp_res_rule){ e->status, e->to };
    }
    return (struct mp_res_rule){ MP_ERR_INVALID, state };
}

static void every_combination_follows_the_list(void)
{
    unsigned allowed = 0;

    for (int s = 0; s < MP_RES_STATE_COUNT; s++) {
        for (int e = 0; e < MP_RES_EVENT_COUNT; e++) {
            for (int leased = 0; leased < 2; leased++) {
                const struct mp_res_rule want = expect(s, e, leased);
                const struct mp_res_rule got = mp_res_rule(s, e, leased);
                struct mp_residency unit = { .leases = leased ? 3 : 0, .state = (uint8_t)s };

                CHECK_EQ(got.status, want.status);
                CHECK_EQ(got.next, want.next);
                CHECK_EQ(mp_res_apply(&unit, e), want.status);
                CHECK_EQ(unit.state, want.next);
                if (want.status == MP_OK) {
                    allowed++;
                    CHECK_EQ(unit.leases, (leased ? 3 : 0) + (e == E(LEASE)) - (e == E(RELEASE)));
                } else {
                    CHECK_EQ(unit.leases, leased ? 3 : 0);
                }
            }
        }
    }
    CHECK_EQ(allowed, 12);
}

static void values_outside_the_enums_are_refused(void)
{
    CHECK_EQ(mp_res_rule(MP_RES_STATE_COUNT, E(LEASE), false).status, MP_ERR_INVALID);
    CHECK_EQ(mp_res_rule(S(VALID), MP_RES_EVENT_COUNT, false).status, MP_ERR_INVALID);
    CHECK_EQ(mp_res_rule((enum mp_res_state) - 1, (enum mp_res_event) - 1, true).status,
             MP_ERR_INVALID);
    CHECK_STR(mp_res_state_name(MP_RES_STATE_COUNT), "unknown state");
    CHECK_STR(mp_res_event_name(MP_RES_EVENT_COUNT), "unknown event");
    CHECK_STR(mp_res_state_name(S(DRAINING)), "DRAINING");
    CHECK_STR(mp_res_event_name(E(DRAIN_ABORTED)), "DRAIN_ABORTED");
}

/* Nothing that starts as an absent unit gets stuck, and no lease survives outside VALID. */
static void every_state_is_reached_and_can_be_left(void)
{
    bool reach[MP_RES_STATE_COUNT][MP_RES_STATE_COUNT] = { { false } };

    for (int s = 0; s < MP_RES_STATE_COUNT; s++) {
        for (int e = 0; e < MP_RES_EVENT_COUNT; e++) {
            const struct mp_res_rule rule = mp_res_rule(s, e, false);

            if (rule.status == MP_OK)
                reach[s][rule.next] = true;
        }
    }
    for (int via = 0; via < MP_RES_STATE_COUNT; via++) {
        for (int a = 0; a < MP_RES_STATE_COUNT; a++) {
            for (int b = 0; b < MP_RES_STATE_COUNT; b++)
                reach[a][b] = reach[a][b] || (reach[a][via] && reach[via][b]);
        }
    }
    for (int a = 0; a < MP_RES_STATE_COUNT; a++) {
        for (int b = 0; b < MP_RES_STATE_COUNT; b++)
            CHECK(reach[a][b]);
    }
    for (int e = 0; e < MP_RES_EVENT_COUNT; e++)
        CHECK_EQ(mp_res_rule(S(VALID), e, true).next, S(VALID));
}

static void leases_are_counted_to_the_limit(void)
{
    struct mp_residency unit = { .leases = UINT32_MAX - 1, .state = S(VALID) };

    CHECK_EQ(mp_res_apply(&unit, E(LEASE)), MP_OK);
    CHECK_EQ(unit.leases, UINT32_MAX);
    CHECK_EQ(mp_res_apply(&unit, E(LEASE)), MP_ERR_BUSY);
    CHECK_EQ(unit.leases, UINT32_MAX);
    unit.leases = 1;
    CHECK_EQ(mp_res_apply(&unit, E(RELEASE)), MP_OK);
    CHECK_EQ(unit.leases, 0);
    CHECK_EQ(mp_res_apply(&unit, E(RELEASE)), MP_ERR_INVALID);
    CHECK_EQ(unit.leases, 0);
}

static const char *outcome(struct mp_res_rule rule)
{
    return rule.status == MP_OK         ? mp_res_state_name(rule.next)
           : rule.status == MP_ERR_BUSY ? "busy"
                                        : ".";
}

static void print_table(FILE *out)
{
    fprintf(out,
            "Residency of a unit in a tier: next state by event (row) and state (column).\n"
            "'busy' is refused until pending work ends, '.' is refused as invalid.\n"
            "VALID+ is VALID with at least one lease.\n\n%-14s",
            "");
    for (int s = 0; s < MP_RES_STATE_COUNT; s++) {
        fprintf(out, " %9s", mp_res_state_name(s));
        if (s == S(VALID))
            fprintf(out, " %9s", "VALID+");
    }
    fprintf(out, "\n");
    for (int e = 0; e < MP_RES_EVENT_COUNT; e++) {
        fprintf(out, "%-14s", mp_res_event_name(e));
        for (int s = 0; s < MP_RES_STATE_COUNT; s++) {
            fprintf(out, " %9s", outcome(mp_res_rule(s, e, false)));
            if (s == S(VALID))
                fprintf(out, " %9s", outcome(mp_res_rule(s, e, true)));
        }
        fprintf(out, "\n");
    }
}

static void the_table_in_the_documents_is_this_one(void)
{
    static char have[8192], want[8192];
    FILE *file = fopen("docs/residency-table.txt", "r");
    FILE *mem = fmemopen(want, sizeof(want), "w");
    size_t got;

    CHECK(mem != NULL);
    print_table(mem);
    fclose(mem);
    CHECK(file != NULL);
    got = fread(have, 1, sizeof(have) - 1, file);
    fclose(file);
    CHECK(got > 0);
    CHECK_STR(have, want);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--print") == 0) {
        print_table(stdout);
        return 0;
    }
    RUN(every_combination_follows_the_list);
    RUN(values_outside_the_enums_are_refused);
    RUN(every_state_is_reached_and_can_be_left);
    RUN(leases_are_counted_to_the_limit);
    RUN(the_table_in_the_documents_is_this_one);
    return 0;
}
