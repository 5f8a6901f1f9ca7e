/*
 * A wrapper that fails calls on demand, for tests: after `countdown` calls that pass, one or all
 * that follow. A failed call never reaches the wrapped backend and leaves out-parameters alone.
 */
#include "vmm/backend.h"

#include <inttypes.h>
#include <stdlib.h>

#include "vmm/base/assert.h"
#include "vmm/base/error.h"

struct fault_backend {
    struct mp_backend super;
    struct mp_backend *inner;
    int64_t countdown; /* calls that still pass; < 0: all do */
    bool once;
    enum mp_status status;
    uint64_t calls; /* since the last set */
};

static struct fault_backend *fault_of(struct mp_backend *backend)
{
    return mp_container_of(backend, struct fault_backend, super);
}

static enum mp_status fault_open(const struct mp_backend_config *config, struct mp_backend *inner,
                                 struct mp_backend **backend_p)
{
    struct fault_backend *fault = calloc(1, sizeof(*fault));

    (void)config;
    mp_assert(inner != NULL);
    if (fault == NULL)
        return mp_fail_no_memory("the fault backend", sizeof(*fault));
    fault->super.ops = &mp_backend_fault;
    fault->super.caps = inner->caps;
    fault->inner = inner;
    fault->countdown = -1;
    *backend_p = &fault->super;
    return MP_OK;
}

static void fault_close(struct mp_backend *backend)
{
    struct fault_backend *fault = fault_of(backend);

    mp_backend_close(fault->inner);
    free(fault);
}

uint64_t mp_backend_fault_set(struct mp_backend *fault_backend, int64_t countdown, bool once,
                              enum mp_status status)
{
    struct fault_backend *fault = fault_of(fault_backend);
    const uint64_t calls = fault->calls;

    mp_assert(fault_backend->ops == &mp_backend_fault);
    mp_assert(countdown < 0 || status != MP_OK);
    fault->countdown = countdown;
    fault->once = once;
    fault->status = status;
    fault->calls = 0;
    return calls;
}

/* One call that can fail: its status if it is to fail now. */
static enum mp_status step(struct fault_backend *fault, const char *call)
{
    fault->calls++;
    if (fault->countdown < 0)
        return MP_OK;
    if (fault->countdown > 0) {
        fault->countdown--;
        return MP_OK;
    }
    if (fault->once)
        fault->countdown = -1;
    return mp_fail(fault->status, "E_INJECTED", "injected failure in %s, call %" PRIu64, call,
                   fault->calls);
}

static enum mp_status fault_memory_info(struct mp_backend *backend, enum mp_tier_kind tier,
                                        uint64_t *free_bytes_p, uint64_t *total_bytes_p)
{
    struct fault_backend *fault = fault_of(backend);
    const enum mp_status status = step(fault, "memory_info");

    if (status != MP_OK)
        return status;
    return fault->inner->ops->memory_info(fault->inner, tier, free_bytes_p, total_bytes_p);
}

static enum mp_status fault_frame_create(struct mp_backend *backend, enum mp_tier_kind tier,
                                         uint64_t bytes, struct mp_frame *frame_p)
{
    struct fault_backend *fault = fault_of(backend);
    const enum mp_status status = step(fault, "frame_create");

    if (status != MP_OK)
        return status;
    return fault->inner->ops->frame_create(fault->inner, tier, bytes, frame_p);
}

static void fault_frame_destroy(struct mp_backend *backend, struct mp_frame *frame)
{
    struct fault_backend *fault = fault_of(backend);

    fault->inner->ops->frame_destroy(fault->inner, frame);
}

const struct mp_backend_ops mp_backend_fault = {
    .name = "fault",
    .summary = "wrapper that fails chosen calls, for tests",
    .wrapper = true,
    .open = fault_open,
    .close = fault_close,
    .memory_info = fault_memory_info,
    .frame_create = fault_frame_create,
    .frame_destroy = fault_frame_destroy,
};
