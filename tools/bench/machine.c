/*
 * What this machine can read, for comparisons with what a program reached:
 * `bench_machine [--beside] FILE [THREADS]` prints one JSON object. `bench_machine --touch BYTES
 * [THREADS]` takes so much new memory, all threads a part of it, and prints how fast it came.
 *
 * Memory: every thread reads an area of its own, far larger than caches, in several streams; the
 * best of some rounds, with one thread and with THREADS (default: all processors). File: blocks of
 * 2 MiB past the page cache (O_DIRECT), by 1, 2, 4, 8 and 16 threads, each number of threads in a
 * fifth of the file of its own, at most 1 GiB; the best of these.
 *
 * --beside: both at once as well. THREADS threads read memory all the time, as one does that
 * computes a token, and the file is read meanwhile by 1, 2, 4, 8 and 16 threads, at most 512 MiB by
 * each number; how fast each of the two was then is printed for every number.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define THREADS_MAX 256
#define AREA_BYTES ((size_t)256 << 20)
#define ROUNDS 25
#define STREAMS 8
#define BLOCK_BYTES ((size_t)2 << 20)
#define FILE_COUNTS 5 /* 1, 2, 4, 8, 16 threads */
#define PART_BYTES_MAX ((off_t)1 << 30)
#define BESIDE_BYTES_MAX ((off_t)1 << 29)
#define SLICE_BYTES ((size_t)64 << 10) /* of a stream, between two looks at the stop sign */

struct job {
    pthread_t thread;
    void *(*work)(void *job);
    unsigned char *area; /* read from, or into */
    uint64_t sum;
    int file;
    atomic_llong *next_block;
    long long blocks;
    atomic_bool *stop; /* of threads that read memory until they are told */
    double bytes_per_s;
    const char *error;
};

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "bench_machine: %s: %s\n", what, why);
    exit(1);
}

/* Those bytes of each stream. A step reads 256 of each; asking for what comes 1 KiB later is what
 * reads fastest. */
static void read_streams(struct job *job, size_t begin, size_t end)
{
    typedef uint64_t words __attribute__((vector_size(64)));
    const size_t part = AREA_BYTES / STREAMS;
    words sums[4] = { 0 };

    for (size_t at = begin; at < end; at += sizeof(sums)) {
        for (size_t stream = 0; stream < STREAMS; stream++) {
            const unsigned char *from = job->area + stream * part + at;

            for (size_t i = 0; i < 4; i++)
                __builtin_prefetch(from + 1024 + i * sizeof(words));
            for (size_t i = 0; i < 4; i++)
                sums[i] += *(const words *)(from + i * sizeof(words));
        }
    }
    sums[0] += sums[1] + sums[2] + sums[3];
    for (size_t i = 0; i < 8; i++)
        job->sum += sums[0][i];
}

static void *read_memory(void *arg)
{
    read_streams(arg, 0, AREA_BYTES / STREAMS);
    return NULL;
}

static void *read_memory_on(void *arg)
{
    struct job *job = arg;
    const double start = now_s();
    double slices = 0;

    for (size_t at = 0; !atomic_load(job->stop); at = (at + SLICE_BYTES) % (AREA_BYTES / STREAMS)) {
        read_streams(job, at, at + SLICE_BYTES);
        slices++;
    }
    job->bytes_per_s = slices * (double)(SLICE_BYTES * STREAMS) / (now_s() - start);
    return NULL;
}

static void *read_file(void *arg)
{
    struct job *job = arg;
    long long block;

    while ((block = atomic_fetch_add(job->next_block, 1)) < job->blocks) {
        const ssize_t got =
            pread(job->file, job->area, BLOCK_BYTES, (off_t)block * (off_t)BLOCK_BYTES);

        if (got != (ssize_t)BLOCK_BYTES) {
            job->error = got < 0 ? strerror(errno) : "the file ended early";
            return NULL;
        }
    }
    return NULL;
}

static void start_jobs(struct job *jobs, int count)
{
    for (int i = 0; i < count; i++) {
        if (pthread_create(&jobs[i].thread, NULL, jobs[i].work, &jobs[i]) != 0)
            fail("thread", "cannot be started");
    }
}

static void join_jobs(struct job *jobs, int count)
{
    for (int i = 0; i < count; i++) {
        pthread_join(jobs[i].thread, NULL);
        if (jobs[i].error != NULL)
            fail("read", jobs[i].error);
    }
}

/* Seconds until all have done their work. */
static double run_jobs(struct job *jobs, int count)
{
    const double start = now_s();

    start_jobs(jobs, count);
    join_jobs(jobs, count);
    return now_s() - start;
}

static void map_areas(struct job *jobs, int count, size_t bytes)
{
    for (int i = 0; i < count; i++) {
        void *area = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

        if (area == MAP_FAILED)
            fail("memory", strerror(errno));
        madvise(area, bytes, MADV_HUGEPAGE); /* a wish */
        memset(area, i + 1, bytes);
        jobs[i].area = area;
    }
}

static double memory_bytes_per_s(int threads)
{
    static struct job jobs[THREADS_MAX];
    double best_s = 0;

    map_areas(jobs, threads, AREA_BYTES);
    for (int round = 0; round < ROUNDS; round++) {
        double s;

        for (int i = 0; i < threads; i++)
            jobs[i].work = read_memory;
        s = run_jobs(jobs, threads);
        if (round == 0 || s < best_s)
            best_s = s;
    }
    for (int i = 0; i < threads; i++)
        munmap(jobs[i].area, AREA_BYTES);
    return (double)AREA_BYTES * threads / best_s;
}

static void *touch_memory(void *arg)
{
    struct job *job = arg;

    if (madvise(job->area, (size_t)job->blocks * BLOCK_BYTES, MADV_POPULATE_WRITE) != 0)
        job->error = strerror(errno);
    return NULL;
}

/* Huge pages where they can be had. */
static int touch(long long bytes, int threads)
{
    static struct job jobs[THREADS_MAX];
    const long long blocks = bytes / (long long)BLOCK_BYTES / threads;
    const size_t part = (size_t)blocks * BLOCK_BYTES, all = part * (size_t)threads + BLOCK_BYTES;
    char *area = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    double s;

    if (blocks < 1 || area == MAP_FAILED)
        fail("memory", blocks < 1 ? "less than 2 MiB for a thread" : strerror(errno));
    area += (BLOCK_BYTES - (uintptr_t)area % BLOCK_BYTES) % BLOCK_BYTES;
    madvise(area, part * (size_t)threads, MADV_HUGEPAGE); /* a wish */
    for (int i = 0; i < threads; i++)
        jobs[i] = (struct job){ .work = touch_memory,
                                .area = (unsigned char *)area + part * (size_t)i,
                                .blocks = blocks };
    s = run_jobs(jobs, threads);
    printf("{\"threads\": %d, \"new_memory_bytes_per_s\": %.4g}\n", threads,
           (double)part * threads / s);
    return fflush(stdout) != 0;
}

/* By 1 << n threads, in the n-th of FILE_COUNTS parts of the file. */
static double part_bytes_per_s(int file, off_t part, int n, struct job *jobs)
{
    const long long blocks = part / (off_t)BLOCK_BYTES;
    const int threads = 1 << n;
    atomic_llong next = n * blocks;

    for (int i = 0; i < threads; i++) {
        jobs[i].work = read_file;
        jobs[i].file = file;
        jobs[i].next_block = &next;
        jobs[i].blocks = (n + 1) * blocks;
    }
    return (double)blocks * (double)BLOCK_BYTES / run_jobs(jobs, threads);
}

static off_t part_bytes(off_t bytes, off_t most)
{
    return bytes / FILE_COUNTS < most ? bytes / FILE_COUNTS : most;
}

static double file_bytes_per_s(int file, off_t bytes, struct job *jobs, int *threads_p)
{
    double best = 0;

    for (int n = 0; n < FILE_COUNTS; n++) {
        const double rate = part_bytes_per_s(file, part_bytes(bytes, PART_BYTES_MAX), n, jobs);

        if (rate > best) {
            best = rate;
            *threads_p = 1 << n;
        }
    }
    return best;
}

/* A member of the JSON object: what the file gave, and memory meanwhile. */
static void print_beside(int file, off_t bytes, struct job *file_jobs, int threads)
{
    static struct job jobs[THREADS_MAX];

    map_areas(jobs, threads, AREA_BYTES);
    printf(", \"beside\": [");
    for (int n = 0; n < FILE_COUNTS; n++) {
        atomic_bool stop = false;
        double disk, memory = 0;

        for (int i = 0; i < threads; i++) {
            jobs[i].work = read_memory_on;
            jobs[i].stop = &stop;
        }
        start_jobs(jobs, threads);
        disk = part_bytes_per_s(file, part_bytes(bytes, BESIDE_BYTES_MAX), n, file_jobs);
        atomic_store(&stop, true);
        join_jobs(jobs, threads);
        for (int i = 0; i < threads; i++)
            memory += jobs[i].bytes_per_s;
        printf("%s{\"disk_threads\": %d, \"disk_bytes_per_s\": %.4g, "
               "\"memory_bytes_per_s\": %.4g}",
               n > 0 ? ", " : "", 1 << n, disk, memory);
    }
    printf("]");
}

static int usage(void)
{
    fprintf(stderr, "usage: bench_machine [--beside] FILE [THREADS]\n"
                    "       bench_machine --touch BYTES [THREADS]\n");
    return 2;
}

static int read_all(const char *path, int threads, bool beside)
{
    static struct job jobs[1 << (FILE_COUNTS - 1)];
    const int file = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    int file_threads = 0;
    double one, all, disk;
    struct stat info;

    if (file < 0 || fstat(file, &info) != 0)
        fail(path, strerror(errno));
    if (info.st_size < FILE_COUNTS * (off_t)BLOCK_BYTES)
        fail(path, "smaller than 10 MiB");
    map_areas(jobs, 1 << (FILE_COUNTS - 1), BLOCK_BYTES);
    one = memory_bytes_per_s(1);
    all = memory_bytes_per_s(threads);
    disk = file_bytes_per_s(file, info.st_size, jobs, &file_threads);
    printf("{\"threads\": %d, \"memory_bytes_per_s_one_thread\": %.4g, "
           "\"memory_bytes_per_s\": %.4g, \"disk_bytes_per_s\": %.4g, \"disk_threads\": %d",
           threads, one, all, disk, file_threads);
    if (beside)
        print_beside(file, info.st_size, jobs, threads);
    printf("}\n");
    close(file);
    return fflush(stdout) != 0;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    const bool is_touch = strcmp(what, "--touch") == 0, beside = strcmp(what, "--beside") == 0;
    const int taken = is_touch || beside ? 2 : 1;
    const int threads =
        argc > taken + 1 ? atoi(argv[taken + 1]) : (int)sysconf(_SC_NPROCESSORS_ONLN);

    if (argc < taken + 1 || argc > taken + 2 || threads < 1 || threads > THREADS_MAX)
        return usage();
    return is_touch ? touch(atoll(argv[2]), threads) : read_all(argv[taken], threads, beside);
}
