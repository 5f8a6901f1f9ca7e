/*
 * Clocks: the machine's, and a virtual one with events for simulation. The only file that reads the
 * time.
 */
#include "vmm/base/clock.h"

#include <time.h>

#include "vmm/base/assert.h"

static uint64_t in_ns(const struct timespec *time)
{
    return (uint64_t)time->tv_sec * UINT64_C(1000000000) + (uint64_t)time->tv_nsec;
}

static uint64_t monotonic_now_ns(struct mp_clock *clock)
{
    struct timespec now;

    (void)clock;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return in_ns(&now);
}

struct mp_clock *mp_clock_monotonic(void)
{
    static struct mp_clock monotonic = { .now_ns = monotonic_now_ns };

    return &monotonic;
}

uint64_t mp_clock_cpu_ns(void)
{
    struct timespec taken;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &taken);
    return in_ns(&taken);
}

uint64_t mp_clock_wall_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec;
}

uint64_t mp_clock_boot_wall_ns(void)
{
    struct timespec wall, up;

    clock_gettime(CLOCK_REALTIME, &wall);
    clock_gettime(CLOCK_BOOTTIME, &up);
    return in_ns(&wall) - in_ns(&up);
}

static uint64_t virtual_now_ns(struct mp_clock *clock)
{
    return ((struct mp_clock_virtual *)clock)->time_ns;
}

void mp_clock_virtual_init(struct mp_clock_virtual *clock)
{
    *clock = (struct mp_clock_virtual){ .super = { virtual_now_ns } };
}

void mp_clock_virtual_add(struct mp_clock_virtual *clock, struct mp_event_source *source)
{
    struct mp_event_source **at = &clock->sources;

    mp_assert(source->next_ns != NULL);
    mp_assert(source->fire != NULL);
    while (*at != NULL) {
        mp_assert(*at != source); /* twice would be a ring */
        at = &(*at)->next;
    }
    source->next = NULL;
    *at = source;
}

void mp_clock_virtual_remove(struct mp_clock_virtual *clock, struct mp_event_source *source)
{
    struct mp_event_source **at = &clock->sources;

    while (*at != NULL && *at != source)
        at = &(*at)->next;
    if (*at != NULL)
        *at = source->next;
}

/* The source whose event comes first, not after `limit_ns`, or NULL. */
static struct mp_event_source *first_due(const struct mp_clock_virtual *clock, uint64_t limit_ns,
                                         uint64_t *at_ns_p)
{
    struct mp_event_source *first = NULL;

    for (struct mp_event_source *source = clock->sources; source != NULL; source = source->next) {
        const uint64_t at_ns = source->next_ns(source);

        if (at_ns != UINT64_MAX && at_ns <= limit_ns && (first == NULL || at_ns < *at_ns_p)) {
            first = source;
            *at_ns_p = at_ns;
        }
    }
    return first;
}

static bool fire_one(struct mp_clock_virtual *clock, uint64_t limit_ns)
{
    uint64_t at_ns = 0;
    struct mp_event_source *source = first_due(clock, limit_ns, &at_ns);

    if (source == NULL)
        return false;
    mp_assert(at_ns >= clock->time_ns);
    clock->time_ns = at_ns;
    source->fire(source);
    return true;
}

void mp_clock_virtual_advance(struct mp_clock_virtual *clock, uint64_t ns)
{
    const uint64_t end_ns = clock->time_ns + ns;

    while (fire_one(clock, end_ns))
        ;
    clock->time_ns = end_ns;
}

bool mp_clock_virtual_next(struct mp_clock_virtual *clock)
{
    return fire_one(clock, UINT64_MAX);
}
