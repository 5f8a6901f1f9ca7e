/*
 * Drafts from the text itself: what followed the longest earlier occurrence of its last tokens, the
 * latest of equally long ones. A text is searched from its end, which for the length of a context
 * takes microseconds.
 */
#include <stdlib.h>

#include "engine/session/draft/draft.h"
#include "vmm/base/arena.h"
#include "vmm/base/assert.h"
#include "vmm/base/error.h"

struct lookup {
    struct mp_draft_source super;
    uint32_t texts, length;
    uint32_t *count; // (texts)
    uint32_t *token; // (texts, length)
    void *block;     /* of both */
};

static void lookup_begin(struct mp_draft_source *source)
{
    struct lookup *lookup = (struct lookup *)source;

    for (uint32_t i = 0; i < lookup->texts; i++)
        lookup->count[i] = 0;
}

static void lookup_push(struct mp_draft_source *source, uint32_t text, uint32_t token)
{
    struct lookup *lookup = (struct lookup *)source;

    mp_assert(text < lookup->texts);
    if (lookup->count[text] < lookup->length)
        lookup->token[(size_t)text * lookup->length + lookup->count[text]++] = token;
}

/* How many tokens before `a` and before `b` > a agree, MP_DRAFT_KINDS at most. */
static uint32_t agreement(const uint32_t *token, uint32_t a, uint32_t b)
{
    uint32_t count = 0;

    while (count < MP_DRAFT_KINDS && count < a && token[a - 1 - count] == token[b - 1 - count])
        count++;
    return count;
}

static enum mp_status lookup_guess(struct mp_draft_source *source, uint32_t text, uint32_t most,
                                   struct mp_draft *draft)
{
    const struct lookup *lookup = (struct lookup *)source;
    const uint32_t *token = lookup->token + (size_t)text * lookup->length;
    const uint32_t end = lookup->count[text];
    uint32_t best = 0, from = 0;

    mp_assert(text < lookup->texts && most <= MP_DRAFT_LONGEST);
    for (uint32_t at = end; at-- > 1 && best < MP_DRAFT_KINDS;) {
        const uint32_t agrees = agreement(token, at, end);

        if (agrees > best) {
            best = agrees;
            from = at;
        }
    }
    draft->count = 0;
    while (best > 0 && draft->count < most) {
        const uint32_t i = draft->count++, sure = best + i;

        /* What came after may reach into the draft itself, where a text repeats. */
        draft->token[i] = from + i < end ? token[from + i] : draft->token[from + i - end];
        draft->kind[i] = (uint8_t)((sure < MP_DRAFT_KINDS ? sure : MP_DRAFT_KINDS) - 1);
    }
    return MP_OK;
}

static void lookup_destroy(struct mp_draft_source *source)
{
    struct lookup *lookup = (struct lookup *)source;

    free(lookup->block);
    free(lookup);
}

static const struct mp_draft_source_ops lookup_ops = {
    .name = "the text",
    .quick = true,
    .begin = lookup_begin,
    .push = lookup_push,
    .guess = lookup_guess,
    .destroy = lookup_destroy,
};

static void take_arrays(struct lookup *lookup, struct mp_arena *arena)
{
    lookup->count = mp_arena_take(arena, lookup->texts, sizeof(uint32_t));
    lookup->token =
        mp_arena_take(arena, (uint64_t)lookup->texts * lookup->length, sizeof(uint32_t));
}

enum mp_status mp_draft_lookup_create(uint32_t texts, uint32_t length,
                                      struct mp_draft_source **source_p)
{
    struct lookup *lookup = calloc(1, sizeof(*lookup));
    struct mp_arena arena = { 0 };
    enum mp_status status;

    if (lookup == NULL)
        return mp_fail_no_memory("drafts", sizeof(*lookup));
    lookup->super.ops = &lookup_ops;
    lookup->texts = texts;
    lookup->length = length;
    take_arrays(lookup, &arena);
    status = mp_arena_open(&arena, "the texts of drafts");
    if (status != MP_OK) {
        free(lookup);
        return status;
    }
    take_arrays(lookup, &arena);
    lookup->block = arena.block;
    *source_p = &lookup->super;
    return MP_OK;
}
