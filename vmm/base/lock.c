/*
 * Mutexes with a rank, and condition variables. Builds with checks assert the lock order.
 */
#include "vmm/base/lock.h"

#include <errno.h>
#include <time.h>

#include "vmm/base/assert.h"
#include "vmm/base/clock.h"

/* One more than the number of ranks: the order lets a thread hold at most one of each. */
#define HELD_MAX 8

static _Thread_local const struct mp_mutex *held[HELD_MAX];
static _Thread_local unsigned held_count;

static void check_order(const struct mp_mutex *mutex)
{
    mp_assert(mutex->name != NULL);
    mp_assert(held_count < HELD_MAX);
    mp_assert(held_count == 0 || held[held_count - 1]->rank < mutex->rank);
}

static void push(const struct mp_mutex *mutex)
{
    if (mp_debug_checks)
        held[held_count++] = mutex;
}

/* Locks may be released in any order. */
static void pop(const struct mp_mutex *mutex)
{
    unsigned i;

    if (!mp_debug_checks)
        return;
    for (i = held_count; i > 0 && held[i - 1] != mutex; i--)
        ;
    mp_assert(i > 0);
    for (; i < held_count; i++)
        held[i - 1] = held[i];
    held_count--;
}

void mp_mutex_init(struct mp_mutex *mutex, enum mp_lock_rank rank, const char *name)
{
    mp_assert((unsigned)rank <= MP_LOCK_LEAF);
    mp_assert(name != NULL);
    /* With default attributes glibc has nothing to allocate and nothing that can fail. */
    pthread_mutex_init(&mutex->mutex, NULL);
    mutex->rank = rank;
    mutex->name = name;
}

void mp_mutex_fini(struct mp_mutex *mutex)
{
    int error = pthread_mutex_destroy(&mutex->mutex);

    (void)error;
    mp_assert(error == 0);
}

void mp_lock(struct mp_mutex *mutex)
{
    int error;

    check_order(mutex);
    error = pthread_mutex_lock(&mutex->mutex);
    (void)error;
    mp_assert(error == 0);
    push(mutex);
}

void mp_unlock(struct mp_mutex *mutex)
{
    int error;

    pop(mutex);
    error = pthread_mutex_unlock(&mutex->mutex);
    (void)error;
    mp_assert(error == 0);
}

void mp_assert_held(const struct mp_mutex *mutex)
{
    bool found = false;

    if (!mp_debug_checks)
        return;
    for (unsigned i = 0; i < held_count; i++)
        found = found || held[i] == mutex;
    mp_assert(found);
}

void mp_assert_none_held(void)
{
    mp_assert(held_count == 0);
}

void mp_cond_init(struct mp_cond *cond)
{
    pthread_condattr_t attributes;

    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&cond->cond, &attributes);
    pthread_condattr_destroy(&attributes);
}

void mp_cond_fini(struct mp_cond *cond)
{
    pthread_cond_destroy(&cond->cond);
}

static void check_innermost(const struct mp_mutex *mutex)
{
    mp_assert(held_count > 0);
    mp_assert(held[held_count - 1] == mutex);
    (void)mutex;
}

void mp_cond_wait(struct mp_cond *cond, struct mp_mutex *mutex)
{
    check_innermost(mutex);
    pthread_cond_wait(&cond->cond, &mutex->mutex);
}

bool mp_cond_wait_for(struct mp_cond *cond, struct mp_mutex *mutex, uint64_t timeout_ns)
{
    const uint64_t now_ns = mp_clock_now_ns(mp_clock_monotonic());
    const uint64_t limit_ns = (uint64_t)INT64_MAX;
    const uint64_t until_ns = timeout_ns > limit_ns - now_ns ? limit_ns : now_ns + timeout_ns;
    const struct timespec until = {
        .tv_sec = (time_t)(until_ns / 1000000000u),
        .tv_nsec = (long)(until_ns % 1000000000u),
    };

    check_innermost(mutex);
    return pthread_cond_timedwait(&cond->cond, &mutex->mutex, &until) != ETIMEDOUT;
}

void mp_cond_signal(struct mp_cond *cond)
{
    pthread_cond_signal(&cond->cond);
}

void mp_cond_broadcast(struct mp_cond *cond)
{
    pthread_cond_broadcast(&cond->cond);
}
