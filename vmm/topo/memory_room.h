#ifndef MP_MEMORY_ROOM_H
#define MP_MEMORY_ROOM_H

#include <stdbool.h>
#include <stdint.h>

/*
 * How much host memory this process can take before somebody stops it: the machine, one of the
 * control groups (version 1 and 2) that the process is in, or its limit on addresses (ulimit -v).
 * Only reads; limits stay as they are.
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
 * `root` is put before /proc and /sys, for tests; "" is the live system. What cannot be read
 * counts as no limit; without /proc/meminfo total, available and room are 0.
 *
 * A control group's page cache that was not used lately counts as free: reading a model fills it,
 * and the kernel gives it back before it refuses anything.
 */
void mp_memory_room_read(const char *root, struct mp_memory_room *room);

/* What experts may take beside a program that is not ours and its other weights: an eighth of the
 * room, and 256 MiB, stay for it. 0: nothing is left. */
uint64_t mp_memory_room_beside(const struct mp_memory_room *room, uint64_t weights_bytes);

/*
 * How many mappings this process has, and how many it may have (vm.max_map_count). False: the
 * kernel does not say. `root` as above.
 */
bool mp_memory_maps_read(const char *root, uint64_t *count_p, uint64_t *max_p);

#endif
