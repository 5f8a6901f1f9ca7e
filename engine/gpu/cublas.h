#ifndef MP_CUBLAS_H
#define MP_CUBLAS_H

#include "engine/gpu/gpu.h"
#include "vmm/options/opt.h"

/*
 * Products on a device, by the project's kernels or by cuBLAS. For a few tokens they wait for
 * memory, and the kernels read each weight once; for many, cuBLAS's use of tensor cores is several
 * times faster. Its library is looked for when it is wanted (libcublas.so.13; where that is missing
 * or refuses this driver, .12); nothing is linked.
 *
 * What cuBLAS multiplies is of one type: activations are rounded to that of the weights first, so
 * that a product is at most 2^-9 (BF16) or 2^-11 (F16) of the sum of magnitudes off, and an F16
 * beyond 65504 is an error of the model's (infinite). Weights of type F32 are multiplied in F32.
 * The kernels round nothing. Hence a choice of cuBLAS changes bits: it depends on the number of
 * tokens of a launch alone, never on budgets or policies.
 *
 * Thread safety: mp_gemm_matmul() may be called by several threads for different streams.
 */
enum mp_gemm_choice { MP_GEMM_AUTO, MP_GEMM_OWN, MP_GEMM_CUBLAS };

struct mp_gemm_config {
    uint64_t choice; /* enum mp_gemm_choice */
};
extern const struct mp_opt mp_gemm_opts[]; /* MOEPAGER_CUDA_GEMM */

struct mp_gemm;

/*
 * MP_GEMM_AUTO: cuBLAS where it works, for launches of 32 tokens and more; where it does not, one
 * line of information and the kernels. MP_GEMM_CUBLAS: for more than 8 tokens, and what does not
 * work is an error (MP_ERR_UNSUPPORTED E_CUBLAS_OFF: it is not installed). x_count_max: the most
 * activations (tokens * cols) of one launch; beyond that the kernels are used.
 */
enum mp_status mp_gemm_open(struct mp_gpu *gpu, enum mp_gemm_choice choice, uint64_t x_count_max,
                            struct mp_gemm **gemm_p) MP_MUST_CHECK;
void mp_gemm_close(struct mp_gemm *gemm); /* NULL is allowed; nothing of it may be queued */

/*
 * Make now what a stream's first product by cuBLAS would allocate: before budgets take what is left
 * of the device, and before a graph is captured. Nothing, where cuBLAS is not used. Where there is
 * no room for it MP_GEMM_AUTO goes on with the kernels, on all streams: before the first product.
 */
enum mp_status mp_gemm_use(struct mp_gemm *gemm, mp_cu_stream stream) MP_MUST_CHECK;

/* `status` is an error of something else that cuBLAS needs, before the first product: MP_GEMM_AUTO
 * logs it, goes on with the kernels and gives back what mp_gemm_use() made; else it is returned. */
enum mp_status mp_gemm_forgive(struct mp_gemm *gemm, enum mp_status status) MP_MUST_CHECK;

/* Is there a cuBLAS for this choice to try? OWN: no; CUBLAS: as if there were; AUTO: is one
 * installed (it is loaded, and stays so, but not asked whether it takes this driver). Clears the
 * error. */
bool mp_gemm_is_there(enum mp_gemm_choice choice);

/* Device memory that a stream takes, if cuBLAS is used. */
uint64_t mp_gemm_bytes(uint64_t x_count_max);

/* From so many tokens of a launch on cuBLAS is used; UINT32_MAX: never. */
uint32_t mp_gemm_tokens_min(const struct mp_gemm *gemm);

/* "own", or cuBLAS's version: "cuBLAS 13.1.0" */
const char *mp_gemm_name(const struct mp_gemm *gemm);

/*
 * Queue one product; params->type says which kernel. With few tokens (8) that is GEMV. cuBLAS's
 * first use on a stream without mp_gemm_use() allocates a workspace, so it must not happen while a
 * graph is captured.
 * MP_ERR_DEVICE E_CUBLAS: cuBLAS's own result.
 */
enum mp_status mp_gemm_matmul(struct mp_gemm *gemm, mp_cu_stream stream,
                              const struct mp_cuda_matmul *params) MP_MUST_CHECK;

#endif
