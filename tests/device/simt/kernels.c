/*
 * The kernels themselves, compiled for the CPU, but for those of quantised types (quant.c) and for
 * tensor cores (tensor.c). Built twice: where the processor has fused multiply-add as an
 * instruction, the table of the object that uses it is taken (tests/device/simt/table.c).
 */
#include "kernels/cuda/kernels.cu"

#define MP_SIMT_KERNELS(X) MP_CUDA_MAIN_MAP(X)
#include "tests/device/simt/make_table.h"
