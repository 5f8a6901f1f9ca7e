/* The kernels for weights of type Q2_K; see kernels/cuda/quant.cuh. */
#include "kernels/cuda/quant.cuh"

MP_QUANT(q2_k, MP_WTYPE_Q2_K)
