/* What check_kernels compares with; see check.h. */
#include "tools/gpu/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/device/fakecuda/simt.h"
#include "vmm/base/error.h"

#define OPERANDS_MAX 24
#define GUARD_BYTES 64 /* behind each operand: must stay */
#define TOLERANCE 2e-5 /* of check_near() */
#define RUBBISH 0xA5   /* as floats: small finite numbers */

struct operand {
    char *here;
    mp_cu_ptr there;
    size_t bytes; /* without the guard */
    bool table;
};

struct check {
    struct mp_gpu *gpu;
    mp_cu_stream stream;
    mp_cu_event start, end;
    struct operand operands[OPERANDS_MAX];
    size_t count;
    char *pinned;
    size_t pinned_bytes;
    uint64_t random;
    const char *only;
    bool tensor;
    unsigned cases[MP_CUDA_KERNEL_COUNT], wrong[MP_CUDA_KERNEL_COUNT];
    double worst[MP_CUDA_KERNEL_COUNT];
    double used[MP_CUDA_KERNEL_COUNT]; /* of the tolerance, where there is one */
};

static bool is_wanted(const struct check *check, enum mp_cuda_kernel kernel)
{
    return check->only == NULL || strcmp(check->only, mp_cuda_kernel_name(kernel)) == 0;
}

static void need(const struct check *check, enum mp_status status)
{
    if (status == MP_OK)
        return;
    fprintf(stderr, "check_kernels: %s\n", mp_error_last()->text);
    if (check != NULL)
        (void)check_report((struct check *)check);
    exit(1);
}

bool check_wants_type(const struct check *check, unsigned type)
{
    const struct mp_cuda_type *of = mp_cuda_type(type);

    for (unsigned k = of->first; k < of->end; k++) {
        if (is_wanted(check, (enum mp_cuda_kernel)k))
            return true;
    }
    return is_wanted(check, of->tensor) || is_wanted(check, of->tensor_up) ||
           is_wanted(check, of->tensor_down);
}

enum mp_status check_open(unsigned ordinal, const char *only, struct check **check_p)
{
    struct check *check = calloc(1, sizeof(*check));
    enum mp_status status;

    if (check == NULL)
        return mp_fail_no_memory("the check", sizeof(*check));
    check->random = 1;
    check->only = only;
    status = mp_gpu_open(ordinal, &check->gpu);
    if (status == MP_OK)
        status = mp_gpu_stream_open(check->gpu, &check->stream);
    if (status == MP_OK)
        status = mp_gpu_event_open(check->gpu, true, &check->start);
    if (status == MP_OK)
        status = mp_gpu_event_open(check->gpu, true, &check->end);
    if (status != MP_OK) {
        check_close(check);
        return status;
    }
    status = mp_gpu_load_tensor(check->gpu);
    check->tensor = status == MP_OK;
    if (!check->tensor)
        printf("no kernels for tensor cores: %s\n", mp_error_last()->text);
    if (!check->tensor && status != MP_ERR_UNSUPPORTED)
        check_case(check, MP_CUDA_TENSOR_FIRST, false, "they cannot be loaded");
        /* With their kernels for tensor cores, if the device has them. */
#define X(TYPE, name) need(check, mp_gpu_load_type(check->gpu, MP_WTYPE_##TYPE));
    MP_CUDA_QUANT_MAP(X)
#undef X
    *check_p = check;
    return MP_OK;
}

bool check_tensor(const struct check *check)
{
    return check->tensor;
}

void check_close(struct check *check)
{
    if (check == NULL)
        return;
    if (check->gpu != NULL) {
        check_end(check);
        mp_gpu_free_host(check->gpu, check->pinned);
        mp_gpu_event_close(check->gpu, check->start);
        mp_gpu_event_close(check->gpu, check->end);
        mp_gpu_stream_close(check->gpu, check->stream);
    }
    mp_gpu_close(check->gpu);
    free(check);
}

bool check_report(struct check *check)
{
    unsigned cases = 0, wrong = 0, none = 0;

    for (unsigned k = 0; k < MP_CUDA_KERNEL_COUNT; k++) {
        printf("%-20s %4u cases, %u wrong", mp_cuda_kernel_name((enum mp_cuda_kernel)k),
               check->cases[k], check->wrong[k]);
        if (check->wrong[k] > 0 && check->worst[k] != 0)
            printf(", off by %.3g of the largest", check->worst[k]);
        if (check->used[k] > 0)
            printf(", %.3g of the tolerance", check->used[k]);
        printf("\n");
        cases += check->cases[k];
        wrong += check->wrong[k];
        none += check->cases[k] == 0 && is_wanted(check, (enum mp_cuda_kernel)k) &&
                (k < MP_CUDA_TENSOR_FIRST || check->tensor);
    }
    if (none > 0)
        printf("%u kernels were never launched\n", none);
    printf("%u cases, %u wrong\n", cases, wrong);
    fflush(stdout);
    return wrong == 0 && none == 0;
}

/* ---- operands */

uint32_t check_random(struct check *check)
{
    check->random = check->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(check->random >> 32);
}

void *check_space(struct check *check, size_t bytes)
{
    struct operand *o = &check->operands[check->count];

    if (check->count == OPERANDS_MAX) {
        fprintf(stderr, "check_kernels: more than %u operands\n", OPERANDS_MAX);
        exit(1);
    }
    o->bytes = (bytes + 15) / 16 * 16;
    o->table = false;
    o->here = aligned_alloc(256, (o->bytes + GUARD_BYTES + 255) / 256 * 256);
    if (o->here == NULL)
        need(check, mp_fail_no_memory("an operand", o->bytes));
    memset(o->here, RUBBISH, o->bytes + GUARD_BYTES);
    need(check, mp_gpu_alloc(check->gpu, o->bytes + GUARD_BYTES, "an operand", &o->there));
    check->count++;
    return o->here;
}

void check_end(struct check *check)
{
    while (check->count > 0) {
        struct operand *o = &check->operands[--check->count];

        mp_gpu_free(check->gpu, o->there);
        free(o->here);
    }
}

float *check_floats(struct check *check, size_t count)
{
    float *x = check_space(check, count * sizeof(float));

    for (size_t i = 0; i < count; i++)
        x[i] = (float)((double)(check_random(check) >> 1) / (double)(UINT64_C(1) << 30) - 1);
    return x;
}

void *check_copy(struct check *check, const void *data, size_t bytes)
{
    void *to = check_space(check, bytes);

    memcpy(to, data, bytes);
    return to;
}

void *check_table(struct check *check, const void *data, size_t bytes)
{
    void *to = check_copy(check, data, bytes);

    check->operands[check->count - 1].table = true;
    return to;
}

/* The scales of a block, which are random bytes, become about 1/64. */
static void tame_scales(unsigned char *block, enum mp_wtype type)
{
    const size_t at = type == MP_WTYPE_Q2_K   ? 80
                      : type == MP_WTYPE_Q3_K ? 108
                      : type == MP_WTYPE_Q6_K ? 208
                                              : 0;

    if (type == MP_WTYPE_MXFP4) {
        block[0] = (unsigned char)(120 + block[0] % 4);
        return;
    }
    block[at + 1] = (unsigned char)((block[at + 1] & 0x83) | 0x24);
    if (type == MP_WTYPE_Q4_1 || type == MP_WTYPE_Q5_1 || type == MP_WTYPE_Q2_K ||
        type == MP_WTYPE_Q4_K || type == MP_WTYPE_Q5_K)
        block[at + 3] = (unsigned char)((block[at + 3] & 0x83) | 0x24);
}

static void fill_blocks(struct check *check, unsigned char *to, enum mp_wtype type, size_t count)
{
    const struct mp_wtype_info *info = mp_wtype_info(type);

    for (size_t b = 0; b < count / info->block_elements; b++, to += info->block_bytes) {
        for (size_t i = 0; i < info->block_bytes; i++)
            to[i] = (unsigned char)(check_random(check) >> 24);
        tame_scales(to, type);
    }
}

/* Bits that are a finite number in every type. */
static void fill_numbers(struct check *check, char *to, enum mp_wtype type, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const uint32_t random = check_random(check);
        const float f = ((float)(random >> 8) / 8388608.0f - 1) * 0.25f;
        uint32_t bits;
        uint16_t half;

        memcpy(&bits, &f, sizeof(bits));
        half = (uint16_t)(type == MP_WTYPE_F16 ? (random & 0x83ff) | (random >> 16) % 13 << 10
                                               : bits >> 16);
        if (type == MP_WTYPE_F32)
            memcpy(to + i * 4, &f, 4);
        else
            memcpy(to + i * 2, &half, 2);
    }
}

void *check_shifted(struct check *check, enum mp_wtype type, size_t count, size_t shift)
{
    char *to = (char *)check_space(check, mp_wtype_bytes(type, count) + shift) + shift;

    if (type < MP_WTYPE_PLAIN_COUNT)
        fill_numbers(check, to, type, count);
    else
        fill_blocks(check, (unsigned char *)to, type, count);
    return to;
}

void *check_weights(struct check *check, enum mp_wtype type, size_t count)
{
    return check_shifted(check, type, count, 0);
}

/* ---- both sides */

/* Words of [data, data + bytes) that are addresses of operands become those of the device. */
static void translate(const struct check *check, void *data, size_t bytes)
{
    for (size_t at = 0; at + 8 <= bytes; at += 8) {
        uint64_t word;

        memcpy(&word, (char *)data + at, 8);
        for (size_t i = 0; i < check->count; i++) {
            const struct operand *o = &check->operands[i];

            if (word >= check_at(o->here) && word < check_at(o->here) + o->bytes) {
                word = word - check_at(o->here) + o->there;
                memcpy((char *)data + at, &word, 8);
                break;
            }
        }
    }
}

static void have_pinned(struct check *check, size_t bytes)
{
    void *pinned;

    if (bytes <= check->pinned_bytes)
        return;
    mp_gpu_free_host(check->gpu, check->pinned);
    check->pinned = NULL;
    need(check, mp_gpu_alloc_host(check->gpu, bytes, "operands", &pinned));
    check->pinned = pinned;
    check->pinned_bytes = bytes;
}

static void upload(struct check *check, const struct operand *o)
{
    const size_t bytes = o->bytes + GUARD_BYTES;

    have_pinned(check, bytes);
    memcpy(check->pinned, o->here, bytes);
    if (o->table)
        translate(check, check->pinned, o->bytes);
    need(check, mp_gpu_upload(check->gpu, check->stream, o->there, check->pinned, bytes));
    need(check, mp_gpu_finish(check->gpu, check->stream));
}

static void run_there(struct check *check, enum mp_cuda_kernel kernel, const void *params)
{
    uint64_t copy[32];
    const uint32_t bytes = mp_cuda_kernel_bytes(kernel);

    memcpy(copy, params, bytes);
    translate(check, copy, bytes);
    need(check, mp_gpu_launch(check->gpu, check->stream, kernel, copy));
}

void check_here(const struct check *check, enum mp_cuda_kernel kernel, const void *params)
{
    const struct mp_cuda_grid grid = mp_cuda_kernel_grid(kernel, params);
    const struct mp_simt_kernel *k = mp_simt_find(mp_cuda_kernel_name(kernel));
    const char *error = grid.x == 0
                            ? NULL
                            : k->run(params, (struct mp_simt_dim){ grid.x, grid.y, grid.z },
                                     (struct mp_simt_dim){ grid.threads, 1, 1 }, grid.shared_bytes);

    if (error != NULL)
        need(check, mp_fail(MP_ERR_INVALID, "E_INTERNAL", "%s on the CPU: %s", k->name, error));
}

/* Largest difference of words as floats, relative to the largest of `want`. */
static double difference(const char *got, const char *want, size_t bytes)
{
    double largest = 1e-30, off = 0;

    for (size_t i = 0; i + 4 <= bytes; i += 4) {
        float g, w;

        memcpy(&g, got + i, 4);
        memcpy(&w, want + i, 4);
        largest = fabs((double)w) > largest ? fabs((double)w) : largest;
        off = fabs((double)g - (double)w) > off || isnan(g) != isnan(w)
                  ? fabs((double)g - (double)w)
                  : off;
    }
    return off / largest;
}

/* Is what the device holds, which is in `pinned`, what the host holds? */
static bool is_equal(struct check *check, enum mp_cuda_kernel kernel, const struct operand *o,
                     const char *what)
{
    const size_t bytes = o->bytes + GUARD_BYTES;
    size_t at = 0;
    double off;

    if (memcmp(check->pinned, o->here, bytes) == 0)
        return true;
    while (check->pinned[at] == o->here[at])
        at++;
    off = difference(check->pinned, o->here, o->bytes);
    check->worst[kernel] = off > check->worst[kernel] || isnan(off) ? off : check->worst[kernel];
    printf("  WRONG %s, %s: operand %zu differs from byte %zu of %zu on, off by %.3g of the "
           "largest\n",
           mp_cuda_kernel_name(kernel), what, (size_t)(o - check->operands), at, o->bytes, off);
    return false;
}

void check_case(struct check *check, enum mp_cuda_kernel kernel, bool good, const char *what)
{
    if (!is_wanted(check, kernel))
        return;
    check->cases[kernel]++;
    check->wrong[kernel] += !good;
    if (!good)
        printf("  WRONG %s, %s\n", mp_cuda_kernel_name(kernel), what);
    fflush(stdout);
}

/* Whether floats of the operand in `pinned` are as far off as they may be at most. They become what
 * the host has, so that the rest can be compared byte by byte. */
static bool are_within(struct check *check, enum mp_cuda_kernel kernel, const struct operand *o,
                       const double *want, const double *limit, const char *what)
{
    size_t wrong = 0;

    for (size_t i = 0; i < o->bytes / sizeof(float); i++) {
        double *used = &check->used[kernel];
        float got;
        double off;

        if (limit[i] < 0)
            continue;
        memcpy(&got, check->pinned + i * sizeof(got), sizeof(got));
        off = fabs((double)got - want[i]);
        memcpy(check->pinned + i * sizeof(got), o->here + i * sizeof(got), sizeof(got));
        if (off <= limit[i]) {
            *used = limit[i] > 0 && off / limit[i] > *used ? off / limit[i] : *used;
            continue;
        }
        if (wrong++ == 0)
            printf("  WRONG %s, %s: float %zu is %.9g, not %.9g within %.3g\n",
                   mp_cuda_kernel_name(kernel), what, i, (double)got, want[i], limit[i]);
    }
    return wrong == 0;
}

static void launch(struct check *check, enum mp_cuda_kernel kernel, const void *params,
                   const void *out, const double *want, const double *limit, const char *what)
{
    bool good = true;

    for (size_t i = 0; i < check->count; i++)
        upload(check, &check->operands[i]);
    run_there(check, kernel, params);
    check_here(check, kernel, params);
    for (size_t i = 0; i < check->count && good; i++) {
        struct operand *o = &check->operands[i];
        const size_t bytes = o->bytes + GUARD_BYTES;

        if (o->table)
            continue; /* only read, and the addresses in it are others */
        memset(check->pinned, 0xff, bytes);
        need(check, mp_gpu_download(check->gpu, check->stream, check->pinned, o->there, bytes));
        need(check, mp_gpu_finish(check->gpu, check->stream));
        if (o->here == out)
            good = are_within(check, kernel, o, want, limit, what);
        good = is_equal(check, kernel, o, what) && good;
    }
    check->cases[kernel]++;
    check->wrong[kernel] += !good;
    fflush(stdout);
}

void check_launch(struct check *check, enum mp_cuda_kernel kernel, const void *params,
                  const char *what)
{
    if (is_wanted(check, kernel))
        launch(check, kernel, params, NULL, NULL, NULL, what);
}

void check_launch_within(struct check *check, enum mp_cuda_kernel kernel, const void *params,
                         const void *out, double *want, double *limit, const char *what)
{
    if (is_wanted(check, kernel) && check->tensor)
        launch(check, kernel, params, out, want, limit, what);
    free(want);
    free(limit);
}

float *check_want(size_t count)
{
    float *want = calloc(count > 0 ? count : 1, sizeof(*want));

    if (want == NULL)
        need(NULL, mp_fail_no_memory("what is expected", count * sizeof(*want)));
    return want;
}

void check_product(float *y, const void *w, enum mp_wtype type, size_t w_stride, const float *x,
                   size_t x_stride, size_t rows, size_t cols, size_t tokens)
{
    float *wide = NULL;

    if (type >= MP_WTYPE_PLAIN_COUNT) {
        wide = check_want(rows * w_stride);
        mp_wtype_info(type)->convert(wide, w, rows * w_stride);
        w = wide;
        type = MP_WTYPE_F32;
    }
    mp_kernels_ref.matmul(y, rows, w, type, w_stride, x, x_stride, rows, cols, tokens);
    free(wide);
}

void check_near(struct check *check, enum mp_cuda_kernel kernel, const float *got, uint32_t stride,
                float *want, uint32_t width, uint32_t rows, const char *what)
{
    double largest = 1e-30, off = 0;
    char text[160];

    for (uint32_t i = 0; i < rows * width; i++)
        largest = fabs((double)want[i]) > largest ? fabs((double)want[i]) : largest;
    for (uint32_t i = 0; i < rows * width; i++) {
        const double d =
            fabs((double)got[(size_t)(i / width) * stride + i % width] - (double)want[i]);

        off = d > off || isnan(d) ? d : off;
    }
    free(want);
    if (off <= TOLERANCE * largest)
        return; /* counted when it was launched */
    snprintf(text, sizeof(text), "%s: off the sums in double by %.3g of the largest", what,
             off / largest);
    check_case(check, kernel, false, text);
}

float check_time(struct check *check, enum mp_cuda_kernel kernel, const void *params)
{
    float ms = -1;

    need(check, mp_gpu_record(check->gpu, check->start, check->stream));
    run_there(check, kernel, params);
    need(check, mp_gpu_record(check->gpu, check->end, check->stream));
    need(check, mp_gpu_wait(check->gpu, check->end));
    need(check, mp_gpu_elapsed(check->gpu, check->start, check->end, &ms));
    return ms;
}
