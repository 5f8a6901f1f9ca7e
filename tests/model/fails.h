#ifndef MP_TEST_FAILS_H
#define MP_TEST_FAILS_H

#include "tests/support/test.h"
#include "vmm/base/error.h"

/* The call fails with this status, code and exactly this text. */
#define CHECK_FAILS(call, want_status, want_code, want_text) \
    do {                                                     \
        mp_error_clear();                                    \
        CHECK_EQ(call, want_status);                         \
        CHECK_EQ(mp_error_last()->status, want_status);      \
        CHECK_STR(mp_error_last()->code, want_code);         \
        CHECK_STR(mp_error_last()->text, want_text);         \
    } while (0)

#endif
