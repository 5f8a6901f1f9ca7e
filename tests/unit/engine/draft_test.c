/*
 * Drafts: what is found in a text, when a draft pays by measured times and guesses, how a plan is
 * cut to what sequences and batch have room for, and what a lookahead gets of it, from whom.
 */
#include "engine/session/draft/drafts.h"

#include "engine/session/draft/faster.h"
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

/* A source that takes time, and at first as much as a long text needs. */
static enum mp_status slow_guess(struct mp_draft_source *source, uint32_t text, uint32_t most,
                                 struct mp_draft *draft)
{
    CHECK(text == 0 && most > 0);
    source->late_ns += 90000;
    *draft = (struct mp_draft){ 1, { 5 }, { MP_DRAFT_KINDS - 1 } };
    return MP_OK;
}

static void slow_begin(struct mp_draft_source *source)
{
    source->late_ns = 0;
}

static void slow_push(struct mp_draft_source *source, uint32_t text, uint32_t token)
{
    (void)source, (void)text, (void)token;
}

/* Steps with a guess take 1.2 times as long, and the first one a text's time more; all guesses are
 * right. Were that time a step's, drafts would not seem to pay. */
static void running_an_old_text_is_no_cost_of_a_guess(void)
{
    static const struct mp_draft_source_ops slow_ops = { .name = "slow",
                                                         .begin = slow_begin,
                                                         .push = slow_push,
                                                         .guess = slow_guess,
                                                         .destroy = slow_begin };
    static const uint32_t sequence[] = { 0 }, room[] = { 8 };
    struct mp_draft_source slow = { .ops = &slow_ops };
    const struct mp_drafts_config config = { .source = &slow, .sequences = 1, .most = 1 };
    struct mp_drafts *drafts;

    CHECK_EQ(mp_drafts_create(&config, &drafts), MP_OK);
    mp_drafts_begin(drafts);
    for (unsigned step = 0; step < 12; step++) {
        uint64_t checked;

        CHECK_EQ(mp_drafts_plan(drafts, sequence, room, 1, 8), MP_OK);
        checked = mp_drafts_of(drafts, 0)->count;
        CHECK_EQ(checked, step >= 4);
        if (checked > 0)
            mp_drafts_note(drafts, 0, 1);
        mp_drafts_end(drafts, 1000 + 200 * checked + slow.late_ns);
        CHECK_EQ(slow.late_ns, 0);
    }
    mp_drafts_destroy(drafts);
}

/* Steps of which those of way 1 take so much of the others' time; how many of the last half went
 * that way. The first step that goes another way takes ten times as long. */
static unsigned run_ways(struct mp_faster *faster, double ratio, unsigned steps)
{
    unsigned before = 2, count = 0;

    for (unsigned i = 0; i < steps; i++) {
        const unsigned way = mp_faster_way(faster);
        const double ns = (way == 1 ? ratio : 1) * 1e6 * (1 + 0.05 * (i % 3));

        mp_faster_note(faster, (uint64_t)(way != before ? 10 * ns : ns));
        count += i >= steps / 2 && way == 1;
        before = way;
    }
    return count;
}

static void the_faster_way_is_found(void)
{
    struct mp_faster faster;

    mp_faster_init(&faster);
    CHECK_EQ(mp_faster_way(&faster), 0);
    CHECK(run_ways(&faster, 0.8, 1000) > 480);
    CHECK(run_ways(&faster, 1.3, 8000) < 60); /* and that it no longer is */
    CHECK(faster.pause > 16);
    CHECK(run_ways(&faster, 1, 8000) < 60); /* no faster is not faster */
    CHECK(run_ways(&faster, 0.8, 8000) > 3900);
}

static void steps_of_other_kinds_do_not_count(void)
{
    struct mp_faster faster;

    mp_faster_init(&faster);
    for (unsigned i = 0; i < 1000; i++) {
        mp_faster_interrupt(&faster);
        mp_faster_note(&faster, 1000000);
    }
    CHECK(faster.ns == 0);
    CHECK_EQ(mp_faster_way(&faster), 0);
}

/* A trial in the middle of which all steps become shorter says nothing of the way. */
static void steps_of_another_length_are_not_compared(void)
{
    struct mp_faster faster;

    mp_faster_init(&faster);
    while (!faster.trying || faster.tried < 4)
        mp_faster_note(&faster, 1000000);
    mp_faster_forget(&faster);
    CHECK_EQ(mp_faster_way(&faster), 0);
    for (unsigned i = 0; i < 200; i++) {
        mp_faster_note(&faster, 500000);
        CHECK_EQ(faster.way, 0);
    }
}

/* A quick source is asked for what a lookahead wants behind what is checked. */
static void guesses_behind_those_that_are_checked_are_expected(void)
{
    static const uint32_t sequence[] = { 0, 1 }, room[] = { 9, 9 }, little[] = { 3 };
    struct mp_drafts_config config = { .sequences = 2, .most = 2, .ahead = 3, .always = true };
    const struct mp_drafts_expected *expected;
    struct mp_drafts *drafts;

    CHECK_EQ(mp_draft_lookup_create(2, 64, &config.source), MP_OK);
    CHECK_EQ(mp_drafts_create(&config, &drafts), MP_OK);
    expected = mp_drafts_expected(drafts);
    mp_drafts_begin(drafts);
    for (uint32_t i = 0; i < 24; i++)
        mp_drafts_push(drafts, 0, i % 6);
    CHECK_EQ(mp_drafts_plan(drafts, sequence, room, 1, 8), MP_OK);
    CHECK_EQ(mp_drafts_of(drafts, 0)->count, 2);
    CHECK_EQ(expected->count, 3);
    for (uint32_t i = 0; i < 3; i++) {
        CHECK_EQ(expected->token[i], 2 + i);
        CHECK(expected->chance[i] > 0 &&
              expected->chance[i] < (i > 0 ? expected->chance[i - 1] : 1));
    }
    CHECK_EQ(mp_drafts_plan(drafts, sequence, little, 1, 8), MP_OK);
    CHECK_EQ(expected->count, 1); /* the text ends there */
    CHECK_EQ(mp_drafts_plan(drafts, sequence, room, 1, 0), MP_OK);
    CHECK_EQ(mp_drafts_of(drafts, 0)->count, 0);
    CHECK_EQ(expected->count, 3);
    CHECK_EQ(expected->token[0], 0);
    mp_drafts_destroy(drafts);
}

/* Of several texts the nearest tokens come first, and one that ends soon has fewer. */
static void all_texts_of_a_batch_are_expected(void)
{
    static const uint32_t sequence[] = { 1, 0, 2 }, room[] = { 9, 3, 9 };
    static const uint32_t nearest_first[] = { 42, 2, 43, 44 }; /* of text 2 nothing is known */
    struct mp_drafts_config config = { .sequences = 3, .most = 2, .ahead = 3, .always = true };
    const struct mp_drafts_expected *expected;
    struct mp_drafts *drafts;

    CHECK_EQ(mp_draft_lookup_create(3, 64, &config.source), MP_OK);
    CHECK_EQ(mp_drafts_create(&config, &drafts), MP_OK);
    expected = mp_drafts_expected(drafts);
    mp_drafts_begin(drafts);
    for (uint32_t i = 0; i < 24; i++) {
        mp_drafts_push(drafts, 0, i % 6);
        mp_drafts_push(drafts, 1, 40 + i % 6);
    }
    CHECK_EQ(mp_drafts_plan(drafts, sequence, room, 3, 6), MP_OK);
    CHECK_EQ(mp_drafts_of(drafts, 0)->count, 2);
    CHECK_EQ(mp_drafts_of(drafts, 1)->count, 2);
    CHECK_EQ(expected->count, 4);
    for (uint32_t i = 0; i < expected->count; i++)
        CHECK_EQ(expected->token[i], nearest_first[i]);
    CHECK(expected->chance[2] < expected->chance[0]);
    mp_drafts_destroy(drafts);
}

/* A source that takes time and guesses 5, 6, 7, ... */
static uint32_t asked;

static enum mp_status counting_guess(struct mp_draft_source *source, uint32_t text, uint32_t most,
                                     struct mp_draft *draft)
{
    CHECK(source != NULL && text == 0 && most > 0);
    asked = most;
    draft->count = most;
    for (uint32_t i = 0; i < most; i++) {
        draft->token[i] = 5 + i;
        draft->kind[i] = MP_DRAFT_KINDS - 1;
    }
    return MP_OK;
}

static const struct mp_draft_source_ops counting_ops = { .name = "counting",
                                                         .begin = slow_begin,
                                                         .push = slow_push,
                                                         .guess = counting_guess,
                                                         .destroy = slow_begin };

/* Steps of a text of threes, in which nothing is checked: one in which the slow source is asked for
 * a lookahead takes so much of another one's time. Returns how many of the last half asked it. */
static unsigned run_ahead(struct mp_drafts *drafts, double ratio, unsigned steps)
{
    static const uint32_t sequence[] = { 0 }, room[] = { 9 };
    const struct mp_drafts_expected *expected = mp_drafts_expected(drafts);
    unsigned count = 0;

    for (unsigned i = 0; i < steps; i++) {
        asked = 0;
        CHECK_EQ(mp_drafts_plan(drafts, sequence, room, 1, 0), MP_OK);
        CHECK_EQ(mp_drafts_of(drafts, 0)->count, 0);
        CHECK(asked == 0 || asked == 4);
        CHECK_EQ(expected->count, 4);
        CHECK_EQ(expected->token[0], asked > 0 ? 5 : 3);
        CHECK_EQ(expected->token[3], asked > 0 ? 8 : 3);
        mp_drafts_push(drafts, 0, 3);
        mp_drafts_end(drafts, (uint64_t)(1e6 * (asked > 0 ? ratio : 1)));
        count += asked > 0 && i >= steps / 2;
    }
    CHECK_EQ(mp_drafts_stats(drafts)->steps, 0);
    return count;
}

static void a_slow_source_is_asked_for_a_lookahead_if_steps_are_faster_so(void)
{
    struct mp_draft_source slow = { .ops = &counting_ops };
    struct mp_drafts_config config = { .source = &slow, .sequences = 1, .most = 2, .ahead = 4 };
    struct mp_drafts *drafts;

    CHECK_EQ(mp_draft_lookup_create(1, 64, &config.quick), MP_OK);
    CHECK_EQ(mp_drafts_create(&config, &drafts), MP_OK);
    mp_drafts_begin(drafts);
    for (uint32_t i = 0; i < 12; i++)
        mp_drafts_push(drafts, 0, 3);
    CHECK_EQ(run_ahead(drafts, 1.2, 16), 0); /* not before plain steps are known */
    CHECK(run_ahead(drafts, 1.2, 4000) < 40);
    CHECK(run_ahead(drafts, 0.7, 4000) > 1900);
    CHECK(run_ahead(drafts, 1.2, 4000) < 100);
    mp_drafts_destroy(drafts);
}

/* In a deterministic run always, behind what is checked. */
static void a_slow_source_is_always_asked_where_times_do_not_count(void)
{
    static const uint32_t sequence[] = { 0 }, room[] = { 9 };
    struct mp_draft_source slow = { .ops = &counting_ops };
    struct mp_drafts_config config = {
        .source = &slow, .sequences = 1, .most = 2, .ahead = 4, .always = true
    };
    const struct mp_drafts_expected *expected;
    struct mp_drafts *drafts;

    CHECK_EQ(mp_draft_lookup_create(1, 64, &config.quick), MP_OK);
    CHECK_EQ(mp_drafts_create(&config, &drafts), MP_OK);
    expected = mp_drafts_expected(drafts);
    mp_drafts_begin(drafts);
    for (uint32_t i = 0; i < 40; i++) {
        mp_drafts_push(drafts, 0, 3);
        CHECK_EQ(mp_drafts_plan(drafts, sequence, room, 1, 8), MP_OK);
        CHECK_EQ(asked, 6);
        CHECK_EQ(mp_drafts_of(drafts, 0)->count, 2);
        CHECK_EQ(expected->count, 4);
        CHECK_EQ(expected->token[0], 7);
        CHECK_EQ(expected->token[3], 10);
        mp_drafts_note(drafts, 0, 0);
        mp_drafts_end(drafts, 1000000);
    }
    mp_drafts_destroy(drafts);
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
    RUN(running_an_old_text_is_no_cost_of_a_guess);
    RUN(the_faster_way_is_found);
    RUN(steps_of_other_kinds_do_not_count);
    RUN(steps_of_another_length_are_not_compared);
    RUN(guesses_behind_those_that_are_checked_are_expected);
    RUN(all_texts_of_a_batch_are_expected);
    RUN(a_slow_source_is_asked_for_a_lookahead_if_steps_are_faster_so);
    RUN(a_slow_source_is_always_asked_where_times_do_not_count);
    return 0;
}
