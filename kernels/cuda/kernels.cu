/*
 * The kernels of kernels/cuda/cuda_kernels.h, one module. They are written in what C and CUDA C
 * have in common: tools/make_ptx compiles them for devices (kernels/cuda/ptx/mp_device.h), tests
 * compile them for the CPU (tests/device/simt/mp_device.h) and run them there.
 */
#include "kernels/cuda/matmul.cuh"
#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/pointwise.cuh"
#include "kernels/cuda/project.cuh"
#include "kernels/cuda/route.cuh"
#include "kernels/cuda/choose.cuh"
#include "kernels/cuda/measure.cuh"
