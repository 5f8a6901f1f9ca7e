/* The kernels for weights of type IQ2_XS; see kernels/cuda/quant.cuh. */
#include "kernels/cuda/quant.cuh"

MP_QUANT(iq2_xs, MP_WTYPE_IQ2_XS)
