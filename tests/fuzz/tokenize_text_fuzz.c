/*
 * Texts and ids through real tokenizers. The first byte chooses the tokenizer, the flags and
 * whether the rest is a text or a list of ids. Decoding token by token must give what decoding at
 * once gives; a text without special tokens must come back, as far as its vocabulary promises that.
 */
#include <string.h>

#include "engine/text/chat.h"
#include "engine/text/tokenizer.h"
#include "tests/fuzz/fuzz.h"

#define FIXTURES "tests/data/tokenizers/"

static const char *const names[] = {
    "gpt2", "qwen2",   "llama3",        "llama", "metaspace_cut",
    "nfkc", "unigram", "unigram_bytes", "gemma", "gguf/scores.gguf"
};
enum { NAME_COUNT = sizeof(names) / sizeof(names[0]) };

static struct mp_tokenizer *tokenizers[NAME_COUNT];

/* Once per process: the fuzzer runs in the root of the source tree. */
static void load_tokenizers(void)
{
    for (size_t i = 0; i < NAME_COUNT && tokenizers[i] == NULL; i++) {
        char path[256];

        snprintf(path, sizeof(path), FIXTURES "%s", names[i]);
        FUZZ_CHECK(mp_tokenizer_load(path, &tokenizers[i]) == MP_OK);
    }
}

static void check_streaming(const struct mp_tokenizer *tok, const struct mp_ids *ids,
                            unsigned flags, const char *whole, size_t whole_bytes)
{
    struct mp_detok *detok;
    const char *part;
    size_t bytes, used = 0;

    FUZZ_CHECK(mp_detok_create(tok, flags, &detok) == MP_OK);
    for (size_t i = 0; i <= ids->count; i++) {
        if (i < ids->count)
            FUZZ_CHECK(mp_detok_push(detok, ids->ids[i], &part, &bytes) == MP_OK);
        else
            FUZZ_CHECK(mp_detok_finish(detok, &part, &bytes) == MP_OK);
        FUZZ_CHECK(bytes <= whole_bytes - used && memcmp(whole + used, part, bytes) == 0);
        used += bytes;
    }
    FUZZ_CHECK(used == whole_bytes);
    mp_detok_destroy(detok);
}

static void check_ids(const struct mp_tokenizer *tok, const struct mp_ids *ids, unsigned flags)
{
    char *text;
    size_t bytes;

    FUZZ_CHECK(mp_tokenizer_decode(tok, ids->ids, ids->count, flags, &text, &bytes) == MP_OK);
    check_streaming(tok, ids, flags, text, bytes);
    free(text);
}

/* What a byte-level vocabulary without a normalizer decodes to, encodes and decodes to the same. */
static void check_fixed_point(const struct mp_tokenizer *tok, const struct mp_ids *ids)
{
    struct mp_ids again = { 0 };
    char *text, *text_again;
    size_t bytes, bytes_again;

    FUZZ_CHECK(mp_tokenizer_decode(tok, ids->ids, ids->count, 0, &text, &bytes) == MP_OK);
    FUZZ_CHECK(mp_tokenizer_encode(tok, text, bytes, 0, &again) == MP_OK);
    FUZZ_CHECK(mp_tokenizer_decode(tok, again.ids, again.count, 0, &text_again, &bytes_again) ==
               MP_OK);
    FUZZ_CHECK(bytes == bytes_again && memcmp(text, text_again, bytes) == 0);
    mp_ids_free(&again);
    free(text);
    free(text_again);
}

/* Chat templates are texts from files as well, and programs. */
static void check_chat(const uint8_t *data, size_t bytes)
{
    static const struct mp_chat_message messages[] = { { MP_CHAT_SYSTEM, "s <|im_end|>", 12 },
                                                       { MP_CHAT_USER, " u\n\xc3\xa9", 5 } };
    struct mp_chat *chat;
    struct mp_spans spans = { 0 };

    if (mp_chat_parse("t", (const char *)data, bytes, "<s>", "</s>", &chat) != MP_OK)
        return;
    if (mp_chat_render(chat, messages, 2, true, &spans) != MP_OK)
        FUZZ_CHECK(spans.spans == NULL);
    mp_spans_free(&spans);
    mp_chat_destroy(chat);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint8_t choice = bytes > 0 ? data[0] : 0;
    const unsigned which = choice % NAME_COUNT, flags = choice >> 6;
    struct mp_ids ids = { 0 };

    load_tokenizers();
    const struct mp_tokenizer *tok = tokenizers[which];
    if (bytes == 0)
        return 0;
    data++;
    bytes--;
    if ((choice & 0x20) == 0) {
        const size_t half = bytes / 2;
        const struct mp_span spans[] = { { (const char *)data, half, true },
                                         { (const char *)data + half, bytes - half, false } };

        FUZZ_CHECK(mp_tokenizer_encode_spans(tok, spans, 2, flags, &ids) == MP_OK);
        ids.count = 0;
        FUZZ_CHECK(mp_tokenizer_encode(tok, (const char *)data, bytes, flags, &ids) == MP_OK);
        if (which == 0 || which == 2)
            check_fixed_point(tok, &ids);
        check_chat(data, bytes);
    } else {
        ids.count = bytes / 2;
        ids.ids = malloc(ids.count * sizeof(*ids.ids) + 1);
        FUZZ_CHECK(ids.ids != NULL);
        for (size_t i = 0; i < ids.count; i++)
            ids.ids[i] = (data[i * 2] | (uint32_t)data[i * 2 + 1] << 8) % 1200;
    }
    if (which != 4 || (choice & 0x20) == 0)
        check_ids(tok, &ids, flags & MP_DECODE_SKIP_SPECIAL);
    mp_ids_free(&ids);
    return 0;
}
