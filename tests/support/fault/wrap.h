#ifndef MP_TEST_FAULT_WRAP_H
#define MP_TEST_FAULT_WRAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Failing calls of the system and of libraries, for the code under test.
 *
 * mp_test(... WRAP) links this file and routes each call below, from every object linked into the
 * test (not from shared libraries), through it. Nothing fails and nothing is counted until a test
 * says so with fault_begin(); the test's own calls between begin and end count too, so it makes
 * none that it does not want to fail.
 *
 * A *site* is a place in the code that makes such a call, distinguished by its return address. A
 * *call* is one passage through a site. Standard use is fault_sweep(): it runs a function once per
 * site and kind of failure until no new site shows up, and covers calls that are added later
 * without being edited.
 *
 * io_uring_read is no function: it stands for every read put into a ring, and the kernel itself is
 * made to return an error: EIO, EINVAL, EAGAIN, EFAULT (EBADF for any other errno), short, or at
 * the end.
 *
 * Memory that was mapped and threads that were started through the wrapped calls are counted all
 * the time, so that what was not given back shows.
 *
 * Thread safety: wrapped calls may come from any thread; fault_* functions from one.
 */
#define FAULT_CALLS(X)                 \
    X(malloc, ENOMEM)                  \
    X(calloc, ENOMEM)                  \
    X(realloc, ENOMEM)                 \
    X(aligned_alloc, ENOMEM)           \
    X(posix_memalign, ENOMEM)          \
    X(strdup, ENOMEM)                  \
    X(open, EMFILE)                    \
    X(openat, EMFILE)                  \
    X(fstat, EIO)                      \
    X(fstatat, EIO)                    \
    X(statx, ENOSYS)                   \
    X(fcntl, EINVAL)                   \
    X(pread, EIO)                      \
    X(read, EIO)                       \
    X(mmap, ENOMEM)                    \
    X(madvise, EINVAL)                 \
    X(fopen, EMFILE)                   \
    X(fdopen, ENOMEM)                  \
    X(opendir, EMFILE)                 \
    X(eventfd, EMFILE)                 \
    X(pthread_create, EAGAIN)          \
    X(io_uring_queue_init, EPERM)      \
    X(io_uring_submit_and_wait, EPERM) \
    X(io_uring_wait_cqes, EPERM)       \
    X(io_uring_read, EIO)

/* Calls whose failure often does no harm: they fail where a plan names them, not for FAULT_ANY. All
 * but the first two need mp_test(... WRAP_FILES). fsync() does nothing there: no test waits for the
 * disk. */
#define FAULT_NAMED_CALLS(X)  \
    X(munmap, ENOMEM)         \
    X(mbind, EPERM)           \
    X(write, ENOSPC)          \
    X(fsync, EIO)             \
    X(rename, EACCES)         \
    X(renameat, EACCES)       \
    X(unlinkat, EACCES)       \
    X(mkdir, EACCES)          \
    X(fdopendir, ENOMEM)      \
    X(open_memstream, ENOMEM) \
    X(close, EIO)             \
    X(fopencookie, ENOMEM)    \
    X(access, ENOENT)         \
    X(linkat, ENOENT)         \
    X(fstatvfs, EIO)

enum fault_call {
#define X(name, error_number) FAULT_##name,
    FAULT_CALLS(X) FAULT_NAMED_CALLS(X)
#undef X
        FAULT_CALL_COUNT
};

const char *fault_call_name(enum fault_call call);

enum fault_mode {
    FAULT_COUNT, /* nothing fails, sites are noted */
    FAULT_ONCE,
    FAULT_ALWAYS, /* from then on */
    FAULT_MODE_COUNT
};

#define FAULT_BIT(name) (UINT64_C(1) << FAULT_##name)
#define FAULT_ANY (FAULT_BIT(munmap) - 1) /* all of FAULT_CALLS */
#define FAULT_ALLOCATIONS                                                                    \
    (FAULT_BIT(malloc) | FAULT_BIT(calloc) | FAULT_BIT(realloc) | FAULT_BIT(aligned_alloc) | \
     FAULT_BIT(posix_memalign) | FAULT_BIT(strdup) | FAULT_BIT(pthread_create))
#define FAULT_EOF UINT32_MAX

struct fault_plan {
    enum fault_mode mode;
    uint64_t calls;   /* a set of bits: FAULT_BIT() of calls, or FAULT_ANY */
    uint64_t skip;    /* calls that match and pass before the first failure */
    uint64_t every;   /* from the first one on, one in so many fails; 0 or 1: each */
    const void *site; /* only this one; NULL: all */
    int error_number; /* 0: the one of the list */
    uint32_t
        short_bytes; /* not 0: read, pread, io_uring_read and write do not fail but do so many
                      * bytes (FAULT_EOF: none), and fstatvfs says that so many blocks are free */
    bool corrupt;    /* write does not fail but writes one wrong bit into a file named *.part */
    const struct fault_plan *also; /* a second plan that holds at the same time, or NULL */
};

void fault_begin(const struct fault_plan *plan);

/*
 * As fault_begin(): the n-th of these calls from now on (0: the next) fails, once. The plain sweep:
 *
 *     for (uint64_t n = 0;; n++) {
 *         fault_nth(FAULT_ALLOCATIONS, n);
 *         status = make();
 *         if (fault_end() == 0)
 *             break;                           the n-th allocation never came: success
 *         CHECK_EQ(status, MP_ERR_NO_MEMORY);
 *     }
 */
void fault_nth(uint64_t calls, uint64_t n);

/* Nothing fails any more; returns how many calls were made to fail since the begin. */
uint64_t fault_end(void);

/* Calls that matched the plan since the begin, failed or not; without those of `also`. */
uint64_t fault_matched(void);

/* Sites seen and sites failed since the program, or the latest sweep, started. */
uint32_t fault_sites_seen(uint64_t calls);
uint32_t fault_sites_failed(uint64_t calls);

/* Write the sites that were seen and never failed to stderr, as arguments for addr2line. */
void fault_print_not_failed(uint64_t calls);

/*
 * Run `body` again and again: once without failures, then for each site of `calls` with its first
 * call failing, with every call failing, and with every call but the first two failing. Sites that
 * only failures lead to are failed together with what led there. `body` must call
 * fault_begin(plan) and fault_end() around what may fail, and must make whatever checks hold under
 * such a failure. Returns the number of runs; every site was then failed at least once, or the
 * program ended with 1 and the list of those that were not. File descriptors, mapped bytes and
 * threads are counted: there must be as many after each run as before.
 */
uint32_t fault_sweep(uint64_t calls, void (*body)(const struct fault_plan *plan, void *ctx),
                     void *ctx);

/* From now on sweeps fail sites that an earlier sweep has failed once only, not in three ways. */
void fault_sweep_briefly(bool brief);

/* From now on sweeps fail each site in one way only, once and always by turns. Sites that are only
 * reached behind one way of another may stay unseen. */
void fault_sweep_one_way(bool one_way);

/*
 * From now on sweeps in one way leave out sites whose failure would go a way that failures went
 * before: the site and every call on the way up to the body have failed in such a sweep, beneath
 * this site or another, and the body said fault_went_up(). Then each place that deals with a
 * failure does so at least once, and a site that many commands reach is not failed in each of them.
 */
void fault_sweep_new_ways(bool new_ways);

/* The body of a sweep says so where a failure has reached it. */
void fault_went_up(void);

/* From now on the kernel is asked to map at this address, whatever the caller says; NULL: no more.
 */
void fault_map_at(void *address);

/* How many file descriptors the process has open. */
uint32_t fault_open_fds(void);

/* Bytes mapped and not unmapped, threads started and not joined, by wrapped calls. */
uint64_t fault_mapped_bytes(void);
uint32_t fault_live_threads(void);

/*
 * Append the sites that were failed since the program, or the latest sweep, started to `path`: one
 * line with the name of the call and the return address, as an offset in the program's file.
 * tests/support/fault/sites.py compares them with the calls that the program contains.
 */
void fault_write_failed(const char *path);

#endif
