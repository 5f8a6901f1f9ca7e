/*
 * The kernels themselves, compiled for the CPU. Built twice: where the processor has fused
 * multiply-add as an instruction, the table of the object that uses it is taken
 * (tests/device/simt/table.c).
 */
#include "kernels/cuda/kernels.cu"
#include "kernels/cuda/tensor.cu"

#include "tests/device/simt/table.h"

#define X(kernel, params)                                                                  \
    static const char *kernel##_run(const void *p, struct mp_simt_dim grid,                \
                                    struct mp_simt_dim block, uint32_t shared_bytes)       \
    {                                                                                      \
        return mp_simt_run(mp_##kernel##_enter, p, mp_##kernel##_threads_max, grid, block, \
                           shared_bytes);                                                  \
    }
MP_CUDA_KERNEL_MAP(X)
#undef X

const struct mp_simt_kernel MP_SIMT_TABLE[MP_CUDA_KERNEL_COUNT] = {
#define X(kernel, params) \
    { "mp_" #kernel, sizeof(struct params), kernel##_run, mp_simt_touches_##kernel },
    MP_CUDA_KERNEL_MAP(X)
#undef X
};
