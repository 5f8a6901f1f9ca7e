#ifndef MP_ENGINE_TOKENIZER_IMPL_H
#define MP_ENGINE_TOKENIZER_IMPL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "vmm/format/gguf.h"
#include "vmm/format/json.h"
#include "engine/text/tokenizer.h"

/*
 * Private to the tokenizer: shared by its files.
 *
 *   tokenizer.c           the public object, files, configuration
 *   tokenizer_gguf.c      the tokenizer.json that a GGUF file's metadata stands for
 *   tokenizer_pre.c       pre-tokenizers by the names that GGUF files have for them
 *   tokenizer_load.c      vocabulary and added tokens from JSON
 *   tokenizer_merges.c    merges from JSON
 *   tokenizer_stages.c    normalizer, pre-tokenizer and post-processor from JSON
 *   tokenizer_vocab.c     the hash tables of tokens and merges
 *   tokenizer_text.c      byte buffers, UTF-8, running the normalizer
 *   tokenizer_forms.c     the normal forms of Unicode
 *   tokenizer_patterns.c  the patterns of pre-tokenizers
 *   tokenizer_split.c     pre-tokenization
 *   tokenizer_added.c     finding added tokens in text
 *   tokenizer_bpe.c       merging
 *   tokenizer_pieces.c    vocabularies with scores, as SentencePiece has them
 *   tokenizer_encode.c    from text to ids
 *   tokenizer_decode.c    decoders from JSON, from ids to text
 *   tokenizer_bytes.c     the bytes of one token
 *
 * Stages of encoding: spans are made valid UTF-8 and joined; added tokens that are matched before
 * normalization cut it into segments; each segment is normalized and cut again at the added tokens
 * that are matched after it; the rest passes the pre-tokenizer's stages, which yield the words that
 * are merged.
 */

/* ---- bytes (tokenizer_text.c) */

struct mp_tok_buf {
    char *data;
    size_t bytes;
    size_t capacity;
    size_t limit; /* more than that is E_TOK_GROWTH; 0: none */
};

/*
 * Limit of the length of `bytes` bytes after normalization. Replacements of a malicious file could
 * multiply a text without bound; no ordinary file comes near this limit.
 */
static inline size_t mp_tok_growth_limit(size_t bytes)
{
    return 64 * bytes + 65536;
}

enum mp_status mp_tok_buf_append(struct mp_tok_buf *buf, const void *data,
                                 size_t bytes) MP_MUST_CHECK;
void mp_tok_buf_free(struct mp_tok_buf *buf);

#define MP_TOK_REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */
#define MP_TOK_REPLACEMENT_BYTES 3

/* Bytes of the character that starts with `lead` in valid UTF-8. */
static inline size_t mp_tok_utf8_bytes(unsigned char lead)
{
    return lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

/* Write a code point as UTF-8; returns its bytes. */
size_t mp_tok_utf8_put(char out[4], uint32_t code);

/* The code point at valid UTF-8. */
uint32_t mp_tok_utf8_get(const char *text);

/*
 * Look at the beginning of `bytes` > 0 bytes: *valid_p says whether a character is there, and the
 * result is its bytes or those of the longest ill-formed part. With `more` to come, 0 means that
 * what is there may be the beginning of a character.
 */
size_t mp_tok_utf8_scan(const char *text, size_t bytes, bool more, bool *valid_p);

/* Append text with ill-formed parts replaced by U+FFFD. */
enum mp_status mp_tok_append_valid(struct mp_tok_buf *buf, const char *text,
                                   size_t bytes) MP_MUST_CHECK;

/* Append text with each `from` replaced by `to`. */
enum mp_status mp_tok_append_replaced(struct mp_tok_buf *buf, const char *text, size_t bytes,
                                      const char *from, size_t from_bytes, const char *to,
                                      size_t to_bytes) MP_MUST_CHECK;

/* The normal forms of Unicode (tokenizer_forms.c). */
enum mp_tok_form { MP_TOK_NFC, MP_TOK_NFD, MP_TOK_NFKC, MP_TOK_NFKD };

enum mp_status mp_tok_append_form(struct mp_tok_buf *buf, const char *text, size_t bytes,
                                  enum mp_tok_form form) MP_MUST_CHECK;

/* ---- tokens and merges (tokenizer_vocab.c) */

enum mp_tok_flags {
    MP_TOK_USED = 1,
    MP_TOK_MODEL = 2, /* in the model's own vocabulary, so merges and words can become it */
    MP_TOK_ADDED = 4,
    MP_TOK_SPECIAL = 8,
    MP_TOK_LSTRIP = 16,
    MP_TOK_RSTRIP = 32,
    MP_TOK_SINGLE_WORD = 64,
    MP_TOK_NORMALIZED = 128,
};

struct mp_tok_vocab {
    uint32_t count;   /* highest id + 1 */
    uint8_t *flags;   /* [count], enum mp_tok_flags */
    uint32_t *offset; /* [count], into arena, where each content ends with NUL */
    uint32_t *bytes;  /* [count] */
    struct mp_tok_buf arena;
    uint32_t *buckets; /* [bucket_mask + 1], id or MP_TOKEN_NONE, by hash of the content */
    uint32_t bucket_mask;
};

/* Make room for ids below `count` and `tokens` tokens. */
enum mp_status mp_tok_vocab_init(struct mp_tok_vocab *vocab, uint32_t count,
                                 uint64_t tokens) MP_MUST_CHECK;
void mp_tok_vocab_fini(struct mp_tok_vocab *vocab);

/* Add a token with an unused id and a new content. `file` is for messages. */
enum mp_status mp_tok_vocab_add(struct mp_tok_vocab *vocab, const char *file, const char *content,
                                size_t bytes, uint32_t id, uint8_t flags) MP_MUST_CHECK;
uint32_t mp_tok_vocab_find(const struct mp_tok_vocab *vocab, const char *content, size_t bytes);

/* Never NULL; `bytes[id]` bytes. An arena in which every token is empty has no memory. */
static inline const char *mp_tok_vocab_content(const struct mp_tok_vocab *vocab, uint32_t id)
{
    return vocab->bytes[id] == 0 ? "" : vocab->arena.data + vocab->offset[id];
}

/* The id if it is a token of the model, else MP_TOKEN_NONE. */
static inline uint32_t mp_tok_vocab_find_model(const struct mp_tok_vocab *vocab,
                                               const char *content, size_t bytes)
{
    const uint32_t id = mp_tok_vocab_find(vocab, content, bytes);

    return id != MP_TOKEN_NONE && (vocab->flags[id] & MP_TOK_MODEL) != 0 ? id : MP_TOKEN_NONE;
}

struct mp_tok_merges {
    uint32_t count;
    uint32_t *result; /* [count], id that the merge of this rank makes */
    uint64_t *pairs;  /* [bucket_mask + 1], left id << 32 | right id, or UINT64_MAX */
    uint32_t *ranks;  /* [bucket_mask + 1] */
    uint32_t bucket_mask;
};

enum mp_status mp_tok_merges_init(struct mp_tok_merges *merges, uint32_t count) MP_MUST_CHECK;
void mp_tok_merges_fini(struct mp_tok_merges *merges);

/* Rank `rank` becomes left + right -> result; the last of equal pairs counts. */
enum mp_status mp_tok_merges_add(struct mp_tok_merges *merges, const char *file, uint32_t rank,
                                 uint32_t left, uint32_t right, uint32_t result) MP_MUST_CHECK;

/* The rank, or MP_TOKEN_NONE. */
uint32_t mp_tok_merges_find(const struct mp_tok_merges *merges, uint32_t left, uint32_t right);

/* ---- added tokens (tokenizer_added.c) */

struct mp_tok_pattern {
    char *text;
    uint32_t bytes;
    uint32_t id;
};

/* Patterns sorted by bytes; those that begin with byte b are [first[b], first[b + 1]). */
struct mp_tok_matcher {
    struct mp_tok_pattern *patterns;
    uint32_t count;
    uint32_t capacity;
    uint32_t first[257];
};

/* Takes a copy of `text`. */
enum mp_status mp_tok_matcher_add(struct mp_tok_matcher *matcher, const char *text, size_t bytes,
                                  uint32_t id) MP_MUST_CHECK;
void mp_tok_matcher_seal(struct mp_tok_matcher *matcher);
void mp_tok_matcher_fini(struct mp_tok_matcher *matcher);

/* A piece of text: an added token, or (id MP_TOKEN_NONE) text between them. */
struct mp_tok_part {
    uint32_t id;
    size_t begin, end;
};

struct mp_tok_scan {
    const struct mp_tok_vocab *vocab;
    const struct mp_tok_matcher *matcher;
    const char *text;
    size_t bytes;
    /* Whether special tokens may be recognised in [begin, end). */
    bool (*allowed)(void *context, size_t begin, size_t end);
    void *context;
    /* State, to be zero at the start. */
    size_t searched; /* matches are looked for from here */
    size_t done;     /* text before it was given out */
    struct mp_tok_part pending;
    bool has_pending;
};

/* The next part that is not empty; false at the end. */
bool mp_tok_scan_next(struct mp_tok_scan *scan, struct mp_tok_part *part);

/* ---- stages */

enum mp_tok_norm_kind { MP_TOK_NORM_FORM, MP_TOK_NORM_PREPEND, MP_TOK_NORM_REPLACE };

struct mp_tok_norm {
    enum mp_tok_norm_kind kind;
    enum mp_tok_form form;
    struct mp_tok_buf from; /* REPLACE */
    struct mp_tok_buf to;   /* REPLACE, PREPEND */
};

enum mp_tok_pre_kind {
    MP_TOK_PRE_SPLIT,
    MP_TOK_PRE_BYTE_LEVEL,
    MP_TOK_PRE_METASPACE,
    MP_TOK_PRE_BEHIND,
};
enum mp_tok_prepend { MP_TOK_PREPEND_ALWAYS, MP_TOK_PREPEND_FIRST, MP_TOK_PREPEND_NEVER };

struct mp_tok_pre {
    enum mp_tok_pre_kind kind;
    pcre2_code *code;            /* SPLIT, and BYTE_LEVEL with use_regex */
    bool drop_gaps;              /* SPLIT: text between matches is dropped, else a word */
    bool prefix_space;           /* BYTE_LEVEL */
    struct mp_tok_buf mark;      /* METASPACE: what stands for a space; BEHIND: what ends a piece */
    enum mp_tok_prepend prepend; /* METASPACE */
    bool cut;                    /* METASPACE: a word starts at each mark */
};

enum mp_tok_dec_kind { MP_TOK_DEC_REPLACE, MP_TOK_DEC_METASPACE };

struct mp_tok_dec {
    enum mp_tok_dec_kind kind;
    struct mp_tok_buf from, to; /* METASPACE: from is the mark */
    bool drop_first;            /* METASPACE: marks of the first token are dropped */
};

#define MP_TOK_STAGES_MAX 16

/*
 * How a word becomes tokens: by merges in the order of their ranks; by merging the two neighbours
 * that make the piece of the highest score (SentencePiece's BPE, only from GGUF files); or as the
 * pieces with the highest sum of scores (Unigram).
 */
/* The name that only the loader of GGUF files has for the second one. */
#define MP_TOK_SCORED_TYPE "ScoredBPE"

/* Of SentencePiece, for a space. */
#define MP_TOK_MARK "\xe2\x96\x81"

enum mp_tok_model { MP_TOK_MERGES, MP_TOK_SCORES, MP_TOK_UNIGRAM };

struct mp_tokenizer {
    struct mp_tok_vocab vocab;
    enum mp_tok_model model;
    struct mp_tok_merges merges; /* MERGES */
    double *scores;              /* UNIGRAM, [vocab.count] */
    double unk_score;            /* UNIGRAM: of a character that is no piece */
    uint32_t *sorted;            /* UNIGRAM: the pieces in the order of their bytes */
    uint32_t sorted_count;
    uint32_t *score_ranks;  /* SCORES, [vocab.count]: 0 has the highest score; equal ones share */
    uint32_t byte_ids[256]; /* byte level: token of a byte; byte fallback: its <0xNN> */
    bool byte_level;
    bool byte_fallback;
    bool fuse_unk;
    bool ignore_merges;
    uint32_t unk, bos, eos;

    bool special_normalized; /* some special token is matched after normalization */
    struct mp_tok_matcher raw, normalized;
    uint32_t *pattern_of; /* [vocab.count], index in normalized.patterns + 1 or 0; may be NULL */

    struct mp_tok_norm norms[MP_TOK_STAGES_MAX];
    uint32_t norm_count;
    struct mp_tok_pre pres[MP_TOK_STAGES_MAX];
    uint32_t pre_count;
    struct mp_ids prefix, suffix; /* of the post-processor */

    struct mp_tok_dec decs[MP_TOK_STAGES_MAX];
    uint32_t dec_count;
    bool dec_bytes;      /* tokens are byte-level */
    bool dec_fallback;   /* <0xNN> are bytes */
    bool dec_join_space; /* no decoder: tokens are joined by spaces */
    char dec_strip[4];   /* character that is stripped at the beginning of the text */
    uint32_t dec_strip_bytes;
    uint32_t dec_strip_count;
};

/* What reading the file needs to know for messages. */
struct mp_tok_source {
    const char *name;           /* the file */
    char shown[MP_QUOTE_BYTES]; /* the same, quoted */
};

/* The value of a tokenizer.json. `name` stands for the file in messages. */
enum mp_status mp_tok_from_json(const char *name, const json_t *root,
                                struct mp_tokenizer **tok_p) MP_MUST_CHECK;

/* From metadata; E_FILE_MISSING if there is no vocabulary. */
enum mp_status mp_tok_from_gguf(const struct mp_gguf *gguf,
                                struct mp_tokenizer **tok_p) MP_MUST_CHECK;

/* What is in a tokenizer.json but not in the metadata of a GGUF file, for each name that those have
 * for it. */
#define MP_TOK_GGUF_PATTERNS_MAX 6

struct mp_tok_gguf_pre {
    const char *name;                               /* tokenizer.ggml.pre */
    const char *normalizer;                         /* NULL: none */
    const char *patterns[MP_TOK_GGUF_PATTERNS_MAX]; /* of words, one stage each */
    bool own;                                       /* then that of ByteLevel itself */
    bool ignore_merges, add_bos;
};

/* NULL after the last one. */
const struct mp_tok_gguf_pre *mp_tok_gguf_pre_at(size_t index);

/* Refuse fields of an object that are not in the NULL-terminated list. */
enum mp_status mp_tok_check_keys(const struct mp_tok_source *source, const json_t *object,
                                 const char *what, const char *const *known) MP_MUST_CHECK;

/* "<what> of type '<type>' in '<file>' is not supported; ..." */
enum mp_status mp_tok_refuse_type(const struct mp_tok_source *source, const char *what,
                                  const char *type) MP_COLD;

enum mp_status mp_tok_load_model(const struct mp_tok_source *source, const json_t *root,
                                 struct mp_tokenizer *tok) MP_MUST_CHECK;
/* The vocabulary of a model with scores, a list of [piece, score]; `holes`: null may stand for
 * either. The second one reads it, and the unknown piece. */
enum mp_status mp_tok_check_pieces(const struct mp_tok_source *source, const json_t *vocab,
                                   bool holes) MP_MUST_CHECK;
enum mp_status mp_tok_load_pieces(const struct mp_tok_source *source, const json_t *model,
                                  const json_t *vocab, struct mp_tokenizer *tok) MP_MUST_CHECK;
enum mp_status mp_tok_load_merges(const struct mp_tok_source *source, const json_t *array,
                                  struct mp_tokenizer *tok) MP_MUST_CHECK;
enum mp_status mp_tok_load_matchers(const struct mp_tok_source *source,
                                    struct mp_tokenizer *tok) MP_MUST_CHECK;
enum mp_status mp_tok_load_normalizer(const struct mp_tok_source *source, const json_t *root,
                                      struct mp_tokenizer *tok) MP_MUST_CHECK;
enum mp_status mp_tok_load_pre_tokenizer(const struct mp_tok_source *source, const json_t *root,
                                         struct mp_tokenizer *tok) MP_MUST_CHECK;
enum mp_status mp_tok_load_post_processor(const struct mp_tok_source *source, const json_t *root,
                                          struct mp_tokenizer *tok) MP_MUST_CHECK;
enum mp_status mp_tok_load_decoder(const struct mp_tok_source *source, const json_t *root,
                                   struct mp_tokenizer *tok) MP_MUST_CHECK;

/* A string field of at most 1 KiB, with its length; NUL is allowed inside. */
enum mp_status mp_tok_load_string(const struct mp_tok_source *source, const json_t *object,
                                  const char *key, const char *what,
                                  struct mp_tok_buf *out) MP_MUST_CHECK;

/* The pattern of {"String": text} for Replace; regular expressions are refused. */
enum mp_status mp_tok_load_pattern_string(const struct mp_tok_source *source, const json_t *object,
                                          const char *what, struct mp_tok_buf *out) MP_MUST_CHECK;

/* ---- pre-tokenizing and merging (tokenizer_split.c, tokenizer_bpe.c) */

/*
 * Compile the pattern if it is one of the known ones; `published` is its text in the file.
 * *code_p is NULL if it is not.
 */
enum mp_status mp_tok_pattern_compile(const char *published, pcre2_code **code_p) MP_MUST_CHECK;

/* True if a pattern is this known one; files may have ends of lines themselves in it. */
bool mp_tok_pattern_is(const char *given, const char *known);

/* \s and \w of the reference. */
bool mp_tok_is_space(uint32_t code);
bool mp_tok_is_word(uint32_t code);

/* The pattern of ByteLevel with use_regex. */
extern const char mp_tok_pattern_gpt2[];
extern const char mp_tok_pattern_qwen2[], mp_tok_pattern_llama3[], mp_tok_pattern_qwen35[],
    mp_tok_pattern_gpt4o[], mp_tok_pattern_tekken[], mp_tok_pattern_kimi[],
    mp_tok_pattern_digits3[], mp_tok_pattern_digit[], mp_tok_pattern_digits[],
    mp_tok_pattern_newline[], mp_tok_pattern_kana[], mp_tok_pattern_asian[],
    mp_tok_pattern_end_blanks[], mp_tok_pattern_deepseek3[], mp_tok_pattern_deepseek_letters[],
    mp_tok_pattern_deepseek_marks[], mp_tok_pattern_coder_letters[], mp_tok_pattern_coder_marks[];

/* The printable character that stands for a byte in a byte-level vocabulary. */
uint32_t mp_tok_byte_char(unsigned char byte);

/* Its inverse: 0..255, or -1. */
int mp_tok_char_byte(uint32_t code);

struct mp_tok_symbol {
    uint32_t id;           /* MP_TOKEN_NONE once it was merged into another */
    uint32_t begin, bytes; /* SCORES: its text; no bytes once it was merged into another */
    uint32_t prev, next;
};

/* UNIGRAM: the best way to a place in a word. */
struct mp_tok_node {
    double score;
    uint32_t begin, id; /* of the last piece */
};

/* Memory and state of one encoding; nothing is shared between calls. */
struct mp_tok_encoder {
    const struct mp_tokenizer *tok;
    struct mp_ids *out;
    pcre2_match_data *match;
    pcre2_match_context *match_context;
    pcre2_jit_stack *jit_stack;
    struct mp_tok_buf stages[MP_TOK_STAGES_MAX];
    struct mp_tok_buf word;
    struct mp_tok_symbol *symbols;
    size_t symbol_count, symbol_capacity;
    uint64_t *heap; /* rank << 32 | position, the least first */
    size_t heap_count, heap_capacity;
    struct mp_tok_node *nodes;
    size_t node_capacity;
};

/* Append the ids of a segment between added tokens. `first`: it begins where the text begins. */
enum mp_status mp_tok_pre_tokenize(struct mp_tok_encoder *enc, const char *text, size_t bytes,
                                   bool first) MP_MUST_CHECK;

/* Append the ids of one word; in a byte-level vocabulary the word is still plain text. */
enum mp_status mp_tok_bpe(struct mp_tok_encoder *enc, const char *word, size_t bytes) MP_MUST_CHECK;

/* The same for the models with scores. */
enum mp_status mp_tok_scored(struct mp_tok_encoder *enc, const char *word,
                             size_t bytes) MP_MUST_CHECK;
enum mp_status mp_tok_unigram(struct mp_tok_encoder *enc, const char *word,
                              size_t bytes) MP_MUST_CHECK;

/* What mp_tok_bpe() and mp_tok_scored() merge with: symbols, and pairs by rank and place. */
enum mp_status mp_tok_push_symbol(struct mp_tok_encoder *enc,
                                  struct mp_tok_symbol symbol) MP_MUST_CHECK;
enum mp_status mp_tok_heap_push(struct mp_tok_encoder *enc, uint64_t entry) MP_MUST_CHECK;
uint64_t mp_tok_heap_pop(struct mp_tok_encoder *enc);

/* Whether all bytes of a character have a <0xNN>. */
bool mp_tok_has_bytes(const struct mp_tokenizer *tok, const char *text, size_t bytes);

/* Run the normalizer: the result is `text` itself or lies in one of the two buffers. */
enum mp_status mp_tok_normalize(const struct mp_tokenizer *tok, struct mp_tok_buf work[2],
                                const char **text_p, size_t *bytes_p) MP_MUST_CHECK;

#endif
