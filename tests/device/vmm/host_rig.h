#ifndef MP_TEST_HOST_RIG_H
#define MP_TEST_HOST_RIG_H

/*
 * A host tier by itself: its frames are those of the CUDA backend, over the driver without a
 * device, and a link copies what is loaded to a place of its own on the device. Whoever looks at a
 * unit, there or here, looks at every byte.
 */
#include "tests/device/vmm/cuda_world.h"
#include "vmm/space/host_tier.h"

#define UNITS 40
#define FILES 2
#define FILE_BYTES 900000
#define PIECE_BYTES 20001
#define DEVICE_SLOT (UINT64_C(128) << 10)

static struct mp_unit units[UNITS];
static char paths[FILES][4200];
static bool rig_handles, rig_unpinned; /* what host frames are; else registered */

struct rig {
    struct mp_backend *backend;
    struct mp_files *files;
    struct mp_space_config space; /* what the layout is made from */
    struct mp_space_layout layout;
    struct mp_memory_link memory;
    struct mp_reader *link;
    struct mp_host_tier *tier;
    struct mp_frame device, eye;
    struct mp_stream *stream; /* to look at the device */
    struct mp_ticket tickets[UNITS];
};

static inline void make_units(void)
{
    for (uint32_t u = 0; u < UNITS; u++) {
        units[u].piece_count = 3;
        for (uint32_t i = 0; i < 3; i++)
            units[u].pieces[i] = (struct mp_piece){ .file = i == 1,
                                                    .offset_bytes = 20003 * u + 101 * i,
                                                    .bytes = PIECE_BYTES + (u % 2) * 500 };
    }
}

static inline void write_file(uint32_t file)
{
    static unsigned char bytes[FILE_BYTES];
    FILE *out = fopen(paths[file], "we");

    CHECK(out != NULL);
    for (uint64_t i = 0; i < FILE_BYTES; i++)
        bytes[i] = test_byte(file, i);
    CHECK_EQ(fwrite(bytes, 1, FILE_BYTES, out), FILE_BYTES);
    CHECK_EQ(fclose(out), 0);
}

static inline enum mp_status start(void *ctx, const struct mp_ticket *ticket)
{
    (void)ctx;
    (void)ticket;
    return MP_OK;
}

static inline enum mp_status finish(void *ctx, const struct mp_ticket *ticket)
{
    struct rig *rig = ctx;

    mp_host_tier_copied(rig->tier, (uint32_t)ticket->tag, ticket->error.status == MP_OK);
    return MP_OK;
}

/* Files and backend, and what they are to be used for. Host memory for `part` of 4 of all. */
static inline void open_rig(struct rig *rig, enum mp_io_mode mode, unsigned part)
{
    struct mp_space_plan plan;

    *rig = (struct rig){ .tier = NULL };
    CHECK_EQ(mp_backend_open("cuda", &test_backend_config, &rig->backend), MP_OK);
    CHECK_EQ(mp_files_create(&rig->files), MP_OK);
    for (uint32_t f = 0; f < FILES; f++) {
        uint32_t index;

        write_file(f);
        CHECK_EQ(mp_files_add(rig->files, AT_FDCWD, paths[f], &index), MP_OK);
    }
    rig->space = (struct mp_space_config){
        .backend = rig->backend,
        .files = rig->files,
        .units = units,
        .unit_count = UNITS,
        .budget_bytes = UINT64_MAX,
        .host_budget_bytes = UINT64_MAX,
        .io_mode = mode,
        .reader = test_reader_config(),
        .clock = mp_clock_monotonic(),
    };
    CHECK_EQ(mp_space_make_plan(&rig->space, &plan), MP_OK);
    if (part < 4)
        rig->space.host_budget_bytes = plan.host_bytes * part / 4;
    CHECK_EQ(mp_space_layout_init(&rig->space, &rig->layout), MP_OK);
}

static inline enum mp_status make_tier(struct rig *rig, bool uring, uint32_t threads)
{
    struct mp_host_tier_config config = { .backend = rig->backend,
                                          .files = rig->files,
                                          .layout = &rig->layout,
                                          .reader = test_reader_config() };

    if (rig_unpinned)
        fake_api.fail("cuMemHostRegister_v2", 0, MP_CU_ERROR_OUT_OF_MEMORY, true);
    config.reader.files = rig->files;
    config.reader.clock = mp_clock_monotonic();
    config.reader.uring = uring;
    config.reader.threads = threads;
    config.reader.chunk_bytes = 8192;
    return mp_host_tier_create(&config, &rig->tier);
}

static inline void start_tier(struct rig *rig)
{
    const struct mp_reader_config link = { .clock = mp_clock_monotonic(),
                                           .depth = 3,
                                           .threads = 1,
                                           .chunk_bytes = 65536,
                                           .memory = &rig->memory };
    const struct mp_backend_ops *ops = rig->backend->ops;

    CHECK_EQ(ops->frame_create(rig->backend, MP_TIER_DEVICE, 6 * MIB, &rig->device), MP_OK);
    CHECK_EQ(ops->frame_create(rig->backend, MP_TIER_HOST, DEVICE_SLOT, &rig->eye), MP_OK);
    CHECK_EQ(ops->stream_open(rig->backend, &rig->stream), MP_OK);
    rig->memory = (struct mp_memory_link){
        .backend = rig->backend, .start = start, .finish = finish, .ctx = rig
    };
    CHECK_EQ(mp_reader_create(&link, &rig->link), MP_OK);
    CHECK_EQ(mp_host_tier_start(rig->tier, rig->link), MP_OK);
}

static inline void close_rig(struct rig *rig)
{
    const struct mp_backend_ops *ops = rig->backend->ops;

    if (rig->tier != NULL)
        CHECK(mp_host_tier_check(rig->tier));
    mp_host_tier_stop(rig->tier);
    mp_reader_destroy(rig->link);
    mp_host_tier_destroy(rig->tier);
    if (rig->stream != NULL)
        ops->stream_close(rig->backend, rig->stream);
    if (rig->device.handle != 0)
        ops->frame_destroy(rig->backend, &rig->device);
    if (rig->eye.handle != 0)
        ops->frame_destroy(rig->backend, &rig->eye);
    mp_space_layout_fini(&rig->layout);
    mp_files_destroy(rig->files);
    mp_backend_close(rig->backend);
    check_nothing_lives();
}

static inline bool is_right(const struct rig *rig, uint32_t unit, const unsigned char *slot)
{
    bool right = true;

    for (uint32_t i = 0; i < units[unit].piece_count; i++) {
        const struct mp_piece *piece = &units[unit].pieces[i];
        const unsigned char *at = slot + rig->layout.units[unit].piece_offset_bytes[i];

        for (uint64_t k = 0; k < piece->bytes; k++)
            right &= at[k] == test_byte(piece->file, piece->offset_bytes + k);
    }
    return right;
}

/* False: it is not here. What is here is right. */
static inline bool look_in_host(struct rig *rig, uint32_t unit)
{
    const char *slot = mp_host_tier_lease(rig->tier, unit);

    if (slot == NULL)
        return false;
    CHECK(is_right(rig, unit, (const unsigned char *)slot));
    mp_host_tier_release(rig->tier, unit);
    return true;
}

static inline char *device_slot(const struct rig *rig, uint32_t unit)
{
    return (char *)rig->device.alias + unit * DEVICE_SLOT;
}

static inline void submit(struct rig *rig, uint32_t unit, enum mp_priority priority)
{
    struct mp_ticket *ticket = &rig->tickets[unit];
    const uint64_t bytes = rig->layout.units[unit].packed_bytes;

    CHECK(bytes <= DEVICE_SLOT);
    memset(ticket, 0, sizeof(*ticket));
    ticket->extents[0] = (struct mp_extent){ .bytes = bytes, .need_bytes = bytes };
    ticket->extents[0].dst = device_slot(rig, unit);
    ticket->extent_count = 1;
    ticket->copy = MP_COPY_TO_DEVICE;
    ticket->priority = priority;
    ticket->tag = unit;
    mp_host_tier_load(rig->tier, unit, ticket);
}

/* The unit's error, MP_OK for none: then the device has its bytes. */
static inline const struct mp_error *await(struct rig *rig, uint32_t unit)
{
    const struct mp_backend_ops *ops = rig->backend->ops;
    struct mp_ticket *ticket = &rig->tickets[unit];

    mp_reader_wait(rig->link, ticket);
    CHECK_EQ(mp_ticket_state(ticket),
             ticket->error.status == MP_OK ? MP_TICKET_DONE : MP_TICKET_FAILED);
    if (ticket->error.status != MP_OK)
        return &ticket->error;
    CHECK_EQ(ops->stream_copy(rig->backend, rig->stream, MP_COPY_TO_HOST, rig->eye.alias,
                              device_slot(rig, unit), rig->layout.units[unit].packed_bytes),
             MP_OK);
    CHECK_EQ(ops->event_record(rig->backend, rig->stream, 0), MP_OK);
    CHECK_EQ(ops->event_wait(rig->backend, rig->stream, 0), MP_OK);
    CHECK(is_right(rig, unit, rig->eye.alias));
    return &ticket->error;
}

static inline void load_all(struct rig *rig)
{
    for (uint32_t u = 0; u < UNITS; u++)
        submit(rig, u, u % 3 == 0 ? MP_PRIORITY_PREFETCH : MP_PRIORITY_DEMAND);
    for (uint32_t u = 0; u < UNITS; u++)
        CHECK_EQ(await(rig, u)->status, MP_OK);
}

static inline uint32_t count_held(struct rig *rig)
{
    uint32_t held = 0;

    for (uint32_t u = 0; u < UNITS; u++)
        held += look_in_host(rig, u);
    return held;
}

#endif
