/*
 * The kernels of kernels/cuda/cuda_kernels.h that use tensor cores, for weights of 16 bits: a
 * module of their own, because they need compute capability 8.0, and so that a device which has not
 * been asked for them never sees them. Otherwise as kernels/cuda/kernels.cu. Those of a quantised
 * type are a module each, from the source of the type (kernels/cuda/quant.cuh).
 */
#include "kernels/cuda/tensor.cuh"

MP_TENSORS(bf16, MP_WTYPE_BF16)
MP_TENSORS(f16, MP_WTYPE_F16)
