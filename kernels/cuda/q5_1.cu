/* The kernels for weights of type Q5_1; see kernels/cuda/quant.cuh. */
#include "kernels/cuda/quant.cuh"

MP_QUANT(q5_1, MP_WTYPE_Q5_1)
