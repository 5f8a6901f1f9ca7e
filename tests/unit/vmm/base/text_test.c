/*
 * Sizes as people read them: each in the unit that fits.
 */
#include "vmm/base/text.h"

#include "tests/support/test.h"

static void sizes_have_the_unit_that_fits(void)
{
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {
        { 0, "0.0 KiB" },
        { 4608, "4.5 KiB" },
        { (1u << 20) - 1, "1024.0 KiB" },
        { 1u << 20, "1.0 MiB" },
        { 18874368, "18.0 MiB" },
        { 1u << 30, "1.00 GiB" },
        { UINT64_C(1600000000), "1.49 GiB" },
        { UINT64_MAX, "17179869184.00 GiB" },
    };
    char text[MP_TEXT_SIZE_BYTES];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        CHECK(mp_text_size(cases[i].bytes, text) == text);
        CHECK_STR(text, cases[i].text);
    }
}

int main(void)
{
    RUN(sizes_have_the_unit_that_fits);
    return 0;
}
