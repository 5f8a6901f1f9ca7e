#ifndef MP_TOOLS_GPU_CHECK_H
#define MP_TOOLS_GPU_CHECK_H

#include "engine/gpu/gpu.h"
#include "kernels/cpu/kernels.h"

/*
 * For check_kernels: a launch runs twice, on the device and, from the same source, on the CPU
 * (tests/device/simt). Afterwards every byte of every operand must be equal, those that the kernel
 * must leave alone included. What the CPU computed is what the next launch begins with, on both
 * sides, so that one wrong kernel does not make the next ones look wrong.
 *
 * Operands are memory of the host that the check owns until check_end(). Parameters and tables hold
 * their host addresses; for the device each is replaced by the address of its copy there.
 *
 * Not thread safe. A program that runs out of memory ends with 1.
 */
struct check;

/* MP_ERR_UNSUPPORTED: there is no driver. only: name of the one kernel that is launched; NULL: all.
 */
enum mp_status check_open(unsigned ordinal, const char *only, struct check **check_p) MP_MUST_CHECK;

/* Whether a kernel of this quantised type is launched. */
bool check_wants_type(const struct check *check, unsigned type);

/* Prints one line per kernel and "N cases, M wrong"; false: a case was wrong, or a kernel had none.
 */
bool check_report(struct check *check);
void check_close(struct check *check); /* NULL is allowed */

/* Operands of the case: numbers in [-1, 1); weights in [-1/4, 1/4], or blocks of any numbers with
 * scales of about 1/64, `count` being whole blocks; rubbish; a copy of `data`. */
float *check_floats(struct check *check, size_t count);
void *check_weights(struct check *check, enum mp_wtype type, size_t count);
/* As check_weights(), so many bytes behind a multiple of 16. */
void *check_shifted(struct check *check, enum mp_wtype type, size_t count, size_t shift);
void *check_space(struct check *check, size_t bytes);
void *check_copy(struct check *check, const void *data, size_t bytes);
/* A copy of `data`, in which words that are addresses of operands are translated. */
void *check_table(struct check *check, const void *data, size_t bytes);

uint32_t check_random(struct check *check); /* any 32 bits, the same in every run */

static inline uint64_t check_at(const void *operand)
{
    return (uint64_t)(uintptr_t)operand;
}

/* Run it on both and compare. `what` names the case in messages. */
void check_launch(struct check *check, enum mp_cuda_kernel kernel, const void *params,
                  const char *what);

/* Whether the device has the kernels from MP_CUDA_TENSOR_FIRST on. If not, they need no case. */
bool check_tensor(const struct check *check);

/*
 * The same for a kernel whose sums are the hardware's: floats of `out` are compared with `want` (of
 * what the device must come to), and may be off by `limit` each; where that is negative, and
 * everywhere else, bytes must be equal. want, limit: of out's size; both are freed.
 */
void check_launch_within(struct check *check, enum mp_cuda_kernel kernel, const void *params,
                         const void *out, double *want, double *limit, const char *what);

/* Run it on the CPU alone: its results are operands of the next launch. */
void check_here(const struct check *check, enum mp_cuda_kernel kernel, const void *params);

/* What the last launch gave, on the CPU, against kernels/cpu/ref.c, which sums in double: no
 * further off than 2e-5 of the largest. Rows of `width`, those of `got` `stride` apart. Frees
 * `want`. */
void check_near(struct check *check, enum mp_cuda_kernel kernel, const float *got, uint32_t stride,
                float *want, uint32_t width, uint32_t rows, const char *what);
/* Memory for `want`. */
float *check_want(size_t count);

/* mp_kernels_ref.matmul() without strides, but with activations as they are: quantised weights are
 * decoded first. */
void check_product(float *y, const void *w, enum mp_wtype type, size_t w_stride, const float *x,
                   size_t x_stride, size_t rows, size_t cols, size_t tokens);

/* A case of a kernel whose result is not in memory: is it as it should be? */
void check_case(struct check *check, enum mp_cuda_kernel kernel, bool good, const char *what);

/* Milliseconds that a launch takes on the device; negative: a call failed. */
float check_time(struct check *check, enum mp_cuda_kernel kernel, const void *params);

/* Free the operands of the case. */
void check_end(struct check *check);

/* The cases, by what the kernels are for. `few`: for tools that make each of them much slower. */
void check_matmuls(struct check *check, bool few);
void check_experts(struct check *check, bool few);
void check_layers(struct check *check, bool few);
void check_attention(struct check *check, bool few);
void check_choices(struct check *check, bool few);

#endif
