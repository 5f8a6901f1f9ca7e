#ifndef MP_FORMAT_GGUF_INT_H
#define MP_FORMAT_GGUF_INT_H

#include "vmm/format/gguf.h"

/* Inside of vmm/format/gguf.h, shared by gguf.c and gguf_parse.c: orders of the sorted tables. */
int mp_gguf_by_name(const void *a, const void *b);
int mp_gguf_by_key(const void *a, const void *b);

#endif
