/*
 * The backend for simulation: frames are address ranges without memory. An alias must not be
 * accessed, and with a virtual link (vmm/io/reader.h) it is not. Memory is unlimited, so the budget
 * is the only limit.
 */
#include "vmm/backend/backend.h"

#include "vmm/base/assert.h"
#include "vmm/base/error.h"

#define GRANULE_BYTES (UINT64_C(2) << 20)
#define MEMORY_BYTES (UINT64_C(1) << 50)

static const struct mp_backend_ops sim_ops;

static enum mp_status sim_open(const struct mp_backend_config *config, struct mp_backend *inner,
                               struct mp_backend **backend_p)
{
    (void)config;
    (void)inner;
    *backend_p = mp_backend_sim();
    return MP_OK;
}

static void sim_close(struct mp_backend *backend)
{
    (void)backend;
}

static enum mp_status sim_memory_info(struct mp_backend *backend, enum mp_tier_kind tier,
                                      uint64_t *free_bytes_p, uint64_t *total_bytes_p)
{
    (void)backend;
    (void)tier;
    *free_bytes_p = *total_bytes_p = MEMORY_BYTES;
    return MP_OK;
}

/* All frames begin at the same address: who looks at bytes behind one is wrong anyway. */
static enum mp_status sim_frame_create(struct mp_backend *backend, enum mp_tier_kind tier,
                                       uint64_t bytes, struct mp_frame *frame_p)
{
    mp_assert(bytes > 0);
    (void)backend;
    *frame_p = (struct mp_frame){
        .handle = 1,
        .alias = (void *)(uintptr_t)GRANULE_BYTES,
        .bytes = bytes,
        .tier = tier,
    };
    return MP_OK;
}

static void sim_frame_destroy(struct mp_backend *backend, struct mp_frame *frame)
{
    mp_assert(frame->handle == 1);
    (void)backend;
    (void)frame;
}

static const struct mp_backend_ops sim_ops = {
    .name = "sim",
    .summary = "simulated memory that holds nothing (moepager simulate)",
    .open = sim_open,
    .close = sim_close,
    .memory_info = sim_memory_info,
    .frame_create = sim_frame_create,
    .frame_destroy = sim_frame_destroy,
};

struct mp_backend *mp_backend_sim(void)
{
    static struct mp_backend backend = {
        .ops = &sim_ops,
        .caps = {
            .granule_bytes = 4096,
            .alias_align_bytes = GRANULE_BYTES,
            .frame_bytes_max = MEMORY_BYTES,
            .frames_max = UINT32_MAX,
            .tiers = 1u << MP_TIER_DEVICE | 1u << MP_TIER_HOST,
            .layouts = 1u << MP_LAYOUT_FILE,
        },
    };

    return &backend;
}
