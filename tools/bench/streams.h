#ifndef MP_BENCH_STREAMS_H
#define MP_BENCH_STREAMS_H

#include <stddef.h>
#include <stdint.h>

/* How benches read memory as fast as one thread can: in several streams side by side. */
#define STREAMS 8
#define STREAM_STEP_BYTES ((size_t)256)

/*
 * The bytes from `begin` to `end` of each of the STREAMS streams, which begin `stride` bytes apart
 * at `area`, which may be any address; the rest are multiples of STREAM_STEP_BYTES. A step reads
 * 256 of each; asking for what comes 1 KiB later is what reads fastest. Returns a sum, for which
 * all of it must be read.
 */
static inline uint64_t read_streams(const unsigned char *area, size_t stride, size_t begin,
                                    size_t end)
{
    typedef uint64_t words __attribute__((vector_size(64)));
    typedef uint64_t loose_words __attribute__((vector_size(64), aligned(1), may_alias));
    words sums[4] = { 0 };
    uint64_t sum = 0;

    for (size_t at = begin; at < end; at += sizeof(sums)) {
        for (size_t stream = 0; stream < STREAMS; stream++) {
            const unsigned char *from = area + stream * stride + at;

            for (size_t i = 0; i < 4; i++)
                __builtin_prefetch(from + 1024 + i * sizeof(words));
            for (size_t i = 0; i < 4; i++)
                sums[i] += *(const loose_words *)(from + i * sizeof(words));
        }
    }
    sums[0] += sums[1] + sums[2] + sums[3];
    for (size_t i = 0; i < 8; i++)
        sum += sums[0][i];
    return sum;
}

#endif
