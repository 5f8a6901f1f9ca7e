/*
 * tokenizer.json, and behind a NUL byte tokenizer_config.json. What is accepted must keep the
 * promises of engine/text/tokenizer.h: texts become ids that exist, and ids become valid UTF-8.
 */
#include <string.h>

#include "tests/fuzz/tokenizer.h"

static void check_refusal(enum mp_status status)
{
    const struct mp_error *error = mp_error_last();

    FUZZ_CHECK(status == MP_ERR_MODEL || status == MP_ERR_NO_MEMORY);
    FUZZ_CHECK(error->status == status && error->code[0] == 'E' && error->text[0] != '\0');
    fuzz_check_message(error->text);
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
    fuzz_check_tokenizer(tok);
    mp_tokenizer_destroy(tok);
    return 0;
}
