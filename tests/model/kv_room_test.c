/*
 * Jobs whose keys and values have a bound: they start and go on when they have room, in their
 * order, with the bits of a run without a bound; all end; pages that are touched never are more
 * than what is counted; what never had room is refused with both numbers.
 */
#include <inttypes.h>
#include <sys/mman.h>

#include "engine/batch/batcher.h"
#include "engine/forward/engine_int.h"
#include "tests/model/generate.h"
#include "tests/support/fault/wrap.h"

#define JOBS 12
#define MORE 12
#define LONG 80
#define SEQUENCES 4
#define CTX 512
#define PAGE 4096u

static struct harness h;
static struct mp_batcher *batcher;

struct result {
    uint32_t ids[LONG];
    uint64_t reused;
    int ends;
    struct mp_error error;
};

static struct result results[JOBS];
static uint32_t wanted[JOBS][LONG];
static uint32_t ended;

static void take_end(void *ctx, const struct mp_job_end *end)
{
    struct result *r = ctx;

    r->ends++;
    r->reused = end->reused_tokens;
    if (end->error != NULL)
        r->error = *end->error;
    else
        memcpy(r->ids, end->output->ids.ids, end->output->ids.count * sizeof(r->ids[0]));
    ended++;
}

static enum mp_status with_small_pages(void *ctx, struct mp_engine_config *config)
{
    (void)ctx;
    config->kv_small_pages = true;
    return MP_OK;
}

static void open_on(const char *model, uint64_t prefix_bytes)
{
    struct harness_options options = harness_defaults(model);
    struct mp_batcher_config config = { .engine_config = &h.config,
                                        .chunk_tokens = 64,
                                        .prefix_bytes = prefix_bytes,
                                        .prefix_step_bytes = prefix_bytes / 4,
                                        .clock = mp_clock_monotonic() };

    options.sequences = SEQUENCES;
    options.ctx = CTX;
    options.tokens_max = 64;
    options.threads = 2;
    options.before_engine = with_small_pages;
    harness_open(&options, &h);
    config.engine = h.engine;
    CHECK_EQ(mp_batcher_create(&config, &batcher), MP_OK);
    memset(results, 0, sizeof(results));
    ended = 0;
}

static void open_all(uint64_t prefix_bytes)
{
    open_on(TINY, prefix_bytes);
}

static void close_all(void)
{
    mp_batcher_destroy(batcher);
    harness_close(&h);
}

static uint64_t bytes_of(uint32_t positions)
{
    return mp_kv_sequence_bytes(&h.config, positions);
}

static struct mp_job *submit_long(uint32_t number, uint32_t prompt_count, uint32_t max_tokens,
                                  struct result *result)
{
    uint32_t ids[CTX];
    const struct mp_job_config config = { .prompt = ids,
                                          .prompt_count = prompt_count,
                                          .sampling = { .top_p = 1 },
                                          .max_tokens = max_tokens,
                                          .ignore_eos = true,
                                          .on_end = take_end,
                                          .ctx = result };
    struct mp_job *job = NULL;

    for (uint32_t i = 0; i < prompt_count; i++)
        ids[i] = (number * 37 + i * i * 5 + i) % h.model.vocab;
    CHECK_EQ(mp_batcher_submit(batcher, &config, &job), MP_OK);
    return job;
}

static struct mp_job *submit(uint32_t number, uint32_t prompt_count, struct result *result)
{
    return submit_long(number, prompt_count, MORE, result);
}

static uint32_t count_of(uint32_t number)
{
    return 20 + number * 23 % 80;
}

/* Bytes of the cache whose pages are there. */
static uint64_t touched_bytes(void)
{
    const uint64_t cache = bytes_of(CTX) / 2 * SEQUENCES;
    const uint8_t *const parts[] = { h.engine->state.k_cache, h.engine->state.v_cache };
    uint8_t *there = malloc(cache / PAGE);
    uint64_t pages = 0;

    for (size_t p = 0; p < MP_ARRAY_LEN(parts); p++) {
        CHECK_EQ(mincore((void *)parts[p], cache, there), 0);
        for (uint64_t i = 0; i < cache / PAGE; i++)
            pages += there[i] & 1;
    }
    free(there);
    return pages * PAGE;
}

static void step_within(uint64_t budget_bytes)
{
    CHECK_EQ(mp_batcher_step(batcher), MP_OK);
    CHECK(mp_batcher_stats(batcher)->kv_bytes <= budget_bytes);
    CHECK(touched_bytes() <= mp_batcher_stats(batcher)->kv_bytes);
}

static void pages_are_counted_as_they_come(void)
{
    open_all(0);
    CHECK_EQ(bytes_of(0), 0);
    CHECK_EQ(bytes_of(1), 8 * 2 * 2 * PAGE); /* layers, heads, keys and values */
    CHECK_EQ(bytes_of(32), bytes_of(1));
    CHECK_EQ(bytes_of(33), 2 * bytes_of(1));
    CHECK_EQ(bytes_of(CTX), 16 * bytes_of(1));
    h.config.ctx = 80; /* runs of 10 KiB: heads share pages, and sequences do */
    CHECK_EQ(bytes_of(1), 2 * 8 * 2 * 2 * PAGE);
    CHECK_EQ(bytes_of(80), 8 * 2 * (20 / 4 + 1) * PAGE);
    h.config.ctx = CTX;
    close_all();
}

static void jobs_wait_for_room_and_all_end(void)
{
    for (uint32_t sequences = 0; sequences <= 2; sequences++) {
        uint64_t budget, most = 0;

        open_all(0);
        budget = sequences * bytes_of(112);
        if (sequences > 0)
            mp_batcher_set_kv_budget(batcher, budget, budget);
        for (uint32_t i = 0; i < JOBS; i++)
            submit(i, count_of(i), &results[i]);
        while (mp_batcher_busy(batcher)) {
            step_within(sequences > 0 ? budget : UINT64_MAX);
            if (mp_batcher_stats(batcher)->running > most)
                most = mp_batcher_stats(batcher)->running;
        }
        /* Small ones are several at once where only two of the largest would be. */
        CHECK(sequences == 0 ? most == SEQUENCES : most >= sequences && most <= SEQUENCES);
        for (uint32_t i = 0; i < JOBS; i++) {
            CHECK(results[i].ends == 1 && results[i].error.status == MP_OK);
            if (sequences == 0)
                memcpy(wanted[i], results[i].ids, sizeof(wanted[i]));
            CHECK(memcmp(results[i].ids, wanted[i], sizeof(wanted[i])) == 0);
        }
        close_all();
    }
}

/* Answers that may become long: all run at first, as none has much yet. Then those that started
 * last are put off, and go on when others have ended. */
static void jobs_take_room_as_they_need_it(void)
{
    for (uint32_t bound = 0; bound <= 1; bound++) {
        uint64_t most_running = 0, budget;

        open_all(0);
        budget = bound ? bytes_of(CTX) * 3 / 4 : UINT64_MAX;
        if (bound)
            mp_batcher_set_kv_budget(batcher, budget, budget);
        for (uint32_t i = 0; i < JOBS; i++)
            submit_long(i, 20, i % 3 == 2 ? MORE : LONG, &results[i]);
        while (mp_batcher_busy(batcher)) {
            const struct mp_batcher_stats *stats = mp_batcher_stats(batcher);

            step_within(budget);
            CHECK_EQ(stats->paused, 0);
            most_running = stats->running > most_running ? stats->running : most_running;
        }
        CHECK_EQ(most_running, SEQUENCES);
        CHECK_EQ(mp_batcher_stats(batcher)->put_off > 0, bound);
        CHECK(mp_batcher_stats(batcher)->put_off < 4 * JOBS);
        for (uint32_t i = 0; i < JOBS; i++) {
            CHECK(results[i].ends == 1 && results[i].error.status == MP_OK);
            if (!bound)
                memcpy(wanted[i], results[i].ids, sizeof(wanted[i]));
            CHECK(memcmp(results[i].ids, wanted[i], sizeof(wanted[i])) == 0);
        }
        close_all();
    }
}

/* What could be had is not there yet: all stand still and say for how much, until it comes, or one
 * ends for it. */
static void all_are_paused_until_there_is_more(void)
{
    uint64_t steps, most;

    open_all(0);
    most = bytes_of(CTX);
    mp_batcher_set_kv_budget(batcher, 2 * bytes_of(84), most);
    for (uint32_t i = 0; i < 2; i++)
        submit_long(i, 20, LONG, &results[i]);
    while (mp_batcher_stats(batcher)->paused < 2)
        step_within(2 * bytes_of(84));
    steps = mp_batcher_stats(batcher)->steps;
    step_within(2 * bytes_of(84));
    CHECK_EQ(mp_batcher_stats(batcher)->steps, steps);
    CHECK_EQ(mp_batcher_stats(batcher)->kv_wanted_bytes, bytes_of(100) - bytes_of(84));
    mp_batcher_set_kv_budget(batcher, bytes_of(84) + bytes_of(100), most);
    step_within(bytes_of(84) + bytes_of(100));
    CHECK_EQ(mp_batcher_stats(batcher)->paused, 1);
    CHECK_EQ(mp_fail(MP_ERR_IO, "E_TEST", "nothing to be had"), MP_ERR_IO);
    mp_batcher_fail_next(batcher);
    CHECK(results[0].ends == 0 && results[1].ends == 1);
    CHECK_STR(results[1].error.code, "E_TEST");
    while (mp_batcher_busy(batcher))
        step_within(bytes_of(84) + bytes_of(100));
    CHECK(results[0].ends == 1 && results[0].error.status == MP_OK);
    CHECK(memcmp(results[0].ids, wanted[0], sizeof(wanted[0])) == 0);
    close_all();
}

static void what_never_has_room_is_refused(void)
{
    uint32_t ids[CTX] = { 0 };
    struct mp_job_config config = { .prompt = ids,
                                    .prompt_count = 90,
                                    .sampling = { .top_p = 1 },
                                    .max_tokens = 7,
                                    .on_end = take_end,
                                    .ctx = &results[0] };
    struct mp_job *job = NULL;
    char number[32];

    open_all(0);
    CHECK_EQ(mp_batcher_positions(batcher), CTX);
    mp_batcher_set_kv_budget(batcher, 0, bytes_of(96));
    CHECK_EQ(mp_batcher_positions(batcher), 96);
    CHECK_EQ(mp_batcher_submit(batcher, &config, &job), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_KV_ROOM");
    snprintf(number, sizeof(number), " %" PRIu64 " bytes", bytes_of(97));
    CHECK(strstr(mp_error_last()->text, number) != NULL);
    snprintf(number, sizeof(number), " %" PRIu64 " for it", bytes_of(96));
    CHECK(strstr(mp_error_last()->text, number) != NULL);
    config.max_tokens = 6;
    CHECK_EQ(mp_batcher_submit(batcher, &config, &job), MP_OK);

    /* There is no room now: it waits, and says for how much. */
    CHECK_EQ(mp_batcher_step(batcher), MP_OK);
    CHECK_EQ(mp_batcher_stats(batcher)->waiting, 1);
    CHECK_EQ(mp_batcher_stats(batcher)->kv_wanted_bytes, bytes_of(96));
    CHECK_EQ(mp_batcher_stats(batcher)->steps, 0);
    CHECK_EQ(mp_fail(MP_ERR_IO, "E_TEST", "nothing to be had"), MP_ERR_IO);
    mp_batcher_fail_next(batcher);
    CHECK(results[0].ends == 1 && !mp_batcher_busy(batcher));
    CHECK_STR(results[0].error.code, "E_TEST");
    mp_batcher_fail_next(batcher);
    close_all();
}

/* A job that needs all there is, while small ones, whose prompts are held already, come without an
 * end: some go first, then those that run end, and it has its room. */
static void a_large_job_does_not_starve(void)
{
    struct result small = { 0 }, large = { 0 };
    uint64_t budget;

    open_all(0);
    budget = bytes_of(300 + MORE);
    mp_batcher_set_kv_budget(batcher, budget, budget);
    submit(5, 48, &small);
    CHECK_EQ(mp_batcher_step(batcher), MP_OK);
    submit(9, 300, &large);
    for (uint32_t step = 0; large.ends == 0; step++) {
        while (mp_batcher_stats(batcher)->waiting < 3)
            submit(5, 48, &small);
        step_within(budget);
        CHECK(step < 2000);
    }
    CHECK(ended <= MP_JOB_OVERTAKEN_MAX + SEQUENCES + 1);
    CHECK(large.error.status == MP_OK);
    while (mp_batcher_busy(batcher))
        step_within(budget);
    close_all();
}

/* What a sequence holds after its job is counted until others need the room or it is dropped; then
 * its pages are gone, and its tokens are where prompts are kept. */
static void free_sequences_give_up_what_they_hold(void)
{
    struct result r = { 0 };
    uint32_t first[MORE];

    open_all(1 << 20);
    mp_batcher_set_kv_budget(batcher, bytes_of(CTX), bytes_of(CTX));
    for (int turn = 0; turn < 3; turn++) {
        submit(3, 100, &r);
        while (mp_batcher_busy(batcher))
            step_within(bytes_of(CTX));
        if (turn == 0)
            memcpy(first, r.ids, sizeof(first));
        CHECK(memcmp(first, r.ids, sizeof(first)) == 0);
        CHECK_EQ(r.reused, turn == 0 ? 0 : turn == 1 ? 96 : 99); /* kept in blocks; held */
        CHECK_EQ(mp_batcher_stats(batcher)->kv_bytes, bytes_of(100 + MORE - 1));
        mp_batcher_drop_idle(batcher, 1000);
        CHECK(mp_batcher_stats(batcher)->kv_bytes > 0);
        if (turn > 0)
            continue;
        mp_batcher_drop_idle(batcher, 0);
        CHECK_EQ(mp_batcher_stats(batcher)->kv_bytes, 0);
        CHECK_EQ(touched_bytes(), 0);
    }
    /* A shorter job on the sequence with the longer one's beginning gives back the end. */
    submit(3, 20, &r);
    step_within(bytes_of(CTX));
    CHECK_EQ(mp_batcher_stats(batcher)->kv_bytes, bytes_of(20 + MORE));
    while (mp_batcher_busy(batcher))
        step_within(bytes_of(CTX));
    close_all();
}

/* Where the kernel keeps pages that were given up, and large ones, only memory is lost. */
static void pages_that_stay_do_no_harm(void)
{
    const struct fault_plan plan = { .mode = FAULT_ALWAYS, .calls = FAULT_BIT(madvise) };
    struct result r = { 0 };
    uint32_t first[MORE];

    fault_begin(&plan);
    open_all(0);
    mp_batcher_set_kv_budget(batcher, bytes_of(CTX), bytes_of(CTX));
    for (int turn = 0; turn < 2; turn++) {
        submit(3, 100, &r);
        while (mp_batcher_busy(batcher))
            CHECK_EQ(mp_batcher_step(batcher), MP_OK);
        if (turn == 0)
            memcpy(first, r.ids, sizeof(first));
        CHECK(memcmp(first, r.ids, sizeof(first)) == 0);
        CHECK_EQ(r.reused, 0);
        mp_batcher_drop_idle(batcher, 0);
        CHECK_EQ(mp_batcher_stats(batcher)->kv_bytes, 0);
        CHECK(touched_bytes() > 0);
    }
    CHECK(fault_end() > 0);
    close_all();
}

/* Where sequences cannot go back, one that gave up what it held, or was put off, begins anew. */
static void sequences_with_states_share_room(void)
{
    for (uint32_t bound = 0; bound <= 1; bound++) {
        uint64_t budget;

        open_on("tests/data/models/qwen3_next-a", 0);
        budget = bound ? 3 * bytes_of(60 + 64) : UINT64_MAX;
        if (bound)
            mp_batcher_set_kv_budget(batcher, budget, budget);
        for (uint32_t i = 0; i < JOBS; i++)
            submit_long(i, i % 2 ? count_of(i) : 60, i % 2 ? MORE : LONG, &results[i]);
        while (mp_batcher_busy(batcher)) {
            CHECK_EQ(mp_batcher_step(batcher), MP_OK);
            CHECK(mp_batcher_stats(batcher)->kv_bytes <= budget);
            CHECK(mp_batcher_stats(batcher)->steps < 5000);
        }
        CHECK_EQ(mp_batcher_stats(batcher)->put_off > 0, bound);
        for (uint32_t i = 0; i < JOBS; i++) {
            CHECK(results[i].ends == 1 && results[i].error.status == MP_OK);
            if (!bound)
                memcpy(wanted[i], results[i].ids, sizeof(wanted[i]));
            CHECK(memcmp(results[i].ids, wanted[i], sizeof(wanted[i])) == 0);
        }
        close_all();
    }
}

int main(void)
{
    RUN(pages_are_counted_as_they_come);
    RUN(jobs_wait_for_room_and_all_end);
    RUN(jobs_take_room_as_they_need_it);
    RUN(all_are_paused_until_there_is_more);
    RUN(what_never_has_room_is_refused);
    RUN(a_large_job_does_not_starve);
    RUN(free_sequences_give_up_what_they_hold);
    RUN(pages_that_stay_do_no_harm);
    RUN(sequences_with_states_share_room);
    return 0;
}
