/*
 * cuBLAS behind dlopen, and the choice between it and the kernels; see cublas.h. Experts with many
 * rows are in engine/forward/cuda/device_expert_gemm.c.
 *
 * A matrix product in cuBLAS's terms: it counts columns first, so a row-major W (rows, cols) is its
 * cols x rows matrix, to be transposed, x (tokens, cols) its cols x tokens matrix, and the result
 * its rows x tokens matrix, which is y (tokens, rows) here.
 */
#include "engine/gpu/cublas.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/kernels.h"
#include "vmm/base/compiler.h"
#include "vmm/base/error.h"
#include "vmm/base/log.h"

#define STREAMS_MAX 8
#define TOKENS_FEW 8   /* of one GEMV */
#define TOKENS_MANY 32 /* from here on cuBLAS is taken if there is a choice */

/* NVIDIA's advice for devices from Hopper on, and no more than a prefill needs on others. */
#define WORKSPACE_BYTES (32u << 20)

/* Of cuBLAS's documentation: operations, types, the kind of computation, the algorithm. */
enum { OP_N = 0, OP_T = 1 };
enum { TYPE_F32 = 0, TYPE_F16 = 2, TYPE_BF16 = 14 };
enum { COMPUTE_F32 = 68 };

/* What cuBLAS calls the types that it multiplies with. */
static const struct {
    bool known;
    int name;
} cublas_types[MP_WTYPE_COUNT] = {
    [MP_WTYPE_F32] = { true, TYPE_F32 },
    [MP_WTYPE_BF16] = { true, TYPE_BF16 },
    [MP_WTYPE_F16] = { true, TYPE_F16 },
};
enum { ALGORITHM_DEFAULT = -1 };

typedef struct cublas_context *cublas_handle;

/* X(member, name, parameters): all calls that are made; each returns cuBLAS's status. */
#define CALL_MAP(X)                                                                              \
    X(create, cublasCreate_v2, (cublas_handle * handle))                                         \
    X(destroy, cublasDestroy_v2, (cublas_handle handle))                                         \
    X(version, cublasGetVersion_v2, (cublas_handle handle, int *version))                        \
    X(set_stream, cublasSetStream_v2, (cublas_handle handle, mp_cu_stream stream))               \
    X(set_workspace, cublasSetWorkspace_v2, (cublas_handle handle, void *at, size_t bytes))      \
    X(gemm, cublasGemmEx,                                                                        \
      (cublas_handle handle, int op_a, int op_b, int m, int n, int k, const void *alpha,         \
       const void *a, int type_a, int lda, const void *b, int type_b, int ldb, const void *beta, \
       void *c, int type_c, int ldc, int compute, int algorithm))

struct calls {
#define X(member, name, parameters) int(*member) parameters;
    CALL_MAP(X)
#undef X
    const char *(*text)(int status); /* may be NULL */
};

/* One stream's handle, workspace and rounded activations. */
struct stream_state {
    mp_cu_stream stream;
    cublas_handle handle;
    mp_cu_ptr workspace, x;
};

struct mp_gemm {
    struct mp_gpu *gpu;
    enum mp_gemm_choice choice;
    uint32_t tokens_min; /* of a launch for cuBLAS; UINT32_MAX: never */
    uint64_t x_count_max;
    void *library;
    struct calls call;
    pthread_mutex_t lock; /* of streams and stream_count; an opened one stays as it is */
    struct stream_state streams[STREAMS_MAX];
    unsigned stream_count;
    char name[48];
};

static const char *const choice_names[] = { "auto", "own", "cublas", "tensor", NULL };

const struct mp_opt mp_gemm_opts[] = {
    MP_OPT_ENUM(
        "CUDA_GEMM", struct mp_gemm_config, choice, "auto", choice_names,
        "Who multiplies with many tokens on a CUDA device, dense weights and experts alike: own "
        "kernels, which round nothing, or cuBLAS, which rounds activations to the type of the "
        "weights; auto takes cuBLAS where it is installed. tensor: own kernels for tensor cores "
        "(compute capability 8.0), which round as cuBLAS does, and for quantised weights to F16; "
        "they have run on no GPU yet."),
    MP_OPT_END
};

static const struct {
    const char *name;
    size_t offset;
} symbols[] = {
#define X(member, name, parameters) { #name, offsetof(struct calls, member) },
    CALL_MAP(X)
#undef X
};

static const char *const names[] = { "libcublas.so.13", "libcublas.so.12" };

static enum mp_status check(const struct mp_gemm *gemm, int result, const char *call)
{
    const char *text = gemm->call.text != NULL ? gemm->call.text(result) : NULL;

    if (result == 0)
        return MP_OK;
    return mp_fail(result == 3 ? MP_ERR_NO_SPACE : MP_ERR_DEVICE, "E_CUBLAS",
                   "%s: %s (%d); MOEPAGER_CUDA_GEMM=own does without cuBLAS", call,
                   text != NULL ? text : "unknown result", result);
}

/* MP_ERR_UNSUPPORTED: not installed, or too old. */
static enum mp_status load(struct mp_gemm *gemm, const char *name)
{
    void *text;

    /* It stays in the process: what it started there is not made to be taken away. */
    gemm->library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (gemm->library == NULL)
        return mp_fail(MP_ERR_UNSUPPORTED, "E_CUBLAS_OFF", "cuBLAS cannot be loaded: %s",
                       dlerror());
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *symbol = dlsym(gemm->library, symbols[i].name);

        if (symbol == NULL)
            return mp_fail(MP_ERR_UNSUPPORTED, "E_CUBLAS_OFF", "cuBLAS is too old, %s has no %s",
                           name, symbols[i].name);
        memcpy((char *)&gemm->call + symbols[i].offset, &symbol, sizeof(symbol));
    }
    text = dlsym(gemm->library, "cublasGetStatusString");
    memcpy(&gemm->call.text, &text, sizeof(text));
    return MP_OK;
}

static void unload(struct mp_gemm *gemm)
{
    if (gemm->library != NULL)
        dlclose(gemm->library);
    gemm->library = NULL;
    memset(&gemm->call, 0, sizeof(gemm->call));
}

static void stream_close(struct mp_gemm *gemm, struct stream_state *state)
{
    const struct mp_error before = *mp_error_last();

    if (state->handle != NULL && mp_gpu_enter(gemm->gpu) != MP_OK)
        mp_error_set(&before); /* what follows may fail, too, and harms nobody */
    if (state->handle != NULL && !mp_gpu_is_lost(gemm->gpu) &&
        gemm->call.destroy(state->handle) != 0)
        mp_log_warn("cuda", "cublasDestroy failed");
    mp_gpu_free(gemm->gpu, state->workspace);
    mp_gpu_free(gemm->gpu, state->x);
    memset(state, 0, sizeof(*state));
}

/* A handle with memory of its own: then results do not depend on what other streams do. */
static enum mp_status stream_open(struct mp_gemm *gemm, mp_cu_stream stream,
                                  struct stream_state *state)
{
    enum mp_status status = mp_gpu_enter(gemm->gpu);

    memset(state, 0, sizeof(*state));
    state->stream = stream;
    if (status == MP_OK)
        status = check(gemm, gemm->call.create(&state->handle), "cublasCreate");
    if (status == MP_OK)
        status = mp_gpu_alloc(gemm->gpu, WORKSPACE_BYTES, "cuBLAS's workspace", &state->workspace);
    if (status == MP_OK)
        status = mp_gpu_alloc(gemm->gpu, gemm->x_count_max * sizeof(uint16_t),
                              "rounded activations", &state->x);
    if (status == MP_OK)
        status = check(gemm, gemm->call.set_stream(state->handle, stream), "cublasSetStream");
    if (status == MP_OK)
        status = check(gemm,
                       gemm->call.set_workspace(state->handle, (void *)(uintptr_t)state->workspace,
                                                WORKSPACE_BYTES),
                       "cublasSetWorkspace");
    if (status != MP_OK)
        stream_close(gemm, state);
    return status;
}

/* NULL with MP_OK: too many streams, the kernels do it. */
static enum mp_status get_stream(struct mp_gemm *gemm, mp_cu_stream stream,
                                 struct stream_state **state_p)
{
    enum mp_status status = MP_OK;

    *state_p = NULL;
    pthread_mutex_lock(&gemm->lock);
    for (unsigned i = 0; i < gemm->stream_count; i++) {
        if (gemm->streams[i].stream == stream)
            *state_p = &gemm->streams[i];
    }
    if (*state_p == NULL && gemm->stream_count < STREAMS_MAX) {
        status = stream_open(gemm, stream, &gemm->streams[gemm->stream_count]);
        if (status == MP_OK)
            *state_p = &gemm->streams[gemm->stream_count++];
    }
    pthread_mutex_unlock(&gemm->lock);
    return status;
}

/* Loads a library and tries it: what can fail does so here and not in the middle of a prompt. */
static enum mp_status start_one(struct mp_gemm *gemm, const char *name)
{
    int version = 0;
    struct stream_state state;
    enum mp_status status = load(gemm, name);

    if (status == MP_OK)
        status = stream_open(gemm, NULL, &state);
    if (status != MP_OK)
        return status;
    status = check(gemm, gemm->call.version(state.handle, &version), "cublasGetVersion");
    stream_close(gemm, &state);
    snprintf(gemm->name, sizeof(gemm->name), "cuBLAS %d.%d.%d", version / 10000,
             version / 100 % 100, version % 100);
    return status;
}

/* The newest that this driver takes. The error is that of the newest that is installed. */
static enum mp_status start(struct mp_gemm *gemm)
{
    struct mp_error refused = { .status = MP_OK };
    enum mp_status status = MP_ERR_UNSUPPORTED;

    for (size_t i = 0; status != MP_OK && i < MP_ARRAY_LEN(names); i++) {
        unload(gemm);
        status = start_one(gemm, names[i]);
        if (status == MP_OK || gemm->library == NULL)
            continue;
        mp_log_info("cuda", "%s: %s", names[i], mp_error_last()->text);
        if (refused.status == MP_OK)
            refused = *mp_error_last();
    }
    if (status == MP_OK || refused.status == MP_OK)
        return status;
    mp_error_set(&refused);
    return refused.status;
}

/* What AUTO does about cuBLAS that does not work. No product was made, so the streams are idle. */
static void do_without(struct mp_gemm *gemm)
{
    while (gemm->stream_count > 0)
        stream_close(gemm, &gemm->streams[--gemm->stream_count]);
    gemm->tokens_min = UINT32_MAX;
    snprintf(gemm->name, sizeof(gemm->name), "own");
}

enum mp_status mp_gemm_forgive(struct mp_gemm *gemm, enum mp_status status)
{
    if (status == MP_OK || gemm->choice != MP_GEMM_AUTO)
        return status;
    mp_log_info("cuda", "%s; own kernels multiply instead", mp_error_last()->text);
    mp_error_clear();
    do_without(gemm);
    return MP_OK;
}

enum mp_status mp_gemm_open(struct mp_gpu *gpu, enum mp_gemm_choice choice, uint64_t x_count_max,
                            struct mp_gemm **gemm_p)
{
    struct mp_gemm *gemm = calloc(1, sizeof(*gemm));
    enum mp_status status = MP_OK;

    if (gemm == NULL)
        return mp_fail_no_memory("products on a device", sizeof(*gemm));
    gemm->gpu = gpu;
    gemm->choice = choice;
    gemm->x_count_max = x_count_max;
    gemm->tokens_min = choice == MP_GEMM_CUBLAS ? TOKENS_FEW + 1 : TOKENS_MANY;
    pthread_mutex_init(&gemm->lock, NULL);
    if (choice == MP_GEMM_AUTO || choice == MP_GEMM_CUBLAS)
        status = mp_gemm_forgive(gemm, start(gemm));
    else
        do_without(gemm);
    if (choice == MP_GEMM_TENSOR) {
        snprintf(gemm->name, sizeof(gemm->name), "tensor");
        status = mp_gpu_load_tensor(gpu);
    }
    if (status != MP_OK) {
        mp_gemm_close(gemm);
        return status;
    }
    *gemm_p = gemm;
    return MP_OK;
}

enum mp_status mp_gemm_use(struct mp_gemm *gemm, mp_cu_stream stream)
{
    struct stream_state *state;

    return gemm->tokens_min == UINT32_MAX ? MP_OK
                                          : mp_gemm_forgive(gemm, get_stream(gemm, stream, &state));
}

bool mp_gemm_is_there(enum mp_gemm_choice choice)
{
    struct mp_gemm gemm = { .library = NULL };
    bool found = choice == MP_GEMM_CUBLAS;

    if (choice == MP_GEMM_AUTO) {
        for (size_t i = 0; !found && i < MP_ARRAY_LEN(names); i++) {
            found = load(&gemm, names[i]) == MP_OK;
            unload(&gemm);
        }
    }
    mp_error_clear();
    return found;
}

uint64_t mp_gemm_bytes(uint64_t x_count_max)
{
    return WORKSPACE_BYTES + x_count_max * sizeof(uint16_t);
}

void mp_gemm_close(struct mp_gemm *gemm)
{
    if (gemm == NULL)
        return;
    for (unsigned i = 0; i < gemm->stream_count; i++)
        stream_close(gemm, &gemm->streams[i]);
    unload(gemm);
    pthread_mutex_destroy(&gemm->lock);
    free(gemm);
}

uint32_t mp_gemm_tokens_min(const struct mp_gemm *gemm)
{
    return gemm->tokens_min;
}

bool mp_gemm_takes(uint32_t type)
{
    return cublas_types[type].known;
}

bool mp_gemm_uses_tensor(const struct mp_gemm *gemm, uint32_t type, uint32_t tokens)
{
    return gemm->choice == MP_GEMM_TENSOR && tokens > TOKENS_FEW &&
           mp_cuda_type(type)->tensor != MP_CUDA_KERNEL_COUNT;
}

const char *mp_gemm_name(const struct mp_gemm *gemm)
{
    return gemm->name;
}

static enum mp_status run_cublas(struct mp_gemm *gemm, const struct stream_state *state,
                                 const struct mp_cuda_matmul *p)
{
    const struct mp_cuda_type *type = mp_cuda_type(p->type);
    const float one = 1, beta = p->accumulate ? 1 : 0;
    const bool rounds = type->round != MP_CUDA_KERNEL_COUNT;
    const struct mp_cuda_round round = {
        .x = p->x, .to = state->x, .width = p->cols, .tokens = p->tokens, .x_stride = p->x_stride
    };
    enum mp_status status = mp_gpu_enter(gemm->gpu);

    if (status == MP_OK && rounds)
        status = mp_gpu_launch(gemm->gpu, state->stream, type->round, &round);
    if (status != MP_OK)
        return status;
    mp_gpu_chain_cut(gemm->gpu, state->stream);
    return check(gemm,
                 gemm->call.gemm(state->handle, OP_T, OP_N, (int)p->rows, (int)p->tokens,
                                 (int)p->cols, &one, (const void *)(uintptr_t)p->w,
                                 cublas_types[p->type].name, (int)p->w_stride,
                                 (const void *)(uintptr_t)(rounds ? state->x : p->x),
                                 cublas_types[p->type].name, (int)(rounds ? p->cols : p->x_stride),
                                 &beta, (void *)(uintptr_t)p->y, TYPE_F32, (int)p->y_stride,
                                 COMPUTE_F32, ALGORITHM_DEFAULT),
                 "cublasGemmEx");
}

static enum mp_cuda_kernel kernel_for(const struct mp_gemm *gemm, const struct mp_cuda_matmul *p)
{
    if (p->tokens <= TOKENS_FEW)
        return mp_cuda_gemv(p->type, p->tokens);
    return mp_gemm_uses_tensor(gemm, p->type, p->tokens) ? mp_cuda_type(p->type)->tensor
                                                         : mp_cuda_type(p->type)->gemm;
}

enum mp_status mp_gemm_matmul(struct mp_gemm *gemm, mp_cu_stream stream,
                              const struct mp_cuda_matmul *params)
{
    struct stream_state *state = NULL;
    enum mp_status status = MP_OK;

    /* cuBLAS adds no bias; its numbers are ints; empty products are ours. */
    if (params->tokens >= gemm->tokens_min && mp_gemm_takes(params->type) && params->bias == 0 &&
        params->rows > 0 && params->cols > 0 &&
        (uint64_t)params->tokens * params->cols <= gemm->x_count_max)
        status = get_stream(gemm, stream, &state);
    if (status != MP_OK)
        return status;
    if (state != NULL)
        return run_cublas(gemm, state, params);
    return mp_gpu_launch(gemm->gpu, stream, kernel_for(gemm, params), params);
}
