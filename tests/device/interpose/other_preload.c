/*
 * Another preloaded library that looks at allocations of the device, as there are some: it counts,
 * and hands them on to whoever is next.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "interpose/cuda/cudart_calls.h"

#define EXPORT __attribute__((visibility("default")))

static unsigned mallocs, frees;

EXPORT mp_rt_error cudaMalloc(void **address, size_t bytes)
{
    void *symbol = dlsym(RTLD_NEXT, "cudaMalloc");
    mp_rt_error (*next)(void **, size_t);

    memcpy(&next, &symbol, sizeof(next));
    mallocs++;
    return next(address, bytes);
}

EXPORT mp_rt_error cudaFree(void *address)
{
    void *symbol = dlsym(RTLD_NEXT, "cudaFree");
    mp_rt_error (*next)(void *);

    memcpy(&next, &symbol, sizeof(next));
    frees++;
    return next(address);
}

__attribute__((destructor)) static void end(void)
{
    fprintf(stderr, "other: %u mallocs, %u frees\n", mallocs, frees);
}
