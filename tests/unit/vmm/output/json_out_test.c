/* JSON and counters. JSON is read back with jansson, a strict reader. */
#include <jansson.h>
#include <locale.h>
#include <math.h>

#include "tests/support/test.h"
#include "vmm/base/compiler.h"
#include "vmm/output/counters.h"
#include "vmm/output/json_out.h"

static void write_all_kinds(FILE *file, bool pretty)
{
    struct mp_json_out json;

    mp_json_begin(&json, file, pretty);
    mp_json_object_begin(&json, NULL);
    mp_json_put_string(&json, "text",
                       "q\" b\\ n\n c\x01 \xc3\xa4 bad\xff\xc0\x80 \xed\xa0\x80 cut\xe2\x82");
    mp_json_put_string(&json, "none", NULL);
    mp_json_put_u64(&json, "big", INT64_MAX);
    mp_json_put_i64(&json, "low", INT64_MIN);
    mp_json_put_f64(&json, "tenth", 0.1);
    mp_json_put_f64(&json, "nan", (double)NAN);
    mp_json_put_milli(&json, "us", 1234567);
    mp_json_put_bool(&json, "yes", true);
    mp_json_array_begin(&json, "list");
    mp_json_put_u64(&json, NULL, 1);
    mp_json_object_begin(&json, NULL);
    mp_json_object_end(&json);
    mp_json_array_begin(&json, NULL);
    mp_json_array_end(&json);
    mp_json_put_null(&json, NULL);
    mp_json_array_end(&json);
    mp_json_object_end(&json);
    mp_json_end(&json);
}

static void json_is_valid_whatever_the_values(void)
{
    for (int pretty = 0; pretty < 2; pretty++) {
        char text[2048];
        FILE *file = fmemopen(text, sizeof(text), "w");
        json_t *json;

        write_all_kinds(file, pretty != 0);
        fclose(file);
        json = json_loads(text, 0, NULL);
        CHECK(json != NULL);
        CHECK_STR(json_string_value(json_object_get(json, "text")),
                  "q\" b\\ n\n c\x01 \xc3\xa4 bad\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd "
                  "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd cut\xef\xbf\xbd\xef\xbf\xbd");
        CHECK(json_is_null(json_object_get(json, "none")));
        CHECK(json_is_null(json_object_get(json, "nan")));
        CHECK_EQ(json_integer_value(json_object_get(json, "big")), INT64_MAX);
        CHECK_EQ(json_integer_value(json_object_get(json, "low")), INT64_MIN);
        CHECK(json_real_value(json_object_get(json, "tenth")) == 0.1);
        CHECK(strstr(text, pretty ? "\"us\": 1234.567" : "\"us\":1234.567") != NULL);
        CHECK_EQ(json_array_size(json_object_get(json, "list")), 4);
        json_decref(json);
    }
}

/* Each is one character or none, by the table of well-formed byte sequences in the Unicode
 * standard. */
static void only_well_formed_utf8_is_kept(void)
{
    static const struct {
        const char *bytes;
        bool kept;
    } cases[] = {
        { "\xc2\x80", true },          { "\xdf\xbf", true },          { "\xe0\xa0\x80", true },
        { "\xed\x9f\xbf", true },      { "\xef\xbf\xbd", true },      { "\xf0\x90\x80\x80", true },
        { "\xf4\x8f\xbf\xbf", true },  { "\xf0\x9f\x98\x80", true },  { "\x80", false },
        { "\xc1\xbf", false },         { "\xe0\x9f\xbf", false },     { "\xed\xa0\x80", false },
        { "\xf0\x8f\xbf\xbf", false }, { "\xf4\x90\x80\x80", false }, { "\xf5\x80\x80\x80", false },
        { "\xe2\x28\xa1", false },     { "\xe2\x82\x28", false },     { "\xf0\x90\x80\x28", false },
    };

    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        char text[256];
        FILE *file = fmemopen(text, sizeof(text), "w");
        struct mp_json_out out;
        json_t *json;

        mp_json_begin(&out, file, false);
        mp_json_put_string(&out, NULL, cases[i].bytes);
        mp_json_end(&out);
        fclose(file);
        json = json_loads(text, JSON_DECODE_ANY, NULL);
        CHECK(json != NULL);
        CHECK_EQ(strcmp(json_string_value(json), cases[i].bytes) == 0, cases[i].kept);
        json_decref(json);
    }
}

static void numbers_are_short_and_exact(void)
{
    static const double values[] = { 0, 0.1, 1.0 / 3, -2.5e-300, 1e22, 123456789.125 };
    char text[MP_F64_BYTES];

    CHECK_STR(mp_format_f64(0.1, text), "0.1");
    CHECK_STR(mp_format_f64(3, text), "3");
    CHECK_STR(mp_format_f64((double)INFINITY, text), "inf");
    for (size_t i = 0; i < MP_ARRAY_LEN(values); i++)
        CHECK(strtod(mp_format_f64(values[i], text), NULL) == values[i]);
    if (setlocale(LC_ALL, "de_DE.UTF-8") != NULL)
        CHECK_STR(mp_format_f64(2.5, text), "2.5");
    setlocale(LC_ALL, "C");
}

static void counters_merge_by_sum_and_by_peak(void)
{
    struct mp_counters a, b;
    char text[4096];
    struct mp_json_out out;
    FILE *file = fmemopen(text, sizeof(text), "w");
    json_t *json;

    mp_counters_reset(&a);
    mp_counters_reset(&b);
    CHECK_EQ(a.size, sizeof(a));
    a.hits = 3;
    b.hits = 4;
    a.resident_peak_bytes = 100;
    b.resident_peak_bytes = 70;
    b.decisions_ns = 9;
    mp_counters_merge(&a, &b);
    CHECK_EQ(a.hits, 7);
    CHECK_EQ(a.resident_peak_bytes, 100);
    CHECK_EQ(a.decisions_ns, 9);
    CHECK_EQ(b.hits, 4);
    b = mp_counters_since(&a, &b);
    CHECK_EQ(b.hits, 3);
    CHECK_EQ(b.decisions_ns, 0);
    CHECK_EQ(b.resident_peak_bytes, 100); /* a level is no difference */
    mp_json_begin(&out, file, false);
    mp_counters_json(&a, &out, NULL);
    mp_json_end(&out);
    fclose(file);
    json = json_loads(text, 0, NULL);
    CHECK(json != NULL);
    CHECK_EQ(json_integer_value(json_object_get(json, "hits")), 7);
    CHECK_EQ(json_object_size(json) * 8, sizeof(a)); /* version, then one member per field */
    json_decref(json);
    mp_counters_reset(&a);
    CHECK_EQ(a.hits, 0);
}

int main(void)
{
    RUN(json_is_valid_whatever_the_values);
    RUN(only_well_formed_utf8_is_kept);
    RUN(numbers_are_short_and_exact);
    RUN(counters_merge_by_sum_and_by_peak);
    return 0;
}
