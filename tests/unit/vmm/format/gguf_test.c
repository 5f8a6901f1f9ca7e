/* GGUF files: written here, whole, split and broken; every call fails once. */
#include "vmm/format/gguf.h"

#include "tests/support/fault/wrap.h"
#include "tests/support/gguf.h"
#include "tests/support/test.h"
#include "tests/support/tmpdir.h"

static const char *parse(void)
{
    struct mp_gguf_part part;
    bool more = false;
    enum mp_status status;

    mp_error_clear();
    status = mp_gguf_parse(gguf_out, gguf_used, gguf_used, "f", &part, &more);
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

    gguf_begin(0, 0);
    CHECK_STR(parse(), "");
    gguf_out[0] = 'X', BAD("MAGIC");
    gguf_begin(0, 0), gguf_out[4] = 1, BAD("VERSION");
    gguf_begin(0, 0), gguf_out[4] = 0, gguf_out[7] = 3, BAD("VERSION");
    gguf_begin(131073, 0), BAD("COUNT");
    gguf_begin(0, 65537), BAD("COUNT");
    gguf_begin(131072, 0), BAD("SHORT");
    gguf_begin(1, 1), gguf_number("k", 4, 7, 4), gguf_tensor("t", 32, 2, 8, 0);
    const size_t header = gguf_used;

    gguf_data(68);
    CHECK_STR(parse(), "");
    const size_t whole = gguf_used;
    for (gguf_used = 0; gguf_used < whole; gguf_used++)
        CHECK_STR(parse(), gguf_used < header ? "E_GGUF_SHORT" : "E_GGUF_END");
    for (size_t n = 0; n < header; n++) {
        CHECK_EQ(mp_gguf_parse(gguf_out, n, whole, "f", &part, &more), MP_OK);
        CHECK(more && part.block == NULL);
    }
}

static void bad_values(void)
{
    gguf_begin(0, 1), gguf_number("k", 13, 0, 1), BAD("VALUE");
    gguf_begin(0, 1), gguf_number("k", 7, 2, 1), BAD("VALUE");
    gguf_begin(0, 1), gguf_number("k", 8, UINT64_MAX, 8), BAD("VALUE");
    gguf_begin(0, 1), gguf_number("k", 9, 10, 4), gguf_put(UINT64_MAX / 4, 8), BAD("SHORT");
    gguf_begin(0, 1), gguf_number("k", 9, 8, 4), gguf_put(UINT64_MAX, 8), BAD("SHORT");
    gguf_begin(0, 1), gguf_text("k");
    for (int i = 0; i < 6; i++)
        gguf_put(9, 4), gguf_put(1, i > 0 ? 8 : 0);
    BAD("VALUE");
    gguf_begin(0, 1), gguf_number("", 0, 0, 1), BAD("NAME");
    gguf_begin(0, 1), gguf_put(65536, 8), BAD("NAME");
    gguf_begin(0, 1), gguf_put(1, 8), gguf_put(0, 1), gguf_put(0, 4), gguf_put(0, 1), BAD("NAME");
    gguf_begin(0, 2), gguf_number("k", 0, 0, 1), gguf_number("k", 0, 0, 1), BAD("DUP");
    gguf_begin(0, 1), gguf_number("general.alignment", 4, 48, 4), BAD("ALIGN");
    gguf_begin(0, 1), gguf_number("general.alignment", 4, 0, 4), BAD("ALIGN");
    gguf_begin(0, 1), gguf_number("general.alignment", 4, 2 << 20, 4), BAD("ALIGN");
    gguf_begin(0, 1), gguf_number("general.alignment", 6, 32, 4), BAD("ALIGN");
}

static void bad_tensors(void)
{
    static const unsigned gone[] = { 4, 5, 31, 32, 33, 36, 37, 38, 42, 1u << 31 };

    for (size_t i = 0; i < sizeof(gone) / sizeof(gone[0]); i++)
        gguf_begin(1, 0), gguf_tensor("t", 1, 1, gone[i], 0), gguf_data(64), BAD("TYPE");
    CHECK(strstr(mp_error_last()->text, "'t'") != NULL);
    CHECK(strstr(mp_error_last()->text, "2147483648") != NULL);
    gguf_begin(1, 0), gguf_text("t"), gguf_put(5, 4), BAD("SHAPE");
    gguf_begin(1, 0), gguf_tensor("t", 33, 1, 8, 0), gguf_data(64), BAD("SHAPE");
    gguf_begin(1, 0), gguf_tensor("t", UINT64_MAX, 2, 0, 0), gguf_data(64), BAD("SHAPE");
    gguf_begin(1, 0), gguf_tensor("t", 1, 1, 0, 4), gguf_data(64), BAD("OFFSET");
    gguf_begin(1, 0), gguf_tensor("t", 1, 1, 0, 64), gguf_data(64), BAD("END");
    gguf_begin(1, 0), gguf_tensor("t", 1, 1, 0, UINT64_MAX - 31), gguf_data(64), BAD("END");
    gguf_begin(2, 0), gguf_tensor("a", 9, 1, 0, 0), gguf_tensor("b", 1, 1, 0, 32), gguf_data(64),
        BAD("OVERLAP");
    gguf_begin(2, 0), gguf_tensor("a", 8, 1, 0, 0), gguf_tensor("a", 1, 1, 0, 32), gguf_data(64),
        BAD("DUP");
    gguf_begin(2, 0), gguf_tensor("a", 0, 1, 0, 0), gguf_tensor("b", 8, 1, 0, 0), gguf_data(32);
    CHECK_STR(parse(), "");
}

/* Number, name, elements and bytes of a block, as ggml has them; other numbers have no type. */
static void types_are_those_of_the_format(void)
{
    static const char want[] =
        "0 F32 1 4, 1 F16 1 2, 2 Q4_0 32 18, 3 Q4_1 32 20, 6 Q5_0 32 22, 7 Q5_1 32 24, "
        "8 Q8_0 32 34, 9 Q8_1 32 36, 10 Q2_K 256 84, 11 Q3_K 256 110, 12 Q4_K 256 144, "
        "13 Q5_K 256 176, 14 Q6_K 256 210, 15 Q8_K 256 292, 16 IQ2_XXS 256 66, 17 IQ2_XS 256 74, "
        "18 IQ3_XXS 256 98, 19 IQ1_S 256 50, 20 IQ4_NL 32 18, 21 IQ3_S 256 110, 22 IQ2_S 256 82, "
        "23 IQ4_XS 256 136, 24 I8 1 1, 25 I16 1 2, 26 I32 1 4, 27 I64 1 8, 28 F64 1 8, "
        "29 IQ1_M 256 56, 30 BF16 1 2, 34 TQ1_0 256 54, 35 TQ2_0 256 66, 39 MXFP4 32 17, "
        "40 NVFP4 64 36, 41 Q1_0 128 18, ";
    char got[sizeof(want) + 64] = "";
    size_t used = 0;

    for (uint64_t number = 0; number < 256 && used < sizeof(got); number++) {
        const struct mp_gguf_type *type = mp_gguf_type_find(number);

        if (type != NULL)
            used += (size_t)snprintf(got + used, sizeof(got) - used, "%u %s %u %u, ", type->number,
                                     type->name, type->block_elements, type->block_bytes);
    }
    CHECK_STR(got, want);
    CHECK(mp_gguf_type_find(UINT64_MAX) == NULL);
}

/* As long, as many, as deep as the header file says is accepted, and not one more. */
static void bounds_are_inclusive(void)
{
    static char path[GGUF_PATH_BYTES];
    struct mp_gguf *gguf = NULL;
    struct mp_gguf_part part;
    bool more;

    gguf_begin(0, 65536), BAD("SHORT");
    gguf_begin(0, 1), gguf_put(65535, 8), BAD("SHORT");
    gguf_begin(1, 0), gguf_put(1025, 8), BAD("NAME");
    gguf_begin(1, 0), gguf_put(1024, 8), BAD("SHORT");
    gguf_begin(0, 1), gguf_number("k", 8, (64 << 20) + 1, 8), BAD("VALUE");
    gguf_begin(0, 1), gguf_number("k", 8, 64 << 20, 8), BAD("SHORT");
    gguf_begin(0, 1), gguf_number("general.alignment", 4, 1 << 20, 4);
    CHECK_STR(parse(), "");
    for (int arrays = 4; arrays <= 5; arrays++) { /* in one another, with a byte in the innermost */
        gguf_begin(0, 1), gguf_text("k"), gguf_put(9, 4);
        for (int i = 1; i < arrays; i++)
            gguf_put(9, 4), gguf_put(1, 8);
        gguf_put(0, 4), gguf_put(1, 8), gguf_put(7, 1);
        CHECK_STR(parse(), arrays == 4 ? "" : "E_GGUF_VALUE");
    }
    gguf_begin(1, 0), gguf_text("t"), gguf_put(4, 4);
    for (int i = 0; i < 4; i++)
        gguf_put(1, 8);
    gguf_put(0, 4), gguf_put(0, 8), gguf_data(4);
    CHECK_STR(parse(), "");

    /* Of a header of 256 MiB nothing but its beginning is looked at here. */
    gguf_begin(0, 1), gguf_number("k", 9, 0, 4), gguf_put(1 << 30, 8);
    CHECK_EQ(mp_gguf_parse(gguf_out, (256u << 20) - 1, UINT64_C(1) << 40, "f", &part, &more),
             MP_OK);
    CHECK(more);
    CHECK_EQ(mp_gguf_parse(gguf_out, 256u << 20, UINT64_C(1) << 40, "f", &part, &more),
             MP_ERR_MODEL);
    CHECK_STR(mp_error_last()->code, "E_GGUF_SHORT");
    CHECK(!more);

    snprintf(path, sizeof(path), "%s/many.gguf", test_tmpdir());
    for (unsigned count = 4096; count <= 4097; count++) {
        gguf_begin(0, 2), gguf_number("split.no", 2, 0, 2), gguf_number("split.count", 2, count, 2);
        gguf_data(0), gguf_save(path);
        CHECK_EQ(mp_gguf_open(path, &gguf), MP_ERR_MODEL);
        CHECK_STR(mp_error_last()->code, "E_GGUF_SPLIT");
        CHECK_EQ(strstr(mp_error_last()->text, "-00001-of-04096.gguf") != NULL, count == 4096);
        CHECK_EQ(strstr(mp_error_last()->text, "at most 4096") != NULL, count == 4097);
    }
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

    gguf_begin(1, 6), gguf_number("u", 2, 65535, 2), gguf_number("i", 5, UINT32_MAX, 4),
        gguf_number("f", 6, 0x3fc00000, 4);
    gguf_number("b", 7, 1, 1), gguf_text("s"), gguf_put(8, 4), gguf_text("abc");
    gguf_text("a"), gguf_put(9, 4), gguf_put(8, 4), gguf_put(2, 8), gguf_text("x"), gguf_text("yz");
    gguf_tensor("t", 256, 3, 12, 0), gguf_data(3 * 144), gguf_save(path);
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
    CHECK_EQ(t->offset_bytes + t->bytes, gguf_used);
    mp_gguf_close(gguf);
}

static char parts[2][GGUF_PATH_BYTES];

static void parts_open_together(void)
{
    struct mp_gguf *gguf = NULL;
    char other[GGUF_PATH_BYTES];

    gguf_parts(parts, "b", 2);
    for (int p = 0; p < 2; p++) {
        CHECK_EQ(mp_gguf_open(parts[p], &gguf), MP_OK);
        CHECK_EQ(mp_gguf_find(gguf, "a")->file, 0);
        CHECK_EQ(mp_gguf_find(gguf, "b")->file, 1);
        CHECK_EQ(mp_files_count(mp_gguf_files(gguf)), 2);
        mp_gguf_close(gguf);
    }
    gguf_parts(parts, "a", 2);
    CHECK_EQ(mp_gguf_open(parts[0], &gguf), MP_ERR_MODEL);
    CHECK_STR(mp_error_last()->code, "E_GGUF_DUP");
    CHECK(strstr(mp_error_last()->text, "tensor 'a' is in parts 1 and 2") != NULL);
    gguf_parts(parts, "b", 3);
    CHECK_EQ(mp_gguf_open(parts[0], &gguf), MP_ERR_MODEL);
    CHECK_STR(mp_error_last()->code, "E_GGUF_SPLIT");
    gguf_parts(parts, "b", 2);
    snprintf(other, sizeof(other), "%s/other.gguf", test_tmpdir());
    gguf_save(other);
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
    gguf_parts(parts, "b", 2);
    CHECK(fault_sweep(FAULT_ANY, body, parts[1]) > 10);
}

int main(void)
{
    char path[GGUF_PATH_BYTES];

    snprintf(path, sizeof(path), "%s/whole.gguf", test_tmpdir());
    RUN(types_are_those_of_the_format);
    RUN(bad_headers);
    RUN(bad_values);
    RUN(bad_tensors);
    RUN(bounds_are_inclusive);
    fprintf(stderr, "  typed_values\n");
    typed_values(path);
    RUN(parts_open_together);
    RUN(every_call_fails_once);
    return 0;
}
