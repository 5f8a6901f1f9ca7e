#ifndef MP_BASE_CLOCK_H
#define MP_BASE_CLOCK_H

#include <stdatomic.h>
#include <stdint.h>

/*
 * Time as an injected object, so that tests and the simulator run on a clock of their own. clock.c
 * is the only file that asks the system. Times are nanoseconds since an arbitrary start and never
 * go backwards; wall-clock time does not exist in this project.
 *
 * Thread safety: now_ns() may be called from any thread at any time.
 */
struct mp_clock {
    uint64_t (*now_ns)(struct mp_clock *clock);
};

static inline uint64_t mp_clock_now_ns(struct mp_clock *clock)
{
    return clock->now_ns(clock);
}

/* The system's monotonic clock. Static, never NULL, needs no destroy. */
struct mp_clock *mp_clock_monotonic(void);

/* A clock that stands still until it is told otherwise. Needs no fini. */
struct mp_clock_manual {
    struct mp_clock super;
    _Atomic uint64_t time_ns; /* relaxed: only the value itself is shared */
};

void mp_clock_manual_init(struct mp_clock_manual *clock, uint64_t start_ns);

void mp_clock_manual_advance(struct mp_clock_manual *clock, uint64_t ns);

/* Move to `at_ns`; a time in the past leaves the clock where it is. One setter at a time. */
void mp_clock_manual_set(struct mp_clock_manual *clock, uint64_t at_ns);

#endif
