#ifndef MP_MEMORY_ROOM_H
#define MP_MEMORY_ROOM_H

#include <stdbool.h>
#include <stdint.h>

/*
 * How much more host memory this process can allocate: limited by the machine, by the control
 * groups (version 1 and 2) that the process is in, and by its limit on address space (ulimit -v).
 * Limits are only read.
 *
 * Thread safety: any thread.
 */
struct mp_memory_room {
    uint64_t total_bytes;     /* RAM of the machine */
    uint64_t available_bytes; /* what the machine can give without swapping */
    uint64_t limit_bytes;     /* the tightest limit of a control group; UINT64_MAX without one */
    uint64_t address_bytes;   /* addresses that RLIMIT_AS leaves; UINT64_MAX without one */
    uint64_t room_bytes;      /* the least that is left: the basis of an automatic budget */
};

/*
 * `root` is a prefix of /proc and /sys, for tests; "" is the live system. A limit that cannot be
 * read counts as none; without /proc/meminfo total, available and room are 0.
 *
 * Inactive page cache of a control group counts as free: reading a model fills it, and the kernel
 * reclaims it before it refuses an allocation.
 */
void mp_memory_room_read(const char *root, struct mp_memory_room *room);

/* What a program that is not ours needs beside its weights, at least. */
#define MP_MEMORY_PROGRAM_BYTES (UINT64_C(256) << 20)

/* Memory for experts under another program that keeps its other weights: an eighth of the room and
 * those 256 MiB are left to it. 0: nothing is left. */
uint64_t mp_memory_room_beside(const struct mp_memory_room *room, uint64_t weights_bytes);

/*
 * Number of mappings of this process, and their maximum (vm.max_map_count). False: unknown. `root`
 * as above.
 */
bool mp_memory_maps_read(const char *root, uint64_t *count_p, uint64_t *max_p);

/* Mappings that are left to whoever else in the process needs some. */
#define MP_MEMORY_MAPS_SPARE 4096

/* Mappings that the kernel still has for this process, less those; UINT64_MAX: unknown. */
uint64_t mp_memory_maps_left(void);

#endif
