/* The kernels for weights of type IQ2_XXS; see kernels/cuda/quant.cuh. */
#include "kernels/cuda/quant.cuh"

MP_QUANT(iq2_xxs, MP_WTYPE_IQ2_XXS)
