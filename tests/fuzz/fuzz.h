#ifndef MP_TEST_FUZZ_H
#define MP_TEST_FUZZ_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* What a fuzz target promises beyond not crashing; libFuzzer keeps the input that breaks it. */
#define FUZZ_CHECK(cond)                                                                  \
    do {                                                                                  \
        if (!(cond)) {                                                                    \
            fprintf(stderr, "%s:%d: FUZZ_CHECK(%s) failed\n", __FILE__, __LINE__, #cond); \
            abort();                                                                      \
        }                                                                                 \
    } while (0)

/* libFuzzer's entry points. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t max_bytes, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t bytes, size_t max_bytes);

#endif
