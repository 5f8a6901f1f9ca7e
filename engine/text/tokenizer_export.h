#ifndef MP_ENGINE_TOKENIZER_EXPORT_H
#define MP_ENGINE_TOKENIZER_EXPORT_H

#include "vmm/format/json.h"

/* What GGUF files call the parts of a tokenizer; for a tokenizer.json that was accepted. */

/* Kinds of tokens, by their numbers in GGUF files. */
enum mp_gguf_token_kind {
    MP_GGUF_TOKEN_NORMAL = 1,
    MP_GGUF_TOKEN_UNKNOWN = 2,
    MP_GGUF_TOKEN_CONTROL = 3,
    MP_GGUF_TOKEN_USER = 4,
    MP_GGUF_TOKEN_UNUSED = 5,
    MP_GGUF_TOKEN_BYTE = 6,
};

/* The name that GGUF files have for how this file cuts text into words; NULL: none that this engine
 * knows. A constant. */
const char *mp_tokenizer_gguf_pre(const json_t *root);

/* Are words not cut but spaces marked, as in Gemma's files, which GGUF files call "gemma4"? */
bool mp_tokenizer_gguf_marked(const json_t *root);

/* Are spaces marked and pieces merged until none fit, as SentencePiece does, which GGUF files call
 * "llama"? *prefix_p: a space goes before every text. Whether its merges are those that scores give
 * is for mp_convert_scores() to say. */
bool mp_tokenizer_gguf_scored(const json_t *root, bool *prefix_p);

#endif
