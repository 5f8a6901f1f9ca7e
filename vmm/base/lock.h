#ifndef MP_BASE_LOCK_H
#define MP_BASE_LOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "vmm/base/compiler.h"

/*
 * Mutexes with a rank.
 *
 * A thread takes locks in the order of the enum, outer before inner, and never two of one rank.
 * That order makes deadlock impossible; builds with MP_DEBUG_CHECKS assert it at every acquisition.
 * docs/locking.md states for each lock what it protects and what is allowed while it is held.
 *
 * No code waits for a device while it holds POLICY or TIER, or acquires a lock while it holds LEAF.
 */
enum mp_lock_rank {
    MP_LOCK_CONTEXT,
    MP_LOCK_POLICY,
    MP_LOCK_REGION,
    MP_LOCK_TIER,
    MP_LOCK_BACKEND,
    MP_LOCK_LEAF,
};

struct mp_mutex {
    pthread_mutex_t mutex;
    enum mp_lock_rank rank;
    const char *name; /* static string, for messages */
};

/* For locks with static storage; others call mp_mutex_init(). */
#define MP_MUTEX_INIT(rank_, name_)                                          \
    {                                                                        \
        .mutex = PTHREAD_MUTEX_INITIALIZER, .rank = (rank_), .name = (name_) \
    }

void mp_mutex_init(struct mp_mutex *mutex, enum mp_lock_rank rank, const char *name);

/* The mutex must be free. */
void mp_mutex_fini(struct mp_mutex *mutex);

void mp_lock(struct mp_mutex *mutex);

void mp_unlock(struct mp_mutex *mutex);

/* First statement of every function whose caller must hold `mutex`. No cost without debug checks.
 */
void mp_assert_held(const struct mp_mutex *mutex);

/* First statement of every function that waits for a device, a file or another thread. */
void mp_assert_none_held(void);

/* A condition variable on the monotonic clock. */
struct mp_cond {
    pthread_cond_t cond;
};

void mp_cond_init(struct mp_cond *cond);
void mp_cond_fini(struct mp_cond *cond);

/* The mutex must be the innermost one that the thread holds. Spurious wake-ups are possible. */
void mp_cond_wait(struct mp_cond *cond, struct mp_mutex *mutex);

/* As above, but returns false once `timeout_ns` have passed. */
bool mp_cond_wait_for(struct mp_cond *cond, struct mp_mutex *mutex, uint64_t timeout_ns);

void mp_cond_signal(struct mp_cond *cond);
void mp_cond_broadcast(struct mp_cond *cond);

#endif
