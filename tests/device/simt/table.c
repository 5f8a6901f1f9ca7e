/* The tables of kernels of one compilation; see table.h. */
#include <string.h>

#include "tests/device/simt/table.h"

static const struct mp_simt_kernel *table(int part)
{
#ifdef MP_SIMT_FMA
    if (__builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2"))
        return part == 0 ? mp_simt_kernels_fma : part == 1 ? mp_simt_quant_fma : mp_simt_tensor_fma;
#endif
    return part == 0   ? mp_simt_kernels_plain
           : part == 1 ? mp_simt_quant_plain
                       : mp_simt_tensor_plain;
}

const struct mp_simt_kernel *mp_simt_find(const char *name)
{
    for (int part = 0; part < 3; part++) {
        for (const struct mp_simt_kernel *k = table(part); k->name != NULL; k++) {
            if (strcmp(k->name, name) == 0)
                return k;
        }
    }
    return NULL;
}
