/* GGUF files: written by a small writer here, whole, split and broken; every call fails once. */
#include "vmm/format/gguf.h"

#include "tests/support/fault/wrap.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"

static unsigned char out[1 << 20];
static size_t used;

static void put(uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        out[used++] = (unsigned char)(value >> 8 * i);
}

static void text(const char *s)
{
    put(strlen(s), 8);
    memcpy(out + used, s, strlen(s));
    used += strlen(s);
}

static void begin(uint64_t tensors, uint64_t entries)
{
    used = 0;
    put(0x46554747, 4);
    put(3, 4);
    put(tensors, 8);
    put(entries, 8);
}

static void number(const char *key, unsigned kind, uint64_t value, unsigned bytes)
{
    text(key);
    put(kind, 4);
    put(value, bytes);
}

static void tensor(const char *name, uint64_t a, uint64_t b, unsigned type, uint64_t offset)
{
    text(name);
    put(2, 4);
    put(a, 8);
    put(b, 8);
    put(type, 4);
    put(offset, 8);
}

static void data(size_t bytes)
{
    while (used % 32 != 0)
        out[used++] = 0;
    memset(out + used, 0, bytes);
    used += bytes;
}

static void save(const char *path)
{
    FILE *file = fopen(path, "wb");

    CHECK(file != NULL);
    CHECK_EQ(fwrite(out, 1, used, file), used);
    CHECK_EQ(fclose(file), 0);
}

static const char *parse(void)
{
    struct mp_gguf_part part;
    bool more = false;
    enum mp_status status;

    mp_error_clear();
    status = mp_gguf_parse(out, used, used, "f", &part, &more);
    CHECK(!more);
    CHECK(status == MP_OK || (status == MP_ERR_MODEL && part.block == NULL));
    mp_gguf_part_fini(&part);
    return mp_error_last()->code;
}

static void bad(int line, const char *code)
{
    if (strcmp(parse(), code) != 0) {
        fprintf(stderr, "line %d: '%s', expected %s\n", line, mp_error_last()->code, code);
        exit(1);
    }
}

/* An expression, so that a case is one statement. */
#define BAD(code) bad(__LINE__, "E_GGUF_" code)

static void bad_headers(void)
{
    struct mp_gguf_part part;
    bool more;

    begin(0, 0);
    CHECK_STR(parse(), "");
    out[0] = 'X', BAD("MAGIC");
    begin(0, 0), out[4] = 1, BAD("VERSION");
    begin(0, 0), out[4] = 0, out[7] = 3, BAD("VERSION");
    begin(131073, 0), BAD("COUNT");
    begin(0, 65537), BAD("COUNT");
    begin(131072, 0), BAD("SHORT");
    begin(1, 1), number("k", 4, 7, 4), tensor("t", 32, 2, 8, 0);
    const size_t header = used;

    data(68);
    CHECK_STR(parse(), "");
    const size_t whole = used;
    for (used = 0; used < whole; used++)
        CHECK_STR(parse(), used < header ? "E_GGUF_SHORT" : "E_GGUF_END");
    for (size_t n = 0; n < header; n++) {
        CHECK_EQ(mp_gguf_parse(out, n, whole, "f", &part, &more), MP_OK);
        CHECK(more && part.block == NULL);
    }
}

static void bad_values(void)
{
    begin(0, 1), number("k", 13, 0, 1), BAD("VALUE");
    begin(0, 1), number("k", 7, 2, 1), BAD("VALUE");
    begin(0, 1), number("k", 8, UINT64_MAX, 8), BAD("VALUE");
    begin(0, 1), number("k", 9, 10, 4), put(UINT64_MAX / 4, 8), BAD("SHORT");
    begin(0, 1), number("k", 9, 8, 4), put(UINT64_MAX, 8), BAD("SHORT");
    begin(0, 1), text("k");
    for (int i = 0; i < 6; i++)
        put(9, 4), put(1, i > 0 ? 8 : 0);
    BAD("VALUE");
    begin(0, 1), number("", 0, 0, 1), BAD("NAME");
    begin(0, 1), put(65536, 8), BAD("NAME");
    begin(0, 1), put(1, 8), put(0, 1), put(0, 4), put(0, 1), BAD("NAME");
    begin(0, 2), number("k", 0, 0, 1), number("k", 0, 0, 1), BAD("DUP");
    begin(0, 1), number("general.alignment", 4, 48, 4), BAD("ALIGN");
    begin(0, 1), number("general.alignment", 4, 0, 4), BAD("ALIGN");
    begin(0, 1), number("general.alignment", 4, 2 << 20, 4), BAD("ALIGN");
    begin(0, 1), number("general.alignment", 6, 32, 4), BAD("ALIGN");
}

static void bad_tensors(void)
{
    static const unsigned gone[] = { 4, 5, 31, 32, 33, 36, 37, 38, 42, 1u << 31 };

    for (size_t i = 0; i < sizeof(gone) / sizeof(gone[0]); i++)
        begin(1, 0), tensor("t", 1, 1, gone[i], 0), data(64), BAD("TYPE");
    CHECK(strstr(mp_error_last()->text, "'t'") != NULL);
    CHECK(strstr(mp_error_last()->text, "2147483648") != NULL);
    begin(1, 0), text("t"), put(5, 4), BAD("SHAPE");
    begin(1, 0), tensor("t", 33, 1, 8, 0), data(64), BAD("SHAPE");
    begin(1, 0), tensor("t", UINT64_MAX, 2, 0, 0), data(64), BAD("SHAPE");
    begin(1, 0), tensor("t", 1, 1, 0, 4), data(64), BAD("OFFSET");
    begin(1, 0), tensor("t", 1, 1, 0, 64), data(64), BAD("END");
    begin(1, 0), tensor("t", 1, 1, 0, UINT64_MAX - 31), data(64), BAD("END");
    begin(2, 0), tensor("a", 9, 1, 0, 0), tensor("b", 1, 1, 0, 32), data(64), BAD("OVERLAP");
    begin(2, 0), tensor("a", 8, 1, 0, 0), tensor("a", 1, 1, 0, 32), data(64), BAD("DUP");
    begin(2, 0), tensor("a", 0, 1, 0, 0), tensor("b", 8, 1, 0, 0), data(32);
    CHECK_STR(parse(), "");
}

static void typed_values(const char *path)
{
    struct mp_gguf *gguf = NULL;
    struct mp_gguf_value array, element;
    const char *string;
    uint64_t u, bytes;
    int64_t i;
    double f;
    bool b;

    begin(1, 6), number("u", 2, 65535, 2), number("i", 5, UINT32_MAX, 4),
        number("f", 6, 0x3fc00000, 4);
    number("b", 7, 1, 1), text("s"), put(8, 4), text("abc");
    text("a"), put(9, 4), put(8, 4), put(2, 8), text("x"), text("yz");
    tensor("t", 256, 3, 12, 0), data(3 * 144), save(path);
    CHECK_EQ(mp_gguf_open(path, &gguf), MP_OK);
    CHECK_EQ(mp_gguf_get_u64(gguf, "u", &u), MP_OK);
    CHECK_EQ(u, 65535);
    CHECK_EQ(mp_gguf_get_i64(gguf, "i", &i), MP_OK);
    CHECK_EQ(i, -1);
    CHECK_EQ(mp_gguf_get_u64(gguf, "i", &u), MP_ERR_MODEL);
    CHECK_STR(mp_error_last()->code, "E_GGUF_VALUE");
    CHECK_EQ(mp_gguf_get_f64(gguf, "f", &f), MP_OK);
    CHECK(f == 1.5);
    CHECK_EQ(mp_gguf_get_bool(gguf, "b", &b), MP_OK);
    CHECK(b);
    CHECK_EQ(mp_gguf_get_string(gguf, "s", &string, &bytes), MP_OK);
    CHECK(bytes == 3 && memcmp(string, "abc", 3) == 0);
    CHECK_EQ(mp_gguf_get_string(gguf, "none", &string, &bytes), MP_ERR_MODEL);
    CHECK_STR(mp_error_last()->code, "E_GGUF_KEY");
    CHECK_EQ(mp_gguf_get_array(gguf, "a", MP_GGUF_U8, &array), MP_ERR_MODEL);
    CHECK_EQ(mp_gguf_get_array(gguf, "a", MP_GGUF_STRING, &array), MP_OK);
    CHECK(mp_gguf_array_next(&array, &element) && element.count == 1);
    CHECK(mp_gguf_array_next(&array, &element) && memcmp(element.data, "yz", 2) == 0);
    CHECK(!mp_gguf_array_next(&array, &element));
    const struct mp_gguf_tensor *t = mp_gguf_find(gguf, "t");
    CHECK(t != NULL && mp_gguf_count(gguf) == 1 && mp_gguf_find(gguf, "u") == NULL);
    CHECK_STR(t->type->name, "Q4_K");
    CHECK_EQ(t->bytes, 3 * 144);
    CHECK_EQ(t->offset_bytes + t->bytes, used);
    mp_gguf_close(gguf);
}

static char parts[2][sizeof(test_tmpdir_path) + 64];

static void write_parts(const char *second, uint64_t total)
{
    for (unsigned p = 0; p < 2; p++) {
        snprintf(parts[p], sizeof(parts[p]), "%s/m-%05u-of-00002.gguf", test_tmpdir(), p + 1);
        begin(1, 4), number("split.no", 2, p, 2), number("split.count", 2, 2, 2);
        number("split.tensors.count", 5, total, 4);
        text("pad"), put(9, 4), put(0, 4), put(100000, 8), used += 100000;
        tensor(p == 0 ? "a" : second, 8, 1, 0, 0), data(32), save(parts[p]);
    }
}

static void parts_open_together(void)
{
    struct mp_gguf *gguf = NULL;
    char other[sizeof(test_tmpdir_path) + 64];

    write_parts("b", 2);
    for (int p = 0; p < 2; p++) {
        CHECK_EQ(mp_gguf_open(parts[p], &gguf), MP_OK);
        CHECK_EQ(mp_gguf_find(gguf, "a")->file, 0);
        CHECK_EQ(mp_gguf_find(gguf, "b")->file, 1);
        CHECK_EQ(mp_files_count(mp_gguf_files(gguf)), 2);
        mp_gguf_close(gguf);
    }
    write_parts("a", 2);
    CHECK_EQ(mp_gguf_open(parts[0], &gguf), MP_ERR_MODEL);
    CHECK_STR(mp_error_last()->code, "E_GGUF_DUP");
    CHECK(strstr(mp_error_last()->text, "tensor 'a' is in parts 1 and 2") != NULL);
    write_parts("b", 3);
    CHECK_EQ(mp_gguf_open(parts[0], &gguf), MP_ERR_MODEL);
    CHECK_STR(mp_error_last()->code, "E_GGUF_SPLIT");
    write_parts("b", 2);
    snprintf(other, sizeof(other), "%s/other.gguf", test_tmpdir());
    save(other);
    CHECK_EQ(mp_gguf_open(other, &gguf), MP_ERR_MODEL);
    CHECK_STR(mp_error_last()->code, "E_GGUF_SPLIT");
}

static void body(const struct fault_plan *plan, void *path)
{
    struct mp_gguf *gguf = NULL;
    enum mp_status status;
    uint64_t failures;

    mp_error_clear();
    fault_begin(plan);
    status = mp_gguf_open(path, &gguf);
    failures = fault_end();
    if (status == MP_OK) {
        mp_gguf_close(gguf);
        return;
    }
    CHECK(failures > 0 && (status == MP_ERR_NO_MEMORY || status == MP_ERR_IO));
    CHECK(mp_error_last()->text[0] != '\0');
}

static void every_call_fails_once(void)
{
    write_parts("b", 2);
    CHECK(fault_sweep(FAULT_ANY, body, parts[1]) > 10);
}

int main(void)
{
    char path[sizeof(test_tmpdir_path) + 64];

    snprintf(path, sizeof(path), "%s/whole.gguf", test_tmpdir());
    RUN(bad_headers);
    RUN(bad_values);
    RUN(bad_tensors);
    fprintf(stderr, "  typed_values\n");
    typed_values(path);
    RUN(parts_open_together);
    RUN(every_call_fails_once);
    return 0;
}
