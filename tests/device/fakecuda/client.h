#ifndef MP_FAKECUDA_CLIENT_H
#define MP_FAKECUDA_CLIENT_H

#include <dlfcn.h>
#include <stdint.h>
#include <unistd.h>

#include "tests/device/fakecuda/fakecuda.h"
#include "tests/support/test.h"
#include "vmm/backend/cuda/cuda_abi.h"

/*
 * For test programs that run on the fake driver: the control interface and the driver's calls, of
 * the library that moepager loads. One file of a program includes it.
 */
static struct {
#define X(name) fakecuda_##name##_fn *name;
    FAKECUDA_API_MAP(X)
#undef X
} fake_api;

static struct mp_cu_calls cu;

static inline void *fake_symbol(void *library, const char *name)
{
    void *symbol = dlsym(library, name);

    if (symbol == NULL) { /* else it is not the fake that loads */
        fprintf(stderr, "libcuda.so.1 has no %s\n", name);
        exit(1);
    }
    return symbol;
}

static inline void find_fake(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    void *symbol;

    CHECK(library != NULL);
#define X(name)                                       \
    symbol = fake_symbol(library, "fakecuda_" #name); \
    memcpy(&fake_api.name, &symbol, sizeof(symbol));
    FAKECUDA_API_MAP(X)
#undef X
#define X(member, name, parameters, arguments) \
    symbol = fake_symbol(library, #name);      \
    memcpy(&cu.member, &symbol, sizeof(symbol));
    MP_CU_CALL_MAP(X)
#undef X
}

/* Exactly one law was broken since the last reset, and the text says this. */
static inline void check_violation(const char *part)
{
    char text[256] = "";
    const unsigned count = fake_api.violations(text, sizeof(text));

    if (count != 1 || strstr(text, part) == NULL) {
        fprintf(stderr, "%u violations, first '%s', expected one with '%s'\n", count, text, part);
        exit(1);
    }
    fake_api.reset();
}

static inline void check_no_violation(void)
{
    char text[256] = "";

    if (fake_api.violations(text, sizeof(text)) != 0)
        CHECK_STR(text, "");
}

/* For tests/device/cuda_sites.py, in the file PROGRAM.VARIANT: call, and address in the program, of
 * each place that was made to fail. */
static inline void report_failed_sites(const char *variant)
{
    static struct fakecuda_site sites[1024];
    const unsigned count = fake_api.sites(sites, 1024);
    char program[4096], path[4200];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
    FILE *file;

    CHECK(length > 0);
    program[length] = '\0';
    snprintf(path, sizeof(path), "%s.%s", program, variant);
    file = fopen(path, "w");
    CHECK(file != NULL);
    for (unsigned s = 0; s < count; s++) {
        Dl_info info;

        CHECK(dladdr(sites[s].address, &info) != 0);
        if (sites[s].failed > 0)
            fprintf(file, "%s %zx\n", sites[s].call,
                    (size_t)((const char *)sites[s].address - (const char *)info.dli_fbase));
    }
    CHECK_EQ(fclose(file), 0);
}

static inline void check_nothing_lives(void)
{
    struct fakecuda_live live;

    fake_api.live(&live);
    CHECK_EQ(live.reservations, 0);
    CHECK_EQ(live.handles, 0);
    CHECK_EQ(live.mappings, 0);
    CHECK_EQ(live.pinned, 0);
    CHECK_EQ(live.allocations, 0);
    CHECK_EQ(live.streams, 0);
    CHECK_EQ(live.events, 0);
    CHECK_EQ(live.modules, 0);
    CHECK_EQ(live.graphs, 0);
    CHECK_EQ(live.contexts, 0);
    check_no_violation();
}

#endif
