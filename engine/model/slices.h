#ifndef MP_ENGINE_SLICES_H
#define MP_ENGINE_SLICES_H

#include <stdbool.h>
#include <stdint.h>

/*
 * How the channels of an expert's FFN are divided into slices: `width` channels each, the last
 * slice has the remainder. A slice has its rows of gate and up and its columns of down.
 *
 * The width is a multiple of MP_KERNEL_BLOCK_COLS unless that makes the last slice too short: slots
 * have the size of the longest slice, and at most an eighth of the memory may be wasted. With such
 * a width, sliced and whole execution add the same partial sums of the down projection in the same
 * order, so the bits are equal; else bits are equal only for the same number of slices.
 */
struct mp_ffn_slices {
    uint32_t count; /* >= 1 */
    uint32_t width;
    uint32_t ffn; /* channels of all */
};

/* False: with so many slices one would have no channels. */
bool mp_ffn_slices_make(uint32_t ffn, uint32_t count, struct mp_ffn_slices *slices_p);

/* True if the bits equal those of whole experts. */
bool mp_ffn_slices_exact(const struct mp_ffn_slices *slices);

static inline uint32_t mp_ffn_slices_first(const struct mp_ffn_slices *slices, uint32_t slice)
{
    return slice * slices->width;
}

/* Channels of one slice. */
static inline uint32_t mp_ffn_slices_channels(const struct mp_ffn_slices *slices, uint32_t slice)
{
    return slice + 1 < slices->count ? slices->width : slices->ffn - slice * slices->width;
}

#endif
