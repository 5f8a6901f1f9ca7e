#ifndef MP_TEST_KERNELS_COMMON_H
#define MP_TEST_KERNELS_COMMON_H

#include "kernels/cpu/kernels.h"
#include "tests/support/test.h"

#include <math.h>
#include <sys/mman.h>

#define LEN(a) (sizeof(a) / sizeof((a)[0]))

/*
 * A buffer that ends where an unreadable page begins, so that an access behind it is a fault. The
 * bytes before it belong to the same mapping and hold 0xA5 until somebody writes them.
 */
struct guarded {
    unsigned char *map;
    size_t map_bytes, bytes;
    void *p;
};

static inline struct guarded guarded_alloc(size_t bytes)
{
    size_t page = 4096, body = (bytes + 2 * page - 1) / page * page;
    struct guarded g = { .map_bytes = body + page, .bytes = bytes };

    g.map = mmap(NULL, g.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(g.map != MAP_FAILED);
    memset(g.map, 0xA5, body);
    CHECK_EQ(mprotect(g.map + body, page, PROT_NONE), 0);
    g.p = g.map + body - bytes;
    return g;
}

static inline void guarded_free(struct guarded *g)
{
    for (unsigned char *p = g->map; p < (unsigned char *)g->p; p++)
        CHECK(*p == 0xA5);
    CHECK_EQ(munmap(g->map, g->map_bytes), 0);
}

static inline uint32_t random_u32(void)
{
    static uint64_t state = 0x9E3779B97F4A7C15;

    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

/* Uniform in [-1, 1). */
static inline float random_float(void)
{
    return (float)(int32_t)random_u32() * 0x1p-31f;
}

static inline void fill_random(float *p, size_t count, float scale)
{
    for (size_t i = 0; i < count; i++)
        p[i] = random_float() * scale;
}

static inline uint32_t float_bits(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    return bits;
}

static inline float bits_float(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* Equal bits; which of the NaNs a NaN is does not count. */
static inline int same(float a, float b)
{
    return isnan(a) || isnan(b) ? isnan(a) && isnan(b) : float_bits(a) == float_bits(b);
}

/* Distance in units in the last place of the exact value `truth`, which may be denormal. */
static inline double ulps(float got, double truth)
{
    int exponent;

    if (!isfinite(got))
        return INFINITY;
    frexp(truth, &exponent);
    return fabs((double)got - truth) / ldexp(1, exponent - 24 < -149 ? -149 : exponent - 24);
}

/* Run `test` with every implementation that this machine has. */
static inline void each_kernels(const char *what, void (*test)(const struct mp_kernels *))
{
    for (size_t i = 0; mp_kernels_names[i] != NULL; i++) {
        const struct mp_kernels *k = mp_kernels_find(mp_kernels_names[i]);

        fprintf(stderr, "  %s: %s%s\n", what, mp_kernels_names[i], k == NULL ? " (not here)" : "");
        if (k != NULL)
            test(k);
    }
}

#endif
