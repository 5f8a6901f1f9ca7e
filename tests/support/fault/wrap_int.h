#ifndef MP_TEST_FAULT_WRAP_INT_H
#define MP_TEST_FAULT_WRAP_INT_H

#include "tests/support/fault/wrap.h"

/*
 * Between the plans (fault.c) and the calls that they fail (wrap.c, wrap_files.c). __real_x is the
 * function, __wrap_x is what the linker puts in its place.
 */

/* The errno with which this call from this address fails; -1: it does less, or wrong, as the plan
 * says; 0: it goes through. */
int fault_fails(enum fault_call call, const void *address);

/* A copy; a thread may ask while the test begins the next plan. */
struct fault_plan fault_plan_now(void);

#define HERE __builtin_return_address(0)

#define WRAP_AS(type, name, call, parameters, arguments, failed) \
    type __real_##name parameters;                               \
    type __wrap_##name parameters;                               \
    type __wrap_##name parameters                                \
    {                                                            \
        const int number = fault_fails(FAULT_##call, HERE);      \
                                                                 \
        if (number == 0)                                         \
            return __real_##name arguments;                      \
        errno = number;                                          \
        return failed;                                           \
    }
#define WRAP(type, name, parameters, arguments, failed) \
    WRAP_AS(type, name, name, parameters, arguments, failed)

#endif
