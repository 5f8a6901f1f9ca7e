#ifndef MP_SIMT_TABLE_H
#define MP_SIMT_TABLE_H

#include "kernels/cuda/cuda_kernels.h"
#include "tests/device/fakecuda/simt.h"

/* The kernels of two compilations of the same source, in the order of enum mp_cuda_kernel. */
extern const struct mp_simt_kernel mp_simt_table_plain[MP_CUDA_KERNEL_COUNT];
extern const struct mp_simt_kernel mp_simt_table_fma[MP_CUDA_KERNEL_COUNT];

#define X(kernel, params) \
    void mp_simt_touches_##kernel(const void *params_at, mp_simt_emit *emit, void *ctx);
MP_CUDA_KERNEL_MAP(X)
#undef X

#endif
