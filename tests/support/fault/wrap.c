/*
 * The wrappers of FAULT_CALLS and of the calls that undo them. With 64-bit file offsets glibc's
 * headers rename some functions; those are wrapped under both names.
 */
#include "tests/support/fault/wrap_int.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/uio.h>

static _Atomic uint64_t mapped_bytes;
static _Atomic uint32_t live_threads;
static void *map_at;

uint64_t fault_mapped_bytes(void)
{
    return atomic_load(&mapped_bytes);
}

uint32_t fault_live_threads(void)
{
    return atomic_load(&live_threads);
}

void fault_map_at(void *address)
{
    map_at = address;
}

WRAP(void *, malloc, (size_t bytes), (bytes), NULL)
WRAP(void *, calloc, (size_t count, size_t bytes), (count, bytes), NULL)
WRAP(void *, realloc, (void *old, size_t bytes), (old, bytes), NULL)
WRAP(void *, aligned_alloc, (size_t align, size_t bytes), (align, bytes), NULL)
WRAP(int, posix_memalign, (void **p, size_t align, size_t bytes), (p, align, bytes), number)
WRAP(char *, strdup, (const char *s), (s), NULL)
WRAP_AS(int, fstat, fstat, (int fd, struct stat *st), (fd, st), -1)
WRAP_AS(int, fstat64, fstat, (int fd, struct stat *st), (fd, st), -1)
WRAP_AS(int, fstatat, fstatat, (int fd, const char *path, struct stat *st, int flags),
        (fd, path, st, flags), -1)
WRAP_AS(int, fstatat64, fstatat, (int fd, const char *path, struct stat *st, int flags),
        (fd, path, st, flags), -1)
WRAP(int, statx, (int fd, const char *path, int flags, unsigned mask, struct statx *st),
     (fd, path, flags, mask, st), -1)
WRAP(int, madvise, (void *at, size_t bytes, int advice), (at, bytes, advice), -1)
WRAP_AS(FILE *, fopen, fopen, (const char *path, const char *mode), (path, mode), NULL)
WRAP_AS(FILE *, fopen64, fopen, (const char *path, const char *mode), (path, mode), NULL)
WRAP(FILE *, fdopen, (int fd, const char *mode), (fd, mode), NULL)
WRAP(DIR *, opendir, (const char *path), (path), NULL)
WRAP(int, eventfd, (unsigned value, int flags), (value, flags), -1)
WRAP(int, io_uring_queue_init, (unsigned entries, struct io_uring *ring, unsigned flags),
     (entries, ring, flags), -number)

/* Programs without the library of NUMA have no real one. */
WRAP_AS(long, mbind, mbind,
        (void *at, unsigned long bytes, int mode, const unsigned long *nodes,
         unsigned long nodes_max, unsigned flags),
        (at, bytes, mode, nodes, nodes_max, flags), -1)
#pragma weak __real_mbind

static uint64_t whole_pages(size_t bytes)
{
    return ((uint64_t)bytes + 4095) / 4096 * 4096;
}

#define FIXED 0x10 /* MAP_FIXED: what is mapped there is replaced, and counts already */

#define WRAP_MMAP(name)                                                                     \
    void *__real_##name(void *at, size_t bytes, int prot, int flags, int fd, off_t offset); \
    void *__wrap_##name(void *at, size_t bytes, int prot, int flags, int fd, off_t offset); \
    void *__wrap_##name(void *at, size_t bytes, int prot, int flags, int fd, off_t offset)  \
    {                                                                                       \
        const int number = fault_fails(FAULT_mmap, HERE);                                   \
        const int fixed = flags & FIXED;                                                    \
        void *got = (void *)-1;                                                             \
                                                                                            \
        if (map_at != NULL && !fixed)                                                       \
            at = map_at;                                                                    \
        if (number == 0)                                                                    \
            got = __real_##name(at, bytes, prot, flags, fd, offset);                        \
        if (got != (void *)-1 && !fixed)                                                    \
            atomic_fetch_add(&mapped_bytes, whole_pages(bytes));                            \
        if (number != 0)                                                                    \
            errno = number;                                                                 \
        return got;                                                                         \
    }

WRAP_MMAP(mmap)
WRAP_MMAP(mmap64)

int __real_munmap(void *at, size_t bytes);
int __wrap_munmap(void *at, size_t bytes);

int __wrap_munmap(void *at, size_t bytes)
{
    const int number = fault_fails(FAULT_munmap, HERE);
    const int result = number == 0 ? __real_munmap(at, bytes) : -1;

    if (result == 0)
        atomic_fetch_sub(&mapped_bytes, whole_pages(bytes));
    if (number != 0)
        errno = number;
    return result;
}

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
                          void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
                          void *arg);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
                          void *arg)
{
    int number = fault_fails(FAULT_pthread_create, HERE);

    if (number == 0)
        number = __real_pthread_create(thread, attr, run, arg);
    if (number == 0)
        atomic_fetch_add(&live_threads, 1);
    return number;
}

int __real_pthread_join(pthread_t thread, void **result_p);
int __wrap_pthread_join(pthread_t thread, void **result_p);

int __wrap_pthread_join(pthread_t thread, void **result_p)
{
    const int number = __real_pthread_join(thread, result_p);

    if (number == 0)
        atomic_fetch_sub(&live_threads, 1);
    return number;
}

static mode_t optional_mode(int flags, va_list args)
{
    return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(args, mode_t) : 0;
}

#define WRAP_OPEN(name, call, parameters, arguments)        \
    int __real_##name parameters;                           \
    int __wrap_##name parameters;                           \
    int __wrap_##name parameters                            \
    {                                                       \
        const int number = fault_fails(FAULT_##call, HERE); \
        va_list args;                                       \
        mode_t mode;                                        \
                                                            \
        va_start(args, flags);                              \
        mode = optional_mode(flags, args);                  \
        va_end(args);                                       \
        if (number == 0)                                    \
            return __real_##name arguments;                 \
        errno = number;                                     \
        return -1;                                          \
    }

WRAP_OPEN(open, open, (const char *path, int flags, ...), (path, flags, mode))
WRAP_OPEN(open64, open, (const char *path, int flags, ...), (path, flags, mode))
WRAP_OPEN(openat, openat, (int dir, const char *path, int flags, ...), (dir, path, flags, mode))
WRAP_OPEN(openat64, openat, (int dir, const char *path, int flags, ...), (dir, path, flags, mode))

#define WRAP_FCNTL(name)                                               \
    int __real_##name(int fd, int command, ...);                       \
    int __wrap_##name(int fd, int command, ...);                       \
    int __wrap_##name(int fd, int command, ...)                        \
    {                                                                  \
        const int number = fault_fails(FAULT_fcntl, HERE);             \
        va_list args;                                                  \
        void *arg;                                                     \
                                                                       \
        /* As in the C library: every argument fits into a pointer. */ \
        va_start(args, command);                                       \
        arg = va_arg(args, void *);                                    \
        va_end(args);                                                  \
        if (number == 0)                                               \
            return __real_##name(fd, command, arg);                    \
        errno = number;                                                \
        return -1;                                                     \
    }

WRAP_FCNTL(fcntl)
WRAP_FCNTL(fcntl64)

/* A short read: what was not delivered is rubbish, so that nobody lives on it. */
static ssize_t shorten(ssize_t got, void *buffer)
{
    const uint32_t wanted = fault_plan_now().short_bytes;
    const ssize_t keep = wanted == FAULT_EOF ? 0 : (ssize_t)wanted;

    if (got <= keep)
        return got;
    memset((char *)buffer + keep, 0xee, (size_t)(got - keep));
    return keep;
}

#define WRAP_READ(name, call, parameters, arguments)         \
    ssize_t __real_##name parameters;                        \
    ssize_t __wrap_##name parameters;                        \
    ssize_t __wrap_##name parameters                         \
    {                                                        \
        const int number = fault_fails(FAULT_##call, HERE);  \
                                                             \
        if (number <= 0) {                                   \
            const ssize_t got = __real_##name arguments;     \
                                                             \
            return number == 0 ? got : shorten(got, buffer); \
        }                                                    \
        errno = number;                                      \
        return -1;                                           \
    }

WRAP_READ(read, read, (int fd, void *buffer, size_t bytes), (fd, buffer, bytes))
WRAP_READ(pread, pread, (int fd, void *buffer, size_t bytes, off_t offset),
          (fd, buffer, bytes, offset))
WRAP_READ(pread64, pread, (int fd, void *buffer, size_t bytes, off_t offset),
          (fd, buffer, bytes, offset))

/* Descriptors for which the kernel returns an error of our choice. */
static int eio_fd = -1, einval_fd = -1, eagain_fd = -1;

__attribute__((constructor)) static void open_failing_fds(void)
{
    eio_fd = __real_open64("/proc/self/mem", O_RDONLY | O_CLOEXEC); /* nothing lies at address 0 */
    einval_fd = __real_eventfd(1, EFD_CLOEXEC);                     /* takes 8 bytes, not 4 */
    eagain_fd = __real_eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);      /* never gets a value */
}

static void fail_sqe(struct io_uring_sqe *sqe, int number)
{
    if (number == -1) {
        const bool direct = (__real_fcntl64(sqe->fd, F_GETFL, NULL) & O_DIRECT) != 0;
        const uint32_t shortened = fault_plan_now().short_bytes, keep = direct ? 4096 : shortened;

        if (sqe->len <= sizeof(uint64_t)) /* an eventfd gives 8 bytes or none */
            return;
        if (shortened == FAULT_EOF)
            sqe->off = (uint64_t)1 << 42;
        else if (sqe->len > keep)
            sqe->len = keep;
        return;
    }
    switch (number) {
    case EIO: sqe->fd = eio_fd; break;
    case EINVAL: sqe->fd = einval_fd; break;
    case EAGAIN: sqe->fd = eagain_fd; break;
    case EFAULT: sqe->addr = 0; break;
    default: sqe->fd = -1; break; /* EBADF */
    }
    sqe->off = 0;
    if (number == EINVAL)
        sqe->len = 4;
    if (number == EAGAIN)
        sqe->rw_flags = RWF_NOWAIT; /* else the ring itself waits for the value */
}

int __real_io_uring_submit_and_wait(struct io_uring *ring, unsigned count);
int __wrap_io_uring_submit_and_wait(struct io_uring *ring, unsigned count);

int __wrap_io_uring_submit_and_wait(struct io_uring *ring, unsigned count)
{
    const char *here = HERE;
    const int number = fault_fails(FAULT_io_uring_submit_and_wait, here);

    if (number != 0)
        return -number;
    for (unsigned i = ring->sq.sqe_head; i != ring->sq.sqe_tail; i++) {
        struct io_uring_sqe *sqe = &ring->sq.sqes[i & ring->sq.ring_mask];
        const int read_number =
            sqe->opcode == IORING_OP_READ ? fault_fails(FAULT_io_uring_read, here + 1) : 0;

        if (read_number != 0)
            fail_sqe(sqe, read_number);
    }
    return __real_io_uring_submit_and_wait(ring, count);
}

int __real_io_uring_wait_cqes(struct io_uring *ring, struct io_uring_cqe **cqe_p, unsigned count,
                              struct __kernel_timespec *timeout, sigset_t *mask);
int __wrap_io_uring_wait_cqes(struct io_uring *ring, struct io_uring_cqe **cqe_p, unsigned count,
                              struct __kernel_timespec *timeout, sigset_t *mask);

int __wrap_io_uring_wait_cqes(struct io_uring *ring, struct io_uring_cqe **cqe_p, unsigned count,
                              struct __kernel_timespec *timeout, sigset_t *mask)
{
    const int number = fault_fails(FAULT_io_uring_wait_cqes, HERE);

    return number != 0 ? -number : __real_io_uring_wait_cqes(ring, cqe_p, count, timeout, mask);
}
