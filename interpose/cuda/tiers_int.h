#ifndef MP_INTERPOSE_TIERS_INT_H
#define MP_INTERPOSE_TIERS_INT_H

#include <stdatomic.h>

#include "interpose/cuda/tiers.h"
#include "vmm/base/lock.h"

/* What the parts of same-address tiering share: tiers.c has windows, tiers_touch.c what is
 * known of units, tiers_move.c moves. */
struct tiers_unit {
    struct mp_frame frame;
    uint32_t id;                              /* the evict policy's number */
    uint32_t heat;                            /* touches, older ones count less */
    uint64_t kind_bytes[MP_TIERS_KIND_COUNT]; /* marked so; the rest is MP_TIERS_OTHER */
    bool pinned;
};

struct tiers_window {
    char *base;
    uint64_t bytes;
    uint32_t unit_count;
    struct tiers_unit *units;
    struct tiers_window *next;
};

struct mp_tiers {
    struct mp_backend *backend;
    struct mp_stream *stream;
    uint64_t unit_bytes;

    struct mp_mutex lock;              /* protects all below */
    uint64_t device_bytes, host_bytes; /* budgets */
    uint64_t device_used, host_used;   /* of frames */
    struct tiers_window *windows;
    struct mp_frame spare; /* bytes 0: none */

    uint32_t id_count;
    struct tiers_unit **by_id; // (ids): NULL: free
    char **place_by_id;        // (ids): the unit's address
    uint8_t *evictable;        // (ids): scratch
    const struct mp_evict_ops *evict_ops;
    struct mp_policy *evict;
    uint64_t now, quiet_points;
    struct mp_tiers_stats stats;

    /* Relaxed: [low, high) holds all windows, at times more; a late reader asks under the lock, or
     * misses a window whose address nobody has yet. */
    _Atomic(uintptr_t) low, high;
    _Atomic(bool) wanted; /* touches or marks since the last move */
};

/* Can [address, +bytes) touch a window? Without the lock. */
static inline bool mp_tiers_may_hold(struct mp_tiers *tiers, uintptr_t address, uint64_t bytes)
{
    return address < atomic_load_explicit(&tiers->high, memory_order_relaxed) &&
           address + bytes > atomic_load_explicit(&tiers->low, memory_order_relaxed);
}

/* The lock is held. */
struct tiers_window *mp_tiers_window_locked(struct mp_tiers *tiers, const void *address);
enum mp_tiers_kind mp_tiers_kind_locked(const struct mp_tiers *tiers,
                                        const struct tiers_unit *unit);
enum mp_status mp_tiers_spare_locked(struct mp_tiers *tiers) MP_MUST_CHECK;
enum mp_status mp_tiers_frame_locked(struct mp_tiers *tiers, enum mp_tier_kind tier,
                                     struct mp_frame *frame_p) MP_MUST_CHECK;
void mp_tiers_drop_locked(struct mp_tiers *tiers, struct mp_frame *frame);

#endif
