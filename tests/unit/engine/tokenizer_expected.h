#ifndef MP_TESTS_TOKENIZER_EXPECTED_H
#define MP_TESTS_TOKENIZER_EXPECTED_H

#include "engine/text/tokenizer.h"
#include "tests/support/test.h"

/*
 * Tokenizers against what other libraries make of the strings of tests/data/tokenizers; the format
 * is described in tools/hf/make_tokenizer_fixtures.py.
 */
#define FIXTURES "tests/data/tokenizers/"

struct reader {
    char *data;
    size_t bytes, at;
};

struct text {
    const char *data;
    size_t bytes;
};

static inline struct reader read_file(const char *path)
{
    struct reader in = { 0 };
    FILE *file = fopen(path, "rb");

    CHECK(file != NULL);
    CHECK(fseek(file, 0, SEEK_END) == 0);
    in.bytes = (size_t)ftell(file);
    rewind(file);
    in.data = malloc(in.bytes + 1);
    CHECK(in.data != NULL && fread(in.data, 1, in.bytes, file) == in.bytes);
    fclose(file);
    return in;
}

static inline uint32_t read_u32(struct reader *in)
{
    const unsigned char *p = (const unsigned char *)in->data + in->at;

    CHECK(in->bytes - in->at >= 4);
    in->at += 4;
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint32_t read_varint(struct reader *in)
{
    uint32_t value = 0;

    for (unsigned shift = 0; shift < 32; shift += 7) {
        CHECK(in->at < in->bytes);
        const unsigned char byte = (unsigned char)in->data[in->at++];

        value |= (uint32_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            break;
    }
    return value;
}

static inline struct text read_text(struct reader *in)
{
    const uint32_t bytes = read_varint(in);
    const struct text text = { in->data + in->at, bytes };

    CHECK(in->bytes - in->at >= bytes);
    in->at += bytes;
    return text;
}

static inline struct mp_ids read_ids(struct reader *in)
{
    struct mp_ids ids = { 0 };

    ids.count = ids.capacity = read_varint(in);
    ids.ids = malloc((ids.count + 1) * sizeof(*ids.ids));
    CHECK(ids.ids != NULL);
    for (size_t i = 0; i < ids.count; i++)
        ids.ids[i] = read_varint(in);
    return ids;
}

static inline bool same_text(struct text a, struct text b)
{
    return a.bytes == b.bytes && memcmp(a.data, b.data, a.bytes) == 0;
}

static inline void show(const char *label, struct text text)
{
    char quoted[MP_QUOTE_BYTES];

    fprintf(stderr, "    %s (%zu bytes): %s\n", label, text.bytes,
            mp_quote(quoted, text.data, text.bytes));
}

/* Strings that ill-formed parts are replaced in are read back by a tokenizer that keeps all. */
static inline struct text repaired(const struct mp_tokenizer *plain, struct text text)
{
    struct mp_ids ids = { 0 };
    struct text out;
    char *data;

    CHECK_EQ(mp_tokenizer_encode(plain, text.data, text.bytes, 0, &ids), MP_OK);
    CHECK_EQ(mp_tokenizer_decode(plain, ids.ids, ids.count, 0, &data, &out.bytes), MP_OK);
    out.data = data;
    mp_ids_free(&ids);
    return out;
}

static inline bool check_ids(const struct mp_tokenizer *tok, struct text text, unsigned flags,
                             const struct mp_ids *expected)
{
    struct mp_ids ids = { 0 };
    bool same;

    CHECK_EQ(mp_tokenizer_encode(tok, text.data, text.bytes, flags, &ids), MP_OK);
    same = ids.count == expected->count &&
           (ids.count == 0 || memcmp(ids.ids, expected->ids, ids.count * sizeof(*ids.ids)) == 0);
    if (!same) {
        size_t at = 0;

        while (at < ids.count && at < expected->count && ids.ids[at] == expected->ids[at])
            at++;
        show("ids differ", text);
        fprintf(stderr, "    at %zu: got", at);
        for (size_t i = at; i < ids.count && i < at + 12; i++)
            fprintf(stderr, " %u", ids.ids[i]);
        fprintf(stderr, " (%zu), expected", ids.count);
        for (size_t i = at; i < expected->count && i < at + 12; i++)
            fprintf(stderr, " %u", expected->ids[i]);
        fprintf(stderr, " (%zu)\n", expected->count);
    }
    mp_ids_free(&ids);
    return same;
}

/* All at once and token by token must both give the expected text. */
static inline bool check_decode(const struct mp_tokenizer *tok, const struct mp_ids *ids,
                                unsigned flags, struct text expected)
{
    struct mp_detok *detok;
    struct text whole, part;
    char *data, *joined;
    size_t used = 0;
    bool same;

    CHECK_EQ(mp_tokenizer_decode(tok, ids->ids, ids->count, flags, &data, &whole.bytes), MP_OK);
    whole.data = data;
    CHECK(data[whole.bytes] == '\0');
    CHECK_EQ(mp_detok_create(tok, flags, &detok), MP_OK);
    joined = malloc(whole.bytes + 1);
    for (size_t i = 0; i <= ids->count; i++) {
        if (i < ids->count)
            CHECK_EQ(mp_detok_push(detok, ids->ids[i], &part.data, &part.bytes), MP_OK);
        else
            CHECK_EQ(mp_detok_finish(detok, &part.data, &part.bytes), MP_OK);
        CHECK(part.bytes <= whole.bytes - used);
        memcpy(joined + used, part.data, part.bytes);
        used += part.bytes;
    }
    CHECK(same_text((struct text){ joined, used }, whole));
    same = same_text(whole, expected);
    if (!same) {
        show("decoded", whole);
        show("expected", expected);
    }
    mp_detok_destroy(detok);
    free(joined);
    free(data);
    return same;
}

static inline struct text concatenated(struct text a, struct text b, struct text c)
{
    char *data = malloc(a.bytes + b.bytes + c.bytes + 1);

    CHECK(data != NULL);
    memcpy(data, a.data, a.bytes);
    memcpy(data + a.bytes, b.data, b.bytes);
    memcpy(data + a.bytes + b.bytes, c.data, c.bytes);
    return (struct text){ data, a.bytes + b.bytes + c.bytes };
}

/* One string against one record; returns whether all is equal. */
static inline bool check_string(const struct mp_tokenizer *tok, const struct mp_tokenizer *plain,
                                struct text string, struct reader *in, const struct text *before,
                                struct text behind)
{
    const unsigned flags = (unsigned char)in->data[in->at++];
    struct mp_ids parsed = read_ids(in), unparsed = { 0 };
    struct text text = repaired(plain, string);
    struct text bare, full;
    bool same;

    same = check_ids(tok, string, MP_ENCODE_ADD_SPECIAL | MP_ENCODE_PARSE_SPECIAL, &parsed);
    if ((flags & 1) != 0)
        unparsed = read_ids(in);
    same &= check_ids(tok, string, MP_ENCODE_ADD_SPECIAL, (flags & 1) != 0 ? &unparsed : &parsed);
    bare = (flags & 2) != 0 ? read_text(in) : text;
    same &= check_decode(tok, &parsed, MP_DECODE_SKIP_SPECIAL, bare);
    if (before != NULL) {
        full = (flags & 4) != 0 ? read_text(in) : concatenated(*before, bare, behind);
        same &= check_decode(tok, &parsed, 0, full);
        if ((flags & 4) == 0)
            free((char *)full.data);
    }
    free((char *)text.data);
    mp_ids_free(&parsed);
    mp_ids_free(&unparsed);
    return same;
}

/* A tokenizer against a file of expectations; destroys it. `specials`: the file also says what
 * decoding with special tokens gives. */
static inline void check_expected(struct mp_tokenizer *tok, const char *name, const char *path,
                                  bool specials)
{
    struct reader strings = read_file(FIXTURES "strings.bin"), expected = read_file(path);
    struct mp_tokenizer *plain;
    uint32_t count, stride, checked = 0, bad = 0;
    struct text before, behind;

    CHECK_EQ(mp_tokenizer_load(FIXTURES "gpt2", &plain), MP_OK);
    count = read_u32(&strings);
    CHECK(count >= 5000);
    stride = read_u32(&expected);
    CHECK(stride > 0);
    before = read_text(&expected);
    behind = read_text(&expected);
    for (uint32_t i = 0; i < count; i++) {
        const struct text string = read_text(&strings);

        if (i % stride != 0)
            continue;
        checked++;
        if (!check_string(tok, plain, string, &expected, specials ? &before : NULL, behind) &&
            ++bad >= 20)
            break;
    }
    fprintf(stderr, "    %s: %u strings, %u differ\n", name, checked, bad);
    CHECK_EQ(bad, 0);
    CHECK_EQ(expected.at, expected.bytes);
    free(strings.data);
    free(expected.data);
    mp_tokenizer_destroy(tok);
    mp_tokenizer_destroy(plain);
}

static inline void check_tokenizer(const char *name)
{
    struct mp_tokenizer *tok;
    char path[256];

    snprintf(path, sizeof(path), FIXTURES "%s", name);
    if (mp_tokenizer_load(path, &tok) != MP_OK) {
        fprintf(stderr, "    %s: %s: %s\n", name, mp_error_last()->code, mp_error_last()->text);
        exit(1);
    }
    snprintf(path, sizeof(path), FIXTURES "%s/expected.bin", name);
    check_expected(tok, name, path, true);
}

#endif
