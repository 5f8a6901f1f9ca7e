/* The kernels for weights of type Q8_0; see kernels/cuda/quant.cuh. */
#include "kernels/cuda/quant.cuh"

MP_QUANT(q8_0, MP_WTYPE_Q8_0)
