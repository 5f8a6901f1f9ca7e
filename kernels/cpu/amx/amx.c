/*
 * The table of class `amx`: products by tiles, everything else by avx512.c.
 */
#include "kernels/cpu/amx/amx.h"

#include <cpuid.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/cpu/kernels.h"

extern const struct mp_kernels mp_kernels_avx512, mp_kernels_amx;

/* As in <asm/prctl.h>, which is not everywhere. */
#define REQUEST_PERMISSION 0x1023
#define TILE_DATA 18

int mp_amx_runs_here(void)
{
    const unsigned int tiles = 1u << 24, int8 = 1u << 25, bf16 = 1u << 22;
    unsigned int a, b, c, d = 0;

    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & tiles) != 0 && (d & int8) != 0 &&
           (d & bf16) != 0 && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

/* 0: the type has no tiles. */
static int multiply(const struct mp_quant_product *product, enum mp_wtype type)
{
    if (type == MP_WTYPE_BF16)
        mp_amx_multiply_bf16(product);
    else if ((unsigned)type >= MP_WTYPE_PLAIN_COUNT && (unsigned)type < MP_WTYPE_COUNT)
        mp_amx_multiply_quantised(product, type);
    else
        return 0;
    return 1;
}

static int multiply_blocks(float *y, size_t y_stride, const void *w, enum mp_wtype type,
                           size_t w_stride, const float *x, size_t x_stride, size_t rows,
                           size_t cols, size_t tokens, size_t block_cols, int accumulate)
{
    const struct mp_quant_product product = {
        .y = y,
        .y_stride = y_stride,
        .w = w,
        .w_row_bytes = mp_wtype_bytes(type, w_stride),
        .x = x,
        .x_stride = x_stride,
        .rows = rows,
        .cols = cols,
        .tokens = tokens,
        .block_cols = block_cols,
        .accumulate = accumulate,
    };

    return multiply(&product, type);
}

static void amx_matmul(float *y, size_t y_stride, const void *w, enum mp_wtype type,
                       size_t w_stride, const float *x, size_t x_stride, size_t rows, size_t cols,
                       size_t tokens)
{
    if (!multiply_blocks(y, y_stride, w, type, w_stride, x, x_stride, rows, cols, tokens,
                         MP_QUANT_PART_COLS, 0))
        mp_kernels_avx512.matmul(y, y_stride, w, type, w_stride, x, x_stride, rows, cols, tokens);
}

static void amx_matmul_blocked(float *y, size_t y_stride, const void *w, enum mp_wtype type,
                               size_t w_stride, const float *x, size_t x_stride, size_t rows,
                               size_t cols, size_t tokens, int accumulate)
{
    if (!multiply_blocks(y, y_stride, w, type, w_stride, x, x_stride, rows, cols, tokens,
                         MP_KERNEL_BLOCK_COLS, accumulate))
        mp_kernels_avx512.matmul_blocked(y, y_stride, w, type, w_stride, x, x_stride, rows, cols,
                                         tokens, accumulate);
}

static void amx_convert(float *dst, const void *src, enum mp_wtype type, size_t count)
{
    mp_kernels_avx512.convert(dst, src, type, count);
}

static void amx_rmsnorm(float *out, size_t out_stride, const float *x, size_t x_stride,
                        const float *w, size_t width, size_t tokens, float eps)
{
    mp_kernels_avx512.rmsnorm(out, out_stride, x, x_stride, w, width, tokens, eps);
}

static void amx_rope(float *head, const float *cosine, const float *sine, size_t dim)
{
    mp_kernels_avx512.rope(head, cosine, sine, dim);
}

static void amx_silu_mul(float *gate, const float *up, size_t count)
{
    mp_kernels_avx512.silu_mul(gate, up, count);
}

static void amx_softmax(float *x, size_t x_stride, size_t width, size_t tokens)
{
    mp_kernels_avx512.softmax(x, x_stride, width, tokens);
}

static void amx_attend(const struct mp_attention *attention)
{
    mp_kernels_avx512.attend(attention);
}

static void amx_axpy(float *y, const float *x, float a, size_t count)
{
    mp_kernels_avx512.axpy(y, x, a, count);
}

const struct mp_kernels mp_kernels_amx = {
    .name = "amx",
    .math = MP_MATH_AMX,
    .convert = amx_convert,
    .matmul = amx_matmul,
    .matmul_blocked = amx_matmul_blocked,
    .rmsnorm = amx_rmsnorm,
    .rope = amx_rope,
    .silu_mul = amx_silu_mul,
    .softmax = amx_softmax,
    .attend = amx_attend,
    .axpy = amx_axpy,
};
