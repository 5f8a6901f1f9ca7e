#ifndef MP_KERNEL_ENCODE_H
#define MP_KERNEL_ENCODE_H

#include "kernels/cpu/types.h"

/*
 * Weights as blocks of a type: the other direction of mp_wtype_info.convert(). For each block
 * scales are searched that make the squared error small, and every number gets the code that is
 * nearest under the scales as they are stored. Plain C; the same bits on every processor that
 * rounds floats as IEEE says and fuses no multiplication with an addition.
 *
 * dst      whole blocks, at any address
 * weight   of each element's squared error, not negative; NULL: all count the same
 * count    a multiple of the type's block
 *
 * type     plain, or below MP_WTYPE_FIRST_GRID
 *
 * Every x is finite. Scales beyond the 16-bit floats are cut to them. Plain types round to nearest,
 * and what is beyond them to infinity.
 */
void mp_quant_encode(enum mp_wtype type, void *dst, const float *x, const float *weight,
                     size_t count);

#endif
