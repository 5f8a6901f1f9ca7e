/*
 * The choice of an implementation at run time. MP_KERNELS_X86 and MP_KERNELS_NEON come from the
 * build: which vector files are part of it. One is used only after it has agreed with plain C: a
 * processor, or an emulator of one, may announce what it does not do right.
 */
#include "kernels/cpu/kernels.h"

#include <stdatomic.h>
#include <string.h>

struct candidate {
    const struct mp_kernels *kernels;
    int (*runs_here)(void);
};

static int ref_runs_here(void)
{
    return 1;
}

#if MP_KERNELS_X86
#include <cpuid.h>

#include "kernels/cpu/amx/amx.h"

extern const struct mp_kernels mp_kernels_avx2, mp_kernels_avx512, mp_kernels_avx512bf16,
    mp_kernels_amx;

/*
 * The compiler's test includes the operating system's support for the registers (XGETBV). It has
 * no name for F16C everywhere, so that bit is read here; it needs the same registers as AVX2.
 */
static int avx2_runs_here(void)
{
    unsigned int a, b, c = 0, d;

    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}

static int avx512_runs_here(void)
{
    return avx2_runs_here() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

/* Compilers have no name for the bit everywhere: leaf 7, subleaf 1, EAX bit 5. */
static int avx512bf16_runs_here(void)
{
    unsigned int a = 0, b, c, d;

    return avx512_runs_here() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1) != 0;
}

static int amx_runs_here(void)
{
    return avx512bf16_runs_here() && mp_amx_runs_here();
}

const char *const mp_kernels_names[] = { "amx", "avx512bf16", "avx512", "avx2", "ref", NULL };

static const struct candidate candidates[] = {
    { &mp_kernels_amx, amx_runs_here },       { &mp_kernels_avx512bf16, avx512bf16_runs_here },
    { &mp_kernels_avx512, avx512_runs_here }, { &mp_kernels_avx2, avx2_runs_here },
    { &mp_kernels_ref, ref_runs_here },
};
#elif MP_KERNELS_NEON
#include <asm/hwcap.h>
#include <sys/auxv.h>

extern const struct mp_kernels mp_kernels_neon, mp_kernels_neonbf16;

static int neonbf16_runs_here(void)
{
    return (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0;
}

const char *const mp_kernels_names[] = { "neonbf16", "neon", "ref", NULL };

/* Every 64-bit ARM processor has the instructions of the second one. */
static const struct candidate candidates[] = {
    { &mp_kernels_neonbf16, neonbf16_runs_here },
    { &mp_kernels_neon, ref_runs_here },
    { &mp_kernels_ref, ref_runs_here },
};
#else
const char *const mp_kernels_names[] = { "ref", NULL };

static const struct candidate candidates[] = { { &mp_kernels_ref, ref_runs_here } };
#endif

#define CANDIDATES (sizeof(candidates) / sizeof(candidates[0]))

enum verdict { UNKNOWN, GOOD, BAD };

/* The result of the self-test is kept; threads that race find the same. */
static const struct mp_kernels *look(size_t candidate)
{
    static atomic_int verdicts[CANDIDATES];
    const struct mp_kernels *kernels = candidates[candidate].kernels;
    int verdict = atomic_load_explicit(&verdicts[candidate], memory_order_relaxed);

    if (verdict == UNKNOWN) {
        verdict = candidates[candidate].runs_here() && mp_kernels_pass(kernels) ? GOOD : BAD;
        atomic_store_explicit(&verdicts[candidate], verdict, memory_order_relaxed);
    }
    return verdict == GOOD ? kernels : NULL;
}

const struct mp_kernels *mp_kernels_find(const char *name)
{
    for (size_t i = 0; name != NULL && i < CANDIDATES; i++)
        if (strcmp(candidates[i].kernels->name, name) == 0)
            return look(i);
    return NULL;
}

int mp_kernels_announced(const char *name)
{
    for (size_t i = 0; i < CANDIDATES; i++)
        if (strcmp(candidates[i].kernels->name, name) == 0)
            return candidates[i].runs_here();
    return 0;
}

const struct mp_kernels *mp_kernels_of(enum mp_math math)
{
    for (size_t i = 0; i < CANDIDATES; i++)
        if (candidates[i].kernels->math == math && look(i) != NULL)
            return candidates[i].kernels;
    return NULL;
}

const struct mp_kernels *mp_kernels_best(void)
{
    const struct mp_kernels *best = mp_kernels_of(MP_MATH_F32);

    return best != NULL ? best : &mp_kernels_ref;
}
