/* The kernels for weights of type Q4_K; see kernels/cuda/quant.cuh. */
#include "kernels/cuda/quant.cuh"

MP_QUANT(q4_k, MP_WTYPE_Q4_K)
