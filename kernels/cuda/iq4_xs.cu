/* The kernels for weights of type IQ4_XS; see kernels/cuda/quant.cuh. */
#include "kernels/cuda/quant.cuh"

MP_QUANT(iq4_xs, MP_WTYPE_IQ4_XS)
