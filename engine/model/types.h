#ifndef MP_ENGINE_TYPES_H
#define MP_ENGINE_TYPES_H

#include "kernels/cpu/types.h"
#include "vmm/base/error.h"
#include "vmm/format/types.h"

/*
 * Which types of files the engine computes with: the table that brings those of vmm/format/types.h
 * and those of kernels/cpu/types.h together. A row's two types have blocks of the same size.
 */

/* False: the kernels do not read this type. */
bool mp_wtype_of(enum mp_dtype dtype, enum mp_wtype *type_p) MP_MUST_CHECK;

/* What files call it; MP_DTYPE_COUNT for values not listed. */
enum mp_dtype mp_dtype_of(enum mp_wtype type);

/* Write "F32, BF16, ... or IQ4_XS", all that the kernels read, and return `out`. */
const char *mp_wtype_list(char out[MP_QUOTE_BYTES]);

#endif
