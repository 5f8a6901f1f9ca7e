/* What a program sees of a mapped file; see victim_checks.h. */
#define _GNU_SOURCE
#include "tests/interpose/victim_checks.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, CHUNK = 1 << 18, THREADS = 8, TOUCHES = 125000 };

_Noreturn void victim_fail(const char *what, const char *name)
{
    fprintf(stderr, "victim: %s '%s': %s\n", what, name, strerror(errno));
    exit(1);
}

static void open_file(const char *path, struct victim_mapping *m)
{
    struct stat st;

    m->path = path;
    m->first = 0;
    m->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (m->fd < 0 || fstat(m->fd, &st) != 0)
        victim_fail("cannot open", path);
    m->bytes = (size_t)st.st_size;
}

void victim_map(const char *path, struct victim_mapping *m)
{
    int fd = open(path, O_RDONLY);

    open_file(path, m);
    m->base = mmap(NULL, m->bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (m->base == MAP_FAILED)
        victim_fail("cannot map", path);
    close(fd);
}

void victim_find(const char *path, struct victim_mapping *m)
{
    char line[4352], real[4096];
    unsigned long begin, end, offset, last = 0;
    FILE *maps = fopen("/proc/self/maps", "r");

    open_file(path, m);
    m->base = NULL;
    if (maps == NULL || realpath(path, real) == NULL)
        victim_fail("cannot look for the mapping of", path);
    while (fgets(line, sizeof(line), maps) != NULL) {
        if (strstr(line, real) == NULL ||
            sscanf(line, "%lx-%lx %*s %lx", &begin, &end, &offset) != 3)
            continue;
        if (m->base == NULL) {
            m->base = (const unsigned char *)(begin - offset); /* NOLINT: a number until here */
            m->first = offset;
        }
        if (offset + end - begin > last)
            last = offset + end - begin;
    }
    m->bytes = last < m->bytes ? last : m->bytes;
    fclose(maps);
    if (m->base == NULL)
        victim_fail("nobody has mapped", path);
}

static size_t wrong_between(const unsigned char *a, const unsigned char *b, size_t bytes)
{
    size_t wrong = 0;

    for (size_t at = 0; at < bytes; at += PAGE)
        wrong += memcmp(a + at, b + at, bytes - at < PAGE ? bytes - at : PAGE) != 0;
    return wrong;
}

size_t victim_wrong_pages(const struct victim_mapping *m)
{
    unsigned char *chunk = malloc(CHUNK);
    size_t wrong = 0;

    if (chunk == NULL)
        victim_fail("no memory for", m->path);
    for (size_t at = m->first; at < m->bytes; at += CHUNK) {
        size_t bytes = m->bytes - at < CHUNK ? m->bytes - at : CHUNK;

        if (pread(m->fd, chunk, bytes, (off_t)at) != (ssize_t)bytes)
            victim_fail("cannot read", m->path);
        wrong += wrong_between(m->base + at, chunk, bytes);
    }
    free(chunk);
    return wrong;
}

static size_t check_bytes(const struct victim_mapping *m)
{
    return victim_wrong_pages(m);
}

struct toucher {
    const struct victim_mapping *m;
    const unsigned char *file;
    unsigned seed;
    size_t wrong;
};

/* From one byte to a page and a half, so that ends of pages and of experts are crossed. */
static void *touch(void *arg)
{
    struct toucher *t = arg;
    uint64_t state = t->seed * 0x9e3779b97f4a7c15u + 1;

    for (int i = 0; i < TOUCHES; i++) {
        size_t at, bytes;

        state = state * 6364136223846793005u + 1442695040888963407u;
        at = t->m->first + (size_t)(state >> 16) % (t->m->bytes - t->m->first);
        bytes = i % 16 == 0 ? PAGE + PAGE / 2 : 1 + (size_t)(state >> 60);
        if (bytes > t->m->bytes - at)
            bytes = t->m->bytes - at;
        t->wrong += memcmp(t->m->base + at, t->file + at, bytes) != 0;
    }
    return NULL;
}

static size_t check_touch(const struct victim_mapping *m)
{
    struct toucher touchers[THREADS];
    pthread_t threads[THREADS];
    unsigned char *file = malloc(m->bytes);
    size_t wrong = 0;

    if (file == NULL || pread(m->fd, file, m->bytes, 0) != (ssize_t)m->bytes)
        victim_fail("cannot read", m->path);
    for (unsigned i = 0; i < THREADS; i++) {
        touchers[i] = (struct toucher){ m, file, i, 0 };
        if (pthread_create(&threads[i], NULL, touch, &touchers[i]) != 0)
            victim_fail("no thread for", m->path);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        wrong += touchers[i].wrong;
    }
    free(file);
    return wrong;
}

static size_t check_fork(const struct victim_mapping *m)
{
    size_t wrong;
    pid_t child;
    int status;

    fflush(NULL);
    child = fork();
    if (child == 0)
        _exit(victim_wrong_pages(m) != 0);
    wrong = victim_wrong_pages(m);
    if (child < 0 || waitpid(child, &status, 0) != child)
        victim_fail("no child for", m->path);
    return wrong + (status != 0);
}

static size_t check_write(const struct victim_mapping *m)
{
    unsigned char *copy;
    int fd = memfd_create("copy", MFD_CLOEXEC);
    size_t wrong = 0;

    if (fd < 0)
        victim_fail("no memory for a copy of", m->path);
    for (size_t at = m->first; at < m->bytes; at += CHUNK) {
        size_t bytes = m->bytes - at < CHUNK ? m->bytes - at : CHUNK;

        wrong += pwrite(fd, m->base + at, bytes, (off_t)at) != (ssize_t)bytes;
    }
    copy = mmap(NULL, m->bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (copy == MAP_FAILED)
        victim_fail("cannot map a copy of", m->path);
    wrong +=
        victim_wrong_pages(&(struct victim_mapping){ m->path, copy, m->first, m->bytes, m->fd });
    munmap(copy, m->bytes);
    close(fd);
    return wrong;
}

static size_t check_readv(const struct victim_mapping *m)
{
    unsigned char *there = malloc(CHUNK), *here = malloc(CHUNK);
    size_t wrong = 0;

    if (there == NULL || here == NULL)
        victim_fail("no memory for", m->path);
    for (size_t at = m->first; at < m->bytes; at += CHUNK) {
        size_t bytes = m->bytes - at < CHUNK ? m->bytes - at : CHUNK;
        struct iovec into = { there, bytes };
        struct iovec outof = { (void *)(uintptr_t)(m->base + at), bytes };

        if (process_vm_readv(getpid(), &into, 1, &outof, 1, 0) != (ssize_t)bytes ||
            pread(m->fd, here, bytes, (off_t)at) != (ssize_t)bytes)
            wrong++;
        else
            wrong += wrong_between(there, here, bytes);
    }
    free(there);
    free(here);
    return wrong;
}

static sigjmp_buf after_fault;
static void *volatile fault_at;

static void on_fault(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)context;
    fault_at = info->si_addr;
    siglongjmp(after_fault, 1);
}

static size_t check_signal(const struct victim_mapping *m)
{
    struct sigaction action = { .sa_flags = SA_SIGINFO, .sa_sigaction = on_fault }, before;
    volatile char *hole = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t wrong = 1;

    if (hole == MAP_FAILED || sigaction(SIGSEGV, &action, &before) != 0)
        victim_fail("cannot wait for a fault beside", m->path);
    if (sigsetjmp(after_fault, 1) == 0)
        hole[8] = 1;
    else
        wrong = fault_at != (void *)(uintptr_t)&hole[8];
    wrong += victim_wrong_pages(m);
    sigaction(SIGSEGV, &before, NULL);
    munmap((void *)(uintptr_t)hole, PAGE);
    return wrong;
}

void victim_check(const struct victim_mapping *m, const char *list)
{
    static const struct {
        const char *name;
        size_t (*check)(const struct victim_mapping *m);
    } checks[] = { { "bytes", check_bytes }, { "touch", check_touch }, { "fork", check_fork },
                   { "write", check_write }, { "readv", check_readv }, { "signal", check_signal } };
    size_t i;

    for (size_t bytes = strcspn(list, ","); *list != '\0';
         list += bytes + (list[bytes] == ','), bytes = strcspn(list, ",")) {
        for (i = 0; i < sizeof(checks) / sizeof(checks[0]); i++) {
            if (strlen(checks[i].name) == bytes && strncmp(list, checks[i].name, bytes) == 0)
                break;
        }
        if (i == sizeof(checks) / sizeof(checks[0]))
            victim_fail("no such check", list);
        printf("%s wrong %zu\n", checks[i].name, checks[i].check(m));
    }
}
