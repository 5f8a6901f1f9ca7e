#ifndef MP_TEST_EXECUTORS_H
#define MP_TEST_EXECUTORS_H

#include "policy/policy.h"

/*
 * The executors of a machine with a GPU, for tests of policies: where they stand in the list, and
 * their properties as part of an initialiser of struct mp_costs. To leave the last ones out, lower
 * executor_count.
 */
enum { TEST_DEVICE, TEST_IN_PLACE, TEST_CPU, TEST_EXECUTORS };

#define TEST_THREE_EXECUTORS                                                           \
    .executor_count = TEST_EXECUTORS, .executors[TEST_IN_PLACE].reads = MP_READS_LINK, \
    .executors[TEST_CPU].reads = MP_READS_HOST, .executors[TEST_CPU].processor = 1

#endif
