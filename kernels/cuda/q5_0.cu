/* The kernels for weights of type Q5_0; see kernels/cuda/quant.cuh. */
#include "kernels/cuda/quant.cuh"

MP_QUANT(q5_0, MP_WTYPE_Q5_0)
