/*
 * The ways that bench_windows compares. Each is as small as it can be: no policies, no threads that
 * read, one reader.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tools/bench/windows.h"

#define PAGE 4096
#define HUGE ((uint64_t)2 << 20)

uint64_t bench_now_ns(int clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static bool read_all(int fd, char *to, uint64_t bytes, uint64_t offset)
{
    for (uint64_t done = 0; done < bytes;) {
        const ssize_t got = pread(fd, to + done, bytes - done, (off_t)(offset + done));

        if (got <= 0 && (got == 0 || errno != EINTR))
            return false;
        done += got > 0 ? (uint64_t)got : 0;
    }
    return true;
}

void bench_read(struct bench *b, uint32_t expert, char *to)
{
    const uint64_t wall = bench_now_ns(CLOCK_MONOTONIC),
                   cpu = bench_now_ns(CLOCK_THREAD_CPUTIME_ID);

    if (!read_all(b->direct_fd, to, b->expert_bytes, expert * b->expert_bytes)) {
        perror("bench_windows: read");
        exit(1);
    }
    b->read_ns += bench_now_ns(CLOCK_MONOTONIC) - wall;
    b->read_cpu_ns += bench_now_ns(CLOCK_THREAD_CPUTIME_ID) - cpu;
}

static char *at(const struct bench *b, uint32_t expert)
{
    return b->window + expert * b->expert_bytes;
}

static char *frame(const struct bench *b, uint32_t slot)
{
    return b->frames + slot * b->expert_bytes;
}

static char *take(uint64_t bytes, int prot, int flags, int fd)
{
    char *memory = mmap(NULL, bytes, prot, flags, fd, 0);

    return memory == MAP_FAILED ? NULL : memory;
}

static bool open_file_window(struct bench *b)
{
    b->window = take(b->experts * b->expert_bytes, PROT_READ, MAP_SHARED, b->fd);
    return b->window != NULL && madvise(b->window, b->experts * b->expert_bytes, MADV_RANDOM) == 0;
}

static void map_file(struct bench *b, uint32_t expert)
{
    if (mmap(at(b, expert), b->expert_bytes, PROT_READ, MAP_SHARED | MAP_FIXED, b->fd,
             (off_t)(expert * b->expert_bytes)) == MAP_FAILED)
        exit(1);
}

/* ---- frames of a memory file over the file's mapping, as interpose/mapping does it */

static bool open_mapped(struct bench *b)
{
    const uint64_t bytes = b->slots * b->expert_bytes;

    b->frames_fd = memfd_create("bench_windows", MFD_CLOEXEC);
    if (b->frames_fd < 0 || ftruncate(b->frames_fd, (off_t)bytes) != 0)
        return false;
    b->frames = take(bytes, PROT_READ | PROT_WRITE, MAP_SHARED, b->frames_fd);
    return b->frames != NULL && madvise(b->frames, bytes, MADV_POPULATE_WRITE) == 0 &&
           open_file_window(b);
}

static void show_mapped(struct bench *b, uint32_t expert, uint32_t slot)
{
    bench_read(b, expert, frame(b, slot));
    if (mmap(at(b, expert), b->expert_bytes, PROT_READ, MAP_SHARED | MAP_FIXED | MAP_POPULATE,
             b->frames_fd, (off_t)(slot * b->expert_bytes)) == MAP_FAILED)
        exit(1);
}

static void hide_mapped(struct bench *b, uint32_t expert, uint32_t slot)
{
    (void)slot;
    map_file(b, expert);
}

static void map_files_in_child(struct bench *b)
{
    for (uint32_t e = 0; e < b->experts; e++)
        map_file(b, e);
}

static const struct way mapped = {
    "mapped",    "frames of a memory file are mapped over the file's",
    open_mapped, show_mapped,
    hide_mapped, map_files_in_child
};

static void show_moved(struct bench *b, uint32_t expert, uint32_t slot)
{
    bench_read(b, expert, frame(b, slot));
    if (!mp_moves_map(&b->moves, &b->real, b->frames_fd, slot * b->expert_bytes, b->expert_bytes,
                      at(b, expert)))
        exit(1);
}

static void hide_moved(struct bench *b, uint32_t expert, uint32_t slot)
{
    mp_moves_unmap(&b->moves, &b->real, slot * b->expert_bytes, b->expert_bytes, at(b, expert));
    map_file(b, expert);
}

static const struct way moved = { "moved",     "the same, and entries of the page table move",
                                  open_mapped, show_moved,
                                  hide_moved,  map_files_in_child };

/* ---- userfaultfd: missing pages of an anonymous window */

/* Whoever touches what is not there: one page. */
static void *serve(void *arg)
{
    struct bench *b = arg;
    struct uffd_msg message;
    char *page = aligned_alloc(PAGE, PAGE);

    while (page != NULL && read(b->uffd, &message, sizeof(message)) == (ssize_t)sizeof(message)) {
        const uint64_t to = message.arg.pagefault.address & ~(uint64_t)(PAGE - 1);
        struct uffdio_copy copy = { .dst = to, .src = (uintptr_t)page, .len = PAGE };

        if (message.event != UFFD_EVENT_PAGEFAULT ||
            !read_all(b->direct_fd, page, PAGE, to - (uintptr_t)b->window))
            break;
        (void)ioctl(b->uffd, UFFDIO_COPY, &copy);
    }
    free(page);
    return NULL;
}

static bool open_userfault(struct bench *b)
{
    const uint64_t bytes = b->experts * b->expert_bytes;
    struct uffdio_api api = { .api = UFFD_API };
    struct uffdio_register area = { .mode = UFFDIO_REGISTER_MODE_MISSING };
    pthread_t thread;

    b->uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    b->window = take(bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    b->frames = take(b->expert_bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1);
    if (b->uffd < 0 || b->window == NULL || b->frames == NULL ||
        ioctl(b->uffd, UFFDIO_API, &api) != 0)
        return false;
    area.range = (struct uffdio_range){ .start = (uintptr_t)b->window, .len = bytes };
    return ioctl(b->uffd, UFFDIO_REGISTER, &area) == 0 &&
           pthread_create(&thread, NULL, serve, b) == 0;
}

static void show_userfault(struct bench *b, uint32_t expert, uint32_t slot)
{
    struct uffdio_copy copy = { .dst = (uintptr_t)at(b, expert),
                                .src = (uintptr_t)b->frames,
                                .len = b->expert_bytes };

    (void)slot;
    bench_read(b, expert, b->frames);
    if (ioctl(b->uffd, UFFDIO_COPY, &copy) != 0)
        exit(1);
}

static void drop(struct bench *b, uint32_t expert, uint32_t slot)
{
    (void)slot;
    if (madvise(at(b, expert), b->expert_bytes, MADV_DONTNEED) != 0)
        exit(1);
}

static const struct way userfault = { "userfaultfd",  "missing pages are copied in",
                                      open_userfault, show_userfault,
                                      drop,           NULL };

/* ---- no access, and a signal handler */

static struct bench *of_signal;

static void on_fault(int number, siginfo_t *info, void *context)
{
    struct bench *b = of_signal;
    const uint64_t offset = (uintptr_t)info->si_addr - (uintptr_t)b->window;
    char *to = at(b, (uint32_t)(offset / b->expert_bytes));

    (void)context;
    if (offset < b->experts * b->expert_bytes &&
        mprotect(to, b->expert_bytes, PROT_READ | PROT_WRITE) == 0 &&
        read_all(b->direct_fd, to, b->expert_bytes, offset / b->expert_bytes * b->expert_bytes) &&
        mprotect(to, b->expert_bytes, PROT_READ) == 0)
        return;
    (void)mprotect(to, b->expert_bytes, PROT_NONE);
    signal(number, SIG_DFL);
}

static bool open_signal(struct bench *b)
{
    struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };

    of_signal = b;
    b->window = take(b->experts * b->expert_bytes + HUGE, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
    return b->window != NULL && sigaction(SIGSEGV, &action, NULL) == 0;
}

static void show_signal(struct bench *b, uint32_t expert, uint32_t slot)
{
    (void)slot;
    if (mprotect(at(b, expert), b->expert_bytes, PROT_READ | PROT_WRITE) != 0)
        exit(1);
    bench_read(b, expert, at(b, expert));
    if (mprotect(at(b, expert), b->expert_bytes, PROT_READ) != 0)
        exit(1);
}

static void hide_signal(struct bench *b, uint32_t expert, uint32_t slot)
{
    if (mprotect(at(b, expert), b->expert_bytes, PROT_NONE) != 0)
        exit(1);
    drop(b, expert, slot);
}

static const struct way signals = {
    "SIGSEGV",   "no access to what is not there; a handler reads it",
    open_signal, show_signal,
    hide_signal, NULL
};

/* ---- advice: the file's mapping, and words to the kernel */

static void show_advice(struct bench *b, uint32_t expert, uint32_t slot)
{
    (void)slot;
    (void)madvise(at(b, expert), b->expert_bytes, MADV_WILLNEED);
}

static void hide_advice(struct bench *b, uint32_t expert, uint32_t slot)
{
    drop(b, expert, slot);
    (void)posix_fadvise(b->fd, (off_t)(expert * b->expert_bytes), (off_t)b->expert_bytes,
                        POSIX_FADV_DONTNEED);
}

static const struct way advice = { "advice",         "MADV_WILLNEED, and DONTNEED for what leaves",
                                   open_file_window, show_advice,
                                   hide_advice,      NULL };

const struct way *const bench_ways[] = { &moved, &mapped, &userfault, &signals, &advice, NULL };
