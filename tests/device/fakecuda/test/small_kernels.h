#ifndef MP_FAKECUDA_SMALL_KERNELS_H
#define MP_FAKECUDA_SMALL_KERNELS_H

#include "tests/device/fakecuda/simt.h"
#include "tests/device/fakecuda/test/two_streams.h"

/*
 * For the tests of the fake driver itself: three kernels that are easy to reason about, and a
 * machine with two streams that has them. One file of a program includes it.
 */
#define BYTES (64 * 1024u)
#define GRANULE (2048 * 1024u)

/* out[i] = in[i] + add, words. */

struct add_params {
    uint64_t in, out;
    uint32_t words, add;
};

static const char *add_run(const void *params, struct mp_simt_dim grid, struct mp_simt_dim block,
                           uint32_t shared_bytes)
{
    const struct add_params *p = params;

    (void)shared_bytes;
    if (grid.x != 1 || block.x != 32)
        return "a bad grid";
    for (uint32_t i = 0; i < p->words; i++)
        ((uint32_t *)(uintptr_t)p->out)[i] = ((const uint32_t *)(uintptr_t)p->in)[i] + p->add;
    return NULL;
}

static void add_touches(const void *params, mp_simt_emit *emit, void *ctx)
{
    const struct add_params *p = params;

    emit(ctx, p->in, 4 * p->words, false);
    emit(ctx, p->out, 4 * p->words, true);
}

static const struct mp_simt_kernel add_kernel = { "mp_test_add", sizeof(struct add_params), add_run,
                                                  add_touches };

/* Follows a table of addresses. */
struct follow_params {
    uint64_t table, out; /* of one address */
};

static const char *follow_run(const void *params, struct mp_simt_dim grid, struct mp_simt_dim block,
                              uint32_t shared_bytes)
{
    const struct follow_params *p = params;
    const uint64_t *at = (const uint64_t *)(uintptr_t)p->table;

    (void)grid;
    (void)block;
    (void)shared_bytes;
    *(uint32_t *)(uintptr_t)p->out = *(const uint32_t *)(uintptr_t)*at;
    return NULL;
}

static void follow_touches(const void *params, mp_simt_emit *emit, void *ctx)
{
    const struct follow_params *p = params;

    emit(ctx, p->out, 4, true);
    if (emit(ctx, p->table, 8, false))
        emit(ctx, *(const uint64_t *)(uintptr_t)p->table, 4, false);
}

static const struct mp_simt_kernel follow_kernel = { "mp_test_follow", sizeof(struct follow_params),
                                                     follow_run, follow_touches };

/* Says that it touches nothing, and writes through its parameter. */
static const char *liar_run(const void *params, struct mp_simt_dim grid, struct mp_simt_dim block,
                            uint32_t shared_bytes)
{
    (void)grid;
    (void)block;
    (void)shared_bytes;
    **(uint32_t *const *)params = 1;
    return NULL;
}

static void liar_touches(const void *params, mp_simt_emit *emit, void *ctx)
{
    (void)params;
    (void)emit;
    (void)ctx;
}

static const struct mp_simt_kernel liar_kernel = { "mp_test_liar", 8, liar_run, liar_touches };

static const char image[] = "//\n.version 7.0\n.target sm_75\n.address_size 64\n"
                            ".visible .entry mp_test_add(\n"
                            "\t.param .align 8 .b8 mp_test_add_param_0[24]\n)\n{ ret; }\n"
                            ".visible .entry mp_test_follow(.param .u64 a, .param .u64 b)\n{ }\n"
                            ".visible .entry mp_test_liar(\n\t.param .u64 p\n)\n{ ret; }\n"
                            ".visible .entry nobody(.param .u32 p)\n{ ret; }\n";

static mp_cu_module module;
static mp_cu_function add, follow, liar;
static unsigned char *host2;

static inline void set_up(void)
{
    open_streams(BYTES);
    OK(cu.module_load(&module, image, 0, NULL, NULL));
    OK(cu.module_function(&add, module, "mp_test_add"));
    OK(cu.module_function(&follow, module, "mp_test_follow"));
    OK(cu.module_function(&liar, module, "mp_test_liar"));
    OK(cu.host_alloc((void **)&host2, BYTES, MP_CU_HOST_DEVICE_MAP));
}

/* The variants of a program: streams that are prompt, lag by chance, or wait to be waited for. */
static inline void begin(int argc, char **argv)
{
    const char *timing = argc > 1 ? argv[1] : "prompt";

    setenv("FAKECUDA_VERBOSE", "1", 0);
    find_fake();
    if (strcmp(timing, "seeded") == 0)
        fake_api.timing(42, 0);
    if (strcmp(timing, "lazy") == 0)
        fake_api.timing(0, 5);
    fake_api.kernel(&add_kernel);
    fake_api.kernel(&follow_kernel);
    fake_api.kernel(&liar_kernel);
    set_up();
}

static inline void tear_down(void)
{
    wait_for_all();
    OK(cu.host_free(host2));
    OK(cu.module_unload(module));
    close_streams();
}

static inline mp_cu_result launch(mp_cu_function function, mp_cu_stream stream, const void *params)
{
    void *list[] = { (void *)(uintptr_t)params };

    return cu.launch(function, 1, 1, 1, 32, 1, 1, 0, stream, list, NULL);
}

static inline mp_cu_result launch_add(mp_cu_stream stream, mp_cu_ptr in, mp_cu_ptr out, uint32_t n)
{
    const struct add_params p = { in, out, BYTES / 4, n };

    return launch(add, stream, &p);
}

static inline mp_cu_result launch_follow(mp_cu_stream stream, mp_cu_ptr table, mp_cu_ptr out)
{
    void *list[] = { &table, &out };

    return cu.launch(follow, 1, 1, 1, 1, 1, 1, 0, stream, list, NULL);
}

#endif
