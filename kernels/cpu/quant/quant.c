/*
 * The choice of a variant at run time. MP_KERNELS_X86 and MP_KERNELS_NEON come from the build:
 * which vector files are part of it. A variant is used only after it has agreed with plain C on a
 * small product of every type: a processor, or an emulator of one, may announce what it does not do
 * right.
 */
#include "kernels/cpu/quant/quant.h"

#include <math.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/kernels.h"

struct candidate {
    const struct mp_quant *quant;
    int (*runs_here)(void);
};

#if MP_KERNELS_X86
#include <cpuid.h>

extern const struct mp_quant mp_quant_avx2, mp_quant_avxvnni, mp_quant_avx512vnni;

/* The kernels' own choice has asked for AVX2, FMA and F16C, or for AVX-512. */
static int avx2_runs_here(void)
{
    return mp_kernels_find("avx2") != NULL;
}

/* Compilers have no name for the bit everywhere: leaf 7, subleaf 1, EAX bit 4. */
static int avxvnni_runs_here(void)
{
    unsigned int a = 0, b, c, d;

    return avx2_runs_here() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1) != 0;
}

static int avx512vnni_runs_here(void)
{
    return mp_kernels_find("avx512") != NULL && __builtin_cpu_supports("avx512vnni");
}

const char *const mp_quant_names[] = { "avx512vnni", "avxvnni", "avx2", NULL };

static const struct candidate candidates[] = {
    { &mp_quant_avx512vnni, avx512vnni_runs_here },
    { &mp_quant_avxvnni, avxvnni_runs_here },
    { &mp_quant_avx2, avx2_runs_here },
    { NULL, NULL },
};
#elif MP_KERNELS_NEON
#include <asm/hwcap.h>
#include <sys/auxv.h>

extern const struct mp_quant mp_quant_dotprod;

static int dotprod_runs_here(void)
{
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
}

const char *const mp_quant_names[] = { "dotprod", NULL };

static const struct candidate candidates[] = {
    { &mp_quant_dotprod, dotprod_runs_here },
    { NULL, NULL },
};
#else
const char *const mp_quant_names[] = { NULL };

static const struct candidate candidates[] = { { NULL, NULL } };
#endif

#define ROWS 5
#define TOKENS 3
#define COLS 512

/* Any bytes are a block, but its 16-bit floats shall be moderate. */
static void fill(unsigned char *w, size_t bytes, uint32_t *state)
{
    for (size_t i = 0; i < bytes; i++) {
        *state = *state * 1664525 + 1013904223;
        w[i] = (unsigned char)(*state >> 24 & 0x3f);
    }
}

void mp_quant_multiply_ref(const struct mp_quant_product *p, enum mp_wtype type)
{
    const struct mp_wtype_info *info = mp_wtype_info(type);
    const size_t w_stride = p->w_row_bytes / info->block_bytes * info->block_elements;

    if (p->block_cols == MP_KERNEL_BLOCK_COLS)
        mp_kernels_ref.matmul_blocked(p->y, p->y_stride, p->w, type, w_stride, p->x, p->x_stride,
                                      p->rows, p->cols, p->tokens, p->accumulate);
    else
        mp_kernels_ref.matmul(p->y, p->y_stride, p->w, type, w_stride, p->x, p->x_stride, p->rows,
                              p->cols, p->tokens);
}

static int agrees(const struct mp_quant *quant, enum mp_wtype type, uint32_t *state)
{
    const size_t row_bytes = mp_wtype_bytes(type, COLS);
    unsigned char w[ROWS * COLS * 2];
    float x[TOKENS * COLS], want[TOKENS * ROWS], got[TOKENS * ROWS], largest = 0;
    struct mp_quant_product product = {
        .y = got,
        .y_stride = ROWS,
        .w = w,
        .w_row_bytes = row_bytes,
        .x = x,
        .x_stride = COLS,
        .rows = ROWS,
        .cols = COLS,
        .tokens = TOKENS,
        .block_cols = MP_QUANT_PART_COLS,
    };

    fill(w, ROWS * row_bytes, state);
    for (size_t i = 0; i < TOKENS * COLS; i++) {
        *state = *state * 1664525 + 1013904223;
        x[i] = (float)(int32_t)*state * 0x1p-31f;
    }
    quant->multiply[type](&product);
    product.y = want;
    mp_quant_multiply_ref(&product, type);
    for (size_t i = 0; i < TOKENS * ROWS; i++)
        largest = fabsf(want[i]) > largest ? fabsf(want[i]) : largest;
    for (size_t i = 0; i < TOKENS * ROWS; i++) {
        if (!(fabsf(want[i] - got[i]) <= largest * 0x1p-14f))
            return 0;
    }
    return 1;
}

int mp_quant_passes(const struct mp_quant *quant)
{
    uint32_t state = 1;

    for (int type = 0; type < MP_WTYPE_COUNT; type++) {
        if (quant->multiply[type] != NULL && !agrees(quant, (enum mp_wtype)type, &state))
            return 0;
    }
    return 1;
}

static const struct mp_quant *look(const struct candidate *candidate)
{
    return candidate->runs_here() && mp_quant_passes(candidate->quant) ? candidate->quant : NULL;
}

const struct mp_quant *mp_quant_find(const char *name)
{
    for (const struct candidate *c = candidates; c->quant != NULL; c++) {
        if (strcmp(c->quant->name, name) == 0)
            return look(c);
    }
    return NULL;
}

const struct mp_quant *mp_quant_best(const char *kernels)
{
    static _Atomic(const struct mp_quant *) kept[2]; /* threads that race find the same */
    const size_t all = strcmp(kernels, "avx512") == 0;
    const struct mp_quant *best = atomic_load_explicit(&kept[all], memory_order_relaxed);

    if (best != NULL)
        return best;
    for (const struct candidate *c = candidates; best == NULL && c->quant != NULL; c++) {
        if (all || strcmp(c->quant->kernels, kernels) == 0)
            best = look(c);
    }
    atomic_store_explicit(&kept[all], best, memory_order_relaxed);
    return best;
}
