#ifndef MP_TEST_RANDOM_H
#define MP_TEST_RANDOM_H

#include <stdint.h>

/* Numbers that are the same in every run. A test gives the first: static uint64_t random_state = 7;
 */
static uint64_t random_state;

static inline uint32_t random_below(uint32_t limit)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((random_state >> 33) % limit);
}

#endif
