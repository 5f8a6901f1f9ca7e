#ifndef MP_TESTS_PROGRAM_H
#define MP_TESTS_PROGRAM_H

#include <dlfcn.h>
#include <stdarg.h>
#include <stdatomic.h>

#include "interpose/cuda/cudart_calls.h"
#include "tests/device/fakecuda/fakecuda.h"
#include "tests/device/fakecuda/simt.h"
#include "tests/support/test.h"

/*
 * What the programs of this folder have in common. They are linked with a CUDA runtime as programs
 * that a compiler made, know nothing of moepager, and print what they computed, so that who runs
 * them twice can compare. One file of a program includes this.
 */
#define OK(call)                                                          \
    do {                                                                  \
        const mp_rt_error error_ = (call);                                \
        if (error_ != MP_RT_SUCCESS) {                                    \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, \
                    cudaGetErrorString(error_));                          \
            exit(1);                                                      \
        }                                                                 \
    } while (0)

/* ---- kernels */

/* out[0] += a sum of `words` words from each of `count` parts, `stride` bytes apart, that the ids
 * name; all of them where there are no ids. The expert kernel of an engine, as far as addresses go.
 */
struct experts_params {
    uint64_t weights, ids, out, stride;
    uint32_t words, count;
};

static uint64_t sum_words(uint64_t address, uint32_t words, uint64_t sum)
{
    const uint32_t *word = (const uint32_t *)(uintptr_t)address;

    for (uint32_t i = 0; i < words; i++)
        sum = (sum ^ word[i]) * 0x9e3779b97f4a7c15u + (sum >> 29);
    return sum;
}

static const char *experts_run(const void *params, struct mp_simt_dim grid,
                               struct mp_simt_dim block, uint32_t shared_bytes)
{
    const struct experts_params *p = params;
    const uint32_t *ids = (const uint32_t *)(uintptr_t)p->ids;
    uint64_t *out = (uint64_t *)(uintptr_t)p->out;

    (void)grid;
    (void)block;
    (void)shared_bytes;
    for (uint32_t i = 0; i < p->count; i++)
        *out = sum_words(p->weights + (ids != NULL ? ids[i] : i) * p->stride, p->words, *out + i);
    return NULL;
}

static void experts_touches(const void *params, mp_simt_emit *emit, void *ctx)
{
    const struct experts_params *p = params;
    const uint32_t *ids = (const uint32_t *)(uintptr_t)p->ids;

    emit(ctx, p->out, 8, true);
    if (ids != NULL && !emit(ctx, p->ids, 4 * p->count, false))
        return;
    for (uint32_t i = 0; i < p->count; i++)
        emit(ctx, p->weights + (ids != NULL ? ids[i] : i) * p->stride, 4 * p->words, false);
}

/* ids[i] := experts of the token that *step counts, few of them often; *step += 1. */
struct route_params {
    uint64_t step, ids;
    uint32_t experts, count;
};

static const char *route_run(const void *params, struct mp_simt_dim grid, struct mp_simt_dim block,
                             uint32_t shared_bytes)
{
    const struct route_params *p = params;
    uint32_t *ids = (uint32_t *)(uintptr_t)p->ids;
    const uint64_t step = (*(uint64_t *)(uintptr_t)p->step)++;

    (void)grid;
    (void)block;
    (void)shared_bytes;
    for (uint32_t i = 0; i < p->count; i++) {
        const uint64_t chance = ((step + 1) * 0x9e3779b97f4a7c15u) ^ (i * 0xbf58476d1ce4e5b9u);

        ids[i] = (uint32_t)((chance >> 33) % (chance % 4 != 0 ? (p->experts + 3) / 4 : p->experts));
    }
    return NULL;
}

static void route_touches(const void *params, mp_simt_emit *emit, void *ctx)
{
    const struct route_params *p = params;

    emit(ctx, p->step, 8, true);
    emit(ctx, p->ids, 4 * p->count, true);
}

/* out[i] = in[i] * 5 + add, words. */
struct mix_params {
    uint64_t in, out;
    uint32_t words, add;
};

static const char *mix_run(const void *params, struct mp_simt_dim grid, struct mp_simt_dim block,
                           uint32_t shared_bytes)
{
    const struct mix_params *p = params;

    (void)grid;
    (void)block;
    (void)shared_bytes;
    for (uint32_t i = 0; i < p->words; i++)
        ((uint32_t *)(uintptr_t)p->out)[i] = ((const uint32_t *)(uintptr_t)p->in)[i] * 5 + p->add;
    return NULL;
}

static void mix_touches(const void *params, mp_simt_emit *emit, void *ctx)
{
    const struct mix_params *p = params;

    emit(ctx, p->in, 4 * p->words, false);
    emit(ctx, p->out, 4 * p->words, true);
}

static const struct mp_simt_kernel program_kernels[] = {
    { "mp_prog_experts", sizeof(struct experts_params), experts_run, experts_touches },
    { "mp_prog_route", sizeof(struct route_params), route_run, route_touches },
    { "mp_prog_mix", sizeof(struct mix_params), mix_run, mix_touches },
};
enum program_kernel { EXPERTS, ROUTE, MIX, PROGRAM_KERNELS };

static const char program_text[] =
    "//\n.version 7.0\n.target sm_75\n.address_size 64\n"
    ".visible .entry mp_prog_experts(\n\t.param .align 8 .b8 mp_prog_experts_param_0[40]\n)\n{ }\n"
    ".visible .entry mp_prog_route(\n\t.param .align 8 .b8 mp_prog_route_param_0[24]\n)\n{ }\n"
    ".visible .entry mp_prog_mix(\n\t.param .align 8 .b8 mp_prog_mix_param_0[24]\n)\n{ }\n";

/* The stubs that a compiler makes of kernels: their addresses name them. */
static char program_stubs[PROGRAM_KERNELS];

struct program_binary {
    int magic, version;
    const void *text;
    void *names;
};

static struct program_binary program_binary = { 0x466243b1, 1, program_text, NULL };

/* What a compiler does before main(), and the kernels' bodies, which the driver has to know. */
__attribute__((constructor)) static void register_kernels(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    void *symbol = library != NULL ? dlsym(library, "fakecuda_kernel") : NULL;
    void **handle = __cudaRegisterFatBinary(&program_binary);
    fakecuda_kernel_fn *add_kernel;

    if (symbol == NULL) {
        fprintf(stderr, "libcuda.so.1 is not that of the tests\n");
        exit(77);
    }
    memcpy(&add_kernel, &symbol, sizeof(symbol));
    for (unsigned k = 0; k < PROGRAM_KERNELS; k++) {
        add_kernel(&program_kernels[k]);
        __cudaRegisterFunction(handle, &program_stubs[k], NULL, program_kernels[k].name, -1, NULL,
                               NULL, NULL, NULL, NULL);
    }
    __cudaRegisterFatBinaryEnd(handle);
}

/* As a compiler of release 12 launches, or with 13 one of release 13; else with a configuration. */
static unsigned program_launches = 12;

static void launch(enum program_kernel kernel, mp_rt_stream stream, const void *params)
{
    const struct mp_rt_dim grid = { 1, 1, 1 }, block = { 32, 1, 1 };
    struct mp_rt_launch config = { .grid = grid, .block = block, .stream = stream };
    void *arguments[] = { (void *)(uintptr_t)params };
    static _Atomic(mp_rt_kernel) handles[PROGRAM_KERNELS]; /* of all threads */
    mp_rt_kernel handle = NULL;

    if (program_launches == 12) {
        OK(cudaLaunchKernel(&program_stubs[kernel], grid, block, arguments, 0, stream));
    } else if (program_launches == 13) {
        handle = atomic_load(&handles[kernel]);
        if (handle == NULL)
            OK(__cudaGetKernel(&handle, &program_stubs[kernel]));
        atomic_store(&handles[kernel], handle);
        OK(__cudaLaunchKernel(handle, grid, block, arguments, 0, stream));
    } else {
        OK(cudaLaunchKernelExC(&config, &program_stubs[kernel], arguments));
    }
}

#endif
