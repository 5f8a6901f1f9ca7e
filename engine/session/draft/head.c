/*
 * Of each text: its tokens, the positions that the layer has run, and the model's states of those
 * behind them. The layer's position i takes the model's state of token i and token i + 1, and
 * guesses token i + 2. Where the model was told a wrong guess, its next batch begins at that
 * position, and what was behind is forgotten. What the layer makes of its own guesses never counts
 * as run, so that its cache has only true states in the end.
 */
#include "engine/session/draft/head.h"

#include <stdlib.h>
#include <string.h>

#include "engine/forward/sampler.h"
#include "engine/session/draft/model.h"
#include "vmm/base/arena.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"

#define SURE (MP_DRAFT_KINDS - 1) /* one kind: how sure it is follows from what was right */
#define LATELY (MP_DRAFT_MAX + 1) /* tokens that a step can have added since the last guess */

struct head {
    struct mp_draft_source super;
    struct mp_session session;
    struct mp_sampler *sampler; /* greedy */
    uint32_t texts, length;
    uint32_t kept;                               /* states of a text that can wait */
    uint32_t rows;                               /* of the last batch */
    uint32_t *count;                             // (texts): tokens
    uint32_t *run;                               // (texts): positions
    uint32_t *seen;                              // (texts): positions that have had a state
    uint32_t *token;                             // (texts, length)
    float *state;                                // (texts, kept, H): from `run` to `seen`
    float *own;                                  // (H): the layer's last one
    uint32_t *batch_token, *sequence, *position; // (tokens_max)
    uint8_t *want;                               // (tokens_max)
    void *block;                                 /* of these arrays */
};

static size_t hidden(const struct head *head)
{
    return head->session.model.hidden;
}

static float *waiting(const struct head *head, uint32_t text)
{
    return head->state + (size_t)text * head->kept * hidden(head);
}

static void head_begin(struct mp_draft_source *source)
{
    struct head *head = (struct head *)source;

    memset(head->count, 0, head->texts * sizeof(head->count[0]));
    memset(head->run, 0, head->texts * sizeof(head->run[0]));
    memset(head->seen, 0, head->texts * sizeof(head->seen[0]));
}

static void head_push(struct mp_draft_source *source, uint32_t text, uint32_t token)
{
    struct head *head = (struct head *)source;

    mp_assert(text < head->texts);
    if (head->count[text] < head->length)
        head->token[(size_t)text * head->length + head->count[text]++] = token;
}

/* `count` positions from `first` on, of tokens in batch_token; logits of the last one if `wanted`.
 */
static enum mp_status run_batch(struct head *head, uint32_t text, uint32_t first, uint32_t count,
                                const float *states, bool wanted, const float **logits_p)
{
    const struct mp_batch batch = { .count = count,
                                    .token = head->batch_token,
                                    .sequence = head->sequence,
                                    .position = head->position,
                                    .want = head->want,
                                    .states = states };

    for (uint32_t i = 0; i < count; i++) {
        head->sequence[i] = text;
        head->position[i] = first + i;
        head->want[i] = wanted && i + 1 == count;
    }
    head->rows = count;
    return mp_forward(head->session.engine, &batch, logits_p);
}

/* Run a text up to position `end`, of which the states are there and the tokens behind them. */
static enum mp_status run_to(struct head *head, uint32_t text, uint32_t end, bool wanted,
                             const float **logits_p)
{
    const uint32_t *token = head->token + (size_t)text * head->length;
    const uint32_t most = head->session.engine_config.tokens_max, from = head->run[text];
    float *states = waiting(head, text);
    enum mp_status status = MP_OK;

    mp_assert(end <= head->seen[text] && end < head->count[text]);
    while (head->run[text] < end && status == MP_OK) {
        const uint32_t first = head->run[text];
        const uint32_t count = end - first < most ? end - first : most;

        memcpy(head->batch_token, token + first + 1, count * sizeof(token[0]));
        status = run_batch(head, text, first, count, states + (first - from) * hidden(head),
                           wanted && first + count == end, logits_p);
        head->run[text] += status == MP_OK ? count : 0;
    }
    memmove(states, states + (head->run[text] - from) * hidden(head),
            (head->seen[text] - head->run[text]) * hidden(head) * sizeof(float));
    return status;
}

/* The same, without guesses: what came long ago, such as a prompt, is no cost of a step. */
static enum mp_status catch_up(struct head *head, uint32_t text, uint32_t end)
{
    struct mp_clock *clock = head->session.engine_config.clock;
    const uint64_t start_ns = mp_clock_now_ns(clock);
    const float *logits;
    const enum mp_status status = run_to(head, text, end, false, &logits);

    head->super.late_ns += mp_clock_now_ns(clock) - start_ns;
    return status;
}

/* The model's state of a position. Where one before is missing, the text has no more guesses. */
static enum mp_status keep(struct head *head, uint32_t text, uint32_t position, const float *state)
{
    const uint32_t count = head->count[text];
    enum mp_status status = MP_OK;

    mp_assert(head->run[text] <= position); /* it ran true tokens only */
    if (head->seen[text] > position)
        head->seen[text] = position;
    if (head->seen[text] != position)
        return MP_OK;
    if (position - head->run[text] == head->kept && count > head->run[text] + 1)
        status = catch_up(head, text, position < count - 1 ? position : count - 1);
    if (status != MP_OK || position - head->run[text] == head->kept)
        return status;
    memcpy(waiting(head, text) + (position - head->run[text]) * hidden(head), state,
           hidden(head) * sizeof(float));
    head->seen[text]++;
    return MP_OK;
}

static enum mp_status head_seen(struct mp_draft_source *source, const struct mp_batch *batch,
                                const float *states)
{
    struct head *head = (struct head *)source;
    enum mp_status status = MP_OK;

    for (uint32_t t = 0; t < batch->count && status == MP_OK; t++)
        status =
            keep(head, batch->sequence[t], batch->position[t], states + (size_t)t * hidden(head));
    return status;
}

/* A token that the layer has guessed itself, behind its last state. */
static enum mp_status run_guess(struct head *head, uint32_t text, uint32_t position, uint32_t token,
                                const float **logits_p)
{
    const float *states = mp_engine_states(head->session.engine);

    memcpy(head->own, states + (head->rows - 1) * hidden(head), hidden(head) * sizeof(float));
    head->batch_token[0] = token;
    return run_batch(head, text, position, 1, head->own, true, logits_p);
}

static enum mp_status head_guess(struct mp_draft_source *source, uint32_t text, uint32_t most,
                                 struct mp_draft *draft)
{
    struct head *head = (struct head *)source;
    const uint32_t count = head->count[text], end = count - 1; /* positions of true states */
    const float *logits = NULL;
    enum mp_status status = MP_OK;

    mp_assert(text < head->texts && most <= MP_DRAFT_LONGEST);
    draft->count = 0;
    if (count < 2 || count == head->length || head->seen[text] < end || head->run[text] >= end)
        return MP_OK;
    if (end - head->run[text] > LATELY)
        status = catch_up(head, text, end - LATELY);
    if (status == MP_OK)
        status = run_to(head, text, end, true, &logits);
    while (status == MP_OK) {
        const uint32_t position = end + draft->count;
        uint32_t next;

        if (mp_sampler_pick(head->sampler, text, logits, &next) != MP_OK) {
            mp_error_clear(); /* no numbers are no guess */
            break;
        }
        draft->kind[draft->count] = SURE;
        draft->token[draft->count++] = next;
        if (draft->count == most || position == head->length)
            break;
        status = run_guess(head, text, position, next, &logits);
    }
    return status;
}

static void head_destroy(struct mp_draft_source *source)
{
    struct head *head = (struct head *)source;

    mp_sampler_destroy(head->sampler);
    mp_session_close(&head->session);
    free(head->block);
    free(head);
}

static const struct mp_draft_source_ops head_ops = {
    .name = "the model's own layer",
    .begin = head_begin,
    .push = head_push,
    .seen = head_seen,
    .guess = head_guess,
    .destroy = head_destroy,
};

/* At least those of a step, the tokens behind which are not known. */
static uint32_t kept_of(const struct mp_engine_config *config)
{
    return config->tokens_max > LATELY ? config->tokens_max : LATELY;
}

static void take_arrays(struct head *head, struct mp_arena *arena)
{
    const uint32_t most = head->session.engine_config.tokens_max;

    head->count = mp_arena_take(arena, head->texts, sizeof(uint32_t));
    head->run = mp_arena_take(arena, head->texts, sizeof(uint32_t));
    head->seen = mp_arena_take(arena, head->texts, sizeof(uint32_t));
    head->token = mp_arena_take(arena, (uint64_t)head->texts * head->length, sizeof(uint32_t));
    head->state =
        mp_arena_take(arena, (uint64_t)head->texts * head->kept, hidden(head) * sizeof(float));
    head->own = mp_arena_take(arena, hidden(head), sizeof(float));
    head->batch_token = mp_arena_take(arena, most, sizeof(uint32_t));
    head->sequence = mp_arena_take(arena, most, sizeof(uint32_t));
    head->position = mp_arena_take(arena, most, sizeof(uint32_t));
    head->want = mp_arena_take(arena, most, 1);
}

static enum mp_status open_arrays(struct head *head)
{
    const struct mp_sampling greedy = { .top_p = 1 };
    struct mp_arena arena = { 0 };
    enum mp_status status;

    head->length = head->session.engine_config.ctx;
    head->kept = kept_of(&head->session.engine_config);
    take_arrays(head, &arena);
    status = mp_arena_open(&arena, "the texts of drafts");
    if (status != MP_OK)
        return status;
    take_arrays(head, &arena);
    head->block = arena.block;
    return mp_sampler_create(&greedy, head->session.model.vocab, head->texts, &head->sampler);
}

uint64_t mp_draft_head_bytes(const struct mp_engine_config *config)
{
    const uint64_t states = (uint64_t)kept_of(config) * config->model->hidden;

    return config->sequences * (states * sizeof(float) + config->ctx * sizeof(uint32_t));
}

bool mp_draft_head_wanted(const struct mp_run_settings *run)
{
    return strcmp(run->draft_model, MP_DRAFT_HEAD_NAME) == 0;
}

enum mp_status mp_draft_head_open(const struct mp_settings *settings,
                                  const struct mp_session_config *outer,
                                  const struct mp_session *session,
                                  struct mp_draft_source **source_p)
{
    const struct mp_session_config config = {
        .model = outer->model,
        .sequences = outer->sequences,
        .clock = outer->clock,
        .cancel = outer->cancel,
        .no_sidecars = true,
        .drafting = true,
        .machine = session,
    };
    struct mp_settings own;
    struct head *head = calloc(1, sizeof(*head));
    enum mp_status status;

    if (head == NULL)
        return mp_fail_no_memory("drafts", sizeof(*head));
    mp_draft_settings(settings, &own);
    own.run.budget =
        (struct mp_share){ .kind = MP_SHARE_BYTES, .amount = session->memory.draft.budget_bytes };
    head->super.ops = &head_ops;
    head->texts = outer->sequences;
    status = mp_session_open(&own, &config, &head->session);
    if (status == MP_OK)
        status = open_arrays(head);
    if (status != MP_OK) {
        head_destroy(&head->super);
        return status;
    }
    *source_p = &head->super;
    return MP_OK;
}

void mp_draft_head_share(struct mp_draft_source *source, const struct mp_weights *weights)
{
    mp_assert(source->ops == &head_ops);
    mp_weights_share(((struct head *)source)->session.weights, weights);
}
