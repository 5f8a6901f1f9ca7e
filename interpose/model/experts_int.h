#ifndef MP_INTERPOSE_EXPERTS_INT_H
#define MP_INTERPOSE_EXPERTS_INT_H

#include "interpose/model/experts.h"
#include "vmm/format/gguf.h"

/* What the files of experts.h share. */
#define MP_EXPERT_BYTES_MIN (2 * (uint64_t)MP_SPACE_PAGE_BYTES)

/* An address inside of this library. */
extern const char mp_experts_suffix[];

/* Files, tensors with the numbers of their blocks, experts, top_k and data_begin. */
enum mp_status mp_experts_open_st(const char *path, struct mp_experts *experts) MP_MUST_CHECK;

/* routers.c. The routers of the layers, when those are numbered. A layer may have none that is
 * understood; failing costs guesses only. */
void mp_experts_find_routers(const struct mp_gguf *gguf, struct mp_experts *experts);

/* tables.c. The tables of rows. */
enum mp_status mp_experts_find_tables(const struct mp_gguf *gguf,
                                      struct mp_experts *experts) MP_MUST_CHECK;

/* A number that the model's description has under the architecture's name. */
bool mp_experts_get_u64(const struct mp_gguf *gguf, const char *key, uint64_t *value_p);

#endif
