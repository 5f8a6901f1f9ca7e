/*
 * The kernels of kernels/cuda/cuda_kernels.h, one module; those for quantised weights have modules
 * of their own (kernels/cuda/q8_0.cu and so on). They are written in what C and CUDA C have in
 * common: tools/make_ptx compiles them for devices (kernels/cuda/ptx/mp_device.h), tests compile
 * them for the CPU (tests/device/simt/mp_device.h) and run them there.
 */
#include "kernels/cuda/matmul.cuh"
#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/pointwise.cuh"
#include "kernels/cuda/project.cuh"
#include "kernels/cuda/route.cuh"
#include "kernels/cuda/choose.cuh"
#include "kernels/cuda/measure.cuh"

/* By the number of tokens, or of an expert's rows; `few`: blocks of kernels for one row. */
#define MP_PLAIN(name, type, few)    \
    MP_GEMV(name, type, 1)           \
    MP_GEMV(name, type, 2)           \
    MP_GEMV(name, type, 4)           \
    MP_GEMV(name, type, 8)           \
    MP_GEMM(name, type)              \
    MP_PROJECT(name, type, 1)        \
    MP_PROJECT(name, type, 2)        \
    MP_PROJECT(name, type, 4)        \
    MP_PROJECT(name, type, 8)        \
    MP_EXPERTS(1_##name, type, 1, few) \
    MP_EXPERTS_FEW(name, type, 2)    \
    MP_EXPERTS_FEW(name, type, 4)    \
    MP_EXPERTS(8_##name, type, 8, 8)

MP_PLAIN(f32, MP_WTYPE_F32, 8)
MP_PLAIN(bf16, MP_WTYPE_BF16, 10)
MP_PLAIN(f16, MP_WTYPE_F16, 10)
MP_EXPERTS(_f32, MP_WTYPE_F32, 0, 2)
MP_EXPERTS(_bf16, MP_WTYPE_BF16, 0, 3)
MP_EXPERTS(_f16, MP_WTYPE_F16, 0, 3)
