#include "vmm/base/clock.h"

#include <time.h>

static uint64_t monotonic_now_ns(struct mp_clock *clock)
{
    struct timespec now;

    (void)clock;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

struct mp_clock *mp_clock_monotonic(void)
{
    static struct mp_clock monotonic = { .now_ns = monotonic_now_ns };

    return &monotonic;
}

static uint64_t manual_now_ns(struct mp_clock *clock)
{
    struct mp_clock_manual *manual = (struct mp_clock_manual *)clock;

    return atomic_load_explicit(&manual->time_ns, memory_order_relaxed);
}

void mp_clock_manual_init(struct mp_clock_manual *clock, uint64_t start_ns)
{
    clock->super.now_ns = manual_now_ns;
    atomic_init(&clock->time_ns, start_ns);
}

void mp_clock_manual_advance(struct mp_clock_manual *clock, uint64_t ns)
{
    atomic_fetch_add_explicit(&clock->time_ns, ns, memory_order_relaxed);
}

void mp_clock_manual_set(struct mp_clock_manual *clock, uint64_t at_ns)
{
    if (at_ns > atomic_load_explicit(&clock->time_ns, memory_order_relaxed))
        atomic_store_explicit(&clock->time_ns, at_ns, memory_order_relaxed);
}
