#ifndef MP_TEST_CUDA_WORLD_H
#define MP_TEST_CUDA_WORLD_H

/*
 * Spaces on the CUDA backend over the driver without a device: bytes of the device are looked at by
 * copying them to a host frame, on a stream of the test's own.
 */
#include "tests/device/fakecuda/client.h"
#include "tests/support/log_guard.h"
#include "tests/unit/vmm/space/space_files.h"
#include "vmm/base/log.h"

#define LOOK_BYTES (4 * MIB)

struct world {
    struct mp_backend *backend;
    struct mp_files *files;
    struct mp_space_config config;
    struct mp_space *space;
    struct mp_counters counters;
    struct mp_stream *stream; /* to look at bytes of the device */
    struct mp_frame frame;
};

static inline void world_open(struct world *w, const char *chain)
{
    *w = (struct world){ .backend = NULL };
    CHECK_EQ(mp_backend_open(chain, &test_backend_config, &w->backend), MP_OK);
    CHECK_EQ(mp_files_create(&w->files), MP_OK);
    mp_counters_reset(&w->counters);
    CHECK_EQ(w->backend->ops->stream_open(w->backend, &w->stream), MP_OK);
    CHECK_EQ(w->backend->ops->frame_create(w->backend, MP_TIER_HOST, LOOK_BYTES, &w->frame), MP_OK);
    w->config = (struct mp_space_config){
        .backend = w->backend,
        .files = w->files,
        .budget_bytes = UINT64_MAX,
        .host_budget_bytes = UINT64_MAX,
        .io_mode = MP_IO_AUTO,
        .reader = test_reader_config(),
        .clock = mp_clock_monotonic(),
        .counters = &w->counters,
    };
}

static inline void world_close(struct world *w)
{
    mp_space_destroy(w->space);
    w->backend->ops->stream_close(w->backend, w->stream);
    w->backend->ops->frame_destroy(w->backend, &w->frame);
    mp_files_destroy(w->files);
    mp_backend_close(w->backend);
}

/* Bytes of the device, where the CPU can see them until the next call. */
static inline const unsigned char *world_look(struct world *w, const void *device, uint64_t bytes)
{
    const struct mp_backend_ops *ops = w->backend->ops;

    CHECK(bytes <= LOOK_BYTES);
    CHECK_EQ(
        ops->stream_copy(w->backend, w->stream, MP_COPY_TO_HOST, w->frame.alias, device, bytes),
        MP_OK);
    CHECK_EQ(ops->event_record(w->backend, w->stream, 0), MP_OK);
    CHECK_EQ(ops->event_wait(w->backend, w->stream, 0), MP_OK);
    return w->frame.alias;
}

static inline bool world_pieces_are_right(struct world *w, const struct mp_unit *unit,
                                          const void *const *pieces)
{
    bool right = true;

    for (uint32_t i = 0; i < unit->piece_count; i++) {
        const struct mp_piece *piece = &unit->pieces[i];
        const unsigned char *bytes = world_look(w, pieces[i], piece->bytes);

        CHECK_EQ((uintptr_t)pieces[i] % 256, 0);
        for (uint64_t k = 0; k < piece->bytes; k++)
            right &= bytes[k] == test_byte(piece->file, piece->offset_bytes + k);
    }
    return right;
}

/* Lease, look at every byte on the device, release. */
static inline void world_verify(struct world *w, uint32_t unit)
{
    const void *pieces[MP_UNIT_PIECES_MAX];

    CHECK_EQ(mp_space_lease(w->space, unit, pieces), MP_OK);
    CHECK(world_pieces_are_right(w, &w->config.units[unit], pieces));
    mp_space_release(w->space, unit);
}

/* The same with the bytes that the host tier has. */
static inline void world_verify_host(struct world *w, uint32_t unit)
{
    const void *pieces[MP_UNIT_PIECES_MAX];

    CHECK_EQ(mp_space_lease_host(w->space, unit, pieces), MP_OK);
    CHECK(test_pieces_are_right(&w->config.units[unit], pieces));
    mp_space_release_host(w->space, unit);
}

static inline void world_load(struct world *w, uint32_t unit)
{
    CHECK_EQ(mp_space_load(w->space, unit, MP_PRIORITY_DEMAND), MP_OK);
    CHECK_EQ(mp_space_wait(w->space, unit), MP_OK);
}

/* What could not be given back is reported as an error; tests that want that count it away. */
static inline void world_keep_line(void *ctx, enum mp_log_level level, const char *line)
{
    (void)ctx;
    (void)line;
    mp_test_expected_errors += level == MP_LOG_ERROR;
}

#endif
