/*
 * A text is an array of tokens, and a number of them that the model has run; where that is more
 * than the text has, what is behind its end are guesses. A pushed token that is the guess leaves
 * them there; another one makes the text end before them, and the model goes back.
 */
#include "engine/session/draft/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/forward/sampler.h"
#include "vmm/base/arena.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"

#define SURE (MP_DRAFT_KINDS - 1) /* one kind: how sure it is follows from what was right */
#define LATELY (MP_DRAFT_MAX + 1) /* tokens that a step can have added since the last guess */

struct model {
    struct mp_draft_source super;
    struct mp_session session;
    struct mp_sampler *sampler; /* greedy */
    uint32_t texts, length;
    uint32_t vocab;                              /* ids that both models have */
    uint32_t *count;                             // (texts)
    uint32_t *run;                               // (texts)
    uint32_t *token;                             // (texts, length)
    uint32_t *batch_token, *sequence, *position; // (tokens_max)
    uint8_t *want;                               // (tokens_max)
    void *block;                                 /* of these arrays */
};

static void model_begin(struct mp_draft_source *source)
{
    struct model *model = (struct model *)source;

    memset(model->count, 0, model->texts * sizeof(model->count[0]));
    memset(model->run, 0, model->texts * sizeof(model->run[0]));
}

static void model_push(struct mp_draft_source *source, uint32_t text, uint32_t token)
{
    struct model *model = (struct model *)source;
    uint32_t *at = model->token + (size_t)text * model->length + model->count[text];

    mp_assert(text < model->texts);
    if (token >= model->session.model.vocab)
        model->count[text] = model->length; /* it cannot run this text any further */
    if (model->count[text] == model->length)
        return;
    if (model->run[text] > model->count[text] && *at != token)
        model->run[text] = model->count[text];
    *at = token;
    model->count[text]++;
}

/* Run tokens of the text from where that ended up to `end`; *logits_p: of the last one. */
static enum mp_status run_to(struct model *model, uint32_t text, uint32_t end,
                             const float **logits_p)
{
    const uint32_t *token = model->token + (size_t)text * model->length;
    enum mp_status status = MP_OK;

    while (model->run[text] < end && status == MP_OK) {
        const uint32_t first = model->run[text], most = model->session.engine_config.tokens_max;
        const struct mp_batch batch = { .count = end - first < most ? end - first : most,
                                        .token = model->batch_token,
                                        .sequence = model->sequence,
                                        .position = model->position,
                                        .want = model->want };

        for (uint32_t i = 0; i < batch.count; i++) {
            model->batch_token[i] = token[first + i];
            model->sequence[i] = text;
            model->position[i] = first + i;
            model->want[i] = first + i + 1 == end;
        }
        status = mp_forward(model->session.engine, &batch, logits_p);
        model->run[text] += status == MP_OK ? batch.count : 0;
    }
    return status;
}

/* What came long ago, a prompt or what was not drafted, is no cost of this guess. */
static enum mp_status catch_up(struct model *model, uint32_t text)
{
    struct mp_clock *clock = model->session.engine_config.clock;
    const uint32_t count = model->count[text];
    const uint64_t start_ns = mp_clock_now_ns(clock);
    enum mp_status status = MP_OK;
    const float *logits;

    if (count > LATELY && model->run[text] < count - LATELY)
        status = run_to(model, text, count - LATELY, &logits);
    model->super.late_ns += mp_clock_now_ns(clock) - start_ns;
    return status;
}

static enum mp_status model_guess(struct mp_draft_source *source, uint32_t text, uint32_t most,
                                  struct mp_draft *draft)
{
    struct model *model = (struct model *)source;
    const uint32_t count = model->count[text];
    uint32_t *token = model->token + (size_t)text * model->length;
    const float *logits = NULL;
    enum mp_status status;

    mp_assert(text < model->texts && most <= MP_DRAFT_LONGEST);
    draft->count = 0;
    if (count == 0 || count == model->length)
        return MP_OK;
    if (model->run[text] >= count)
        model->run[text] = count - 1; /* for its logits */
    status = catch_up(model, text);
    while (status == MP_OK) {
        const uint32_t end = count + draft->count;
        uint32_t next;

        status = run_to(model, text, end, &logits);
        if (status != MP_OK)
            break;
        if (mp_sampler_pick(model->sampler, text, logits, &next) != MP_OK) {
            mp_error_clear(); /* no numbers are no guess */
            break;
        }
        if (next >= model->vocab)
            break;
        draft->kind[draft->count] = SURE;
        draft->token[draft->count++] = next;
        if (draft->count == most || end + 1 == model->length)
            break;
        token[end] = next;
    }
    return status;
}

static void model_destroy(struct mp_draft_source *source)
{
    struct model *model = (struct model *)source;

    mp_sampler_destroy(model->sampler);
    mp_session_close(&model->session);
    free(model->block);
    free(model);
}

static const struct mp_draft_source_ops model_ops = {
    .name = "a model",
    .begin = model_begin,
    .push = model_push,
    .guess = model_guess,
    .destroy = model_destroy,
};

static void take_arrays(struct model *model, struct mp_arena *arena)
{
    const uint32_t most = model->session.engine_config.tokens_max;

    model->count = mp_arena_take(arena, model->texts, sizeof(uint32_t));
    model->run = mp_arena_take(arena, model->texts, sizeof(uint32_t));
    model->token = mp_arena_take(arena, (uint64_t)model->texts * model->length, sizeof(uint32_t));
    model->batch_token = mp_arena_take(arena, most, sizeof(uint32_t));
    model->sequence = mp_arena_take(arena, most, sizeof(uint32_t));
    model->position = mp_arena_take(arena, most, sizeof(uint32_t));
    model->want = mp_arena_take(arena, most, 1);
}

void mp_draft_settings(const struct mp_settings *settings, struct mp_settings *own)
{
    *own = *settings;
    own->run.budget = (struct mp_share){ .kind = MP_SHARE_ALL };
    own->run.slices = own->run.lookahead = own->run.draft_tokens = 0;
    own->run.draft_model[0] = '\0';
    snprintf(own->run.profile, sizeof(own->run.profile), "lru");
    memset(own->run.policy, 0, sizeof(own->run.policy));
}

static enum mp_status open_arrays(struct model *model)
{
    const struct mp_sampling greedy = { .top_p = 1 };
    struct mp_arena arena = { 0 };
    enum mp_status status;

    model->length = model->session.engine_config.ctx;
    model->vocab = model->session.model.vocab;
    take_arrays(model, &arena);
    status = mp_arena_open(&arena, "the texts of drafts");
    if (status != MP_OK)
        return status;
    take_arrays(model, &arena);
    model->block = arena.block;
    return mp_sampler_create(&greedy, model->vocab, model->texts, &model->sampler);
}

enum mp_status mp_draft_model_open(const struct mp_settings *settings,
                                   const struct mp_session_config *outer,
                                   const struct mp_session *session,
                                   struct mp_draft_source **source_p)
{
    const struct mp_session_config config = {
        .model = settings->run.draft_model,
        .sequences = outer->sequences,
        .tokenizer = outer->tokenizer,
        .clock = outer->clock,
        .cancel = outer->cancel,
        .no_sidecars = true,
        .machine = session,
    };
    struct mp_settings own;
    struct model *model = calloc(1, sizeof(*model));
    enum mp_status status;

    if (model == NULL)
        return mp_fail_no_memory("drafts", sizeof(*model));
    mp_draft_settings(settings, &own);
    model->super.ops = &model_ops;
    model->texts = outer->sequences;
    status = mp_session_open(&own, &config, &model->session);
    if (status == MP_OK && !mp_engine_can_go_back(model->session.engine))
        status =
            mp_fail(MP_ERR_UNSUPPORTED, "E_DRAFT",
                    "the draft model has recurrent layers, which cannot take back a wrong guess");
    if (status == MP_OK)
        status = open_arrays(model);
    if (status != MP_OK) {
        model_destroy(&model->super);
        return status;
    }
    *source_p = &model->super;
    return MP_OK;
}

/* Does the id stand for the same token in both? */
static bool is_same(const struct mp_tokenizer *a, const struct mp_tokenizer *b, uint32_t id)
{
    size_t a_bytes = 0, b_bytes = 0;
    const char *x = mp_tokenizer_content(a, id, &a_bytes);
    const char *y = mp_tokenizer_content(b, id, &b_bytes);

    return x == NULL || y == NULL || (a_bytes == b_bytes && memcmp(x, y, a_bytes) == 0);
}

enum mp_status mp_draft_model_check(struct mp_draft_source *source,
                                    const struct mp_session *session)
{
    struct model *model = (struct model *)source;
    const struct mp_tokenizer *own = model->session.tokenizer, *other = session->tokenizer;
    uint32_t count;

    mp_assert(source->ops == &model_ops);
    if (session->model.vocab < model->vocab)
        model->vocab = session->model.vocab;
    if (own == NULL || other == NULL)
        return MP_OK;
    count = mp_tokenizer_vocab_count(own);
    if (mp_tokenizer_vocab_count(other) < count)
        count = mp_tokenizer_vocab_count(other);
    for (uint32_t id = 0; id < count; id++) {
        if (!is_same(own, other, id))
            return mp_fail(MP_ERR_CONFIG, "E_DRAFT",
                           "token %u of the draft model is another one than of this model; both "
                           "need the same tokenizer",
                           id);
    }
    if (count < model->vocab)
        model->vocab = count;
    return MP_OK;
}
