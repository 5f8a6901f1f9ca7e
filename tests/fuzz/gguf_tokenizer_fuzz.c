/*
 * Tokenizer and chat template of a GGUF file. What is accepted must keep the promises of
 * engine/text/tokenizer.h, and a template renders or says why not.
 */
#include <sys/mman.h>
#include <unistd.h>

#include "engine/text/chat.h"
#include "tests/fuzz/tokenizer.h"

static void check_refusal(enum mp_status status)
{
    const struct mp_error *error = mp_error_last();

    FUZZ_CHECK(status == MP_ERR_MODEL || status == MP_ERR_OVERFLOW || status == MP_ERR_CONFIG ||
               status == MP_ERR_NO_MEMORY);
    FUZZ_CHECK(error->status == status && error->code[0] == 'E');
    fuzz_check_message(error->text);
}

static void check_chat(const struct mp_chat *chat)
{
    static const struct mp_chat_message messages[] = { { MP_CHAT_USER, "a <s>", 5 },
                                                       { MP_CHAT_ASSISTANT, "b", 1 },
                                                       { MP_CHAT_USER, "", 0 } };
    struct mp_spans spans = { 0 };
    const enum mp_status status = mp_chat_render(chat, messages, 3, true, &spans);

    if (status == MP_OK)
        mp_spans_free(&spans);
    else
        check_refusal(status);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const int fd = memfd_create("fuzz.gguf", MFD_CLOEXEC);
    struct mp_tokenizer *tok = NULL;
    struct mp_chat *chat = NULL;
    enum mp_status status = MP_OK;
    char path[64];

    FUZZ_CHECK(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    mp_error_clear();
    if (bytes >= 4 && memcmp(data, "GGUF", 4) == 0) {
        status = mp_tokenizer_load(path, &tok);
        if (status == MP_OK)
            fuzz_check_tokenizer(tok);
        else
            check_refusal(status);
        status = mp_chat_load(path, &chat);
        if (status == MP_OK)
            check_chat(chat);
        else
            check_refusal(status);
    }
    mp_chat_destroy(chat);
    mp_tokenizer_destroy(tok);
    close(fd);
    return 0;
}
