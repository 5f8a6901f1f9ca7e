/*
 * Speed of the file tier: `bench_reader FILE [EXTENT_KIB [SECONDS [MEMORY_MIB]]]`.
 *
 * Reads random extents of one size with the reader that the pager uses, direct, into memory that is
 * already there (in turn, so that caches do not hold it), as many at once as a layer may want, for
 * every engine and several sizes of chunks and numbers of reads in flight. Each setting is measured
 * in three rounds, which alternate; the median and the processor time that the process spent per GB
 * are printed. The defaults in vmm/io/io_options.c are chosen from this table.
 *
 * `bench_reader --fill FILE BYTES THREADS`: a cold start without anything but its reads. So many
 * bytes of the file, extents of 9 MiB spread evenly over it, go with the reader's settings into one
 * place each of memory that was just mapped, as the pager maps its slots, while THREADS threads of
 * vmm/space/populate.h fill it with memory, each a part; in a start there is one. Then once more
 * into the memory that is there. Seconds from mapping to the last byte, and of processors, as JSON.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "vmm/backend/backend.h"
#include "vmm/io/io_options.h"
#include "vmm/space/populate.h"
#include "vmm/io/reader.h"

#define TICKETS 8
#define ROUNDS 3
#define ALIGN 4096
#define EXTENT_KIB 9216 /* an expert of the models that are measured */
#define POPULATORS_MAX 64

struct setting {
    bool uring;
    uint32_t in_flight;
    uint64_t chunk_bytes;
};

static const struct setting settings[] = {
    { true, 2, 1 << 20 },    { true, 4, 256 << 10 },  { true, 4, 1 << 20 },  { true, 4, 4 << 20 },
    { true, 8, 256 << 10 },  { true, 8, 512 << 10 },  { true, 8, 1 << 20 },  { true, 8, 4 << 20 },
    { true, 16, 128 << 10 }, { true, 16, 256 << 10 }, { true, 16, 1 << 20 }, { true, 32, 1 << 20 },
    { false, 1, 1 << 20 },   { false, 2, 256 << 10 }, { false, 2, 1 << 20 }, { false, 2, 4 << 20 },
    { false, 4, 256 << 10 }, { false, 4, 1 << 20 },   { false, 4, 4 << 20 }, { false, 8, 1 << 20 },
};

#define SETTINGS (sizeof(settings) / sizeof(settings[0]))

struct result {
    double gb_per_s, cpu_s_per_gb;
};

struct bench {
    struct mp_files *files;
    uint64_t file_bytes, extent_bytes, random;
    uint64_t places, next_place; /* in memory, of one extent each */
    double seconds;
    char *memory;
};

static double cpu_seconds(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static uint64_t random_offset(struct bench *bench)
{
    bench->random = bench->random * 6364136223846793005u + 1442695040888963407u;
    return (bench->random >> 20) % ((bench->file_bytes - bench->extent_bytes) / ALIGN) * ALIGN;
}

static void submit(struct bench *bench, struct mp_reader *reader, struct mp_ticket *ticket)
{
    ticket->extents[0] = (struct mp_extent){
        .offset = random_offset(bench),
        .bytes = bench->extent_bytes,
        .need_bytes = bench->extent_bytes,
        .dst = bench->memory + bench->next_place++ % bench->places * bench->extent_bytes,
    };
    ticket->extent_count = 1;
    ticket->direct = true;
    mp_reader_submit(reader, ticket);
}

/* Keep TICKETS transfers queued until the time is over. */
static enum mp_status measure(struct bench *bench, const struct setting *setting,
                              struct result *result)
{
    const struct mp_reader_config config = {
        .files = bench->files,
        .clock = mp_clock_monotonic(),
        .uring = setting->uring,
        .depth = setting->in_flight,
        .threads = setting->in_flight,
        .chunk_bytes = setting->chunk_bytes,
    };
    struct mp_ticket tickets[TICKETS], *list[TICKETS];
    struct mp_reader *reader;
    double start, end, cpu;
    uint64_t bytes = 0;
    enum mp_status status = mp_reader_create(&config, &reader);

    if (status != MP_OK)
        return status;
    memset(tickets, 0, sizeof(tickets));
    cpu = cpu_seconds();
    start = (double)mp_clock_now_ns(config.clock) * 1e-9;
    for (uint32_t i = 0; i < TICKETS; i++) {
        list[i] = &tickets[i];
        submit(bench, reader, &tickets[i]);
    }
    do {
        const uint32_t i = mp_reader_wait_any(reader, list, TICKETS);

        if (mp_ticket_state(&tickets[i]) == MP_TICKET_FAILED) {
            mp_error_set(&tickets[i].error);
            status = tickets[i].error.status;
            break;
        }
        bytes += bench->extent_bytes;
        submit(bench, reader, &tickets[i]);
        end = (double)mp_clock_now_ns(config.clock) * 1e-9;
        result->gb_per_s = (double)bytes * 1e-9 / (end - start);
    } while (end - start < bench->seconds);
    result->cpu_s_per_gb = (cpu_seconds() - cpu) / ((double)bytes * 1e-9);
    for (uint32_t i = 0; i < TICKETS; i++)
        mp_reader_wait(reader, &tickets[i]);
    mp_reader_destroy(reader);
    return status;
}

static int by_speed(const void *a, const void *b)
{
    const double x = ((const struct result *)a)->gb_per_s, y = ((const struct result *)b)->gb_per_s;

    return (x > y) - (x < y);
}

static enum mp_status run(struct bench *bench)
{
    static struct result results[SETTINGS][ROUNDS];

    for (int round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < SETTINGS; i++) {
            const enum mp_status status = measure(bench, &settings[i], &results[i][round]);

            if (status != MP_OK)
                return status;
        }
    }
    printf("%-9s %9s %10s %8s %12s\n", "engine", "in flight", "chunk KiB", "GB/s", "CPU s per GB");
    for (size_t i = 0; i < SETTINGS; i++) {
        qsort(results[i], ROUNDS, sizeof(results[i][0]), by_speed);
        printf("%-9s %9" PRIu32 " %10" PRIu64 " %8.2f %12.3f\n",
               settings[i].uring ? "io_uring" : "threads", settings[i].in_flight,
               settings[i].chunk_bytes >> 10, results[i][ROUNDS / 2].gb_per_s,
               results[i][ROUNDS / 2].cpu_s_per_gb);
    }
    return MP_OK;
}

struct fill {
    struct bench *bench;
    uint64_t bytes;
    struct mp_frame frame;
    uint64_t submitted, done, stride; /* extents, and from one to the next in the file */
};

static uint64_t extents_of(const struct fill *fill)
{
    return (fill->bytes + fill->bench->extent_bytes - 1) / fill->bench->extent_bytes;
}

static void submit_next(struct fill *fill, struct mp_reader *reader, struct mp_ticket *ticket)
{
    const uint64_t extent = fill->bench->extent_bytes, at = fill->submitted * extent;
    const uint64_t bytes = fill->bytes - at < extent ? fill->bytes - at : extent;

    ticket->extents[0] = (struct mp_extent){
        .offset = fill->submitted++ * fill->stride,
        .bytes = bytes,
        .need_bytes = bytes,
        .dst = (char *)fill->frame.alias + at,
    };
    ticket->extent_count = 1;
    ticket->direct = true;
    mp_reader_submit(reader, ticket);
}

static enum mp_status read_extents(struct fill *fill, struct mp_reader *reader)
{
    struct mp_ticket tickets[TICKETS] = { 0 }, *list[TICKETS];
    enum mp_status status = MP_OK;
    uint32_t count = 0;

    fill->submitted = 0;
    while (count < TICKETS && fill->submitted < extents_of(fill)) {
        list[count] = &tickets[count];
        submit_next(fill, reader, &tickets[count++]);
    }
    while (count > 0 && status == MP_OK) {
        const uint32_t i = mp_reader_wait_any(reader, list, count);

        status = list[i]->error.status;
        if (status != MP_OK)
            mp_error_set(&list[i]->error);
        else if (fill->submitted < extents_of(fill))
            submit_next(fill, reader, list[i]);
        else
            list[i] = list[--count];
    }
    for (uint32_t i = 0; i < count; i++)
        mp_reader_wait(reader, list[i]);
    return status;
}

/* Threads that take a part of the frame each. */
static uint32_t start_populating(const struct fill *fill, uint32_t threads,
                                 struct mp_populate *populate[POPULATORS_MAX])
{
    const uint64_t part = fill->frame.bytes / threads / ALIGN * ALIGN;

    for (uint32_t i = 0; i < threads; i++) {
        const struct mp_frame frame = {
            .alias = (char *)fill->frame.alias + i * part,
            .bytes = i + 1 < threads ? part : fill->frame.bytes - i * part,
        };

        populate[i] = mp_populate_start(&frame, 1, false, mp_clock_monotonic());
    }
    return threads;
}

/* Read all of it once. `backend` NULL: the memory stays that of the time before. */
static enum mp_status fill_once(struct fill *fill, struct mp_backend *backend, uint32_t populators,
                                const char *name)
{
    struct mp_io_config io;
    struct mp_reader_config config;
    struct mp_populate *populate[POPULATORS_MAX];
    struct mp_reader *reader;
    const double cpu = cpu_seconds(), start = (double)mp_clock_now_ns(mp_clock_monotonic()) * 1e-9;
    enum mp_status status = MP_OK;

    mp_opt_load(mp_io_opts, "MOEPAGER_", &io);
    config = mp_io_reader_config(&io, fill->bench->files, mp_clock_monotonic(), NULL);
    if (backend != NULL)
        status = backend->ops->frame_create(
            backend, MP_TIER_DEVICE, (fill->bytes + ALIGN - 1) / ALIGN * ALIGN, &fill->frame);
    if (status == MP_OK)
        status = mp_reader_create(&config, &reader);
    if (status != MP_OK)
        return status;
    populators = populators > 0 ? start_populating(fill, populators, populate) : 0;
    status = read_extents(fill, reader);
    if (status == MP_OK)
        printf("\"%s_s\": %.4f, \"%s_cpu_s\": %.4f", name,
               (double)mp_clock_now_ns(mp_clock_monotonic()) * 1e-9 - start, name,
               cpu_seconds() - cpu);
    while (populators > 0)
        mp_populate_stop(populate[--populators]);
    mp_reader_destroy(reader);
    return status;
}

static enum mp_status fill_twice(struct fill *fill, uint32_t populators)
{
    const struct mp_backend_config config = { .numa_node = -1, .huge_pages = true };
    struct mp_backend *backend;
    enum mp_status status = mp_backend_open("host", &config, &backend);

    if (status != MP_OK)
        return status;
    printf("{\"bytes\": %" PRIu64 ", \"threads\": %" PRIu32 ", ", fill->bytes, populators);
    status = fill_once(fill, backend, populators, "new");
    printf(", ");
    if (status == MP_OK)
        status = fill_once(fill, NULL, 0, "touched");
    printf("}\n");
    if (fill->frame.handle != 0)
        backend->ops->frame_destroy(backend, &fill->frame);
    mp_backend_close(backend);
    return status;
}

static enum mp_status fail_size(const char *why)
{
    return mp_fail(MP_ERR_CONFIG, "E_BENCH", "%s", why);
}

static enum mp_status run_fill(struct bench *bench, uint64_t bytes, uint64_t populators)
{
    struct fill fill = { .bench = bench, .bytes = bytes / ALIGN * ALIGN };
    uint64_t count;

    if (fill.bytes == 0 || fill.bytes > bench->file_bytes)
        return fail_size("the file has fewer bytes than that, or they are less than 4 KiB");
    if (populators > POPULATORS_MAX)
        return fail_size("more threads than 64");
    count = extents_of(&fill);
    if (count > 1)
        fill.stride =
            (bench->file_bytes - (fill.bytes - (count - 1) * bench->extent_bytes)) / (count - 1);
    fill.stride = fill.stride / ALIGN * ALIGN;
    return fill_twice(&fill, (uint32_t)populators);
}

static enum mp_status run_table(struct bench *bench, uint64_t memory_bytes)
{
    if (bench->extent_bytes == 0 || bench->extent_bytes % ALIGN != 0 ||
        bench->file_bytes < 2 * bench->extent_bytes || memory_bytes < TICKETS * bench->extent_bytes)
        return fail_size("extents are multiples of 4 KiB, and the file holds two at least");
    bench->places = memory_bytes / bench->extent_bytes;
    bench->memory =
        mmap(NULL, memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bench->memory == MAP_FAILED)
        return mp_fail_no_memory("the extents", memory_bytes);
    madvise(bench->memory, memory_bytes, MADV_HUGEPAGE);
    memset(bench->memory, 1, memory_bytes);
    return run(bench);
}

int main(int argc, char **argv)
{
    const bool fill = argc > 1 && strcmp(argv[1], "--fill") == 0;
    struct bench bench = {
        .extent_bytes = (!fill && argc > 2 ? strtoull(argv[2], NULL, 10) : EXTENT_KIB) << 10,
        .seconds = !fill && argc > 3 ? strtod(argv[3], NULL) : 0.5,
        .random = 1,
    };
    const uint64_t memory_bytes = (!fill && argc > 4 ? strtoull(argv[4], NULL, 10) : 1024) << 20;
    uint32_t file;
    enum mp_status status;

    if (argc < 2 || (fill && argc != 5)) {
        fprintf(stderr, "usage: bench_reader FILE [EXTENT_KIB [SECONDS [MEMORY_MIB]]]\n"
                        "       bench_reader --fill FILE BYTES THREADS\n");
        return 2;
    }
    status = mp_files_create(&bench.files);
    if (status == MP_OK)
        status = mp_files_add(bench.files, AT_FDCWD, argv[fill ? 2 : 1], &file);
    if (status == MP_OK) {
        bench.file_bytes = mp_files_bytes(bench.files, file);
        status = fill ? run_fill(&bench, strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10))
                      : run_table(&bench, memory_bytes);
    }
    if (status != MP_OK)
        fprintf(stderr, "bench_reader: %s: %s\n", mp_error_last()->code, mp_error_last()->text);
    mp_files_destroy(bench.files);
    return status == MP_OK ? 0 : 1;
}
