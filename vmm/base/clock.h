#ifndef MP_BASE_CLOCK_H
#define MP_BASE_CLOCK_H

#include <stdbool.h>
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

/*
 * A clock for simulation: it stands still while code runs and moves from event to event when code
 * waits. Whatever ends at a later time (a transfer, a computation) is an event source. One thread
 * uses clock and sources.
 */
struct mp_event_source {
    /* When the next event is due, never in the past; UINT64_MAX: none. */
    uint64_t (*next_ns)(struct mp_event_source *source);
    /* It is due now; the source may then be due at this time or a later one again. */
    void (*fire)(struct mp_event_source *source);
    struct mp_event_source *next; /* the clock's own */
};

struct mp_clock_virtual {
    struct mp_clock super;
    uint64_t time_ns;
    struct mp_event_source *sources;
};

void mp_clock_virtual_init(struct mp_clock_virtual *clock);

/* Of events due at the same time, those of the source that was added first come first. */
void mp_clock_virtual_add(struct mp_clock_virtual *clock, struct mp_event_source *source);
void mp_clock_virtual_remove(struct mp_clock_virtual *clock, struct mp_event_source *source);

/* Let `ns` pass; what is due on the way happens at its time. */
void mp_clock_virtual_advance(struct mp_clock_virtual *clock, uint64_t ns);

/* Move to the next event and let it happen. False: there is none, so waiting would be forever. */
bool mp_clock_virtual_next(struct mp_clock_virtual *clock);

#endif
