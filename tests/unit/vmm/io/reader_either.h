#ifndef MP_TESTS_READER_EITHER_H
#define MP_TESTS_READER_EITHER_H

/* A reader with either engine. */
#include "vmm/io/reader.h"

#include "tests/support/test.h"

static bool with_uring;

static inline struct mp_reader *reader_new(struct mp_files *files, uint32_t width,
                                           uint64_t chunk_bytes)
{
    const struct mp_reader_config config = {
        .files = files,
        .clock = mp_clock_monotonic(),
        .uring = with_uring,
        .depth = width,
        .threads = width,
        .chunk_bytes = chunk_bytes,
    };
    struct mp_reader *reader = NULL;

    CHECK_EQ(mp_reader_create(&config, &reader), MP_OK);
    CHECK_STR(mp_reader_engine(reader), with_uring ? "io_uring" : "threads");
    return reader;
}

static inline void one_extent(struct mp_ticket *ticket, uint32_t file, uint64_t offset,
                              uint64_t bytes, void *dst)
{
    memset(ticket, 0, sizeof(*ticket));
    ticket->extent_count = 1;
    ticket->extents[0] = (struct mp_extent){
        .file = file, .offset = offset, .bytes = bytes, .need_bytes = bytes, .dst = dst
    };
}

#endif
