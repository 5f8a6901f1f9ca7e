/* The kernels for weights of type IQ4_NL; see kernels/cuda/quant.cuh. */
#include "kernels/cuda/quant.cuh"

MP_QUANT(iq4_nl, MP_WTYPE_IQ4_NL)
