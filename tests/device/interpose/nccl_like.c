/*
 * A library that gives memory of the device to others, as its name says.
 */
#include "interpose/cuda/cudart_calls.h"

void *nccl_like_allocate(size_t bytes);

__attribute__((visibility("default"))) void *nccl_like_allocate(size_t bytes)
{
    void *memory = NULL;

    return cudaMalloc(&memory, bytes) == MP_RT_SUCCESS ? memory : NULL;
}
