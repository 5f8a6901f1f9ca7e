#ifndef MP_TEST_INTERPOSE_FAMILY_H
#define MP_TEST_INTERPOSE_FAMILY_H

#include <stdint.h>

/*
 * A made-up GGUF file of any family: names, types and shapes as a test lists them. One at a time.
 * Types by GGUF's numbers.
 */
#define FAMILY_F32 0u
#define FAMILY_F16 1u
#define FAMILY_Q4_K 12u
#define FAMILY_I32 26u
#define FAMILY_BF16 30u
#define FAMILY_MXFP4 39u

void family_begin(const char *architecture);
void family_number(const char *key, uint64_t value); /* under the architecture's name */

/* A tensor with its fastest dimension first; 0: there is no such dimension. */
void family_tensor(uint32_t type, uint64_t a, uint64_t b, uint64_t c, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* All are listed: room for their bytes, which are noise. Then where those of one lie. */
void family_fill(void);
void *family_data(const char *name);
uint64_t family_offset(const char *name); /* in the file */

/* Write it; and how many bytes it has. */
uint64_t family_save(const char *path);

#endif
