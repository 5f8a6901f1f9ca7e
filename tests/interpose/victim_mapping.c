/*
 * A program that maps a file and knows nothing of moepager:
 *
 *     victim_mapping FILE CHECKS        those of victim_checks.h
 *     victim_mapping FILE truncate      the file loses its second half: a page of it is as it was,
 *                                       or a touch ends in SIGBUS, as the kernel has it
 *     victim_mapping FILE rename OTHER  another file takes its name: nothing changes
 *     victim_mapping FILE overwrite     every byte is inverted in place: a page is old or new
 *     victim_mapping FILE unmap         parts are unmapped, mapped otherwise, protected, moved
 *     victim_mapping FILE advise        advice for a range of which a part is mapped no more, and
 *                                       for one that has memory of the program's own too
 *     victim_mapping FILE beside        1,000 calls for memory that is not mapped; a device
 *     victim_mapping FILE private       written to where it is mapped privately
 *     victim_mapping FILE protect OFFSET BYTES   mapped privately to be written to, then protected:
 *                                       an expert of so many bytes lies there, and another behind
 *     victim_mapping FILE usr1          it has a handler of its own for SIGUSR1
 *     victim_mapping FILE exec COMMAND  COMMAND takes the program's place; likewise execl, execle,
 *                                       execlp (with two arguments), execve, execvp, execvpe,
 *                                       fexecve, execveat; vfork: a child becomes it
 *     victim_mapping FILE stay          says `ready` and waits to be killed
 *
 * Prints `NAME wrong N`; truncate, rename and overwrite change FILE.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/interpose/victim_checks.h"

enum { PAGE = 4096 };

static sigjmp_buf after_bus;

static void on_bus(int signal)
{
    (void)signal;
    siglongjmp(after_bus, 1);
}

/* The file's bytes before anything happens to it. */
static unsigned char *read_all(const struct victim_mapping *m)
{
    unsigned char *copy = malloc(m->bytes);

    if (copy == NULL || pread(m->fd, copy, m->bytes, 0) != (ssize_t)m->bytes)
        victim_fail("cannot read", m->path);
    return copy;
}

static size_t page_bytes(const struct victim_mapping *m, size_t at)
{
    return m->bytes - at < PAGE ? m->bytes - at : PAGE;
}

static void truncate_it(const struct victim_mapping *m)
{
    unsigned char *before = read_all(m);
    volatile size_t at = 0, wrong = 0, bus = 0;

    signal(SIGBUS, on_bus);
    if (truncate(m->path, (off_t)(m->bytes / 2)) != 0)
        victim_fail("cannot truncate", m->path);
    /* The kernel fills the rest of the last page with zeros. */
    for (at = 0; at < m->bytes; at += PAGE) {
        if (at / PAGE == m->bytes / 2 / PAGE)
            continue;
        if (sigsetjmp(after_bus, 1) == 0)
            wrong += memcmp(m->base + at, before + at, page_bytes(m, at)) != 0;
        else
            bus++;
    }
    printf("truncate wrong %zu\n", wrong + (bus > (m->bytes / 2 + PAGE) / PAGE));
    free(before);
}

static void rename_over(const struct victim_mapping *m, const char *other)
{
    if (rename(other, m->path) != 0)
        victim_fail("cannot rename", other);
    printf("rename wrong %zu\n", victim_wrong_pages(m));
}

static void overwrite(const struct victim_mapping *m)
{
    unsigned char *before = read_all(m), *after = malloc(m->bytes);
    int fd = open(m->path, O_WRONLY);
    size_t wrong = 0;

    if (after == NULL || fd < 0)
        victim_fail("cannot write", m->path);
    for (size_t i = 0; i < m->bytes; i++)
        after[i] = (unsigned char)~before[i];
    if (pwrite(fd, after, m->bytes, 0) != (ssize_t)m->bytes)
        victim_fail("cannot write", m->path);
    for (size_t at = 0; at < m->bytes; at += PAGE) {
        wrong += memcmp(m->base + at, before + at, page_bytes(m, at)) != 0 &&
                 memcmp(m->base + at, after + at, page_bytes(m, at)) != 0;
    }
    printf("overwrite wrong %zu\n", wrong);
    free(before);
    free(after);
    close(fd);
}

/* A quarter goes, which is then something else's; the next can be written to for a while; the
 * last is moved. */
static void unmap(const struct victim_mapping *m)
{
    size_t part = m->bytes / 4 / PAGE * PAGE, wrong;
    unsigned char *at = (unsigned char *)(uintptr_t)m->base, *moved;
    unsigned char *file = read_all(m);

    if (munmap(at + part, part) != 0 ||
        mmap(at + part, part, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
             0) != at + part)
        victim_fail("cannot map over", m->path);
    memset(at + part, 0x5a, part);
    if (mprotect(at + 2 * part, part, PROT_NONE) != 0 ||
        mprotect(at + 2 * part, part, PROT_READ) != 0 ||
        madvise(at + 2 * part, part, MADV_DONTNEED) != 0)
        victim_fail("cannot protect", m->path);
    moved = mremap(at + 3 * part, part, part, MREMAP_MAYMOVE | MREMAP_FIXED,
                   mmap(NULL, part, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (moved == MAP_FAILED)
        victim_fail("cannot move", m->path);
    wrong = memcmp(at, file, part) != 0;
    for (size_t i = 0; i < part; i++)
        wrong += at[part + i] != 0x5a;
    wrong += memcmp(at + 2 * part, file + 2 * part, part) != 0;
    wrong += memcmp(moved, file + 3 * part, part) != 0;
    printf("unmap wrong %zu\n", wrong);
    free(file);
}

int moepager_preload_routed(const void *weights, size_t expert_stride_bytes, const int64_t *ids,
                            size_t count) __attribute__((weak));

/* Lines of /proc/self/maps about the mapping: whose letter `at` of the protection is `letter`, and
 * which have no file behind them. */
static size_t count_maps(const struct victim_mapping *m, size_t at, char letter, size_t *bare_p)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    unsigned long begin, end, inode;
    char line[4352], prot[8];
    size_t count = 0;

    if (maps == NULL)
        victim_fail("cannot read", "/proc/self/maps");
    *bare_p = 0;
    while (fgets(line, sizeof(line), maps) != NULL) {
        if (sscanf(line, "%lx-%lx %7s %*s %*s %lu", &begin, &end, prot, &inode) != 4 ||
            begin >= (uintptr_t)m->base + m->bytes || end <= (uintptr_t)m->base)
            continue;
        count += prot[at] == letter;
        *bare_p += inode == 0;
    }
    fclose(maps);
    return count;
}

/* Until something of the file is in memory that is not the file's: the kernel could not bring that
 * back. Without the library it never is. */
static void wait_for_copies(const struct victim_mapping *m)
{
    size_t bare = 0;

    for (int i = 0; i < 200 && moepager_preload_routed != NULL && bare == 0; i++) {
        (void)count_maps(m, 0, 'r', &bare);
        usleep(10000);
    }
}

static void advise(const struct victim_mapping *m)
{
    const struct victim_mapping rest = { m->path, m->base, PAGE, m->bytes, m->fd };
    unsigned char *at = (unsigned char *)(uintptr_t)m->base;
    size_t wrong = 0;

    wait_for_copies(m);
    if (munmap(at, PAGE) != 0)
        victim_fail("cannot unmap", m->path);
    errno = 0;
    wrong += madvise(at, m->bytes, MADV_DONTNEED) != -1 || errno != ENOMEM;
    wrong += victim_wrong_pages(&rest);
    if (mmap(at, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) !=
        at)
        victim_fail("cannot map over", m->path);
    memset(at, 0x5a, PAGE);
    wrong += madvise(at, m->bytes, MADV_DONTNEED) != 0;
    wrong += at[0] != 0; /* its own page is dropped, as asked for */
    printf("advise wrong %zu\n", wrong + victim_wrong_pages(&rest));
}

/* What has nothing to do with the model is refused as ever. */
static void beside(const struct victim_mapping *m)
{
    void *const nowhere = (void *)(uintptr_t)PAGE; /* NOLINT: no mapping may lie so low */
    const int device = open("/dev/zero", O_RDONLY);
    void *zeros = mmap(NULL, 1 << 21, PROT_READ, MAP_PRIVATE, device, 0);
    size_t wrong = victim_wrong_pages(m);

    if (zeros == MAP_FAILED || munmap(zeros, 1 << 21) != 0 || close(device) != 0)
        victim_fail("cannot map", "/dev/zero");

    for (int i = 0; i < 500; i++) {
        errno = 0;
        wrong += madvise(nowhere, PAGE, MADV_NORMAL) != -1 || errno != ENOMEM;
        errno = 0;
        wrong += mprotect(nowhere, PAGE, PROT_READ) != -1 || errno != ENOMEM;
    }
    printf("beside wrong %zu\n", wrong);
}

/* Mapped to be read at first, by a descriptor for writing: it may be written to later. */
static void write_shared(const struct victim_mapping *m)
{
    const int fd = open(m->path, O_RDWR);
    unsigned char *shared = mmap(NULL, m->bytes, PROT_READ, MAP_SHARED, fd, 0);

    if (shared == MAP_FAILED || mprotect(shared, m->bytes, PROT_READ | PROT_WRITE) != 0)
        victim_fail("cannot write", m->path);
    for (size_t at = 0; at < m->bytes; at += PAGE)
        *(volatile unsigned char *)&shared[at] = m->base[at];
    munmap(shared, m->bytes);
    close(fd);
}

static void write_private(const struct victim_mapping *m)
{
    unsigned char *mine = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, m->fd, 0);
    size_t wrong = 0;

    if (mine == MAP_FAILED)
        victim_fail("cannot map privately", m->path);
    for (size_t at = 0; at < m->bytes; at += PAGE)
        mine[at] = (unsigned char)~mine[at];
    for (size_t at = 0; at < m->bytes; at += PAGE)
        wrong += mine[at] != (unsigned char)~m->base[at];
    write_shared(m);
    printf("private wrong %zu\n", wrong + victim_wrong_pages(m));
    munmap(mine, m->bytes);
}

/* Nothing of it may be written to any more, whichever experts come after that. */
static void protect(const struct victim_mapping *m, size_t offset, size_t expert_bytes)
{
    struct victim_mapping mine = *m;
    unsigned char *at = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, m->fd, 0);
    const int64_t ids[] = { 0, 1 };
    size_t wrong = 0, bare;

    if (at == MAP_FAILED)
        victim_fail("cannot map privately", m->path);
    mine.base = at;
    if (moepager_preload_routed != NULL)
        wrong += moepager_preload_routed(at + offset, expert_bytes, ids, 1) != 0;
    if (mprotect(at, m->bytes, PROT_READ) != 0)
        victim_fail("cannot protect", m->path);
    if (moepager_preload_routed != NULL)
        (void)moepager_preload_routed(at + offset, expert_bytes, ids + 1, 1);
    wrong += count_maps(&mine, 1, 'w', &bare);
    printf("protect wrong %zu\n", wrong + victim_wrong_pages(&mine));
    munmap(at, m->bytes);
}

static atomic_int signals;

static void on_usr1(int signal)
{
    (void)signal;
    atomic_fetch_add(&signals, 1);
}

static void raise_usr1(const struct victim_mapping *m)
{
    size_t wrong = victim_wrong_pages(m);

    signal(SIGUSR1, on_usr1);
    raise(SIGUSR1);
    usleep(200000);
    printf("usr1 wrong %zu\n", wrong + (atomic_load(&signals) != 1));
}

/* Another program takes this one's place while experts are mapped. */
static void become(const struct victim_mapping *m, const char *how, char **argv)
{
    const char *first = argv[0], *second = argv[1], *third = second != NULL ? argv[2] : NULL;

    printf("before exec wrong %zu\n", victim_wrong_pages(m));
    fflush(stdout);
    if (strcmp(how, "exec") == 0)
        execv(first, argv);
    else if (strcmp(how, "execve") == 0)
        execve(first, argv, environ);
    else if (strcmp(how, "execvp") == 0)
        execvp(first, argv);
    else if (strcmp(how, "execvpe") == 0)
        execvpe(first, argv, environ);
    else if (strcmp(how, "fexecve") == 0)
        fexecve(open(first, O_RDONLY | O_CLOEXEC), argv, environ);
    else if (strcmp(how, "execveat") == 0)
        execveat(AT_FDCWD, first, argv, environ, 0);
    else if (strcmp(how, "execl") == 0)
        execl(first, first, second, third, (char *)NULL);
    else if (strcmp(how, "execlp") == 0)
        execlp(first, first, second, third, (char *)NULL);
    else if (strcmp(how, "execle") == 0)
        execle(first, first, second, third, (char *)NULL, environ);
    victim_fail("cannot execute", first);
}

/* A child becomes it, and has this program's memory until then. */
static void spawn(char **argv)
{
    int status = 0;
    const pid_t child = vfork();

    if (child == 0) {
        execv(argv[0], argv);
        _exit(1);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        victim_fail("vfork", strerror(errno));
}

static void stay(const struct victim_mapping *m)
{
    size_t wrong = victim_wrong_pages(m);

    printf("ready wrong %zu\n", wrong);
    fflush(stdout);
    for (;;)
        pause();
}

int main(int argc, char **argv)
{
    struct victim_mapping m;
    const char *what = argc > 2 ? argv[2] : "";

    if (argc < 3)
        victim_fail("usage: victim_mapping FILE WHAT, got", argv[argc - 1]);
    victim_map(argv[1], &m);
    if (strcmp(what, "truncate") == 0)
        truncate_it(&m);
    else if (strcmp(what, "rename") == 0 && argc > 3)
        rename_over(&m, argv[3]);
    else if (strcmp(what, "overwrite") == 0)
        overwrite(&m);
    else if (strcmp(what, "unmap") == 0)
        unmap(&m);
    else if (strcmp(what, "advise") == 0)
        advise(&m);
    else if (strcmp(what, "beside") == 0)
        beside(&m);
    else if (strcmp(what, "private") == 0)
        write_private(&m);
    else if (strcmp(what, "protect") == 0 && argc > 4)
        protect(&m, strtoul(argv[3], NULL, 10), strtoul(argv[4], NULL, 10));
    else if (strcmp(what, "usr1") == 0)
        raise_usr1(&m);
    else if (strcmp(what, "vfork") == 0 && argc > 3)
        spawn(argv + 3);
    else if (strstr(what, "exec") != NULL && argc > 3)
        become(&m, what, argv + 3);
    else if (strcmp(what, "stay") == 0)
        stay(&m);
    else
        victim_check(&m, what);
    munmap((void *)(uintptr_t)m.base, m.bytes);
    return fflush(stdout) != 0;
}
