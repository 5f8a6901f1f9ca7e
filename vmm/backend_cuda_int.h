#ifndef MP_BACKEND_CUDA_INT_H
#define MP_BACKEND_CUDA_INT_H

#include <stdatomic.h>

#include "vmm/backend.h"
#include "vmm/cuda_driver.h"

/*
 * What the parts of the CUDA backend share: backend_cuda.c has frames and the device's life,
 * backend_cuda_move.c copies and windows.
 */
struct cuda_backend {
    struct mp_backend super;
    const struct mp_cuda *cuda;
    struct mp_cuda_device device;
    mp_cu_context context;
    int numa_node;     /* of host frames */
    bool host_handles; /* else host frames are pinned memory */

    /* Relaxed: counts and a flag that say nothing about other memory. */
    _Atomic(uint64_t) lost_bytes; /* of frames and places that could not be given back */
    _Atomic(int) lost;            /* the result with which the device was lost for good, or 0 */
};

static inline struct cuda_backend *mp_cuda_self(struct mp_backend *backend)
{
    return mp_container_of(backend, struct cuda_backend, super);
}

/* Make the device's context that of the calling thread. A device that is lost fails here, with what
 * it was lost by, and is not called any more. */
enum mp_status mp_cuda_enter(struct cuda_backend *self) MP_MUST_CHECK;

/* mp_cuda_check(), that remembers what is final. */
enum mp_status mp_cuda_note(struct cuda_backend *self, mp_cu_result result, const char *call,
                            const char *object) MP_MUST_CHECK;

/* A call that takes something back. What it cannot take back stays lost, and is told. */
bool mp_cuda_undone(struct cuda_backend *self, mp_cu_result result, const char *call);

enum mp_status mp_cuda_lane_open(struct mp_backend *backend, struct mp_lane **lane_p) MP_MUST_CHECK;
void mp_cuda_lane_close(struct mp_backend *backend, struct mp_lane *lane);
enum mp_status mp_cuda_lane_copy(struct mp_backend *backend, struct mp_lane *lane,
                                 enum mp_copy copy, void *dst, const void *src,
                                 uint64_t bytes) MP_MUST_CHECK;
enum mp_status mp_cuda_lane_mark(struct mp_backend *backend, struct mp_lane *lane,
                                 unsigned mark) MP_MUST_CHECK;
enum mp_status mp_cuda_lane_wait(struct mp_backend *backend, struct mp_lane *lane,
                                 unsigned mark) MP_MUST_CHECK;
enum mp_status mp_cuda_window_reserve(struct mp_backend *backend, uint64_t bytes,
                                      void **address_p) MP_MUST_CHECK;
void mp_cuda_window_free(struct mp_backend *backend, void *address, uint64_t bytes);
enum mp_status mp_cuda_window_map(struct mp_backend *backend, void *place,
                                  const struct mp_frame *frame) MP_MUST_CHECK;
enum mp_status mp_cuda_window_unmap(struct mp_backend *backend, void *place,
                                    uint64_t bytes) MP_MUST_CHECK;

#endif
