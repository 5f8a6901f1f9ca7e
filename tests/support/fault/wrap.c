#include "tests/support/fault/wrap.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <liburing.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define SITES_MAX 2048
#define DEPTH_MAX 4
#define SHORT_CALLS (FAULT_BIT(read) | FAULT_BIT(pread) | FAULT_BIT(io_uring_read))

/* A site that only failures lead to is reached again by the plan under which it was found. */
struct site {
    const void *address;
    enum fault_call call;
    bool failed;
    bool reached_by_plan;
    struct fault_plan found_under;
};

static struct {
    pthread_mutex_t lock;
    bool active;
    struct fault_plan plan;
    uint64_t matched[DEPTH_MAX], hits; /* matched: of the plan, of its `also`, ... */
    struct site sites[SITES_MAX];
    uint32_t site_count;
    const void *known[SITES_MAX]; /* failed in an earlier sweep */
    uint32_t known_count;
    bool brief;
} fault = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* So that a program without failures runs at full speed. Relaxed: set before threads start. */
static _Atomic bool active;

static _Atomic uint64_t mapped_bytes;
static _Atomic uint32_t live_threads;

static int default_errno(enum fault_call call)
{
    static const int numbers[] = {
#define X(name, error_number) [FAULT_##name] = (error_number),
        FAULT_CALLS(X)
#undef X
    };

    return numbers[call];
}

const char *fault_call_name(enum fault_call call)
{
    static const char *const names[] = {
#define X(name, error_number) #name,
        FAULT_CALLS(X)
#undef X
    };

    return names[call];
}

static struct site *note_site(enum fault_call call, const void *address)
{
    uint32_t i = 0;

    while (i < fault.site_count && fault.sites[i].address != address)
        i++;
    if (i == SITES_MAX) {
        fprintf(stderr, "more than %d call sites, raise SITES_MAX\n", SITES_MAX);
        _exit(1);
    }
    if (i == fault.site_count)
        fault.sites[fault.site_count++] = (struct site){
            .address = address,
            .call = call,
            .reached_by_plan = fault.plan.mode != FAULT_COUNT,
            .found_under = fault.plan,
        };
    return &fault.sites[i];
}

static bool plan_fails(const struct fault_plan *plan, unsigned depth, enum fault_call call,
                       const void *address)
{
    uint64_t n;

    if ((plan->calls >> call & 1) == 0 || (plan->site != NULL && plan->site != address))
        return false;
    n = fault.matched[depth]++;
    return (plan->mode == FAULT_ONCE && n == plan->skip) ||
           (plan->mode == FAULT_ALWAYS && n >= plan->skip);
}

/* The errno of the failure, -1 for a short read, 0 to go through. */
static int fails_locked(enum fault_call call, const void *address)
{
    struct site *site = note_site(call, address);
    const struct fault_plan *by = NULL;
    const struct fault_plan *plan = &fault.plan;

    for (unsigned depth = 0; plan != NULL && depth < DEPTH_MAX; depth++, plan = plan->also) {
        if (plan_fails(plan, depth, call, address) && by == NULL)
            by = plan;
    }
    if (by == NULL)
        return 0;
    fault.hits++;
    site->failed = true;
    if (by->short_bytes != 0 && (SHORT_CALLS >> call & 1) != 0)
        return -1;
    return by->error_number != 0 ? by->error_number : default_errno(call);
}

static int fails(enum fault_call call, const void *address)
{
    int result = 0;

    if (!atomic_load_explicit(&active, memory_order_relaxed))
        return 0;
    pthread_mutex_lock(&fault.lock);
    if (fault.active && (fault.plan.calls >> call & 1) != 0)
        result = fails_locked(call, address);
    pthread_mutex_unlock(&fault.lock);
    return result;
}

void fault_begin(const struct fault_plan *plan)
{
    pthread_mutex_lock(&fault.lock);
    fault.plan = *plan;
    memset(fault.matched, 0, sizeof(fault.matched));
    fault.hits = 0;
    fault.active = true;
    pthread_mutex_unlock(&fault.lock);
    atomic_store(&active, true);
}

uint64_t fault_end(void)
{
    uint64_t hits;

    atomic_store(&active, false);
    pthread_mutex_lock(&fault.lock);
    fault.active = false;
    hits = fault.hits;
    pthread_mutex_unlock(&fault.lock);
    return hits;
}

uint64_t fault_matched(void)
{
    uint64_t matched;

    pthread_mutex_lock(&fault.lock);
    matched = fault.matched[0];
    pthread_mutex_unlock(&fault.lock);
    return matched;
}

static uint32_t count_sites(uint64_t calls, bool failed_only)
{
    uint32_t n = 0;

    pthread_mutex_lock(&fault.lock);
    for (uint32_t i = 0; i < fault.site_count; i++) {
        const struct site *site = &fault.sites[i];

        n += (calls >> site->call & 1) != 0 && (site->failed || !failed_only);
    }
    pthread_mutex_unlock(&fault.lock);
    return n;
}

void fault_sweep_briefly(bool brief)
{
    fault.brief = brief;
}

uint32_t fault_sites_seen(uint64_t calls)
{
    return count_sites(calls, false);
}

uint32_t fault_sites_failed(uint64_t calls)
{
    return count_sites(calls, true);
}

static void print_site(const struct site *site)
{
    void *address = (void *)site->address;

    fprintf(stderr, "  %s called before ", fault_call_name(site->call));
    fflush(stderr);
    backtrace_symbols_fd(&address, 1, STDERR_FILENO);
}

void fault_print_not_failed(uint64_t calls)
{
    for (uint32_t i = 0; i < fault.site_count; i++) {
        const struct site *site = &fault.sites[i];

        if ((calls >> site->call & 1) != 0 && !site->failed)
            print_site(site);
    }
}

uint32_t fault_open_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    uint32_t count = 0;

    if (dir == NULL) {
        perror("/proc/self/fd");
        exit(1);
    }
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count - 3; /* ".", ".." and the descriptor of the directory */
}

uint64_t fault_mapped_bytes(void)
{
    return atomic_load(&mapped_bytes);
}

uint32_t fault_live_threads(void)
{
    return atomic_load(&live_threads);
}

void fault_write_failed(const char *path)
{
    FILE *out = fopen(path, "a");
    Dl_info here;

    if (out == NULL || dladdr((void *)fault_write_failed, &here) == 0) {
        perror(path);
        exit(1);
    }
    for (uint32_t i = 0; i < fault.site_count; i++) {
        const struct site *site = &fault.sites[i];

        if (site->failed)
            fprintf(out, "%s %tx\n", fault_call_name(site->call),
                    (const char *)site->address - (const char *)here.dli_fbase);
    }
    if (fclose(out) != 0) {
        perror(path);
        exit(1);
    }
}

static void sweep_run(void (*body)(const struct fault_plan *plan, void *ctx), void *ctx,
                      const struct fault_plan *plan, const struct site *site)
{
    static const char *const names[FAULT_MODE_COUNT] = { "never", "once", "always" };
    const uint32_t fds = fault_open_fds(), threads = fault_live_threads();
    const uint64_t bytes = fault_mapped_bytes();

    body(plan, ctx);
    if (fault_open_fds() == fds && fault_live_threads() == threads && fault_mapped_bytes() == bytes)
        return;
    fprintf(stderr,
            "%u descriptors open, %u before; %u threads, %u before; %llu bytes mapped, %llu "
            "before; failing %s after %llu calls:\n",
            fault_open_fds(), fds, fault_live_threads(), threads,
            (unsigned long long)fault_mapped_bytes(), (unsigned long long)bytes, names[plan->mode],
            (unsigned long long)plan->skip);
    if (site != NULL)
        print_site(site);
    exit(1);
}

static bool is_known(const void *address)
{
    for (uint32_t i = 0; i < fault.known_count; i++) {
        if (fault.known[i] == address)
            return true;
    }
    return false;
}

static void remember_failed(void)
{
    for (uint32_t i = 0; i < fault.site_count; i++) {
        if (fault.sites[i].failed && fault.known_count < SITES_MAX &&
            !is_known(fault.sites[i].address))
            fault.known[fault.known_count++] = fault.sites[i].address;
    }
}

/*
 * Which of two threads comes first decides whether a site behind another failure is reached at all.
 * Those that were seen once and not met again get more chances.
 */
static uint32_t try_again(uint64_t calls, void (*body)(const struct fault_plan *plan, void *ctx),
                          void *ctx)
{
    uint32_t runs = 0;

    for (int round = 0; round < 20; round++) {
        for (uint32_t i = 0; i < fault.site_count; i++) {
            const struct site *site = &fault.sites[i];
            const struct fault_plan plan = {
                .mode = FAULT_ONCE,
                .calls = calls,
                .site = site->address,
                .also = site->reached_by_plan ? &site->found_under : NULL,
            };

            if ((calls >> site->call & 1) == 0 || site->failed)
                continue;
            sweep_run(body, ctx, &plan, site);
            runs++;
        }
    }
    return runs;
}

uint32_t fault_sweep(uint64_t calls, void (*body)(const struct fault_plan *plan, void *ctx),
                     void *ctx)
{
    static const struct fault_plan kinds[] = {
        { .mode = FAULT_ONCE },
        { .mode = FAULT_ALWAYS },
        { .mode = FAULT_ALWAYS, .skip = 2 },
    };
    const struct fault_plan count = { .mode = FAULT_COUNT, .calls = calls };
    uint32_t runs = 1;

    remember_failed();
    fault.site_count = 0;
    sweep_run(body, ctx, &count, NULL);
    /* Failures lead to new sites, which are appended while the loop runs. */
    for (uint32_t i = 0; i < fault.site_count; i++) {
        const struct site *site = &fault.sites[i];

        if ((calls >> site->call & 1) == 0)
            continue;
        for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
            struct fault_plan plan = kinds[k];

            if (fault.brief && k > 0 && is_known(site->address))
                break;
            plan.calls = calls;
            plan.site = site->address;
            plan.also = site->reached_by_plan ? &site->found_under : NULL;
            sweep_run(body, ctx, &plan, site);
            runs++;
        }
    }
    runs += try_again(calls, body, ctx);
    if (fault_sites_failed(calls) == fault_sites_seen(calls))
        return runs;
    fprintf(stderr, "these call sites were never made to fail:\n");
    fault_print_not_failed(calls);
    for (uint32_t i = 0; i < fault.site_count; i++) {
        if ((calls >> fault.sites[i].call & 1) != 0 && !fault.sites[i].failed &&
            !fault.sites[i].reached_by_plan)
            exit(1);
    }
    fprintf(stderr, "they were seen only behind another failure, by a thread that was late\n");
    return runs;
}

/*
 * The wrappers. __real_x is the function, __wrap_x is what the linker puts in its place. With
 * 64-bit file offsets glibc's headers rename some functions; those are wrapped under both names.
 */
#define HERE __builtin_return_address(0)

#define WRAP_AS(type, name, call, parameters, arguments, failed) \
    type __real_##name parameters;                               \
    type __wrap_##name parameters;                               \
    type __wrap_##name parameters                                \
    {                                                            \
        const int number = fails(FAULT_##call, HERE);            \
                                                                 \
        if (number == 0)                                         \
            return __real_##name arguments;                      \
        errno = number;                                          \
        return failed;                                           \
    }
#define WRAP(type, name, parameters, arguments, failed) \
    WRAP_AS(type, name, name, parameters, arguments, failed)

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
WRAP(int, mlock, (const void *at, size_t bytes), (at, bytes), -1)
WRAP(int, memfd_create, (const char *name, unsigned flags), (name, flags), -1)
WRAP_AS(int, ftruncate, ftruncate, (int fd, off_t bytes), (fd, bytes), -1)
WRAP_AS(int, ftruncate64, ftruncate, (int fd, off_t bytes), (fd, bytes), -1)
WRAP_AS(FILE *, fopen, fopen, (const char *path, const char *mode), (path, mode), NULL)
WRAP_AS(FILE *, fopen64, fopen, (const char *path, const char *mode), (path, mode), NULL)
WRAP(DIR *, opendir, (const char *path), (path), NULL)
WRAP(int, eventfd, (unsigned value, int flags), (value, flags), -1)
WRAP(int, io_uring_queue_init, (unsigned entries, struct io_uring *ring, unsigned flags),
     (entries, ring, flags), -number)

static uint64_t whole_pages(size_t bytes)
{
    return ((uint64_t)bytes + 4095) / 4096 * 4096;
}

#define WRAP_MMAP(name)                                                                           \
    void *__real_##name(void *at, size_t bytes, int prot, int flags, int fd, off_t offset);       \
    void *__wrap_##name(void *at, size_t bytes, int prot, int flags, int fd, off_t offset);       \
    void *__wrap_##name(void *at, size_t bytes, int prot, int flags, int fd, off_t offset)        \
    {                                                                                             \
        const int number = fails(FAULT_mmap, HERE);                                               \
        void *got = number == 0 ? __real_##name(at, bytes, prot, flags, fd, offset) : (void *)-1; \
                                                                                                  \
        if (got != (void *)-1)                                                                    \
            atomic_fetch_add(&mapped_bytes, whole_pages(bytes));                                  \
        if (number != 0)                                                                          \
            errno = number;                                                                       \
        return got;                                                                               \
    }

WRAP_MMAP(mmap)
WRAP_MMAP(mmap64)

int __real_munmap(void *at, size_t bytes);
int __wrap_munmap(void *at, size_t bytes);

int __wrap_munmap(void *at, size_t bytes)
{
    const int result = __real_munmap(at, bytes);

    if (result == 0)
        atomic_fetch_sub(&mapped_bytes, whole_pages(bytes));
    return result;
}

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
                          void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
                          void *arg);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
                          void *arg)
{
    int number = fails(FAULT_pthread_create, HERE);

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

#define WRAP_OPEN(name, call, parameters, arguments)  \
    int __real_##name parameters;                     \
    int __wrap_##name parameters;                     \
    int __wrap_##name parameters                      \
    {                                                 \
        const int number = fails(FAULT_##call, HERE); \
        va_list args;                                 \
        mode_t mode;                                  \
                                                      \
        va_start(args, flags);                        \
        mode = optional_mode(flags, args);            \
        va_end(args);                                 \
        if (number == 0)                              \
            return __real_##name arguments;           \
        errno = number;                               \
        return -1;                                    \
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
        const int number = fails(FAULT_fcntl, HERE);                   \
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

/* What a short read keeps; a reader's thread asks while the test may begin the next plan. */
static uint32_t short_bytes(void)
{
    uint32_t bytes;

    pthread_mutex_lock(&fault.lock);
    bytes = fault.plan.short_bytes;
    pthread_mutex_unlock(&fault.lock);
    return bytes;
}

/* A short read: what was not delivered is rubbish, so that nobody lives on it. */
static ssize_t shorten(ssize_t got, void *buffer)
{
    const uint32_t wanted = short_bytes();
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
        const int number = fails(FAULT_##call, HERE);        \
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

/* Descriptors that the kernel answers with an error of our choice. */
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
        const uint32_t shortened = short_bytes(), keep = direct ? 4096 : shortened;

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
    const int number = fails(FAULT_io_uring_submit_and_wait, here);

    if (number != 0)
        return -number;
    for (unsigned i = ring->sq.sqe_head; i != ring->sq.sqe_tail; i++) {
        struct io_uring_sqe *sqe = &ring->sq.sqes[i & ring->sq.ring_mask];
        const int read_number =
            sqe->opcode == IORING_OP_READ ? fails(FAULT_io_uring_read, here + 1) : 0;

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
    const int number = fails(FAULT_io_uring_wait_cqes, HERE);

    return number != 0 ? -number : __real_io_uring_wait_cqes(ring, cqe_p, count, timeout, mask);
}
