#ifndef MP_BASE_ASSERT_H
#define MP_BASE_ASSERT_H

#include <stdbool.h>

#include "vmm/base/compiler.h"

/*
 * Assertions on internal state. They catch bugs of this project only; bad input from a file, a
 * device, the environment or another process is reported by a status. On in builds with
 * MP_DEBUG_CHECKS (debug and test presets), otherwise the condition is compiled but never
 * evaluated, so it must have no effect that the program needs.
 */
static const bool mp_debug_checks = MP_DEBUG_CHECKS;

/* Write one line to stderr and abort. */
_Noreturn void mp_assert_fail(const char *what, const char *file, int line,
                              const char *function) MP_COLD;

#define mp_assert(cond)                                          \
    do {                                                         \
        if (mp_debug_checks && !(cond))                          \
            mp_assert_fail(#cond, __FILE__, __LINE__, __func__); \
    } while (0)

/* Marks unreachable code: fails in debug builds, undefined behaviour otherwise. */
#define mp_unreachable()                                                 \
    do {                                                                 \
        if (mp_debug_checks)                                             \
            mp_assert_fail("unreachable", __FILE__, __LINE__, __func__); \
        __builtin_unreachable();                                         \
    } while (0)

#endif
