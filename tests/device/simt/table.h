#ifndef MP_SIMT_TABLE_H
#define MP_SIMT_TABLE_H

#include "kernels/cuda/cuda_kernels.h"
#include "tests/device/fakecuda/simt.h"

/* The kernels of two compilations of the same sources, each of three tables; the end of one has no
 * name. */
extern const struct mp_simt_kernel mp_simt_kernels_plain[], mp_simt_quant_plain[],
    mp_simt_tensor_plain[];
extern const struct mp_simt_kernel mp_simt_kernels_fma[], mp_simt_quant_fma[], mp_simt_tensor_fma[];

#define X(kernel, params) \
    void mp_simt_touches_##kernel(const void *params_at, mp_simt_emit *emit, void *ctx);
MP_CUDA_KERNEL_MAP(X)
#undef X

#endif
