#ifndef MP_FAKECUDA_H
#define MP_FAKECUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * A CUDA driver without a device, for tests on machines that have none: tests/device/fakecuda
 * builds a libcuda.so.1 that moepager loads by the same dlopen() as the real one. It is stricter
 * than the real one: what the documentation forbids or leaves open is recorded as a violation, and
 * a program that ends with one ends with 97.
 *
 * Device memory is anonymous memory files, addresses are reservations of this process, streams are
 * threads, kernels are their own source compiled for the host (simt.h). A touch of a hole is a real
 * fault of the CPU: for the program deadly, for a stream CUDA_ERROR_ILLEGAL_ADDRESS.
 *
 * Memory: offset 0, exact unmap, map only on unmapped reservations, sizes and addresses in
 * granules, no access before setAccess, setAccess over fully mapped ranges, locations; a handle
 * lives until it was released and its last mapping is gone; memory that nobody wrote holds 0xdb.
 * The program cannot touch device memory where the CPU has protection keys.
 *
 * Streams: every operation declares what it reads and writes when it is queued, and, where tables
 * in device memory say more, when it runs. Violations are
 *   - two operations that touch the same memory, one writing, that no stream, event or wait of the
 *     host orders, whether or not the race shows;
 *   - unmap, change of access, free of what an operation touches, destruction of its stream, event,
 *     module or graph, before the host has seen its end (that it happens to be finished is no
 * excuse);
 *   - a touch of a hole, without access, or of what was mapped after the operation was queued;
 *   - the source of a copy, or host memory that a kernel reads, changed by the program meanwhile;
 *     the target of a copy to the host holds 0xdb until it is done;
 *   - copies with memory of the host that is not pinned, the default stream, dead handles;
 *   - mapping anywhere, allocating or waiting in the thread, while a stream is captured;
 *   - the first launch of a kernel while its stream is captured: a driver may load it only then;
 *   - programmatic dependent launch (cuLaunchKernelEx) behind anything else than a kernel that
 * waits for those before it, and of one whose text has no griddepcontrol.wait, or touches memory
 *     before it (here kernels run one after another all the same);
 *   - the first of these where the two are in branches of one graph, although here a graph runs in
 *     the order of its capture.
 *
 * Not seen: races between threads of the host, memory that a kernel touches within a mapping but
 * does not declare.
 *
 * It has no private tables of the vendor, so the vendor's runtime and cuBLAS refuse to run on
 * it, and that is as it must be.
 *
 * This interface is for tests; it is looked up with dlsym() on the loaded library (client.h).
 */

/* What to imitate. Environment CUDA_VISIBLE_DEVICES, FAKECUDA_DEVICES (1), FAKECUDA_MIG (1: each is
 * seen as its first slice, which has a name, a UUID and an eighth of the memory), FAKECUDA_MEMORY
 * (bytes, 256 MiB), FAKECUDA_CONTEXT (bytes that a context takes, 0), FAKECUDA_NODE (bytes that
 * each operation of a graph takes, 0), FAKECUDA_CAPABILITY (90: compute capability 9.0; how much
 * shared memory a block may have), FAKECUDA_VERSION (13000: of the driver), FAKECUDA_GRANULE (2
 * MiB), FAKECUDA_HOST_GRANULE (the same, of memory of a NUMA node), FAKECUDA_HOST_NUMA (0: as with
 * an old driver, 1, default, 2: cuMemCreate on a NUMA node crashes), FAKECUDA_HOST_NODES (1: NUMA
 * nodes of the host that have memory, from 0 on, 4 at most), FAKECUDA_NUMA_ID (0: the node beside
 * each device, separated by commas, the last one of all others; -1: the driver does not know),
 * FAKECUDA_INIT (result of cuInit), FAKECUDA_PROFILE (3090, h100, blackwell: calls, copies and
 * kernels take as long as others have measured there), FAKECUDA_SEED, FAKECUDA_LAZY (see timing),
 * FAKECUDA_KEYS (0: no protection keys), FAKECUDA_REGISTER (bytes that cuMemHostRegister pins at
 * most), FAKECUDA_SHARED (a file: processes that name the same share the memory of the devices),
 * FAKECUDA_VERBOSE (1: say violations at once), FAKECUDA_WRONG (KERNEL or KERNEL+BIT: each launch
 * leaves that bit, the lowest, of its results wrong, or does nothing if it has none), FAKECUDA_FAIL
 * (NAME,NTH,RESULT: as fakecuda_fail() does, once). Read when first used. */

/*
 * The nth call from now (0: the next) of the driver function `name`, or of any if it is NULL or
 * "*", returns `result` instead of doing its work; with `forever` all later ones too. Replaces the
 * previous plan with the same name; up to 8 plans. A result that means a lost device is returned by
 * every call from then on, until the next reset.
 *
 * "later:NAME": the nth operation that is queued by call NAME (or launch of kernel NAME) is taken,
 * and fails when it should be done: who waits for it gets the error, each thread once, and what a
 * thread queues behind it is skipped until that thread has got the error. (On a real device such a
 * failure is for good. Here a program can go on, but never from the middle of operations that need
 * each other.) Results that mean a lost device are sticky from then on.
 */
typedef void fakecuda_fail_fn(const char *name, uint64_t nth, int result, bool forever);

#define FAKECUDA_NODES_MAX 4

/* As a result: the call does not return, and streams stand still, until fakecuda_stall(false); then
 * it does its work. */
#define FAKECUDA_HANGS (-1)

/* Forget all plans, counts and violations; does not touch memory or contexts. */
typedef void fakecuda_reset_fn(void);

/* Calls of `name` since the reset; of all functions for NULL. A test asserts with this that the
 * fake was really used. */
typedef uint64_t fakecuda_calls_fn(const char *name);

/* Number of violations; text[] gets the first one. */
typedef unsigned fakecuda_violations_fn(char *text, size_t bytes);

/* What streams were given since the reset, replays of graphs included. idle_blocks: of kernels that
 * compute experts, those that find no row to compute, idle_attend: of attention, those for
 * positions that their token does not have; counted when the kernel runs. early: kernels that may
 * begin before the one before them has ended. */
struct fakecuda_work {
    uint64_t kernels, copies, fills, blocks, idle_blocks, idle_attend, early;
};
typedef void fakecuda_work_fn(struct fakecuda_work *work);

/* Objects that live now. */
struct fakecuda_live {
    unsigned reservations, handles, mappings, pinned, allocations, contexts;
    unsigned streams, events, modules, graphs;
    uint64_t device_bytes, host_bytes[FAKECUDA_NODES_MAX]; /* of handles, on each node */
};
typedef void fakecuda_live_fn(struct fakecuda_live *live);

/* From now on every call fails with this sticky result, as after a fault on the device; 0 ends it
 * (a real device would have to be opened anew). */
typedef void fakecuda_lose_fn(int result);

/*
 * Calls, since the reset, of threads that knew from an earlier one that the device is lost.
 * Other threads cannot know of it yet.
 */
typedef uint64_t fakecuda_calls_too_many_fn(void);

/*
 * An operation of the device that is not finished: it reads or writes [address, address + bytes)
 * until fakecuda_end(). Unmapping, freeing or changing the access of what it touches is a
 * violation, and so is beginning one on a range that is not mapped and accessible. Returns a number
 * for end.
 */
typedef unsigned fakecuda_begin_fn(unsigned long long address, size_t bytes, bool write);
typedef void fakecuda_end_fn(unsigned operation);

/* Streams stand still, whatever is queued, until this is called with false. */
typedef void fakecuda_stall_fn(bool stalled);

/* Returns when streams have done all that is queued; they must not stand still. The host has not
 * seen the end of any of it: that it happens to be finished is no excuse. */
typedef void fakecuda_settle_fn(void);

/*
 * When operations are done. seed 0: at once; else by chance a little later, the same chances for
 * the same seed. lazy_ms > 0: what nobody waits for, or asks after, is left for so long.
 * FAKECUDA_SEED and FAKECUDA_LAZY say the same from the start.
 */
typedef void fakecuda_timing_fn(uint64_t seed, unsigned lazy_ms);

/* What cuEventElapsedTime says from now on, in ms, whatever took how long; 0: the truth. */
typedef void fakecuda_elapsed_fn(float ms);

/* A place in the program that calls the driver: its return address. */
struct fakecuda_site {
    const void *address;
    const char *call;
    uint64_t calls, failed; /* since the start */
};

/* Fills in up to `max` sites; returns how many there are. */
typedef unsigned fakecuda_sites_fn(struct fakecuda_site *sites, unsigned max);

/* As fakecuda_fail(), for the calls from one place. */
typedef void fakecuda_fail_site_fn(const void *site, uint64_t nth, int result, bool forever);

/*
 * From the next failure that a plan causes on, every call that gives something back (unmap,
 * release, free, destroy, unload) fails too, with this result. 0: not any more, as after a reset.
 */
typedef void fakecuda_fail_undo_fn(int result);

/*
 * Everything that lives is gone, as when the process had been started anew: for sweeps of failures
 * after which things stay behind. Nothing of the driver may be used any more by the program.
 */
typedef void fakecuda_clear_fn(void);

/* What launches of an entry with this name do; before the kernels of kernels/cuda. */
struct mp_simt_kernel;
typedef void fakecuda_kernel_fn(const struct mp_simt_kernel *kernel);

/* 1: the program cannot touch device memory; 0: this CPU has no protection keys, and it can. */
typedef int fakecuda_keys_fn(void);

#define FAKECUDA_API_MAP(X) \
    X(fail)                 \
    X(fail_site)            \
    X(fail_undo)            \
    X(clear)                \
    X(reset)                \
    X(calls)                \
    X(calls_too_many)       \
    X(violations)           \
    X(live)                 \
    X(work)                 \
    X(lose)                 \
    X(stall)                \
    X(settle)               \
    X(timing)               \
    X(elapsed)              \
    X(sites)                \
    X(kernel)               \
    X(keys)                 \
    X(begin)                \
    X(end)

#define X(name) fakecuda_##name##_fn fakecuda_##name;
FAKECUDA_API_MAP(X)
#undef X

#endif
