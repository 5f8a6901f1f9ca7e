#ifndef MP_FORMAT_GGUF_INT_H
#define MP_FORMAT_GGUF_INT_H

#include "vmm/format/gguf.h"

/* Private to vmm/format/gguf.h: qsort() comparisons shared by gguf.c and gguf_parse.c. */
int mp_gguf_by_name(const void *a, const void *b);
int mp_gguf_by_key(const void *a, const void *b);

#endif
