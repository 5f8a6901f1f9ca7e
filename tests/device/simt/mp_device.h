#ifndef MP_CUDA_SIMT_DEVICE_H
#define MP_CUDA_SIMT_DEVICE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "tests/device/simt/simt_thread.h"

/*
 * What the kernels need of a device, on the CPU; the counterpart of kernels/cuda/ptx/mp_device.h.
 * Each function is the IEEE operation of the PTX instruction there, or a switch to another thread
 * of the block where that instruction waits for others.
 */
#define MP_KERNEL(name, params, threads, blocks)    \
    enum { name##_threads_max = (threads) };        \
    static void name##_body(const struct params p); \
    static void name##_enter(const void *at)        \
    {                                               \
        name##_body(*(const struct params *)at);    \
    }                                               \
    static void name##_body(const struct params p)
#ifdef MP_SIMT_FAST
#define MP_DEVICE static inline __attribute__((always_inline))
#else
#define MP_DEVICE static inline
#endif
#define MP_TABLE static const
#define MP_GLOBAL
#ifdef __clang__ /* unrolls by itself, and then takes minutes under sanitizers */
#define MP_UNROLL _Pragma("nounroll")
#else
#define MP_UNROLL
#endif
#define MP_NO_UNROLL MP_UNROLL

struct mp_words {
    uint32_t word[4];
};

static inline uint32_t mp_thread(void)
{
    return mp_simt_now->thread;
}

static inline uint32_t mp_threads(void)
{
    return mp_simt_now->threads;
}

static inline uint32_t mp_block_x(void)
{
    return mp_simt_now->block.x;
}

static inline uint32_t mp_block_y(void)
{
    return mp_simt_now->block.y;
}

static inline uint32_t mp_block_z(void)
{
    return mp_simt_now->block.z;
}

static inline uint32_t mp_blocks_x(void)
{
    return mp_simt_now->grid.x;
}

static inline uint32_t mp_blocks_z(void)
{
    return mp_simt_now->grid.z;
}

static inline void mp_sync(void)
{
    mp_simt_barrier();
}

static inline void *mp_shared(void)
{
    return mp_simt_now->shared;
}

static inline uint32_t mp_shuffle(uint32_t value, uint32_t lane)
{
    return mp_simt_exchange(value, lane % 32);
}

static inline uint32_t mp_shuffle_xor(uint32_t value, uint32_t mask)
{
    return mp_simt_exchange(value, (mp_simt_now->thread ^ mask) % 32);
}

static inline uint32_t mp_ballot(int is)
{
    return mp_simt_vote(is);
}

static inline uint32_t mp_count_bits(uint32_t bits)
{
    return (uint32_t)__builtin_popcount(bits);
}

static inline uint32_t mp_here(uint32_t value)
{
    return value;
}

static inline void mp_forget(void)
{
}

static inline float mp_fma(float a, float b, float c)
{
    return fmaf(a, b, c);
}

static inline float mp_sqrt(float a)
{
    return sqrtf(a);
}

static inline float mp_divide(float a, float b)
{
    return a / b;
}

static inline float mp_as_float(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline uint32_t mp_as_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* Four of the eight bytes of a and b, by four halves of bytes from 0 to 7, low ones first. */
static inline uint32_t mp_permute(uint32_t a, uint32_t b, uint32_t select)
{
    const uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t word = 0;

    for (uint32_t i = 0; i < 4; i++)
        word |= (uint32_t)(bytes >> 8 * (select >> 4 * i & 7) & 0xff) << 8 * i;
    return word;
}

/* Shifted into a float's place, an F16 is 2^112 times too small, denormals too. */
static inline float mp_half_low(uint32_t word)
{
    const float scaled = mp_as_float((word & 0x7fff) << 13) * 0x1p112f;
    const uint32_t sign = (word & 0x8000) << 16;

    if ((word & 0x7c00) == 0x7c00) /* infinite, or NaN, which becomes quiet */
        return mp_as_float(sign | 0x7f800000 | (word & 0x3ff) << 13 |
                           ((word & 0x3ff) != 0 ? 0x400000 : 0));
    return mp_as_float(sign | mp_as_bits(scaled));
}

static inline float mp_half_high(uint32_t word)
{
    return mp_half_low(word >> 16);
}

/* Adding a power of two that is 2^13 (or, for denormals, more) units of v's last place rounds it as
 * an F16 is. */
static inline uint16_t mp_to_half(float v)
{
    const uint32_t sign = mp_as_bits(v) >> 16 & 0x8000, bits = mp_as_bits(v) & 0x7fffffff;
    const uint32_t exponent = bits >> 23 < 113 ? 113 : bits >> 23;

    if (bits > 0x7f800000)
        return 0x7fff; /* what cvt makes of NaN */
    if (bits >= 0x477ff000)
        return (uint16_t)(sign | 0x7c00);

    const float magic = mp_as_float((exponent + 13) << 23);
    const float rounded = (mp_as_float(bits) + magic) - magic;

    return (uint16_t)(sign | mp_as_bits(rounded * 0x1p-112f) >> 13);
}

/* Two numbers as cvt rounds them: the first is the lower half of the word. */
static inline uint32_t mp_pair_bf16(float low, float high)
{
    const float v[] = { low, high };
    uint32_t word = 0;

    for (int i = 0; i < 2; i++) {
        const uint32_t bits = mp_as_bits(v[i]);

        word |= (v[i] != v[i] ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16) << (16 * i);
    }
    return word;
}

static inline uint32_t mp_pair_f16(float low, float high)
{
    return mp_to_half(low) | (uint32_t)mp_to_half(high) << 16;
}

static inline float mp_bf16_low(uint32_t word)
{
    return mp_as_float(word << 16);
}

/*
 * c += a b of a warp, with fragments as the PTX ISA has them ("Matrix Fragments for mma.m16n8k16
 * with floating point type"). This is by that documentation, no proof of what hardware does: there
 * nothing says how the 16 products of a step and c are added; here it is in double, and rounded
 * once.
 */
static inline void mp_simt_mma(float *c, const uint32_t *a, const uint32_t *b,
                               float (*widen)(uint32_t))
{
    const uint32_t own[MP_SIMT_WORDS] = { a[0], a[1], a[2], a[3], b[0], b[1] };
    const uint32_t(*of)[MP_SIMT_WORDS] = mp_simt_gather(own);
    const uint32_t group = mp_simt_now->thread % 32 / 4, in_group = mp_simt_now->thread % 4;

    for (uint32_t i = 0; i < 4; i++) { /* row group + i / 2 * 8, column col */
        const uint32_t col = in_group * 2 + i % 2;
        double sum = (double)c[i];

        for (uint32_t k = 0; k < 16; k++) {
            const uint32_t lane = k % 8 / 2, shift = k % 2 * 16;

            sum += (double)widen(of[group * 4 + lane][k / 8 * 2 + i / 2] >> shift) *
                   (double)widen(of[col * 4 + lane][4 + k / 8] >> shift);
        }
        c[i] = (float)sum;
    }
}

static inline void mp_mma_bf16(float *c, const uint32_t *a, const uint32_t *b)
{
    mp_simt_mma(c, a, b, mp_bf16_low);
}

static inline void mp_mma_f16(float *c, const uint32_t *a, const uint32_t *b)
{
    mp_simt_mma(c, a, b, mp_half_low);
}

static inline struct mp_words mp_load(const void *at)
{
    struct mp_words to;

    if ((uintptr_t)at % sizeof(to) != 0)
        mp_simt_fail("an address is not aligned");
    memcpy(&to, at, sizeof(to));
    mp_simt_loaded_bytes += sizeof(to);
    return to;
}

static inline struct mp_words mp_load_pair(const void *at)
{
    struct mp_words to = { { 0, 0, 0, 0 } };

    if ((uintptr_t)at % (2 * sizeof(*to.word)) != 0)
        mp_simt_fail("an address is not aligned");
    memcpy(&to, at, 2 * sizeof(*to.word));
    mp_simt_loaded_bytes += 2 * sizeof(*to.word);
    return to;
}

static inline struct mp_words mp_load_once(const void *at)
{
    return mp_load(at);
}

/* A byte that cannot be read is none of an operand. */
static inline void mp_ask(const void *at)
{
    (void)*(const volatile char *)at;
    mp_simt_asks++;
}

/* Blocks run one after another. */
static inline void mp_fence(void)
{
}

static inline uint32_t mp_take_turn(uint32_t *at)
{
    return (*at)++;
}

static inline uint64_t mp_now_ns(void)
{
    return mp_simt_now_ns();
}

static inline void mp_pause(void)
{
    mp_simt_pause();
}

#endif
