/*
 * What libmoepager_interpose.so exports for CUDA programs; what is in it is in gpu.c.
 */
#include "interpose/cuda/gpu.h"
#include "vmm/base/compiler.h"

extern const struct mp_gpu_interposer *const mp_gpu_v1;
MOEPAGER_API const struct mp_gpu_interposer *const mp_gpu_v1 = &mp_gpu_interposer_table;
