/*
 * tokenizer.json, and behind a NUL byte tokenizer_config.json. What is accepted must keep the
 * promises of engine/text/tokenizer.h: texts become ids that exist, and ids become valid UTF-8.
 */
#include <string.h>

#include "engine/text/tokenizer.h"
#include "tests/fuzz/text.h"

static void check_refusal(enum mp_status status)
{
    const struct mp_error *error = mp_error_last();

    FUZZ_CHECK(status == MP_ERR_MODEL || status == MP_ERR_NO_MEMORY);
    FUZZ_CHECK(error->status == status && error->code[0] == 'E' && error->text[0] != '\0');
    fuzz_check_message(error->text);
}

/* Only replacements that grow without end may fail. */
static bool worked(enum mp_status status)
{
    FUZZ_CHECK(status == MP_OK ||
               (status == MP_ERR_MODEL && strcmp(mp_error_last()->code, "E_TOK_GROWTH") == 0));
    return status == MP_OK;
}

static void check_ids(const struct mp_tokenizer *tok, const struct mp_ids *ids)
{
    char *text;
    size_t bytes;

    for (size_t i = 0; i < ids->count; i++)
        FUZZ_CHECK(mp_tokenizer_content(tok, ids->ids[i], &bytes) != NULL);
    for (unsigned flags = 0; flags <= MP_DECODE_SKIP_SPECIAL; flags++) {
        if (!worked(mp_tokenizer_decode(tok, ids->ids, ids->count, flags, &text, &bytes)))
            continue;
        FUZZ_CHECK(text[bytes] == '\0');
        free(text);
    }
}

static void check_tokenizer(const struct mp_tokenizer *tok)
{
    static const char text[] = "<s>it's a \xc3\xa9 e\xcc\x81 12<|im_end|>  \n\xe2\x96\x81\xff aa";
    const uint32_t count = mp_tokenizer_vocab_count(tok);

    FUZZ_CHECK(count >= 1 && count <= MP_TOK_VOCAB_MAX);
    FUZZ_CHECK(mp_tokenizer_check_rows(tok, count) == MP_OK);
    FUZZ_CHECK(mp_tokenizer_bos(tok) == MP_TOKEN_NONE || mp_tokenizer_bos(tok) < count);
    FUZZ_CHECK(mp_tokenizer_eos(tok) == MP_TOKEN_NONE || mp_tokenizer_eos(tok) < count);
    for (unsigned flags = 0; flags < 4; flags++) {
        struct mp_ids ids = { 0 };

        if (worked(mp_tokenizer_encode(tok, text, sizeof(text) - 1, flags, &ids)))
            check_ids(tok, &ids);
        mp_ids_free(&ids);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint8_t *nul = bytes > 0 ? memchr(data, 0, bytes) : NULL;
    const size_t json_bytes = nul != NULL ? (size_t)(nul - data) : bytes;
    const char *config = nul != NULL ? (const char *)nul + 1 : NULL;
    const size_t config_bytes = nul != NULL ? bytes - json_bytes - 1 : 0;
    struct mp_tokenizer *tok;
    enum mp_status status;

    mp_error_clear();
    status = mp_tokenizer_parse("tokenizer.json", (const char *)data, json_bytes, config,
                                config_bytes, &tok);
    if (status != MP_OK) {
        check_refusal(status);
        return 0;
    }
    check_tokenizer(tok);
    mp_tokenizer_destroy(tok);
    return 0;
}
