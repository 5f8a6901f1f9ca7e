#ifndef MP_TESTS_MACHINES_H
#define MP_TESTS_MACHINES_H

/* A backend on the driver without a device, and the last warning. */
#include "tests/device/fakecuda/client.h"
#include "tests/support/log_guard.h"
#include "vmm/backend/backend.h"
#include "vmm/base/log.h"

#define MIB (UINT64_C(1) << 20)
#define PIECE (64 * MIB) /* that is pinned at once */

static const struct mp_backend_config anywhere = { .numa_node = -1, .huge_pages = true };
static unsigned warnings;
static char warning[1024];

static inline void keep_line(void *ctx, enum mp_log_level level, const char *line)
{
    (void)ctx;
    mp_test_expected_errors += level == MP_LOG_ERROR;
    if (level != MP_LOG_WARN)
        return;
    warnings++;
    snprintf(warning, sizeof(warning), "%s", line);
}

static inline struct mp_backend *open_cuda(void)
{
    struct mp_backend *backend = NULL;

    CHECK_EQ(mp_backend_open("cuda", &anywhere, &backend), MP_OK);
    return backend;
}

static inline struct mp_frame make(struct mp_backend *backend, enum mp_tier_kind tier,
                                   uint64_t bytes)
{
    struct mp_frame frame = { .handle = 0 };

    CHECK_EQ(backend->ops->frame_create(backend, tier, bytes, &frame), MP_OK);
    CHECK_EQ(frame.bytes, bytes);
    return frame;
}

#endif
