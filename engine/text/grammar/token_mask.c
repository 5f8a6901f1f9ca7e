/*
 * Tokens against a grammar. What bytes a token stands for is tokenizer_bytes.c's.
 */
#include "engine/text/grammar/token_mask.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/base/arena.h"

/* A longer token is never needed, and not allowed. */
#define TOKEN_BYTES_MAX 64u

struct entry {
    char text[TOKEN_BYTES_MAX];
    uint32_t id;
    uint8_t bytes;
    uint8_t shared; /* bytes in common with the entry before */
    bool plain;     /* may be in a string, wherever that is */
    bool word;      /* of the chat format: in no string */
};

struct mp_token_mask {
    struct entry *entries; // (count), sorted by bytes
    uint32_t count;
    uint32_t *entry_of;              // (vocab): or `count`: none
    uint8_t *allowed;                // (vocab)
    struct mp_grammar_state *states; // (TOKEN_BYTES_MAX + 1): behind each byte of a token
    uint32_t vocab;
    void *block;
};

static int by_bytes(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    const int order = memcmp(x->text, y->text, x->bytes < y->bytes ? x->bytes : y->bytes);

    if (order != 0)
        return order;
    return x->bytes != y->bytes ? (int)x->bytes - (int)y->bytes : (x->id < y->id ? -1 : 1);
}

static bool is_plain(const struct entry *entry)
{
    for (unsigned i = 0; i < entry->bytes; i++) {
        if ((uint8_t)entry->text[i] < 0x20 || entry->text[i] == '"' || entry->text[i] == '\\')
            return false;
    }
    return mp_is_utf8(entry->text, entry->bytes);
}

static void take_arrays(struct mp_token_mask *mask, struct mp_arena *arena)
{
    mask->entries = mp_arena_take(arena, mask->vocab, sizeof(*mask->entries));
    mask->entry_of = mp_arena_take(arena, mask->vocab, sizeof(*mask->entry_of));
    mask->states = mp_arena_take(arena, TOKEN_BYTES_MAX + 1, sizeof(*mask->states));
    mask->allowed = mp_arena_take(arena, mask->vocab, 1);
}

static size_t word_text(const struct mp_tokenizer *tok, uint32_t id,
                        const struct mp_token_words *words, char text[TOKEN_BYTES_MAX])
{
    for (uint32_t i = 0; i < words->count; i++) {
        size_t bytes;
        const char *content = mp_tokenizer_content(tok, id, &bytes);

        if (words->ids[i] != id || content == NULL || bytes > TOKEN_BYTES_MAX)
            continue;
        memcpy(text, content, bytes);
        return bytes;
    }
    return 0;
}

static void fill(struct mp_token_mask *mask, const struct mp_tokenizer *tok,
                 const struct mp_token_words *words)
{
    for (uint32_t id = 0; id < mask->vocab; id++) {
        struct entry *entry = &mask->entries[mask->count];
        size_t bytes = mp_tokenizer_bytes(tok, id, entry->text, sizeof(entry->text));

        if (bytes == 0) {
            bytes = word_text(tok, id, words, entry->text);
            entry->word = bytes > 0;
        }
        if (bytes == 0)
            continue;
        entry->id = id;
        entry->bytes = (uint8_t)bytes;
        entry->plain = !entry->word && is_plain(entry);
        mask->count++;
    }
    qsort(mask->entries, mask->count, sizeof(*mask->entries), by_bytes);
    for (uint32_t id = 0; id < mask->vocab; id++)
        mask->entry_of[id] = mask->count;
    for (uint32_t i = 0; i < mask->count; i++) {
        struct entry *entry = &mask->entries[i];

        mask->entry_of[entry->id] = i;
        while (i > 0 && entry->shared < entry->bytes && entry->shared < entry[-1].bytes &&
               entry->text[entry->shared] == entry[-1].text[entry->shared])
            entry->shared++;
    }
}

enum mp_status mp_token_mask_create(const struct mp_tokenizer *tok,
                                    const struct mp_token_words *words,
                                    struct mp_token_mask **mask_p)
{
    struct mp_token_mask *mask = calloc(1, sizeof(*mask));
    struct mp_arena arena = { 0 };
    enum mp_status status;

    if (mask == NULL)
        return mp_fail_no_memory("the table of tokens", sizeof(*mask));
    mask->vocab = mp_tokenizer_vocab_count(tok);
    take_arrays(mask, &arena);
    status = mp_arena_open(&arena, "the table of tokens");
    if (status != MP_OK) {
        free(mask);
        return status;
    }
    take_arrays(mask, &arena);
    mask->block = arena.block;
    fill(mask, tok, words);
    *mask_p = mask;
    return MP_OK;
}

void mp_token_mask_destroy(struct mp_token_mask *mask)
{
    if (mask == NULL)
        return;
    free(mask->block);
    free(mask);
}

/*
 * Fill in `allowed`; true if any token is. states[n] is that behind n bytes of the entry that was
 * followed last, of which `good` bytes may come.
 */
static bool find_allowed(struct mp_token_mask *mask, const struct mp_grammar *grammar)
{
    const bool in_string = mp_grammar_in_string(grammar, &mask->states[0]);
    unsigned good = 0, shared = TOKEN_BYTES_MAX; /* with the entry that was followed last */
    bool any = false;

    memset(mask->allowed, 0, mask->vocab);
    for (uint32_t i = 0; i < mask->count; i++) {
        const struct entry *entry = &mask->entries[i];
        bool allowed = in_string && entry->plain;

        shared = entry->shared < shared ? entry->shared : shared;
        if (!allowed && shared <= good) {
            for (good = shared; good < entry->bytes; good++) {
                if (!mp_grammar_step(grammar, &mask->states[good], (uint8_t)entry->text[good],
                                     &mask->states[good + 1]))
                    break;
            }
            allowed = good == entry->bytes && !(in_string && entry->word);
            shared = TOKEN_BYTES_MAX;
        }
        mask->allowed[entry->id] = allowed;
        any = any || allowed;
    }
    return any;
}

enum mp_status mp_token_mask_apply(struct mp_token_mask *mask, const struct mp_grammar *grammar,
                                   const struct mp_grammar_state *state, const uint32_t *ends,
                                   uint32_t end_count, float *logits, uint32_t vocab)
{
    bool any;

    mask->states[0] = *state;
    any = find_allowed(mask, grammar);
    if (mp_grammar_can_end(grammar, state)) {
        for (uint32_t i = 0; i < end_count; i++) {
            if (ends[i] < mask->vocab)
                mask->allowed[ends[i]] = 1;
            any = any || ends[i] < mask->vocab;
        }
    }
    if (!any)
        return mp_fail(MP_ERR_CONFIG, "E_FORMAT_STUCK",
                       "no token of the model continues the text as 'response_format' or "
                       "'tool_choice' wants it");
    for (uint32_t id = 0; id < vocab; id++) {
        /* One that is not a number stays: the sampler refuses it. */
        if ((id >= mask->vocab || !mask->allowed[id]) && !isnan(logits[id]))
            logits[id] = -INFINITY;
    }
    return MP_OK;
}

void mp_token_mask_follow(struct mp_token_mask *mask, const struct mp_grammar *grammar,
                          uint32_t token, struct mp_grammar_state *state)
{
    const uint32_t at = token < mask->vocab ? mask->entry_of[token] : mask->count;

    if (at == mask->count)
        return; /* an end token */
    mask->states[0] = *state;
    for (unsigned i = 0; i < mask->entries[at].bytes; i++) {
        struct mp_grammar_state *next = &mask->states[1 + i % 2];

        if (!mp_grammar_step(grammar, state, (uint8_t)mask->entries[at].text[i], next))
            return;
        *state = *next;
    }
}
