/* The kernels of quantised types, as kernels.c has the others. */
#include "kernels/cuda/q4_k.cu"
#include "kernels/cuda/q6_k.cu"
#include "kernels/cuda/q8_0.cu"

#define MP_SIMT_KERNELS(X) MP_CUDA_QUANT_KERNEL_MAP(X)
#include "tests/device/simt/make_table.h"
