#ifndef MP_TEST_LOG_GUARD_H
#define MP_TEST_LOG_GUARD_H

#include <stddef.h>
#include <stdint.h>

#include "vmm/base/log.h"

/*
 * Linked into every test: a program that would pass but logged an `error` that it did not announce
 * here fails. Add the number of errors a case provokes.
 */
extern uint64_t mp_test_expected_errors;

static inline void mp_test_drop_line(void *ctx, enum mp_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    (void)line;
}

/* For a test that provokes warnings: nothing is printed, errors still count. */
static inline void mp_test_drop_log(void)
{
    mp_log_set_sink(mp_test_drop_line, NULL);
}

#endif
