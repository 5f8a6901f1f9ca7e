/*
 * Generation with drafts or lookahead gives the tokens and the bits of the logits of one without:
 * greedy and sampled, at several budgets, for one sequence and several, up to the last position of
 * the context; and the tokens after a guess have the model's distribution.
 */
#include <math.h>

#include "engine/session/generate.h"
#include "tests/model/generate.h"
#include "tests/support/test.h"

#define TOKENS 96
#define PROMPT 40

struct text {
    uint32_t id[4][TOKENS];
    size_t count[4];
    enum mp_finish finish[4];
    uint64_t sum; /* of the bits of all logits, by sequence and step */
};

static uint64_t logits_sum;

static enum mp_status sum_logits(void *ctx, uint32_t sequence, uint32_t step, const float *logits)
{
    uint32_t bits;

    (void)ctx;
    for (uint32_t i = 0; i < 97; i++) {
        memcpy(&bits, &logits[i], sizeof(bits));
        logits_sum += (uint64_t)bits * (2 * (sequence * 1000 + step * 100 + i) + 1);
    }
    return MP_OK;
}

/* Always the same wrong or right guesses, to force every kind of step. */
struct told {
    struct mp_draft_source super;
    const struct text *truth;
    bool all_right;
    uint32_t at[4]; /* generated tokens */
    uint32_t prompt;
    uint64_t state;
};

static void told_begin(struct mp_draft_source *source)
{
    memset(((struct told *)source)->at, 0, sizeof(((struct told *)source)->at));
}

static void told_push(struct mp_draft_source *source, uint32_t text, uint32_t token)
{
    (void)token;
    ((struct told *)source)->at[text]++;
}

/* Right with probability 3/4, or always. */
static enum mp_status told_guess(struct mp_draft_source *source, uint32_t text, uint32_t most,
                                 struct mp_draft *draft)
{
    struct told *told = (struct told *)source;
    const uint32_t next = told->at[text] - told->prompt;

    draft->count = most;
    for (uint32_t i = 0; i < most; i++) {
        told->state = told->state * 6364136223846793005u + 1442695040888963407u;
        draft->kind[i] = 0;
        draft->token[i] = next + i < TOKENS ? told->truth->id[text][next + i] : 0;
        if (!told->all_right && (told->state >> 33) % 4 == 0 && draft->token[i] > 0)
            draft->token[i]--;
    }
    return MP_OK;
}

static void told_destroy(struct mp_draft_source *source)
{
    (void)source;
}

static const struct mp_draft_source_ops told_ops = {
    .name = "told",
    .begin = told_begin,
    .push = told_push,
    .guess = told_guess,
    .destroy = told_destroy,
};

struct setup {
    uint64_t budget_bytes;
    uint32_t sequences, ctx, guesses, lookahead;
    double temperature;
    bool deterministic;
    const struct text *truth; /* guesses from it; NULL: looked up in the text */
    bool unchecked;           /* they are right, and only for the lookahead */
};

static uint64_t last_hits; /* of the last run */

static struct mp_drafts_stats run(const struct setup *setup, struct text *text)
{
    struct harness_options options = harness_defaults(TINY);
    struct told told = { .super = { .ops = &told_ops },
                         .truth = setup->truth,
                         .all_right = setup->unchecked,
                         .prompt = PROMPT };
    struct mp_drafts_config drafts = { .source = &told.super,
                                       .sequences = setup->sequences,
                                       .most = setup->guesses,
                                       .ahead = setup->lookahead,
                                       .always = true };
    uint32_t storage[4][PROMPT];
    struct mp_output outputs[4] = { 0 };
    struct mp_generate_stats stats;
    struct mp_generate_config config;
    struct mp_ids prompts[4];
    struct harness h;

    options.budget_bytes = setup->budget_bytes;
    options.sequences = setup->sequences;
    options.ctx = setup->ctx;
    options.deterministic = setup->deterministic;
    options.lookahead = setup->lookahead;
    options.wanted_max = setup->sequences * (1 + (setup->unchecked ? 0 : setup->guesses));
    harness_open(&options, &h);
    for (uint32_t s = 0; s < setup->sequences; s++) {
        for (uint32_t i = 0; i < PROMPT; i++)
            storage[s][i] = (s * 311 + i % 10 * 41) % h.model.vocab;
        prompts[s] = (struct mp_ids){ .ids = storage[s], .count = PROMPT };
    }
    config = config_of(&h, TOKENS);
    config.on_logits = sum_logits;
    config.on_text = NULL;
    config.ignore_eos = true;
    config.sampling =
        (struct mp_sampling){ .temperature = setup->temperature, .top_p = 0.95, .seed = 7 };
    if (setup->guesses > 0) {
        if (setup->truth == NULL)
            CHECK_EQ(mp_draft_lookup_create(setup->sequences, setup->ctx, &drafts.source), MP_OK);
        CHECK_EQ(mp_drafts_create(&drafts, &config.drafts), MP_OK);
    }
    logits_sum = 0;
    CHECK_EQ(mp_generate(&config, prompts, setup->sequences, outputs, &stats), MP_OK);
    CHECK(mp_pager_check(mp_engine_pager(h.engine)));
    last_hits = mp_engine_counters(h.engine)->hits;
    memset(text, 0, sizeof(*text));
    text->sum = logits_sum;
    for (uint32_t s = 0; s < setup->sequences; s++) {
        text->count[s] = outputs[s].ids.count;
        text->finish[s] = outputs[s].finish;
        memcpy(text->id[s], outputs[s].ids.ids, text->count[s] * sizeof(uint32_t));
    }
    CHECK_EQ(stats.drafts.accepted + stats.decode_steps <= stats.generated_tokens, true);
    mp_outputs_free(outputs, 4);
    mp_drafts_destroy(config.drafts);
    harness_close(&h);
    return stats.drafts;
}

static void drafts_change_no_bit(void)
{
    static const uint64_t budgets[] = { 2 * 73728, 26 * 73728, 64 * 73728, UINT64_MAX };
    static const double temperatures[] = { 0, 0.8 };

    for (size_t t = 0; t < 2; t++) {
        for (uint32_t sequences = 1; sequences <= 3; sequences += 2) {
            struct setup setup = { UINT64_MAX,      sequences, 160,  0,    0,
                                   temperatures[t], false,     NULL, false };
            struct text plain, drafted;

            run(&setup, &plain);
            for (size_t b = 0; b < MP_ARRAY_LEN(budgets); b++) {
                struct mp_drafts_stats stats;

                setup.budget_bytes = budgets[b];
                setup.guesses = b % 2 == 0 ? 3 : 8;
                setup.deterministic = b == 1;
                setup.lookahead = b;
                setup.truth = NULL;
                run(&setup, &drafted);
                CHECK(memcmp(&plain, &drafted, sizeof(plain)) == 0);
                setup.truth = &plain;
                stats = run(&setup, &drafted);
                CHECK(memcmp(&plain, &drafted, sizeof(plain)) == 0);
                CHECK(stats.accepted > stats.drafted / 5 && stats.accepted < stats.drafted);
            }
        }
    }
}

/* Ids are experts to read ahead; a repeated text finds more resident. */
static void lookahead_changes_hits_and_no_bit(void)
{
    struct setup setup = { UINT64_MAX, 1, 160, 0, 0, 0, true, NULL, false };
    struct text plain, ahead;
    uint64_t hits;

    run(&setup, &plain);
    setup.budget_bytes = 64 * 73728;
    run(&setup, &ahead);
    hits = last_hits;
    CHECK(memcmp(&plain, &ahead, sizeof(plain)) == 0);
    setup.lookahead = 4;
    run(&setup, &ahead);
    CHECK(memcmp(&plain, &ahead, sizeof(plain)) == 0);
    CHECK(last_hits > hits);
    setup.deterministic = false;
    run(&setup, &ahead);
    CHECK(memcmp(&plain, &ahead, sizeof(plain)) == 0);
}

/* The guessed ids of the next tokens say what their first layers choose, of one text or three. */
static void guesses_that_are_not_checked_are_read_ahead(void)
{
    for (uint32_t sequences = 1; sequences <= 3; sequences += 2) {
        struct setup setup = { 64 * 73728, sequences, 160, 0, 4, 0, true, NULL, false };
        struct mp_drafts_stats stats;
        struct text plain, ahead;
        uint64_t hits;

        run(&setup, &plain);
        hits = last_hits;
        setup.guesses = 1;
        setup.unchecked = true;
        setup.truth = &plain;
        stats = run(&setup, &ahead);
        CHECK_EQ(stats.drafted, 0);
        CHECK(memcmp(&plain, &ahead, sizeof(plain)) == 0);
        fprintf(stderr, "    %u: %llu hits without guesses, %llu with right ones\n", sequences,
                (unsigned long long)hits, (unsigned long long)last_hits);
        CHECK(last_hits > hits);
    }
}

static void the_last_position_of_the_context_is_used(void)
{
    struct setup setup = { UINT64_MAX, 1, PROMPT + 37, 0, 0, 0, false, NULL, false };
    struct text plain, drafted;

    run(&setup, &plain);
    CHECK_EQ(plain.finish[0], MP_FINISH_CTX);
    CHECK_EQ(plain.count[0], 38);
    setup.truth = &plain;
    for (setup.guesses = 1; setup.guesses <= 8; setup.guesses++) {
        run(&setup, &drafted);
        CHECK(memcmp(&plain, &drafted, sizeof(plain)) == 0);
    }
}

/* The second token of many generations, at which the same guess is always checked: how often it is
 * the guess, another even one, or another odd one, against the sum of the model's probabilities. */
#define RUNS 1500

static uint32_t the_guess; /* likely: what often comes second */

struct second {
    double expected[3], variance[3], count[3];
    uint32_t vocab;
};

static unsigned class_of(uint32_t token)
{
    return token == the_guess ? 0 : 1 + token % 2;
}

static enum mp_status expect_second(void *ctx, uint32_t sequence, uint32_t step,
                                    const float *logits)
{
    struct second *second = ctx;
    double p[3] = { 0 }, total = 0;

    (void)sequence;
    if (step != 1)
        return MP_OK;
    for (uint32_t i = 0; i < second->vocab; i++)
        p[class_of(i)] += exp((double)logits[i]);
    total = p[0] + p[1] + p[2];
    for (unsigned c = 0; c < 3; c++) {
        second->expected[c] += p[c] / total;
        second->variance[c] += p[c] / total * (1 - p[c] / total);
    }
    return MP_OK;
}

static enum mp_status guess_one(struct mp_draft_source *source, uint32_t text, uint32_t most,
                                struct mp_draft *draft)
{
    CHECK(source != NULL && text == 0 && most > 0);
    *draft = (struct mp_draft){ 1, { the_guess }, { 0 } };
    return MP_OK;
}

static uint32_t most_frequent(struct harness *h, const struct mp_ids *prompt)
{
    uint32_t count[2048] = { 0 }, best = 0;

    CHECK(h->model.vocab <= 2048);
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct mp_generate_config config = config_of(h, 2);
        struct mp_generate_stats stats;
        struct mp_output out = { 0 };

        config.sampling = (struct mp_sampling){ .temperature = 1, .top_p = 1, .seed = 5000 + seed };
        config.on_logits = NULL;
        config.on_text = NULL;
        config.on_prefill = NULL;
        config.ignore_eos = true;
        CHECK_EQ(mp_generate(&config, prompt, 1, &out, &stats), MP_OK);
        count[out.ids.ids[1]]++;
        mp_outputs_free(&out, 1);
    }
    for (uint32_t i = 0; i < 2048; i++)
        best = count[i] > count[best] ? i : best;
    return best;
}

static void tokens_at_a_guess_have_the_models_distribution(void)
{
    static const struct mp_draft_source_ops one = { .name = "one",
                                                    .begin = told_begin,
                                                    .push = told_push,
                                                    .guess = guess_one,
                                                    .destroy = told_destroy };
    static struct second second;
    uint32_t storage[] = { 40, 50, 60 };
    const struct mp_ids prompt = { .ids = storage, .count = 3 };
    struct told told = { .super = { .ops = &one } };
    const struct mp_drafts_config drafts = {
        .source = &told.super, .sequences = 1, .most = 1, .always = true
    };
    struct harness_options options = harness_defaults(TINY);
    uint64_t accepted = 0;
    struct harness h;

    options.wanted_max = 2;
    harness_open(&options, &h);
    second.vocab = h.model.vocab;
    the_guess = most_frequent(&h, &prompt);
    for (uint64_t seed = 0; seed < RUNS; seed++) {
        struct mp_generate_config config = config_of(&h, 3);
        struct mp_generate_stats stats;
        struct mp_output out = { 0 };

        config.sampling = (struct mp_sampling){ .temperature = 1, .top_p = 1, .seed = seed };
        config.on_logits = expect_second;
        config.ctx = &second;
        config.on_text = NULL;
        config.on_prefill = NULL;
        config.ignore_eos = true;
        CHECK_EQ(mp_drafts_create(&drafts, &config.drafts), MP_OK);
        CHECK_EQ(mp_generate(&config, &prompt, 1, &out, &stats), MP_OK);
        CHECK_EQ(stats.drafts.drafted, 1);
        accepted += stats.drafts.accepted;
        second.count[class_of(out.ids.ids[1])]++;
        mp_outputs_free(&out, 1);
        mp_drafts_destroy(config.drafts);
    }
    CHECK_EQ(accepted, (uint64_t)second.count[0]);
    CHECK(accepted > 20 && accepted < RUNS - 20);
    for (unsigned c = 0; c < 3; c++) {
        const double off = second.count[c] - second.expected[c];

        fprintf(stderr, "    %g, expected %.1f\n", second.count[c], second.expected[c]);
        CHECK(off * off < 4.75 * 4.75 * second.variance[c]);
    }
    harness_close(&h);
}

int main(void)
{
    RUN(drafts_change_no_bit);
    RUN(lookahead_changes_hits_and_no_bit);
    RUN(guesses_that_are_not_checked_are_read_ahead);
    RUN(the_last_position_of_the_context_is_used);
    RUN(tokens_at_a_guess_have_the_models_distribution);
    return 0;
}
