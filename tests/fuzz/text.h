#ifndef MP_TEST_FUZZ_TEXT_H
#define MP_TEST_FUZZ_TEXT_H

#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "vmm/base/utf8.h"

/* A message is valid UTF-8 without control characters, whatever the input was. */
static inline void fuzz_check_message(const char *text)
{
    for (size_t bytes = strlen(text); bytes > 0;) {
        const size_t length = mp_utf8_sequence(text, bytes);

        FUZZ_CHECK(length > 0 && !mp_utf8_is_control(text, length));
        text += length;
        bytes -= length;
    }
}

#endif
