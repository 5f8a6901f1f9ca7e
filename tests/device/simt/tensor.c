/* The kernels for tensor cores, those of quantised types included, as kernels.c has the others. */
#define MP_TENSOR_MODULE
#include "kernels/cuda/tensor.cu"

#include "kernels/cuda/iq2_s.cu"
#include "kernels/cuda/iq2_xs.cu"
#include "kernels/cuda/iq2_xxs.cu"
#include "kernels/cuda/iq3_s.cu"
#include "kernels/cuda/iq3_xxs.cu"
#include "kernels/cuda/iq4_nl.cu"
#include "kernels/cuda/iq4_xs.cu"
#include "kernels/cuda/mxfp4.cu"
#include "kernels/cuda/q2_k.cu"
#include "kernels/cuda/q3_k.cu"
#include "kernels/cuda/q4_0.cu"
#include "kernels/cuda/q4_1.cu"
#include "kernels/cuda/q4_k.cu"
#include "kernels/cuda/q5_0.cu"
#include "kernels/cuda/q5_1.cu"
#include "kernels/cuda/q5_k.cu"
#include "kernels/cuda/q6_k.cu"
#include "kernels/cuda/q8_0.cu"

#define MP_SIMT_KERNELS(X) MP_CUDA_TENSOR_MAP(X)
#include "tests/device/simt/make_table.h"
