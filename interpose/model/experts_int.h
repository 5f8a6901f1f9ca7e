#ifndef MP_INTERPOSE_EXPERTS_INT_H
#define MP_INTERPOSE_EXPERTS_INT_H

#include "interpose/model/experts.h"

/* Shared by the files that implement experts.h. */
#define MP_EXPERT_BYTES_MIN (2 * (uint64_t)MP_SPACE_PAGE_BYTES)

/* An address inside this library. */
extern const char mp_experts_suffix[];

/* Sets files, tensors with the numbers of their blocks, experts, top_k and data_begin. */
enum mp_status mp_experts_open_st(const char *path, struct mp_experts *experts) MP_MUST_CHECK;

#endif
