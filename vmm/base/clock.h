#ifndef MP_BASE_CLOCK_H
#define MP_BASE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Time as an injected object, so that tests and the simulator can use their own clock. clock.c is
 * the only file that reads the system's clock. Times are nanoseconds since an arbitrary start and
 * never go backwards; wall-clock time is not used in this project, but for the date of a reply.
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

/* Time of processors that this process has taken, all of its threads, from its start on. */
uint64_t mp_clock_cpu_ns(void);

/* Seconds since 1970, for dates that others read; never for measuring. */
uint64_t mp_clock_wall_s(void);

/* When the machine was started, in nanoseconds since 1970: to compare the kernel's times of
 * processes with those of files. */
uint64_t mp_clock_boot_wall_ns(void);

/*
 * A clock for simulation: it stands still while code runs and moves from event to event when code
 * waits. Whatever ends later (a transfer, a computation) is an event source. A clock and its
 * sources are used by one thread.
 */
struct mp_event_source {
    /* When the next event is due, never in the past; UINT64_MAX: none. */
    uint64_t (*next_ns)(struct mp_event_source *source);
    /* Called when it is due; the source may then set its next event to the same or a later time. */
    void (*fire)(struct mp_event_source *source);
    struct mp_event_source *next; /* private to the clock */
};

struct mp_clock_virtual {
    struct mp_clock super;
    uint64_t time_ns;
    struct mp_event_source *sources;
};

void mp_clock_virtual_init(struct mp_clock_virtual *clock);

/* Events that are due at the same time fire in the order in which their sources were added. */
void mp_clock_virtual_add(struct mp_clock_virtual *clock, struct mp_event_source *source);
void mp_clock_virtual_remove(struct mp_clock_virtual *clock, struct mp_event_source *source);

/* Advance by `ns`; events that are due in between fire at their time. */
void mp_clock_virtual_advance(struct mp_clock_virtual *clock, uint64_t ns);

/* Advance to the next event and fire it. False: there is none, so a wait would never end. */
bool mp_clock_virtual_next(struct mp_clock_virtual *clock);

#endif
