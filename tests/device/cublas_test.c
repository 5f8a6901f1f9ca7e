/*
 * Products on a device by the kernels or by cuBLAS: the driver without a device runs the kernels,
 * and in the variant "good" tests/device/fakecublas stands for cuBLAS. Variant "none": there is no
 * cuBLAS, or one that refuses to run on this driver; "older": there is an older one beside it.
 */
#include <math.h>

#include "engine/gpu/cublas.h"
#include "kernels/cpu/kernels.h"
#include "tests/device/fakecublas/client.h"
#include "tests/device/fakecuda/client.h"
#include "tests/support/log_guard.h"
#include "tests/support/test.h"
#include "vmm/base/error.h"

#define ROWS 37u
#define COLS 72u
#define TOKENS 40u
#define X_COUNT (TOKENS * COLS)

static struct {
    struct mp_gpu *gpu;
    struct mp_gemm *gemm;
    mp_cu_stream stream;
    mp_cu_ptr w, x, y, bias;
    char *here; /* pinned */
} t;

static enum mp_wtype type_now;

/* w, x and y stand one after the other in pinned memory. */
static void *here_w(void)
{
    return t.here;
}

static float *here_x(void)
{
    return (float *)(t.here + ROWS * COLS * 4);
}

static float *here_y(void)
{
    return here_x() + X_COUNT;
}

static uint32_t random_u32(void)
{
    static uint64_t state = 7;

    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

static void fill(enum mp_wtype type)
{
    type_now = type;
    for (uint32_t i = 0; i < ROWS * COLS; i++) {
        const float f = (float)(int32_t)random_u32() * 0x1p-31f;
        uint32_t bits;

        memcpy(&bits, &f, sizeof(bits));
        if (type == MP_WTYPE_F32)
            ((uint32_t *)here_w())[i] = bits;
        else if (type == MP_WTYPE_BF16)
            ((uint16_t *)here_w())[i] = (uint16_t)(bits >> 16);
        else
            ((uint16_t *)here_w())[i] =
                (uint16_t)((random_u32() & 0x83ff) | (random_u32() % 15) << 10);
    }
    for (uint32_t i = 0; i < X_COUNT; i++)
        here_x()[i] = (float)(int32_t)random_u32() * 0x1p-31f;
    for (uint32_t i = 0; i < TOKENS * ROWS; i++)
        here_y()[i] = (float)i;
}

static void open_all(enum mp_gemm_choice choice, uint64_t x_count_max)
{
    const uint64_t w_bytes = ROWS * COLS * 4, x_bytes = X_COUNT * 4, y_bytes = TOKENS * ROWS * 4;

    memset(&t, 0, sizeof(t));
    CHECK_EQ(mp_gpu_open(0, &t.gpu), MP_OK);
    CHECK_EQ(mp_gpu_stream_open(t.gpu, &t.stream), MP_OK);
    CHECK_EQ(mp_gpu_alloc(t.gpu, w_bytes, "w", &t.w), MP_OK);
    CHECK_EQ(mp_gpu_alloc(t.gpu, x_bytes, "x", &t.x), MP_OK);
    CHECK_EQ(mp_gpu_alloc(t.gpu, y_bytes, "y", &t.y), MP_OK);
    CHECK_EQ(mp_gpu_alloc(t.gpu, ROWS * 4, "bias", &t.bias), MP_OK);
    CHECK_EQ(mp_gpu_alloc_host(t.gpu, w_bytes + x_bytes + y_bytes, "here", (void **)&t.here),
             MP_OK);
    CHECK_EQ(mp_gemm_open(t.gpu, choice, x_count_max, &t.gemm), MP_OK);
}

static void close_all(void)
{
    CHECK_EQ(mp_gpu_finish(t.gpu, t.stream), MP_OK);
    mp_gemm_close(t.gemm);
    mp_gpu_free_host(t.gpu, t.here);
    mp_gpu_free(t.gpu, t.w);
    mp_gpu_free(t.gpu, t.x);
    mp_gpu_free(t.gpu, t.y);
    mp_gpu_free(t.gpu, t.bias);
    mp_gpu_stream_close(t.gpu, t.stream);
    mp_gpu_close(t.gpu);
}

static enum mp_status multiply(uint32_t tokens, uint64_t bias, uint32_t accumulate)
{
    const struct mp_cuda_matmul p = { .w = t.w,
                                      .x = t.x,
                                      .y = t.y,
                                      .bias = bias,
                                      .type = type_now,
                                      .rows = ROWS,
                                      .cols = COLS,
                                      .tokens = tokens,
                                      .w_stride = COLS,
                                      .x_stride = COLS,
                                      .y_stride = ROWS,
                                      .accumulate = accumulate };
    const uint64_t y_bytes = TOKENS * ROWS * 4;
    enum mp_status status;

    CHECK_EQ(mp_gpu_upload(t.gpu, t.stream, t.w, here_w(), mp_wtype_bytes(type_now, ROWS * COLS)),
             MP_OK);
    CHECK_EQ(mp_gpu_upload(t.gpu, t.stream, t.x, here_x(), X_COUNT * 4), MP_OK);
    CHECK_EQ(mp_gpu_upload(t.gpu, t.stream, t.y, here_y(), y_bytes), MP_OK);
    status = mp_gemm_matmul(t.gemm, t.stream, &p);
    CHECK_EQ(mp_gpu_download(t.gpu, t.stream, here_y(), t.y, y_bytes), MP_OK);
    CHECK_EQ(mp_gpu_finish(t.gpu, t.stream), MP_OK);
    return status;
}

/* The most that an element is off, as a part of its sum of magnitudes. */
static double error_of(uint32_t tokens, uint32_t accumulate)
{
    float w[ROWS * COLS];
    double worst = 0;

    mp_kernels_ref.convert(w, here_w(), type_now, ROWS * COLS);
    for (uint32_t i = 0; i < tokens * ROWS; i++) {
        double sum = accumulate ? (double)i : 0, magnitude = 0, off;

        for (uint32_t c = 0; c < COLS; c++) {
            const double a = (double)w[i % ROWS * COLS + c] * (double)here_x()[i / ROWS * COLS + c];

            sum += a;
            magnitude += fabs(a);
        }
        off = fabs((double)here_y()[i] - sum) - (accumulate ? 1e-3 : 0); /* i + sum rounds */
        worst = off / magnitude > worst ? off / magnitude : worst;
    }
    return worst;
}

static void few_tokens_are_the_kernels_work(void)
{
    for (int type = 0; type < MP_WTYPE_PLAIN_COUNT; type++) {
        open_all(MP_GEMM_AUTO, X_COUNT);
        for (uint32_t tokens = 1; tokens <= 31; tokens += 6) {
            fill((enum mp_wtype)type);
            CHECK_EQ(multiply(tokens, 0, 0), MP_OK);
            CHECK(error_of(tokens, 0) < 1e-6);
        }
        close_all();
    }
}

/* AUTO takes it from 32 tokens on, CUBLAS for more than 8; 8 streams may have it. */
static void from_so_many_tokens_and_for_so_many_streams(void)
{
    mp_cu_stream streams[9];

    open_all(MP_GEMM_OWN, X_COUNT);
    CHECK_EQ(mp_gemm_tokens_min(t.gemm), UINT32_MAX);
    close_all();
    open_all(MP_GEMM_AUTO, X_COUNT);
    CHECK_EQ(mp_gemm_tokens_min(t.gemm), 32);
    close_all();
    open_all(MP_GEMM_CUBLAS, X_COUNT);
    CHECK_EQ(mp_gemm_tokens_min(t.gemm), 9);
    for (unsigned i = 0; i < 9; i++) {
        CHECK_EQ(mp_gpu_stream_open(t.gpu, &streams[i]), MP_OK);
        fake_api.reset();
        CHECK_EQ(mp_gemm_use(t.gemm, streams[i]), MP_OK);
        CHECK_EQ(fake_api.calls("cuMemAlloc_v2") > 0, i < 8);
    }
    mp_gemm_close(t.gemm);
    t.gemm = NULL;
    for (unsigned i = 0; i < 9; i++)
        mp_gpu_stream_close(t.gpu, streams[i]);
    close_all();
}

static void many_tokens_are_rounded(void)
{
    static const double limits[] = { 1e-6, 0x1p-9 + 1e-6, 0x1p-11 + 1e-6 };

    for (int type = 0; type < MP_WTYPE_PLAIN_COUNT; type++) {
        open_all(MP_GEMM_AUTO, X_COUNT);
        CHECK_STR(mp_gemm_name(t.gemm), "cuBLAS 13.0.0");
        for (uint32_t accumulate = 0; accumulate < 2; accumulate++) {
            fill((enum mp_wtype)type);
            CHECK_EQ(multiply(TOKENS, 0, accumulate), MP_OK);
            CHECK(error_of(TOKENS, accumulate) < limits[type]);
            if (accumulate == 0 && type != MP_WTYPE_F32)
                CHECK(error_of(TOKENS, 0) > limits[type] / 64); /* so it was cuBLAS */
        }
        close_all();
    }
}

static void a_bias_or_too_much_stays_with_the_kernels(void)
{
    open_all(MP_GEMM_CUBLAS, X_COUNT - 1);
    fill(MP_WTYPE_BF16);
    CHECK_EQ(multiply(TOKENS, 0, 0), MP_OK);
    CHECK(error_of(TOKENS, 0) < 1e-6);
    fill(MP_WTYPE_BF16);
    CHECK_EQ(multiply(TOKENS - 1, t.bias, 0), MP_OK); /* zeros */
    CHECK(error_of(TOKENS - 1, 0) < 1e-6);
    fill(MP_WTYPE_BF16);
    CHECK_EQ(multiply(9, 0, 0), MP_OK);
    CHECK(error_of(9, 0) > 1e-5);
    close_all();
}

static void own_never_looks_for_it(void)
{
    open_all(MP_GEMM_OWN, X_COUNT);
    CHECK_STR(mp_gemm_name(t.gemm), "own");
    fill(MP_WTYPE_BF16);
    CHECK_EQ(multiply(TOKENS, 0, 0), MP_OK);
    CHECK(error_of(TOKENS, 0) < 1e-6);
    close_all();
}

static void plan(const char *name, int result)
{
    (void)fake_cublas_fail(name, 0, result);
}

static void every_call_fails_once(void)
{
    static const char *const at_start[] = { "cublasCreate", "cublasSetStream", "cublasSetWorkspace",
                                            "cublasGetVersion" };
    struct mp_gemm *gemm = NULL;

    open_all(MP_GEMM_CUBLAS, X_COUNT);
    for (size_t i = 0; i < sizeof(at_start) / sizeof(at_start[0]); i++) {
        plan(at_start[i], 13);
        CHECK_EQ(mp_gemm_open(t.gpu, MP_GEMM_CUBLAS, X_COUNT, &gemm), MP_ERR_DEVICE);
        CHECK_STR(mp_error_last()->code, "E_CUBLAS");
        CHECK(strstr(mp_error_last()->text, at_start[i]) != NULL);
        CHECK(strstr(mp_error_last()->text, "failed to launch (13)") != NULL);
        plan(at_start[i], 3);
        CHECK_EQ(mp_gemm_open(t.gpu, MP_GEMM_CUBLAS, X_COUNT, &gemm), MP_ERR_NO_SPACE);
        plan(at_start[i], 1);
        CHECK_EQ(mp_gemm_open(t.gpu, MP_GEMM_AUTO, X_COUNT, &gemm), MP_OK); /* and does without */
        CHECK_STR(mp_gemm_name(gemm), "own");
        mp_gemm_close(gemm);
    }
    fill(MP_WTYPE_F16);
    plan("cublasGemmEx", 13);
    CHECK_EQ(multiply(TOKENS, 0, 0), MP_ERR_DEVICE);
    CHECK_STR(mp_error_last()->code, "E_CUBLAS");
    fill(MP_WTYPE_F16);
    CHECK_EQ(multiply(TOKENS, 0, 0), MP_OK); /* the next one works */
    CHECK(error_of(TOKENS, 0) < 0x1p-11);
    close_all();
}

/* A new library may want a newer driver than the one that is here. */
static void where_the_newest_refuses_the_older_one_multiplies(void)
{
    static const int results[] = { 1, 8, 13 };
    struct mp_gemm *gemm = NULL;

    for (size_t i = 0; i < sizeof(results) / sizeof(results[0]); i++) {
        plan("cublasCreate", results[i]);
        open_all(i % 2 == 0 ? MP_GEMM_CUBLAS : MP_GEMM_AUTO, X_COUNT);
        CHECK_STR(mp_gemm_name(t.gemm), "cuBLAS 12.0.0");
        fill(MP_WTYPE_F16);
        CHECK_EQ(multiply(TOKENS, 0, 0), MP_OK);
        CHECK(error_of(TOKENS, 0) < 0x1p-11);
        CHECK_EQ(mp_gemm_open(t.gpu, MP_GEMM_CUBLAS, X_COUNT, &gemm), MP_OK);
        CHECK_STR(mp_gemm_name(gemm), "cuBLAS 13.0.0"); /* it refused once */
        mp_gemm_close(gemm);
        close_all();
    }
}

/* Both refuse: the error is that of the newest, and says so. */
static void where_both_refuse_the_newest_is_reported(void)
{
    struct mp_gemm *gemm = NULL;

    open_all(MP_GEMM_OWN, X_COUNT);
    fake_api.fail("cuModuleLoadDataEx", 0, 2, true); /* no handle of the older one */
    plan("cublasCreate", 13);
    CHECK_EQ(mp_gemm_open(t.gpu, MP_GEMM_CUBLAS, X_COUNT, &gemm), MP_ERR_DEVICE);
    CHECK(strstr(mp_error_last()->text, "cublasCreate: ") != NULL);
    CHECK(strstr(mp_error_last()->text, "(13)") != NULL);
    fake_api.fail("cuModuleLoadDataEx", UINT64_MAX, 0, false);
    close_all();
}

/* The first products of a stream allocate nothing any more; without room AUTO does without. */
static void a_stream_is_made_ready_before(void)
{
    uint64_t made;

    open_all(MP_GEMM_CUBLAS, X_COUNT);
    fake_api.fail("cuMemAlloc_v2", 0, MP_CU_ERROR_OUT_OF_MEMORY, false);
    CHECK_EQ(mp_gemm_use(t.gemm, t.stream), MP_ERR_NO_SPACE);
    CHECK_EQ(mp_gemm_use(t.gemm, t.stream), MP_OK);
    made = fake_api.calls("cuMemAlloc_v2");
    fill(MP_WTYPE_BF16);
    CHECK_EQ(multiply(TOKENS, 0, 0), MP_OK);
    CHECK_EQ(fake_api.calls("cuMemAlloc_v2"), made);
    close_all();

    open_all(MP_GEMM_AUTO, X_COUNT);
    CHECK(strcmp(mp_gemm_name(t.gemm), "own") != 0);
    fake_api.fail("cuMemAlloc_v2", 0, MP_CU_ERROR_OUT_OF_MEMORY, false);
    CHECK_EQ(mp_gemm_use(t.gemm, t.stream), MP_OK);
    CHECK_STR(mp_gemm_name(t.gemm), "own");
    CHECK_EQ(mp_gemm_tokens_min(t.gemm), UINT32_MAX);
    fill(MP_WTYPE_BF16);
    CHECK_EQ(multiply(TOKENS, 0, 0), MP_OK);
    CHECK(error_of(TOKENS, 0) < 1e-6);
    close_all();

    CHECK(!mp_gemm_is_there(MP_GEMM_OWN));
    CHECK(mp_gemm_is_there(MP_GEMM_AUTO) && mp_gemm_is_there(MP_GEMM_CUBLAS));
    CHECK(mp_gemm_bytes(X_COUNT) > (32u << 20));
}

static void every_call_of_the_driver_fails_once(void)
{
    static const char *const calls[] = { "cuMemAlloc_v2", "cuLaunchKernel", "cuCtxSetCurrent",
                                         "cuCtxGetCurrent" };

    open_all(MP_GEMM_CUBLAS, X_COUNT);
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        for (uint64_t nth = 0; nth < 3; nth++) {
            const struct mp_cuda_matmul p = { .w = t.w,
                                              .x = t.x,
                                              .y = t.y,
                                              .type = MP_WTYPE_BF16,
                                              .rows = ROWS,
                                              .cols = COLS,
                                              .tokens = TOKENS,
                                              .w_stride = COLS,
                                              .x_stride = COLS,
                                              .y_stride = ROWS };
            enum mp_status status;
            mp_cu_stream stream;

            CHECK_EQ(mp_gpu_stream_open(t.gpu, &stream), MP_OK);
            fake_api.fail(calls[i], nth, 2, false);
            status = mp_gemm_matmul(t.gemm, stream, &p); /* also opens the handle of a new stream */
            fake_api.fail(calls[i], UINT64_MAX, 0, false);
            CHECK(status == MP_OK || status == MP_ERR_NO_SPACE || status == MP_ERR_DEVICE);
            CHECK_EQ(mp_gpu_finish(t.gpu, stream), MP_OK);
            if (status != MP_OK)
                mp_error_clear();
        }
    }
    close_all();
}

static void without_it_auto_uses_the_kernels(void)
{
    struct mp_gemm *gemm = NULL;
    enum mp_status status;

    open_all(MP_GEMM_AUTO, X_COUNT);
    CHECK_STR(mp_gemm_name(t.gemm), "own");
    fill(MP_WTYPE_BF16);
    CHECK_EQ(multiply(TOKENS, 0, 0), MP_OK);
    CHECK(error_of(TOKENS, 0) < 1e-6);
    status = mp_gemm_open(t.gpu, MP_GEMM_CUBLAS, X_COUNT, &gemm);
    CHECK(status == MP_ERR_UNSUPPORTED || status == MP_ERR_DEVICE);
    CHECK(strncmp(mp_error_last()->code, "E_CUBLAS", 8) == 0);
    CHECK(gemm == NULL);
    mp_gemm_close(NULL);
    close_all();

    /* A real one may be installed, which refuses the driver that is here. */
    CHECK_EQ(mp_gemm_is_there(MP_GEMM_AUTO), dlopen("libcublas.so.13", RTLD_LAZY) != NULL ||
                                                 dlopen("libcublas.so.12", RTLD_LAZY) != NULL);
    CHECK(mp_error_last()->status == MP_OK);
    CHECK(mp_gemm_is_there(MP_GEMM_CUBLAS)); /* the start will say that it is not */
}

int main(int argc, char **argv)
{
    const char *variant = argc > 1 ? argv[1] : "";

    setenv("FAKECUDA_MEMORY", "536870912", 1); /* room for the workspaces of eight streams */
    find_fake();
    if (strcmp(variant, "none") == 0) {
        RUN(without_it_auto_uses_the_kernels);
        return 0;
    }
    if (strcmp(variant, "older") == 0) {
        RUN(where_the_newest_refuses_the_older_one_multiplies);
        RUN(where_both_refuse_the_newest_is_reported);
        return 0;
    }
    RUN(few_tokens_are_the_kernels_work);
    RUN(from_so_many_tokens_and_for_so_many_streams);
    RUN(many_tokens_are_rounded);
    RUN(a_bias_or_too_much_stays_with_the_kernels);
    RUN(own_never_looks_for_it);
    RUN(every_call_fails_once);
    RUN(a_stream_is_made_ready_before);
    RUN(every_call_of_the_driver_fails_once);
    return 0;
}
