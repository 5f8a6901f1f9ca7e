#ifndef MP_MEMORY_ROOM_H
#define MP_MEMORY_ROOM_H

#include <stdbool.h>
#include <stdint.h>

/*
 * How much host memory this process can take before somebody stops it: the machine, or one of the
 * control groups (version 1 and 2) that the process is in. Only reads; limits stay as they are.
 *
 * Thread safety: any thread.
 */
struct mp_memory_room {
    uint64_t total_bytes;     /* RAM of the machine */
    uint64_t available_bytes; /* what the machine can give without swapping */
    uint64_t limit_bytes;     /* the tightest limit of a control group; UINT64_MAX without one */
    uint64_t room_bytes;      /* what is left of both: the basis of an automatic budget */
};

/*
 * `root` is put before /proc and /sys, for tests; "" is the live system. What cannot be read
 * counts as no limit; without /proc/meminfo all but limit_bytes are 0.
 *
 * A control group's page cache that was not used lately counts as free: reading a model fills it,
 * and the kernel gives it back before it refuses anything.
 */
void mp_memory_room_read(const char *root, struct mp_memory_room *room);

/*
 * How many mappings this process has, and how many it may have (vm.max_map_count). False: the
 * kernel does not say. `root` as above.
 */
bool mp_memory_maps_read(const char *root, uint64_t *count_p, uint64_t *max_p);

#endif
