/* The kernels for weights of type Q6_K; see kernels/cuda/quant.cuh. */
#include "kernels/cuda/quant.cuh"

MP_QUANT(q6_k, MP_WTYPE_Q6_K)
