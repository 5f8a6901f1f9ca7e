/*
 * The plan of each step's drafts. A quick source guesses at every step, checked or not: guesses
 * that are not checked are compared with what comes, so that it is known without cost whether they
 * would be right. A source that takes time is asked only when its usual guesses would pay.
 */
#include "engine/session/draft/drafts.h"

#include <stdlib.h>

#include "vmm/base/assert.h"
#include "vmm/base/error.h"

#define SEQUENCES_MAX 64

struct mp_drafts {
    struct mp_drafts_config config;
    struct mp_gain gain;
    struct mp_draft draft[SEQUENCES_MAX];  /* of this step, as far as it is checked */
    struct mp_draft unused[SEQUENCES_MAX]; /* guesses that are only compared */
    uint32_t k;                            /* most guesses of a sequence in this step */
    struct mp_drafts_stats stats;
};

enum mp_status mp_drafts_create(const struct mp_drafts_config *config, struct mp_drafts **drafts_p)
{
    struct mp_drafts *drafts = calloc(1, sizeof(*drafts));

    mp_assert(config->sequences <= SEQUENCES_MAX);
    mp_assert(config->most > 0 && config->most <= MP_DRAFT_MAX);
    if (drafts == NULL)
        return mp_fail_no_memory("drafts", sizeof(*drafts));
    drafts->config = *config;
    mp_gain_init(&drafts->gain);
    *drafts_p = drafts;
    return MP_OK;
}

void mp_drafts_destroy(struct mp_drafts *drafts)
{
    if (drafts == NULL)
        return;
    drafts->config.source->ops->destroy(drafts->config.source);
    free(drafts);
}

uint32_t mp_drafts_most(const struct mp_drafts *drafts)
{
    return drafts->config.most;
}

void mp_drafts_begin(struct mp_drafts *drafts)
{
    drafts->config.source->ops->begin(drafts->config.source);
    drafts->stats = (struct mp_drafts_stats){ 0 };
    for (uint32_t s = 0; s < SEQUENCES_MAX; s++)
        drafts->draft[s].count = drafts->unused[s].count = 0;
}

void mp_drafts_push(struct mp_drafts *drafts, uint32_t sequence, uint32_t token)
{
    struct mp_draft *unused = &drafts->unused[sequence];

    mp_assert(sequence < drafts->config.sequences);
    if (unused->count > 0)
        mp_gain_note_guess(&drafts->gain, unused->kind[0], unused->token[0] == token);
    unused->count = 0;
    drafts->config.source->ops->push(drafts->config.source, sequence, token);
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

/* Only the first k are checked; with none of them the draft is compared instead. */
static void cut(struct mp_drafts *drafts, uint32_t sequence, uint32_t k)
{
    struct mp_draft *draft = &drafts->draft[sequence];

    if (k == 0)
        drafts->unused[sequence] = *draft;
    draft->count = draft->count < k ? draft->count : k;
    drafts->k = draft->count > drafts->k ? draft->count : drafts->k;
}

enum mp_status mp_drafts_plan(struct mp_drafts *drafts, const uint32_t *sequence,
                              const uint32_t *room, uint32_t count, uint32_t total)
{
    const bool quick = drafts->config.source->ops->quick;
    const struct mp_draft *all[SEQUENCES_MAX];
    uint32_t most = drafts->config.most, k;
    enum mp_status status;

    mp_assert(count > 0 && count <= SEQUENCES_MAX);
    most = most < total / count ? most : total / count;
    k = most;
    if (!quick && !drafts->config.always) {
        for (uint32_t i = 0; i < count; i++)
            all[i] = &usual;
        k = mp_gain_choose(&drafts->gain, all, count, most);
    }
    status = guess(drafts, sequence, room, count, k);
    if (status != MP_OK)
        return status;
    if (quick && !drafts->config.always) {
        for (uint32_t i = 0; i < count; i++)
            all[i] = &drafts->draft[sequence[i]];
        k = mp_gain_choose(&drafts->gain, all, count, most);
    }
    drafts->k = 0;
    for (uint32_t i = 0; i < count; i++)
        cut(drafts, sequence[i], k);
    return MP_OK;
}

const struct mp_draft *mp_drafts_of(const struct mp_drafts *drafts, uint32_t sequence)
{
    return &drafts->draft[sequence];
}

const struct mp_draft *mp_drafts_unchecked(const struct mp_drafts *drafts, uint32_t sequence)
{
    return &drafts->unused[sequence];
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
    mp_gain_note_step(&drafts->gain, drafts->k, ns);
    drafts->stats.steps += drafts->k > 0;
}

const struct mp_drafts_stats *mp_drafts_stats(const struct mp_drafts *drafts)
{
    return &drafts->stats;
}
