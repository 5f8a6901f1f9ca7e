#ifndef MP_TEST_H
#define MP_TEST_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Own checks, so that they stay on in release builds. A test program runs its cases in order and
 * ends with 0 (passed), 1 (failed, with file and line) or 77 (skipped, with the reason).
 */
#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "%s:%d: %s: CHECK(%s) failed\n", __FILE__, __LINE__, __func__, #cond); \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define CHECK_EQ(a, b)                                                                         \
    do {                                                                                       \
        long long a_ = (long long)(a), b_ = (long long)(b);                                    \
        if (a_ != b_) {                                                                        \
            fprintf(stderr, "%s:%d: %s: %s is %lld, expected %s = %lld\n", __FILE__, __LINE__, \
                    __func__, #a, a_, #b, b_);                                                 \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

#define CHECK_STR(a, b)                                                                       \
    do {                                                                                      \
        const char *a_ = (a), *b_ = (b);                                                      \
        if (strcmp(a_, b_) != 0) {                                                            \
            fprintf(stderr, "%s:%d: %s: %s is \"%s\", expected \"%s\"\n", __FILE__, __LINE__, \
                    __func__, #a, a_, b_);                                                    \
            exit(1);                                                                          \
        }                                                                                     \
    } while (0)

#define SKIP(reason)                              \
    do {                                          \
        fprintf(stderr, "skipped: %s\n", reason); \
        exit(77);                                 \
    } while (0)

#define RUN(test)                         \
    do {                                  \
        fprintf(stderr, "  %s\n", #test); \
        test();                           \
    } while (0)

#endif
