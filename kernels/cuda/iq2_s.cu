/* The kernels for weights of type IQ2_S; see kernels/cuda/quant.cuh. */
#include "kernels/cuda/quant.cuh"

MP_QUANT(iq2_s, MP_WTYPE_IQ2_S)
