/* The options of reading files, as a table and as a configuration of a reader. */
#include "vmm/io/io_options.h"

#include "vmm/base/assert.h"

static const char *const mode_names[] = { "auto", "direct", "buffered", NULL };

_Static_assert(sizeof(mode_names) / sizeof(mode_names[0]) == MP_IO_MODE_COUNT + 1,
               "the names are those of enum mp_io_mode");

const struct mp_opt mp_io_opts[] = {
    MP_OPT_ENUM("IO", struct mp_io_config, mode, "auto", mode_names,
                "How experts are read from disk: past the page cache (direct), through it "
                "(buffered), or directly where the file system can and little is read for nothing "
                "(auto)."),
    MP_OPT(MP_OPT_BOOL, "URING", struct mp_io_config, uring, "on", 0, 1,
           "Read with io_uring; off, or where it is missing or forbidden: with threads."),
    MP_OPT(MP_OPT_U64, "IO_DEPTH", struct mp_io_config, depth, "16", 1, 256,
           "Reads in flight with io_uring."),
    MP_OPT(MP_OPT_U64, "IO_PREFETCH_DEPTH", struct mp_io_config, prefetch_depth, "2", 1, 256,
           "Reads ahead in flight; more of them delay what is needed now."),
    MP_OPT(MP_OPT_U64, "IO_THREADS", struct mp_io_config, threads, "4", 1, 64,
           "Threads that read, without io_uring."),
    MP_OPT(
        MP_OPT_BYTES, "IO_CHUNK", struct mp_io_config, chunk_bytes, "4M", MP_CHUNK_ALIGN_BYTES,
        1 << 30,
        "The longest single read; longer transfers are cut into equal parts, so that urgent ones "
        "get between."),
    MP_OPT_END
};

struct mp_reader_config mp_io_reader_config(const struct mp_io_config *config,
                                            struct mp_files *files, struct mp_clock *clock,
                                            struct mp_timeline *timeline)
{
    mp_assert(config->mode < MP_IO_MODE_COUNT && config->chunk_bytes > 0);
    return (struct mp_reader_config){
        .files = files,
        .clock = clock,
        .timeline = timeline,
        .uring = config->uring != 0,
        .depth = (uint32_t)config->depth,
        .prefetch_depth = (uint32_t)config->prefetch_depth,
        .threads = (uint32_t)config->threads,
        .chunk_bytes = (config->chunk_bytes + MP_CHUNK_ALIGN_BYTES - 1) / MP_CHUNK_ALIGN_BYTES *
                       MP_CHUNK_ALIGN_BYTES,
    };
}
