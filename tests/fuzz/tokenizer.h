#ifndef MP_TEST_FUZZ_TOKENIZER_H
#define MP_TEST_FUZZ_TOKENIZER_H

#include <string.h>

#include "engine/text/tokenizer.h"
#include "tests/fuzz/text.h"

/* Only replacements that grow without end may fail. */
static inline bool fuzz_tokenized(enum mp_status status)
{
    FUZZ_CHECK(status == MP_OK ||
               (status == MP_ERR_MODEL && strcmp(mp_error_last()->code, "E_TOK_GROWTH") == 0));
    return status == MP_OK;
}

static inline void fuzz_check_ids(const struct mp_tokenizer *tok, const struct mp_ids *ids)
{
    char *text;
    size_t bytes;

    for (size_t i = 0; i < ids->count; i++)
        FUZZ_CHECK(mp_tokenizer_content(tok, ids->ids[i], &bytes) != NULL);
    for (unsigned flags = 0; flags <= MP_DECODE_SKIP_SPECIAL; flags++) {
        if (!fuzz_tokenized(mp_tokenizer_decode(tok, ids->ids, ids->count, flags, &text, &bytes)))
            continue;
        FUZZ_CHECK(text[bytes] == '\0');
        free(text);
    }
}

/* What the tokenizer's header promises. */
static inline void fuzz_check_tokenizer(const struct mp_tokenizer *tok)
{
    static const char text[] = "<s>it's a \xc3\xa9 e\xcc\x81 12<|im_end|>  \n\xe2\x96\x81\xff aa";
    const uint32_t count = mp_tokenizer_vocab_count(tok);

    FUZZ_CHECK(count >= 1 && count <= MP_TOK_VOCAB_MAX);
    FUZZ_CHECK(mp_tokenizer_check_rows(tok, count) == MP_OK);
    FUZZ_CHECK(mp_tokenizer_bos(tok) == MP_TOKEN_NONE || mp_tokenizer_bos(tok) < count);
    FUZZ_CHECK(mp_tokenizer_eos(tok) == MP_TOKEN_NONE || mp_tokenizer_eos(tok) < count);
    for (unsigned flags = 0; flags < 4; flags++) {
        struct mp_ids ids = { 0 };

        if (fuzz_tokenized(mp_tokenizer_encode(tok, text, sizeof(text) - 1, flags, &ids)))
            fuzz_check_ids(tok, &ids);
        mp_ids_free(&ids);
    }
}

#endif
