/*
 * The encoders of blocks, once, for the file of a variant, which includes this at its end (there is
 * no other use and hence no guard). It defines VARIANT (the table to define), VARIANT_NAME, INLINE,
 * a vector `vec` of LANES floats that has the operators of arithmetic, and six functions: v_set1(),
 * v_load(), v_store(), v_max(a, b), which is a > b ? a : b, v_min(a, b), a < b ? a : b, and
 * v_if_less(a, b, yes, no), a < b ? yes : no.
 *
 * Every operation rounds once, and no sum depends on LANES: all variants give the same bits.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/quant/quant.h"

#include "kernels/cpu/quant/encode_search.h"

#include "kernels/cpu/quant/encode_32.h"
#include "kernels/cpu/quant/encode_k.h"

const struct mp_encode VARIANT = { VARIANT_NAME, block_32, block_256 };
