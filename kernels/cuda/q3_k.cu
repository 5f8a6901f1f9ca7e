/* The kernels for weights of type Q3_K; see kernels/cuda/quant.cuh. */
#include "kernels/cuda/quant.cuh"

MP_QUANT(q3_k, MP_WTYPE_Q3_K)
