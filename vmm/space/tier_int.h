#ifndef MP_TIER_INT_H
#define MP_TIER_INT_H

#include "vmm/space/tier.h"

/* Private to the tier: tier.c manages the slots, tier_fit.c computes their size. */
#define MP_SLOT_ALIGN_BYTES 4096

uint32_t mp_tier_per_frame(const struct mp_backend *backend, const struct mp_tier_class *class);

/* Bytes of the frame that holds `slots` slots. */
bool mp_tier_frame_bytes_of(const struct mp_backend *backend, uint64_t slot_bytes, uint32_t slots,
                            uint64_t *bytes_p);

enum mp_status mp_tier_fail_overflow(void);

#endif
