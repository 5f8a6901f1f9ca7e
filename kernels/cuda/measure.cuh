/* Kernels for measuring a device. */
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/math.cuh"

/* The 16 bytes at p.src + at as a sum, 0 beyond the end. */
MP_DEVICE uint64_t mp_read_at(const struct mp_cuda_read *p, uint64_t at)
{
    struct mp_words words = { { 0, 0, 0, 0 } };

    if (at < p->bytes)
        words = mp_load_once((const MP_GLOBAL char *)p->src + at);
    return (words.word[0] | (uint64_t)words.word[1] << 32) +
           (words.word[2] | (uint64_t)words.word[3] << 32);
}

/* Four independent reads of 16 bytes for each thread are on their way at a time. */
MP_KERNEL(mp_read, mp_cuda_read, MP_READ_THREADS, 1)
{
    const uint64_t step = (uint64_t)mp_blocks_x() * MP_READ_THREADS * 16;
    uint64_t *warps = (uint64_t *)mp_shared(), sum = 0;

    for (uint32_t n = 0; n < p.times; n++) {
        uint64_t at = ((uint64_t)mp_block_x() * MP_READ_THREADS + mp_thread()) * 16;

        MP_NO_UNROLL
        for (; at < p.bytes; at += 4 * step) {
            const uint64_t a = mp_read_at(&p, at), b = mp_read_at(&p, at + step);
            const uint64_t c = mp_read_at(&p, at + 2 * step), d = mp_read_at(&p, at + 3 * step);

            sum += a + b + c + d;
        }
    }
    for (uint32_t d = 16; d > 0; d /= 2) {
        const uint32_t low = mp_shuffle_xor((uint32_t)sum, d);
        const uint32_t high = mp_shuffle_xor((uint32_t)(sum >> 32), d);

        sum += low | (uint64_t)high << 32;
    }
    if (mp_lane() == 0)
        warps[mp_warp()] = sum;
    mp_sync();
    if (mp_thread() != 0)
        return;
    sum = 0;
    for (uint32_t i = 0; i < MP_READ_THREADS / MP_LANES; i++)
        sum += warps[i];
    ((MP_GLOBAL uint64_t *)p.sum)[mp_block_x()] = sum;
}

MP_KERNEL(mp_spin, mp_cuda_spin, 1, 1)
{
    const uint64_t start = mp_now_ns();

    while (mp_now_ns() - start < p.ns)
        mp_pause();
}
