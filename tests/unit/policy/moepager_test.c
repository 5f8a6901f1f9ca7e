/*
 * libmoepager as a program sees it: this file includes the public header only and is linked with
 * the shared library only.
 */
#include <unistd.h>

#include "tests/support/test.h"
#include "tests/support/tmpdir.h"
#include "tests/unit/policy/moepager_model.h"

static void open_refuses(struct moepager_config config, enum moepager_status status,
                         const char *code, const char *part)
{
    struct moepager *pager = NULL;

    CHECK_EQ(moepager_open(&config, &pager), status);
    CHECK(pager == NULL);
    CHECK_STR(moepager_error_code(), code);
    if (strstr(moepager_error_text(), part) == NULL)
        CHECK_STR(moepager_error_text(), part);
}

/* The same places as 3 experts of two slices each. */
static void experts_can_come_in_slices(void)
{
    static const uint32_t experts[] = { 0, 2 };
    struct moepager_config config = make_config(MOEPAGER_BUDGET_ALL);
    struct moepager_ready ready;
    struct moepager *pager;

    config.experts = EXPERTS / 2;
    config.slices = 2;
    config.budget_bytes = plan_of(MOEPAGER_BUDGET_ALL).smallest_bytes; /* two slices */
    pager = open_model(config);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        uint32_t next[2] = { 0, 0 };

        CHECK_EQ(moepager_begin(pager, layer, experts, NULL, 2), MOEPAGER_OK);
        for (;;) {
            uint32_t i;

            CHECK_EQ(moepager_next(pager, &ready), MOEPAGER_OK);
            if (ready.index == MOEPAGER_NONE)
                break;
            i = ready.index / 2;
            CHECK(i < 2 && ready.index % 2 == next[i]++);
            check_bytes(layer * EXPERTS + experts[i] * 2 + ready.index % 2, &ready);
            CHECK_EQ(moepager_done(pager, ready.index), MOEPAGER_OK);
            CHECK_EQ(moepager_done(pager, ready.index), MOEPAGER_ERR_INVALID);
        }
        CHECK(next[0] == 2 && next[1] == 2);
        CHECK_EQ(moepager_end(pager), MOEPAGER_OK);
    }
    moepager_close(pager);
}

static void a_bad_config_is_refused_with_its_reason(void)
{
    const uint64_t smallest = plan_of(MOEPAGER_BUDGET_ALL).smallest_bytes;
    const char *missing[2] = { model.gate_path, "/nonexistent/file" };
    struct moepager_config config = make_config(MOEPAGER_BUDGET_ALL);
    char number[32];

    config.size--;
    open_refuses(config, MOEPAGER_ERR_INVALID, "E_CONFIG_SIZE", "MOEPAGER_CONFIG_INIT");
    config = make_config(MOEPAGER_BUDGET_ALL);
    config.slices = 17;
    open_refuses(config, MOEPAGER_ERR_INVALID, "E_INVALID", "17 slices");
    config = make_config(MOEPAGER_BUDGET_ALL);
    config.top_k = EXPERTS + 1;
    open_refuses(config, MOEPAGER_ERR_INVALID, "E_INVALID", "4 layers of 6 experts");
    config = make_config(MOEPAGER_BUDGET_ALL);
    config.pieces_per_expert = MOEPAGER_PIECES_MAX + 1;
    open_refuses(config, MOEPAGER_ERR_INVALID, "E_INVALID", "5 pieces per expert");
    config = make_config(MOEPAGER_BUDGET_ALL);
    config.files = missing;
    open_refuses(config, MOEPAGER_ERR_IO, "E_OPEN", "/nonexistent/file");
    config = make_config(smallest - 1);
    snprintf(number, sizeof(number), "%llu", (unsigned long long)smallest);
    open_refuses(config, MOEPAGER_ERR_CONFIG, "E_BUDGET_SMALL", number);
    config = make_config(MOEPAGER_BUDGET_ALL);
    config.profile = "no-such";
    open_refuses(config, MOEPAGER_ERR_CONFIG, "E_PROFILE", "no-such");
    config = make_config(MOEPAGER_BUDGET_ALL);
    config.evict = "no-such";
    open_refuses(config, MOEPAGER_ERR_CONFIG, "E_POLICY", "layer-lru");
}

static void a_piece_outside_its_file_is_refused(void)
{
    struct moepager_config config = make_config(MOEPAGER_BUDGET_ALL);
    const struct moepager_piece saved = model.pieces[7][1];

    model.pieces[7][1].offset_bytes = sizeof(model.down) - DOWN + 1;
    open_refuses(config, MOEPAGER_ERR_MODEL, "E_UNIT_RANGE", "down");
    model.pieces[7][1] = saved;
}

static void a_plan_says_what_a_budget_holds(void)
{
    const struct moepager_plan all = plan_of(MOEPAGER_BUDGET_ALL);

    CHECK_EQ(all.expert_bytes, COUNT * (GATE + DOWN));
    CHECK_EQ(all.slots, COUNT);
    CHECK(all.full_bytes >= all.expert_bytes && all.smallest_bytes < all.full_bytes);
    CHECK_EQ(plan_of(all.full_bytes).slots, COUNT);
    CHECK_EQ(plan_of(all.smallest_bytes).slots, 2);
    CHECK_EQ(plan_of(all.smallest_bytes - 1).slots, 0);
}

static void bytes_are_right_at_every_budget(void)
{
    static const uint32_t some[3] = { 0, 2, 5 }, other[2] = { 1, 4 };
    static const uint32_t all[EXPERTS] = { 0, 1, 2, 3, 4, 5 };
    const struct moepager_plan plan = plan_of(MOEPAGER_BUDGET_ALL);

    for (uint64_t step = 0; step <= 6; step++) {
        struct moepager_config config =
            make_config(plan.smallest_bytes + step * (plan.full_bytes - plan.smallest_bytes) / 6);
        struct moepager_counters counters;
        struct moepager *pager;

        config.deterministic = step % 2 != 0;
        pager = open_model(config);
        for (unsigned round = 0; round < 3; round++) {
            for (uint32_t layer = 0; layer < LAYERS; layer++) {
                run_layer(pager, layer, some, 3);
                run_layer(pager, layer, other, 2);
                run_layer(pager, layer, all, EXPERTS);
            }
        }
        moepager_get_counters(pager, &counters);
        CHECK_EQ(counters.hits + counters.misses, 3 * LAYERS * (3 + 2 + EXPERTS));
        CHECK(counters.resident_peak_bytes <= config.budget_bytes);
        if (step == 6)
            CHECK_EQ(counters.misses, COUNT);
        moepager_close(pager);
    }
}

static void too_many_leases_are_a_result_and_not_a_deadlock(void)
{
    static const uint32_t experts[4] = { 0, 1, 2, 3 };
    struct moepager *pager = open_model(make_config(plan_of(MOEPAGER_BUDGET_ALL).smallest_bytes));
    struct moepager_ready held[2], ready;

    CHECK_EQ(moepager_begin(pager, 0, experts, NULL, 4), MOEPAGER_OK);
    CHECK_EQ(moepager_next(pager, &held[0]), MOEPAGER_OK);
    CHECK_EQ(moepager_next(pager, &held[1]), MOEPAGER_OK);
    CHECK_EQ(moepager_next(pager, &ready), MOEPAGER_ERR_BUSY);
    CHECK_STR(moepager_error_code(), "E_BUSY");
    check_bytes(experts[held[0].index], &held[0]);
    check_bytes(experts[held[1].index], &held[1]);
    CHECK_EQ(moepager_end(pager), MOEPAGER_ERR_INVALID);
    CHECK_EQ(moepager_done(pager, held[0].index), MOEPAGER_OK);
    CHECK_EQ(moepager_next(pager, &ready), MOEPAGER_OK);
    check_bytes(experts[ready.index], &ready);
    moepager_abort(pager);
    run_layer(pager, 0, experts, 4);
    moepager_close(pager);
}

static void wrong_calls_are_refused_and_change_nothing(void)
{
    static const uint32_t experts[2] = { 1, 3 }, twice[2] = { 3, 3 }, beyond[1] = { EXPERTS };
    static const uint32_t no_tokens[2] = { 1, 0 };
    struct moepager *pager = open_model(make_config(MOEPAGER_BUDGET_ALL));
    struct moepager_ready ready;

    CHECK_EQ(moepager_next(pager, &ready), MOEPAGER_ERR_INVALID);
    CHECK_EQ(moepager_end(pager), MOEPAGER_ERR_INVALID);
    CHECK_EQ(moepager_done(pager, 0), MOEPAGER_ERR_INVALID);
    CHECK_EQ(moepager_begin(pager, LAYERS, experts, NULL, 2), MOEPAGER_ERR_INVALID);
    CHECK_EQ(moepager_begin(pager, 0, beyond, NULL, 1), MOEPAGER_ERR_INVALID);
    CHECK_EQ(moepager_begin(pager, 0, twice, NULL, 2), MOEPAGER_ERR_INVALID);
    CHECK_EQ(moepager_begin(pager, 0, experts, no_tokens, 2), MOEPAGER_ERR_INVALID);
    CHECK_EQ(moepager_prefetch(pager, 0, beyond, 1), MOEPAGER_ERR_INVALID);
    CHECK_EQ(moepager_prefetch(pager, LAYERS, experts, 1), MOEPAGER_ERR_INVALID);

    CHECK_EQ(moepager_begin(pager, 2, experts, NULL, 2), MOEPAGER_OK);
    CHECK_EQ(moepager_begin(pager, 2, experts, NULL, 2), MOEPAGER_ERR_INVALID);
    CHECK_EQ(moepager_next(pager, &ready), MOEPAGER_OK);
    CHECK_EQ(moepager_done(pager, 2), MOEPAGER_ERR_INVALID);
    CHECK_EQ(moepager_done(pager, ready.index), MOEPAGER_OK);
    CHECK_EQ(moepager_done(pager, ready.index), MOEPAGER_ERR_INVALID);
    CHECK_EQ(moepager_next(pager, &ready), MOEPAGER_OK);
    CHECK_EQ(moepager_done(pager, ready.index), MOEPAGER_OK);
    CHECK_EQ(moepager_end(pager), MOEPAGER_OK);
    CHECK_STR(moepager_error_code(), "");
    moepager_close(pager);
    moepager_close(NULL);
}

static void a_budget_can_change_between_layers(void)
{
    static const uint32_t all[] = { 0, 1, 2, 3, 4, 5 };
    struct moepager_config config = make_config(MOEPAGER_BUDGET_ALL);
    struct moepager_plan plan;
    struct moepager_counters counters;
    struct moepager *pager;

    CHECK_EQ(moepager_plan(&config, &plan), MOEPAGER_OK);
    CHECK_EQ(moepager_open(&config, &pager), MOEPAGER_OK);
    for (unsigned i = 0; i < 12; i++) {
        const uint64_t budget =
            plan.smallest_bytes + (plan.full_bytes - plan.smallest_bytes) * (i * 5 % 7) / 6;

        CHECK_EQ(moepager_set_budget(pager, budget), MOEPAGER_OK);
        moepager_get_counters(pager, &counters);
        CHECK(counters.resident_bytes <= budget);
        for (uint32_t l = 0; l < LAYERS; l++)
            run_layer(pager, l, all, 6);
    }
    CHECK_EQ(moepager_set_budget(pager, plan.smallest_bytes - 1), MOEPAGER_ERR_CONFIG);
    CHECK_STR(moepager_error_code(), "E_BUDGET_SMALL");
    CHECK_EQ(moepager_begin(pager, 0, all, NULL, 1), MOEPAGER_OK);
    CHECK_EQ(moepager_set_budget(pager, MOEPAGER_BUDGET_ALL), MOEPAGER_ERR_INVALID);
    moepager_abort(pager);
    CHECK_EQ(moepager_set_budget(pager, MOEPAGER_BUDGET_ALL), MOEPAGER_OK);
    moepager_close(pager);
}

static void what_was_prefetched_is_a_hit(void)
{
    static const uint32_t first[2] = { 0, 1 }, guess[3] = { 5, 2, 4 }, second[3] = { 2, 4, 5 };
    struct moepager_config config = make_config(MOEPAGER_BUDGET_ALL);
    struct moepager_counters counters;
    struct moepager *pager;

    config.deterministic = 1;
    pager = open_model(config);
    run_layer(pager, 0, first, 2);
    CHECK_EQ(moepager_prefetch(pager, 1, guess, 3), MOEPAGER_OK);
    run_layer(pager, 1, second, 3);
    moepager_get_counters(pager, &counters);
    CHECK_EQ(counters.misses, 2);
    CHECK_EQ(counters.hits, 3);
    CHECK_EQ(counters.prefetch_bytes, 3 * (GATE + DOWN));
    CHECK_EQ(counters.prefetch_unused_bytes, 0);
    CHECK_EQ(counters.resident_bytes, 5 * (GATE + DOWN));
    moepager_close(pager);
}

static void a_file_that_changed_is_an_error_and_the_rest_goes_on(void)
{
    static const uint32_t experts[2] = { 0, 1 };
    struct moepager *pager = open_model(make_config(MOEPAGER_BUDGET_ALL));
    struct moepager_ready ready;

    run_layer(pager, 0, experts, 2);
    CHECK_EQ(truncate(model.gate_path, 4096), 0);
    CHECK_EQ(moepager_begin(pager, 3, experts, NULL, 2), MOEPAGER_OK);
    CHECK_EQ(moepager_next(pager, &ready), MOEPAGER_ERR_IO);
    CHECK(strstr(moepager_error_text(), model.gate_path) != NULL);
    moepager_abort(pager);
    run_layer(pager, 0, experts, 2);
    moepager_close(pager);
    write_file(model.gate_path, model.gate, sizeof(model.gate));
}

static void remember_line(void *lines, int level, const char *text)
{
    CHECK_EQ(level, 1);
    CHECK(strstr(text, "MOEPAGER_IO") != NULL);
    ++*(int *)lines;
}

static void warnings_go_to_the_program_that_asks_for_them(void)
{
    static const uint32_t experts[2] = { 0, 5 };
    struct moepager *pager;
    int lines = 0;

    setenv("MOEPAGER_IO", "nonsense", 1);
    moepager_set_log(remember_line, &lines);
    pager = open_model(make_config(MOEPAGER_BUDGET_ALL));
    CHECK_EQ(lines, 1);
    moepager_set_log(NULL, NULL);
    run_layer(pager, 1, experts, 2);
    moepager_close(pager);
    unsetenv("MOEPAGER_IO");
}

static void texts_exist(void)
{
    CHECK(strlen(moepager_version()) >= 5);
    for (int status = 0; status >= -12; status--)
        CHECK(strlen(moepager_status_text((enum moepager_status)status)) > 3);
}

int main(void)
{
    make_model();
    RUN(texts_exist);
    RUN(experts_can_come_in_slices);
    RUN(a_bad_config_is_refused_with_its_reason);
    RUN(a_piece_outside_its_file_is_refused);
    RUN(a_plan_says_what_a_budget_holds);
    RUN(bytes_are_right_at_every_budget);
    RUN(too_many_leases_are_a_result_and_not_a_deadlock);
    RUN(wrong_calls_are_refused_and_change_nothing);
    RUN(a_budget_can_change_between_layers);
    RUN(what_was_prefetched_is_a_hit);
    RUN(a_file_that_changed_is_an_error_and_the_rest_goes_on);
    RUN(warnings_go_to_the_program_that_asks_for_them);
    return 0;
}
