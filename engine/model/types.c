/* The table between the types of files and those of the kernels. */
#include "engine/model/types.h"

#include <stdio.h>

static const enum mp_dtype dtypes[MP_WTYPE_COUNT] = { [MP_WTYPE_F32] = MP_DTYPE_F32,
                                                      [MP_WTYPE_BF16] = MP_DTYPE_BF16,
                                                      [MP_WTYPE_F16] = MP_DTYPE_F16,
#define X(TYPE, ...) [MP_WTYPE_##TYPE] = MP_DTYPE_##TYPE,
                                                      MP_QUANT_MAP(X)
#undef X
};

bool mp_wtype_of(enum mp_dtype dtype, enum mp_wtype *type_p)
{
    for (int i = 0; i < MP_WTYPE_COUNT; i++) {
        if (dtypes[i] == dtype) {
            *type_p = (enum mp_wtype)i;
            return true;
        }
    }
    return false;
}

enum mp_dtype mp_dtype_of(enum mp_wtype type)
{
    return (unsigned)type < MP_WTYPE_COUNT ? dtypes[type] : MP_DTYPE_COUNT;
}

const char *mp_wtype_list(char out[MP_QUOTE_BYTES])
{
    size_t used = 0;

    for (int i = 0; i < MP_WTYPE_COUNT && used < MP_QUOTE_BYTES; i++)
        used += (size_t)snprintf(out + used, MP_QUOTE_BYTES - used, "%s%s",
                                 i == 0                   ? ""
                                 : i + 1 < MP_WTYPE_COUNT ? ", "
                                                          : " or ",
                                 mp_dtype_name(dtypes[i]));
    return out;
}
