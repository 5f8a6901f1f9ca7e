/*
 * What this machine can read, for comparisons with what a program reached:
 * `bench_machine FILE [THREADS]` prints one JSON object. `bench_machine --touch BYTES
 * [THREADS]` takes so much new memory, all threads a part of it, and prints how fast it came.
 *
 * Memory: every thread reads an area of its own, far larger than caches, in several streams; with
 * one thread and with THREADS (default: all processors), the best round and the mean of all. File:
 * blocks of 2 MiB past the page cache (O_DIRECT), into the same areas from end to end: a disk whose
 * host copies what it reads is faster into a buffer that stays in caches, which is not where
 * experts are kept (docs/performance.md). By 1, 2, 4, 8 and 16 threads, each number of threads in a
 * fifth of the file of its own, at most 1 GiB; the best of these, and with that many threads the
 * mean of the whole file, at most 3 GiB.
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
#define ROUNDS 40
#define BLOCK_BYTES ((size_t)2 << 20)
#define FILE_COUNTS 5 /* 1, 2, 4, 8, 16 threads */
#define FILE_THREADS_MAX (1 << (FILE_COUNTS - 1))
#define PART_BYTES_MAX ((off_t)1 << 30)
#define MEAN_BYTES_MAX ((off_t)3 << 30)

struct job {
    pthread_t thread;
    void *(*work)(void *job);
    unsigned char *area; /* read from, or into */
    size_t area_bytes;
    uint64_t sum;
    int file;
    atomic_llong *next_block;
    long long blocks;
    const char *error;
};

struct speed {
    double best, mean; /* bytes per second */
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
        const size_t place = (size_t)block % (job->area_bytes / BLOCK_BYTES) * BLOCK_BYTES;
        const ssize_t got =
            pread(job->file, job->area + place, BLOCK_BYTES, (off_t)block * (off_t)BLOCK_BYTES);

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

static unsigned char *map_memory(size_t bytes)
{
    unsigned char *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        fail("memory", strerror(errno));
    madvise(memory, bytes, MADV_HUGEPAGE); /* a hint */
    memset(memory, 1, bytes);
    return memory;
}

/* Each thread AREA_BYTES of `memory`. */
static struct speed read_areas(unsigned char *memory, int threads)
{
    static struct job jobs[THREADS_MAX];
    const double bytes = (double)AREA_BYTES * threads;
    struct speed speed = { 0 };
    double all_s = 0;

    for (int i = 0; i < threads; i++)
        jobs[i] = (struct job){ .work = read_memory, .area = memory + AREA_BYTES * (size_t)i };
    for (int round = 0; round < ROUNDS; round++) {
        const double s = run_jobs(jobs, threads);

        all_s += s;
        if (bytes / s > speed.best)
            speed.best = bytes / s;
    }
    speed.mean = ROUNDS * bytes / all_s;
    return speed;
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
    madvise(area, part * (size_t)threads, MADV_HUGEPAGE); /* a hint */
    for (int i = 0; i < threads; i++)
        jobs[i] = (struct job){ .work = touch_memory,
                                .area = (unsigned char *)area + part * (size_t)i,
                                .blocks = blocks };
    s = run_jobs(jobs, threads);
    printf("{\"threads\": %d, \"new_memory_bytes_per_s\": %.4g}\n", threads,
           (double)part * threads / s);
    return fflush(stdout) != 0;
}

/* Blocks `begin` to `end` of a file, into an area; bytes per second. */
static double read_blocks(const struct job *how, int threads, long long begin, long long end)
{
    static struct job jobs[FILE_THREADS_MAX];
    atomic_llong next = begin;

    for (int i = 0; i < threads; i++) {
        jobs[i] = *how;
        jobs[i].next_block = &next;
        jobs[i].blocks = end;
    }
    return (double)(end - begin) * (double)BLOCK_BYTES / run_jobs(jobs, threads);
}

static off_t at_most(off_t bytes, off_t most)
{
    return bytes < most ? bytes : most;
}

static struct speed read_disk(const struct job *how, off_t bytes, int *threads_p)
{
    const long long part = at_most(bytes / FILE_COUNTS, PART_BYTES_MAX) / (off_t)BLOCK_BYTES;
    struct speed speed = { 0 };

    for (int n = 0; n < FILE_COUNTS; n++) {
        const double rate = read_blocks(how, 1 << n, n * part, (n + 1) * part);

        if (rate > speed.best) {
            speed.best = rate;
            *threads_p = 1 << n;
        }
    }
    speed.mean =
        read_blocks(how, *threads_p, 0, at_most(bytes, MEAN_BYTES_MAX) / (off_t)BLOCK_BYTES);
    if (speed.mean > speed.best)
        speed.best = speed.mean;
    return speed;
}

static int usage(void)
{
    fprintf(stderr, "usage: bench_machine FILE [THREADS]\n"
                    "       bench_machine --touch BYTES [THREADS]\n");
    return 2;
}

static int read_all(const char *path, int threads)
{
    const int file = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    const size_t bytes = AREA_BYTES * (size_t)threads;
    int file_threads = 1;
    struct speed one, all, disk;
    unsigned char *memory;
    struct stat info;

    if (file < 0 || fstat(file, &info) != 0)
        fail(path, strerror(errno));
    if (info.st_size < FILE_COUNTS * (off_t)BLOCK_BYTES)
        fail(path, "smaller than 10 MiB");
    memory = map_memory(bytes);
    one = read_areas(memory, 1);
    all = read_areas(memory, threads);
    disk = read_disk(
        &(struct job){ .work = read_file, .file = file, .area = memory, .area_bytes = bytes },
        info.st_size, &file_threads);
    printf("{\"threads\": %d, \"memory_bytes_per_s_one_thread\": %.4g, "
           "\"memory_bytes_per_s\": %.4g, \"memory_bytes_per_s_mean\": %.4g, "
           "\"disk_bytes_per_s\": %.4g, \"disk_bytes_per_s_mean\": %.4g, \"disk_threads\": %d}\n",
           threads, one.best, all.best, all.mean, disk.best, disk.mean, file_threads);
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
