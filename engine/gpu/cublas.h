#ifndef MP_CUBLAS_H
#define MP_CUBLAS_H

#include "engine/gpu/gpu.h"
#include "vmm/options/opt.h"

/*
 * Matrix products on a device, by the project's kernels or by cuBLAS. With few tokens they are
 * bound by memory, and the kernels read each weight once; with many, cuBLAS is several times
 * faster, because it uses tensor cores. Its library is loaded on demand (libcublas.so.13; if that
 * is missing or refuses this driver, .12); nothing is linked.
 *
 * cuBLAS multiplies operands of one type: activations are first rounded to that of the weights, so
 * that the error of a product is at most 2^-8 (BF16) or 2^-11 (F16) of the sum of magnitudes, and
 * an F16 beyond 65504 becomes infinite, which is reported as an error of the model. Weights of type
 * F32 are multiplied in F32, quantised ones by the kernels. The kernels do not round. So using
 * cuBLAS changes bits; whether it is used depends only on the number of tokens of a launch, never
 * on budgets or policies.
 *
 * The project's kernels for tensor cores (kernels/cuda/tensor.cuh) do the same for weights of BF16,
 * F16 and quantised types with more than 8 tokens, dense or of experts, if they are asked for by
 * name: they have run on no device yet.
 *
 * Thread safety: mp_gemm_matmul() may be called by several threads for different streams.
 */
enum mp_gemm_choice { MP_GEMM_AUTO, MP_GEMM_OWN, MP_GEMM_CUBLAS, MP_GEMM_TENSOR };

struct mp_gemm_config {
    uint64_t choice; /* enum mp_gemm_choice */
};
extern const struct mp_opt mp_gemm_opts[]; /* MOEPAGER_CUDA_GEMM */

struct mp_gemm;

/*
 * MP_GEMM_AUTO: cuBLAS for launches of 32 tokens and more, if it works; else a log line at level
 * info, and the kernels. MP_GEMM_CUBLAS: cuBLAS for more than 8 tokens, or an error
 * (MP_ERR_UNSUPPORTED E_CUBLAS_OFF: it is not installed). MP_GEMM_TENSOR: no cuBLAS; loads the
 * kernels for tensor cores, or an error (MP_ERR_UNSUPPORTED E_TENSOR_OFF). x_count_max: most
 * activations (tokens * cols) of one launch; beyond that the kernels are used.
 */
enum mp_status mp_gemm_open(struct mp_gpu *gpu, enum mp_gemm_choice choice, uint64_t x_count_max,
                            struct mp_gemm **gemm_p) MP_MUST_CHECK;
void mp_gemm_close(struct mp_gemm *gemm); /* NULL is allowed; no product may be queued */

/*
 * Allocate now what a stream's first product by cuBLAS would allocate: before budgets take the
 * device's remaining memory, and before a graph is captured. No effect if cuBLAS is not used. If
 * there is not enough memory, MP_GEMM_AUTO switches to the kernels on all streams. To be called
 * before the first product.
 */
enum mp_status mp_gemm_use(struct mp_gemm *gemm, mp_cu_stream stream) MP_MUST_CHECK;

/* `status` is an error of something that cuBLAS needs, before the first product: MP_GEMM_AUTO logs
 * it, switches to the kernels, frees what mp_gemm_use() allocated and returns MP_OK; else `status`
 * is returned. */
enum mp_status mp_gemm_forgive(struct mp_gemm *gemm, enum mp_status status) MP_MUST_CHECK;

/* True if there is a cuBLAS to try. OWN, TENSOR: false; CUBLAS: true; AUTO: true if one is
 * installed (it is loaded, and remains so, but not tested with this driver). Clears the error
 * record. */
bool mp_gemm_is_there(enum mp_gemm_choice choice);

/* Device memory per stream if cuBLAS is used. */
uint64_t mp_gemm_bytes(uint64_t x_count_max);

/* Fewest tokens of a launch for which cuBLAS is used; UINT32_MAX: never. */
uint32_t mp_gemm_tokens_min(const struct mp_gemm *gemm);

/* True if cuBLAS multiplies weights of this type; others are the kernels' with any number of
 * tokens. */
bool mp_gemm_takes(uint32_t type);

/* True if so many tokens (or rows of an expert) are multiplied by kernels for tensor cores. */
bool mp_gemm_uses_tensor(const struct mp_gemm *gemm, uint32_t type, uint32_t tokens);

/* "own", "tensor", or cuBLAS's version: "cuBLAS 13.1.0" */
const char *mp_gemm_name(const struct mp_gemm *gemm);

/*
 * Queue one product; params->type selects the kernel. With up to 8 tokens it is GEMV. The first use
 * of cuBLAS on a stream without mp_gemm_use() allocates a workspace, so it must not happen while a
 * graph is captured. MP_ERR_DEVICE E_CUBLAS: cuBLAS's own result.
 */
enum mp_status mp_gemm_matmul(struct mp_gemm *gemm, mp_cu_stream stream,
                              const struct mp_cuda_matmul *params) MP_MUST_CHECK;

#endif
