/*
 * Drafts: what is found in a text, when a draft pays by measured times and guesses, and how a plan
 * is cut to what sequences and batch have room for.
 */
#include "engine/session/draft/drafts.h"

#include "tests/support/test.h"

static struct mp_draft_source *lookup_of(const uint32_t *tokens, uint32_t count)
{
    struct mp_draft_source *source;

    CHECK_EQ(mp_draft_lookup_create(2, 64, &source), MP_OK);
    source->ops->begin(source);
    for (uint32_t i = 0; i < count; i++)
        source->ops->push(source, 1, tokens[i]);
    return source;
}

static struct mp_draft guess(struct mp_draft_source *source, uint32_t text, uint32_t most)
{
    struct mp_draft draft;

    CHECK_EQ(source->ops->guess(source, text, most, &draft), MP_OK);
    return draft;
}

static void the_longest_agreement_is_taken_and_of_equals_the_latest(void)
{
    static const uint32_t text[] = { 1, 2, 3, 40, 9, 2, 3, 50, 9, 2, 3, 51, 7, 1, 2, 3 };
    struct mp_draft_source *source = lookup_of(text, 16);
    struct mp_draft draft = guess(source, 1, 3);

    /* 1 2 3 is there once; 2 3 alone was followed by 51 last. */
    CHECK_EQ(draft.count, 3);
    CHECK_EQ(draft.token[0], 40);
    CHECK_EQ(draft.token[1], 9);
    CHECK_EQ(draft.token[2], 2);
    CHECK_EQ(draft.kind[0], 2);
    CHECK_EQ(draft.kind[2], 4);
    source->ops->push(source, 1, 9);
    source->ops->push(source, 1, 2);
    draft = guess(source, 1, 8);
    CHECK_EQ(draft.token[0], 3);
    CHECK_EQ(draft.token[1], 51); /* 3 9 2 is nowhere else; of 9 2 the later one */
    CHECK_EQ(draft.count, 8);
    source->ops->destroy(source);
}

static void a_repeated_text_is_continued_into_the_draft(void)
{
    static const uint32_t text[] = { 8, 5, 6, 5, 6 };
    struct mp_draft_source *source = lookup_of(text, 5);
    const struct mp_draft draft = guess(source, 1, 5);

    for (uint32_t i = 0; i < 5; i++)
        CHECK_EQ(draft.token[i], i % 2 == 0 ? 5 : 6);
    CHECK_EQ(draft.kind[4], 5);
    source->ops->destroy(source);
}

static void texts_are_apart_and_begin_anew(void)
{
    static const uint32_t text[] = { 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4 };
    struct mp_draft_source *source = lookup_of(text, 12);

    CHECK_EQ(guess(source, 0, 4).count, 0);
    CHECK_EQ(guess(source, 1, 4).count, 4);
    CHECK_EQ(guess(source, 1, 4).kind[0], MP_DRAFT_KINDS - 1);
    for (uint32_t i = 0; i < 200; i++) /* more than the text may have */
        source->ops->push(source, 1, i);
    CHECK_EQ(guess(source, 1, 4).count, 0);
    source->ops->begin(source);
    CHECK_EQ(guess(source, 1, 4).count, 0);
    source->ops->push(source, 1, 4);
    CHECK_EQ(guess(source, 1, 4).count, 0);
    source->ops->destroy(source);
}

static const struct mp_draft sure = { 4, { 0 }, { 7, 7, 7, 7 } };

/* Steps with a machine on which k guesses make a step `slope` * k longer; the mean k of the last
 * half. */
static double run_gain(struct mp_gain *gain, double slope, unsigned steps)
{
    const struct mp_draft *drafts[1] = { &sure };
    double sum = 0;

    for (unsigned i = 0; i < steps; i++) {
        const uint32_t k = mp_gain_choose(gain, drafts, 1, 4);

        CHECK(k <= 4);
        mp_gain_note_step(gain, k, (uint64_t)(1e6 * (1 + slope * k)));
        sum += i >= steps / 2 ? k : 0;
    }
    return sum / (steps - steps / 2);
}

static void a_draft_is_as_long_as_it_pays(void)
{
    struct mp_gain gain;

    mp_gain_init(&gain);
    for (unsigned i = 0; i < 200; i++)
        mp_gain_note_guess(&gain, 7, true);
    CHECK(mp_gain_tokens(&gain, &sure, 4) > 4.9);
    CHECK(mp_gain_tokens(&gain, &sure, 2) > 2.9);
    CHECK(run_gain(&gain, 0.1, 400) > 3.8);  /* all but the plain step in between */
    CHECK(run_gain(&gain, 1.5, 4000) < 0.1); /* and it is noticed when that ends */
    CHECK(gain.pause > 16);
    CHECK(run_gain(&gain, 0.1, 8000) > 3.5); /* and when it is true again */
}

static void wrong_guesses_do_not_pay(void)
{
    const struct mp_draft *drafts[1] = { &sure };
    struct mp_gain gain;

    mp_gain_init(&gain);
    for (unsigned i = 0; i < 8; i++)
        mp_gain_note_step(&gain, 0, 1000000);
    CHECK(mp_gain_choose(&gain, drafts, 1, 4) > 0);
    for (unsigned i = 0; i < 200; i++)
        mp_gain_note_guess(&gain, 7, i % 20 == 0);
    for (unsigned i = 0; i < 5000; i++)
        CHECK_EQ(mp_gain_choose(&gain, drafts, 1, 4), 0); /* not even as a trial */
}

static void nothing_is_checked_before_plain_steps_are_known(void)
{
    const struct mp_draft none = { 0 }, *drafts[2] = { &sure, &none };
    struct mp_gain gain;

    mp_gain_init(&gain);
    CHECK_EQ(mp_gain_choose(&gain, drafts, 1, 4), 0);
    for (unsigned i = 0; i < 4; i++)
        mp_gain_note_step(&gain, 0, 1000000);
    CHECK(mp_gain_choose(&gain, drafts, 1, 4) > 0);
    CHECK_EQ(mp_gain_choose(&gain, drafts, 1, 0), 0);
    CHECK_EQ(mp_gain_choose(&gain, drafts + 1, 1, 4), 0);
}

static void plans_fit_into_sequences_and_batch(void)
{
    static const uint32_t sequence[] = { 0, 1 }, room[] = { 8, 2 }, no_room[] = { 0, 0 };
    struct mp_drafts_config config = { .sequences = 2, .most = 8, .always = true };
    struct mp_drafts *drafts;

    CHECK_EQ(mp_draft_lookup_create(2, 64, &config.source), MP_OK);
    CHECK_EQ(mp_drafts_create(&config, &drafts), MP_OK);
    mp_drafts_begin(drafts);
    for (uint32_t i = 0; i < 12; i++) {
        mp_drafts_push(drafts, 0, 3);
        mp_drafts_push(drafts, 1, 3);
    }
    CHECK_EQ(mp_drafts_plan(drafts, sequence, room, 2, 100), MP_OK);
    CHECK_EQ(mp_drafts_of(drafts, 0)->count, 8);
    CHECK_EQ(mp_drafts_of(drafts, 1)->count, 2);
    mp_drafts_note(drafts, 0, 8);
    mp_drafts_note(drafts, 1, 0);
    mp_drafts_end(drafts, 1000);
    CHECK_EQ(mp_drafts_stats(drafts)->drafted, 10);
    CHECK_EQ(mp_drafts_stats(drafts)->accepted, 8);
    CHECK_EQ(mp_drafts_stats(drafts)->steps, 1);
    CHECK_EQ(mp_drafts_plan(drafts, sequence, room, 2, 7), MP_OK);
    CHECK_EQ(mp_drafts_of(drafts, 0)->count, 3);
    CHECK_EQ(mp_drafts_plan(drafts, sequence, room, 2, 1), MP_OK);
    CHECK_EQ(mp_drafts_of(drafts, 0)->count, 0);
    CHECK_EQ(mp_drafts_plan(drafts, sequence, no_room, 2, 100), MP_OK);
    CHECK_EQ(mp_drafts_of(drafts, 0)->count + mp_drafts_of(drafts, 1)->count, 0);
    mp_drafts_end(drafts, 1000);
    CHECK_EQ(mp_drafts_stats(drafts)->steps, 1);
    mp_drafts_begin(drafts);
    CHECK_EQ(mp_drafts_stats(drafts)->drafted, 0);
    mp_drafts_destroy(drafts);
    mp_drafts_destroy(NULL);
}

int main(void)
{
    RUN(the_longest_agreement_is_taken_and_of_equals_the_latest);
    RUN(a_repeated_text_is_continued_into_the_draft);
    RUN(texts_are_apart_and_begin_anew);
    RUN(a_draft_is_as_long_as_it_pays);
    RUN(wrong_guesses_do_not_pay);
    RUN(nothing_is_checked_before_plain_steps_are_known);
    RUN(plans_fit_into_sequences_and_batch);
    return 0;
}
