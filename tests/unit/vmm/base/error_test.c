/* Error texts: one line, quoted, with the code. */
#include "tests/support/test.h"
#include "vmm/base/checked.h"
#include "vmm/base/error.h"

static void fail_keeps_status_code_and_one_line(void)
{
    CHECK_EQ(mp_fail(MP_ERR_MODEL, "E_X", "a\nb %d", 7), MP_ERR_MODEL);
    CHECK_EQ(mp_error_last()->status, MP_ERR_MODEL);
    CHECK_STR(mp_error_last()->code, "E_X");
    CHECK_STR(mp_error_last()->text, "a?b 7");
    mp_error_clear();
    CHECK_EQ(mp_error_last()->status, MP_OK);
}

static void quote_escapes_and_cuts(void)
{
    char out[MP_QUOTE_BYTES], big[4000];

    CHECK_STR(mp_quote(out, "a'b\n", 4), "a\\'b\\x0a");
    memset(big, 0xff, sizeof(big));
    CHECK_EQ(strlen(mp_quote(out, big, sizeof(big))), 39 * 4 + 3);
    CHECK_EQ(MP_QUOTE_BYTES, 39 * 4 + 3 + 1);
    CHECK_STR(out + strlen(out) - 3, "...");
    memset(big, 'a', sizeof(big));
    CHECK_EQ(strlen(mp_quote(out, big, 128)), 128);
    CHECK(strchr(out, '.') == NULL);
    CHECK_EQ(strlen(mp_quote(out, big, 129)), 128 + 3);
    CHECK_STR(mp_quote(out, "", 0), "");
}

/* Valid UTF-8 is shown as it is, whole characters of it; what plays with a terminal is not. */
static void quote_keeps_what_can_be_read(void)
{
    char out[MP_QUOTE_BYTES], long_text[300] = "";

    CHECK_STR(mp_quote(out, "Modèle/模型😀", strlen("Modèle/模型😀")), "Modèle/模型😀");
    CHECK_STR(mp_quote(out, "a\xff\xc3", 3), "a\\xff\\xc3");
    CHECK_STR(mp_quote(out, "\xc2\x9b[m\xc2\xa0", 6), "\\xc2\\x9b[m\xc2\xa0");
    CHECK_STR(mp_quote(out, "\033[0m\177", 5), "\\x1b[0m\\x7f");
    CHECK_STR(mp_quote(out, "\xe2\x80\xae\xe2\x80\xa7", 6), "\\xe2\\x80\\xae\xe2\x80\xa7");
    CHECK_STR(mp_quote(out, "\xe2\x81\xa6\xe2\x81\xaa", 6), "\\xe2\\x81\\xa6\xe2\x81\xaa");
    CHECK_STR(mp_quote(out, "\xe2\x80\xa8\xe2\x80\xaf", 6), "\\xe2\\x80\\xa8\xe2\x80\xaf");
    CHECK_STR(mp_quote(out, "\xe2\x81\xa5\xe2\x81\xa9", 6), "\xe2\x81\xa5\\xe2\\x81\\xa9");
    CHECK_STR(mp_quote(out, "\xed\xa0\x80", 3), "\\xed\\xa0\\x80");
    for (int i = 0; i < 50; i++)
        strcat(long_text, "模");
    mp_quote(out, long_text, strlen(long_text));
    CHECK_EQ(strlen(out), 42 * 3 + 3);
    CHECK_STR(out + 42 * 3, "...");
    /* A record that is full ends with a whole character, too. */
    for (int shift = 0; shift < 3; shift++) {
        CHECK_EQ(mp_fail(MP_ERR_IO, "E_X", "%.*s%s%s%s%s%s%s", shift, "ab", long_text, long_text,
                         long_text, long_text, long_text, long_text),
                 MP_ERR_IO);
        CHECK_EQ((strlen(mp_error_last()->text) - (size_t)shift) % 3, 0);
        CHECK(strlen(mp_error_last()->text) >= sizeof(mp_error_last()->text) - 3);
    }
}

static void checked_arithmetic_refuses_what_does_not_fit(void)
{
    uint64_t v = 5;

    CHECK(!mp_add_u64(UINT64_MAX, 1, &v) && v == 5);
    CHECK(!mp_mul_u64(UINT64_MAX / 2 + 1, 2, &v) && v == 5);
    CHECK(!mp_round_up_u64(UINT64_MAX, 4096, &v) && v == 5);
    CHECK(!mp_round_up_u64(1, 0, &v) && v == 5);
    CHECK(mp_round_up_u64(4097, 4096, &v) && v == 8192);
    CHECK(mp_round_up_u64(0, 4096, &v) && v == 0);
    CHECK_EQ(mp_round_down_u64(8191, 4096), 4096);
}

static void every_status_has_text_and_exit_code(void)
{
#define X(name, value, exit_code, text)        \
    CHECK_STR(mp_status_str(MP_##name), text); \
    CHECK_EQ(mp_status_exit_code(MP_##name), exit_code);
    MP_STATUS_MAP(X)
#undef X
    CHECK_STR(mp_status_str((enum mp_status) - 999), "unknown status");
    CHECK_EQ(mp_status_exit_code((enum mp_status) - 999), 70);
}

int main(void)
{
    RUN(fail_keeps_status_code_and_one_line);
    RUN(quote_escapes_and_cuts);
    RUN(quote_keeps_what_can_be_read);
    RUN(checked_arithmetic_refuses_what_does_not_fit);
    RUN(every_status_has_text_and_exit_code);
    return 0;
}
