#ifndef MP_BACKEND_CUDA_INT_H
#define MP_BACKEND_CUDA_INT_H

#include <stdatomic.h>

#include "vmm/backend/backend.h"
#include "vmm/backend/cuda/cuda_driver.h"
#include "vmm/backend/cuda/cuda_watchdog.h"
#include "vmm/base/assert.h"

/*
 * What the parts of the CUDA backend share: backend_cuda.c has device frames and the device's life,
 * host_frames.c host frames, moves.c copies and windows, staging.c copies of memory that is not
 * pinned. Nobody outside this folder includes it.
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

/* Make the device's context that of the calling thread. A device that is lost fails here, with what
 * it was lost by, and is not called any more. */
enum mp_status mp_cuda_enter(struct cuda_backend *self) MP_MUST_CHECK;

/* mp_cuda_check(), that remembers what is final. */
enum mp_status mp_cuda_note(struct cuda_backend *self, mp_cu_result result, const char *call,
                            const char *object) MP_MUST_CHECK;

/* A call that takes something back. What it cannot take back stays lost, and is reported. */
bool mp_cuda_undone(struct cuda_backend *self, mp_cu_result result, const char *call);

void mp_cuda_count_lost(struct cuda_backend *self, uint64_t bytes);

/* A handle of `tier`, mapped and accessible. The frame is filled in only on success. */
enum mp_status mp_cuda_create_mapped(struct cuda_backend *self, enum mp_tier_kind tier,
                                     uint64_t bytes, struct mp_frame *frame_p) MP_MUST_CHECK;

/* With caps. What it opens is self->ram. */
enum mp_status mp_cuda_host_open(struct cuda_backend *self,
                                 const struct mp_backend_config *config) MP_MUST_CHECK;
enum mp_status mp_cuda_host_frame_create(struct cuda_backend *self, uint64_t bytes,
                                         struct mp_frame *frame_p) MP_MUST_CHECK;
/* False: it is a handle, and still there. */
bool mp_cuda_host_frame_destroy(struct cuda_backend *self, const struct mp_frame *frame);

/* Memory is pinned in pieces no larger than this, and no copy may touch two of them. */
#define MP_CUDA_PIN_BYTES (UINT64_C(64) << 20)

/* Bytes from an address of the host to where the next piece may begin. */
uint64_t mp_cuda_to_cut(const void *address);

/* A copy that failed may have queued a part: wait for the stream, then reset. */
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
enum mp_status mp_cuda_window_reserve(struct mp_backend *backend, uint64_t bytes,
                                      void **address_p) MP_MUST_CHECK;
void mp_cuda_window_free(struct mp_backend *backend, void *address, uint64_t bytes);
enum mp_status mp_cuda_window_map(struct mp_backend *backend, void *place,
                                  const struct mp_frame *frame) MP_MUST_CHECK;
enum mp_status mp_cuda_window_unmap(struct mp_backend *backend, void *place,
                                    uint64_t bytes) MP_MUST_CHECK;

#endif
