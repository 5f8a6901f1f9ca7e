/* The kernels for weights of type Q4_1; see kernels/cuda/quant.cuh. */
#include "kernels/cuda/quant.cuh"

MP_QUANT(q4_1, MP_WTYPE_Q4_1)
