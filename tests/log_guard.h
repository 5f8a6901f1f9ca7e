#ifndef MP_TEST_LOG_GUARD_H
#define MP_TEST_LOG_GUARD_H

#include <stdint.h>

/*
 * Linked into every test: a program that would pass but logged an `error` that it did not announce
 * here fails. Add the number of errors a case provokes.
 */
extern uint64_t mp_test_expected_errors;

#endif
