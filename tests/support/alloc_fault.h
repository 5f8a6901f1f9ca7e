#ifndef MP_TEST_ALLOC_FAULT_H
#define MP_TEST_ALLOC_FAULT_H

/*
 * Failing allocations. A test that lists SOURCES tests/support/alloc_fault.c and LIBS
 * ${MP_ALLOC_FAULT} has malloc, calloc, realloc, aligned_alloc and pthread_create (EAGAIN) of all
 * code linked into it (not of shared libraries) go through here.
 *
 * The standard sweep makes call number n fail for n = 0, 1, ... until none was left to fail:
 *
 *     for (long n = 0;; n++) {
 *         mp_test_fail_alloc(n);
 *         status = make();
 *         if (mp_test_fail_alloc_done() == 0)
 *             break;                           the allocation number n never came: success
 *         CHECK_EQ(status, MP_ERR_NO_MEMORY);
 *     }
 */

/* pthread_create counts as one. Let the n-th allocation from now (0: the next) of any thread fail,
 * once. */
void mp_test_fail_alloc(long n);

/* Stop; returns how many allocations failed since mp_test_fail_alloc(). */
unsigned mp_test_fail_alloc_done(void);

#endif
