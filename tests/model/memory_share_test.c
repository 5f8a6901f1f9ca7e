/*
 * One budget for experts and kept prompts: what a step of memory is worth on either side, where it
 * goes for that, with the bounds of both, and that nothing of it changes an answer.
 */
#include "engine/batch/memory_share.h"

#include "tests/model/generate.h"
#include "tests/support/fault/wrap.h"

#define TOTAL (200u << 10)
#define MORE 4u
#define PROMPT 48u
#define PROMPTS 18u

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
                                            .total_bytes = TOTAL,
                                            .budget_bytes = h.config.budget_bytes,
                                            .smallest_bytes = plan.smallest_bytes,
                                            .full_bytes = plan.full_bytes,
                                            .expert_bytes = plan.unit_bytes };
}

static void open_all(void)
{
    struct harness_options options = harness_defaults(FIXTURE);
    struct mp_batcher_config config = { .engine_config = &h.config,
                                        .chunk_tokens = 64,
                                        .clock = &ticking };
    struct mp_memory_share_config shared;

    plan = harness_plan(&options, NULL);
    options.ctx = 80;
    options.tokens_max = 64;
    options.budget_bytes = plan.full_bytes / 2;
    harness_open(&options, &h);
    mp_engine_destroy(h.engine);
    h.config.routed = count_uses;
    CHECK_EQ(mp_engine_create(&h.config, &h.engine), MP_OK);
    uses = calloc((size_t)mp_engine_shape(h.engine)->layers * mp_engine_shape(h.engine)->experts,
                  sizeof(*uses));
    config.engine = h.engine;
    config.prefix_bytes = TOTAL - h.config.budget_bytes;
    config.prefix_step_bytes =
        mp_memory_share_step(TOTAL, plan.unit_bytes / (mp_engine_shape(h.engine)->layers *
                                                       mp_engine_shape(h.engine)->experts));
    CHECK_EQ(mp_batcher_create(&config, &batcher), MP_OK);
    shared = share_config();
    CHECK_EQ(mp_memory_share_create(&shared, &share), MP_OK);
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

static void take_answer(void *ctx, const struct mp_job_end *end)
{
    CHECK(end->error == NULL && end->output->ids.count == MORE);
    memcpy(ctx, end->output->ids.ids, sizeof(struct answer));
}

/* The answer to prompt `number`, with a look after each step. */
static struct answer ask(uint32_t number)
{
    uint32_t ids[PROMPT];
    struct answer answer;
    const struct mp_job_config config = { .prompt = ids,
                                          .prompt_count = PROMPT,
                                          .sampling = { .top_p = 1 },
                                          .max_tokens = MORE,
                                          .ignore_eos = true,
                                          .on_end = take_answer,
                                          .ctx = &answer };
    struct mp_job *job;

    for (uint32_t i = 0; i < PROMPT; i++)
        ids[i] = (number * 37 + i * i * 5 + i) % h.model.vocab;
    CHECK_EQ(mp_batcher_submit(batcher, &config, &job), MP_OK);
    while (mp_batcher_busy(batcher)) {
        const struct mp_memory_share_stats *stats = mp_memory_share_stats(share);

        CHECK_EQ(mp_batcher_step(batcher), MP_OK);
        CHECK_EQ(mp_memory_share_look(share), MP_OK);
        CHECK_EQ(stats->budget_bytes + stats->prefix_bytes, TOTAL);
        CHECK(stats->budget_bytes >= plan.smallest_bytes && stats->budget_bytes <= TOTAL);
        CHECK(mp_prefix_store_stats(mp_batcher_prefixes(batcher))->bytes <= stats->prefix_bytes);
        CHECK(mp_engine_counters(h.engine)->resident_bytes <= stats->budget_bytes);
    }
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
    CHECK_EQ(stats->prefix_bytes, TOTAL - plan.smallest_bytes);
    CHECK_EQ(mp_memory_share_set(share, plan.smallest_bytes - 1), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_BUDGET_SMALL");
    CHECK_EQ(stats->budget_bytes, plan.smallest_bytes);
    CHECK_EQ(stats->to_experts + stats->to_prefixes, 0);
    if (plan.full_bytes > TOTAL) {
        CHECK_EQ(mp_memory_share_set(share, TOTAL + 1), MP_ERR_CONFIG);
        CHECK_STR(mp_error_last()->code, "E_REQUEST");
    }
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
    RUN(no_memory_is_an_error);
    return 0;
}
