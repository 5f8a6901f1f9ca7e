/*
 * The kernels for weights of a quantised type: a module of its own for each, which is loaded for a
 * model that has such weights, and one more of those that use tensor cores, of the same source with
 * MP_TENSOR_MODULE defined. Embeddings are read by mp_embed.
 */
#ifndef MP_QUANT_CUH
#define MP_QUANT_CUH

#ifdef MP_TENSOR_MODULE

#include "kernels/cuda/tensor.cuh"

#define MP_QUANT(name, type) MP_TENSORS(name, type)

#else

#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/matmul.cuh"
#include "kernels/cuda/project.cuh"

/* MP_CUDA_QUANT_KERNELS. Those for 8 tokens also multiply fewer: what they do at a time are four,
 * of a norm two, and times without tokens are left out. */
#define MP_QUANT(name, type)       \
    MP_GEMV(name, type, 1)         \
    MP_GEMV(name, type, 8)         \
    MP_GEMM(name, type)            \
    MP_PROJECT(name, type, 1)      \
    MP_PROJECT(name, type, 8)      \
    MP_EXPERTS(1_##name, type, 1, 8) \
    MP_EXPERTS(8_##name, type, 8, 8) \
    MP_EXPERTS(_##name, type, 0, 3)

#endif

#endif
