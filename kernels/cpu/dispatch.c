/*
 * The choice of an implementation at run time. MP_KERNELS_X86 comes from the build: whether the
 * vector files are part of it.
 */
#include "kernels/cpu/kernels.h"

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

extern const struct mp_kernels mp_kernels_avx2, mp_kernels_avx512;

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

const char *const mp_kernels_names[] = { "avx512", "avx2", "ref", NULL };

static const struct candidate candidates[] = {
    { &mp_kernels_avx512, avx512_runs_here },
    { &mp_kernels_avx2, avx2_runs_here },
    { &mp_kernels_ref, ref_runs_here },
};
#else
const char *const mp_kernels_names[] = { "ref", NULL };

static const struct candidate candidates[] = { { &mp_kernels_ref, ref_runs_here } };
#endif

/* The first candidate called `name` (any, if NULL) that this machine can run. */
static const struct mp_kernels *pick(const char *name)
{
    for (size_t i = 0; i < sizeof(candidates) / sizeof(candidates[0]); i++)
        if ((name == NULL || strcmp(candidates[i].kernels->name, name) == 0) &&
            candidates[i].runs_here())
            return candidates[i].kernels;
    return NULL;
}

const struct mp_kernels *mp_kernels_find(const char *name)
{
    return name == NULL ? NULL : pick(name);
}

const struct mp_kernels *mp_kernels_best(void)
{
    return pick(NULL);
}
