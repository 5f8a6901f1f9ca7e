#ifndef MP_TOKEN_MASK_H
#define MP_TOKEN_MASK_H

#include "engine/text/grammar/grammar.h"
#include "engine/text/tokenizer.h"

/*
 * Which tokens may come next in a text that a grammar rules. The tokens of a vocabulary are sorted
 * by their bytes, so that what they have in common is looked at once.
 *
 * Thread safety: one thread at a time.
 */
struct mp_token_mask;

#define MP_TOKEN_WORDS_MAX 32

/* Special and added tokens that may come where a grammar has their text. */
struct mp_token_words {
    uint32_t ids[MP_TOKEN_WORDS_MAX]; // (count)
    uint32_t count;
};

enum mp_status mp_token_mask_create(const struct mp_tokenizer *tok,
                                    const struct mp_token_words *words,
                                    struct mp_token_mask **mask_p) MP_MUST_CHECK;
void mp_token_mask_destroy(struct mp_token_mask *mask);

/*
 * Set the logits of tokens that may not come to -INFINITY; those of `ends` (the model's end tokens)
 * stay where the text may end. MP_ERR_CONFIG E_FORMAT_STUCK: no token may come.
 */
enum mp_status mp_token_mask_apply(struct mp_token_mask *mask, const struct mp_grammar *grammar,
                                   const struct mp_grammar_state *state, const uint32_t *ends,
                                   uint32_t end_count, float *logits, uint32_t vocab) MP_MUST_CHECK;

/* The state behind a token that may come. */
void mp_token_mask_follow(struct mp_token_mask *mask, const struct mp_grammar *grammar,
                          uint32_t token, struct mp_grammar_state *state);

#endif
