#ifndef MP_BACKEND_CUDA_INT_H
#define MP_BACKEND_CUDA_INT_H

#include <stdatomic.h>

#include "vmm/backend/backend.h"
#include "vmm/backend/cuda/cuda_driver.h"
#include "vmm/backend/cuda/cuda_watchdog.h"
#include "vmm/base/assert.h"

/*
 * Private to this folder: what the parts of the CUDA backend share. backend_cuda.c has opening,
 * closing and device frames, host_frames.c host frames, moves.c copies and windows, staging.c
 * copies of unpinned memory.
 */
struct cuda_backend {
    struct mp_backend super;
    const struct mp_cuda *cuda;
    struct mp_cuda_device device;
    mp_cu_context context;
    int numa_node;     /* of host frames */
    bool host_handles; /* else host frames are memory of `ram` */
    struct mp_backend *ram;

    /* Relaxed: counts and a flag that say nothing about other memory. */
    _Atomic(uint64_t) lost_bytes; /* of frames and places that could not be given back */
    _Atomic(bool) staged;         /* some host frame is not pinned: copies go through a buffer */
    struct mp_cuda_life *life;    /* shared with others who have the device open */
};

static inline struct cuda_backend *mp_cuda_self(struct mp_backend *backend)
{
    mp_assert(backend->ops == &mp_backend_cuda);
    return mp_container_of(backend, struct cuda_backend, super);
}

/* Make the device's context current on the calling thread. For a lost device this returns the error
 * that it was lost with, without a driver call. */
enum mp_status mp_cuda_enter(struct cuda_backend *self) MP_MUST_CHECK;

/* mp_cuda_check() that also records a sticky error as the loss of the device. */
enum mp_status mp_cuda_note(struct cuda_backend *self, mp_cu_result result, const char *call,
                            const char *object) MP_MUST_CHECK;

/* Result of a call that releases something. What cannot be released is lost and reported. */
bool mp_cuda_undone(struct cuda_backend *self, mp_cu_result result, const char *call);

void mp_cuda_count_lost(struct cuda_backend *self, uint64_t bytes);

/* What sizes of handles of `tier` are multiples of; a power of two of at least 4096. */
enum mp_status mp_cuda_granule(struct cuda_backend *self, enum mp_tier_kind tier,
                               uint64_t *bytes_p) MP_MUST_CHECK;

/* A handle of `tier`, mapped and accessible. The frame is filled in only on success. */
enum mp_status mp_cuda_create_mapped(struct cuda_backend *self, enum mp_tier_kind tier,
                                     uint64_t bytes, struct mp_frame *frame_p) MP_MUST_CHECK;

/* Set up host frames and fill in caps. Opens self->ram. */
enum mp_status mp_cuda_host_open(struct cuda_backend *self,
                                 const struct mp_backend_config *config) MP_MUST_CHECK;
enum mp_status mp_cuda_host_frame_create(struct cuda_backend *self, uint64_t bytes,
                                         struct mp_frame *frame_p) MP_MUST_CHECK;
/* False: the frame is a handle, which the caller still has to release. */
bool mp_cuda_host_frame_destroy(struct cuda_backend *self, const struct mp_frame *frame);

/* Memory is pinned in pieces of at most this size, and no copy may span two of them. */
#define MP_CUDA_PIN_BYTES (UINT64_C(64) << 20)

/* Bytes from a host address to the next possible boundary of a piece. */
uint64_t mp_cuda_to_cut(const void *address);

/* After a failed copy a part may be queued: wait for the stream, then reset. */
struct mp_cuda_stage;
enum mp_status mp_cuda_stage_open(struct cuda_backend *self,
                                  struct mp_cuda_stage **stage_p) MP_MUST_CHECK;
void mp_cuda_stage_close(struct cuda_backend *self, struct mp_cuda_stage *stage);
void mp_cuda_stage_reset(struct mp_cuda_stage *stage);
enum mp_status mp_cuda_stage_copy(struct cuda_backend *self, struct mp_cuda_stage *stage,
                                  mp_cu_stream stream, enum mp_copy copy, void *dst,
                                  const void *src, uint64_t bytes) MP_MUST_CHECK;

enum mp_status mp_cuda_stream_open(struct mp_backend *backend,
                                   struct mp_stream **stream_p) MP_MUST_CHECK;
void mp_cuda_stream_close(struct mp_backend *backend, struct mp_stream *stream);
enum mp_status mp_cuda_stream_copy(struct mp_backend *backend, struct mp_stream *stream,
                                   enum mp_copy copy, void *dst, const void *src,
                                   uint64_t bytes) MP_MUST_CHECK;
enum mp_status mp_cuda_event_record(struct mp_backend *backend, struct mp_stream *stream,
                                    unsigned event) MP_MUST_CHECK;
enum mp_status mp_cuda_event_wait(struct mp_backend *backend, struct mp_stream *stream,
                                  unsigned event) MP_MUST_CHECK;
enum mp_status mp_cuda_event_query(struct mp_backend *backend, struct mp_stream *stream,
                                   unsigned event, bool *reached_p) MP_MUST_CHECK;
enum mp_status mp_cuda_event_elapsed(struct mp_backend *backend, struct mp_stream *stream,
                                     unsigned from, unsigned to, uint64_t *ns_p) MP_MUST_CHECK;
enum mp_status mp_cuda_window_reserve(struct mp_backend *backend, uint64_t bytes,
                                      void **address_p) MP_MUST_CHECK;
void mp_cuda_window_free(struct mp_backend *backend, void *address, uint64_t bytes);
enum mp_status mp_cuda_window_map(struct mp_backend *backend, void *place,
                                  const struct mp_frame *frame) MP_MUST_CHECK;
enum mp_status mp_cuda_window_unmap(struct mp_backend *backend, void *place,
                                    uint64_t bytes) MP_MUST_CHECK;

#endif
