/*
 * The kernels of kernels/cuda/cuda_kernels.h that use tensor cores: a module of their own, because
 * they need compute capability 8.0, and so that a device which has not been asked for them never
 * sees them. Otherwise as kernels/cuda/kernels.cu.
 */
#include "kernels/cuda/tensor.cuh"
