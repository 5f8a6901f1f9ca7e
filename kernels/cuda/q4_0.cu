/* The kernels for weights of type Q4_0; see kernels/cuda/quant.cuh. */
#include "kernels/cuda/quant.cuh"

MP_QUANT(q4_0, MP_WTYPE_Q4_0)
