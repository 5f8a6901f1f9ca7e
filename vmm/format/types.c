/* The table of types that tensors have in files: their sizes, not their arithmetic. */
#include "vmm/format/types.h"

#include <string.h>

static const struct mp_dtype_info types[MP_DTYPE_COUNT] = {
#define X(name, elements, bytes, exponent, fraction) \
    [MP_DTYPE_##name] = { #name, elements, bytes, exponent, fraction },
    MP_DTYPE_MAP(X)
#undef X
};

const struct mp_dtype_info *mp_dtype_info(enum mp_dtype dtype)
{
    return (unsigned)dtype < MP_DTYPE_COUNT ? &types[dtype] : NULL;
}

bool mp_dtype_find(const char *name, enum mp_dtype *dtype_p)
{
    if (name == NULL)
        return false;
    for (int i = 0; i < MP_DTYPE_COUNT; i++) {
        if (strcmp(name, types[i].name) == 0) {
            *dtype_p = (enum mp_dtype)i;
            return true;
        }
    }
    return false;
}
