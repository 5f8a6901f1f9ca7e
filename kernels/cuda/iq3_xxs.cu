/* The kernels for weights of type IQ3_XXS; see kernels/cuda/quant.cuh. */
#include "kernels/cuda/quant.cuh"

MP_QUANT(iq3_xxs, MP_WTYPE_IQ3_XXS)
