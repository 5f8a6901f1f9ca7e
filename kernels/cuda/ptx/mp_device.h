#ifndef MP_CUDA_PTX_DEVICE_H
#define MP_CUDA_PTX_DEVICE_H

#include <stdint.h>

/*
 * What the kernels need of a CUDA device, for clang without a toolkit (tools/make_ptx). On the CPU
 * tests/device/simt/mp_device.h stands in its place. Only operations that round correctly are used,
 * and none that flushes denormals, so that both give the same bits.
 */
#define MP_DEVICE static inline __attribute__((device)) __attribute__((always_inline))
/* An array that no kernel writes, in global memory: `const` would put it into constant memory. */
#define MP_TABLE static __attribute__((device))

/*
 * A kernel. With programmatic dependent launch (engine/gpu/gpu_image.c) it may begin before the
 * kernels before it have ended, and waits for their end, and all that they wrote, before its work.
 * Every kernel waits, so whoever has waited for the one before it has waited for all.
 */
#define MP_KERNEL(name, params, threads, blocks)                                                  \
    MP_DEVICE void name##_work(const struct params &p);                                           \
    extern "C" __attribute__((global)) __attribute__((launch_bounds(threads, blocks))) void name( \
        const struct params p)                                                                    \
    {                                                                                             \
        mp_wait_for_prior();                                                                      \
        name##_work(p);                                                                           \
    }                                                                                             \
    MP_DEVICE void name##_work(const struct params &p)
#define MP_GLOBAL __attribute__((address_space(1)))
#define MP_UNROLL _Pragma("unroll")
#define MP_NO_UNROLL _Pragma("nounroll")

/*
 * Instructions of compute capability 9.0 stand behind "//>": as comments, unless the loader makes
 * them code. The next kernel may begin when all blocks of this one are here or have ended, so that
 * at most one waits while one works.
 */
MP_DEVICE void mp_wait_for_prior(void)
{
    asm volatile("//>griddepcontrol.wait;\n\t//>griddepcontrol.launch_dependents;" ::: "memory");
}

struct mp_words {
    uint32_t word[4];
};

typedef uint32_t mp_words_vector __attribute__((ext_vector_type(4)));
typedef uint32_t mp_pair_vector __attribute__((ext_vector_type(2)));

MP_DEVICE uint32_t mp_thread(void)
{
    return (uint32_t)__nvvm_read_ptx_sreg_tid_x();
}

MP_DEVICE uint32_t mp_threads(void)
{
    return (uint32_t)__nvvm_read_ptx_sreg_ntid_x();
}

MP_DEVICE uint32_t mp_block_x(void)
{
    return (uint32_t)__nvvm_read_ptx_sreg_ctaid_x();
}

MP_DEVICE uint32_t mp_block_y(void)
{
    return (uint32_t)__nvvm_read_ptx_sreg_ctaid_y();
}

MP_DEVICE uint32_t mp_block_z(void)
{
    return (uint32_t)__nvvm_read_ptx_sreg_ctaid_z();
}

MP_DEVICE uint32_t mp_blocks_x(void)
{
    return (uint32_t)__nvvm_read_ptx_sreg_nctaid_x();
}

MP_DEVICE uint32_t mp_blocks_z(void)
{
    return (uint32_t)__nvvm_read_ptx_sreg_nctaid_z();
}

MP_DEVICE void mp_sync(void)
{
    __syncthreads();
}

/* Dynamic shared memory of the block, at a multiple of 16. */
extern __attribute__((shared)) mp_words_vector mp_shared_words[];

MP_DEVICE void *mp_shared(void)
{
    return (void *)mp_shared_words;
}

/* Of all 32 lanes, which must all come here. */
MP_DEVICE uint32_t mp_shuffle(uint32_t value, uint32_t lane)
{
    return (uint32_t)__nvvm_shfl_sync_idx_i32(-1, (int)value, (int)lane, 31);
}

MP_DEVICE uint32_t mp_shuffle_xor(uint32_t value, uint32_t mask)
{
    return (uint32_t)__nvvm_shfl_sync_bfly_i32(-1, (int)value, (int)mask, 31);
}

MP_DEVICE uint32_t mp_ballot(int is)
{
    return (uint32_t)__nvvm_vote_ballot_sync(-1, is != 0);
}

MP_DEVICE uint32_t mp_count_bits(uint32_t bits)
{
    return (uint32_t)__builtin_popcount(bits);
}

/* value; what is computed from it is not computed ahead of where it stands, which would take
 * registers meanwhile. */
MP_DEVICE uint32_t mp_here(uint32_t value)
{
    asm volatile("" : "+r"(value));
    return value;
}

/* What was read of memory is read again behind this, so that it takes no registers meanwhile. */
MP_DEVICE void mp_forget(void)
{
    asm volatile("" : : : "memory");
}

MP_DEVICE float mp_fma(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}

MP_DEVICE float mp_sqrt(float a)
{
    return __nvvm_sqrt_rn_f(a);
}

MP_DEVICE float mp_divide(float a, float b)
{
    return __nvvm_div_rn_f(a, b);
}

MP_DEVICE float mp_as_float(uint32_t bits)
{
    return __builtin_bit_cast(float, bits);
}

MP_DEVICE uint32_t mp_as_bits(float value)
{
    return __builtin_bit_cast(uint32_t, value);
}

/* Four of the eight bytes of a and b, by four halves of bytes from 0 to 7, low ones first. */
MP_DEVICE uint32_t mp_permute(uint32_t a, uint32_t b, uint32_t select)
{
    return __nvvm_prmt(a, b, select);
}

/* The two F16 of a word. */
MP_DEVICE float mp_half_low(uint32_t word)
{
    float value;

    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }" : "=f"(value) : "r"(word));
    return value;
}

MP_DEVICE float mp_half_high(uint32_t word)
{
    float value;

    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h; }" : "=f"(value) : "r"(word));
    return value;
}

/* To nearest, ties to even. */
MP_DEVICE uint16_t mp_to_half(float v)
{
    uint16_t bits;

    asm("{ .reg .b16 h; cvt.rn.f16.f32 h, %1; mov.b16 %0, h; }" : "=h"(bits) : "f"(v));
    return bits;
}

/* The rest down to mp_mma_f16() is for compute capability 8.0 and later (kernels/cuda/tensor.cu).
 * Two numbers rounded to nearest, ties to even: the first is the lower half of the word. */
MP_DEVICE uint32_t mp_pair_bf16(float low, float high)
{
    uint32_t word;

    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

MP_DEVICE uint32_t mp_pair_f16(float low, float high)
{
    uint32_t word;

    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

/* c += a b for a whole warp: a 16 x 16 by rows, b 16 x 8 by columns, c 16 x 8. Lane l has, with g =
 * l / 4 and t = l % 4: of a rows g, g + 8 at columns 2 t and 2 t + 1, then the same rows 8 columns
 * on; of b column g at rows 2 t and 2 t + 1, then 8 rows on; of c row g at columns 2 t and 2 t + 1,
 * then row g + 8. */
#define MP_MMA(name, type)                                                                \
    MP_DEVICE void mp_mma_##name(float *c, const uint32_t *a, const uint32_t *b)          \
    {                                                                                     \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 "       \
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"    \
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                     \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
    }
MP_MMA(bf16, "bf16")
MP_MMA(f16, "f16")

/* 16 bytes at a multiple of 16 that are read once: they do not push others out of the cache. */
MP_DEVICE struct mp_words mp_load_once(const MP_GLOBAL void *at)
{
    struct mp_words to;

    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(to.word[0]), "=r"(to.word[1]), "=r"(to.word[2]), "=r"(to.word[3])
        : "l"(at));
    return to;
}

/* 16 bytes at a multiple of 16 */
MP_DEVICE struct mp_words mp_load(const MP_GLOBAL void *at)
{
    const mp_words_vector from = *(const MP_GLOBAL mp_words_vector *)at;
    const struct mp_words to = { { from.x, from.y, from.z, from.w } };

    return to;
}

/* Ask the second-level cache for the line with this byte of an operand; nothing waits for it. */
MP_DEVICE void mp_ask(const MP_GLOBAL void *at)
{
    asm volatile("prefetch.global.L2 [%0];" : : "l"(at));
}

/* 8 bytes at a multiple of 8, as the first two words */
MP_DEVICE struct mp_words mp_load_pair(const MP_GLOBAL void *at)
{
    const mp_pair_vector from = *(const MP_GLOBAL mp_pair_vector *)at;
    const struct mp_words to = { { from.x, from.y, 0, 0 } };

    return to;
}

/* What this thread has written, and seen of others, is seen by all that see what it writes next. */
MP_DEVICE void mp_fence(void)
{
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

/* *at += 1, for all threads of the device; returns what it was. */
MP_DEVICE uint32_t mp_take_turn(MP_GLOBAL uint32_t *at)
{
    uint32_t before;

    asm volatile("atom.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(at) : "memory");
    return before;
}

MP_DEVICE uint64_t mp_now_ns(void)
{
    uint64_t now;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

MP_DEVICE void mp_pause(void)
{
    asm volatile("nanosleep.u32 500;");
}

#endif
