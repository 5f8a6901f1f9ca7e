/*
 * The few calls of cuBLAS that engine/gpu/cublas.c makes, for tests on machines without a device:
 * built as libcublas.so.13, it computes on the memory of the driver without a device
 * (tests/device/fakecuda), as a kernel in the order of the handle's stream. It has nothing of
 * NVIDIA's library but the names, and works with no other driver.
 *
 * fakecublas_fail(name, nth, result): the nth call of that name from now on (0: the next) returns
 * `result`. Says whether the plan before had been carried out. Environment FAKECUBLAS_MEMORY (0):
 * bytes of the device that each handle takes besides its workspace.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/kernels.h"
#include "tests/device/fakecuda/fakecuda.h"
#include "tests/device/fakecuda/simt.h"
#include "vmm/backend/cuda/cuda_abi.h"

#ifndef FAKECUBLAS_VERSION
#define FAKECUBLAS_VERSION 130000
#endif

#define EXPORT __attribute__((visibility("default")))

enum {
    SUCCESS = 0,
    NOT_INITIALIZED = 1,
    ALLOC_FAILED = 3,
    INVALID_VALUE = 7,
    EXECUTION_FAILED = 13
};
enum { TYPE_F32 = 0, TYPE_F16 = 2, TYPE_BF16 = 14, COMPUTE_F32 = 68 };

struct cublas_context {
    mp_cu_module module;
    mp_cu_function function;
    mp_cu_stream stream;
    const void *workspace;
    mp_cu_ptr memory; /* FAKECUBLAS_MEMORY, or 0 */
    struct cublas_context *next;
};

/* Those that live. Of a device that is lost nobody gives them back. */
static struct cublas_context *contexts;

struct gemm {
    uint64_t a, b, c;
    uint32_t m, n, k, lda, ldb, ldc;
    int32_t type;
    float alpha, beta;
};

static const char image[] =
    ".version 7.4\n.target sm_75\n.address_size 64\n"
    ".visible .entry fakecublas_gemm(.param .align 8 .b8 p[64])\n{ ret; }\n";
_Static_assert(sizeof(struct gemm) == 64, "as the image says");

static struct {
    mp_cu_result (*load)(mp_cu_module *, const void *, unsigned, int *, void **);
    mp_cu_result (*unload)(mp_cu_module);
    mp_cu_result (*function)(mp_cu_function *, mp_cu_module, const char *);
    mp_cu_result (*launch)(mp_cu_function, unsigned, unsigned, unsigned, unsigned, unsigned,
                           unsigned, unsigned, mp_cu_stream, void **, void **);
    mp_cu_result (*alloc)(mp_cu_ptr *, size_t);
    mp_cu_result (*free)(mp_cu_ptr);
    fakecuda_kernel_fn *kernel;
} driver;

static char fail_name[48];
static unsigned fail_nth;
static int fail_result;

EXPORT int fakecublas_fail(const char *name, unsigned nth, int result);
int fakecublas_fail(const char *name, unsigned nth, int result)
{
    const int done = fail_name[0] == '\0';

    snprintf(fail_name, sizeof(fail_name), "%s", name);
    fail_nth = nth;
    fail_result = result;
    return done;
}

static int planned(const char *name)
{
    if (strcmp(fail_name, name) != 0 || fail_nth-- > 0)
        return SUCCESS;
    fail_name[0] = '\0';
    return fail_result;
}

static float element(uint64_t base, int type, uint64_t index)
{
    const enum mp_wtype own = type == TYPE_F32    ? MP_WTYPE_F32
                              : type == TYPE_BF16 ? MP_WTYPE_BF16
                                                  : MP_WTYPE_F16;
    float value;

    mp_kernels_ref.convert(&value, (const char *)(uintptr_t)base + mp_wtype_bytes(own, index), own,
                           1);
    return value;
}

/* C = alpha A^T B + beta C, columns first; sums in another order than the project's kernels. */
static const char *gemm_run(const void *params, struct mp_simt_dim grid, struct mp_simt_dim block,
                            uint32_t shared_bytes)
{
    const struct gemm *g = params;

    (void)grid;
    (void)block;
    (void)shared_bytes;
    for (uint64_t j = 0; j < g->n; j++) {
        for (uint64_t i = 0; i < g->m; i++) {
            float *c = (float *)(uintptr_t)g->c + j * g->ldc + i, sum = 0;

            for (uint64_t l = 0; l < g->k; l++)
                sum +=
                    element(g->a, g->type, i * g->lda + l) * element(g->b, g->type, j * g->ldb + l);
            *c = g->beta != 0 ? g->alpha * sum + g->beta * *c : g->alpha * sum;
        }
    }
    return NULL;
}

static void gemm_touches(const void *params, mp_simt_emit *emit, void *ctx)
{
    const struct gemm *g = params;
    const uint64_t bytes = g->type == TYPE_F32 ? 4 : 2;

    (void)emit(ctx, g->a, ((g->m - 1) * (uint64_t)g->lda + g->k) * bytes, false);
    (void)emit(ctx, g->b, ((g->n - 1) * (uint64_t)g->ldb + g->k) * bytes, false);
    (void)emit(ctx, g->c, ((g->n - 1) * (uint64_t)g->ldc + g->m) * sizeof(float), true);
}

static const struct mp_simt_kernel gemm_kernel = { "fakecublas_gemm", sizeof(struct gemm), gemm_run,
                                                   gemm_touches };

static int find(void *library, const char *name, void *to)
{
    void *symbol = dlsym(library, name);

    memcpy(to, &symbol, sizeof(symbol));
    return symbol != NULL;
}

static int find_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);

    if (driver.kernel != NULL)
        return 1;
    if (library == NULL || !find(library, "cuModuleLoadDataEx", &driver.load) ||
        !find(library, "cuModuleUnload", &driver.unload) ||
        !find(library, "cuModuleGetFunction", &driver.function) ||
        !find(library, "cuLaunchKernel", &driver.launch) ||
        !find(library, "cuMemAlloc_v2", &driver.alloc) ||
        !find(library, "cuMemFree_v2", &driver.free) ||
        !find(library, "fakecuda_kernel", &driver.kernel))
        return 0;
    driver.kernel(&gemm_kernel);
    return 1;
}

/* Memory of the handle's own; false: the device has not that much. */
static int take_memory(struct cublas_context *context)
{
    const char *bytes = getenv("FAKECUBLAS_MEMORY");

    return bytes == NULL ||
           driver.alloc(&context->memory, strtoull(bytes, NULL, 0)) == MP_CU_SUCCESS;
}

EXPORT int cublasCreate_v2(struct cublas_context **handle);
int cublasCreate_v2(struct cublas_context **handle)
{
    struct cublas_context *context;

    if (planned("cublasCreate") != SUCCESS)
        return fail_result;
    if (!find_driver())
        return NOT_INITIALIZED;
    context = calloc(1, sizeof(*context));
    if (context == NULL)
        return NOT_INITIALIZED;
    if (driver.load(&context->module, image, 0, NULL, NULL) != MP_CU_SUCCESS ||
        driver.function(&context->function, context->module, "fakecublas_gemm") != MP_CU_SUCCESS) {
        if (context->module != NULL)
            (void)driver.unload(context->module);
        free(context);
        return NOT_INITIALIZED;
    }
    if (!take_memory(context)) {
        (void)driver.unload(context->module);
        free(context);
        return ALLOC_FAILED;
    }
    context->next = contexts;
    contexts = context;
    *handle = context;
    return SUCCESS;
}

EXPORT int cublasDestroy_v2(struct cublas_context *handle);
int cublasDestroy_v2(struct cublas_context *handle)
{
    const mp_cu_result result = driver.unload(handle->module);
    struct cublas_context **at = &contexts;

    while (*at != handle)
        at = &(*at)->next;
    *at = handle->next;
    if (handle->memory != 0)
        (void)driver.free(handle->memory);
    free(handle);
    return result == MP_CU_SUCCESS ? planned("cublasDestroy") : EXECUTION_FAILED;
}

EXPORT int cublasGetVersion_v2(struct cublas_context *handle, int *version);
int cublasGetVersion_v2(struct cublas_context *handle, int *version)
{
    *version = FAKECUBLAS_VERSION;
    return handle == NULL ? NOT_INITIALIZED : planned("cublasGetVersion");
}

EXPORT int cublasSetStream_v2(struct cublas_context *handle, mp_cu_stream stream);
int cublasSetStream_v2(struct cublas_context *handle, mp_cu_stream stream)
{
    handle->stream = stream;
    handle->workspace = NULL; /* as the documentation says */
    return planned("cublasSetStream");
}

EXPORT int cublasSetWorkspace_v2(struct cublas_context *handle, void *at, size_t bytes);
int cublasSetWorkspace_v2(struct cublas_context *handle, void *at, size_t bytes)
{
    if (at == NULL || bytes == 0)
        return INVALID_VALUE;
    handle->workspace = at;
    return planned("cublasSetWorkspace");
}

EXPORT int cublasGemmEx(struct cublas_context *handle, int op_a, int op_b, int m, int n, int k,
                        const void *alpha, const void *a, int type_a, int lda, const void *b,
                        int type_b, int ldb, const void *beta, void *c, int type_c, int ldc,
                        int compute, int algorithm);
int cublasGemmEx(struct cublas_context *handle, int op_a, int op_b, int m, int n, int k,
                 const void *alpha, const void *a, int type_a, int lda, const void *b, int type_b,
                 int ldb, const void *beta, void *c, int type_c, int ldc, int compute,
                 int algorithm)
{
    struct gemm g = { .a = (uintptr_t)a,
                      .b = (uintptr_t)b,
                      .c = (uintptr_t)c,
                      .m = (uint32_t)m,
                      .n = (uint32_t)n,
                      .k = (uint32_t)k,
                      .lda = (uint32_t)lda,
                      .ldb = (uint32_t)ldb,
                      .ldc = (uint32_t)ldc,
                      .type = type_a };
    void *params[] = { &g };

    if (planned("cublasGemmEx") != SUCCESS)
        return fail_result;
    if (op_a != 1 || op_b != 0 || m <= 0 || n <= 0 || k <= 0 || lda < k || ldb < k || ldc < m ||
        type_a != type_b || type_c != TYPE_F32 || compute != COMPUTE_F32 || algorithm != -1 ||
        (type_a != TYPE_F32 && type_a != TYPE_F16 && type_a != TYPE_BF16) ||
        handle->workspace == NULL)
        return INVALID_VALUE;
    memcpy(&g.alpha, alpha, sizeof(g.alpha));
    memcpy(&g.beta, beta, sizeof(g.beta));
    return driver.launch(handle->function, 1, 1, 1, 1, 1, 1, 0, handle->stream, params, NULL) ==
                   MP_CU_SUCCESS
               ? SUCCESS
               : EXECUTION_FAILED;
}

EXPORT const char *cublasGetStatusString(int status);
const char *cublasGetStatusString(int status)
{
    return status == EXECUTION_FAILED ? "the function failed to launch" : "another result";
}
