#ifndef MP_FRAMES_H
#define MP_FRAMES_H

#include "vmm/backend/backend.h"

/* Creates many frames of a tier at once. Pinning is slow, so with backends that allow it
 * (caps.parallel_frames) a few threads work in parallel. */
struct mp_frame_order {
    uint64_t bytes;
    struct mp_frame *frame_p; /* filled in */
};

/* All or none: on failure the first error is returned, and no frame is left. */
enum mp_status mp_frames_make(struct mp_backend *backend, enum mp_tier_kind kind,
                              const struct mp_frame_order *orders, uint32_t count) MP_MUST_CHECK;

#endif
