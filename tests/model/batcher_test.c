/*
 * Jobs that join and leave a running batch: each has the ids and the text of a run of its prompt
 * alone, whatever runs beside it, however its prompt is cut, and whatever a sequence still holds of
 * an earlier one. Then refusals, cancels, restricted logits, a broken engine, no memory.
 */
#include "engine/batch/batcher.h"

#include <math.h>

#include "tests/model/generate.h"
#include "tests/support/fault/wrap.h"

#define JOBS 40
#define MORE 12 /* tokens of each answer */

struct result {
    uint32_t ids[MORE];
    size_t count;
    char text[1024];
    size_t text_bytes;
    uint64_t reused;
    int ends;
    enum mp_finish finish;
    struct mp_error error;
    const uint32_t *allowed; /* tokens that restrict() allows, or NULL */
    size_t allowed_count, end_after;
    uint32_t vocab, seen, shown;
};

static void take_text(void *ctx, const char *text, size_t bytes, uint64_t tokens)
{
    struct result *r = ctx;

    CHECK(bytes > 0 && tokens > 0 && r->ends == 0 && r->text_bytes + bytes < sizeof(r->text));
    memcpy(r->text + r->text_bytes, text, bytes);
    r->text_bytes += bytes;
}

static void take_end(void *ctx, const struct mp_job_end *end)
{
    struct result *r = ctx;

    r->ends++;
    r->count = end->output->ids.count;
    CHECK(r->count <= MORE);
    if (r->count > 0)
        memcpy(r->ids, end->output->ids.ids, r->count * sizeof(uint32_t));
    if (end->output->text != NULL && end->error == NULL) {
        CHECK_EQ(end->output->text_bytes, r->text_bytes);
        CHECK(memcmp(end->output->text, r->text, r->text_bytes) == 0);
    }
    r->finish = end->output->finish;
    r->reused = end->reused_tokens;
    CHECK(end->all_ns >= end->first_ns && end->all_ns >= end->waited_ns);
    if (end->error != NULL)
        r->error = *end->error;
}

static struct mp_batcher_config batcher_config(struct harness *h, const struct mp_tokenizer *tok,
                                               uint32_t chunk)
{
    return (struct mp_batcher_config){ .engine = h->engine,
                                       .engine_config = &h->config,
                                       .tokenizer = tok,
                                       .chunk_tokens = chunk,
                                       .clock = mp_clock_monotonic() };
}

static struct mp_batcher *open_batcher(struct harness *h, const struct mp_tokenizer *tok,
                                       uint32_t chunk)
{
    const struct mp_batcher_config config = batcher_config(h, tok, chunk);
    struct mp_batcher *b;

    CHECK_EQ(mp_batcher_create(&config, &b), MP_OK);
    return b;
}

static struct mp_job_config job_of(const struct mp_ids *prompt, struct result *result)
{
    return (struct mp_job_config){
        .prompt = prompt->ids,
        .prompt_count = prompt->count,
        .sampling = { .temperature = 0.9, .top_p = 0.95, .seed = 7 },
        .max_tokens = MORE,
        .ignore_eos = true,
        .on_text = take_text,
        .on_end = take_end,
        .ctx = result,
    };
}

static struct mp_job *submit(struct mp_batcher *b, const struct mp_job_config *config)
{
    struct mp_job *job;

    CHECK_EQ(mp_batcher_submit(b, config, &job), MP_OK);
    return job;
}

static void run_all(struct mp_batcher *b)
{
    while (mp_batcher_busy(b))
        CHECK_EQ(mp_batcher_step(b), MP_OK);
}

/* Prompts of which some begin like others. */
static struct mp_ids long_prompt(uint32_t i, uint32_t vocab, uint32_t *ids)
{
    const size_t count = 1 + (i * 13) % 50;

    for (size_t k = 0; k < count; k++)
        ids[k] = (uint32_t)(((k < 30 ? i % 3 : i) * 131 + k * 17 + 5) % vocab);
    return (struct mp_ids){ .ids = ids, .count = count };
}

static uint32_t storage[JOBS][64], wanted[JOBS][MORE];
static struct mp_ids prompts[JOBS];
static struct result results[JOBS];

/* What each prompt gives alone. */
static void run_alone(struct harness *h)
{
    for (uint32_t i = 0; i < JOBS; i++) {
        struct mp_generate_config config = config_of(h, MORE);
        struct mp_generate_stats stats;
        struct mp_output out = { 0 };

        prompts[i] = long_prompt(i, h->model.vocab, storage[i]);
        config.ignore_eos = true;
        config.on_text = NULL;
        config.on_logits = NULL;
        config.sampling = (struct mp_sampling){ .temperature = 0.9, .top_p = 0.95, .seed = 7 };
        CHECK_EQ(mp_generate(&config, &prompts[i], 1, &out, &stats), MP_OK);
        memcpy(wanted[i], out.ids.ids, sizeof(wanted[i]));
        mp_outputs_free(&out, 1);
    }
}

static void check_all(void)
{
    for (uint32_t i = 0; i < JOBS; i++) {
        CHECK_EQ(results[i].ends, 1);
        CHECK_EQ(results[i].finish, MP_FINISH_LENGTH);
        CHECK_EQ(results[i].count, MORE);
        CHECK(memcmp(results[i].ids, wanted[i], sizeof(wanted[i])) == 0);
    }
}

static void jobs_in_company_are_as_alone(void)
{
    static const uint32_t sequences[] = { 1, 2, 5, 8 }, chunks[] = { 1, 3, 16, 64 };

    for (size_t n = 0; n < MP_ARRAY_LEN(sequences); n++) {
        const struct mp_batcher_stats *stats;
        struct mp_batcher *b;
        uint64_t reused = 0;
        uint32_t next = 0;
        struct harness h;

        open_model(&h, FIXTURE, sequences[n], 80, 24, 2);
        run_alone(&h);
        b = open_batcher(&h, NULL, chunks[n]);
        memset(results, 0, sizeof(results));
        /* One more every other step, so that some wait, some are read and some generate. */
        for (uint32_t step = 0; next < JOBS || mp_batcher_busy(b); step++) {
            if (step % 2 == 0 && next < JOBS) {
                const struct mp_job_config config = job_of(&prompts[next], &results[next]);

                submit(b, &config);
                next++;
            }
            CHECK_EQ(mp_batcher_step(b), MP_OK);
        }
        check_all();
        for (uint32_t i = 0; i < JOBS; i++)
            reused += results[i].reused;
        stats = mp_batcher_stats(b);
        CHECK_EQ(stats->submitted, JOBS);
        CHECK_EQ(stats->ended, JOBS);
        CHECK_EQ(stats->waiting + stats->running + stats->failed + stats->canceled, 0);
        CHECK_EQ(stats->generated_tokens, JOBS * MORE);
        CHECK_EQ(stats->reused_tokens, reused);
        CHECK(reused > 0 || sequences[n] < 4); /* one prompt in three begins like another */
        mp_batcher_destroy(b);
        harness_close(&h);
    }
}

/* A prompt that another sequence is still generating from: its keys and values are copied. */
static void a_running_sequence_gives_its_beginning(void)
{
    struct result one = { 0 }, two = { 0 };
    struct mp_job_config config;
    struct mp_batcher *b;
    struct harness h;

    open_model(&h, FIXTURE, 2, 80, 80, 2);
    run_alone(&h);
    b = open_batcher(&h, NULL, 8);
    CHECK_EQ(prompts[3].count, 40);
    config = job_of(&prompts[3], &one);
    submit(b, &config);
    CHECK_EQ(mp_batcher_step(b), MP_OK);
    config.ctx = &two;
    submit(b, &config);
    run_all(b);
    CHECK_EQ(one.reused, 0);
    CHECK_EQ(two.reused, 39);
    CHECK(memcmp(one.ids, wanted[3], sizeof(one.ids)) == 0);
    CHECK(memcmp(two.ids, wanted[3], sizeof(two.ids)) == 0);
    mp_batcher_destroy(b);
    harness_close(&h);
}

/* Prompts in turn on fewer sequences than there are prompts: what a sequence held is kept, and the
 * bits are the same. Without room they are read anew. */
static void kept_prompts_come_back(void)
{
    static const uint64_t budgets[] = { 64 << 20, 0 };
    static const uint32_t turns[] = { 3, 4, 9, 3, 4, 9, 15, 3, 9, 4 }; /* 9 and 15 begin like 3 */

    for (size_t n = 0; n < MP_ARRAY_LEN(budgets); n++) {
        struct mp_batcher_config config;
        const struct mp_prefix_stats *kept;
        struct mp_batcher *b;
        uint64_t reused = 0;
        struct harness h;

        open_model(&h, FIXTURE, 1, 80, 80, 2);
        run_alone(&h);
        config = batcher_config(&h, NULL, 8);
        config.prefix_bytes = budgets[n];
        config.prefix_step_bytes = 4000;
        CHECK_EQ(mp_batcher_create(&config, &b), MP_OK);
        for (size_t i = 0; i < MP_ARRAY_LEN(turns); i++) {
            struct result r = { 0 };
            const struct mp_job_config job = job_of(&prompts[turns[i]], &r);

            submit(b, &job);
            run_all(b);
            CHECK(memcmp(r.ids, wanted[turns[i]], sizeof(r.ids)) == 0);
            reused += r.reused;
            /* All blocks but one at most, which may not be worth it. */
            if (n == 0 && i >= 3 && i != 6)
                CHECK(r.reused + 16 >= (prompts[turns[i]].count - 1) / 16 * 16);
        }
        kept = mp_prefix_store_stats(mp_batcher_prefixes(b));
        CHECK(kept->bytes <= budgets[n]);
        CHECK_EQ(kept->found_tokens > 0, n == 0);
        CHECK_EQ(reused > 100, n == 0);
        CHECK_EQ(mp_batcher_stats(b)->reused_tokens, reused);
        CHECK(mp_batcher_stats(b)->prompt_ns > 0);
        CHECK(mp_batcher_stats(b)->prompt_ns <= mp_batcher_stats(b)->step_ns);
        mp_batcher_destroy(b);
        harness_close(&h);
    }
}

static uint32_t order[16], ended;

static void note_order(void *ctx, const struct mp_job_end *end)
{
    take_end(ctx, end);
    order[ended++] = (uint32_t)((struct result *)ctx - results);
}

/* One sequence, which holds prompt 3: jobs with that prompt go before an older one with another,
 * but only so many; then the old ones' turn has come. */
static void waiting_jobs_are_overtaken_so_often_only(void)
{
    static const uint32_t wanted_order[] = { 0, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2, 11, 12 };
    struct mp_batcher *b;
    struct harness h;

    open_model(&h, FIXTURE, 1, 80, 80, 2);
    run_alone(&h);
    b = open_batcher(&h, NULL, 8);
    memset(results, 0, sizeof(results));
    ended = 0;
    for (uint32_t i = 0; i < MP_ARRAY_LEN(wanted_order); i++) {
        struct mp_job_config config = job_of(&prompts[i == 1 || i == 2 ? i + 3 : 3], &results[i]);

        config.on_end = note_order;
        submit(b, &config);
        if (i == 0)
            CHECK_EQ(mp_batcher_step(b), MP_OK); /* it runs, the others wait */
    }
    run_all(b);
    CHECK_EQ(ended, MP_ARRAY_LEN(wanted_order));
    for (uint32_t i = 0; i < ended; i++) {
        const struct result *r = &results[order[i]];

        CHECK_EQ(order[i], wanted_order[i]);
        CHECK_EQ(r->reused >= 32, i > 0 && i != 9 && i != 10 && i != 11);
        CHECK(memcmp(r->ids, wanted[order[i] == 1 || order[i] == 2 ? order[i] + 3 : 3],
                     sizeof(r->ids)) == 0);
    }
    mp_batcher_destroy(b);
    harness_close(&h);
}

/* Random numbers are those of the same sequence of a run. */
static void choices_are_the_sequences_of_a_run(void)
{
    struct mp_generate_config config;
    struct mp_output out[3] = { { .text = NULL } };
    struct mp_ids same[3];
    struct mp_generate_stats stats;
    struct mp_batcher *b;
    struct harness h;

    open_model(&h, FIXTURE, 3, 80, 24, 2);
    run_alone(&h);
    for (int i = 0; i < 3; i++)
        same[i] = prompts[5];
    config = config_of(&h, MORE);
    config.ignore_eos = true;
    config.on_text = NULL;
    config.sampling = (struct mp_sampling){ .temperature = 0.9, .top_p = 0.95, .seed = 7 };
    CHECK_EQ(mp_generate(&config, same, 3, out, &stats), MP_OK);
    b = open_batcher(&h, NULL, 8);
    memset(results, 0, sizeof(results));
    for (uint32_t i = 0; i < 3; i++) {
        struct mp_job_config job = job_of(&prompts[5], &results[i]);

        job.choice = i;
        submit(b, &job);
    }
    run_all(b);
    for (uint32_t i = 0; i < 3; i++)
        CHECK(memcmp(results[i].ids, out[i].ids.ids, sizeof(results[i].ids)) == 0);
    CHECK(memcmp(results[0].ids, results[1].ids, sizeof(results[0].ids)) != 0);
    mp_outputs_free(out, 3);
    mp_batcher_destroy(b);
    harness_close(&h);
}

static void texts_and_stop_strings_are_those_of_a_run(void)
{
    static const char question[] = "def main(";
    struct mp_ids prompt = { 0 };
    struct result free_text = { 0 }, stopped = { 0 }, whole = { 0 };
    struct mp_tokenizer *tok;
    struct mp_job_config config;
    struct mp_batcher *b;
    struct harness h;
    char *stop;

    CHECK_EQ(mp_tokenizer_load(TINY, &tok), MP_OK);
    open_model(&h, TINY, 2, 128, 16, 2);
    CHECK_EQ(mp_tokenizer_encode(tok, question, strlen(question), 0, &prompt), MP_OK);
    b = open_batcher(&h, tok, 16);
    config = job_of(&prompt, &free_text);
    config.sampling = (struct mp_sampling){ .top_p = 1 };
    submit(b, &config);
    run_all(b);
    CHECK(free_text.text_bytes > 4);
    stop = strndup(free_text.text + 2, 2);
    config.ctx = &stopped;
    config.stops = (const char *const *)&stop;
    config.stop_count = 1;
    submit(b, &config);
    *stop = '\0'; /* the job has its own copy */
    run_all(b);
    CHECK_EQ(stopped.finish, MP_FINISH_STOP);
    CHECK(stopped.text_bytes <= 2 && memcmp(stopped.text, free_text.text, stopped.text_bytes) == 0);
    config.ctx = &whole;
    config.stop_count = 0;
    submit(b, &config);
    CHECK_EQ(mp_batcher_step(b), MP_OK);
    CHECK_EQ(mp_batcher_step(b), MP_OK);
    mp_batcher_interrupt(b);
    CHECK_EQ(whole.finish, MP_FINISH_INTERRUPTED);
    CHECK(whole.count > 0 && whole.count < MORE);
    CHECK(memcmp(whole.ids, free_text.ids, whole.count * sizeof(uint32_t)) == 0);
    CHECK(!mp_batcher_busy(b));
    free(stop);
    mp_batcher_destroy(b);
    mp_ids_free(&prompt);
    mp_tokenizer_destroy(tok);
    harness_close(&h);
}

/* A restriction without a list fails. */
static enum mp_status allow_some(void *ctx, float *logits)
{
    struct result *r = ctx;

    if (r->allowed == NULL)
        return mp_fail(MP_ERR_INVALID, "E_BATCH", "a restriction that fails");
    for (uint32_t i = 0; i < r->vocab; i++) {
        bool allowed = false;

        for (size_t k = 0; k < r->allowed_count; k++)
            allowed = allowed || r->allowed[k] == i;
        if (!allowed)
            logits[i] = -INFINITY;
    }
    return MP_OK;
}

static enum mp_status see_chosen(void *ctx, uint32_t token, bool *end_p)
{
    struct result *r = ctx;
    bool allowed = false;

    for (size_t k = 0; k < r->allowed_count; k++)
        allowed = allowed || r->allowed[k] == token;
    CHECK(allowed);
    *end_p = ++r->seen == r->end_after;
    return MP_OK;
}

/* A special token is text where the job says so, and only the one that it names. */
static void special_tokens_are_text_if_asked_for(void)
{
    static const uint32_t words[] = { 2046 };
    struct mp_ids prompt = { 0 };
    struct result named = { 0 }, other = { 0 };
    struct mp_tokenizer *tok;
    struct mp_job_config config;
    struct mp_batcher *b;
    struct harness h;

    CHECK_EQ(mp_tokenizer_load(TINY, &tok), MP_OK);
    open_model(&h, TINY, 2, 128, 16, 2);
    CHECK_EQ(mp_tokenizer_encode(tok, "a", 1, 0, &prompt), MP_OK);
    b = open_batcher(&h, tok, 16);
    named.allowed = other.allowed = words;
    named.allowed_count = other.allowed_count = 1;
    named.vocab = other.vocab = h.model.vocab;
    named.end_after = other.end_after = 2;
    config = job_of(&prompt, &named);
    config.restrict_logits = allow_some;
    config.chosen = see_chosen;
    config.shown = words;
    config.shown_count = 1;
    submit(b, &config);
    config.ctx = &other;
    config.shown_count = 0;
    submit(b, &config);
    run_all(b);
    CHECK_STR(named.text, "<|im_start|><|im_start|>");
    CHECK_EQ(other.text_bytes, 0);
    mp_batcher_destroy(b);
    mp_ids_free(&prompt);
    mp_tokenizer_destroy(tok);
    harness_close(&h);
}

static void cancelled_jobs_leave_the_others_alone(void)
{
    struct mp_job *jobs[JOBS];
    struct mp_batcher *b;
    struct harness h;

    open_model(&h, FIXTURE, 4, 80, 24, 2);
    run_alone(&h);
    b = open_batcher(&h, NULL, 8);
    memset(results, 0, sizeof(results));
    for (uint32_t i = 0; i < JOBS; i++) {
        const struct mp_job_config config = job_of(&prompts[i], &results[i]);

        jobs[i] = submit(b, &config);
    }
    for (uint32_t i = 0; i < 6; i++)
        CHECK_EQ(mp_batcher_step(b), MP_OK);
    for (uint32_t i = 0; i < JOBS; i += 2) /* the last one, waiting ones and running ones */
        if (results[i].ends == 0)
            mp_batcher_cancel(b, jobs[i]);
    if (results[JOBS - 1].ends == 0)
        mp_batcher_cancel(b, jobs[JOBS - 1]);
    run_all(b);
    for (uint32_t i = 1; i + 1 < JOBS; i += 2)
        CHECK(results[i].ends == 1 && memcmp(results[i].ids, wanted[i], sizeof(wanted[i])) == 0);
    CHECK_EQ(results[JOBS - 1].ends, 0);
    CHECK(mp_batcher_stats(b)->canceled > JOBS / 3);
    CHECK_EQ(mp_batcher_stats(b)->running, 0);
    CHECK_EQ(mp_batcher_stats(b)->waiting, 0);
    mp_batcher_destroy(b);
    harness_close(&h);
}

static void what_cannot_be_is_refused(void)
{
    static const char *const empty[] = { "" }, *const broken[] = { "\xff" };
    uint32_t ids[80] = { 1 };
    const struct mp_ids prompt = { .ids = ids, .count = 80 };
    struct mp_job *job = NULL;
    struct result r = { 0 };
    struct mp_job_config config = job_of(&prompt, &r);
    struct mp_batcher *b;
    struct harness h;

    open_model(&h, FIXTURE, 1, 80, 24, 1);
    b = open_batcher(&h, NULL, 8);
    CHECK_EQ(mp_batcher_submit(b, &config, &job), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_PROMPT_LONG");
    config.prompt_count = 0;
    CHECK_EQ(mp_batcher_submit(b, &config, &job), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_PROMPT_EMPTY");
    config.prompt_count = 3;
    config.sampling.top_p = 0;
    CHECK_EQ(mp_batcher_submit(b, &config, &job), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_SAMPLING");
    config.sampling.top_p = 1;
    config.stops = empty;
    config.stop_count = 1;
    CHECK_EQ(mp_batcher_submit(b, &config, &job), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_STOP_EMPTY");
    config.stops = broken;
    CHECK_EQ(mp_batcher_submit(b, &config, &job), MP_ERR_CONFIG);
    CHECK_STR(mp_error_last()->code, "E_STOP_UTF8");
    CHECK(job == NULL && !mp_batcher_busy(b));
    CHECK_EQ(mp_batcher_step(b), MP_OK);
    mp_batcher_destroy(b);
    harness_close(&h);
}

/* Each token is shown once, in order, with logits that no restriction has touched. */
static enum mp_status see_logits(void *ctx, uint32_t token, const float *logits)
{
    struct result *r = ctx;

    CHECK(token < r->vocab);
    for (uint32_t i = 0; i < r->vocab; i++)
        CHECK(isfinite(logits[i]));
    CHECK(r->shown < MORE);
    r->ids[r->shown++] = token;
    return r->shown == r->end_after + 3 ? mp_fail(MP_ERR_NO_MEMORY, "E_SHOW", "enough") : MP_OK;
}

static void tokens_are_shown_with_the_models_logits(void)
{
    static const uint32_t some[] = { 3, 17, 40 };
    struct result limited = { .allowed = some, .allowed_count = 3, .end_after = 5 };
    struct result failing = { .end_after = 1 };
    struct mp_job_config config;
    struct mp_batcher *b;
    struct harness h;

    open_model(&h, FIXTURE, 2, 80, 24, 2);
    run_alone(&h);
    b = open_batcher(&h, NULL, 8);
    limited.vocab = failing.vocab = h.model.vocab;
    config = job_of(&prompts[2], &limited);
    config.restrict_logits = allow_some;
    config.chosen = see_chosen;
    config.on_token = see_logits;
    submit(b, &config);
    config = job_of(&prompts[4], &failing);
    config.on_token = see_logits;
    submit(b, &config);
    run_all(b);
    CHECK_EQ(limited.finish, MP_FINISH_EOS);
    CHECK_EQ(limited.shown, 5); /* the last one is no end token: its restriction ended it */
    CHECK_STR(failing.error.code, "E_SHOW");
    CHECK_EQ(failing.shown, 4);
    CHECK(memcmp(failing.ids, wanted[4], 4 * sizeof(uint32_t)) == 0);
    mp_batcher_destroy(b);
    harness_close(&h);
}

static void an_end_token_is_not_shown(void)
{
    struct mp_model_config *model;
    struct result r = { 0 };
    struct mp_job_config config;
    struct mp_batcher *b;
    struct harness h;

    open_model(&h, FIXTURE, 1, 80, 24, 2);
    run_alone(&h);
    model = &h.model;
    b = open_batcher(&h, NULL, 8);
    r.vocab = model->vocab;
    r.end_after = MORE;
    model->eos_count = 1;
    model->eos[0] = wanted[4][6];
    config = job_of(&prompts[4], &r);
    config.ignore_eos = false;
    config.on_token = see_logits;
    submit(b, &config);
    run_all(b);
    CHECK_EQ(r.finish, MP_FINISH_EOS);
    CHECK_EQ(r.shown + 1, r.count);
    CHECK(r.count <= 7);
    mp_batcher_destroy(b);
    harness_close(&h);
}

/* A job that fails, by logits or by its restriction, ends alone; ctx ends the longest. */
static void restrictions_hold_for_their_job_only(void)
{
    static const uint32_t some[] = { 3, 17, 40 };
    struct result limited = { .allowed = some, .allowed_count = 3, .end_after = 5 };
    struct result broken = { 0 }, empty = { .allowed = some };
    struct result *const all[] = { &limited, &broken, &empty };
    struct mp_batcher *b;
    struct harness h;

    open_model(&h, FIXTURE, 4, 80, 24, 2);
    run_alone(&h);
    b = open_batcher(&h, NULL, 8);
    memset(results, 0, sizeof(results));
    for (size_t i = 0; i < 3; i++) {
        struct mp_job_config config = job_of(&prompts[2], all[i]);

        all[i]->vocab = h.model.vocab;
        config.restrict_logits = allow_some;
        config.chosen = see_chosen;
        submit(b, &config);
    }
    for (uint32_t i = 0; i < JOBS; i++) {
        const struct mp_job_config config = job_of(&prompts[i], &results[i]);

        submit(b, &config);
    }
    run_all(b);
    CHECK_EQ(limited.finish, MP_FINISH_EOS);
    CHECK_EQ(limited.count, 5);
    CHECK_STR(broken.error.code, "E_BATCH");
    CHECK_STR(empty.error.code, "E_LOGITS_NAN");
    check_all();
    CHECK_EQ(mp_batcher_stats(b)->failed, 2);
    mp_batcher_destroy(b);
    harness_close(&h);
}

/* The engine fails: the jobs of that step end with its error, the next ones are as if nothing had
 * been. */
static void a_failed_step_ends_its_jobs(void)
{
    static volatile sig_atomic_t cancel;
    struct mp_batcher *b;
    struct harness h;

    open_model(&h, FIXTURE, 2, 80, 24, 2);
    run_alone(&h);
    harness_close(&h);
    open_model(&h, FIXTURE, 2, 80, 24, 2);
    mp_engine_destroy(h.engine);
    h.config.cancel = &cancel;
    CHECK_EQ(mp_engine_create(&h.config, &h.engine), MP_OK);
    b = open_batcher(&h, NULL, 8);
    memset(results, 0, sizeof(results));
    for (uint32_t i = 0; i < JOBS; i++) {
        const struct mp_job_config config = job_of(&prompts[i], &results[i]);

        submit(b, &config);
    }
    CHECK_EQ(mp_batcher_step(b), MP_OK);
    cancel = 1;
    CHECK_EQ(mp_batcher_step(b), MP_ERR_CANCELED);
    cancel = 0;
    for (uint32_t i = 0; i < 2; i++) {
        CHECK_EQ(results[i].ends, 1);
        CHECK_STR(results[i].error.code, "E_CANCELED");
    }
    run_all(b);
    for (uint32_t i = 2; i < JOBS; i++)
        CHECK(results[i].ends == 1 && memcmp(results[i].ids, wanted[i], sizeof(wanted[i])) == 0);
    mp_batcher_destroy(b);
    harness_close(&h);
}

/* Each allocation fails once: in the making, at a submission, and while a text grows. */
static void no_memory_is_an_error_of_one_job(void)
{
    static const char *const stops[] = { "never there" };
    struct mp_tokenizer *tok;
    uint32_t ids[4] = { 1, 2, 3, 4 };
    const struct mp_ids prompt = { .ids = ids, .count = 4 };
    struct harness h;
    uint64_t n;

    CHECK_EQ(mp_tokenizer_load(TINY, &tok), MP_OK);
    open_model(&h, TINY, 1, 80, 24, 1);
    for (n = 0;; n++) {
        const struct mp_batcher_config config = batcher_config(&h, tok, 8);
        struct mp_batcher *b = NULL;
        struct mp_job *job = NULL;
        struct result r = { 0 };
        struct mp_job_config jc = job_of(&prompt, &r);
        enum mp_status status;

        jc.stops = stops;
        jc.stop_count = 1;
        fault_nth(FAULT_ALLOCATIONS, n);
        status = mp_batcher_create(&config, &b);
        if (status == MP_OK)
            status = mp_batcher_submit(b, &jc, &job);
        while (status == MP_OK && mp_batcher_busy(b))
            status = mp_batcher_step(b);
        if (fault_end() == 0) {
            CHECK_EQ(status, MP_OK);
            CHECK_EQ(r.count, MORE);
            mp_batcher_destroy(b);
            break;
        }
        CHECK(status == MP_ERR_NO_MEMORY || r.error.status == MP_ERR_NO_MEMORY);
        mp_batcher_destroy(b);
    }
    CHECK(n >= 8);
    mp_tokenizer_destroy(tok);
    harness_close(&h);
}

int main(void)
{
    RUN(jobs_in_company_are_as_alone);
    RUN(a_running_sequence_gives_its_beginning);
    RUN(kept_prompts_come_back);
    RUN(waiting_jobs_are_overtaken_so_often_only);
    RUN(choices_are_the_sequences_of_a_run);
    RUN(texts_and_stop_strings_are_those_of_a_run);
    RUN(special_tokens_are_text_if_asked_for);
    RUN(cancelled_jobs_leave_the_others_alone);
    RUN(what_cannot_be_is_refused);
    RUN(restrictions_hold_for_their_job_only);
    RUN(tokens_are_shown_with_the_models_logits);
    RUN(an_end_token_is_not_shown);
    RUN(a_failed_step_ends_its_jobs);
    RUN(no_memory_is_an_error_of_one_job);
    return 0;
}
