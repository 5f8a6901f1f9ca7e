#ifndef MP_KERNEL_INLINE_H
#define MP_KERNEL_INLINE_H

#include <stddef.h>

/*
 * What all variants of the CPU's kernels are written with. TILE: functions of constant size, wholly
 * unrolled (UNROLL), with their sums in registers. Instrumented builds keep the loops instead:
 * compilers need many minutes for the unrolled checks.
 */
#define INLINE static inline __attribute__((always_inline))

#if MP_KERNELS_LOOPS
#define TILE static __attribute__((noinline))
#define UNROLL
#else
#define TILE INLINE
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif
#endif

INLINE size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

#endif
