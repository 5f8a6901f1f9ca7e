/*
 * Reads behind a block when the input begins with "MOE!". A run that does not find that within
 * seconds shows that the harness (coverage feedback, sanitizer, evaluation) does not work.
 */
#include <stdlib.h>

#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    volatile uint8_t *block = malloc(4);
    size_t at = 0;

    FUZZ_CHECK(block != NULL);
    for (int i = 0; i < 4; i++)
        block[i] = 0;
    if (bytes > 0 && data[0] == 'M') {
        at++;
        if (bytes > 1 && data[1] == 'O') {
            at++;
            if (bytes > 2 && data[2] == 'E') {
                at++;
                if (bytes > 3 && data[3] == '!')
                    at++;
            }
        }
    }
    const int sum = block[at];

    free((void *)block);
    return sum;
}
