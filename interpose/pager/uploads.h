#ifndef MP_INTERPOSE_UPLOADS_H
#define MP_INTERPOSE_UPLOADS_H

#include "interpose/pager/ggml.h"
#include "interpose/pager/paged.h"

/*
 * For a program that keeps experts in host memory and copies chosen ones to a device itself
 * (llama.cpp with -cmoe, with and without its own cache): the source of such a copy is made
 * resident in time (all experts of a layer at once if the program has copied the router's ids to
 * the host before), and the copy is made from the pinned slot instead of the mapping. So one policy
 * moves bytes from the disk to host memory and on to the device.
 *
 * Bytes are correct without this module: the mapping is the file's.
 *
 * Thread safety: any thread.
 */

/* The calling thread has copied ids(tokens, k) of tensor `ids` to `data` in host memory. A tensor
 * that is not a list of ids is ignored. */
void mp_upload_note_ids(const struct mp_ggml_tensor *ids, const void *data, size_t bytes);

/* Make the copy; struct mp_copy_call is in entry.h. */
void mp_upload_copy(struct mp_paged *paged, const void *site, const struct mp_copy_call *copy);

/* Before the open layer closes: wait for copies from its slots. With `mutex` held. */
void mp_upload_drain(struct mp_paged *paged);

/*
 * True if copies from the open layer's slots that another thread has queued may be in flight: the
 * layer cannot be closed. Only that thread may wait for them, because its stream may be in capture
 * at any other time. With `mutex` held.
 */
bool mp_upload_blocks(const struct mp_paged *paged);

/* Called after the program has waited for the backend; called before it frees the backend. */
void mp_upload_synchronized(struct mp_paged *paged, const void *backend);
void mp_upload_backend_ends(struct mp_paged *paged, const void *backend);

/* Before the program copies all of [data, +bytes): read it ahead. */
void mp_upload_read_ahead(struct mp_paged *paged, const void *data, size_t bytes);

/* Unpin the slots; before the backend is closed. */
void mp_upload_close(struct mp_paged *paged);

#endif
