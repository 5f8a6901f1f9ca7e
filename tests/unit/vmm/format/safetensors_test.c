/* Headers of safetensors files: what is accepted, and cases M1 to M17 of what is not. */
#include <inttypes.h>
#include <pthread.h>

#include "vmm/format/safetensors.h"
#include "tests/model/fails.h"

/* Parse `json` as the header of the file "f" that has `data_bytes` bytes behind it. */
static enum mp_status parse_n(const char *json, size_t json_bytes, uint64_t data_bytes,
                              struct mp_st_table *table)
{
    return mp_st_parse(json, json_bytes, 8 + json_bytes + data_bytes, "f", table);
}

static enum mp_status parse(const char *json, uint64_t data_bytes)
{
    struct mp_st_table table;
    const enum mp_status status = parse_n(json, strlen(json), data_bytes, &table);

    if (status != MP_OK)
        CHECK(table.tensors == NULL && table.names == NULL && table.count == 0);
    mp_st_table_fini(&table);
    return status;
}

#define CHECK_MODEL(json, data_bytes, code, text) \
    CHECK_FAILS(parse(json, data_bytes), MP_ERR_MODEL, code, text)

#define W(dtype, shape, offsets) \
    "{\"w\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static void tensors_come_in_the_order_of_their_offsets(void)
{
    static const char json[] = "{\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[4,28]},"
                               "\"__metadata__\":{\"format\":\"pt\"},"
                               "\"a\":{\"shape\":[2],\"dtype\":\"BF16\",\"data_offsets\":[0,4]}}";
    struct mp_st_table table;

    CHECK_EQ(parse_n(json, strlen(json), 28, &table), MP_OK);
    CHECK_EQ(table.count, 2);
    CHECK_STR(table.tensors[0].name, "a");
    CHECK_EQ(table.tensors[0].dtype, MP_DTYPE_BF16);
    CHECK_EQ(table.tensors[0].offset_bytes, 8 + strlen(json));
    CHECK_EQ(table.tensors[0].bytes, 4);
    CHECK_STR(table.tensors[1].name, "b");
    CHECK_EQ(table.tensors[1].dims, 2);
    CHECK_EQ(table.tensors[1].shape[0], 2);
    CHECK_EQ(table.tensors[1].shape[1], 3);
    CHECK_EQ(table.tensors[1].offset_bytes, 8 + strlen(json) + 4);
    CHECK_EQ(table.tensors[1].bytes, 24);
    mp_st_table_fini(&table);
}

static void every_dtype_has_its_size(void)
{
    for (int i = 0; i < MP_DTYPE_COUNT; i++) {
        const struct mp_dtype_info *type = mp_dtype_info((enum mp_dtype)i);
        const uint64_t bytes = 256 / type->block_elements * type->block_bytes;
        char json[256];

        snprintf(json, sizeof(json),
                 "{\"w\":{\"dtype\":\"%s\",\"shape\":[256],\"data_offsets\":[0,%" PRIu64 "]}}",
                 mp_dtype_name((enum mp_dtype)i), bytes);
        CHECK_EQ(parse(json, bytes), MP_OK);
        CHECK_EQ(parse(json, bytes + 1), MP_ERR_MODEL);
    }
    CHECK_STR(mp_dtype_name(MP_DTYPE_COUNT), "?");
    CHECK(mp_dtype_info(MP_DTYPE_COUNT) == NULL);
}

static void empty_files_of_the_format_are_valid(void)
{
    CHECK_EQ(parse("{}", 0), MP_OK);
    CHECK_EQ(parse("{\"__metadata__\":{}}", 0), MP_OK);
}

static void M1_shorter_than_the_length_field(void)
{
    char want[80];
    uint64_t bytes;

    for (uint64_t n = 0; n < 8; n++) {
        snprintf(want, sizeof(want), "file 'f' is %" PRIu64 " bytes, need at least 8", n);
        CHECK_FAILS(mp_st_header_bytes("\1\0\0\0\0\0\0", n, "f", &bytes), MP_ERR_MODEL,
                    "E_ST_SHORT", want);
    }
    CHECK_EQ(mp_status_exit_code(MP_ERR_MODEL), 3);
}

static void M2_header_length_beyond_the_file_or_the_limit(void)
{
    uint64_t bytes = 77;

    CHECK_FAILS(mp_st_header_bytes("\3\0\0\0\0\0\0\0", 10, "f", &bytes), MP_ERR_MODEL,
                "E_ST_HEADER_LEN",
                "header of 'f' says 3 bytes, file has 2 after the length; need at most that and "
                "at most 100000000");
    CHECK_FAILS(mp_st_header_bytes("\xff\xff\xff\xff\xff\xff\xff\xff", 1 << 20, "f", &bytes),
                MP_ERR_MODEL, "E_ST_HEADER_LEN",
                "header of 'f' says 18446744073709551615 bytes, file has 1048568 after the "
                "length; need at most that and at most 100000000");
    /* 100,000,001 bytes in a file that has them. */
    CHECK_FAILS(mp_st_header_bytes("\x01\xe1\xf5\x05\0\0\0\0", UINT64_C(1) << 40, "f", &bytes),
                MP_ERR_MODEL, "E_ST_HEADER_LEN",
                "header of 'f' says 100000001 bytes, file has 1099511627768 after the length; "
                "need at most that and at most 100000000");
    CHECK_EQ(bytes, 77);
    CHECK_EQ(mp_st_header_bytes("\x00\xe1\xf5\x05\0\0\0\0", UINT64_C(1) << 40, "f", &bytes), MP_OK);
    CHECK_EQ(bytes, 100000000);
    CHECK_EQ(mp_st_header_bytes("\2\0\0\0\0\0\0\0", 10, "f", &bytes), MP_OK);
}

static void M3_header_is_not_JSON(void)
{
    CHECK_MODEL("{\"w\":", 0, "E_ST_JSON",
                "'f' at byte 13 is not valid JSON: unexpected token near end of file");
    CHECK_MODEL("{\"\xff\":1}", 0, "E_ST_JSON",
                "'f' at byte 10 is not valid JSON: unable to decode byte 0xff near '\"'");
    CHECK_MODEL("model", 0, "E_ST_JSON",
                "'f' at byte 13 is not valid JSON: '[' or '{' expected near 'model'");
    CHECK_MODEL("[]", 0, "E_ST_JSON", "header of 'f' is an array, need an object");
    CHECK_EQ(parse("", 0), MP_ERR_MODEL);
}

static void M4_white_space_around_the_header_is_accepted(void)
{
    CHECK_EQ(parse(" \n\t" W("\"U8\"", "[4]", "[0,4]") "      \r\n ", 4), MP_OK);
}

static void M5_other_padding_is_refused(void)
{
    static const char nul[] = W("\"U8\"", "[4]", "[0,4]") "\0\0";
    struct mp_st_table table;

    CHECK_FAILS(parse_n(nul, sizeof(nul) - 1, 4, &table), MP_ERR_MODEL, "E_ST_JSON",
                "'f' at byte 62 is not valid JSON: end of file expected near end of file");
    CHECK_MODEL(W("\"U8\"", "[4]", "[0,4]") "xx", 4, "E_ST_JSON",
                "'f' at byte 63 is not valid JSON: end of file expected near 'xx'");
}

static void M6_duplicate_name_in_any_spelling(void)
{
#define ENTRY "{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}"
    CHECK_MODEL("{\"w\":" ENTRY ",\"w\":" ENTRY "}", 4, "E_ST_DUP",
                "'f' at byte 64 is not valid JSON: duplicate object key near '\"w\"'");
    CHECK_MODEL("{\"w\":" ENTRY ",\"\\u0077\":" ENTRY "}", 4, "E_ST_DUP",
                "'f' at byte 69 is not valid JSON: duplicate object key near '\"\\\\u0077\"'");
    CHECK_EQ(parse("{\"w\":{\"dtype\":\"U8\",\"dtype\":\"F32\",\"shape\":[4],"
                   "\"data_offsets\":[0,4]}}",
                   4),
             MP_ERR_MODEL);
    CHECK_STR(mp_error_last()->code, "E_ST_DUP");
#undef ENTRY
}

#define TWO(a, b)                                                     \
    "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" a "}," \
    "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" b "}}"

static void M7_overlap_and_hole_name_both_tensors(void)
{
    CHECK_EQ(parse(TWO("[4,8]", "[0,4]"), 8), MP_OK);
    CHECK_MODEL(TWO("[0,4]", "[3,7]"), 7, "E_ST_OVERLAP",
                "tensor 'b' in 'f' begins at byte 116, before the end of 'a' at byte 117");
    CHECK_MODEL(TWO("[0,4]", "[0,4]"), 4, "E_ST_OVERLAP",
                "tensor 'b' in 'f' begins at byte 113, before the end of 'a' at byte 117");
    CHECK_MODEL(TWO("[5,9]", "[0,4]"), 9, "E_ST_HOLE",
                "tensor 'a' in 'f' begins at byte 118, behind the end of 'b' at byte 117");
    CHECK_MODEL(TWO("[1,5]", "[5,9]"), 9, "E_ST_HOLE",
                "tensor 'a' in 'f' begins at byte 114, behind the end of the header at byte 113");
}

static void M8_bytes_missing_or_left_over(void)
{
    CHECK_MODEL(W("\"U8\"", "[4]", "[0,4]"), 5, "E_ST_END",
                "'f': data ends at byte 65, file ends at byte 66");
    CHECK_MODEL(W("\"U8\"", "[4]", "[0,4]"), 3, "E_ST_END",
                "tensor 'w' in 'f': data ends at byte 4 of the data, file has 3; it is cut short, "
                "download it again");
    CHECK_MODEL("{}", 1, "E_ST_END", "'f': data ends at byte 10, file ends at byte 11");
}

static void M9_offsets_that_are_no_offsets(void)
{
    static const struct {
        const char *offsets, *code, *text;
    } cases[] = {
        { "[4,0]", "E_ST_OFFSETS", "tensor 'w' in 'f': data_offsets [4, 0] end before they begin" },
        { "[-4,0]", "E_ST_OFFSETS",
          "tensor 'w' in 'f': one of data_offsets is -4, need a non-negative integer" },
        { "[0,1e3]", "E_ST_OFFSETS",
          "tensor 'w' in 'f': one of data_offsets is 1000, need a non-negative integer" },
        { "[1.5,4]", "E_ST_OFFSETS",
          "tensor 'w' in 'f': one of data_offsets is 1.5, need a non-negative integer" },
        { "[\"0\",4]", "E_ST_OFFSETS",
          "tensor 'w' in 'f': one of data_offsets is '0', need a non-negative integer" },
        { "[0,2,4]", "E_ST_OFFSETS",
          "tensor 'w' in 'f': data_offsets is an array of 3, need an array of 2 integers" },
        { "[4]", "E_ST_OFFSETS",
          "tensor 'w' in 'f': data_offsets is an array of 1, need an array of 2 integers" },
        { "4", "E_ST_OFFSETS",
          "tensor 'w' in 'f': data_offsets is 4, need an array of 2 integers" },
        /* 2^53 + 1 keeps its last bit. */
        { "[0,9007199254740993]", "E_ST_END",
          "tensor 'w' in 'f': data ends at byte 9007199254740993 of the data, file has 4; it is "
          "cut short, download it again" },
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        char json[200];

        snprintf(json, sizeof(json), W("\"U8\"", "[4]", "%s"), cases[i].offsets);
        CHECK_MODEL(json, 4, cases[i].code, cases[i].text);
    }
    CHECK_MODEL(W("\"U8\"", "[4]", "[0,18446744073709551616]"), 4, "E_ST_JSON",
                "'f' at byte 77 is not valid JSON: too big integer near "
                "'18446744073709551616'");
}

static void M10_size_that_does_not_fit(void)
{
    CHECK_MODEL(W("\"U8\"", "[4294967296,4294967296]", "[0,0]"), 0, "E_ST_OVERFLOW",
                "tensor 'w' in 'f': the size of U8 [4294967296, 4294967296] does not fit in 64 "
                "bits");
    /* The product of the bytes wraps to exactly 0. */
    CHECK_MODEL(W("\"F32\"", "[4611686018427387904]", "[0,0]"), 0, "E_ST_OVERFLOW",
                "tensor 'w' in 'f': the size of F32 [4611686018427387904] does not fit in 64 bits");
    CHECK_EQ(parse(W("\"F32\"", "[0,5]", "[0,0]"), 0), MP_OK);
}

static void M11_size_and_offsets_disagree(void)
{
    CHECK_MODEL(W("\"F32\"", "[1024,1024]", "[0,4]"), 4, "E_ST_SIZE",
                "tensor 'w' in 'f': data_offsets give 4 bytes, F32 [1024, 1024] needs 4194304");
    CHECK_MODEL(W("\"F32\"", "[0]", "[0,4]"), 4, "E_ST_SIZE",
                "tensor 'w' in 'f': data_offsets give 4 bytes, F32 [0] needs 0");
}

static void M12_unknown_dtype(void)
{
    CHECK_MODEL(W("\"Q8_1\"", "[4]", "[0,4]"), 4, "E_ST_DTYPE",
                "tensor 'w' in 'f': dtype is 'Q8_1', need a type of the format such as 'BF16'");
    CHECK_MODEL(W("\"f32\"", "[1]", "[0,4]"), 4, "E_ST_DTYPE",
                "tensor 'w' in 'f': dtype is 'f32', need a type of the format such as 'BF16'");
    CHECK_MODEL(W("7", "[1]", "[0,4]"), 4, "E_ST_DTYPE",
                "tensor 'w' in 'f': dtype is 7, need a type of the format such as 'BF16'");
}

static void M13_elements_of_half_a_byte(void)
{
    CHECK_MODEL(W("\"F4\"", "[3]", "[0,2]"), 2, "E_ST_SUBBYTE",
                "tensor 'w' in 'f': F4 [3] has 3 elements, need a multiple of 2");
    CHECK_MODEL(W("\"F6_E2M3\"", "[2]", "[0,2]"), 2, "E_ST_SUBBYTE",
                "tensor 'w' in 'f': F6_E2M3 [2] has 2 elements, need a multiple of 4");
    CHECK_EQ(parse(W("\"F4\"", "[2,3]", "[0,3]"), 3), MP_OK);
}

static void M14_shapes(void)
{
    CHECK_EQ(parse(W("\"F32\"", "[]", "[0,4]"), 4), MP_OK);
    CHECK_EQ(parse(W("\"F32\"", "[3,0]", "[0,0]"), 0), MP_OK);
    CHECK_EQ(parse(W("\"U8\"", "[1,1,1,1,1,1,1,4]", "[0,4]"), 4), MP_OK);
    CHECK_MODEL(W("\"U8\"", "[1,1,1,1,1,1,1,1,4]", "[0,4]"), 4, "E_ST_SHAPE",
                "tensor 'w' in 'f': shape is an array of 9, need an array of at most 8 "
                "non-negative integers");
    CHECK_MODEL(W("\"U8\"", "[-4]", "[0,4]"), 4, "E_ST_SHAPE",
                "tensor 'w' in 'f': a dimension of shape is -4, need a non-negative integer");
    CHECK_MODEL(W("\"U8\"", "[4.0]", "[0,4]"), 4, "E_ST_SHAPE",
                "tensor 'w' in 'f': a dimension of shape is 4, need a non-negative integer");
    CHECK_MODEL(W("\"U8\"", "{}", "[0,4]"), 4, "E_ST_SHAPE",
                "tensor 'w' in 'f': shape is an object, need an array of at most 8 non-negative "
                "integers");
    CHECK_MODEL(W("\"U8\"", "[9223372036854775808]", "[0,4]"), 4, "E_ST_JSON",
                "'f' at byte 55 is not valid JSON: too big integer near "
                "'9223372036854775808'");
    CHECK_MODEL(W("\"U8\"", "[9223372036854775807]", "[0,4]"), 4, "E_ST_OVERFLOW",
                "tensor 'w' in 'f': the size of U8 [9223372036854775807] does not fit in 64 bits");
}

static void M15_metadata(void)
{
    const size_t bytes = 50u << 20;
    char *json = malloc(bytes);
    struct mp_st_table table;

    CHECK_MODEL("{\"__metadata__\":[]}", 0, "E_ST_METADATA",
                "__metadata__ in 'f' is an array of 0, need an object of strings");
    CHECK_MODEL("{\"__metadata__\":{\"a\":\"x\",\"n\":1}}", 0, "E_ST_METADATA",
                "key 'n' of __metadata__ in 'f' is 1, need a string");

    CHECK(json != NULL);
    memset(json, 'x', bytes);
    memcpy(json, "{\"__metadata__\":{\"a\":\"", 22);
    memcpy(json + bytes - 3, "\"}}", 3);
    CHECK_EQ(parse_n(json, bytes, 0, &table), MP_OK);
    mp_st_table_fini(&table);

    /* As many small values as fit: refused before any of them takes memory. */
    memset(json, ',', bytes);
    memcpy(json, "{\"__metadata__\":{", 17);
    CHECK_FAILS(parse_n(json, bytes, 0, &table), MP_ERR_MODEL, "E_ST_COUNT",
                "'f' at byte 4194327: more than 4194304 values");
    free(json);
}

static void M16_very_many_tensors(void)
{
    static const char entry[] = "\"%07u\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},";
    const unsigned count = 1000000;
    char *json = malloc(count * 64u + 2), *at = json;
    struct mp_st_table table;

    CHECK(json != NULL);
    *at++ = '{';
    for (unsigned i = 0; i < count; i++)
        at += sprintf(at, entry, i);
    at[-1] = '}';
    CHECK_FAILS(parse_n(json, (size_t)(at - json), 0, &table), MP_ERR_MODEL, "E_ST_COUNT",
                "'f' at byte 7602184: more than 131072 entries");

    at = json + 1;
    for (unsigned i = 0; i < MP_ST_TENSORS_MAX; i++)
        at += sprintf(at, entry, i);
    at[-1] = '}';
    CHECK_EQ(parse_n(json, (size_t)(at - json), 0, &table), MP_OK);
    CHECK_EQ(table.count, MP_ST_TENSORS_MAX);
    mp_st_table_fini(&table);
    free(json);
}

static void *parse_deep(void *json)
{
    struct mp_st_table table;

    CHECK_FAILS(parse_n(json, 100000, 0, &table), MP_ERR_MODEL, "E_ST_DEPTH",
                "'f' at byte 72: JSON is nested deeper than 64");
    return NULL;
}

static void M17_depth_100000_on_a_stack_of_64_KiB(void)
{
    char *json = malloc(100000);
    pthread_attr_t attr;
    pthread_t thread;

    CHECK(json != NULL);
    memset(json, '[', 100000);
    CHECK_EQ(pthread_attr_init(&attr), 0);
    CHECK_EQ(pthread_attr_setstacksize(&attr, 64 << 10), 0);
    CHECK_EQ(pthread_create(&thread, &attr, parse_deep, json), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&attr);
    free(json);
}

static void entries_have_exactly_three_keys(void)
{
    CHECK_MODEL("{\"w\":{\"dtype\":\"U8\",\"shape\":[0]}}", 0, "E_ST_ENTRY",
                "tensor 'w' in 'f' has no data_offsets");
    CHECK_MODEL("{\"w\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0],\"x\":1}}", 0,
                "E_ST_ENTRY",
                "tensor 'w' in 'f': got 4 keys, need dtype, shape, data_offsets and nothing else");
    CHECK_MODEL("{\"w\":7}", 0, "E_ST_ENTRY", "tensor 'w' in 'f': the entry is 7, need an object");
}

static void names_are_bounded_and_quoted(void)
{
    char json[4000], name[1100], want[400];

    CHECK_MODEL("{\"a\\n'b\":7}", 0, "E_ST_ENTRY",
                "tensor 'a\\x0a\\'b' in 'f': the entry is 7, need an object");
    memset(name, 'n', 1025);
    name[1025] = '\0';
    snprintf(json, sizeof(json), "{\"%s\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
             name);
    snprintf(want, sizeof(want),
             "name of tensor '%.128s...' in 'f' is 1025 bytes, need at most 1024", name);
    CHECK_MODEL(json, 0, "E_ST_NAME", want);
    name[1024] = '\0';
    snprintf(json, sizeof(json), "{\"%s\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
             name);
    CHECK_EQ(parse(json, 0), MP_OK);
}

int main(void)
{
    RUN(tensors_come_in_the_order_of_their_offsets);
    RUN(every_dtype_has_its_size);
    RUN(empty_files_of_the_format_are_valid);
    RUN(M1_shorter_than_the_length_field);
    RUN(M2_header_length_beyond_the_file_or_the_limit);
    RUN(M3_header_is_not_JSON);
    RUN(M4_white_space_around_the_header_is_accepted);
    RUN(M5_other_padding_is_refused);
    RUN(M6_duplicate_name_in_any_spelling);
    RUN(M7_overlap_and_hole_name_both_tensors);
    RUN(M8_bytes_missing_or_left_over);
    RUN(M9_offsets_that_are_no_offsets);
    RUN(M10_size_that_does_not_fit);
    RUN(M11_size_and_offsets_disagree);
    RUN(M12_unknown_dtype);
    RUN(M13_elements_of_half_a_byte);
    RUN(M14_shapes);
    RUN(M15_metadata);
    RUN(M16_very_many_tensors);
    RUN(M17_depth_100000_on_a_stack_of_64_KiB);
    RUN(entries_have_exactly_three_keys);
    RUN(names_are_bounded_and_quoted);
    return 0;
}
