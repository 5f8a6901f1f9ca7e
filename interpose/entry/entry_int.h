#ifndef MP_INTERPOSE_ENTRY_INT_H
#define MP_INTERPOSE_ENTRY_INT_H

/* Shared by entry.c, which owns the paged models, and calls.c, which uses them. */
#include "interpose/entry.h"
#include "interpose/pager/paged.h"

#define MP_MODELS_MAX 4u

/* As passed to start() by the preload library. */
extern struct mp_host mp_entry_host;

/* Get a paged model, by index or by an address of its mappings, for the duration of a call, until
 * mp_entry_end(). NULL: there is none. */
struct mp_paged *mp_entry_begin(uint32_t place);
struct mp_paged *mp_entry_begin_at(const void *at);
void mp_entry_end(const struct mp_paged *paged);

/* Members of struct mp_interposer (entry.h). */
void mp_call_expert(const void *site, const void *dst, int64_t number, int64_t rows);
bool mp_call_wants_chosen(const void *site);
bool mp_call_is_chosen(const void *tensor);
void mp_call_chosen(const void *tensor);
bool mp_call_routed(const void *weights, uint64_t expert_bytes, const int64_t *ids, size_t count);
void mp_call_ids_read(const void *site, const void *tensor, const void *data, size_t bytes);
bool mp_call_copy(const void *site, const struct mp_copy_call *wanted);
void mp_call_synchronized(const void *backend, bool ends);
void mp_call_whole(const void *site, const void *tensor);

#endif
