/* The kernels for weights of type MXFP4; see kernels/cuda/quant.cuh. */
#include "kernels/cuda/quant.cuh"

MP_QUANT(mxfp4, MP_WTYPE_MXFP4)
