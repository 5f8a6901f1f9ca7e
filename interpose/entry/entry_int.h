#ifndef MP_INTERPOSE_ENTRY_INT_H
#define MP_INTERPOSE_ENTRY_INT_H

/* Shared by entry.c, which owns the paged model, and calls.c, which uses it. */
#include "interpose/entry.h"
#include "interpose/pager/paged.h"

/* As passed to start() by the preload library. */
extern struct mp_host mp_entry_host;

/* Get the paged model for the duration of a call, until mp_entry_end(); NULL: there is none. */
struct mp_paged *mp_entry_begin(void);
void mp_entry_end(void);

/* Members of struct mp_interposer (entry.h). */
void mp_call_expert(const void *site, const void *dst, int64_t number, int64_t rows);
bool mp_call_wants_chosen(const void *site);
bool mp_call_is_chosen(const void *tensor);
void mp_call_chosen(const void *tensor);
bool mp_call_routed(const void *weights, uint64_t expert_bytes, const int64_t *ids, size_t count);
void mp_call_ids_read(const void *site, const void *tensor, const void *data, size_t bytes);
bool mp_call_copy(const void *site, const struct mp_seam_copy *wanted);
void mp_call_synchronized(const void *backend, bool ends);
void mp_call_whole(const void *site, const void *tensor);

#endif
