/* The tables of kernels of one compilation; see table.h. */
#include <string.h>

#include "tests/device/simt/table.h"

static const struct mp_simt_kernel *table(bool quant)
{
#ifdef MP_SIMT_FMA
    if (__builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2"))
        return quant ? mp_simt_quant_fma : mp_simt_kernels_fma;
#endif
    return quant ? mp_simt_quant_plain : mp_simt_kernels_plain;
}

const struct mp_simt_kernel *mp_simt_find(const char *name)
{
    for (int i = 0; i < 2; i++) {
        for (const struct mp_simt_kernel *k = table(i > 0); k->name != NULL; k++) {
            if (strcmp(k->name, name) == 0)
                return k;
        }
    }
    return NULL;
}
