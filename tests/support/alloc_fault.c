#include "tests/support/alloc_fault.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__real_aligned_alloc(size_t align, size_t bytes);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *arg);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void *__wrap_aligned_alloc(size_t align, size_t bytes);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *arg);

static _Atomic long countdown = -1;
static _Atomic unsigned failures;

static bool fails(void)
{
    if (atomic_load(&countdown) < 0 || atomic_fetch_sub(&countdown, 1) != 0)
        return false;
    atomic_fetch_add(&failures, 1);
    errno = ENOMEM;
    return true;
}

void mp_test_fail_alloc(long n)
{
    atomic_store(&failures, 0);
    atomic_store(&countdown, n);
}

unsigned mp_test_fail_alloc_done(void)
{
    atomic_store(&countdown, -1);
    return atomic_load(&failures);
}

void *__wrap_malloc(size_t bytes)
{
    return fails() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return fails() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *old, size_t bytes)
{
    return fails() ? NULL : __real_realloc(old, bytes);
}

void *__wrap_aligned_alloc(size_t align, size_t bytes)
{
    return fails() ? NULL : __real_aligned_alloc(align, bytes);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *arg)
{
    return fails() ? EAGAIN : __real_pthread_create(thread, attributes, start, arg);
}
