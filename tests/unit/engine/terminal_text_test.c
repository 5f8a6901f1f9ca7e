/* What a text looks like on a terminal, byte by byte, and where it is none. */
#include "engine/cli/terminal.h"

#include "tests/support/test.h"

static void check(bool is_terminal, const char *text, size_t bytes, const char *want,
                  size_t want_bytes)
{
    char *got = NULL;
    size_t got_bytes = 0;
    FILE *out = open_memstream(&got, &got_bytes);

    CHECK(out != NULL);
    CHECK(mp_terminal_write(out, is_terminal, text, bytes));
    CHECK_EQ(fclose(out), 0);
    CHECK_EQ(got_bytes, want_bytes);
    CHECK_EQ(memcmp(got, want, want_bytes), 0);
    free(got);
}

static void a_terminal_gets_no_control_characters(void)
{
    static const struct {
        const char *text;
        size_t bytes;
        const char *want;
    } cases[] = {
        { "", 0, "" },
        { "a b~\n\tc", 7, "a b~\n\tc" },
        { "\0x", 2, "\\x00x" },
        { "\x1b[2J", 4, "\\x1b[2J" },
        { "\r\x1f \x7f", 4, "\\x0d\\x1f \\x7f" },
        { "\xc2\x80\xc2\x9f\xc2\xa0", 6, "\\xc2\\x80\\xc2\\x9f\xc2\xa0" },
        { "\xc3\xa9\xf0\x9f\x98\x80", 6, "\xc3\xa9\xf0\x9f\x98\x80" },
        { "a\xffz", 3, "a\\xffz" },
        { "\xe2\x82", 2, "\\xe2\\x82" },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        check(true, cases[i].text, cases[i].bytes, cases[i].want, strlen(cases[i].want));
}

static void elsewhere_every_byte_goes_through(void)
{
    static const char all[] = "\0\x1b\xff\xc2\x80\r\n";

    check(false, all, sizeof(all) - 1, all, sizeof(all) - 1);
}

static void an_output_that_fails_is_reported(void)
{
    FILE *full = fopen("/dev/full", "w");

    if (full == NULL)
        SKIP("there is no /dev/full here");
    setbuf(full, NULL);
    CHECK(!mp_terminal_write(full, true, "a", 1));
    CHECK(!mp_terminal_write(full, false, "a", 1));
    fclose(full);
}

int main(void)
{
    RUN(a_terminal_gets_no_control_characters);
    RUN(elsewhere_every_byte_goes_through);
    RUN(an_output_that_fails_is_reported);
    return 0;
}
