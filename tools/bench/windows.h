#ifndef BENCH_WINDOWS_H
#define BENCH_WINDOWS_H

#include <stdbool.h>
#include <stdint.h>

#include "interpose/mapping/moves.h"

/* What windows.c (the measurement) and windows_ways.c (the ways) share. */
struct bench {
    uint64_t expert_bytes;
    uint32_t experts, slots;
    int fd, direct_fd; /* of the file, through the page cache and past it */
    char *window;      /* where a program reads: experts * expert_bytes */
    char *frames;      /* slots * expert_bytes */
    int frames_fd, uffd;
    struct mp_real real;
    struct mp_moves moves;
    uint64_t read_ns, read_cpu_ns; /* of reads that show() made */
};

/* A way to keep part of a file in memory under a program that reads all of it. */
struct way {
    const char *name, *summary;
    bool (*open)(struct bench *b);
    void (*show)(struct bench *b, uint32_t expert, uint32_t slot); /* reads it, too */
    void (*hide)(struct bench *b, uint32_t expert, uint32_t slot);
    void (*in_child)(struct bench *b); /* after fork(); NULL: nothing is done */
};

extern const struct way *const bench_ways[]; // NULL ends it

/* The file's bytes, past the page cache; timed. */
void bench_read(struct bench *b, uint32_t expert, char *to);
uint64_t bench_now_ns(int clock);

#endif
