#ifndef MP_TESTS_BACKEND_CUDA_H
#define MP_TESTS_BACKEND_CUDA_H

/* The backend on the driver without a device, the last line of the log, and what still lives. */
#include <dlfcn.h>
#include <stdint.h>

#include "tests/device/fakecuda/fakecuda.h"
#include "tests/support/log_guard.h"
#include "tests/support/test.h"
#include "vmm/backend/backend.h"
#include "vmm/base/log.h"

#define MIB (UINT64_C(1) << 20)
#define GRANULE (2 * MIB)

static struct {
#define X(name) fakecuda_##name##_fn *name;
    FAKECUDA_API_MAP(X)
#undef X
} fake_api;

static const struct mp_backend_config anywhere = { .numa_node = -1 };

/* What could not be given back is reported as an error; here that is wanted. */
static inline void keep_line(void *ctx, enum mp_log_level level, const char *line)
{
    (void)ctx;
    (void)line;
    mp_test_expected_errors += level == MP_LOG_ERROR;
}

static inline void find_fake(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);

    CHECK(library != NULL);
#define X(name)                                                         \
    {                                                                   \
        void *symbol = dlsym(library, "fakecuda_" #name);               \
        CHECK(symbol != NULL); /* else it is not the fake that loads */ \
        memcpy(&fake_api.name, &symbol, sizeof(symbol));                \
    }
    FAKECUDA_API_MAP(X)
#undef X
}

static inline void check_nothing_lives(void)
{
    struct fakecuda_live live;
    char text[256];

    fake_api.live(&live);
    CHECK_EQ(live.reservations, 0);
    CHECK_EQ(live.handles, 0);
    CHECK_EQ(live.mappings, 0);
    CHECK_EQ(live.pinned, 0);
    CHECK_EQ(live.contexts, 0);
    if (fake_api.violations(text, sizeof(text)) > 0)
        CHECK_STR(text, "");
}

static inline struct mp_backend *open_cuda(void)
{
    struct mp_backend *backend = NULL;

    CHECK_EQ(mp_backend_open("cuda", &anywhere, &backend), MP_OK);
    return backend;
}

#endif
