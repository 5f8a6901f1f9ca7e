/* The kernels for weights of type IQ3_S; see kernels/cuda/quant.cuh. */
#include "kernels/cuda/quant.cuh"

MP_QUANT(iq3_s, MP_WTYPE_IQ3_S)
