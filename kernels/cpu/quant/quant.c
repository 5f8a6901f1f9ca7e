/*
 * The choice of a variant at run time. MP_KERNELS_X86 and MP_KERNELS_NEON come from the build:
 * which vector files are part of it. A variant is used only after it has agreed with plain C on
 * small products of every type, by every kind of tile: a processor, or an emulator of one, may
 * announce what it does not do right.
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

#define ROWS 19   /* 16 lanes and some; tiles of four, a pair and one */
#define TOKENS 15 /* 8, 4, 2 and 1 */
#define COLS 512
#define START 0.25f /* of the row's largest: what y holds before */

struct operands {
    unsigned char w[ROWS * COLS * 2];
    float x[TOKENS * COLS], want[TOKENS * ROWS], got[TOKENS * ROWS];
    float largest[ROWS]; /* of each row: scales differ */
};

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

/* In plain C, each row and each token's activations read once: all cuts have these sums. */
static void sum_up(struct operands *o, enum mp_wtype type)
{
    const struct mp_wtype_info *info = mp_wtype_info(type);
    double x[COLS];
    float rows[ROWS][COLS];

    for (size_t r = 0; r < ROWS; r++) {
        o->largest[r] = 0;
        info->convert(rows[r], o->w + r * mp_wtype_bytes(type, COLS), COLS);
    }
    for (size_t t = 0; t < TOKENS; t++) {
        mp_quant_rounded(x, o->x + t * COLS, info, COLS);
        for (size_t r = 0; r < ROWS; r++) {
            double sums[4] = { 0 };

            for (size_t c = 0; c < COLS; c += 4) {
                for (size_t i = 0; i < 4; i++)
                    sums[i] += (double)rows[r][c + i] * x[c + i];
            }
            o->want[t * ROWS + r] = (float)(sums[0] + sums[1] + sums[2] + sums[3]);
            o->largest[r] = fmaxf(o->largest[r], fabsf(o->want[t * ROWS + r]));
        }
    }
}

/* One cut, whose sums are those of its first tokens. */
static int agrees(const struct mp_quant *quant, enum mp_wtype type, struct operands *o,
                  size_t tokens, size_t block_cols, int accumulate)
{
    const struct mp_quant_product product = {
        .y = o->got,
        .y_stride = ROWS,
        .w = o->w,
        .w_row_bytes = mp_wtype_bytes(type, COLS),
        .x = o->x,
        .x_stride = COLS,
        .rows = ROWS,
        .cols = COLS,
        .tokens = tokens,
        .block_cols = block_cols,
        .accumulate = accumulate,
    };

    for (size_t i = 0; i < tokens * ROWS; i++)
        o->got[i] = o->largest[i % ROWS] * START;
    quant->multiply[type](&product);
    for (size_t i = 0; i < tokens * ROWS; i++) {
        const float largest = o->largest[i % ROWS];
        const float want = o->want[i] + (accumulate ? largest * START : 0);

        if (!(fabsf(want - o->got[i]) <= largest * 0x1p-14f))
            return 0;
    }
    return 1;
}

/* Every kind of tile: of one token, as for decoding, of few, whose rows stand apart, and of many;
 * both kinds of partial sums, which go to y or are added to it. */
static int all_agree(const struct mp_quant *quant, enum mp_wtype type, uint32_t *state)
{
    static const struct {
        size_t tokens, block_cols;
        int accumulate;
    } cuts[] = {
        { 1, MP_QUANT_PART_COLS, 0 },      { 1, MP_KERNEL_BLOCK_COLS, 1 },
        { 3, MP_QUANT_PART_COLS, 0 },      { 4, MP_KERNEL_BLOCK_COLS, 0 },
        { TOKENS, MP_QUANT_PART_COLS, 0 }, { TOKENS, MP_KERNEL_BLOCK_COLS, 1 },
    };
    struct operands o;

    fill(o.w, ROWS * mp_wtype_bytes(type, COLS), state);
    for (size_t i = 0; i < TOKENS * COLS; i++) {
        *state = *state * 1664525 + 1013904223;
        o.x[i] = (float)(int32_t)*state * 0x1p-31f;
    }
    sum_up(&o, type);
    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        if (!agrees(quant, type, &o, cuts[i].tokens, cuts[i].block_cols, cuts[i].accumulate))
            return 0;
    }
    return 1;
}

int mp_quant_passes(const struct mp_quant *quant)
{
    uint32_t state = 1;

    for (int type = 0; type < MP_WTYPE_COUNT; type++) {
        if (quant->multiply[type] != NULL && !all_agree(quant, (enum mp_wtype)type, &state))
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

int mp_quant_announced(const char *name)
{
    for (const struct candidate *c = candidates; c->quant != NULL; c++) {
        if (strcmp(c->quant->name, name) == 0)
            return c->runs_here();
    }
    return 0;
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
