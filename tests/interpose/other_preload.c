/*
 * Somebody else's preloaded library: it hooks mmap and munmap too, counts them, and passes them on
 * to whoever is next. At the end of the program it says `other N maps M devices D` on standard
 * error: M is how often somebody has looked what is mapped in the process, D how often a place was
 * read of what is no file.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static atomic_uint calls, looks, devices;

void *mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset)
{
    static void *(*next)(void *, size_t, int, int, int, off_t);

    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "mmap");
    atomic_fetch_add(&calls, 1);
    return next(at, bytes, prot, flags, fd, offset);
}

int munmap(void *at, size_t bytes)
{
    static int (*next)(void *, size_t);

    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "munmap");
    atomic_fetch_add(&calls, 1);
    return next(at, bytes);
}

static FILE *open_file(const char *path, const char *mode)
{
    static FILE *(*next)(const char *, const char *);

    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "fopen");
    atomic_fetch_add(&looks, strcmp(path, "/proc/self/maps") == 0);
    return next(path, mode);
}

FILE *fopen(const char *path, const char *mode)
{
    return open_file(path, mode);
}

FILE *fopen64(const char *path, const char *mode)
{
    return open_file(path, mode);
}

static ssize_t read_at(int fd, void *to, size_t bytes, off_t at)
{
    static ssize_t (*next)(int, void *, size_t, off_t);
    struct stat st;

    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "pread");
    atomic_fetch_add(&devices, fstat(fd, &st) == 0 && !S_ISREG(st.st_mode));
    return next(fd, to, bytes, at);
}

ssize_t pread(int fd, void *to, size_t bytes, off_t at)
{
    return read_at(fd, to, bytes, at);
}

ssize_t pread64(int fd, void *to, size_t bytes, off_t at)
{
    return read_at(fd, to, bytes, at);
}

__attribute__((destructor)) static void end(void)
{
    fprintf(stderr, "other %u maps %u devices %u\n", atomic_load(&calls), atomic_load(&looks),
            atomic_load(&devices));
}
