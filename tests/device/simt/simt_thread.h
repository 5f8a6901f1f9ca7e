#ifndef MP_SIMT_THREAD_H
#define MP_SIMT_THREAD_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/device/fakecuda/simt.h"

/*
 * What a running thread of a block sees, and how it waits for others; see tests/device/simt/simt.c.
 * All of it belongs to one thread of the host.
 */
struct mp_simt_view {
    uint32_t thread, threads;
    struct mp_simt_dim block, grid;
    void *shared;
};

/* Kernels ask for these so often that how a library finds them shows. */
#define SIMT_THREAD_LOCAL _Thread_local __attribute__((tls_model("initial-exec")))

/* Of the thread of a block that runs now. */
extern SIMT_THREAD_LOCAL struct mp_simt_view *mp_simt_now;

/* What kernels of this thread have read of device memory by 8 and by 16 bytes. */
extern SIMT_THREAD_LOCAL uint64_t mp_simt_loaded_bytes;

/* How often they have asked the second-level cache for a line. */
extern SIMT_THREAD_LOCAL uint64_t mp_simt_asks;

/* Wait until all threads of the block that have not ended are here. */
void mp_simt_barrier(void);

/*
 * Wait until all threads of the warp that have not ended are here, each with a value; returns that
 * of `lane`. The value of a lane that has ended is a NaN with a known look.
 */
uint32_t mp_simt_exchange(uint32_t value, uint32_t lane);

/* The same; bit l of the result is set where lane l gave a value other than 0. */
uint32_t mp_simt_vote(uint32_t value);

/*
 * The same with several values; lane l's are [l] of the result, until this lane waits for its warp
 * again. All 32 lanes must come, or the launch fails.
 */
#define MP_SIMT_WORDS 6
const uint32_t (*mp_simt_gather(const uint32_t *words))[MP_SIMT_WORDS];

/* A device would trap: the launch fails; does not return. */
void mp_simt_fail(const char *what);

uint64_t mp_simt_now_ns(void);
void mp_simt_pause(void);

/* Run a kernel's body; for the table of kernels and for tests of the emulation. As run() there. */
const char *mp_simt_run(void (*enter)(const void *params), const void *params, uint32_t threads_max,
                        struct mp_simt_dim grid, struct mp_simt_dim block, uint32_t shared_bytes);

#endif
