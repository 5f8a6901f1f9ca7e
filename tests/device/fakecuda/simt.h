#ifndef MP_SIMT_H
#define MP_SIMT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The project's kernels (kernels/cuda/) on the CPU: the same source, compiled by the host's C
 * compiler. The threads of a block are coroutines on one thread of the host with the semantics of
 * the real thing: __shared__ memory, barriers, shuffles and votes of warps, atomics; blocks run one
 * after another. Every operation on floats is the IEEE operation that the PTX names, so a device
 * that rounds correctly computes the same bits. Nothing here says how fast a kernel is on a device.
 *
 * Device addresses are addresses of this process. Thread safety: any number of host threads may run
 * launches at the same time; each keeps the stacks of its coroutines until it ends.
 */
struct mp_simt_dim {
    uint32_t x, y, z;
};

/*
 * Called for each range that a launch may read or write; a matrix with a stride is one range from
 * its first element to its last. False: the range is not accessible, and nothing in it is looked
 * at; what can be listed without it still is.
 */
typedef bool mp_simt_emit(void *ctx, uint64_t address, uint64_t bytes, bool write);

struct mp_simt_kernel {
    const char *name; /* of the entry: "mp_rmsnorm" */
    uint32_t params_bytes;

    /*
     * Run one launch to its end. NULL, or what is wrong with the kernel (a barrier that not all
     * threads reach, a bad grid, no memory for its threads), as text that lasts until this thread's
     * next launch. Addresses are not checked: see touches().
     */
    const char *(*run)(const void *params, struct mp_simt_dim grid, struct mp_simt_dim block,
                       uint32_t shared_bytes);

    /*
     * Emit what a launch with these parameters may touch. Tables and work lists in memory are read
     * (after they were emitted), so call it when the launch is about to run, not when it is queued.
     */
    void (*touches)(const void *params, mp_simt_emit *emit, void *ctx);
};

/* Blocks of such a launch of a kernel that computes experts for which its list has no row; 0 for
 * others. Reads the list, as touches() does. */
uint64_t mp_simt_idle_blocks(const struct mp_simt_kernel *kernel, const void *params,
                             struct mp_simt_dim grid);

/* The same of attention: blocks for positions that a token does not have. */
uint64_t mp_simt_idle_attend(const struct mp_simt_kernel *kernel, const void *params,
                             struct mp_simt_dim grid);

/* The kernel with this name, or NULL. */
const struct mp_simt_kernel *mp_simt_find(const char *name);

/*
 * For tests of kernels: the order in which threads of a block run between barriers, of this host
 * thread's launches. Results must not depend on it.
 */
enum mp_simt_order { MP_SIMT_FORWARD, MP_SIMT_BACKWARD, MP_SIMT_MIXED };
void mp_simt_set_order(enum mp_simt_order order);

#endif
