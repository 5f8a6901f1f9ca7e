#ifndef MP_FAKECUDA_H
#define MP_FAKECUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * A CUDA driver without a device, for tests on machines that have none: tests/fakecuda builds a
 * libcuda.so.1 that moepager loads by the same dlopen() as the real one. It is stricter than the
 * real one: what the documentation forbids or leaves open is recorded as a violation, and a test
 * that ends with one has failed.
 *
 * Device memory is anonymous memory files, addresses are reservations of this process, and a touch
 * of a hole is a real fault of the CPU. Enforced: offset 0, exact unmap, map only on unmapped
 * reservations, sizes and addresses in granules, no access before setAccess, setAccess over fully
 * mapped ranges, host access only for memory of the host, locations; a handle lives until it was
 * released and its last mapping is gone; a current context where one is needed.
 *
 * It answers no private tables of the vendor, so the vendor's runtime and cuBLAS refuse to run on
 * it, and that is as it must be.
 *
 * This interface is for tests; it is looked up with dlsym() on the loaded library.
 */

/* What to imitate. Environment FAKECUDA_DEVICES (1), FAKECUDA_MEMORY (bytes, 256 MiB),
 * FAKECUDA_GRANULE (2 MiB), FAKECUDA_HOST_NUMA (0: as with an old driver, 1, default),
 * FAKECUDA_NUMA_ID (0; -1: the driver does not know), FAKECUDA_INIT (result of cuInit). Read when
 * first used. */

/*
 * The nth call from now (0: the next) of the driver function `name`, or of any if it is NULL or
 * "*", returns `result` instead of doing its work; with `forever` all later ones too. Replaces the
 * previous plan with the same name; up to 8 plans.
 */
typedef void fakecuda_fail_fn(const char *name, uint64_t nth, int result, bool forever);

/* Forget all plans, counts and violations; does not touch memory or contexts. */
typedef void fakecuda_reset_fn(void);

/* Calls of `name` since the reset; of all functions for NULL. A test asserts with this that the
 * fake was really used. */
typedef uint64_t fakecuda_calls_fn(const char *name);

/* Number of violations; text[] gets the first one. */
typedef unsigned fakecuda_violations_fn(char *text, size_t bytes);

/* Objects that live now. */
struct fakecuda_live {
    unsigned reservations, handles, mappings, pinned, contexts;
    uint64_t device_bytes, host_bytes; /* of handles */
};
typedef void fakecuda_live_fn(struct fakecuda_live *live);

/* From now on every call fails with this sticky result, as after a fault on the device; 0 ends it
 * (a real device would have to be opened anew). */
typedef void fakecuda_lose_fn(int result);

/*
 * An operation of the device that is not finished: it reads or writes [address, address + bytes)
 * until fakecuda_end(). Unmapping, freeing or changing the access of what it touches is a
 * violation, and so is beginning one on a range that is not mapped and accessible. Returns a number
 * for end.
 */
typedef unsigned fakecuda_begin_fn(unsigned long long address, size_t bytes, bool write);
typedef void fakecuda_end_fn(unsigned operation);

#define FAKECUDA_API_MAP(X) \
    X(fail)                 \
    X(reset)                \
    X(calls)                \
    X(violations)           \
    X(live)                 \
    X(lose)                 \
    X(begin)                \
    X(end)

#define X(name) fakecuda_##name##_fn fakecuda_##name;
FAKECUDA_API_MAP(X)
#undef X

#endif
