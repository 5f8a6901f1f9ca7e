#ifndef MP_KERNELS_H
#define MP_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/types.h"

/*
 * Arithmetic of a transformer on the CPU: pure functions on pointers and sizes. They allocate
 * nothing, take no lock, start no thread and cannot fail. Callers parallelise them by giving each
 * thread a range of rows, tokens or heads. This folder includes nothing else of the project.
 *
 * Weights are row-major (rows, cols) in one of the types of kernels/cpu/types.h, at any byte
 * address (files do not align them); rows, and ranges of columns, are whole blocks of the type.
 * Activations are float, row-major (tokens, width) with a stride in elements.
 *
 * Exact results. For one implementation the bits of an output element depend only on the values
 * that it is computed from: never on how many rows or tokens a call has, on where a range was
 * split, or on addresses. So outputs do not change with threads, batch size or prefill chunks.
 * (Whether an output is NaN is determined too, but not the payload of the NaN.) Different
 * implementations round differently and agree within a tolerance, within a class.
 */

/* Classes of arithmetic, by what products with BF16 weights round their activations to: to nothing,
 * or to BF16, as the weights are, where a processor multiplies pairs of BF16. AMX does that too,
 * and adds in another order, in products with quantised weights as well (kernels/cpu/amx). */
enum mp_math { MP_MATH_F32, MP_MATH_NATIVE, MP_MATH_AMX };

static inline const char *mp_math_name(enum mp_math math)
{
    return math == MP_MATH_AMX ? "amx" : math == MP_MATH_NATIVE ? "native" : "f32";
}

/* Columns of one block of matmul_blocked(): slices of an expert split only at its multiples. */
#define MP_KERNEL_BLOCK_COLS 256

/* Elements of a head in attention at most. */
#define MP_KERNEL_HEAD_MAX 1024

/*
 * Attention of `heads` query heads, which share keys and values and follow one another, over
 * positions [0, positions). Keys and values of other types than F32 count as the floats that
 * convert() makes of them: the result has the bits of those.
 */
struct mp_attention {
    float *out;         // (heads, dim)
    const float *q;     // (heads, dim)
    const void *k, *v;  // (positions, dim), at any byte address
    enum mp_wtype type; /* of keys and values */
    size_t kv_stride;   /* elements between their rows, whole blocks */
    size_t heads, dim;  /* dim: whole blocks, at most MP_KERNEL_HEAD_MAX */
    size_t positions;
    float scale;
    float *scores; // (heads, positions)
};

struct mp_kernels {
    const char *name; /* one of mp_kernels_names */
    enum mp_math math;

    /* dst[i] = element i of src as float, for i < count, whole blocks. */
    void (*convert)(float *dst, const void *src, enum mp_wtype type, size_t count);

    /*
     * y[t][r] = sum_c w[r][c] * x[t][c] for r < rows, t < tokens, c < cols.
     * w_stride, x_stride, y_stride: elements between rows. Weights come from memory once for up to
     * 64 tokens. Copies of activations, and of weights whose type has no loop of its own, lie on
     * the stack: 160 KiB.
     */
    void (*matmul)(float *y, size_t y_stride, const void *w, enum mp_wtype type, size_t w_stride,
                   const float *x, size_t x_stride, size_t rows, size_t cols, size_t tokens);

    /*
     * The same, summed as y = ((y0 + p0) + p1) + ... where p_b is the dot product over columns
     * [256 b, 256 b + 256) and y0 is y's old value if `accumulate`, else 0. Hence a call over all
     * columns and two calls that split them at a multiple of 256 give the same bits.
     */
    void (*matmul_blocked)(float *y, size_t y_stride, const void *w, enum mp_wtype type,
                           size_t w_stride, const float *x, size_t x_stride, size_t rows,
                           size_t cols, size_t tokens, int accumulate);

    /*
     * out[t][i] = x[t][i] / sqrt(mean_i x^2 + eps) * w[i]; out may be x. w as float. A row whose
     * sum of squares overflows becomes NaN: divided by infinity it would be zeros, which look like
     * a result.
     */
    void (*rmsnorm)(float *out, size_t out_stride, const float *x, size_t x_stride, const float *w,
                    size_t width, size_t tokens, float eps);

    /*
     * Rotary embedding in place, "rotate half" form: for one head vector of `dim` (even) elements,
     * pairs (i, i + dim/2) turn by the angle whose cosine and sine are cos[i], sin[i], i < dim/2.
     */
    void (*rope)(float *head, const float *cosine, const float *sine, size_t dim);

    /* gate[i] = silu(gate[i]) * up[i], silu(v) = v / (1 + exp(-v)). */
    void (*silu_mul)(float *gate, const float *up, size_t count);

    /* Softmax over each row of `width` in place, with the maximum subtracted. */
    void (*softmax)(float *x, size_t x_stride, size_t width, size_t tokens);

    /*
     * out[h][i] = sum_p softmax_p(q[h] . k[p] * scale) * v[p][i]. `scores` becomes
     * exp(score - highest of the head), before it is divided by the sum.
     */
    void (*attend)(const struct mp_attention *attention);

    /* y[i] += a * x[i]. */
    void (*axpy)(float *y, const float *x, float a, size_t count);
};

/*
 * Store keys or values as a type, plain or Q8_0: count elements, whole blocks, dst at any address.
 * To nearest; a block of Q8_0 has the scale of its largest number. What is no finite number, or has
 * no place in the type, is no finite number when it is read. The same bits on every processor.
 */
void mp_kernels_store(enum mp_wtype type, void *dst, const float *x, size_t count);

/* Plain C with double accumulation: the reference for the others. */
extern const struct mp_kernels mp_kernels_ref;

/* The implementation called `name`; NULL if there is none, this CPU cannot run it, or it has failed
 * its self-test, which runs once. */
const struct mp_kernels *mp_kernels_find(const char *name);

/* Does this CPU announce what `name` needs? Only the self-test says whether it does that right. */
int mp_kernels_announced(const char *name);

/* The fastest one of class F32 that this CPU (and operating system) can run; never NULL. */
const struct mp_kernels *mp_kernels_best(void);

/* The fastest one of a class, or NULL as for mp_kernels_find(). */
const struct mp_kernels *mp_kernels_of(enum mp_math math);

/* The self-test: small products of every plain type against plain C, and of every quantised one
 * where the class has its own; false: the implementation must not be used. */
int mp_kernels_pass(const struct mp_kernels *kernels);

/* Names in the order of preference, for listings; NULL-terminated. */
extern const char *const mp_kernels_names[];

#endif
