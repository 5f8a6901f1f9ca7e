/*
 * What this machine can read, for comparisons with what a program reached:
 * `bench_machine FILE [THREADS]` prints one JSON object. `bench_machine --touch BYTES
 * [THREADS]` takes so much new memory, all threads a part of it, and prints how fast it came.
 *
 * Memory: every thread reads an area of its own, far larger than caches, in several streams; the
 * best of some rounds, with one thread and with THREADS (default: all processors). File: blocks of
 * 2 MiB past the page cache (O_DIRECT), by 1, 2, 4, 8 and 16 threads, each number of threads in a
 * fifth of the file of its own, at most 1 GiB; the best of these.
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

#include "tools/bench/streams.h"

#define THREADS_MAX 256
#define AREA_BYTES ((size_t)256 << 20)
#define ROUNDS 25
#define BLOCK_BYTES ((size_t)2 << 20)
#define FILE_COUNTS 5 /* 1, 2, 4, 8, 16 threads */
#define PART_BYTES_MAX ((off_t)1 << 30)

struct job {
    pthread_t thread;
    void *(*work)(void *job);
    unsigned char *area; /* read from, or into */
    uint64_t sum;
    int file;
    atomic_llong *next_block;
    long long blocks;
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

static void *read_memory(void *arg)
{
    struct job *job = arg;

    job->sum += read_streams(job->area, AREA_BYTES / STREAMS, 0, AREA_BYTES / STREAMS);
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

static double file_bytes_per_s(int file, off_t bytes, struct job *jobs, int *threads_p)
{
    const off_t part = bytes / FILE_COUNTS < PART_BYTES_MAX ? bytes / FILE_COUNTS : PART_BYTES_MAX;
    double best = 0;

    for (int n = 0; n < FILE_COUNTS; n++) {
        const double rate = part_bytes_per_s(file, part, n, jobs);

        if (rate > best) {
            best = rate;
            *threads_p = 1 << n;
        }
    }
    return best;
}

static int usage(void)
{
    fprintf(stderr, "usage: bench_machine FILE [THREADS]\n"
                    "       bench_machine --touch BYTES [THREADS]\n");
    return 2;
}

static int read_all(const char *path, int threads)
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
           "\"memory_bytes_per_s\": %.4g, \"disk_bytes_per_s\": %.4g, \"disk_threads\": %d}\n",
           threads, one, all, disk, file_threads);
    close(file);
    return fflush(stdout) != 0;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    const bool is_touch = strcmp(what, "--touch") == 0;
    const int taken = is_touch ? 2 : 1;
    const int threads =
        argc > taken + 1 ? atoi(argv[taken + 1]) : (int)sysconf(_SC_NPROCESSORS_ONLN);

    if (argc < taken + 1 || argc > taken + 2 || threads < 1 || threads > THREADS_MAX)
        return usage();
    return is_touch ? touch(atoll(argv[2]), threads) : read_all(argv[taken], threads);
}
