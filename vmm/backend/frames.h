#ifndef MP_FRAMES_H
#define MP_FRAMES_H

#include "vmm/backend/backend.h"

/* Many frames of a tier at once. Pinning is slow, so backends that allow it (caps.parallel_frames)
 * are asked by a few threads. */
struct mp_frame_order {
    uint64_t bytes;
    struct mp_frame *frame_p; /* filled in */
};

/* MP_OK: all are there. Else the first failure that was seen, and none is. */
enum mp_status mp_frames_make(struct mp_backend *backend, enum mp_tier_kind kind,
                              const struct mp_frame_order *orders, uint32_t count) MP_MUST_CHECK;

#endif
