/*
 * The choice of an implementation at run time. The list of names is in the order of preference.
 */
#include "kernels/kernels.h"

#include <string.h>

const char *const mp_kernels_names[] = { "ref", NULL };

size_t mp_wtype_bytes(enum mp_wtype type)
{
    switch (type) {
    case MP_WTYPE_F32: return 4;
    case MP_WTYPE_BF16:
    case MP_WTYPE_F16: return 2;
    default: return 0;
    }
}

const char *mp_wtype_name(enum mp_wtype type)
{
    switch (type) {
    case MP_WTYPE_F32: return "f32";
    case MP_WTYPE_BF16: return "bf16";
    case MP_WTYPE_F16: return "f16";
    default: return "unknown";
    }
}

const struct mp_kernels *mp_kernels_find(const char *name)
{
    return strcmp(name, mp_kernels_ref.name) == 0 ? &mp_kernels_ref : NULL;
}

const struct mp_kernels *mp_kernels_best(void)
{
    return &mp_kernels_ref;
}
