/*
 * The plan of each step's drafts. A quick source guesses at every step, checked or not: guesses
 * that are not checked are compared with what comes, so that it is known without cost whether they
 * would be right. A source that takes time is asked only when its usual guesses would pay, be it
 * to be checked or to be expected.
 */
#include "engine/session/draft/drafts.h"

#include <stdlib.h>

#include "engine/forward/engine.h"
#include "engine/session/draft/faster.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"

#define SEQUENCES_MAX 64

struct mp_drafts {
    struct mp_drafts_config config;
    struct mp_gain gain;
    struct mp_draft draft[SEQUENCES_MAX];  /* of this step, as far as it is checked */
    struct mp_draft unused[SEQUENCES_MAX]; /* guesses that are only compared */
    uint32_t k;                            /* most guesses of a sequence in this step */

    struct mp_gain quick_gain; /* how often the other source is right */
    struct mp_draft quick_unused[SEQUENCES_MAX];
    struct mp_faster faster; /* to ask the source that takes time, way 1, or the quick one */
    bool compared;           /* this step went one of these ways */
    uint32_t together;       /* sequences of the last step */
    struct mp_drafts_expected expected;
    struct mp_drafts_stats stats;
};

enum mp_status mp_drafts_create(const struct mp_drafts_config *config, struct mp_drafts **drafts_p)
{
    struct mp_drafts *drafts = calloc(1, sizeof(*drafts));

    mp_assert(config->sequences <= SEQUENCES_MAX);
    mp_assert(config->most > 0 && config->most <= MP_DRAFT_MAX);
    mp_assert(config->ahead <= MP_DRAFT_AHEAD_MAX);
    mp_assert(config->quick == NULL || (config->quick->ops->quick && !config->source->ops->quick));
    if (drafts == NULL)
        return mp_fail_no_memory("drafts", sizeof(*drafts));
    drafts->config = *config;
    mp_gain_init(&drafts->gain);
    mp_gain_init(&drafts->quick_gain);
    mp_faster_init(&drafts->faster);
    *drafts_p = drafts;
    return MP_OK;
}

void mp_drafts_destroy(struct mp_drafts *drafts)
{
    if (drafts == NULL)
        return;
    drafts->config.source->ops->destroy(drafts->config.source);
    if (drafts->config.quick != NULL)
        drafts->config.quick->ops->destroy(drafts->config.quick);
    free(drafts);
}

uint32_t mp_drafts_most(const struct mp_drafts *drafts)
{
    return drafts->config.most;
}

void mp_drafts_begin(struct mp_drafts *drafts)
{
    const struct mp_drafts_config *config = &drafts->config;

    config->source->ops->begin(config->source);
    if (config->quick != NULL)
        config->quick->ops->begin(config->quick);
    drafts->stats = (struct mp_drafts_stats){ 0 };
    for (uint32_t s = 0; s < SEQUENCES_MAX; s++)
        drafts->draft[s].count = drafts->unused[s].count = drafts->quick_unused[s].count = 0;
    drafts->expected.count = 0;
    mp_faster_interrupt(&drafts->faster);
}

/* The token came: was the first guess of these, which were not checked, right? */
static void compare(struct mp_gain *gain, struct mp_draft *unused, uint32_t token)
{
    if (unused->count > 0)
        mp_gain_note_guess(gain, unused->kind[0], unused->token[0] == token);
    unused->count = 0;
}

void mp_drafts_push(struct mp_drafts *drafts, uint32_t sequence, uint32_t token)
{
    const struct mp_drafts_config *config = &drafts->config;

    mp_assert(sequence < config->sequences);
    compare(&drafts->gain, &drafts->unused[sequence], token);
    compare(&drafts->quick_gain, &drafts->quick_unused[sequence], token);
    config->source->ops->push(config->source, sequence, token);
    if (config->quick != NULL)
        config->quick->ops->push(config->quick, sequence, token);
}

enum mp_status mp_drafts_seen(struct mp_drafts *drafts, struct mp_engine *engine,
                              const struct mp_batch *batch)
{
    struct mp_draft_source *source = drafts->config.source;

    return source->ops->seen != NULL ? source->ops->seen(source, batch, mp_engine_states(engine))
                                     : MP_OK;
}

/* The draft that a source which takes time would give: as sure as its surest kind. */
static const struct mp_draft usual = { MP_DRAFT_MAX, { 0 }, { 7, 7, 7, 7, 7, 7, 7, 7 } };

static enum mp_status guess(struct mp_drafts *drafts, const uint32_t *sequence,
                            const uint32_t *room, uint32_t count, uint32_t most)
{
    struct mp_draft_source *source = drafts->config.source;
    enum mp_status status = MP_OK;

    for (uint32_t i = 0; i < count && status == MP_OK; i++) {
        struct mp_draft *draft = &drafts->draft[sequence[i]];

        draft->count = 0;
        if (room[i] > 0 && most > 0)
            status =
                source->ops->guess(source, sequence[i], most < room[i] ? most : room[i], draft);
    }
    return status;
}

/* Guesses of these sequences' drafts (by sequence) from the k-th on are expected. */
static void expect(struct mp_drafts *drafts, const struct mp_gain *gain,
                   const struct mp_draft *draft_of, const uint32_t *sequence, uint32_t count,
                   uint32_t k)
{
    struct mp_drafts_expected *expected = &drafts->expected;

    for (uint32_t i = k; i < k + drafts->config.ahead; i++) {
        for (uint32_t s = 0; s < count; s++) {
            const struct mp_draft *draft = &draft_of[sequence[s]];

            if (i >= draft->count || expected->count == MP_DRAFTS_EXPECTED_MAX)
                continue;
            expected->token[expected->count] = draft->token[i];
            expected->chance[expected->count++] = (float)mp_gain_chance(gain, draft, i + 1);
        }
    }
}

/* Only the first k are checked; with none of them the draft is compared instead. */
static void cut(struct mp_drafts *drafts, uint32_t sequence, uint32_t k)
{
    struct mp_draft *draft = &drafts->draft[sequence];

    if (k == 0)
        drafts->unused[sequence] = *draft;
    draft->count = draft->count < k ? draft->count : k;
    drafts->k = draft->count > drafts->k ? draft->count : drafts->k;
}

/* In a step that checks nothing: the quick source's guesses, unless the other one has some. */
static enum mp_status expect_quick(struct mp_drafts *drafts, const uint32_t *sequence,
                                   const uint32_t *room, uint32_t count)
{
    struct mp_draft_source *quick = drafts->config.quick;
    const uint32_t ahead = drafts->config.ahead;
    enum mp_status status = MP_OK;

    for (uint32_t i = 0; i < count && status == MP_OK; i++) {
        struct mp_draft *draft = &drafts->quick_unused[sequence[i]];

        draft->count = 0;
        if (quick != NULL && room[i] > 0)
            status =
                quick->ops->guess(quick, sequence[i], ahead < room[i] ? ahead : room[i], draft);
    }
    if (status == MP_OK && drafts->expected.count == 0)
        expect(drafts, &drafts->quick_gain, drafts->quick_unused, sequence, count, 0);
    return status;
}

/* Is the source, which takes time, asked for guesses that nobody checks? */
static bool asks_ahead(struct mp_drafts *drafts, uint32_t k, uint32_t ahead)
{
    if (drafts->config.source->ops->quick || drafts->config.always)
        return true;
    drafts->compared = k == 0 && ahead > 0;
    return drafts->compared && mp_faster_way(&drafts->faster) == 1;
}

enum mp_status mp_drafts_plan(struct mp_drafts *drafts, const uint32_t *sequence,
                              const uint32_t *room, uint32_t count, uint32_t total)
{
    const bool quick = drafts->config.source->ops->quick;
    const uint32_t ahead = drafts->config.ahead;
    const struct mp_draft *all[SEQUENCES_MAX];
    uint32_t most = drafts->config.most, k;
    enum mp_status status;

    mp_assert(count > 0 && count <= SEQUENCES_MAX);
    drafts->config.source->late_ns = 0; /* of a prompt: before this step */
    most = most < total / count ? most : total / count;
    k = most;
    if (!quick && !drafts->config.always) {
        for (uint32_t i = 0; i < count; i++)
            all[i] = &usual;
        k = mp_gain_choose(&drafts->gain, all, count, most);
    }
    drafts->expected.count = 0;
    if (count != drafts->together)
        mp_faster_forget(&drafts->faster);
    drafts->together = count;
    status = guess(drafts, sequence, room, count, asks_ahead(drafts, k, ahead) ? k + ahead : k);
    if (status != MP_OK)
        return status;
    if (quick && !drafts->config.always) {
        for (uint32_t i = 0; i < count; i++)
            all[i] = &drafts->draft[sequence[i]];
        k = mp_gain_choose(&drafts->gain, all, count, most);
    }
    if (ahead > 0)
        expect(drafts, &drafts->gain, drafts->draft, sequence, count, k);
    drafts->k = 0;
    for (uint32_t i = 0; i < count; i++)
        cut(drafts, sequence[i], k);
    return ahead > 0 && k == 0 ? expect_quick(drafts, sequence, room, count) : MP_OK;
}

const struct mp_draft *mp_drafts_of(const struct mp_drafts *drafts, uint32_t sequence)
{
    return &drafts->draft[sequence];
}

const struct mp_drafts_expected *mp_drafts_expected(const struct mp_drafts *drafts)
{
    return &drafts->expected;
}

void mp_drafts_note(struct mp_drafts *drafts, uint32_t sequence, uint32_t accepted)
{
    struct mp_draft *draft = &drafts->draft[sequence];

    mp_assert(accepted <= draft->count);
    for (uint32_t i = 0; i < draft->count && i <= accepted; i++)
        mp_gain_note_guess(&drafts->gain, draft->kind[i], i < accepted);
    drafts->stats.drafted += draft->count;
    drafts->stats.accepted += accepted;
    draft->count = 0; /* the sequence may have ended */
}

void mp_drafts_end(struct mp_drafts *drafts, uint64_t ns)
{
    const uint64_t late_ns = drafts->config.source->late_ns;

    drafts->config.source->late_ns = 0;
    ns -= ns > late_ns ? late_ns : ns;
    drafts->stats.steps += drafts->k > 0;
    if (!drafts->compared || !drafts->faster.trying || !drafts->faster.settled)
        mp_gain_note_step(&drafts->gain, drafts->k, ns);
    if (drafts->compared)
        mp_faster_note(&drafts->faster, ns);
    else
        mp_faster_interrupt(&drafts->faster);
}

const struct mp_drafts_stats *mp_drafts_stats(const struct mp_drafts *drafts)
{
    return &drafts->stats;
}
