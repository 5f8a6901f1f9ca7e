/*
 * A clock for tests that want loads to show, whatever else the machine does: threads that bring
 * units sleep whenever they ask it for the time, which they do before and after each transfer. That
 * is long for compute of a machine that has nothing else to do; what a test says of loads that are
 * longer than compute holds where it has measured that they are.
 */
#ifndef MP_TESTS_SLOW_LINK_H
#define MP_TESTS_SLOW_LINK_H

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "vmm/base/clock.h"

#define SLOW_LINK_US 3000u

/* A test that needs longer ones says so before the first thread asks. */
static unsigned slow_link_us = SLOW_LINK_US;

static uint64_t slow_link_now(struct mp_clock *clock)
{
    char name[16];

    (void)clock;
    if (pthread_getname_np(pthread_self(), name, sizeof(name)) == 0 &&
        (strcmp(name, "mp-link") == 0 || strcmp(name, "mp-reader") == 0))
        usleep(slow_link_us);
    return mp_clock_now_ns(mp_clock_monotonic());
}

/* Usable by any number of threads, for as long as the program runs. */
static inline struct mp_clock *slow_link_clock(void)
{
    static struct mp_clock slow = { slow_link_now };

    return &slow;
}

#endif
