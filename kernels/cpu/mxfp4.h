#ifndef MP_KERNEL_MXFP4_H
#define MP_KERNEL_MXFP4_H

#include <stddef.h>

/*
 * 32 weights of MXFP4 in its two forms: a block of 17 bytes, whose first is the scale, and nibbles
 * apart from their scale, as gpt-oss's own checkpoints have them. In a block a byte has one nibble
 * of each half, apart it has two neighbours, the lower first.
 */
#define MP_MXFP4_BLOCK 17u
#define MP_MXFP4_NIBBLES 16u

static inline void mp_mxfp4_join(unsigned char *block, const unsigned char *nibbles,
                                 unsigned char scale)
{
    block[0] = scale;
    for (size_t i = 0; i < MP_MXFP4_NIBBLES; i++) {
        const unsigned shift = i % 2 * 4;

        block[1 + i] = (unsigned char)((nibbles[i / 2] >> shift & 15) |
                                       (nibbles[8 + i / 2] >> shift & 15) << 4);
    }
}

static inline void mp_mxfp4_part(const unsigned char *block, unsigned char *nibbles,
                                 unsigned char *scale_p)
{
    *scale_p = block[0];
    for (size_t i = 0; i < MP_MXFP4_NIBBLES; i++) {
        const unsigned char *pair = block + 1 + i % 8 * 2;
        const unsigned shift = i / 8 * 4;

        nibbles[i] = (unsigned char)((pair[0] >> shift & 15) | (pair[1] >> shift & 15) << 4);
    }
}

#endif
