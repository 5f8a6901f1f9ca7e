#ifndef MP_ENGINE_TYPES_H
#define MP_ENGINE_TYPES_H

#include "kernels/cpu/types.h"
#include "vmm/base/error.h"
#include "vmm/format/types.h"

/*
 * Which tensor types of files the engine can compute with: a table that maps those of
 * vmm/format/types.h to those of kernels/cpu/types.h. The two types of a row have blocks of the
 * same size.
 */

/* False: the kernels do not support this type. */
bool mp_wtype_of(enum mp_dtype dtype, enum mp_wtype *type_p) MP_MUST_CHECK;

/* The type in files; MP_DTYPE_COUNT for values not listed. */
enum mp_dtype mp_dtype_of(enum mp_wtype type);

/* Write "F32, BF16, ... or IQ4_XS", all that the kernels read, and return `out`. */
const char *mp_wtype_list(char out[MP_QUOTE_BYTES]);

#endif
