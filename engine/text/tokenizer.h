#ifndef MP_ENGINE_TOKENIZER_H
#define MP_ENGINE_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vmm/base/error.h"

/*
 * Text to token ids and back, from a Hugging Face tokenizer.json: byte-level BPE (GPT-2, Qwen,
 * Llama 3), BPE with byte fallback (Llama 2, Mixtral, Gemma) and Unigram; or from the metadata of a
 * GGUF file: byte-level BPE and SentencePiece's BPE. The ids are those of the `tokenizers` and
 * `sentencepiece` libraries. Features of a file that are not supported (other models, normalizers,
 * decoders, unknown Split patterns, dropout, truncation, padding, ...) are refused by name when the
 * file is read; no part of a file is ignored.
 *
 * Thread safety: a tokenizer is constant after loading, and any number of threads may use it. A
 * detokenizer is used by one thread at a time.
 *
 * Failures: MP_ERR_MODEL with a code E_TOK_* for whatever is wrong with the files, MP_ERR_IO for
 * files that cannot be read, MP_ERR_INVALID for ids and texts out of range, MP_ERR_NO_MEMORY.
 */
struct mp_tokenizer;

#define MP_TOKEN_NONE UINT32_MAX /* "the model has no such token" */

/* Caps on what files and callers may ask for. */
#define MP_TOK_FILE_BYTES_MAX (256u << 20)
#define MP_TOK_CONFIG_BYTES_MAX (16u << 20)
#define MP_TOK_VOCAB_MAX (1u << 22)   /* ids are below it */
#define MP_TOK_TOKEN_BYTES_MAX 65536u /* one token */
#define MP_TOK_MERGES_MAX (1u << 21)
#define MP_TOK_TEXT_BYTES_MAX (1u << 28) /* one text to encode */

/* Number of valid UTF-8 bytes before the first invalid one; `bytes` if all are valid, as in decoded
 * text. */
size_t mp_utf8_bytes(const char *text, size_t bytes);
bool mp_is_utf8(const char *text, size_t bytes);

/*
 * `model` is a directory: read its tokenizer.json, and tokenizer_config.json for the names of the
 * beginning and end tokens if there is one. Or a GGUF file: make the tokenizer that its metadata
 * describes. MP_ERR_MODEL E_FILE_MISSING: the model has none.
 */
enum mp_status mp_tokenizer_load(const char *model, struct mp_tokenizer **tok_p) MP_MUST_CHECK;

/*
 * The same from memory: `json` is the text of a tokenizer.json, `config` that of a
 * tokenizer_config.json or NULL. `name` stands for the file in error texts.
 */
enum mp_status mp_tokenizer_parse(const char *name, const char *json, size_t json_bytes,
                                  const char *config, size_t config_bytes,
                                  struct mp_tokenizer **tok_p) MP_MUST_CHECK;

/* Accepts NULL. */
void mp_tokenizer_destroy(struct mp_tokenizer *tok);

/* The highest id + 1; ids below it may still be unused. */
uint32_t mp_tokenizer_vocab_count(const struct mp_tokenizer *tok);

/*
 * MP_OK if every id fits an embedding of `rows` rows (fewer ids than rows are normal), else
 * MP_ERR_MODEL E_TOK_VOCAB_ROWS.
 */
enum mp_status mp_tokenizer_check_rows(const struct mp_tokenizer *tok, uint64_t rows) MP_MUST_CHECK;

/* The id of the token with this content, as the file spells it; MP_TOKEN_NONE if none. */
uint32_t mp_tokenizer_find(const struct mp_tokenizer *tok, const char *content, size_t bytes);

/*
 * The content of a token as the file spells it (bytes of a byte-level vocabulary are not
 * decoded); NUL-terminated, owned by the tokenizer; NULL for ids that are not used.
 */
const char *mp_tokenizer_content(const struct mp_tokenizer *tok, uint32_t id, size_t *bytes_p);

/*
 * The bytes that a token stands for in the middle of a text, which need not be whole characters.
 * 0: it has none of its own (special and added tokens, the unknown one, ids that are not used,
 * tokenizers that join tokens by blanks), more than `capacity`, or there is no memory.
 */
size_t mp_tokenizer_bytes(const struct mp_tokenizer *tok, uint32_t id, char *out, size_t capacity);

/* Whether the file declares the token special: not part of the text of an answer. */
bool mp_tokenizer_is_special(const struct mp_tokenizer *tok, uint32_t id);

/* The beginning and end tokens of tokenizer_config.json, or MP_TOKEN_NONE. */
uint32_t mp_tokenizer_bos(const struct mp_tokenizer *tok);
uint32_t mp_tokenizer_eos(const struct mp_tokenizer *tok);

enum mp_encode_flags {
    /* Add the tokens of the file's post-processor around the text (mostly <s>). */
    MP_ENCODE_ADD_SPECIAL = 1,
    /*
     * Text that spells a special token becomes that token. Without the flag it is plain text, as
     * it must be for text from users: only templates and files of our own set it. Added tokens
     * that the file does not call special are always recognised.
     */
    MP_ENCODE_PARSE_SPECIAL = 2,
};

/* A growing list of token ids; all zero is empty. */
struct mp_ids {
    uint32_t *ids;
    size_t count;
    size_t capacity;
};

enum mp_status mp_ids_append(struct mp_ids *ids, uint32_t id) MP_MUST_CHECK;
void mp_ids_free(struct mp_ids *ids);

/*
 * Append the tokens of a text, which need not end with NUL. Invalid UTF-8 becomes U+FFFD, one for
 * each maximal ill-formed part (as Python's errors="replace"). On failure `out` holds what it
 * held before. Time is O(bytes log bytes).
 */
enum mp_status mp_tokenizer_encode(const struct mp_tokenizer *tok, const char *text, size_t bytes,
                                   unsigned flags, struct mp_ids *out) MP_MUST_CHECK;

/* A part of a text; `special`: special tokens are recognised in this part. */
struct mp_span {
    const char *text;
    size_t bytes;
    bool special;
};

/*
 * Append the tokens of the concatenation of `count` spans, so that a template and a user's text in
 * it are tokenized as one text, and yet the user's part cannot spell special tokens. Only the flag
 * ADD_SPECIAL is used.
 */
enum mp_status mp_tokenizer_encode_spans(const struct mp_tokenizer *tok,
                                         const struct mp_span *spans, size_t count, unsigned flags,
                                         struct mp_ids *out) MP_MUST_CHECK;

enum mp_decode_flags {
    MP_DECODE_SKIP_SPECIAL = 1, /* special tokens give no text */
    /* The ids continue a text: the blank that many files drop at the beginning of a text is kept.
     */
    MP_DECODE_CONTINUES = 2,
};

/*
 * The text of `count` ids as a new NUL-terminated string, to be freed by the caller. Always valid
 * UTF-8: bytes that are not become U+FFFD. Ids that are out of range or not used are
 * MP_ERR_INVALID E_TOK_ID.
 */
enum mp_status mp_tokenizer_decode(const struct mp_tokenizer *tok, const uint32_t *ids,
                                   size_t count, unsigned flags, char **text_p,
                                   size_t *bytes_p) MP_MUST_CHECK;

/*
 * Streaming decoder: the texts that push() and finish() give, put together, are what
 * mp_tokenizer_decode() gives for all ids. Each is valid UTF-8 and may be empty: an incomplete
 * character is held back until it is complete or known to be broken, and with byte fallback a run
 * of byte tokens until it ends, since one bad byte turns the whole run into U+FFFD.
 *
 * `*text_p` lies in the detokenizer until the next call on it; it ends with NUL, which is not
 * counted. After finish() the detokenizer is as new. A failed push() changes nothing.
 */
struct mp_detok;

enum mp_status mp_detok_create(const struct mp_tokenizer *tok, unsigned flags,
                               struct mp_detok **detok_p) MP_MUST_CHECK;
void mp_detok_destroy(struct mp_detok *detok);
enum mp_status mp_detok_push(struct mp_detok *detok, uint32_t id, const char **text_p,
                             size_t *bytes_p) MP_MUST_CHECK;
enum mp_status mp_detok_finish(struct mp_detok *detok, const char **text_p,
                               size_t *bytes_p) MP_MUST_CHECK;

#endif
