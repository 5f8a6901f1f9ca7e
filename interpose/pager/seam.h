#ifndef MP_INTERPOSE_SEAM_H
#define MP_INTERPOSE_SEAM_H

#include "interpose/pager/ggml.h"
#include "interpose/pager/paged.h"

/*
 * Beneath a program that keeps experts in host memory and copies those that are chosen to a device
 * itself (llama.cpp with -cmoe, with and without its own cache): the source of such a copy is made
 * resident in time, all experts of a layer at once where the program has read the router's ids to
 * the host before, and the copy is made from the slot, which is pinned, instead of the mapping. So
 * bytes come from the disk to host memory and on to the device under one policy.
 *
 * The bytes are right without any of this: the mapping is the file's.
 *
 * Thread safety: any thread.
 */

/* ids(tokens, k) of tensor `ids` are at `data` in the host's memory, read by the calling thread.
 * What is no list of ids is ignored. */
void mp_seam_ids(const struct mp_ggml_tensor *ids, const void *data, size_t bytes);

/* Make the copy; struct mp_seam_copy is in entry.h. */
void mp_seam_copy(struct mp_paged *paged, const void *site, const struct mp_seam_copy *copy);

/* The layer that is open closes: no copy from its slots may be under way. With the turn. */
void mp_seam_drain(struct mp_paged *paged);

/*
 * Copies that another thread has queued from the open layer's slots may be under way: the layer
 * cannot be closed. Only that thread may wait for them, because its stream may be captured at any
 * other time. With the turn.
 */
bool mp_seam_blocks(const struct mp_paged *paged);

/* The program has waited for the backend; it is going to end it. */
void mp_seam_synchronized(struct mp_paged *paged, const void *backend);
void mp_seam_backend_ends(struct mp_paged *paged, const void *backend);

/* The program is going to copy all of [data, +bytes): it is read ahead. */
void mp_seam_whole(struct mp_paged *paged, const void *data, size_t bytes);

/* Slots are unpinned; before the backend is closed. */
void mp_seam_close(struct mp_paged *paged);

#endif
