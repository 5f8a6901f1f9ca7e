#ifndef MP_TESTS_REFUSED_H
#define MP_TESTS_REFUSED_H

/* Calls of the program in a few words. */
#include "tests/system/cli/cli.h"

#define RUN_MODEL "run", "--model", CLI_MODEL
#define ARGS(...)                \
    (&(const struct cli){        \
        .args = { __VA_ARGS__ }, \
    })
#define REFUSED(code, part, ...) cli_expect(ARGS(__VA_ARGS__), code, part)

#endif
