/*
 * Speed of the file tier: `bench_reader FILE [EXTENT_KIB [SECONDS [MEMORY_MIB]]]`.
 *
 * Reads random extents of one size with the reader that the pager uses, direct, into memory that is
 * already there (in turn, so that caches do not hold it), as many at once as a layer may want, for
 * every engine and several sizes of chunks and numbers of reads in flight. Each setting is measured
 * in three rounds, which alternate; the median and the processor time that the process spent per GB
 * are printed. The defaults in vmm/io_options.c are chosen from this table.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "vmm/reader.h"

#define TICKETS 8
#define ROUNDS 3
#define ALIGN 4096

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

int main(int argc, char **argv)
{
    struct bench bench = {
        .extent_bytes = (argc > 2 ? strtoull(argv[2], NULL, 10) : 9216) << 10,
        .seconds = argc > 3 ? strtod(argv[3], NULL) : 0.5,
        .random = 1,
    };
    const uint64_t memory_bytes = (argc > 4 ? strtoull(argv[4], NULL, 10) : 1024) << 20;
    uint32_t file;
    enum mp_status status = MP_OK;

    if (argc < 2) {
        fprintf(stderr, "usage: bench_reader FILE [EXTENT_KIB [SECONDS [MEMORY_MIB]]]\n");
        return 2;
    }
    status = mp_files_create(&bench.files);
    if (status == MP_OK)
        status = mp_files_add(bench.files, AT_FDCWD, argv[1], &file);
    if (status == MP_OK) {
        bench.file_bytes = mp_files_bytes(bench.files, file);
        if (bench.extent_bytes == 0 || bench.extent_bytes % ALIGN != 0 ||
            bench.file_bytes < 2 * bench.extent_bytes ||
            memory_bytes < TICKETS * bench.extent_bytes)
            status = mp_fail(MP_ERR_CONFIG, "E_BENCH",
                             "extents are multiples of 4 KiB, and the "
                             "file holds two at least");
    }
    if (status == MP_OK) {
        bench.places = memory_bytes / bench.extent_bytes;
        bench.memory =
            mmap(NULL, memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (bench.memory == MAP_FAILED)
            status = mp_fail_no_memory("the extents", memory_bytes);
    }
    if (status == MP_OK) {
        madvise(bench.memory, memory_bytes, MADV_HUGEPAGE);
        memset(bench.memory, 1, memory_bytes);
        status = run(&bench);
    }
    if (status != MP_OK)
        fprintf(stderr, "bench_reader: %s: %s\n", mp_error_last()->code, mp_error_last()->text);
    mp_files_destroy(bench.files);
    return status == MP_OK ? 0 : 1;
}
