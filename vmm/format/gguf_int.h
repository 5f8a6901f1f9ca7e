#ifndef MP_FORMAT_GGUF_INT_H
#define MP_FORMAT_GGUF_INT_H

#include "vmm/format/gguf.h"

/* Private to vmm/format/gguf.h: qsort() comparisons shared by gguf.c and gguf_parse.c. */
int mp_gguf_by_name(const void *a, const void *b);
int mp_gguf_by_key(const void *a, const void *b);

/* gguf_check.c: place the tensors of a walked header, check that none overlaps, leaves the file or
 * has the name of another, and sort entries and tensors. `file` is as messages show it. */
enum mp_status mp_gguf_check_part(struct mp_gguf_part *part, const char *file,
                                  uint64_t file_bytes) MP_MUST_CHECK;

#endif
