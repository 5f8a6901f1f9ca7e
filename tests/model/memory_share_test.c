/*
 * One budget for experts, kept prompts and sequences: what a step of memory is worth for the first
 * two, where it goes for that, that sequences get what they need and give it back, with the bounds
 * of all, and that nothing of it changes an answer.
 */
#include "engine/batch/memory_share.h"

#include "engine/forward/kv.h"

#include "tests/model/generate.h"
#include "tests/support/fault/wrap.h"

#define EXPERTS_AND_PROMPTS (200u << 10)
#define MORE 4u
#define PROMPT 48u
#define PROMPTS 18u
#define SPARE (60u << 10) /* beside half of the experts: a job's keys and values take 48 KiB */
#define CTX 80u

static void experts_are_worth_their_uses(void)
{
    struct mp_expert_use uses[] = { { 9, true }, { 2, true },  { 5, false }, { 0, true },
                                    { 3, true }, { 1, false }, { 7, false } };
    struct mp_worth worth = mp_worth_of_experts(uses, MP_ARRAY_LEN(uses), 2, 10);

    CHECK(worth.gain_ns == 120 && worth.loss_ns == 20);
    worth = mp_worth_of_experts(uses, MP_ARRAY_LEN(uses), 1, 1);
    CHECK(worth.gain_ns == 7 && worth.loss_ns == 0);
    worth = mp_worth_of_experts(uses, MP_ARRAY_LEN(uses), 9, 1);
    CHECK(worth.gain_ns == 13 && worth.loss_ns == 14);
}

static int decide(double expert_gain, double expert_loss, double prefix_gain, double prefix_loss)
{
    const struct mp_worth experts = { expert_gain, expert_loss };
    const struct mp_worth prefixes = { prefix_gain, prefix_loss };

    return mp_memory_share_decide(&experts, &prefixes);
}

static void memory_goes_where_it_is_worth_a_quarter_more(void)
{
    CHECK_EQ(decide(0, 0, 0, 0), 0);
    CHECK_EQ(decide(100, 50, 60, 79), 1);
    CHECK_EQ(decide(100, 50, 60, 80), 0);
    CHECK_EQ(decide(100, 50, 63, 80), -1);
    CHECK_EQ(decide(100, 0, 60, 0), 1);
    CHECK_EQ(decide(60, 0, 100, 0), -1);
    CHECK_EQ(mp_memory_share_step(3200, 10), 100);
    CHECK_EQ(mp_memory_share_step(3200, 60), 120);
}

/* ---- a batcher on one sequence, half of the experts' bytes, and some prompts */

static struct harness h;
static struct mp_batcher *batcher;
static struct mp_memory_share *share;
static uint64_t *uses;
static struct mp_space_plan plan;
static uint64_t total, sequences_bytes; /* these at first */

/* The batcher's clock: every look at it takes as long as `tick_ns`. */
static uint64_t time_ns, tick_ns;

static uint64_t tick(struct mp_clock *clock)
{
    (void)clock;
    return time_ns += tick_ns;
}

static struct mp_clock ticking = { tick };

static void count_uses(void *ctx, uint32_t layer, uint32_t tokens, uint32_t k,
                       const uint32_t *experts, const float *weights)
{
    (void)ctx;
    (void)weights;
    for (size_t i = 0; uses != NULL && i < (size_t)tokens * k; i++)
        uses[layer * mp_engine_shape(h.engine)->experts + experts[i]]++;
}

static struct mp_memory_share_config share_config(void)
{
    return (struct mp_memory_share_config){ .engine = h.engine,
                                            .batcher = batcher,
                                            .uses = uses,
                                            .total_bytes = total,
                                            .budget_bytes = h.config.budget_bytes,
                                            .kv_bytes = sequences_bytes,
                                            .smallest_bytes = plan.smallest_bytes,
                                            .full_bytes = plan.full_bytes,
                                            .expert_bytes = plan.unit_bytes };
}

static void open_with(uint32_t sequences, uint64_t kv_bytes, uint64_t kept_bytes)
{
    struct harness_options options = harness_defaults(FIXTURE);
    struct mp_batcher_config config = { .engine_config = &h.config,
                                        .chunk_tokens = 64,
                                        .clock = &ticking };
    struct mp_memory_share_config shared;

    plan = harness_plan(&options, NULL);
    options.ctx = CTX;
    options.sequences = sequences;
    options.tokens_max = 64;
    options.budget_bytes = plan.full_bytes / 2;
    harness_open(&options, &h);
    mp_engine_destroy(h.engine);
    h.config.routed = count_uses;
    CHECK_EQ(mp_engine_create(&h.config, &h.engine), MP_OK);
    uses = calloc((size_t)mp_engine_shape(h.engine)->layers * mp_engine_shape(h.engine)->experts,
                  sizeof(*uses));
    config.engine = h.engine;
    sequences_bytes = kv_bytes;
    total = h.config.budget_bytes + kv_bytes + kept_bytes;
    config.prefix_bytes = kept_bytes;
    config.prefix_step_bytes =
        mp_memory_share_step(total, plan.unit_bytes / (mp_engine_shape(h.engine)->layers *
                                                       mp_engine_shape(h.engine)->experts));
    CHECK_EQ(mp_batcher_create(&config, &batcher), MP_OK);
    shared = share_config();
    CHECK_EQ(mp_memory_share_create(&shared, &share), MP_OK);
}

/* What a sequence needs at most it has at first. */
static void open_all(void)
{
    struct harness_options options = harness_defaults(FIXTURE);
    struct mp_engine_config c = { .sequences = 1, .ctx = CTX };

    plan = harness_plan(&options, NULL);
    harness_open(&options, &h);
    c.model = &h.model;
    sequences_bytes = mp_kv_sequence_bytes(&c, CTX);
    harness_close(&h);
    open_with(1, sequences_bytes, EXPERTS_AND_PROMPTS - plan.full_bytes / 2);
}

static uint64_t least_budget;

static void check_bounds(void)
{
    const struct mp_memory_share_stats *stats = mp_memory_share_stats(share);

    CHECK_EQ(stats->budget_bytes + stats->prefix_bytes + stats->kv_bytes, total);
    if (stats->budget_bytes < least_budget)
        least_budget = stats->budget_bytes;
    CHECK(stats->budget_bytes >= plan.smallest_bytes && stats->budget_bytes <= total);
    CHECK(mp_prefix_store_stats(mp_batcher_prefixes(batcher))->bytes <= stats->prefix_bytes);
    CHECK(mp_batcher_stats(batcher)->kv_bytes <= stats->kv_bytes);
    CHECK(mp_engine_counters(h.engine)->resident_bytes <= stats->budget_bytes);
}

static void close_all(void)
{
    mp_memory_share_destroy(share);
    mp_batcher_destroy(batcher);
    harness_close(&h);
    free(uses);
    uses = NULL;
}

struct answer {
    uint32_t ids[MORE];
};

static bool budget_fails;

enum mp_status __real_mp_engine_set_budget(struct mp_engine *engine, uint64_t budget_bytes);
enum mp_status __wrap_mp_engine_set_budget(struct mp_engine *engine, uint64_t budget_bytes);

enum mp_status __wrap_mp_engine_set_budget(struct mp_engine *engine, uint64_t budget_bytes)
{
    return budget_fails ? mp_fail(MP_ERR_IO, "E_TEST", "a transfer has failed")
                        : __real_mp_engine_set_budget(engine, budget_bytes);
}

static void take_answer(void *ctx, const struct mp_job_end *end)
{
    if (budget_fails) {
        CHECK_STR(end->error->code, "E_TEST");
        return;
    }
    CHECK(end->error == NULL && end->output->ids.count == MORE);
    memcpy(ctx, end->output->ids.ids, sizeof(struct answer));
}

static void submit(uint32_t number, struct answer *answer)
{
    uint32_t ids[PROMPT];
    const struct mp_job_config config = { .prompt = ids,
                                          .prompt_count = PROMPT,
                                          .sampling = { .top_p = 1 },
                                          .max_tokens = MORE,
                                          .ignore_eos = true,
                                          .on_end = take_answer,
                                          .ctx = answer };
    struct mp_job *job;

    for (uint32_t i = 0; i < PROMPT; i++)
        ids[i] = (number * 37 + i * i * 5 + i) % h.model.vocab;
    CHECK_EQ(mp_batcher_submit(batcher, &config, &job), MP_OK);
}

/* With a look after each step; returns how many jobs ran at once. */
static uint64_t run_all(void)
{
    uint64_t most = 0;

    while (mp_batcher_busy(batcher)) {
        CHECK_EQ(mp_batcher_step(batcher), MP_OK);
        if (mp_batcher_stats(batcher)->running > most)
            most = mp_batcher_stats(batcher)->running;
        CHECK_EQ(mp_memory_share_look(share), MP_OK);
        check_bounds();
    }
    return most;
}

/* The answer to prompt `number`. */
static struct answer ask(uint32_t number)
{
    struct answer answer;

    submit(number, &answer);
    (void)run_all();
    return answer;
}

/* Prompts that return again and again, just too many for what is kept: computing them is slow, so
 * prompts get memory until it suffices. Then prompts that never return: experts get it back. */
static void memory_follows_what_is_asked(void)
{
    const struct mp_memory_share_stats *stats;
    struct answer wanted[PROMPTS];
    uint64_t first, most;

    open_all();
    stats = mp_memory_share_stats(share);
    first = stats->budget_bytes;
    tick_ns = 100000000; /* a slow machine */
    for (uint32_t i = 0; i < PROMPTS; i++)
        wanted[i] = ask(i);
    for (uint32_t i = 0; i < 180; i++) {
        const struct answer answer = ask(i % PROMPTS);

        CHECK(memcmp(&answer, &wanted[i % PROMPTS], sizeof(answer)) == 0);
    }
    CHECK(stats->to_prefixes > 0);
    CHECK(stats->budget_bytes < first);
    most = stats->prefix_bytes;
    tick_ns = 1; /* computing a prompt takes no time, waiting for experts some */
    for (uint32_t i = 0; i < 120; i++)
        (void)ask(1000 + i);
    CHECK(stats->to_experts > 0);
    CHECK(stats->prefix_bytes < most);
    close_all();
}

static void a_budget_that_is_set_leaves_the_rest(void)
{
    const struct mp_memory_share_stats *stats;

    open_all();
    stats = mp_memory_share_stats(share);
    CHECK_EQ(mp_memory_share_set(share, plan.smallest_bytes), MP_OK);
    CHECK_EQ(stats->prefix_bytes, total - plan.smallest_bytes - stats->kv_bytes);
    CHECK_EQ(mp_memory_share_set(share, plan.smallest_bytes - 1), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_BUDGET_SMALL");
    CHECK_EQ(stats->budget_bytes, plan.smallest_bytes);
    CHECK_EQ(stats->to_experts + stats->to_prefixes, 0);
    close_all();
}

/* Sequences have nothing at first: one that is alone takes what it needs from experts. More at once
 * take more where steps are slow and waits short, and wait for each other where it is not so. */
static void sequences_take_memory_if_it_is_worth_it(void)
{
    struct answer wanted[PROMPTS], got[PROMPTS];

    open_all();
    for (uint32_t i = 0; i < PROMPTS; i++)
        wanted[i] = ask(i);
    close_all();
    for (int slow = 0; slow <= 1; slow++) {
        const struct mp_memory_share_stats *stats;
        uint64_t first, most;

        open_with(4, 0, SPARE);
        stats = mp_memory_share_stats(share);
        first = least_budget = stats->budget_bytes;
        tick_ns = slow ? 100000000 : 0; /* what takes no time cannot take less */
        for (uint32_t i = 0; i < PROMPTS; i++)
            submit(i, &got[i]);
        most = run_all();
        CHECK_EQ(most, slow ? 2 : 1);
        CHECK(memcmp(got, wanted, sizeof(wanted)) == 0);
        CHECK(slow ? stats->to_sequences >= 2 : stats->to_sequences == 1);
        CHECK_EQ(least_budget < first, slow); /* one has room beside the experts */
        close_all();
    }
}

/* Several at once, then one at a time: what the others had goes back. */
static void sequences_give_memory_back(void)
{
    const struct mp_memory_share_stats *stats;
    struct answer first[2], got;
    uint64_t most;

    open_with(4, 0, SPARE);
    stats = mp_memory_share_stats(share);
    tick_ns = 100000000;
    for (uint32_t i = 0; i < 8; i++)
        submit(i % 2, &first[i % 2]);
    CHECK(run_all() >= 2);
    most = stats->kv_bytes;
    for (uint32_t i = 0; i < MP_SHARE_STEPS; i++) {
        got = ask(0);
        CHECK(memcmp(&got, &first[0], sizeof(got)) == 0);
    }
    CHECK(stats->from_sequences > 0);
    CHECK(stats->kv_bytes < most);
    close_all();
}

/* The budget is set to all there is: free sequences give up what they hold, those with a job not.
 */
static void a_budget_leaves_running_sequences_what_they_need(void)
{
    const struct mp_memory_share_stats *stats;
    struct answer answer;

    open_with(1, 0, 0);
    stats = mp_memory_share_stats(share);
    (void)ask(1);
    CHECK(stats->budget_bytes < total && mp_batcher_stats(batcher)->kv_bytes > 0);
    CHECK_EQ(mp_memory_share_set(share, total), MP_OK);
    CHECK_EQ(stats->budget_bytes, total);
    CHECK_EQ(mp_batcher_stats(batcher)->kv_bytes, 0);
    check_bounds();
    submit(1, &answer);
    while (mp_batcher_stats(batcher)->running == 0) {
        CHECK_EQ(mp_batcher_step(batcher), MP_OK);
        CHECK_EQ(mp_memory_share_look(share), MP_OK);
    }
    CHECK_EQ(mp_memory_share_set(share, total), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_REQUEST");
    CHECK(strstr(mp_error_last()->text, "--memory leaves") != NULL);
    (void)run_all();
    close_all();
}

/* What a job needs cannot be had, and none runs that could give it: it ends with the error. */
static void a_job_without_hope_ends(void)
{
    struct answer answer;

    open_with(1, 0, 0);
    submit(1, &answer);
    CHECK_EQ(mp_batcher_step(batcher), MP_OK);
    CHECK(mp_batcher_stats(batcher)->kv_wanted_bytes > 0);
    budget_fails = true;
    CHECK_EQ(mp_memory_share_look(share), MP_ERR_IO);
    budget_fails = false;
    CHECK(!mp_batcher_busy(batcher));
    check_bounds();
    CHECK_EQ(mp_batcher_stats(batcher)->failed, 1);
    (void)ask(1);
    close_all();
}

static void no_memory_is_an_error(void)
{
    struct mp_memory_share_config config;

    open_all();
    config = share_config();
    for (uint64_t n = 0; n < 5; n++) {
        struct mp_memory_share *other = NULL;
        enum mp_status status;

        fault_nth(FAULT_ALLOCATIONS, n);
        status = mp_memory_share_create(&config, &other);
        CHECK_EQ(status, fault_end() == 0 ? MP_OK : MP_ERR_NO_MEMORY);
        CHECK_EQ(status == MP_OK, n >= 4);
        mp_memory_share_destroy(other);
    }
    close_all();
}

int main(void)
{
    RUN(experts_are_worth_their_uses);
    RUN(memory_goes_where_it_is_worth_a_quarter_more);
    RUN(memory_follows_what_is_asked);
    RUN(a_budget_that_is_set_leaves_the_rest);
    RUN(sequences_take_memory_if_it_is_worth_it);
    RUN(sequences_give_memory_back);
    RUN(a_budget_leaves_running_sequences_what_they_need);
    RUN(a_job_without_hope_ends);
    RUN(no_memory_is_an_error);
    return 0;
}
