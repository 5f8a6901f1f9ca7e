#ifndef MP_CUDA_WORKS_H
#define MP_CUDA_WORKS_H

#include <stdint.h>

/* The most experts that so many tokens can choose: entries of a list that is launched before it is
 * known which. Not for kernels: this file is no source of theirs. */
static inline uint32_t mp_cuda_works(uint32_t experts, uint32_t top_k, uint32_t tokens)
{
    const uint64_t ranks = (uint64_t)tokens * top_k;

    return ranks < experts ? (uint32_t)ranks : experts;
}

#endif
