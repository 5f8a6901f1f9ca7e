/* Failing tests that log unexpected errors; see log_guard.h. */
#include "tests/support/log_guard.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "vmm/base/log.h"

uint64_t mp_test_expected_errors;

/* Weak: a test of kernels alone has no log. */
#pragma weak mp_log_lines

__attribute__((destructor)) static void check_logged_errors(void)
{
    uint64_t logged = mp_log_lines != NULL ? mp_log_lines(MP_LOG_ERROR) : 0;

    if (logged == mp_test_expected_errors)
        return;
    fflush(NULL);
    fprintf(stderr, "%" PRIu64 " errors were logged, %" PRIu64 " expected\n", logged,
            mp_test_expected_errors);
    _exit(1);
}

/* Under a sanitizer, too, an allocation that cannot be is NULL, so that tests can provoke it. */
MOEPAGER_API const char *__asan_default_options(void);
MOEPAGER_API const char *__tsan_default_options(void);

MOEPAGER_API const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

MOEPAGER_API const char *__tsan_default_options(void)
{
    return "allocator_may_return_null=1";
}
