/* The kernels for weights of type Q5_K; see kernels/cuda/quant.cuh. */
#include "kernels/cuda/quant.cuh"

MP_QUANT(q5_k, MP_WTYPE_Q5_K)
