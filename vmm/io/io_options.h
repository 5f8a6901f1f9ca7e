#ifndef MP_IO_OPTIONS_H
#define MP_IO_OPTIONS_H

#include "vmm/io/reader.h"
#include "vmm/options/opt.h"

/*
 * The options of reading the file tier: MOEPAGER_IO, MOEPAGER_URING, MOEPAGER_IO_DEPTH,
 * MOEPAGER_IO_PREFETCH_DEPTH, MOEPAGER_IO_THREADS, MOEPAGER_IO_CHUNK. List the table with the
 * prefix "MOEPAGER_".
 */
struct mp_io_config {
    uint64_t mode; /* enum mp_io_mode */
    uint64_t uring;
    uint64_t depth;
    uint64_t prefetch_depth;
    uint64_t threads;
    uint64_t chunk_bytes;
};

extern const struct mp_opt mp_io_opts[];

/* The configuration of a reader. A chunk size is rounded up to a multiple of 4096 bytes. */
struct mp_reader_config mp_io_reader_config(const struct mp_io_config *config,
                                            struct mp_files *files, struct mp_clock *clock,
                                            struct mp_timeline *timeline);

#endif
