/* The table of kernels of one compilation; see table.h. */
#include <string.h>

#include "tests/device/simt/table.h"

static const struct mp_simt_kernel *table(void)
{
#ifdef MP_SIMT_FMA
    if (__builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2"))
        return mp_simt_table_fma;
#endif
    return mp_simt_table_plain;
}

const struct mp_simt_kernel *mp_simt_find(const char *name)
{
    const struct mp_simt_kernel *kernels = table();

    for (int i = 0; i < MP_CUDA_KERNEL_COUNT; i++) {
        if (strcmp(kernels[i].name, name) == 0)
            return &kernels[i];
    }
    return NULL;
}
